"""Losses of several classes at once: counts from training targets, and one step for all classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcco._checks import as_index, check_one_each, check_rows, is_empty, reads_are_free, shape_of, whole_number
from fcco._pool import Estimate, Pool, Recall
from fcco.functional._classes import Labels, as_labels, refuse_signs
from fcco.losses._base import Loss, as_values, count_both_classes
from fcco.losses.memory import Memory

Counts = int | tuple[int, ...]


def check_n_pos(n: int, n_pos: int | Sequence[int] | Tensor) -> Counts:
    """Return the number of positives, or one for each class; raise if a number is invalid."""
    if not isinstance(n_pos, Sequence | Tensor | np.ndarray) or getattr(n_pos, "ndim", 1) == 0:
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
    if values.dim() != 2:
        return None
    labels = as_labels(values, values)
    refuse_signs(values)
    return labels


def count_per_class(target: Any) -> tuple[int, Counts]:
    """Return the number of examples, and that of the positives, or of those of each class."""
    labels = labels_of(target)
    if labels is None:
        return count_both_classes(target)
    return len(labels.positive), tuple(labels.positive.sum(0).tolist())


def count_known(target: Any) -> tuple[int, ...]:
    """Return how many examples have a label of each class."""
    labels = labels_of(target)
    assert labels is not None
    return tuple((labels.positive | labels.negative).sum(0).tolist())


def known_labels(target: Any) -> tuple[Tensor, str, int | None]:
    """Return the labels of training targets for a loss to keep: a vector, its name, and how many classes it is of."""
    labels = labels_of(target)
    if labels is None:
        return (as_values(target) == 1).to(torch.uint8), "target", None
    return coded_labels(labels).flatten(), "target", labels.positive.shape[1]


def check_classes(labels: Labels, n: int, n_pos: Counts) -> None:
    """Raise if a batch has positives or negatives of a class that has none in the training data.

    The check only runs where it does not stall a device.
    """
    if not reads_are_free(labels.positive):
        return
    counts = torch.tensor(n_pos).reshape(-1)
    for noun, part, none in (("positive", labels.positive, 0), ("negative", labels.negative, n)):
        strange = part.any(0) & (counts == none)
        if bool(strange.any()):
            place = int(strange.nonzero()[0])
            raise ValueError(
                f"the batch must have no {noun} of class {place}, which has {int(counts[place])} positives among "
                f"n = {n} training examples; got {int(part[:, place].sum())}"
            )


def refuse_missing(labels: Labels) -> None:
    """Raise if a batch has missing labels, of a loss that does not know how many of them there are."""
    if not reads_are_free(labels.positive):
        return
    missing = ~(labels.positive | labels.negative)
    if bool(missing.any()):
        place = missing.nonzero()[0].tolist()
        raise ValueError(
            f"target must have no missing labels, because it is not known how many labels of each class there are; got "
            f"one at position {place}. Use from_targets(...)"
        )


def refuse_memory(memory: Memory | int | None) -> None:
    """Raise if a loss of several classes is to have a memory."""
    if memory:
        raise ValueError(f"memory must be 0 or None with several classes; got {memory!r}")


def coded_labels(labels: Labels) -> Tensor:
    """Return 1 for positives, 0 for negatives, and -1 for missing labels, of shape (B, C)."""
    return torch.where(labels.positive, 1, torch.where(labels.negative, 0, -1)).to(torch.int8)


@dataclass(frozen=True)
class PerClass:
    """The classes of a loss whose table has a row for each example and class: row = index * count + class."""

    n: int
    """The number of training examples."""
    count: int
    """The number of classes C."""
    n_pos: tuple[int, ...] | None = None
    """The number of positives of each class, if it is known."""
    n_known: tuple[int, ...] | None = None
    """The number of examples whose label is known, of each class; by default n."""
    takes_missing: bool = True
    """Whether labels may be missing: not if the estimate needs ``n_known``, and it is not known."""

    def sizes(self, k: int) -> tuple[int, int]:
        """Return how many training examples have a label of class k, and how many are positives; at least 1 each."""
        assert self.n_pos is not None
        return max(self.n if self.n_known is None else self.n_known[k], 1), max(self.n_pos[k], 1)

    def loss(
        self, loss: Loss, estimate: Callable[[Pool, int], Estimate], scores: Tensor, target: Tensor, index: Any
    ) -> Tensor:
        """Return the mean over the classes of a batch, of which ``estimate`` makes the inner values of one class."""
        if not isinstance(scores, Tensor) or scores.dim() != 2 or scores.shape[1] != self.count:
            got = shape_of(scores) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"scores must have the shape [B, {self.count}], with a column for each class; got {got}")
        labels = as_labels(target, scores)
        if loss.training and self.n_pos is not None:
            check_classes(labels, self.n, self.n_pos)
        if loss.training and not self.takes_missing:
            refuse_missing(labels)
        coded = coded_labels(labels)
        rows = None
        if index is not None and loss.training:
            if is_empty(index):  # a rank may have no part in the batch
                index = torch.zeros(0, dtype=torch.int64, device=scores.device)
            else:
                index = as_index(index, scores.device)
                check_one_each(index, scores, "scores")
                check_rows(index, self.n)
            rows = (index.unsqueeze(1) * self.count + torch.arange(self.count, device=scores.device)).flatten()
        columns = scores.flatten(), coded.flatten()
        return loss._loss(partial(self._estimate, estimate), *columns, index=rows, check=loss._check_labels)

    def _estimate(self, estimate: Callable[[Pool, int], Estimate], pool: Pool) -> Estimate:
        """Make the estimates of all classes, each from the examples whose label is known."""
        scores, target = (column.reshape(-1, self.count) for column in pool.own)
        others = pool.rivals or [column[:0] for column in pool.own]
        rival_scores, rival_target = (column.reshape(-1, self.count) for column in others)
        rows = None if pool.rows is None else pool.rows.reshape(-1, self.count)
        labels, made = torch.cat([target, rival_target]), []
        for k in range(self.count):
            own, rivals = (
                (scores[:, k], target[:, k].clamp(min=0)),
                (rival_scores[:, k], rival_target[:, k].clamp(min=0)),
            )
            recall = Recall(present=labels[:, k] >= 0)
            made.append(estimate(Pool(own, rivals, None if rows is None else rows[:, k], pool.may_repeat, recall), k))
        # Every class in the batch counts alike, however many positives it has there.
        share = torch.stack([part.share for part in made], 1) / (labels == 1).sum(0).clamp(min=1)
        return Estimate(torch.stack([part.inner for part in made], 1).flatten(0, 1), share.flatten(), share.sum())
