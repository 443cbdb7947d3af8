"""Inner estimates of ListNet, ListMLE and NDCG from some items of some queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fcco._pool import Estimate, join
from fcco._repeats import number_distinct
from fcco.functional._checks import check_choice, check_floats, check_integers, check_relevance
from fcco.functional._inner import (
    above,
    against,
    as_estimate,
    can_estimate,
    copies_of,
    diagonal,
    masked_logsumexp,
    own_part,
    same,
    stratum_weight,
)
from fcco.functional._listwise import gain_share, relevance_share
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.functional._tensors import at_least_float32

ListOwnTerm = Literal["exact", "sampled", "bounded"]


def check_list_own_term(own_term: str) -> None:
    check_choice(own_term, "own_term", ("exact", "sampled", "bounded"))


class Lists(NamedTuple):
    """What is known of each item and its query: [B] each, or [n] for all items of the population."""

    size: Tensor
    """Items the query has."""
    relevant: Tensor
    """Those with a relevance above 0."""
    share: Tensor
    """How much the item counts in its query: P(y), or its gain over the ideal one."""
    number: Tensor
    """Of the query: 0, 1, ..."""
    relevance: Tensor
    """Of the item itself."""

    def at(self, rows: Tensor) -> Lists:
        """The same for some items."""
        return Lists(*(values[rows] for values in self))


class Pairs(NamedTuple):
    """Items of a batch against each other. Relevant and irrelevant items of a query are two strata."""

    above: Tensor
    """[B, B]: by how much the score of j is above that of i."""
    same_query: Tensor
    """[B, B] of bool."""
    stands_for: Tensor
    """[B, B]: how many items of i's query j stands for; 0 in other queries, 1 for i itself where that term is exact."""
    known: Tensor
    """[B] of bool: the batch has enough of the query to estimate the item's g."""
    each: Tensor
    """[B]: how many items of its own stratum an item stands for."""
    size: Tensor
    """[B]: items the query has."""
    relevant: Tensor
    """[B]: relevant ones among them."""


def pair_items(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    lists: Lists | None,
    own_term: ListOwnTerm,
    rows: Tensor | None,
    own: int | None,
    *,
    below_only: bool = False,
) -> Pairs:
    """Weigh the pairs of a batch so that it may hold any share of a query's relevant and irrelevant items.

    A stratum that the batch lacks leaves an item without a term if the own term is exact, and is stood for by the other
    if it is not; unless it does not matter, as relevant items do not to irrelevant ones with ``below_only``. Where
    nothing is known of the lists, the batch's items are all there are.
    """
    scores = at_least_float32(scores)
    is_relevant = relevance > 0
    same_query = same(query, own)
    alike = same_query & same(is_relevant, own)
    if lists is None:
        size, relevant, rows = _per_query(torch.ones_like(query), query), _per_query(is_relevant, query), None
    else:
        size, relevant = lists.size, lists.relevant
    # An item is one of its stratum at least, whatever was said of the population.
    own_size = torch.where(is_relevant, relevant, size - relevant).clamp(min=1)
    # Where all pairs are there, counting them is cheaper than sorting.
    if own is None:
        in_stratum = alike.sum(1)
    else:
        in_stratum = _per_query(torch.ones_like(query), 2 * number_distinct(query) + is_relevant)
    each = own_size / in_stratum.to(scores.dtype)
    unlike = same_query & ~alike
    size, relevant, own_size = (own_part(values, own) for values in (size, relevant, own_size))
    matters = own_part(is_relevant, own) if below_only else torch.ones_like(own_size, dtype=torch.bool)
    lacks = matters & ~unlike.any(1)
    known = torch.ones_like(matters)
    if own_term == "sampled":
        stands_for = each * torch.where(lacks, size / own_size.to(scores.dtype), 1.0).unsqueeze(1)
    else:
        copies = copies_of(rows, scores, own)
        if own_term == "exact":
            known = can_estimate(alike, own_size, copies=copies.sum(1))
            known = known & (can_estimate(unlike, size - own_size) | ~matters)
            for_itself = torch.ones_like(scores[:1])
            of_others = stratum_weight(alike, own_size, scores, copies=copies.sum(1))
        else:
            for_itself, of_others = _bounded(alike, copies, torch.where(lacks, size, own_size), own_part(each, own))
        of_others = torch.where(alike, of_others.unsqueeze(1), each)
        stands_for = torch.where(copies, diagonal(scores, own) * for_itself.unsqueeze(1), of_others)
    return Pairs(
        above(scores, own),
        same_query,
        stands_for * same_query,
        known,
        own_part(each, own),
        size,
        relevant,
    )


