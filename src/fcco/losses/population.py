"""What a loss knows about the training data, and the check of a batch against it.

The check only runs if reading values is free: in eager mode on the CPU. An example that appears twice in a batch counts
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco._checks import shape_of
from fcco.functional._checks import as_mask


class Labels(NamedTuple):
    """The labels of the training data, with a row for each, or for each example and class."""

    values: NDArray[Any]
    name: str
    classes: int = 1
    """Of how many classes each example has a label, or -1 where it is missing; its row is index * classes + class."""

    @classmethod
    def of(cls, labels: Tensor, name: str, classes: int | None = None) -> Self:
        """Keep labels, integers of shape (rows,), in as few bytes as possible."""
        values = labels.long().numpy()
        largest = int(np.abs(values).max(initial=0))
        dtype = next(kind for kind in (np.int8, np.int16, np.int32, np.int64) if largest <= np.iinfo(kind).max)
        return cls(values.astype(dtype), name, classes or 1)

    def check(self, rows: NDArray[Any], labels: NDArray[Any]) -> None:
        """Raise if the label of a row is another one. A label that is missing here or there fits to all."""
        known = self.values.take(rows)
        differs = known != labels
        if not np.count_nonzero(differs):
            return
        differs &= (known >= 0) & (labels >= 0)
        if not np.count_nonzero(differs):
            return
        place = int(differs.argmax())
        example, label = divmod(int(rows[place]), self.classes)
        row = f"row {example} and class {label}" if self.classes > 1 else f"row {example}"
        at = "" if self.classes > 1 else f" at position {place}"  # pairs without a label have been left out
        raise ValueError(
            f"{self.name} must be {int(known[place])} for {row}, as in from_targets; got {int(labels[place])}{at}: "
            "the dataset, the sampler and the loss must be made from the same rows in the same order"
        )


class Kinds(NamedTuple):
    """How many training examples there are of each kind 0 ... K - 1."""

    sizes: NDArray[Any] | None
    """None: this is not known, and only a row of two kinds is refused."""
    nouns: Sequence[str] | None = None
    """What an example of each of two kinds is called; None: the kinds are classes."""
    known: Sequence[str] = ()
    """Where the sizes of two kinds are from."""

    @classmethod
    def of_classes(cls, sizes: Any) -> Self:
        """Return the kinds of classes, of which the sizes are known."""
        return cls(np.asarray(sizes))

    @classmethod
    def of_two(cls, n: int, members: int | None, name: str, nouns: Sequence[str]) -> Self:
        """Return two kinds, the others and the members, whose number the argument ``name`` gives."""
        sizes = None if members is None else np.array([n - members, members])
        return cls(sizes, nouns, (f"n = {n}, {name} = {members}", f"{name} = {members}"))

    def _of(self, k: int) -> str:
        if self.nouns is None:
            return f"in class {k}"
        return f"as {'an' if self.nouns[k][0] in 'aeiou' else 'a'} {self.nouns[k]}"

    def check(self, rows: NDArray[Any], kind: NDArray[Any], *, repeats: bool) -> None:
        """Raise if an example is of two kinds, or if a kind has more members than in the training data."""
        if repeats:
            rows, kind = np.unique(np.stack([rows, kind]), axis=1)
            twice = np.flatnonzero(rows[1:] == rows[:-1])
            if len(twice):
                what = "class" if self.nouns is None else "label"
                one, other = sorted((kind[twice[0]], kind[twice[0] + 1]), reverse=self.nouns is not None)
                raise ValueError(
                    f"each row must have one {what}; the batch has row {int(rows[twice[0]])} both {self._of(one)} and "
                    f"{self._of(other)}"
                )
        if self.sizes is None:
            return
        there = np.bincount(kind, minlength=len(self.sizes))
        excess = there > self.sizes
        if np.count_nonzero(excess):
            k = int(excess.argmax())
            most = f"class_sizes[{k}] = {self.sizes[k]} distinct examples of class {k}"
            if self.nouns is not None:
                most = f"{self.sizes[k]} distinct {self.nouns[k]}{'' if self.sizes[k] == 1 else 's'} ({self.known[k]})"
            raise ValueError(f"the batch must have at most {most}; got {there[k]}")


class Population(NamedTuple):
    """The labels of the training data, if they are known, and otherwise what is known of them."""

    column: int
    """The column of a batch that has the labels."""
    kinds: Kinds | None = None
    labels: Labels | None = None

    def check(self, rows: Any, labels: Any, *, repeats: bool) -> None:
        """Raise if a batch contradicts the training data."""
        rows, labels = np.asarray(rows), np.asarray(labels)
        if self.labels is not None:
            self.labels.check(rows, labels)
        elif self.kinds is not None:
            self.kinds.check(rows, labels.astype(np.int64), repeats=repeats)


def as_values(values: Any, name: str = "targets, labels, queries and relevances") -> Tensor:
    """Convert a list, an array or a tensor of numbers to a tensor on the CPU."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} must be numbers; got {array.dtype}. Encode them as numbers first, for example by "
            "numpy.unique(values, return_inverse=True)[1]"
        )
    return torch.as_tensor(array if array.flags.writeable else array.copy())  # arrays of pandas are read-only


def count_positives(target: Any, name: str = "target") -> tuple[int, int]:
    """Return the number of examples and the number of positives."""
    target = as_values(target, name)
    if target.dim() != 1:
        raise ValueError(f"{name} must have the shape [n]; got {shape_of(target)}")
    mask = as_mask(target, name, target, name, signs=False)
    return len(mask), int(mask.sum())


def count_both_classes(target: Any) -> tuple[int, int]:
    """Return the number of examples and the number of positives; raise if all are of one class."""
    n, n_pos = count_positives(target)
    if n_pos in (0, n):
        raise ValueError(f"target must have positives and negatives; got {n_pos} positives among {n} examples")
    return n, n_pos


def count_members(labels: Any, name: str) -> Tensor:
    """Return the number of examples of each class 0 ... C - 1."""
    labels = as_values(labels, name)
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.dim() != 1 or (labels < 0).any():
        raise ValueError(
            f"{name} must be integers >= 0 with the shape [n]; got {shape_of(labels)} of {labels.dtype}. "
            "Encode the classes as 0, 1, ... first"
        )
    return labels.bincount()
