"""Exact objectives of the area under the ROC curve: all of it, and its parts."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco.functional._bipartite import log_means_over, split_classes
from fcco.functional._checks import as_value, check_choice, check_count, check_number
from fcco.functional._classes import has_classes, macro_mean
from fcco.functional._pairs import surrogate_sums
from fcco.functional._surrogates import Surrogate, SurrogateLike, resolve_surrogate
from fcco.functional._tensors import graph_zero, mean, widen

FORMS = ("pairwise", "min_max")


def auc_loss(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    form: str = "pairwise",
    chunk: int | None = None,
) -> Tensor:
    r"""Surrogate of one minus the area under the ROC curve (AUC).

    .. math:: F = \frac{1}{n_+ n_-} \sum_{i \in S_+} \sum_{j \in S_-} \ell(h_j - h_i)

    With ``form="min_max"``, F is the AUC margin loss instead. It is a function of the mean and the variance of either
    class, because its inner maximum and minimum are known in closed form:

    .. math:: F = \min_{a, b} \max_{\alpha \ge 0} \mathbb{E}_+ (h - a)^2 + \mathbb{E}_- (h - b)^2
        + 2 \alpha (m + \mathbb{E}_- h - \mathbb{E}_+ h) - \alpha^2
        = \mathrm{Var}_+ h + \mathrm{Var}_- h + (m + \mathbb{E}_- h - \mathbb{E}_+ h)_+^2

    Parameters
    ----------
    scores : Tensor of shape (n,) or (n, C)
        The scores h. With a column for each class, the loss is the mean over the classes that have both positives and
        negatives.
    target : Tensor of shape (n,) or (n, C)
        The labels: 0 and 1, -1 and 1, or bool. The loss is 0 without positives or without negatives.
        With a column for each class, -1 and NaN stand for missing labels, and classes of shape (n,) are accepted too.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise function.
        The form "min_max" ignores it.
    margin : float, default 1.0
        The margin m of the hinges and of the form "min_max".
    form : {"pairwise", "min_max"}, default "pairwise"
        Which of the two objectives.
    chunk : int or None, default None
        How many positives to process at a time if all pairs are compared. By default, as many as fit in memory.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If an option, a shape, a label or a score is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.AUCLoss : The same objective, estimated from mini-batches.
    fcco.functional.roc_auc : The area itself.

    Notes
    -----
    The ramp and the hinges take O(n log n) time, "exp" and the form "min_max" take O(n), and other surrogates take
    O(n₊ n₋).

    References
    ----------
    .. [1] Ying, Wen and Lyu, *Stochastic Online AUC Maximization*, NeurIPS 2016.
    .. [2] Yuan et al., *Large-scale Robust Deep AUC Maximization*, ICCV 2021.

    Examples
    --------
    >>> import torch
    >>> scores, target = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1, 0, 0])
    >>> auc_loss(scores, target)  # (0 + 1) / 2
    tensor(0.5000)
    >>> auc_loss(scores, target, form="min_max")  # 0 + 1/4 + (1 + 1/2 - 1)²
    tensor(0.5000)
    """
    if has_classes(scores):
        options: dict[str, Any] = {"surrogate": surrogate, "margin": margin, "form": form}
        return macro_mean(partial(auc_loss, chunk=chunk, **options), scores, target)
    positives, negatives = split_classes(scores, target, chunk)
    check_choice(form, "form", FORMS)
    check_number(margin, "margin", at_least=0)
    ell = resolve_surrogate(surrogate, margin)
    if len(positives) == 0 or len(negatives) == 0:
        return graph_zero(scores)
    if form == "min_max":
        above, below = widen(positives), widen(negatives)
        spread = above.var(correction=0) + below.var(correction=0)
        return as_value(spread + F.relu(margin + below.mean() - above.mean()).square(), scores, "scores")
    return as_value(_mean_of_pairs(positives, negatives, ell, chunk), scores, "scores")


def _mean_of_pairs(
    positives: Tensor, negatives: Tensor, surrogate: Surrogate, chunk: int | None, weight: Tensor | None = None
) -> Tensor:
    """Return the mean of the surrogate over all pairs of a positive and a negative, which may be weighted."""
    weight = widen(torch.ones_like(negatives)) if weight is None else weight
    total = weight.sum()
    if surrogate.is_exp:  # only the mean must be finite, not the exponentials of scores
        above, below = widen(positives), widen(negatives) + weight.log()
        return (below.logsumexp(0) + (-above).logsumexp(0) - total.log() - math.log(len(positives))).exp()
    return mean(surrogate_sums(positives, negatives, surrogate, weights=weight, chunk=chunk) / total)


def cvar_partial_auc_loss(
    scores: Tensor,
    target: Tensor,
    *,
    max_fpr: float = 0.1,
    top_k: int | None = None,
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    chunk: int | None = None,
) -> Tensor:
    r"""One-way partial AUC: the loss of AUC over the negatives with the k highest scores alone.

    .. math:: F = \frac{1}{n_+ k} \sum_{i \in S_+} \sum_{j \in S_-^{\uparrow k}} \ell(h_j - h_i)

    These are the negatives up to a false positive rate of k / n₋. If ℓ does not decrease, they are the hardest
    negatives of every positive, and F is the mean over the positives of the conditional value at risk (CVaR) of ℓ.
    Negatives that are tied at the edge share the places that are left.

    Parameters
    ----------
    scores : Tensor of shape (n,)
        The scores h.
    target : Tensor of shape (n,)
        The labels: 0 and 1, -1 and 1, or bool. The loss is 0 without positives or without negatives.
    max_fpr : float, default 0.1
        The largest false positive rate, in (0, 1]; k = max_fpr · n₋ need not be a whole number.
    top_k : int or None, default None
        The number k of negatives, instead of ``max_fpr``. If there are fewer negatives, all of them count.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise function.
    margin : float, default 1.0
        The margin of the hinges. Other surrogates ignore it.
    chunk : int or None, default None
        How many positives to process at a time if all pairs are compared. By default, as many as fit in memory.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If an option, a shape, a label or a score is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.CVaRPartialAUCLoss : The same objective, estimated from mini-batches.
    fcco.functional.partial_auc_loss : A smooth form, in which all negatives count.

    Notes
    -----
    The ramp and the hinges take O(n log n) time, and other surrogates O(n₊ k).

    References
    ----------
    .. [1] Zhu et al., *When AUC Meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex Convergence
       Guarantee*, ICML 2022 (SOPA).

    Examples
    --------
    >>> import torch
    >>> scores, target = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1, 0, 0])
    >>> cvar_partial_auc_loss(scores, target, max_fpr=0.5)  # of the second negative, (1 + 1 - 1)²
    tensor(1.)
    """
    positives, negatives = split_classes(scores, target, chunk)
    check_fpr(max_fpr, top_k)
    ell = resolve_surrogate(surrogate, margin)
    if len(positives) == 0 or len(negatives) == 0:
        return graph_zero(scores)
    k = max_fpr * len(negatives) if top_k is None else min(top_k, len(negatives))
    weight = _share_of_places(negatives.detach(), k)
    counts = weight > 0
    return as_value(_mean_of_pairs(positives, negatives[counts], ell, chunk, weight[counts]), scores, "scores")


def check_fpr(max_fpr: float, top_k: int | None) -> None:
    """Check the two options that say how many negatives count."""
    check_count(top_k, "top_k")
    check_number(max_fpr, "max_fpr", above=0)
    if max_fpr > 1:
        raise ValueError(f"max_fpr must be in (0, 1]; got {max_fpr!r}")


def _share_of_places(scores: Tensor, k: float) -> Tensor:
    """Return how much of each score is among the k highest, from 0 to 1; ties share their places."""
    rising = scores.sort().values
    count = len(scores)
    above = count - torch.searchsorted(rising, scores, right=True)
    tied = count - torch.searchsorted(rising, scores) - above
    return ((k - widen(above)) / tied).clamp(0, 1)


def two_way_partial_auc_loss(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    temperature: float = 1.0,
    positive_temperature: float = 1.0,
    chunk: int | None = None,
) -> Tensor:
    r"""Two-way partial AUC: a soft maximum over the positives of soft maxima over the negatives.

    .. math:: F = \tau_+ \log \frac{1}{n_+} \sum_{i \in S_+} g_i^{\tau / \tau_+}, \qquad
        g_i = \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Low positives and high negatives count most, as in the part of the ROC curve with a high true positive rate and a
    low false positive rate. τ₊ → ∞ gives the one-way partial AUC, and τ → ∞ as well gives AUC.

    Parameters
    ----------
    scores : Tensor of shape (n,)
        The scores h.
    target : Tensor of shape (n,)
        The labels: 0 and 1, -1 and 1, or bool. The loss is 0 without positives or without negatives.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise function.
    margin : float, default 1.0
        The margin of the hinges. Other surrogates ignore it.
    temperature : float, default 1.0
        The temperature τ of the negatives, positive.
    positive_temperature : float, default 1.0
        The temperature τ₊ of the positives, positive.
    chunk : int or None, default None
        How many positives to process at a time. By default, as many as fit in memory.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If a temperature is not positive, or if a shape, a label or a score is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.TwoWayPartialAUCLoss : The same objective, estimated from mini-batches.

    References
    ----------
    .. [1] Zhu et al., *When AUC Meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex Convergence
       Guarantee*, ICML 2022 (SOTA-s).

    Examples
    --------
    >>> import torch
    >>> scores, target = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1, 1, 0])
    >>> two_way_partial_auc_loss(scores, target)  # log((e + e⁴) / 2)
    tensor(3.3554)
    """
    positives, negatives = split_classes(scores, target, chunk)
    check_number(temperature, "temperature", above=0)
    check_number(positive_temperature, "positive_temperature", above=0)
    ell = resolve_surrogate(surrogate, margin)
    if len(positives) == 0 or len(negatives) == 0:
        return graph_zero(scores)
    powers = (temperature / positive_temperature) * log_means_over(positives, negatives, ell, temperature, chunk)
    peak = powers.logsumexp(0) - math.log(len(positives))
    return as_value(positive_temperature * peak, scores, "scores")
