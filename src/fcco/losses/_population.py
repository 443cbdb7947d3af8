"""Checks of a batch against what a loss knows about the training data.

The checks only run if reading values is free: in eager mode on the CPU. An example that appears twice in a batch counts
once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco._checks import reads_are_free
from fcco._pool import Pool


class Stratum(NamedTuple):
    """A part of the training data: the noun for a member, the number of members, and where that number is from."""

    noun: str
    size: int | None = None
    known: str = ""

    @property
    def one(self) -> str:
        """The noun with an indefinite article."""
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"


def check_members(pool: Pool, label: int, strata: tuple[Stratum, Stratum]) -> None:
    """Raise if the pool contradicts the training data.

    This is the case if an example is both a member and not, or if there are more of either than in the training data.

    Parameters
    ----------
    pool : Pool
        The examples. The last column is compared with ``label``. Without rows, nothing is known about the training
        data.
    label : int
        The label of members.
    strata : tuple of two Stratum
        The members, and the others.
    """
    rows = pool.rows
    if rows is None or not reads_are_free(rows):
        return
    member = pool.joined()[-1] == label
    distinct = rows[member].unique(), rows[~member].unique()
    for found, stratum in zip(distinct, strata, strict=True):
        if stratum.size is not None and len(found) > stratum.size:
            most = _with_noun(stratum.size, f"distinct {stratum.noun}")
            raise ValueError(f"the batch must have at most {most} ({stratum.known}); got {len(found)}")
    both = distinct[0][torch.isin(*distinct)]
    if len(both):
        raise ValueError(
            f"each row must have one label; the batch has row {int(both[0])} both as {strata[0].one} "
            f"and as {strata[1].one}"
        )


class KnownLabels(NamedTuple):
    """The labels of the training data, with a row for each, or for each example and class."""

    values: NDArray[Any]
    name: str
    classes: int | None = None
    """The number of classes of which each example has a label, or -1 where it is missing; None for a vector of labels.

    The label of a class is in row index * classes + class.
    """

    @classmethod
    def of(cls, labels: Tensor, name: str, classes: int | None = None) -> KnownLabels:
        """Keep labels, integers of shape (rows,), in as few bytes as possible."""
        values = labels.long().numpy()
        largest = int(np.abs(values).max(initial=0))
        dtype = next(kind for kind in (np.int8, np.int16, np.int32, np.int64) if largest <= np.iinfo(kind).max)
        return cls(values.astype(dtype), name, classes)

    def agree(self, labels: Tensor, index: Any) -> bool:
        """Return whether a batch on the CPU has these labels, at a small cost; False if the input is invalid."""
        try:
            rows = index.numpy() if isinstance(index, Tensor) else np.asarray(index)
            return not np.count_nonzero(self.values.take(rows) != labels.numpy())
        except (IndexError, RuntimeError, TypeError, ValueError):
            return False

    def check(self, rows: Tensor, labels: Tensor) -> None:
        """Raise if the label of a row is another one. A label that is missing here or there fits to all."""
        known = torch.from_numpy(self.values.take(rows.numpy()))
        differs = known != labels
        if self.classes is not None:
            differs &= (known >= 0) & (labels >= 0)
        if bool(differs.any()):
            place, classes = int(differs.nonzero()[0]), self.classes or 1
            example, label = divmod(int(rows[place]), classes)
            row = f"row {example}" + f" and class {label}" * (classes > 1)
            raise ValueError(
                f"{self.name} must be {int(known[place])} for {row}, as in from_targets; got {int(labels[place])} at "
                f"position {place // classes}: the dataset, the sampler and the loss must be made from the same "
                "rows in the same order"
            )


def split(n: int, size: int, name: str, members: str, others: str) -> tuple[Stratum, Stratum]:
    """Return the strata of n examples of which ``size`` are members, as given by the argument ``name``."""
    rest = f"n = {n}, {name} = {size}"
    return Stratum(members, size, f"{name} = {size}"), Stratum(others, n - size, rest)


def outer_only(n_outer: int, members: str, others: str) -> tuple[Stratum, Stratum]:
    """Return the strata if only the number of outer examples is known."""
    return Stratum(members, n_outer, "counted in the training targets"), Stratum(others)


def _with_noun(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1."""
    return f"{count} {noun}{'s' * (count != 1)}"


def check_class_sizes(rows: Tensor | None, labels: Tensor, class_sizes: Tensor | None) -> None:
    """Raise if an example of the batch has two classes, or if a class has more members than in the training data."""
    if rows is None or class_sizes is None or not reads_are_free(rows):
        return
    members, classes = torch.stack([rows, labels.long()]).unique(dim=1)
    twice = members[1:] == members[:-1]
    if bool(twice.any()):
        place = int(twice.nonzero()[0])
        raise ValueError(
            f"each row must have one class; the batch has row {int(members[place])} both in class "
            f"{int(classes[place])} and in class {int(classes[place + 1])}"
        )
    in_batch = classes.bincount(minlength=len(class_sizes))
    excess = in_batch > class_sizes
    if bool(excess.any()):
        label = int(excess.nonzero()[0])
        raise ValueError(
            f"the batch must have at most class_sizes[{label}] = {int(class_sizes[label])} distinct examples of class "
            f"{label}; got {int(in_batch[label])}"
        )
