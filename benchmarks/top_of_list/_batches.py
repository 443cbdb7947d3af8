"""The rows of every step of a run; all methods of a seed draw the same ones."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def random_batches(n: int, size: int, steps: int, seed: int) -> Tensor:
    """Return [steps, size] rows: passes over all rows in a random order, without the incomplete last batch."""
    generator = np.random.default_rng(seed)
    size = min(size, n)
    passes = -(-steps // (n // size))
    rows = [generator.permutation(n)[: n // size * size].reshape(-1, size) for _ in range(passes)]
    return torch.from_numpy(np.concatenate(rows)[:steps])


def balanced_batches(y: NDArray[np.int64], size: int, steps: int, seed: int) -> Tensor:
    """Return [steps, size] rows, half of them positive.

    This is what ``fcco.data.PositiveNegativeSampler(y, batch=size, drop_last=True)`` draws, up to the random numbers.
    It is written again here so that the usual methods lead to no code of the library.
    """
    rows = [np.flatnonzero(y == label) for label in (1, 0)]
    half = min(size // 2, *map(len, rows))
    drawn = [some[random_batches(len(some), half, steps, seed + 1000 * k)] for k, some in enumerate(rows)]
    return torch.from_numpy(np.concatenate(drawn, axis=1))
