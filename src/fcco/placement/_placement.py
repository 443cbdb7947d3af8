"""Where the rows of a table live, and how the processes that share them take a step together.

A placement is made anew for every step. It owns everything about the other processes: gathering their examples,
agreeing on the weights, sending rows to where they are kept, refusing a step on all ranks, and writing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from fcco._outer import Shares
from fcco._table import InnerTable
from fcco.core.spaces import Rate
from fcco.placement._messages import (
    Group,
    Layout,
    agree,
    all_gather,
    all_to_all,
    current_group,
    device_of,
    gather_batch,
)
from fcco.placement._sharded_table import ShardedTable

Settings = Mapping[str, str]

# Stands for "no total" in a message; a total is never negative.
_NO_TOTAL = -1.0

_WORKED_OUT = {"step": "worked out"}

_NOTHING = nullcontext()


class Change(NamedTuple):
    """Rows of the table to update, and the estimates that they meet."""

    rows: Tensor | None
    """[B1], positions among the rows that this process keeps; None: all of them."""
    where: Tensor | None
    """[B1] of bool, False for padding; None: there is none."""
    estimate: Tensor
    previous: Tensor | None


class Placement(ABC):
    """One step's way to the table and back.

    Attributes
    ----------
    table : InnerTable
        The rows that this process keeps.
    alone : bool
        Whether the step concerns no other process. If it does, this process may have no part in the batch.
    parts : int
        Number of processes that share the step. Gradients are averaged over them.
    """

    alone: bool = False
    parts: int = 1
    rank: int = 0
    lengths: Sequence[int] = ()
    """How many of the rows that :meth:`send` returns come from each process, if there are others."""
    start: int = 0  # where this process's examples begin among those of all, after they were gathered

    def __init__(self, table: InnerTable) -> None:
        self.table = table

    @abstractmethod
    def gather(self, columns: Sequence[Any], settings: Settings) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return this process's examples and, after them, those of all others (None: there are none)."""

    def in_order(self, own: Sequence[Any], others: Sequence[Any] | None) -> Sequence[Any]:
        """Return what :meth:`gather` has returned in two parts as one, in the same order on each process."""
        if others is None:
            return own
        start = self.start
        return [torch.cat([its[:start], mine, its[start:]]) for mine, its in zip(own, others, strict=True)]

    @abstractmethod
    def gather_all(self, columns: Sequence[Any], settings: Settings) -> Sequence[Any]:
        """Return the examples of all processes, in the same order on each."""

    @abstractmethod
    def average(self, inner: Any, settings: Settings) -> Any:
        """Return the mean over processes of estimates that each has of all rows."""

    @abstractmethod
    def once(self, *columns: Tensor) -> Sequence[Tensor]:
        """Keep rows that all processes have alike on one of them; the others are left with none."""

    @abstractmethod
    def refuse(self, error: Exception) -> NoReturn:
        """Raise the error here, and an error in every process that waits for this one."""

    @abstractmethod
    def begin(self, rows: Tensor, shares: Shares | None, settings: Settings, *, all_rows: bool) -> Tensor | None:
        """Agree on the step; return the weight of each row's f in the loss (None: the mean)."""

    @abstractmethod
    def send(self, change: Change) -> Change:
        """Return what this process has to update: of its own batch, and of the others'."""

    @abstractmethod
    def give_back(self, made: list[Tensor], own: Tensor) -> list[Tensor]:
        """Return what became of this process's batch; ``own`` where a position was not sent."""

    @abstractmethod
    def count(self, distinct: Rate) -> Rate:
        """Return the number of rows that all processes update, from the number that this one does."""

    @abstractmethod
    def all_or_none(self) -> AbstractContextManager[None]:
        """Guard work that every process must have done before any of them writes."""

    def full_table(self) -> InnerTable:
        """Return the whole table; all processes call this together."""
        return self.table


class Local(Placement):
    """The whole table is in this process, which takes its steps by itself."""

    alone = True

    def gather(self, columns: Sequence[Any], settings: Settings) -> tuple[Sequence[Any], Sequence[Any] | None]:
        return columns, None

    def gather_all(self, columns: Sequence[Any], settings: Settings) -> Sequence[Any]:
        return columns

    def average(self, inner: Any, settings: Settings) -> Any:
        return inner

    def once(self, *columns: Tensor) -> Sequence[Tensor]:
        return columns

    def refuse(self, error: Exception) -> NoReturn:
        raise error

    def begin(self, rows: Tensor, shares: Shares | None, settings: Settings, *, all_rows: bool) -> Tensor | None:
        return None if shares is None else shares.weight()

    def send(self, change: Change) -> Change:
        return change

    def give_back(self, made: list[Tensor], own: Tensor) -> list[Tensor]:
        return made

    def count(self, distinct: Rate) -> Rate:
        return distinct

    def all_or_none(self) -> AbstractContextManager[None]:
        return _NOTHING


