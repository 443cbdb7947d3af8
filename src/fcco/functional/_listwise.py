"""Objectives of learning to rank, over the items of each query: ListNet, ListMLE, NDCG."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco.functional._checks import (
    as_groups,
    as_value,
    check_choice,
    check_count,
    check_floats,
    check_number,
    check_relevance,
    refuse_where,
)
from fcco.functional._lists import cumulative_logsumexp, padded_blocks
from fcco.functional._pairs import surrogate_sums
from fcco.functional._surrogates import Surrogate, SurrogateLike, resolve_surrogate
from fcco.functional._tensors import graph_zero, mean, segment_logsumexp, widen


def list_net_loss(scores: Tensor, relevance: Tensor, query: Tensor, *, target: str = "proportional") -> Tensor:
    r"""Cross entropy between the relevances and the scores of each query, as distributions over its items.

    .. math:: F = \frac{1}{Q} \sum_q \sum_{i \in q} P(y_i) \log \sum_{j \in q} e^{h_j - h_i}

    Args:
        scores: h, [n].
        relevance: y, [n].
        query: [n] of integers, which query an item belongs to.
        target: "proportional", P(y_i) = y_i / Σ_q y for y ≥ 0, or "softmax", P(y_i) = e^{y_i} / Σ_q e^y. With
            "proportional" a query without relevant items is not counted; if there is no other the loss is 0.

    Raises:
        ValueError: a negative relevance with "proportional"; shapes or values that cannot be meant.
        TypeError: an argument of the wrong type or dtype.

    >>> scores, query = torch.tensor([0.0, 0.0, 3.0]), torch.tensor([7, 7, 9])
    >>> list_net_loss(scores, torch.tensor([1.0, 0.0, 2.0]), query)  # (log 2 + log 1) / 2
    tensor(0.3466)

    Reference: Cao et al., *Learning to Rank: From Pairwise Approach to Listwise Approach*, ICML 2007.
    """
    check_floats(scores, "scores", room=4)
    check_choice(target, "target", ("proportional", "softmax"))
    check_relevance(relevance, scores, "scores", signed=target == "softmax")
    lists, count = as_groups(query, "query", scores, "scores")
    h, share = widen(scores), relevance_share(relevance, lists, count, target)
    counted = int((share.new_zeros(count).index_add(0, lists, share) > 0).sum())
    if counted == 0:
        return graph_zero(scores)
    return as_value((share / counted * (segment_logsumexp(h, lists, count)[lists] - h)).sum(), scores, "scores")


def relevance_share(relevance: Tensor, lists: Tensor, count: int, target: str) -> Tensor:
    """[n]: P(y) of each item in its list; 0 where nothing in the list is relevant."""
    y = widen(relevance)
    peak = y.new_full((count,), -math.inf).scatter_reduce(0, lists, y, "amax")[lists]
    # The largest comes off first: sums may overflow, and beside a large exponent the logarithm of a sum is lost.
    y = (y - peak).exp() if target == "softmax" else y / torch.where(peak > 0, peak, 1.0)
    total = y.new_zeros(count).index_add(0, lists, y)[lists]
    return y / torch.where(total > 0, total, 1.0)


def list_mle_loss(scores: Tensor, relevance: Tensor, query: Tensor) -> Tensor:
    r"""Likelihood of drawing each query's items in the order of their relevance, Plackett and Luce's model.

    .. math:: F = \frac{1}{n} \sum_i \log \sum_{j \in q_i, y_j \le y_i} e^{h_j - h_i}

    Items of equal relevance stand in each other's sums. O(n log n), exact for scores of any size.

    Args:
        scores: h, [n].
        relevance: y, [n]; only its order within a query matters.
        query: [n] of integers, which query an item belongs to.

    Raises:
        ValueError: shapes or values that cannot be meant.
        TypeError: an argument of the wrong type or dtype.

    >>> list_mle_loss(torch.zeros(3), torch.tensor([2, 1, 0]), torch.tensor([5, 5, 5]))  # (log 3 + log 2) / 3
    tensor(0.5973)

    Reference: Xia et al., *Listwise Approach to Learning to Rank: Theory and Algorithm*, ICML 2008.
    """
    check_floats(scores, "scores", room=4)
    check_relevance(relevance, scores, "scores", signed=True)
    lists, _ = as_groups(query, "query", scores, "scores")
    h = widen(scores)
    totals, run = cumulative_logsumexp(h, lists, torch.unique(relevance, return_inverse=True)[1])
    return as_value(mean(totals[run] - h), scores, "scores")


def ndcg_loss(
    scores: Tensor,
    relevance: Tensor,
    query: Tensor,
    *,
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    k: int | None = None,
    sharpness: float = 2.0,
    chunk: int | None = None,
) -> Tensor:
    r"""Negative of a smooth normalised discounted cumulative gain.

    .. math:: F = -\frac{1}{Q} \sum_q \frac{1}{Z_q} \sum_{i \in q} \frac{2^{y_i} - 1}{\log_2(1 + r_i)},
        \qquad r_i = 1 + \sum_{j \in q, j \ne i} \ell(h_j - h_i)

    r is a smooth rank and Z the largest value of the inner sum when r is a ranking, so that ℓ the indicator of t > 0
    gives NDCG itself, negated. With ``k``, Z is that of the first k places, and the term of item i has a factor
    σ(sharpness · (k + 1/2 - r_i)), a smooth indicator of r_i ≤ k. In the limit of a sharp surrogate *and* of a large
    ``sharpness`` this is NDCG@k.

    Hinges take O(n log n) time, exp O(n), others O(Σ n_q²).

    Args:
        scores: h, [n].
        relevance: y, [n], not negative. Queries without relevant items are not counted; if there is no other the loss
            is 0.
        query: [n] of integers, which query an item belongs to.
        surrogate: ℓ, "squared_hinge", "hinge", "logistic", "exp", "sigmoid", or an elementwise function.
        margin: of the hinges.
        k: length of the top that counts; None: all.
        sharpness: of the top's edge, positive.
        chunk: items at a time, where pairs are gone through; None: as many as fit in memory.

    Raises:
        ValueError: a relevance that is negative or so large that 2^y overflows; shapes or values that cannot be meant.
        TypeError: an argument of the wrong type or dtype.

    >>> query = torch.tensor([3, 3])
    >>> ndcg_loss(torch.tensor([5.0, 0.0]), torch.tensor([1, 0]), query)  # ranked well, with a margin
    tensor(-1.)

    Reference: Qiu et al., *Large-scale Stochastic Optimization of NDCG Surrogates for Deep Learning with Provable
    Convergence*, ICML 2022.
    """
    check_count(chunk, "chunk")
    check_count(k, "k")
    check_number(sharpness, "sharpness", above=0)
    check_floats(scores, "scores", room=4)
    check_relevance(relevance, scores, "scores", signed=False)
    lists, count = as_groups(query, "query", scores, "scores")
    ell = resolve_surrogate(surrogate, margin)
    share = gain_share(relevance, lists, count, k)
    counted = int((share.new_zeros(count).index_add(0, lists, share) > 0).sum())
    if counted == 0:
        return graph_zero(scores)
    rank, log_rank_plus_one = _smooth_ranks(scores, lists, count, ell, chunk)
    terms = share * math.log(2) / log_rank_plus_one
    if k is not None:
        terms = terms * torch.sigmoid(sharpness * (k + 0.5 - rank))
    return -(terms.sum() / counted).to(scores.dtype)


def gain_share(relevance: Tensor, lists: Tensor, count: int, k: int | None) -> Tensor:
    """[n]: the gain of each item over the largest discounted cumulative gain of its list, over the first k places."""
    gain = torch.expm1(widen(relevance) * math.log(2))
    refuse_where("relevance", relevance, gain.isinf(), "too large: 2**relevance overflows")
    order = gain.argsort(descending=True, stable=True)
    order = order[lists[order].argsort(stable=True)]
    sizes = torch.zeros_like(lists).index_add(0, lists, torch.ones_like(lists))  # no shape depends on the data
    place = torch.arange(1, len(order) + 1, device=order.device) - (sizes.cumsum(0) - sizes)[lists[order]]
    terms = gain[order] / widen(place + 1).log2()
    if k is not None:
        terms = terms * (place <= k)
    ideal = gain.new_zeros(count).index_add(0, lists[order], terms)[lists]
    refuse_where("relevance", relevance, ideal.isinf(), "too large: the sum of 2**relevance over its query overflows")
    return gain / torch.where(ideal > 0, ideal, 1.0)


def _smooth_ranks(
    scores: Tensor, lists: Tensor, count: int, ell: Surrogate, chunk: int | None
) -> tuple[Tensor, Tensor]:
    """r and log(1 + r), [n] each."""
    if ell.is_exp:
        # Here r_i is the sum of e^(h_j - h_i) over the whole list. It may overflow where log(1 + r) does not.
        log_rank = segment_logsumexp(widen(scores), lists, count)[lists] - widen(scores)
        return log_rank.clamp(max=60.0).exp(), torch.nn.functional.softplus(log_rank)
    sums, positions = [], []
    for items, valid in padded_blocks(lists.argsort(stable=True), lists.bincount()):
        block = scores[items]
        sums.append(widen(surrogate_sums(block, block, ell, where=valid, chunk=chunk)[valid]))
        positions.append(items[valid])
    total = torch.zeros_like(widen(scores)).index_copy(0, torch.cat(positions), torch.cat(sums))
    rank = 1 + total - ell.at_zero(total)
    return rank, rank.log1p()
