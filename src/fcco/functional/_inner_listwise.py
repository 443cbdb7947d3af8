"""Inner estimates of ListNet, ListMLE and NDCG from some items of some queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fcco._pool import Estimate, Recall, Sides, join
from fcco.functional._checks import check_choice, check_floats, check_integers, check_relevance
from fcco.functional._inner import (
    above,
    against,
    as_estimate,
    can_estimate,
    copies_of,
    diagonal,
    masked_logsumexp,
    same,
    stratum_weight,
)
from fcco.functional._listwise import gain_share, relevance_share
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.functional._tensors import at_least_float32

ListOwnTerm = Literal["exact", "sampled", "bounded"]


def check_list_own_term(own_term: str) -> None:
    """Check the option ``own_term`` of a listwise loss."""
    check_choice(own_term, "own_term", ("exact", "sampled", "bounded"))


class Lists(NamedTuple):
    """What is known about each item and its query.

    Each tensor has one entry for each item of a batch, shape (B,), or of the population, shape (n,).

    Attributes
    ----------
    size : Tensor
        The number of items of the query.
    relevant : Tensor
        The number of items of the query with a relevance above 0.
    share : Tensor
        How much the item counts in its query.
    number : Tensor
        The number of the query: 0, 1, ...
    relevance : Tensor
        The relevance of the item.
    """

    size: Tensor
    """The number of items of the query."""
    relevant: Tensor
    """The number of items of the query with a relevance above 0."""
    share: Tensor
    """How much the item counts in its query: P(y), or its gain divided by the ideal one."""
    number: Tensor
    """The number of the query: 0, 1, ..."""
    relevance: Tensor
    """The relevance of the item."""

    def at(self, rows: Tensor) -> Lists:
        """Return the entries of some items.

        Parameters
        ----------
        rows : Tensor of shape (B,)
            Which items.

        Returns
        -------
        Lists
            Their entries, each tensor of shape (B,).
        """
        return Lists(*(values[rows] for values in self))


class Pairs(NamedTuple):
    """All pairs of items i and j of a batch; the relevant and the irrelevant items of a query are two strata."""

    above: Tensor
    """How far the score of j is above that of i, in units of the temperature, of shape (B, B)."""
    same_query: Tensor
    """Whether both items have the same query, of shape (B, B)."""
    stands_for: Tensor
    """How many items of i's query j represents, of shape (B, B).

    It is 0 if j belongs to another query, and 1 for i itself if the own term is exact.
    """
    known: Tensor
    """Whether the batch has enough of the query to estimate g of the item, of shape (B,)."""
    each: Tensor
    """How many items of its own stratum an item represents, of shape (B,)."""
    size: Tensor
    """The number of items of the query, of shape (B,)."""
    relevant: Tensor
    """The number of relevant items of the query, of shape (B,)."""


def pair_items(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    lists: Lists | None,
    own_term: ListOwnTerm,
    rows: Tensor | None,
    sides: Sides,
    *,
    below_only: bool = False,
    temperature: float | Tensor = 1.0,
) -> Pairs:
    """Weigh the pairs of a batch so that it may hold any share of a query's relevant and irrelevant items.

    If the batch has no item of one stratum, an item has no term with an exact own term. Otherwise the items of the
    other stratum represent the whole query. Strata that do not matter are exempt: with ``below_only``, relevant items
    do not matter to irrelevant ones. If nothing is known about the lists, the items of the batch are taken as the whole
    lists.
    """
    scores = at_least_float32(scores)
    is_relevant = relevance > 0
    same_query = same(query, sides) & sides.members(torch.ones_like(is_relevant))
    alike = same_query & same(is_relevant, sides)
    present = torch.ones_like(is_relevant) if sides.recall.present is None else sides.recall.present
    if lists is None:
        size, relevant, rows = _per_query(present, query), _per_query(is_relevant & present, query), None
    else:
        size, relevant = lists.size, lists.relevant
    # A stratum has at least the item itself, whatever the description of the population says.
    own_size = torch.where(is_relevant, relevant, size - relevant).clamp(min=1)
    # If all pairs exist, counting them is cheaper than sorting.
    in_stratum = alike.sum(1) if sides.own is None else _per_query(present, 2 * number_distinct(query) + is_relevant)
    each = own_size / in_stratum.clamp(min=1).to(scores.dtype)
    unlike = same_query & ~alike
    size, relevant, own_size = (sides.mine(values) for values in (size, relevant, own_size))
    matters = sides.mine(is_relevant) if below_only else torch.ones_like(own_size, dtype=torch.bool)
    lacks = matters & ~unlike.any(1)
    known = torch.ones_like(matters)
    if own_term == "sampled":
        stands_for = each * torch.where(lacks, size / own_size.to(scores.dtype), 1.0).unsqueeze(1)
    else:
        copies = copies_of(rows, scores, sides)
        if own_term == "exact":
            known = can_estimate(alike, own_size, copies=copies.sum(1))
            known = known & (can_estimate(unlike, size - own_size) | ~matters)
            for_itself = torch.ones_like(scores[:1])
            of_others = stratum_weight(alike, own_size, scores, copies=copies.sum(1))
        else:
            for_itself, of_others = _bounded(alike, copies, torch.where(lacks, size, own_size), sides.mine(each))
        of_others = torch.where(alike, of_others.unsqueeze(1), each)
        stands_for = torch.where(copies, diagonal(scores, sides) * for_itself.unsqueeze(1), of_others)
    return Pairs(
        above(scores, sides, temperature),
        same_query,
        stands_for * same_query,
        known,
        sides.mine(each),
        size,
        relevant,
    )


def _bounded(alike: Tensor, copies: Tensor, stands_for: Tensor, each: Tensor) -> tuple[Tensor, Tensor]:
    """How many items of its stratum the own item represents, and each of the others; both of shape (B,).

    The own item represents 2 minus the share of the stratum that is in the batch. This is exactly 1 if the whole
    stratum is in the batch, and always less than 2. If there are no others, the own item represents all.

    Parameters
    ----------
    alike, copies : Tensor of bool of shape (B, B)
        The items of the own stratum, and the own item itself.
    stands_for : Tensor of shape (B,)
        How many items all of them represent together.
    each : Tensor of shape (B,)
        How many items each would represent if all had the same weight, which is 1 over the share.
    """
    others = alike.sum(1) - copies.sum(1)
    own = torch.where(others > 0, 2 - 1 / each.clamp(min=1), stands_for.to(each.dtype))
    return own, (stands_for - own) / others.clamp(min=1)


def _per_query(values: Tensor, query: Tensor) -> Tensor:
    """Return the sum of integers over the batch's items of the same query, of shape (B,)."""
    slot = number_distinct(query)
    return torch.zeros_like(slot).index_add(0, slot, values.to(slot.dtype))[slot]


