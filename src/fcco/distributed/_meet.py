"""Before a step, ranks tell each other what they bring; what follows are the weights, and the way to the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from fcco._rules import Batch
from fcco._space import Rate
from fcco._table import InnerTable
from fcco.distributed._comm import Group, agree, device_of
from fcco.distributed._route import Route, ToAll, ToOwners, by_owner
from fcco.distributed._sharded import ShardedTable

# In the place of a total, which is never negative.
_AS_THEY_ARE = -1.0

_WORKED_OUT = {"step": "worked out"}


class Shares(NamedTuple):
    """Weights up to a factor: those of a batch are share / total, all 0 where the total is.

    The batch may be spread over ranks, whose totals add up. Without a total, shares are the weights as they are.
    """

    share: Tensor
    total: Tensor | None

    def weight(self) -> Tensor:
        """The weights of a batch that is all on this rank."""
        return self.share if self.total is None else self.share / torch.where(self.total > 0, self.total, 1.0)


class LazyBatch(Batch):
    """A batch over ranks: to count its rows takes a message, which is sent for rules that ask."""

    @property
    def coverage(self) -> Rate:
        """As of :class:`fcco.Batch`."""
        return self[3]()  # type: ignore[operator]


def meet(
    group: Group, table: InnerTable, rows: Tensor, shares: Shares, alike: Mapping[str, str], *, all_rows: bool
) -> tuple[Tensor, Route | None]:
    """The weights of this rank's rows in the mean over ranks, and the way to the table (None: it is all here).

    Args:
        group: the ranks.
        table: of the loss, whole or sharded.
        rows: [B1], of this rank.
        shares: of this rank's rows.
        alike: what must be the same on all ranks, by name.
        all_rows: every rank updates all rows, alike.
    """
    total = shares.share.new_tensor(_AS_THEY_ARE) if shares.total is None else shares.total
    numbers = torch.stack([total.double(), total.new_tensor(len(rows), dtype=torch.float64)])
    positions = counts = None
    if isinstance(table, ShardedTable):
        positions, counts = by_owner(rows, shares.share > 0, table.rows_a_rank, group.size)
    lines = agree(group, None, numbers, alike, None if counts is None else counts.double())
    lengths = [int(line[1]) for line in lines]
    if not any(lengths):
        raise ValueError("the batch is empty on all ranks")
    weight = shares.share * (group.size * _factor([line[0] for line in lines if line[1]]))
    if all_rows:
        return weight, None
    if not isinstance(table, ShardedTable) or positions is None or counts is None:
        return weight, ToAll(group, lengths)
    return weight, ToOwners(group, positions, counts.tolist(), [int(line[2]) for line in lines], table.first)


def _factor(totals: list[float]) -> float:
    """By which shares become weights, from the totals of the ranks that have rows."""
    as_they_are = [total == _AS_THEY_ARE for total in totals]
    if any(as_they_are) and not all(as_they_are):
        raise ValueError("some ranks give weights as numbers and others do not")
    total = 1.0 if all(as_they_are) else sum(totals)
    return 1 / total if total > 0 else 0.0


def call_off(group: Group, table: InnerTable, error: Exception) -> None:
    """Raise the error, and tell the ranks that wait in :func:`meet` that there is one."""
    numbers = torch.zeros(2, dtype=torch.float64, device=device_of(group))
    agree(group, error, numbers, {}, numbers.new_zeros(group.size) if isinstance(table, ShardedTable) else None)


@contextmanager
def settled(group: Group) -> Iterator[None]:
    """Work that every rank must have done before any goes on: an error on one of them is raised on all."""
    numbers = torch.zeros(2, dtype=torch.float64, device=device_of(group))
    try:
        yield
    except Exception as error:
        agree(group, error, numbers, _WORKED_OUT)
    agree(group, None, numbers, _WORKED_OUT)
