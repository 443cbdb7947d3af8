"""Training, validation and test parts of a set."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Part(NamedTuple):
    """Some examples: features, and what else there is of each (targets, times, queries)."""

    x: Tensor
    y: tuple[Tensor, ...]


class Parts(NamedTuple):
    """To train on, to choose the lr by, and to report."""

    train: Part
    valid: Part
    test: Part


def three_parts(x: NDArray[Any], y: tuple[NDArray[Any], ...], shares: tuple[float, float] = (0.6, 0.2)) -> Parts:
    """A random split, always the same, into the shares of training, validation and the rest."""
    order = np.random.default_rng(0).permutation(len(x))
    ends = np.round(np.cumsum(shares) * len(x)).astype(int)
    return scaled(*((x[rows], tuple(values[rows] for values in y)) for rows in np.split(order, ends)))


def scaled(*parts: tuple[NDArray[Any], tuple[NDArray[Any], ...]]) -> Parts:
    """Features less their mean and over their deviation on the training part; missing ones are at the mean."""
    mean, deviation = np.nanmean(parts[0][0], 0), np.nanstd(parts[0][0], 0)
    keep = deviation > 0
    made = []
    for x, y in parts:
        features = np.nan_to_num((x[:, keep] - mean[keep]) / deviation[keep], nan=0.0)
        made.append(Part(torch.tensor(features, dtype=torch.float32), tuple(torch.tensor(values) for values in y)))
    return Parts(*made)
