"""The rows of a table, as a step reads and writes them."""

from __future__ import annotations

from typing import Any

import torch

from fcco._table import InnerTable
from fcco.core.arrays import Array, can_read, cast, column, is_positive, namespace, taken
from fcco.core.rules import Rule, is_per_row
from fcco.core.spaces import Rate
from fcco.core.step import Ranks, Step
from fcco.placement._sharded_table import ShardedTable


class TableRows:
    """One step's view of a table, in the kind of array that the step works on."""

    def __init__(self, table: InnerTable, rule: Rule, init: float | None, n_outer: int, *, numpy: bool) -> None:
        self.table, self.rule, self.n_outer, self.numpy = table, rule, n_outer, numpy
        self.cold = None if init is None else table.space.value(init)
        buffers: dict[str, Any] = table._buffers
        self.buffers = table.views.of(buffers) if numpy else buffers

    def held(self, rows: Array) -> tuple[Array, Array]:
        """Return what rows hold, which means nothing in new ones, and how often they were written, or only whether."""
        values, visits = taken(self.buffers["u"], rows), taken(self.buffers["visits"], rows)
        if self.table.decays:
            since = self.buffers["log_decay"] - taken(self.buffers["log_decay_at_write"], rows)
            values = self.table.space.decay(values, column(since, values))
        return values, visits

    def read(self, rows: Array, first: Array) -> Array:
        """Return what rows hold, and ``first`` where they were never written."""
        values, self.seen = self.held(rows)
        self.first = first
        values = values if values.dtype == first.dtype else cast(values, first)
        if is_positive(self.seen):
            return values
        seen = self.seen > 0
        return namespace(values).where(column(seen, values), values, first if self.cold is None else self.cold)

    def rate(self, rows: Array) -> Rate:
        """Return gamma of this step, or of each row."""
        schedule, table = self.rule.rate, self.table
        if not callable(schedule):
            return schedule
        if not is_per_row(schedule):
            steps = int(table.step) if can_read(table.step) else table.step.to(table.u.dtype)
            return self.rule.check_rate(_single(schedule(steps)))
        visits = torch.as_tensor(cast(self.seen, self.first))
        rates = torch.as_tensor(schedule(visits), device=visits.device).detach().to(visits.dtype).expand_as(visits)
        self.rule.check_rate(rates)
        return column(rates.numpy() if self.numpy else rates, table.u)

    def coverage(self, distinct: Any) -> Rate:
        """Return how many rows there are for each in the batch."""
        return self.n_outer / (distinct.clip(1, None) if hasattr(distinct, "clip") else max(distinct, 1))

    def write(self, step: Step) -> None:
        """Write the rows of a step."""
        table, rows, new, seen = self.table, step.rows, step.new, self.seen
        if not can_read(new):
            table.write(rows, new, step.rate, step.written)
            return
        if step.written is not None:
            rows, new, seen = (part[step.written] for part in (rows, new, seen))
        if not self.numpy or table.decays or new.dtype != self.buffers["u"].dtype:
            table.write(torch.as_tensor(rows), torch.as_tensor(new), step.rate)  # a tensor of it would be less precise
            return
        self.buffers["step"] += 1
        self.buffers["u"][rows] = new
        self.buffers["visits"][rows] = True if seen.dtype == bool else seen + 1


class ShardedRows(TableRows):
    """One step's view of a table of which every process keeps a part: each adds its own rows to what all read."""

    def __init__(self, table: ShardedTable, rule: Rule, init: float | None, n_outer: int, ranks: Ranks) -> None:
        super().__init__(table.block, rule, init, n_outer, numpy=False)
        self.start, self.ranks = table.first, ranks

    def held(self, rows: Array) -> tuple[Array, Array]:
        """Return what rows hold, and their visits, from the processes that keep them."""
        u, visits, here = self.buffers["u"], self.buffers["visits"], self._here(rows)
        values, seen = u.new_zeros(len(rows), *u.shape[1:]), rows.new_zeros(len(rows))
        values[here], some = super().held(rows[here] - self.start)
        seen[here] = some.to(seen.dtype)
        return self.ranks.sum(values), self.ranks.sum(seen).to(visits.dtype)

    def write(self, step: Step) -> None:
        """Write the rows that this process keeps."""
        here = self._here(step.rows)
        here = here if step.written is None else here & step.written
        self.table.write(step.rows[here] - self.start, step.new[here], step.rate)

    def _here(self, rows: Array) -> Array:
        return (rows >= self.start) & (rows < self.start + len(self.buffers["u"]))


class FirstRows:
    """The rows of a batch by itself, which are all new."""

    def read(self, rows: Array, first: Array) -> Array:
        """Return the first estimates."""
        return first

    def rate(self, rows: Array) -> Rate:
        """Return 1."""
        return 1.0

    def coverage(self, distinct: Any) -> Rate:
        """Return 1."""
        return 1.0


def _single(rate: Any) -> Any:
    """Return what a schedule of the step returned; several rates are an error."""
    if isinstance(rate, torch.Tensor) and rate.numel() != 1:
        raise ValueError(
            f"a schedule of the step must return one rate; got a tensor of shape {list(rate.shape)}. A schedule with "
            "the attribute per_row = True gets the number of visits of each row, and returns a rate for each"
        )
    return float(rate) if not isinstance(rate, torch.Tensor) or can_read(rate) else rate.detach()
