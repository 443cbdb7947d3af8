"""The features of a Cox model, dense or sparse, as blocks of rows: sorted, centred and scaled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

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
    out = np.empty(x.shape[0])
    for where, block in row_blocks(x):
        out[where] = block @ w
    return out


def moments(x: Any, counts: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column, [d]; a constant one has spread infinity, and so is scaled to 0.

    ``counts`` [n] says how often each row counts.
    """
    mean, variance, share = np.zeros(x.shape[1]), np.zeros(x.shape[1]), counts / counts.sum()
    for where, block in row_blocks(x):
        mean += share[where] @ block
    for where, block in row_blocks(x):
        centred = block - mean
        variance += share[where] @ np.square(centred, out=centred)
    spread = np.sqrt(variance)
    return mean, np.where(spread > _CONSTANT * np.abs(mean), spread, np.inf)


class Rows:
    """Rows of X in a given order, with column means 0 and spreads 1.

    A dense X is copied once, in its own dtype; a sparse one stays sparse, and its blocks are centred as they come.

    Args:
        x: [n, d], an array or a CSR matrix.
        order: [n], which row comes when.
        counts: [n], how often each row of X counts.
    """

    def __init__(self, x: Any, order: Array, counts: Array) -> None:
        self.mean, self.scale = moments(x, counts)
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
        out = np.empty(self.shape[0])
        for where, block in self.blocks():
            out[where] = block @ w
        return out
