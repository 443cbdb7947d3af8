"""Training, validation and test parts of a set."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Part(NamedTuple):
    """Some examples: their features, and what else is known of each (targets, times, queries)."""

    x: Tensor
    y: tuple[Tensor, ...]


class Parts(NamedTuple):
    """The parts to train on, to choose the learning rate by, and to report."""

    train: Part
    valid: Part
    test: Part


def three_parts(x: NDArray[Any], y: tuple[NDArray[Any], ...], shares: tuple[float, float] = (0.6, 0.2)) -> Parts:
    """Return a random split, always the same, into the given shares for training and validation, and the rest."""
    order = np.random.default_rng(0).permutation(len(x))
    ends = np.round(np.cumsum(shares) * len(x)).astype(int)
    return scaled(*((x[rows], tuple(values[rows] for values in y)) for rows in np.split(order, ends)))


def scaled(*parts: tuple[NDArray[Any], tuple[NDArray[Any], ...]]) -> Parts:
    """Standardise the features by the training part; a missing feature is replaced by its mean."""
    mean, deviation = np.nanmean(parts[0][0], 0), np.nanstd(parts[0][0], 0)
    keep = deviation > 0
    made = []
    for x, y in parts:
        features = np.nan_to_num((x[:, keep] - mean[keep]) / deviation[keep], nan=0.0)
        made.append(Part(torch.tensor(features, dtype=torch.float32), tuple(torch.tensor(values) for values in y)))
    return Parts(*made)


def clipped(parts: Parts) -> Parts:
    """Clip features to five standard deviations.

    Many binary features of covtype are rare, and without this a few rows would have features above 100.
    """
    return Parts(*(Part(part.x.clamp(-5, 5), part.y) for part in parts))
