"""Inner estimates of ListNet, ListMLE and NDCG from some items of some queries."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fcco.functional._checks import check_floats, check_gain, check_integers, check_relevance
from fcco.functional._inner import (
    Estimate,
    OwnTerm,
    can_estimate,
    check_own_term,
    copies_of,
    diagonal,
    masked_logsumexp,
    settle,
    stratum_weight,
)
from fcco.functional._surrogates import Surrogate
from fcco.functional._tensors import at_least_float32


class Lists(NamedTuple):
    """What is known of the query of each item: [B] each, or [n] for all items of the population."""

    size: Tensor
    """Items the query has."""
    relevant: Tensor
    """Those with a relevance above 0."""
    log_total: Tensor
    """log of the sum over the query of what P(y) is proportional to; -inf where the sum is 0."""
    ideal: Tensor
    """The query's ideal discounted cumulative gain."""

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
    own_term: OwnTerm,
    rows: Tensor | None,
    *,
    below_only: bool = False,
) -> Pairs:
    """Weigh the pairs of a batch so that it may hold any share of a query's relevant and irrelevant items.

    A stratum that the batch lacks leaves an item without a term if the own term is exact, and is stood for by the other
    if it is sampled; unless it does not matter, as relevant items do not to irrelevant ones with ``below_only``. Where
    nothing is known of the lists, the batch's items are all there are.
    """
    scores = at_least_float32(scores)
    is_relevant = relevance > 0
    same_query = query.unsqueeze(0) == query.unsqueeze(1)
    alike = same_query & (is_relevant.unsqueeze(0) == is_relevant.unsqueeze(1))
    unlike = same_query & ~alike
    if lists is None:
        size, relevant, rows = same_query.sum(1), (same_query & is_relevant).sum(1), None
    else:
        size, relevant = lists.size, lists.relevant
    own_size = torch.where(is_relevant, relevant, size - relevant)
    each = stratum_weight(alike, own_size, scores)
    matters = is_relevant if below_only else torch.ones_like(is_relevant)
    if own_term == "sampled":
        lacks = matters & ~unlike.any(1)
        stands_for = each * torch.where(lacks, size / own_size.to(scores.dtype), 1.0).unsqueeze(1)
        known = torch.ones_like(is_relevant)
    else:
        copies = copies_of(rows, scores)
        of_others = stratum_weight(alike, own_size, scores, copies=copies.sum(1)).unsqueeze(1)
        stands_for = torch.where(copies, diagonal(scores), torch.where(alike, of_others, each))
        known = can_estimate(alike, own_size, copies=copies.sum(1))
        known = known & (can_estimate(unlike, size - own_size) | ~matters)
    above = scores.unsqueeze(0) - scores.unsqueeze(1)
    return Pairs(above, same_query, stands_for * same_query, known, each, size, relevant)


def _check(scores: Tensor, relevance: Tensor, query: Tensor, own_term: str, *, signed: bool) -> None:
    check_own_term(own_term)
    check_floats(scores, "scores", "[B]")
    check_relevance(relevance, scores, "scores", signed=signed)
    check_integers(query, "query", scores, "scores")


def _all_items(pairs: Pairs) -> Tensor:
    """[B]: weights of items that are all visited equally often: a query's add up to what the batch has of it."""
    return pairs.each * pairs.same_query.sum(1) / pairs.size * pairs.known


def _mean_over_queries(share: Tensor, item: Tensor, size: Tensor) -> Tensor:
    """[B]: weights whose sum of weight * f estimates the mean over queries of the sum of share * f.

    A ratio of two unbiased estimates, the sum over queries and their number, so biased by what the number varies.

    Args:
        share: [B], weights of the items within their queries.
        item: [B], how much an item counts, 0 if it has no term.
        size: [B], items with a term that the query has: the batch has the fraction Σ item / size of a query.
    """
    queries = torch.where(item > 0, item / size, 0.0).sum()
    return share * item / torch.where(queries > 0, queries, 1.0)


