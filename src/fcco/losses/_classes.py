"""What losses with several classes share: counts of positives, from training targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco._checks import shape_of, whole_number
from fcco.functional._classes import Labels, as_labels
from fcco.losses._base import as_values, count_positives

Counts = int | tuple[int, ...]


def check_n_pos(n: int, n_pos: int | Sequence[int] | Tensor) -> Counts:
    """Return the number of positives, or one for each class; raise if a number is invalid."""
    if not isinstance(n_pos, Sequence | Tensor) or (isinstance(n_pos, Tensor) and n_pos.dim() == 0):
        count = whole_number("n_pos", n_pos)
        if count > n:
            raise ValueError(f"n_pos must be at most n = {n}; got {count}")
        return count
    values = as_values(n_pos)
    if values.dim() != 1 or len(values) == 0 or values.is_floating_point() or values.dtype == torch.bool:
        raise ValueError(f"n_pos must be an integer or one for each class; got {shape_of(values)} of {values.dtype}")
    counts: tuple[int, ...] = tuple(values.tolist())
    for place, count in enumerate(counts):
        if not 0 <= count <= n:
            raise ValueError(f"n_pos must be in [0, {n}] for each class; got {count} at position {place}")
    return counts


def labels_of(target: Any) -> Labels | None:
    """Return the labels of training targets with a column for each class, or None if there is a single class."""
    values = as_values(target)
    return as_labels(values, values) if values.dim() == 2 else None


def count_per_class(target: Any) -> tuple[int, Counts]:
    """Return the number of examples, and that of the positives, or of those of each class."""
    labels = labels_of(target)
    if labels is None:
        return count_positives(target)
    return len(labels.positive), tuple(labels.positive.sum(0).tolist())
