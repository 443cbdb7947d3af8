"""The sampled softmax by hand; see :mod:`fcco.losses._by_hand`."""

from __future__ import annotations

import math

import numpy as np

from fcco.losses._by_hand import Array, ArrayEstimate, LeftToTheEngine

# Larger logits are left to the engine, which refuses those that overflow.
_LARGEST = 1e30


def softmax_by_hand(target: Array, sampled: Array, *, n_classes: int | None, exact: bool) -> ArrayEstimate:
    """Estimate log g of the softmax from uniform candidates; see :func:`fcco.functional.inner.softmax_inner`."""
    if target.ndim != 1 or sampled.ndim != 2 or len(target) != len(sampled) or not sampled.shape[1]:
        raise LeftToTheEngine
    peak = np.maximum.reduce(sampled, 1)
    lowest, offset = np.minimum.reduce(sampled, None), np.maximum.reduce(np.abs(target))
    if not (lowest > -_LARGEST and np.maximum.reduce(peak) < _LARGEST and offset < _LARGEST):
        raise LeftToTheEngine
    count = sampled.shape[1]
    others = count if n_classes is None else n_classes - 1
    own, each = 0.0, math.log(others / count)
    if not exact:
        own = each = math.log((others + 1) / (count + 1))
    terms = sampled - peak[:, None]
    np.exp(terms, out=terms)
    sums = np.add.reduce(terms, 1)
    log_others = np.log(sums) + (peak - target) + target.dtype.type(each)
    inner = np.logaddexp(log_others, target.dtype.type(own))

    def pull(slope: Array) -> tuple[Array, Array]:
        slope = slope * np.exp(log_others - inner)
        return -slope, terms * (slope / sums)[:, None]

    return ArrayEstimate(inner, pull)
