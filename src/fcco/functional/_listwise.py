"""Exact objectives of learning to rank over the items of each query: ListNet, ListMLE, NDCG."""

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
from fcco.functional._surrogates import Surrogate, SurrogateLike, check_temperature, in_units, resolve_surrogate
from fcco.functional._tensors import graph_zero, mean, segment_logsumexp, widen


def list_net_loss(scores: Tensor, relevance: Tensor, query: Tensor, *, target: str = "proportional") -> Tensor:
    r"""Cross entropy between the relevances and the scores of each query, as distributions over its items.

    .. math:: F = \frac{1}{Q} \sum_q \sum_{i \in q} P(y_i) \log \sum_{j \in q} e^{h_j - h_i}

    Parameters
    ----------
    scores : Tensor of shape (n,)
        The scores h.
    relevance : Tensor of shape (n,)
        The relevances y.
    query : Tensor of shape (n,)
        The query of each item, an integer.
    target : {"proportional", "softmax"}, default "proportional"
        How relevances become probabilities. "proportional" is P(y_i) = y_i / Σ_q y and requires y ≥ 0. "softmax" is
        P(y_i) = e^{y_i} / Σ_q e^y. With "proportional", queries without relevant items are not counted; the loss is 0
        if there are no other queries.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If a relevance is negative with "proportional", or if a shape or a value is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.ListNetLoss : The same objective, estimated from mini-batches.

    References
    ----------
    .. [1] Cao et al., *Learning to Rank: From Pairwise Approach to Listwise Approach*, ICML 2007.

    Examples
    --------
    >>> scores, query = torch.tensor([0.0, 0.0, 3.0]), torch.tensor([7, 7, 9])
    >>> list_net_loss(scores, torch.tensor([1.0, 0.0, 2.0]), query)  # (log 2 + log 1) / 2
    tensor(0.3466)
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
    """Return P(y) of each item in its list, of shape (n,); 0 if nothing in the list is relevant."""
    y = widen(relevance)
    peak = y.new_full((count,), -math.inf).scatter_reduce(0, lists, y, "amax")[lists]
    # The largest value is removed first. Otherwise sums could overflow, and the logarithm of a sum would be lost next
    # to a large exponent.
    y = (y - peak).exp() if target == "softmax" else y / torch.where(peak > 0, peak, 1.0)
    total = y.new_zeros(count).index_add(0, lists, y)[lists]
    return y / torch.where(total > 0, total, 1.0)


def list_mle_loss(scores: Tensor, relevance: Tensor, query: Tensor) -> Tensor:
    r"""Negative log-likelihood of drawing each query's items in the order of their relevance (Plackett-Luce model).

    .. math:: F = \frac{1}{n} \sum_i \log \sum_{j \in q_i, y_j \le y_i} e^{h_j - h_i}

    Items of equal relevance appear in each other's sums.

    Parameters
    ----------
    scores : Tensor of shape (n,)
        The scores h.
    relevance : Tensor of shape (n,)
        The relevances y. Only their order within a query matters.
    query : Tensor of shape (n,)
        The query of each item, an integer.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If a shape or a value is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.ListMLELoss : The same objective, estimated from mini-batches.

    Notes
    -----
    The cost is O(n log n). The result is accurate for scores of any size.

    References
    ----------
    .. [1] Xia et al., *Listwise Approach to Learning to Rank: Theory and Algorithm*, ICML 2008.

    Examples
    --------
    >>> list_mle_loss(torch.zeros(3), torch.tensor([2, 1, 0]), torch.tensor([5, 5, 5]))  # (log 3 + log 2) / 3
    tensor(0.5973)
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
    surrogate: SurrogateLike = "ramp",
    margin: float = 1.0,
    temperature: float = 1.0,
    k: int | None = None,
    sharpness: float = 2.0,
    chunk: int | None = None,
) -> Tensor:
    r"""Negative of a smooth normalised discounted cumulative gain (NDCG).

    .. math:: F = -\frac{1}{Q} \sum_q \frac{1}{Z_q} \sum_{i \in q} \frac{2^{y_i} - 1}{\log_2(1 + r_i)},
        \qquad r_i = 1 + \sum_{j \in q, j \ne i} \ell((h_j - h_i) / \tau)

    Here r_i is a smooth rank, and Z_q is the largest value of the inner sum over all true rankings. If ℓ is the
    indicator of t > 0, F is exactly the negative of NDCG.

    With ``k``, Z_q covers only the first k places, and the term of item i has the additional factor
    σ(sharpness · (k + 1/2 - r_i)), a smooth indicator of r_i ≤ k. In the limit of a sharp surrogate *and* a large
    ``sharpness`` this is NDCG@k.

    Parameters
    ----------
    scores : Tensor of shape (n,)
        The scores h.
    relevance : Tensor of shape (n,)
        The relevances y, at least 0. Queries without relevant items are not counted; the loss is 0 if there are no
        other queries.
    query : Tensor of shape (n,)
        The query of each item, an integer.
    surrogate : str or callable, default "ramp"
        The surrogate ℓ: "ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp", or an elementwise function. The
        first two are bounded: they tend to the indicator as τ tends to 0.
    margin : float, default 1.0
        The margin of the hinges. Other surrogates ignore it.
    temperature : float, default 1.0
        The temperature τ, in units of the scores.
    k : int or None, default None
        How many places at the top count; all by default.
    sharpness : float, default 2.0
        How sharp the edge of the top k is, positive.
    chunk : int or None, default None
        How many items to process at a time if all pairs are compared. By default, as many as fit in memory.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If a relevance is negative or so large that 2^y overflows, or if a shape or a value is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.NDCGLoss : The same objective, estimated from mini-batches.

    Notes
    -----
    The ramp and the hinges take O(n log n) time, "exp" takes O(n), and other surrogates take O(Σ n_q²).

    References
    ----------
    .. [1] Qiu et al., *Large-scale Stochastic Optimization of NDCG Surrogates for Deep Learning with Provable
       Convergence*, ICML 2022.

    Examples
    --------
    >>> query = torch.tensor([3, 3])
    >>> ndcg_loss(torch.tensor([5.0, 0.0]), torch.tensor([1, 0]), query)  # ranked well, with a margin
    tensor(-1.)
    """
    check_count(chunk, "chunk")
    check_count(k, "k")
    check_number(sharpness, "sharpness", above=0)
    check_floats(scores, "scores", room=4)
    check_relevance(relevance, scores, "scores", signed=False)
    lists, count = as_groups(query, "query", scores, "scores")
    ell, temperature = resolve_surrogate(surrogate, margin), check_temperature(temperature)
    share = gain_share(relevance, lists, count, k)
    counted = int((share.new_zeros(count).index_add(0, lists, share) > 0).sum())
    if counted == 0:
        return graph_zero(scores)
    rank, log_rank_plus_one = _smooth_ranks(in_units(scores, temperature), lists, count, ell, chunk)
    terms = share * math.log(2) / log_rank_plus_one
    if k is not None:
        terms = terms * torch.sigmoid(sharpness * (k + 0.5 - rank))
    return -(terms.sum() / counted).to(scores.dtype)