def list_net_inner(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    lists: Lists | None = None,
    target: str = "proportional",
    own_term: OwnTerm = "exact",
    rows: Tensor | None = None,
) -> Estimate:
    r"""log g of ListNet for the items with P(y) > 0.

    .. math:: g_i = \sum_{j \in q_i} e^{h_j - h_i}

    Args:
        scores: h, [B].
        relevance: y, [B].
        query: [B] of integers.
        lists: what is known of the items' queries, [B] each; None: the batch has them whole.
        target: "proportional" or "softmax", what P(y) is.
        own_term: "exact" or "sampled".
        rows: [B], which item each is, if one may stand twice.

    Returns:
        inner [B], weight [B].
    """
    softmax = target == "softmax"
    _check(scores, relevance, query, own_term, signed=softmax)
    pairs = pair_items(scores, relevance, query, lists, own_term, rows)
    y = relevance.to(pairs.above.dtype)
    log_share = y if softmax else y.log()
    possible = log_share > -math.inf
    if lists is None:
        log_total = masked_logsumexp(log_share.expand_as(pairs.above), pairs.same_query & possible)
    else:
        log_total = lists.log_total.to(y.dtype)
    share = torch.where(possible, log_share - log_total, -math.inf).exp()
    item, size = (_all_items(pairs), pairs.size) if softmax else ((possible & pairs.known).to(y.dtype), pairs.relevant)
    weight = _mean_over_queries(share, item, size)
    return settle(_log_sum(pairs, pairs.stands_for > 0), weight, log=True)


def _log_sum(pairs: Pairs, where: Tensor) -> Tensor:
    return masked_logsumexp(pairs.above + pairs.stands_for.log(), where)


def list_mle_inner(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    lists: Lists | None = None,
    own_term: OwnTerm = "exact",
    rows: Tensor | None = None,
) -> Estimate:
    r"""log g of ListMLE.

    .. math:: g_i = \sum_{j \in q_i, y_j \le y_i} e^{h_j - h_i}

    Args:
        scores: h, [B].
        relevance: y, [B].
        query: [B] of integers.
        lists: what is known of the items' queries, [B] each; None: the batch has them whole.
        own_term: "exact" or "sampled".
        rows: [B], which item each is, if one may stand twice.

    Returns:
        inner [B], weight [B].
    """
    _check(scores, relevance, query, own_term, signed=True)
    pairs = pair_items(scores, relevance, query, lists, own_term, rows, below_only=True)
    at_or_below = (relevance.unsqueeze(0) <= relevance.unsqueeze(1)) & (pairs.stands_for > 0)
    item = _all_items(pairs)
    total = item.sum()
    return settle(_log_sum(pairs, at_or_below), item / torch.where(total > 0, total, 1.0), log=True)


def ndcg_inner(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    surrogate: Surrogate,
    lists: Lists | None = None,
    k: int | None = None,
    own_term: OwnTerm = "exact",
    rows: Tensor | None = None,
) -> Estimate:
    r"""A smooth rank of the relevant items (its log where ℓ is exp), and their gains as weights.

    .. math:: r_i = 1 + \sum_{j \in q_i, j \ne i} \ell(h_j - h_i)

    Args:
        scores: h, [B].
        relevance: y, [B], not negative.
        query: [B] of integers.
        surrogate: ℓ.
        lists: what is known of the items' queries, [B] each; None: the batch has them whole.
        k: length of the top that counts.
        own_term: "exact" or "sampled"; the own term is 1 in either case, and shared out with the others' in the second.
        rows: [B], which item each is, if one may stand twice.

    Returns:
        inner [B], weight [B].
    """
    _check(scores, relevance, query, own_term, signed=False)
    pairs = pair_items(scores, relevance, query, lists, own_term, rows)
    y = relevance.to(pairs.above.dtype)
    gain = torch.expm1(y * math.log(2))
    check_gain(gain, relevance)
    if surrogate.is_exp:
        inner = _log_sum(pairs, pairs.stands_for > 0)
    else:
        inner = (surrogate(pairs.above).masked_fill(diagonal(y), 1.0) * pairs.stands_for).sum(1)
    ideal = _batch_ideal(gain, pairs.same_query, k) if lists is None else lists.ideal.to(y.dtype)
    item = ((relevance > 0) & pairs.known).to(y.dtype)
    weight = _mean_over_queries(torch.where(item > 0, gain / ideal, 0.0), item, pairs.relevant)
    return settle(inner, weight, log=surrogate.is_exp)


def _batch_ideal(gain: Tensor, same_query: Tensor, k: int | None) -> Tensor:
    """[B]: the ideal DCG of each item's query, as far as the batch has it."""
    order = gain.argsort(descending=True, stable=True)
    place = torch.empty_like(order).scatter(0, order, torch.arange(len(gain), device=gain.device))
    rank = (same_query & (place.unsqueeze(0) <= place.unsqueeze(1))).sum(1)
    terms = gain / (rank + 1).to(gain.dtype).log2()
    if k is not None:
        terms = terms * (rank <= k)
    return (terms.unsqueeze(0) * same_query).sum(1)
