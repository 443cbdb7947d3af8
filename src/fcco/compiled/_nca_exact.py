"""The exact objective of neighbourhood components analysis, and its gradient, in little memory."""

from __future__ import annotations

import math

import numpy as np

from fcco.compiled._compile import njit
from fcco.compiled._nca import NCARows, to_distances, to_slopes, to_weights
from fcco.compiled._rules import Array

_WIDTH = 256  # rows that anchors are compared with at a time
_PAIRS = 2**20  # compared at a time for the gradient


@njit(cache=True, nogil=True)
def _add_shares(
    pairs: Array,
    norm: Array,
    block_norm: Array,
    label: Array,
    block_label: Array,
    itself: Array,
    ones: Array,
    sums: Array,
) -> None:
    """Add e^(-distance) of a block of rows to the sums over mates and over all of each anchor.

    ``sums`` [m, 3] holds both, times e^nearest, and the nearest distance so far.
    """
    for i in range(len(pairs)):
        place = itself[i] if itself[i] < len(block_norm) else -1
        here = to_distances(norm[i], pairs[i], block_norm, place)
        mates, everyone = to_weights(pairs[i], here, block_label, label[i], pairs.dtype.type(1.0), ones)
        least = min(sums[i, 2], here)
        old, new = math.exp(least - sums[i, 2]), math.exp(least - here)
        sums[i, 0], sums[i, 1], sums[i, 2] = old * sums[i, 0] + new * mates, old * sums[i, 1] + new * everyone, least


def _embedded(rows: NCARows, a: Array, chosen: Array | slice) -> tuple[Array, Array, Array]:
    """Return the centred rows, their embedding z, and |z|²."""
    x = rows.x[chosen] - rows.center
    z = x @ a.T
    return x, z, np.einsum("ij,ij->i", z, z)


def mean_share(rows: NCARows, a: Array, anchors: Array, width: int = _WIDTH) -> float:
    """Return the mean over the rows ``anchors`` of p_i, exactly, from ``width`` of all rows at a time."""
    n, (_, z, norm) = len(rows.label), _embedded(rows, a, anchors)
    ones, sums = np.ones(min(n, width), a.dtype), np.zeros((len(anchors), 3))
    sums[:, 2] = np.inf
    for begin in range(0, n, width):
        block = slice(begin, min(begin + width, n))
        _, block_z, block_norm = _embedded(rows, a, block)
        label, size = rows.label[block], len(block_norm)
        _add_shares(z @ block_z.T, norm, block_norm, rows.label[anchors], label, anchors - begin, ones[:size], sums)
    return float(np.mean(sums[:, 0] / sums[:, 1]))


@njit(cache=True, nogil=True)
def _to_all_slopes(
    pairs: Array, norm: Array, label: Array, begin: int, ones: Array, row_sum: Array, column_sum: Array
) -> float:
    """Turn products of rows begin ... begin + len(pairs) with all into the derivative in the distances, in place.

    Its sums over rows and columns are set and added to, and the sum of the p_i is returned.
    """
    kind, total = pairs.dtype.type, 0.0
    for i in range(len(pairs)):
        row = begin + i
        nearest = to_distances(norm[row], pairs[i], norm, row)
        mates, everyone = to_weights(pairs[i], nearest, label, label[row], kind(1.0), ones)
        share = mates / everyone
        total += share
        of_mates, of_others = kind((1.0 - share) / everyone), kind(-share / everyone)
        row_sum[i] = to_slopes(pairs[i], label, label[row], of_mates, of_others, column_sum)
    return total


def share_and_gradient(rows: NCARows, a: Array) -> tuple[float, Array]:
    """Return the mean of all p_i, exactly, and the gradient of its negative in A; some rows are taken at a time."""
    n, kind, (x, z, norm) = len(rows.label), a.dtype, _embedded(rows, a, slice(None))
    slope, ones, column_sum, total = np.zeros_like(z), np.ones(n, kind), np.zeros(n, kind), 0.0
    height = max(1, min(n, _PAIRS // n))
    room, row_sum = np.empty((height, n), kind), np.zeros(n, kind)
    for begin in range(0, n, height):
        here = slice(begin, min(begin + height, n))
        own, pairs = z[here], room[: min(height, n - begin)]
        np.dot(own, z.T, out=pairs)
        total += _to_all_slopes(pairs, norm, rows.label, begin, ones, row_sum[here], column_sum)
        slope[here] -= pairs @ z
        slope -= pairs.T @ own
    slope += (row_sum + column_sum)[:, None] * z
    return total / n, (2.0 / n * slope).astype(kind, copy=False).T @ x
