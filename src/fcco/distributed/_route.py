"""How the rows of a batch get to where the table is, and what becomes of them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from fcco.distributed._comm import Group, all_gather, all_to_all, device_of


class Held(NamedTuple):
    """What a rank updates: positions in the table that it has (None: all of them), and estimates for each."""

    rows: Tensor | None
    where: Tensor | None
    estimate: Tensor
    previous: Tensor | None

    def to(self, device: torch.device) -> Held:
        """The same on another device."""
        return Held(*(None if part is None else part.to(device) for part in self))  # type: ignore[arg-type]


class Route(Protocol):
    """The way of a step's rows: there, and back."""

    def send(self, own: Held) -> Held:
        """What this rank updates, of its own batch and of the others'."""
        ...

    def back(self, made: list[Tensor], own: Tensor) -> list[Tensor]:
        """What was made of this rank's batch; ``own`` where a position was not sent."""
        ...

    def over_all(self, distinct: Tensor) -> Tensor:
        """How many rows all ranks update, from how many this one does."""
        ...


class ToAll:
    """Every rank has the whole table, and does the same update."""

    def __init__(self, group: Group, lengths: Sequence[int]) -> None:
        self.group, self.lengths = group, lengths

    def send(self, own: Held) -> Held:
        """The batches of all ranks."""
        every = iter(all_gather(self.group, [part for part in own if part is not None], self.lengths))
        return Held(*(None if part is None else next(every) for part in own))  # type: ignore[arg-type]

    def back(self, made: list[Tensor], own: Tensor) -> list[Tensor]:
        """This rank's part of what all have worked out."""
        return [values[self.group.span(self.lengths)] for values in made]

    def over_all(self, distinct: Tensor) -> Tensor:
        """As it is: every rank updates the same rows."""
        return distinct


class ToOwners:
    """A row is sent to the rank that has it, and what it becomes is sent back; padding stays where it is.

    ``positions`` are those of the batch that are sent, in the order of their owners; ``to`` and ``of`` say how many go
    to each rank and come from it; ``first`` is the first row that this rank has.
    """

    def __init__(self, group: Group, positions: Tensor, to: Sequence[int], of: Sequence[int], first: int) -> None:
        self.group, self.positions, self.to, self.of, self.first = group, positions, to, of, first

    def send(self, own: Held) -> Held:
        """The rows of all batches that this rank has, the first one's first."""
        parts = [part for part in (own.rows, own.estimate, own.previous) if part is not None]
        rows, *estimates = all_to_all(self.group, [part[self.positions] for part in parts], self.to, self.of)
        return Held(rows - self.first, None, estimates[0], estimates[1] if own.previous is not None else None)

    def back(self, made: list[Tensor], own: Tensor) -> list[Tensor]:
        """What the owners have made of this rank's batch."""
        returned = all_to_all(self.group, made, self.of, self.to)
        return [own.index_copy(0, self.positions, values) for values in returned]

    def over_all(self, distinct: Tensor) -> Tensor:
        """The sum over ranks, which update rows of their own each."""
        total = distinct.to(device_of(self.group), copy=True)
        dist.all_reduce(total, group=self.group.handle)
        return total.to(distinct.device)


def by_owner(rows: Tensor, where: Tensor | None, rows_a_rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    """Positions of the rows that count, in the order of the ranks that have them, and how many each rank has."""
    owner = rows.div(rows_a_rank, rounding_mode="floor")
    if where is not None:
        owner = owner.masked_fill(~where, ranks)
    order = owner.argsort(stable=True)
    counts = owner.bincount(minlength=ranks)[:ranks]
    return order[: int(counts.sum())], counts
