"""Features, dense or sparse: moments of their columns, and maps that centre and scale them without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.sparsefuncs import mean_variance_axis

Array = NDArray[Any]

_BLOCK = 2**17  # numbers: a block stays in the cache while it is used several times
_CONSTANT = 1e-12  # a spread below this share of the mean is rounding


def _slices(shape: tuple[int, int]) -> Iterator[slice]:
    size = max(1, _BLOCK // max(1, shape[1]))
    for begin in range(0, shape[0], size):
        yield slice(begin, min(begin + size, shape[0]))


def row_blocks(x: Any) -> Iterator[tuple[slice, Array]]:
    """Consecutive rows of an array or a CSR matrix, as dense float64."""
    for where in _slices(x.shape):
        block = x[where]
        yield where, np.asarray(block.toarray() if sparse.issparse(block) else block, dtype=np.float64)


def linear(x: Any, w: Array) -> Array:
    """X w in float64, [n], without a copy of X."""
    return _product(row_blocks(x), x.shape[0], w)


def _product(blocks: Iterator[tuple[slice, Array]], n: int, w: Array) -> Array:
    out = np.empty(n)
    for where, block in blocks:
        out[where] = block @ w
    return out


def column_moments(x: Any, weight: Array | None = None) -> tuple[Array, Array]:
    """Return the mean and the variance of each column, in float64; the variance of a constant column is 0.

    Parameters
    ----------
    x : array or CSR or CSC matrix of shape (n, d)
    weight : ndarray of shape (n,), optional
        The positive weights of the rows. By default all weigh alike.

    Returns
    -------
    mean, variance : ndarray of shape (d,)
    """
    if sparse.issparse(x):
        mean, variance = mean_variance_axis(x.astype(np.float64, copy=False), axis=0, weights=weight)
        # The mean of many equal numbers is off by more than the rounding of one.
        varies = np.ravel(x.min(0).toarray() < x.max(0).toarray())
    else:
        share = np.full(len(x), 1.0 / len(x)) if weight is None else weight / weight.sum()
        # Counted from the first row, constant columns have a variance of 0 without rounding.
        first = x[0].astype(np.float64)
        offset, variance = np.zeros(x.shape[1]), np.zeros(x.shape[1])
        for where, block in row_blocks(x):
            offset += share[where] @ (block - first)
        mean = first + offset
        for where, block in row_blocks(x):
            variance += share[where] @ np.square(block - first - offset)
        varies = variance > 0.0
    return mean, np.where(varies & (np.sqrt(variance) > _CONSTANT * np.abs(mean)), variance, 0.0)


def share_of_nonzeros(x: Any, weight: Array | None = None) -> Array:
    """Return the share of the rows in which each column is not 0, of shape (d,); the rows weigh alike by default."""
    share = np.full(x.shape[0], 1.0 / x.shape[0]) if weight is None else weight / weight.sum()
    return share @ (x != 0)


class Centred:
    """X less its column means, as a linear map in float64: scores, and gradients from those in the scores.

    A dense X is copied. A sparse one stays as it is: (X - 1 mᵀ) w = X w - mᵀ w, and likewise for the transpose.
    Constant columns are 0.

    Args:
        x: [n, d], an array or a CSR or CSC matrix.
        mean, variance: of its columns, [d], as by :func:`column_moments`.
    """

    def __init__(self, x: Any, mean: Array, variance: Array) -> None:
        self._varies = (variance > 0.0).astype(np.float64)
        if sparse.issparse(x):
            self._x, self._mean = x.astype(np.float64, copy=False), mean
        else:
            self._x, self._mean = x - mean, np.zeros_like(mean)

    def scores(self, w: Array) -> Array:
        """[n], from coefficients [d]."""
        w = w * self._varies
        return self._x @ w - self._mean @ w

    def gradient(self, by_score: Array) -> Array:
        """[d], from the gradient in the scores [n]."""
        return (self._x.T @ by_score - self._mean * by_score.sum()) * self._varies


class SortedRows:
    """Rows of X in a given order, with column means 0 and spreads 1.

    A dense X is copied once, in its own dtype; a sparse one stays sparse, and its blocks are centred as they come.

    Args:
        x: [n, d], an array or a CSR matrix.
        order: [n], which row comes when.
        counts: [n], how often each row of X counts.
    """

    def __init__(self, x: Any, order: Array, counts: Array) -> None:
        self.mean, variance = column_moments(x, counts)
        self.scale = np.where(variance > 0.0, np.sqrt(variance), np.inf)
        self.shape = x.shape
        if sparse.issparse(x):
            self.data = x[order]
            return
        self.data = np.empty(x.shape, x.dtype)
        for where in _slices(x.shape):
            block = self.data[where]
            block[:] = x[order[where]]
            block -= self.mean
            block /= self.scale

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """Where each block is, and the block, [m, d] in float64."""
        if not sparse.issparse(self.data):
            yield from row_blocks(self.data)
            return
        for where, block in row_blocks(self.data):
            yield where, (block - self.mean) / self.scale

    def linear(self, w: Array) -> Array:
        """Z w, [n], for the sorted and standardised Z."""
        return _product(self.blocks(), self.shape[0], w)

    @property
    def spread(self) -> Array:
        """[d]: the deviation of each column, 0 for a constant one."""
        return np.where(np.isfinite(self.scale), self.scale, 0.0)
