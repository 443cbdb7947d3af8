"""Objectives of positives against negatives: average precision, p-norm push, one-way partial AUC."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco.functional._checks import as_mask, as_value, check_count, check_floats, check_number
from fcco.functional._pairs import reduce_pairs, surrogate_sums
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.functional._tensors import at_least_float32, graph_zero, mean, widen


def _split(scores: Tensor, target: Tensor, chunk: int | None) -> tuple[Tensor, Tensor]:
    """Scores of the positives and of the negatives."""
    check_count(chunk, "chunk")
    check_floats(scores, "scores", room=4)
    positive = as_mask(target, "target", scores, "scores")
    return scores[positive], scores[~positive]


def average_precision_loss(
    scores: Tensor,
    target: Tensor,
    *,
    margin: float = 1.0,
    surrogate: SurrogateLike = "squared_hinge",
    chunk: int | None = None,
) -> Tensor:
    r"""Negative of a surrogate of average precision.

    .. math:: F = -\frac{1}{n_+} \sum_{i \in S_+}
        \frac{\sum_{j \in S_+} \ell(h_j - h_i)}{\sum_{j \in S} \ell(h_j - h_i)}

    j = i is in both sums, with ℓ(0). With ℓ the indicator of t ≥ 0 it is average precision itself, negated. Hinges
    take O(n log n) time and O(n) memory, exp O(n) (there the ratio does not depend on i), others O(n₊ n).

    Args:
        scores: h, [n].
        target: [n], 0 and 1, -1 and 1, or bool. Without positives the loss is 0; without negatives it is -1.
        margin: of the hinges.
        surrogate: ℓ, "squared_hinge", "hinge", "logistic", "exp", "sigmoid", or an elementwise function with ℓ(0) > 0.
        chunk: positives at a time, where pairs are gone through; None: as many as fit in memory.

    Raises:
        ValueError: ℓ(0) is not positive, so that the ratio may be 0 / 0; shapes, labels or scores that cannot be meant.
        TypeError: an argument of the wrong type or dtype.

    >>> import torch
    >>> average_precision_loss(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(-0.5000)

    Reference: Qi et al., *Stochastic Optimization of Areas Under Precision-Recall Curves with Provable Convergence*,
    NeurIPS 2021.
    """
    positives, negatives = _split(scores, target, chunk)
    ell = resolve_surrogate(surrogate, margin)
    if not (own_term := ell.at_zero(scores)) > 0:
        raise ValueError(f"surrogate {ell.name} is {own_term} at 0: average precision needs a positive value there")
    if len(positives) == 0:
        return graph_zero(scores)
    if ell.is_exp:
        share = (widen(positives).logsumexp(0) - widen(scores).logsumexp(0)).exp()
    else:
        above = surrogate_sums(positives, positives, ell, chunk=chunk)
        share = (above / (above + surrogate_sums(positives, negatives, ell, chunk=chunk))).mean()
    return -share.to(scores.dtype)


def p_norm_push_loss(
    scores: Tensor,
    target: Tensor,
    *,
    p: float = 4.0,
    surrogate: SurrogateLike = "exp",
    margin: float = 1.0,
    chunk: int | None = None,
) -> Tensor:
    r"""How high negatives stand above positives, the highest ones weighing most.

    .. math:: F = \frac{1}{n_-} \sum_{i \in S_-} \Bigl( \frac{1}{n_+} \sum_{j \in S_+} \ell(h_i - h_j) \Bigr)^p

    With ℓ = exp it is separable, costs O(n), and overflows only where its value does; hinges cost O(n log n), others
    O(n₊ n₋).

    Args:
        scores: h, [n].
        target: [n], 0 and 1, -1 and 1, or bool. Without positives or without negatives the loss is 0.
        p: at least 1.
        surrogate: ℓ, "squared_hinge", "hinge", "logistic", "exp", "sigmoid", or an elementwise function.
        margin: of the hinges.
        chunk: negatives at a time, where pairs are gone through; None: as many as fit in memory.

    Raises:
        ValueError: p is below 1; shapes, labels or scores that cannot be meant.
        TypeError: an argument of the wrong type or dtype.

    >>> import torch
    >>> p_norm_push_loss(torch.tensor([1.0, 0.0]), torch.tensor([1, 0]), p=2)  # exp(-1) ** 2
    tensor(0.1353)

    Reference: Rudin, *The P-Norm Push*, JMLR 2009.
    """
    positives, negatives = _split(scores, target, chunk)
    check_number(p, "p", at_least=1)
    ell = resolve_surrogate(surrogate, margin)
    if len(positives) == 0 or len(negatives) == 0:
        return graph_zero(scores)
    if ell.is_exp:
        own, rivals = widen(negatives), widen(positives)
        # Only differences count, and those to the lowest rival stay numbers; -inf would have no gradient.
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

    It is the largest mean loss over re-weighted negatives, less τ times the divergence (Kullback-Leibler) of the
    weights from equal ones. τ → ∞ gives AUC, τ → 0 the hardest negative alone.

    Args:
        scores: h, [n].
        target: [n], 0 and 1, -1 and 1, or bool. Without positives or without negatives the loss is 0.
        surrogate: ℓ, "squared_hinge", "hinge", "logistic", "exp", "sigmoid", or an elementwise function.
        margin: of the hinges.
        temperature: τ, positive.
        chunk: positives at a time; None: as many as fit in memory.

    Raises:
        ValueError: the temperature is not positive; shapes, labels or scores that cannot be meant.
        TypeError: an argument of the wrong type or dtype.

    >>> import torch
    >>> partial_auc_loss(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1, 0, 0]))  # log((1 + e) / 2)
    tensor(0.6201)

    Reference: Zhu et al., *When AUC Meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex Convergence
    Guarantee*, ICML 2022 (SOPA-s).
    """
    positives, negatives = _split(scores, target, chunk)
    check_number(temperature, "temperature", above=0)
    ell = resolve_surrogate(surrogate, margin)
    if len(positives) == 0 or len(negatives) == 0:
        return graph_zero(scores)
    own, rivals = at_least_float32(positives)[None], at_least_float32(negatives)[None]
    peaks = reduce_pairs(own, rivals, lambda t, _: (ell(t) / temperature).logsumexp(2), chunk=chunk)
    return as_value(temperature * mean(peaks - math.log(len(negatives))), scores, "scores")
