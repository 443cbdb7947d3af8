"""Average precision, p-norm push and partial AUC by hand; see :mod:`fcco.losses._by_hand`.

Only outer examples are compared with the batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcco._coupled import CoupledLoss
from fcco.functional._surrogates import Surrogate
from fcco.losses._by_hand import Array, ArrayEstimate, LeftToTheEngine, can_work_by_hand
from fcco.losses._pair_arrays import compare, own_terms, value_and_slope


def can_fuse(coupled: CoupledLoss, surrogate: Surrogate, scores: Any, target: Any) -> bool:
    """Return whether a step can be worked out by hand; the caller's own surrogate may have parameters to train."""
    return surrogate.has_name and can_work_by_hand(coupled, (scores,), (target,)) and scores.dim() == 1


def split_batch(scores: Array, target: Array, *, positives_first: bool) -> tuple[Array, int, Array]:
    """Return the scores with the outer class first, how many these are, and the positions of all in the batch."""
    if not math.isfinite(np.add.reduce(scores)):
        raise LeftToTheEngine
    positive, negative = (target == 1).nonzero()[0], (target == 0).nonzero()[0]
    if not (len(positive) and len(negative) and len(positive) + len(negative) == len(target)):
        raise LeftToTheEngine
    outer, other = (positive, negative) if positives_first else (negative, positive)
    places = np.concatenate((outer, other))
    return scores.take(places), len(outer), places


def _put_back(gradient: Array, places: Array) -> tuple[Array]:
    """Return a gradient in the order of the batch."""
    in_order = np.empty(len(gradient), gradient.dtype)
    in_order[places] = gradient
    return (in_order,)