def _check(scores: Tensor, relevance: Tensor, query: Tensor, own_term: str, *, signed: bool) -> None:
    """Check the arguments of a listwise estimate."""
    check_list_own_term(own_term)
    check_floats(scores, "scores", "[B]", room=4)
    check_relevance(relevance, scores, "scores", signed=signed)
    check_integers(query, "query", scores, "scores")


def _all_items(pairs: Pairs) -> Tensor:
    """Return the weights of items that are all visited equally often, of shape (B,).

    The weights of a query add up to the share of the query that is in the batch.
    """
    return pairs.each * pairs.same_query.sum(1) / pairs.size * pairs.known


def _relevant_items(pairs: Pairs, relevance: Tensor, sides: Sides) -> Tensor:
    """Return 1 for relevant items with an estimate, of shape (B,), if all relevant items are visited equally often."""
    return (sides.mine(relevance > 0) & pairs.known).to(pairs.above.dtype)


def _queries(item: Tensor, size: Tensor) -> Tensor:
    """How many queries the batch represents: it contains the fraction Σ item / size of each.

    The mean over queries of the sum of share * f is then estimated by a ratio of two unbiased estimates, the sum over
    queries and their number. The ratio is biased by the variation of the number.

    Parameters
    ----------
    item : Tensor of shape (B,)
        How much an item counts; 0 if it has no term.
    size : Tensor of shape (B,)
        The number of items of the query that have a term.
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
    recall: Recall | None = None,
) -> Estimate:
    r"""Estimate log g of ListNet for the items with P(y) > 0.

    .. math:: g_i = \sum_{j \in q_i} e^{h_j - h_i}

    Parameters
    ----------
    scores : Tensor of shape (B,)
        The scores h.
    relevance : Tensor of shape (B,)
        The relevances y.
    query : Tensor of shape (B,)
        The query of each item, an integer.
    lists : Lists or None, default None
        What is known about the items' queries, each tensor of shape (B + R,). By default, the batch contains whole
        lists.
    target : {"proportional", "softmax"}, default "proportional"
        How relevances become probabilities P(y).
    own_term : {"exact", "sampled", "bounded"}, default "exact"
        How to weigh the own term; see :class:`fcco.losses.NDCGLoss`.
    rows : Tensor of shape (B + R,) or None, default None
        The row of each item, needed if an item may appear more than once.
    rivals : sequence of Tensors of shape (R,) or None, default None
        The same columns for R further rivals. No estimates are made for them.
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

    Returns
    -------
    Estimate
        ``inner`` of shape (B,), which is log g, and ``weight`` of shape (B,).

    See Also
    --------
    fcco.losses.ListNetLoss : The loss that uses this estimate.
    """
    softmax = target == "softmax"
    (scores, relevance, query), sides = join((scores, relevance, query), rivals, recall)
    _check(scores, relevance, query, own_term, signed=softmax)
    pairs = pair_items(scores, relevance, query, lists, own_term, rows, sides)
    if lists is None:
        share = relevance_share(relevance, number_distinct(query), len(query), target)
    else:
        share, relevance = lists.share, lists.relevance
    share = sides.mine(share).to(pairs.above.dtype)
    item, size = (
        (_all_items(pairs), pairs.size) if softmax else (_relevant_items(pairs, relevance, sides), pairs.relevant)
    )
    return as_estimate(_log_sum(pairs, pairs.stands_for > 0), share * item, log=True, total=_queries(item, size))


def _log_sum(pairs: Pairs, where: Tensor) -> Tensor:
    """Return the log of the weighted sum of e^(h_j - h_i) over the pairs where ``where`` is True."""
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
    recall: Recall | None = None,
) -> Estimate:
    r"""Estimate log g of ListMLE.

    .. math:: g_i = \sum_{j \in q_i, y_j \le y_i} e^{h_j - h_i}

    Parameters
    ----------
    scores : Tensor of shape (B,)
        The scores h.
    relevance : Tensor of shape (B,)
        The relevances y.
    query : Tensor of shape (B,)
        The query of each item, an integer.
    lists : Lists or None, default None
        What is known about the items' queries, each tensor of shape (B + R,). By default, the batch contains whole
        lists.
    own_term : {"exact", "sampled", "bounded"}, default "exact"
        How to weigh the own term; see :class:`fcco.losses.NDCGLoss`.
    rows : Tensor of shape (B + R,) or None, default None
        The row of each item, needed if an item may appear more than once.
    rivals : sequence of Tensors of shape (R,) or None, default None
        The same columns for R further rivals. No estimates are made for them.
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

    Returns
    -------
    Estimate
        ``inner`` of shape (B,), which is log g, and ``weight`` of shape (B,).

    See Also
    --------
    fcco.losses.ListMLELoss : The loss that uses this estimate.
    """
    (scores, relevance, query), sides = join((scores, relevance, query), rivals, recall)
    _check(scores, relevance, query, own_term, signed=True)
    pairs = pair_items(scores, relevance, query, lists, own_term, rows, sides, below_only=True)
    theirs, mine = against(relevance, sides)
    return as_estimate(_log_sum(pairs, (theirs <= mine) & (pairs.stands_for > 0)), _all_items(pairs), log=True)


def ndcg_inner(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    surrogate: SurrogateLike = "ramp",
    margin: float = 1.0,
    temperature: float | Tensor = 1.0,
    lists: Lists | None = None,
    k: int | None = None,
    own_term: ListOwnTerm = "exact",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
    recall: Recall | None = None,
) -> Estimate:
    r"""Estimate a smooth rank of the relevant items, with their gains as weights.

    .. math:: r_i = 1 + \sum_{j \in q_i, j \ne i} \ell((h_j - h_i) / \tau)

    The estimate is of log r if ℓ is exp.

    Parameters
    ----------
    scores : Tensor of shape (B,)
        The scores h.
    relevance : Tensor of shape (B,)
        The relevances y, at least 0.
    query : Tensor of shape (B,)
        The query of each item, an integer.
    surrogate : str or callable, default "ramp"
        The surrogate ℓ, a name or an elementwise function; see :func:`fcco.functional.ndcg_loss`.
    margin : float, default 1.0
        The margin of the hinges.
    temperature : float or Tensor, default 1.0
        The temperature τ, in units of the scores.
    lists : Lists or None, default None
        What is known about the items' queries, each tensor of shape (B + R,). By default, the batch contains whole
        lists.
    k : int or None, default None
        How many places at the top count; all by default.
    own_term : {"exact", "sampled", "bounded"}, default "exact"
        How to weigh the own term; see :class:`fcco.losses.NDCGLoss`. The own term is always 1. With "sampled" and
        "bounded" it also represents the terms of some other items.
    rows : Tensor of shape (B + R,) or None, default None
        The row of each item, needed if an item may appear more than once.
    rivals : sequence of Tensors of shape (R,) or None, default None
        The same columns for R further rivals. No estimates are made for them.
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

    Returns
    -------
    Estimate
        ``inner`` of shape (B,) and ``weight`` of shape (B,).

    See Also
    --------
    fcco.losses.NDCGLoss : The loss that uses this estimate.
    """
    (scores, relevance, query), sides = join((scores, relevance, query), rivals, recall)
    _check(scores, relevance, query, own_term, signed=False)
    pairs = pair_items(scores, relevance, query, lists, own_term, rows, sides, temperature=temperature)
    if lists is None:
        share = gain_share(relevance, number_distinct(query), len(query), k)
    else:
        share, relevance = lists.share, lists.relevance
    ell = resolve_surrogate(surrogate, margin)
    if ell.is_exp:
        inner = _log_sum(pairs, pairs.stands_for > 0)
    else:
        inner = (ell(pairs.above).masked_fill(diagonal(scores, sides), 1.0) * pairs.stands_for).sum(1)
    share, item = sides.mine(share).to(pairs.above.dtype), _relevant_items(pairs, relevance, sides)
    return as_estimate(inner, share * item, log=ell.is_exp, total=_queries(item, pairs.relevant))


def number_distinct(values: Tensor) -> Tensor:
    """Number the distinct values 0, 1, ..., by sorting, so that no shape depends on the data."""
    ordered, order = torch.sort(values)
    is_new = ordered[1:] != ordered[:-1]
    return torch.zeros_like(order).scatter(0, order[1:], is_new.cumsum(0))
