"""Inner estimates of ListNet, ListMLE and NDCG from some items of some queries."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fcco.functional._checks import check_floats, check_per_example, check_relevance
from fcco.functional._inner import Estimate, OwnTerm, check_own_term, masked_logsumexp, settle
from fcco.functional._surrogates import Surrogate


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
    """Items of a batch against each other, [B, B]: what rival j stands for in the query of item i."""

    same_query: Tensor
    own: Tensor
    stands_for: Tensor
    """[B, B]: 1 for the own term where it is exact."""
    item_stands_for: Tensor
    """[B]: how many items of its query, as relevant as itself or as irrelevant, an item stands for."""
    queries: Tensor
    """How many queries the batch has."""


def pair_items(
    scores: Tensor, relevance: Tensor, query: Tensor, lists: Lists | None, own_term: OwnTerm, *, signed: bool
) -> Pairs:
    """Check a batch of items, and weigh its pairs.

    Relevant and irrelevant items of a query are two strata, so that a batch may hold any share of each. Where nothing
    is known of the lists, the batch's items are taken for all there are.
    """
    check_own_term(own_term)
    check_floats(scores, "scores", "[B]")
    check_relevance(relevance, scores, "scores", signed=signed)
    check_per_example(query, "query", scores, "scores")
    same_query = query.unsqueeze(0) == query.unsqueeze(1)
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    queries = (1.0 / same_query.sum(1)).sum().to(scores.dtype)
    if lists is None:
        return Pairs(same_query, own, torch.ones_like(same_query, dtype=scores.dtype), torch.ones_like(scores), queries)
    relevant = relevance > 0
    alike = relevant.unsqueeze(0) == relevant.unsqueeze(1)
    population = torch.where(relevant, lists.relevant, lists.size - lists.relevant).to(scores.dtype)
    in_batch = (same_query & alike).sum(1).to(scores.dtype)
    each = population / in_batch
    if own_term == "sampled":
        return Pairs(same_query, own, each.expand_as(same_query), each, queries)
    each_other = (population - 1) / (in_batch - 1).clamp(min=1)
    return Pairs(same_query, own, torch.where(alike, each_other, each).masked_fill(own, 1.0), each, queries)


def list_net_inner(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    lists: Lists | None = None,
    target: str = "proportional",
    own_term: OwnTerm = "exact",
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

    Returns:
        inner [B], weight [B].
    """
    pairs = pair_items(scores, relevance, query, lists, own_term, signed=target == "softmax")
    logits = scores.unsqueeze(0) - scores.unsqueeze(1) + pairs.stands_for.log()
    inner = masked_logsumexp(logits, pairs.same_query & (pairs.stands_for > 0))
    log_share = relevance.to(scores.dtype) if target == "softmax" else relevance.to(scores.dtype).log()
    if lists is None:
        log_total = masked_logsumexp(log_share.expand_as(logits), pairs.same_query & (log_share > -math.inf))
    else:
        log_total = lists.log_total.to(scores.dtype)
    share = torch.where(log_share > -math.inf, (log_share - log_total).exp(), 0.0) * pairs.item_stands_for
    counted = (1.0 / pairs.same_query.sum(1) * (log_total > -math.inf)).sum().to(scores.dtype)
    return settle(inner, share / torch.where(counted > 0, counted, 1.0), log=True)


def list_mle_inner(
    scores: Tensor, relevance: Tensor, query: Tensor, *, lists: Lists | None = None, own_term: OwnTerm = "exact"
) -> Estimate:
    r"""log g of ListMLE.

    .. math:: g_i = \sum_{j \in q_i, y_j \le y_i} e^{h_j - h_i}

    Args:
        scores: h, [B].
        relevance: y, [B].
        query: [B] of integers.
        lists: what is known of the items' queries, [B] each; None: the batch has them whole.
        own_term: "exact" or "sampled".

    Returns:
        inner [B], weight [B].
    """
    pairs = pair_items(scores, relevance, query, lists, own_term, signed=True)
    at_or_below = pairs.same_query & (relevance.unsqueeze(0) <= relevance.unsqueeze(1)) & (pairs.stands_for > 0)
    logits = scores.unsqueeze(0) - scores.unsqueeze(1) + pairs.stands_for.log()
    weight = pairs.item_stands_for / pairs.item_stands_for.sum()
    return settle(masked_logsumexp(logits, at_or_below), weight, log=True)


def ndcg_inner(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    surrogate: Surrogate,
    lists: Lists | None = None,
    k: int | None = None,
    own_term: OwnTerm = "exact",
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

    Returns:
        inner [B], weight [B].
    """
    pairs = pair_items(scores, relevance, query, lists, own_term, signed=False)
    counts = pairs.stands_for * pairs.same_query
    t = scores.unsqueeze(0) - scores.unsqueeze(1)
    if surrogate.is_exp:
        inner = masked_logsumexp(t + counts.log(), counts > 0)
    else:
        inner = (surrogate(t).masked_fill(pairs.own, 1.0) * counts).sum(1)
    gain = torch.expm1(relevance.to(scores.dtype) * math.log(2))
    ideal = _batch_ideal(gain, pairs.same_query, k) if lists is None else lists.ideal.to(scores.dtype)
    share = torch.where(ideal > 0, gain / torch.where(ideal > 0, ideal, 1.0), 0.0) * pairs.item_stands_for
    counted = (1.0 / pairs.same_query.sum(1) * (ideal > 0)).sum().to(scores.dtype)
    return settle(inner, share / torch.where(counted > 0, counted, 1.0), log=surrogate.is_exp)


def _batch_ideal(gain: Tensor, same_query: Tensor, k: int | None) -> Tensor:
    """[B]: the ideal DCG of each item's query, as far as the batch has it."""
    order = gain.argsort(descending=True, stable=True)
    place = torch.empty_like(order).scatter(0, order, torch.arange(len(gain), device=gain.device))
    ahead = same_query & (place.unsqueeze(0) <= place.unsqueeze(1))
    rank = ahead.sum(1)
    terms = gain / (rank + 1).to(gain.dtype).log2()
    if k is not None:
        terms = terms * (rank <= k)
    return (terms.unsqueeze(0) * same_query).sum(1)