def _bounded(alike: Tensor, copies: Tensor, stands_for: Tensor, each: Tensor) -> tuple[Tensor, Tensor]:
    """How many items of its stratum an item stands for, and each of the others does: [B] both.

    The own item stands for 2 less the share of the stratum that the batch has: for 1, exactly, where that is all of it,
    and never for 2. Where there are no others, it stands for all.

    Args:
        alike, copies: [B, B], of the item's stratum, and the item itself.
        stands_for: [B], how many items all of them stand for.
        each: [B], how many each would if they stood for equally many, 1 over the share.
    """
    others = alike.sum(1) - copies.sum(1)
    own = torch.where(others > 0, 2 - 1 / each.clamp(min=1), stands_for.to(each.dtype))
    return own, (stands_for - own) / others.clamp(min=1)


def _per_query(values: Tensor, query: Tensor) -> Tensor:
    """[B]: the sum of whole numbers over the batch's items of the same query."""
    slot = number_distinct(query)
    return torch.zeros_like(slot).index_add(0, slot, values.to(slot.dtype))[slot]


def _check(scores: Tensor, relevance: Tensor, query: Tensor, own_term: str, *, signed: bool) -> None:
    check_list_own_term(own_term)
    check_floats(scores, "scores", "[B]", room=4)
    check_relevance(relevance, scores, "scores", signed=signed)
    check_integers(query, "query", scores, "scores")


def _all_items(pairs: Pairs) -> Tensor:
    """[B]: weights of items that are all visited equally often: a query's add up to what the batch has of it."""
    return pairs.each * pairs.same_query.sum(1) / pairs.size * pairs.known


def _relevant_items(pairs: Pairs, relevance: Tensor, own: int | None) -> Tensor:
    """[B]: 1 for relevant items that can be estimated, all of which are visited equally often."""
    return (own_part(relevance > 0, own) & pairs.known).to(pairs.above.dtype)


def _queries(item: Tensor, size: Tensor) -> Tensor:
    """How many queries the batch stands for: it has the fraction Σ item / size of each.

    The mean over queries of the sum of share * f is then estimated by a ratio of two unbiased estimates, the sum over
    queries and their number, so biased by what the number varies.

    Args:
        item: [B], how much an item counts, 0 if it has no term.
        size: [B], items with a term that the query has.
    """
    return torch.where(item > 0, item / size, 0.0).sum()


def list_net_inner(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    lists: Lists | None = None,
    target: str = "proportional",
    own_term: ListOwnTerm = "exact",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
) -> Estimate:
    r"""log g of ListNet for the items with P(y) > 0.

    .. math:: g_i = \sum_{j \in q_i} e^{h_j - h_i}

    Args:
        scores: h, [B].
        relevance: y, [B].
        query: [B] of integers.
        lists: what is known of the items' queries, [B + R] each; None: the batch has them whole.
        target: "proportional" or "softmax", what P(y) is.
        own_term: "exact", "sampled" or "bounded".
        rows: [B + R], which item each is, if one may stand twice.
        rivals: the same columns of further examples, [R] each, which no estimates are made of.

    Returns:
        inner [B], weight [B].
    """
    softmax = target == "softmax"
    (scores, relevance, query), own = join((scores, relevance, query), rivals)
    _check(scores, relevance, query, own_term, signed=softmax)
    pairs = pair_items(scores, relevance, query, lists, own_term, rows, own)
    if lists is None:
        share = relevance_share(relevance, number_distinct(query), len(query), target)
    else:
        share, relevance = lists.share, lists.relevance
    share = own_part(share, own).to(pairs.above.dtype)
    item, size = (
        (_all_items(pairs), pairs.size) if softmax else (_relevant_items(pairs, relevance, own), pairs.relevant)
    )
    return as_estimate(_log_sum(pairs, pairs.stands_for > 0), share * item, log=True, total=_queries(item, size))