class PrecisionSums:
    """Both sums of average precision, over positives and over all.

    Parameters
    ----------
    surrogate : Surrogate
        The surrogate ℓ.
    own : Array of shape (m,)
        The scores of positives to compare.
    rivals : pair of Arrays
        The scores of the positives and of the negatives to compare them with.
    each : pair of floats
        The weight of a positive and of a negative.
    own_term : float
        What to add to both sums.

    Attributes
    ----------
    inner : Array of shape (m, 2)
        The sums.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        own: Array,
        rivals: tuple[Array, Array],
        each: tuple[float, float],
        own_term: float,
    ) -> None:
        self.pairs, self.each = compare(surrogate, own, *rivals), each
        first = each[0] * self.pairs.sums[0]
        first += own_term
        self.inner = np.empty((len(own), 2), first.dtype)
        self.inner[:, 0] = first
        np.add(first, each[1] * self.pairs.sums[1], out=self.inner[:, 1])

    def by_class(self, slope: Array) -> Array:
        """Return the gradient with respect to the sums over each class, given that with respect to ``inner``."""
        pull = slope.T.copy()
        pull[0] += pull[1]
        pull[0] *= self.each[0]
        pull[1] *= self.each[1]
        return pull


def average_precision_by_hand(
    scores: Array, target: Array, *, surrogate: Surrogate, temperature: float, n: int, n_pos: int, exact: bool
) -> ArrayEstimate:
    """Estimate both sums of average precision; see :func:`fcco.functional.inner.average_precision_inner`."""
    values, m, places = split_batch(scores, target, positives_first=True)
    k = len(values) - m
    if m > n_pos or k > n - n_pos or (exact and m == 1 < n_pos):
        raise LeftToTheEngine
    of_positive = (n_pos - 1) / max(m - 1, 1) / n if exact else n_pos / m / n
    # In double precision, a division by the temperature costs no digits that matter. An exact own term needs it too,
    # because it is first summed with the others, at 1 / n_pos of its final weight.
    h = values.astype(np.float64) / temperature if exact or temperature != 1.0 else values
    own_value, own = own_terms(surrogate), h[:m]
    own_term = own_value.counted / n - own_value.at_zero * of_positive
    if not exact:
        own_term = (own_value.counted - own_value.at_zero) * of_positive
    sums = PrecisionSums(surrogate, own, (own, h[m:]), (of_positive, (n - n_pos) / k / n), own_term)

    def pull(slope: Array) -> tuple[Array]:
        pulls = sums.by_class(slope.astype(h.dtype, copy=False) / temperature)
        gradient = sums.pairs.pull_rivals(pulls)
        gradient[:m] += sums.pairs.pull_own(pulls)
        return _put_back(gradient, places)

    return ArrayEstimate(sums.inner, pull, places[:m])


class PushMeans:
    """The means over positives of p-norm push, ℓ(own - rival); ``inner`` has shape (own,)."""

    def __init__(self, surrogate: Surrogate, own: Array, rivals: Array, count: float) -> None:
        self.pairs, self.factor = compare(surrogate, -own, -rivals), 1 / count
        self.inner = self.pairs.sums[0] * self.factor

    def pull_own(self, slope: Array) -> Array:
        """Return the gradient with respect to the own scores."""
        return self.pairs.pull_own(-self.factor * slope[None])

    def pull_rivals(self, slope: Array) -> Array:
        """Return the gradient with respect to the scores of the rivals."""
        return self.pairs.pull_rivals(-self.factor * slope[None])


class LogPushMeans:
    """The same for ℓ = exp, in log space, where the sum over rivals is the same for all."""

    def __init__(self, own: Array, rivals: Array, count: float) -> None:
        lowest = np.minimum.reduce(rivals) if len(rivals) else 0.0
        self.share = np.exp(lowest - rivals)
        self.total = np.add.reduce(self.share)
        self.inner = (own - lowest) + own.dtype.type(np.log(self.total / count))

    def pull_own(self, slope: Array) -> Array:
        """Return the gradient with respect to the own scores."""
        return slope

    def pull_rivals(self, slope: Array) -> Array:
        """Return the gradient with respect to the scores of the rivals."""
        return self.share * (-np.add.reduce(slope) / self.total)


def push_means(surrogate: Surrogate, own: Array, rivals: Array, count: float) -> PushMeans | LogPushMeans:
    """Return the sums over rivals, divided by ``count``."""
    return LogPushMeans(own, rivals, count) if surrogate.is_exp else PushMeans(surrogate, own, rivals, count)


def p_norm_push_by_hand(scores: Array, target: Array, *, surrogate: Surrogate, n_outer: int) -> ArrayEstimate:
    """Estimate the mean of ℓ over positives; see :func:`fcco.functional.inner.p_norm_push_inner`."""
    h, m, places = split_batch(scores, target, positives_first=False)
    if m > n_outer:
        raise LeftToTheEngine
    means = push_means(surrogate, h[:m], h[m:], len(h) - m)

    def pull(slope: Array) -> tuple[Array]:
        return _put_back(np.concatenate((means.pull_own(slope), means.pull_rivals(slope))), places)

    return ArrayEstimate(means.inner, pull, places[:m])


def partial_auc_by_hand(
    scores: Array, target: Array, *, surrogate: Surrogate, temperature: float, n_outer: int
) -> ArrayEstimate:
    """Estimate log g of partial AUC; see :func:`fcco.functional.inner.partial_auc_inner`."""
    h, m, places = split_batch(scores, target, positives_first=True)
    if m > n_outer:
        raise LeftToTheEngine
    terms, slopes = value_and_slope(surrogate, h[m:] - h[:m, None])
    terms /= temperature
    peak = np.maximum.reduce(terms, 1)
    terms -= peak[:, None]
    np.exp(terms, out=terms)
    sums = np.add.reduce(terms, 1)
    slopes *= terms

    def pull(slope: Array) -> tuple[Array]:
        per_row = (slope / (temperature * sums)).astype(h.dtype)
        own = np.add.reduce(slopes, 1) * -per_row
        return _put_back(np.concatenate((own, per_row @ slopes)), places)

    return ArrayEstimate(np.log(sums / (len(h) - m)) + peak, pull, places[:m])
