"""The objective of neighbourhood components analysis against all rows, compiled, in little memory."""

from __future__ import annotations

import math

import numpy as np

from fcco.estimators._compile import njit
from fcco.estimators._kernels import Array
from fcco.estimators._nca_kernel import Rows, _embed, _to_distances_from, _to_weights


@njit(cache=True, error_model="numpy")
def _add(sums: Array, nearest: float, mates: float, everyone: float, here: float) -> float:
    """Add e^(-distance) of a block, given times e^here, to sums times e^nearest; the new nearest."""
    least = min(nearest, here)
    old, new = math.exp(least - nearest), math.exp(least - here)
    sums[0] = old * sums[0] + new * mates
    sums[1] = old * sums[1] + new * everyone
    return least


@njit(cache=True, nogil=True, error_model="numpy")
def mean_share(rows: Rows, a: Array, anchors: Array, width: int) -> float:
    """The mean over the rows ``anchors`` of p_i, exactly, from ``width`` of all rows at a time."""
    m, n, kind = len(anchors), len(rows.label), a.dtype
    k, d = a.shape
    z, norm = np.empty((m, k), kind), np.empty(m, kind)
    _embed(rows, a, anchors, np.empty((m, d), kind), z, norm)
    x, block_z, block_norm = np.empty((width, d), kind), np.empty((width, k), kind), np.empty(width, kind)
    products, ones = np.empty(m * width, kind), np.ones(width, kind)
    nearest, sums = np.full(m, np.inf), np.zeros((m, 2))
    for begin in range(0, n, width):
        b = min(width, n - begin)
        _embed(rows, a, np.arange(begin, begin + b), x[:b], block_z[:b], block_norm[:b])
        pairs, label = products[: m * b].reshape(m, b), rows.label[begin : begin + b]
        np.dot(z, block_z[:b].T, pairs)
        for i in range(m):
            itself = anchors[i] - begin
            here = _to_distances_from(norm[i], pairs[i], block_norm[:b], itself if itself < b else -1)
            mates, everyone = _to_weights(pairs[i], here, label, rows.label[anchors[i]], kind.type(1.0), ones[:b])
            nearest[i] = _add(sums[i], nearest[i], mates, everyone, here)
    return float(np.mean(sums[:, 0] / sums[:, 1]))