def gain_share(relevance: Tensor, lists: Tensor, count: int, k: int | None) -> Tensor:
    """Return each item's gain over the ideal discounted cumulative gain of its list's first k places, of shape (n,)."""
    gain = torch.expm1(widen(relevance) * math.log(2))
    refuse_where("relevance", relevance, gain.isinf(), "so small that 2**relevance is finite")
    order = gain.argsort(descending=True, stable=True)
    order = order[lists[order].argsort(stable=True)]
    # Unlike that of bincount, this shape does not depend on the data.
    sizes = torch.zeros_like(lists).index_add(0, lists, torch.ones_like(lists))
    place = torch.arange(1, len(order) + 1, device=order.device) - (sizes.cumsum(0) - sizes)[lists[order]]
    terms = gain[order] / widen(place + 1).log2()
    if k is not None:
        terms = terms * (place <= k)
    ideal = gain.new_zeros(count).index_add(0, lists[order], terms)[lists]
    refuse_where("relevance", relevance, ideal.isinf(), "so small that the sum of 2**relevance over a query is finite")
    return gain / torch.where(ideal > 0, ideal, 1.0)


def _smooth_ranks(
    scores: Tensor, lists: Tensor, count: int, ell: Surrogate, chunk: int | None
) -> tuple[Tensor, Tensor]:
    """Return the smooth ranks r and log(1 + r), each of shape (n,)."""
    if ell.is_exp:
        # Here r_i is the sum of e^(h_j - h_i) over the whole list. It may overflow even if log(1 + r) does not.
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
