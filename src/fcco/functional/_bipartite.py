"""Exact objectives that compare positives with negatives: average precision, p-norm push, one-way partial AUC."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fcco.functional._checks import (
    as_mask,
    as_value,
    check_count,
    check_floats,
    check_number,
    check_per_example,
    refuse_where,
)
from fcco.functional._classes import has_classes, macro_mean, refuse_weight
from fcco.functional._pairs import reduce_pairs, surrogate_sums
from fcco.functional._surrogates import Surrogate, SurrogateLike, check_temperature, in_units, resolve_surrogate
from fcco.functional._tensors import at_least_float32, graph_zero, mean, widen


def _check(scores: Tensor, target: Tensor, chunk: int | None) -> Tensor:
    """Check the arguments; return a mask of the positives."""
    check_count(chunk, "chunk")
    check_floats(scores, "scores", room=4)
    return as_mask(target, "target", scores, "scores")


def split_classes(scores: Tensor, target: Tensor, chunk: int | None) -> tuple[Tensor, Tensor]:
    """Check the arguments; return the scores of the positives and of the negatives."""
    positive = _check(scores, target, chunk)
    return scores[positive], scores[~positive]


def average_precision_loss(
    scores: Tensor,
    target: Tensor,
    *,
    margin: float = 1.0,
    surrogate: SurrogateLike = "ramp",
    temperature: float = 1.0,
    weight: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    r"""Negative of a smooth surrogate of average precision.

    .. math:: F = -\frac{1}{n_+} \sum_{i \in S_+}
        \frac{\sum_{j \in S_+} \ell((h_j - h_i) / \tau)}{\sum_{j \in S} \ell((h_j - h_i) / \tau)}

    Both sums include the own term j = i, which is 1 if ℓ is bounded ("ramp" or "sigmoid") and ℓ(0) otherwise. With a
    bounded ℓ and without ties, F tends to the negative of average precision as τ tends to 0. With an unbounded ℓ, pairs
    that are far apart dominate both sums, and a lower F may come with a lower average precision.

    Parameters
    ----------
    scores : Tensor of shape (n,) or (n, C)
        The scores h. With a column for each class, the loss is the mean over the classes that have positives.
    target : Tensor of shape (n,) or (n, C)
        The labels: 0 and 1, -1 and 1, or bool. The loss is 0 without positives and -1 without negatives.
        With a column for each class, -1 and NaN stand for missing labels, and classes of shape (n,) are accepted too.
    margin : float, default 1.0
        The margin of the hinges. Other surrogates ignore it.
    surrogate : str or callable, default "ramp"
        The surrogate ℓ: "ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp", or an elementwise function with
        ℓ(0) > 0. The ramp is close to the sigmoid, and its sums come from sorting.
    temperature : float, default 1.0
        The temperature τ, in units of the scores. Pairs that are closer than a few τ count in part. The
        estimators use 1/4 and 1/16 of the standard deviation of the scores.
    weight : Tensor of shape (n,) or None, default None
        How often each example counts, at least 0. The own term is then weighted too, and the limit of a small τ is the
        negative of scikit-learn's ``average_precision_score`` with ``sample_weight``. With a bounded ℓ a weight of 2 is
        not exactly the same as the example twice: two copies are a tie, in which each counts the other by ℓ(0).
    chunk : int or None, default None
        How many positives to process at a time if all pairs are compared. By default, as many as fit in memory.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If ℓ(0) is not positive, so that the ratio could be 0 / 0, or if a shape, a label or a score is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.AveragePrecisionLoss : The same objective, estimated from mini-batches.

    Notes
    -----
    The ramp and the hinges take O(n log n) time and O(n) memory. "exp" takes O(n) time, because its ratio does not
    depend on i. Other surrogates take O(n₊ n) time.

    References
    ----------
    .. [1] Qi et al., *Stochastic Optimization of Areas Under Precision-Recall Curves with Provable Convergence*,
       NeurIPS 2021.

    Examples
    --------
    >>> import torch
    >>> average_precision_loss(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))  # 1 / (1 + 1/2)
    tensor(-0.6667)
    """
    if has_classes(scores):
        refuse_weight(weight)
        options: dict[str, Any] = {"margin": margin, "surrogate": surrogate, "temperature": temperature}
        return macro_mean(partial(average_precision_loss, chunk=chunk, **options), scores, target, both=False)
    positive = _check(scores, target, chunk)
    ell, temperature = resolve_surrogate(surrogate, margin), check_temperature(temperature)
    if not (own_term := ell.at_zero(scores)) > 0:
        raise ValueError(
            f"surrogate must be positive at 0 for average precision; got {ell.name}, which is {own_term} there"
        )
    weight = as_weight(weight, scores)
    own, rivals = positive & (weight > 0), ~positive & (weight > 0)
    if not bool(own.any()):
        return graph_zero(scores)
    scaled = in_units(scores, temperature)
    share = _exp_share if ell.is_exp else partial(_precision, surrogate=ell, chunk=chunk)
    return -share(scaled[own], scaled[rivals], weight[own], weight[rivals]).to(scores.dtype)


def as_weight(weight: Tensor | None, scores: Tensor) -> Tensor:
    """Check the weights of the examples and return them in float64, by default 1."""
    if weight is None:
        return widen(torch.ones_like(scores))
    check_per_example(weight, "weight", scores, "scores")
    refuse_where("weight", weight, ~((weight >= 0) & (weight < math.inf)), "finite and at least 0")
    return widen(weight)


def _precision(
    positives: Tensor,
    negatives: Tensor,
    own_weight: Tensor,
    other_weight: Tensor,
    *,
    surrogate: Surrogate,
    chunk: int | None,
) -> Tensor:
    """Return the weighted mean over the positives of their share in the sum of ℓ over all examples."""
    own_shift = surrogate.own_value(own_weight) - surrogate.at_zero(own_weight)
    above = surrogate_sums(positives, positives, surrogate, weights=own_weight, chunk=chunk) + own_shift * own_weight
    total = above + surrogate_sums(positives, negatives, surrogate, weights=other_weight, chunk=chunk)
    return (own_weight * (above / total)).sum() / own_weight.sum()


def _exp_share(positives: Tensor, negatives: Tensor, own_weight: Tensor, other_weight: Tensor) -> Tensor:
    """Return the same for ℓ = exp, with which the share is that of all positives."""
    among_positives = (widen(positives) + own_weight.log()).logsumexp(0)
    in_all = torch.cat([widen(positives) + own_weight.log(), widen(negatives) + other_weight.log()]).logsumexp(0)
    return (among_positives - in_all).exp()


def p_norm_push_loss(
    scores: Tensor,
    target: Tensor,
    *,
    p: float = 4.0,
    surrogate: SurrogateLike = "exp",
    margin: float = 1.0,
    chunk: int | None = None,
) -> Tensor:
    r"""How far negatives rise above positives; the highest negatives weigh most.

    .. math:: F = \frac{1}{n_-} \sum_{i \in S_-} \Bigl( \frac{1}{n_+} \sum_{j \in S_+} \ell(h_i - h_j) \Bigr)^p

    Parameters
    ----------
    scores : Tensor of shape (n,)
        The scores h.
    target : Tensor of shape (n,)
        The labels: 0 and 1, -1 and 1, or bool. The loss is 0 without positives or without negatives.
    p : float, default 4.0
        The exponent, at least 1.
    surrogate : str or callable, default "exp"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise
        function.
    margin : float, default 1.0
        The margin of the hinges. Other surrogates ignore it.
    chunk : int or None, default None
        How many negatives to process at a time if all pairs are compared. By default, as many as fit in memory.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If p is below 1, or if a shape, a label or a score is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.PNormPushLoss : The same objective, estimated from mini-batches.

    Notes
    -----
    With "exp" the objective is separable: it costs O(n) and overflows only if its value does. Hinges cost O(n log n),
    other surrogates O(n₊ n₋).

    References
    ----------
    .. [1] Rudin, *The P-Norm Push*, JMLR 2009.

    Examples
    --------
    >>> import torch
    >>> p_norm_push_loss(torch.tensor([1.0, 0.0]), torch.tensor([1, 0]), p=2)  # exp(-1) ** 2
    tensor(0.1353)
    """
    positives, negatives = split_classes(scores, target, chunk)
    check_number(p, "p", at_least=1)
    ell = resolve_surrogate(surrogate, margin)
    if len(positives) == 0 or len(negatives) == 0:
        return graph_zero(scores)
    if ell.is_exp:
        own, rivals = widen(negatives), widen(positives)
        # Only differences matter. Those to the lowest rival stay finite, whereas -inf would have no gradient.
        lowest = rivals.detach().amin()
        depth = (lowest - rivals).logsumexp(0) - math.log(len(rivals))
        height = (p * (own - lowest)).clamp(min=torch.finfo(own.dtype).min).logsumexp(0) - math.log(len(own))
        loss = (height + p * depth).exp()
    else:
        loss = (surrogate_sums(-negatives, -positives, ell, chunk=chunk) / len(positives)).pow(p).mean()
    return loss.to(scores.dtype)


def partial_auc_loss(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> Tensor:
    r"""One-way partial AUC: for every positive, a soft maximum over the negatives above it.

    .. math:: F = \frac{1}{n_+} \sum_{i \in S_+} \tau \log \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Equivalently, F is the largest mean loss over all reweightings of the negatives, minus τ times the Kullback-Leibler
    divergence of the weights from uniform ones. τ → ∞ gives AUC, and τ → 0 gives the hardest negative alone.

    Parameters
    ----------
    scores : Tensor of shape (n,) or (n, C)
        The scores h. With a column for each class, the loss is the mean over the classes that have both positives and
        negatives.
    target : Tensor of shape (n,) or (n, C)
        The labels: 0 and 1, -1 and 1, or bool. The loss is 0 without positives or without negatives.
        With a column for each class, -1 and NaN stand for missing labels, and classes of shape (n,) are accepted too.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise
        function.
    margin : float, default 1.0
        The margin of the hinges. Other surrogates ignore it.
    temperature : float, default 1.0
        The temperature τ, positive.
    chunk : int or None, default None
        How many positives to process at a time. By default, as many as fit in memory.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If the temperature is not positive, or if a shape, a label or a score is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.PartialAUCLoss : The same objective, estimated from mini-batches.

    References
    ----------
    .. [1] Zhu et al., *When AUC Meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex Convergence
       Guarantee*, ICML 2022 (SOPA-s).

    Examples
    --------
    >>> import torch
    >>> partial_auc_loss(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1, 0, 0]))  # log((1 + e) / 2)
    tensor(0.6201)
    """
    if has_classes(scores):
        options: dict[str, Any] = {"margin": margin, "surrogate": surrogate, "temperature": temperature}
        return macro_mean(partial(partial_auc_loss, chunk=chunk, **options), scores, target)
    positives, negatives = split_classes(scores, target, chunk)
    check_number(temperature, "temperature", above=0)
    ell = resolve_surrogate(surrogate, margin)
    if len(positives) == 0 or len(negatives) == 0:
        return graph_zero(scores)
    log_means = log_means_over(positives, negatives, ell, temperature, chunk)
    return as_value(temperature * mean(log_means), scores, "scores")


def log_means_over(
    positives: Tensor, negatives: Tensor, ell: Surrogate, temperature: float, chunk: int | None
) -> Tensor:
    """Return the logarithm of the mean of e^(ℓ / τ) over the negatives, of shape (n₊,)."""
    own, rivals = at_least_float32(positives)[None], at_least_float32(negatives)[None]
    peaks = reduce_pairs(own, rivals, lambda t, _: (ell(t) / temperature).logsumexp(2), chunk=chunk)[0]
    return peaks - math.log(len(negatives))