class _Together(Placement):
    """What replicated and sharded tables have in common: a group of ranks, and their agreement."""

    def __init__(self, table: InnerTable, group: Group, layout: Layout) -> None:
        super().__init__(table)
        self.group, self.layout = group, layout
        self.parts, self.rank = group.size, group.rank

    def gather(self, columns: Sequence[Any], settings: Settings) -> tuple[Sequence[Any], Sequence[Any] | None]:
        if not self.layout.gather:
            return columns, None
        every, own = gather_batch(self.group, columns, settings)
        self.start = own.start
        others = [torch.cat([column[: own.start], column[own.stop :]]) for column in every]
        return [column[own] for column in every], others

    def gather_all(self, columns: Sequence[Any], settings: Settings) -> Sequence[Any]:
        return gather_batch(self.group, columns, settings)[0]

    def average(self, inner: Any, settings: Settings) -> Any:
        one = inner.unsqueeze(0) if isinstance(inner, Tensor) else inner
        return gather_batch(self.group, [one], settings)[0][0].mean(0)

    def once(self, *columns: Tensor) -> Sequence[Tensor]:
        return columns if self.group.rank == 0 else [column[:0] for column in columns]

    def refuse(self, error: Exception) -> NoReturn:
        numbers = torch.zeros(2, dtype=torch.float64, device=device_of(self.group))
        agree(self.group, error, numbers, {}, self._nothing_for_each(numbers))
        raise error

    def begin(self, rows: Tensor, shares: Shares | None, settings: Settings, *, all_rows: bool) -> Tensor | None:
        assert shares is not None
        total = shares.share.new_tensor(_NO_TOTAL) if shares.total is None else shares.total
        numbers = torch.stack([total.double(), total.new_tensor(len(rows), dtype=torch.float64)])
        lines = agree(self.group, None, numbers, settings, self._counts(rows, shares))
        self.lengths = [int(line[1]) for line in lines]
        if not any(self.lengths):
            raise ValueError("the batch is empty on all ranks")
        self._plan(lines, all_rows)
        return shares.share * (self.group.size * _factor([line[0] for line in lines if line[1]]))

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        numbers = torch.zeros(2, dtype=torch.float64, device=device_of(self.group))
        try:
            yield
        except Exception as error:
            agree(self.group, error, numbers, _WORKED_OUT)
        agree(self.group, None, numbers, _WORKED_OUT)

    def _counts(self, rows: Tensor, shares: Shares) -> Tensor | None:
        """[ranks], one more number to tell each rank by itself."""
        return None

    def _nothing_for_each(self, like: Tensor) -> Tensor | None:
        """What :meth:`_counts` is on a rank that refuses its batch."""
        return None

    def _plan(self, lines: list[list[float]], all_rows: bool) -> None:
        """Take note of what the other ranks have told."""


class Replicated(_Together):
    """Every rank keeps the whole table, and makes the same update."""

    def _plan(self, lines: list[list[float]], all_rows: bool) -> None:
        self.same_on_all = all_rows

    def send(self, change: Change) -> Change:
        if not self.same_on_all:
            every = iter(all_gather(self.group, [part for part in change if part is not None], self.lengths))
            change = Change(*(None if part is None else next(every) for part in change))  # type: ignore[arg-type]
        return change

    def give_back(self, made: list[Tensor], own: Tensor) -> list[Tensor]:
        part = slice(None) if self.same_on_all else self.group.span(self.lengths)
        return [values[part] for values in made]

    def count(self, distinct: Rate) -> Rate:
        return distinct


class Sharded(_Together):
    """Every rank keeps a block of rows. A row is sent to the rank that keeps it, and what it becomes is sent back.

    Padding is not sent.
    """

    def __init__(self, table: ShardedTable, group: Group, layout: Layout) -> None:
        super().__init__(table.block, group, layout)
        self.sharded = table

    def full_table(self) -> InnerTable:
        return self.sharded.full()

    def _counts(self, rows: Tensor, shares: Shares) -> Tensor | None:
        self.positions, counts = _by_owner(rows, shares.share > 0, self.sharded.rows_a_rank, self.group.size)
        self.to: list[int] = counts.tolist()
        return counts.double()

    def _nothing_for_each(self, like: Tensor) -> Tensor | None:
        return like.new_zeros(self.group.size)

    def _plan(self, lines: list[list[float]], all_rows: bool) -> None:
        self.lengths = [int(line[2]) for line in lines]

    def send(self, change: Change) -> Change:
        parts = [part for part in (change.rows, change.estimate, change.previous) if part is not None]
        rows, *estimates = all_to_all(self.group, [part[self.positions] for part in parts], self.to, self.lengths)
        previous = None if change.previous is None else estimates[1]
        return Change(rows - self.sharded.first, None, estimates[0], previous)

    def give_back(self, made: list[Tensor], own: Tensor) -> list[Tensor]:
        returned = all_to_all(self.group, made, self.lengths, self.to)
        return [own.index_copy(0, self.positions, values) for values in returned]

    def count(self, distinct: Rate) -> Rate:
        total = torch.as_tensor(distinct).to(device_of(self.group), copy=True)
        dist.all_reduce(total, group=self.group.handle)
        return total.to(self.table.u.device)


def place(table: InnerTable | ShardedTable, layout: Layout) -> Placement:
    """Return the placement of one step, which depends on the process group there is at this moment."""
    group = current_group(layout)
    if isinstance(table, ShardedTable):
        if group is None:
            table.block  # noqa: B018 (raises: the ranks that the table is sharded over are gone)
        assert group is not None
        return Sharded(table, group, layout)
    return Local(table) if group is None else Replicated(table, group, layout)


def _factor(totals: list[float]) -> float:
    """Return the factor that turns shares into weights, from the totals of the ranks that have rows."""
    without = [total == _NO_TOTAL for total in totals]
    if any(without) and not all(without):
        raise ValueError("some ranks give weights as numbers and others do not")
    total = 1.0 if all(without) else sum(totals)
    return 1 / total if total > 0 else 0.0


def _by_owner(rows: Tensor, where: Tensor, rows_a_rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    """Return the positions that count, ordered by the rank that keeps their row, and how many each rank keeps."""
    owner = rows.div(rows_a_rank, rounding_mode="floor").masked_fill(~where, ranks)
    order = owner.argsort(stable=True)
    counts = owner.bincount(minlength=ranks)[:ranks]
    return order[: int(counts.sum())], counts