def _log_sum(pairs: Pairs, where: Tensor) -> Tensor:
    return masked_logsumexp(pairs.above + pairs.stands_for.log(), where)


def list_mle_inner(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    lists: Lists | None = None,
    own_term: ListOwnTerm = "exact",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
) -> Estimate:
    r"""log g of ListMLE.

    .. math:: g_i = \sum_{j \in q_i, y_j \le y_i} e^{h_j - h_i}

    Args:
        scores: h, [B].
        relevance: y, [B].
        query: [B] of integers.
        lists: what is known of the items' queries, [B + R] each; None: the batch has them whole.
        own_term: "exact", "sampled" or "bounded".
        rows: [B + R], which item each is, if one may stand twice.
        rivals: the same columns of further examples, [R] each, which no estimates are made of.

    Returns:
        inner [B], weight [B].
    """
    (scores, relevance, query), own = join((scores, relevance, query), rivals)
    _check(scores, relevance, query, own_term, signed=True)
    pairs = pair_items(scores, relevance, query, lists, own_term, rows, own, below_only=True)
    theirs, mine = against(relevance, own)
    return as_estimate(_log_sum(pairs, (theirs <= mine) & (pairs.stands_for > 0)), _all_items(pairs), log=True)


def ndcg_inner(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    lists: Lists | None = None,
    k: int | None = None,
    own_term: ListOwnTerm = "exact",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
) -> Estimate:
    r"""A smooth rank of the relevant items (its log where ℓ is exp), and their gains as weights.

    .. math:: r_i = 1 + \sum_{j \in q_i, j \ne i} \ell(h_j - h_i)

    Args:
        scores: h, [B].
        relevance: y, [B], not negative.
        query: [B] of integers.
        surrogate: ℓ, a name or an elementwise function; see :func:`fcco.functional.ndcg_loss`.
        margin: of the hinges.
        lists: what is known of the items' queries, [B + R] each; None: the batch has them whole.
        k: length of the top that counts.
        own_term: "exact", "sampled" or "bounded"; the own term is 1 in any case, and stands for some of the others' in
            the last two.
        rows: [B + R], which item each is, if one may stand twice.
        rivals: the same columns of further examples, [R] each, which no estimates are made of.

    Returns:
        inner [B], weight [B].
    """
    (scores, relevance, query), own = join((scores, relevance, query), rivals)
    _check(scores, relevance, query, own_term, signed=False)
    pairs = pair_items(scores, relevance, query, lists, own_term, rows, own)
    if lists is None:
        share = gain_share(relevance, number_distinct(query), len(query), k)
    else:
        share, relevance = lists.share, lists.relevance
    ell = resolve_surrogate(surrogate, margin)
    if ell.is_exp:
        inner = _log_sum(pairs, pairs.stands_for > 0)
    else:
        inner = (ell(pairs.above).masked_fill(diagonal(scores, own), 1.0) * pairs.stands_for).sum(1)
    share, item = own_part(share, own).to(pairs.above.dtype), _relevant_items(pairs, relevance, own)
    return as_estimate(inner, share * item, log=ell.is_exp, total=_queries(item, pairs.relevant))
