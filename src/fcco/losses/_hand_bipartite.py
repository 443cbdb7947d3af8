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
    weight = np.zeros((m + k, 2), h.dtype)
    weight[:m], weight[m:, 1] = of_positive, (n - n_pos) / k / n
    pairs = compare(surrogate, h[:m], h, weight)
    at_zero, own_value, _ = own_terms(surrogate)
    own = own_value / n - at_zero * of_positive if exact else (own_value - at_zero) * of_positive

    def pull(slope: Array) -> tuple[Array]:
        slope = slope.astype(h.dtype, copy=False) / temperature
        gradient = pairs.pull_rivals(slope)
        gradient[:m] += pairs.pull_own(slope)
        return _put_back(gradient, places)

    return ArrayEstimate(pairs.sums + own, pull, places[:m])


def p_norm_push_by_hand(scores: Array, target: Array, *, surrogate: Surrogate, n_outer: int) -> ArrayEstimate:
    """Estimate the mean of ℓ over positives; see :func:`fcco.functional.inner.p_norm_push_inner`."""
    h, m, places = split_batch(scores, target, positives_first=False)
    if m > n_outer:
        raise LeftToTheEngine
    own, rivals = h[:m], h[m:]
    if surrogate.is_exp:
        # In log space, the sum over rivals is the same for all.
        lowest = np.minimum.reduce(rivals)
        share = np.exp(lowest - rivals)
        total = np.add.reduce(share)

        def pull_exp(slope: Array) -> tuple[Array]:
            return _put_back(np.concatenate((slope, share * (-np.add.reduce(slope) / total))), places)

        inner = (own - lowest) + own.dtype.type(math.log(total / len(rivals)))
        return ArrayEstimate(inner, pull_exp, places[:m])
    weight = np.full((len(rivals), 1), 1 / len(rivals), own.dtype)
    pairs = compare(surrogate, -own, -rivals, weight)

    def pull(slope: Array) -> tuple[Array]:
        slope = -slope[:, None]
        return _put_back(np.concatenate((pairs.pull_own(slope), pairs.pull_rivals(slope))), places)

    return ArrayEstimate(pairs.sums[:, 0], pull, places[:m])


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
