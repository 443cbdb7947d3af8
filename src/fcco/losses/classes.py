"""Losses of several classes at once: counts from training targets, and the columns of a batch.

Each pair of an example and a class is a row, index * C + class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fcco._checks import as_index, check_one_each, check_rows, reads_are_free, shape_of, whole_number
from fcco.functional._checks import check_floats
from fcco.functional._classes import Labels as OfBatch
from fcco.functional._classes import as_labels, refuse_signs
from fcco.losses.population import Labels, as_values, count_both_classes
from fcco.objectives.classes import by_class


@dataclass(frozen=True)
class Classes:
    """The classes of a loss, and what is known of the training data."""

    n: int
    """The number of training examples."""
    count: int
    """The number of classes C."""
    n_pos: tuple[int, ...] | None = None
    """The number of positives of each class, if it is known."""
    n_known: tuple[int, ...] | None = None
    """How many examples have a label of each class; None: this was not counted."""

    @classmethod
    def of_counts(cls, n: int, n_pos: int | Sequence[int] | Tensor | Self) -> int | Self:
        """Return the number of positives, or the classes if there is one for each; raise if a number is invalid."""
        if isinstance(n_pos, cls):
            return n_pos
        if not isinstance(n_pos, Sequence | Tensor | np.ndarray) or getattr(n_pos, "ndim", 1) == 0:
            count = whole_number("n_pos", n_pos)
            if count > n:
                raise ValueError(f"n_pos must be at most n = {n}; got {count}")
            return count
        values = as_values(n_pos)
        if values.dim() != 1 or len(values) == 0 or values.is_floating_point() or values.dtype == torch.bool:
            given = f"{shape_of(values)} of {values.dtype}"
            raise ValueError(f"n_pos must be an integer or one for each class; got {given}")
        counts = tuple(values.tolist())
        for place, count in enumerate(counts):
            if not 0 <= count <= n:
                raise ValueError(f"n_pos must be in [0, {n}] for each class; got {count} at position {place}")
        return cls(n, len(counts), counts)

    @property
    def sizes(self) -> Tensor | None:
        """How many negatives and positives of each class the population has, [2 C], if this is known."""
        if self.n_pos is None:
            return None
        positives = torch.tensor(self.n_pos, dtype=torch.float64)
        known = torch.tensor(self.n_known or [self.n] * self.count, dtype=torch.float64)
        return torch.stack([known - positives, positives], 1).flatten()

    def given(
        self, scores: Any, target: Any, index: Any, *, training: bool, takes_missing: bool = True, room: float = 1.0
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return the scores, labels and classes of all pairs of a batch that have a label, and their rows.

        Without ``takes_missing``, a loss needs to know how many labels there are. ``room`` is that of
        :func:`check_floats`.
        """
        if isinstance(scores, Tensor) and (scores.dim() != 2 or scores.shape[1] != self.count):
            raise ValueError(
                f"scores must have the shape [B, {self.count}], with a column for each class; got {shape_of(scores)}"
            )
        check_floats(scores, "scores", "[B, C]", room=room)
        labels = as_labels(target, scores)
        if training and self.n_pos is not None:
            self._check_classes(labels, self.n_pos)
        if training and self.n_known is None and not takes_missing:
            _refuse_missing(labels)
        if index is None:
            rows = torch.arange(len(scores), device=scores.device)
        else:
            rows = as_index(index, scores.device)
            check_one_each(rows, scores, "scores")
            check_rows(rows, self.n)
        code = torch.where(labels.positive, 1, torch.where(labels.negative, 0, -1))
        columns, rows = by_class(scores, code, rows, fixed=not reads_are_free(code))
        return columns, None if index is None else rows

    def _check_classes(self, labels: OfBatch, n_pos: tuple[int, ...]) -> None:
        """Raise if a batch has positives or negatives of a class that has none, where this does not stall a device."""
        if not reads_are_free(labels.positive):
            return
        counts = torch.tensor(n_pos)
        for noun, part, none in (("positive", labels.positive, 0), ("negative", labels.negative, self.n)):
            strange = part.any(0) & (counts == none)
            if bool(strange.any()):
                place = int(strange.nonzero()[0])
                raise ValueError(
                    f"the batch must have no {noun} of class {place}, which has {int(counts[place])} positives among "
                    f"n = {self.n} training examples; got {int(part[:, place].sum())}"
                )


def _refuse_missing(labels: OfBatch) -> None:
    missing = ~(labels.positive | labels.negative)
    if reads_are_free(missing) and bool(missing.any()):
        raise ValueError(
            f"target must have no missing labels, because it is not known how many labels of each class there are; got "
            f"one at position {missing.nonzero()[0].tolist()}. Use from_targets(...)"
        )


def count_per_class(target: Any) -> tuple[int, int | Classes, Labels]:
    """Return the number of training examples, that of the positives or the classes, and the labels for a loss to keep.

    Targets have the shape [n], or [n, C] with -1 or NaN for missing labels.
    """
    values = as_values(target)
    if values.dim() != 2:
        return *count_both_classes(target), Labels.of((values == 1).to(torch.uint8), "target")
    positive, negative = as_labels(values, values)
    refuse_signs(values)
    n, count = values.shape
    n_pos, n_known = tuple(positive.sum(0).tolist()), tuple((positive | negative).sum(0).tolist())
    code = torch.where(positive, 1, torch.where(negative, 0, -1)).flatten()
    return n, Classes(n, count, n_pos, n_known), Labels.of(code, "target", count)
