"""A step with a memory: what is estimated from fresh and remembered examples, and which gradient that gives.

With the strength "virtual", the gradient has two sides, each of which is unbiased at fixed weights, given the u_i:

- the *own side*: fresh outer examples, compared with everyone in the pool, who are constants;
- the *rival side*: remembered outer examples, which are constants, compared with the fresh examples.

f of a remembered example is differentiated at its u, a moving average that every batch refreshes. The batch's part in
it is the batch's part in the pool, and its estimate of g costs nothing, because the rival side needs it anyway. With
the u that they had when they were fresh, training may be worse than without a memory: the fresh examples have moved on,
and the ratio of their part in g to an old u has no bound.

Together they are the gradient of a batch as large as the pool, of which only the fresh part has a graph. All sums over
fresh examples are divided by the *expected* number of them. Divided by the number that there happens to be, a batch
without a member of a rare class would count for nothing, and the others not for more.

With the strength "estimate", the gradient is that of the fresh batch, at better estimates of g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fcco._memory import Fresh, Recalled
from fcco._outer import Outer, Shares, total
from fcco._pool import Estimate, EstimateFrom, Pool, Recall
from fcco._space import as_column
from fcco._step import split_estimate

if TYPE_CHECKING:
    from fcco._coupled import CoupledLoss
    from fcco.placement import Placement


class Others(NamedTuple):
    """The batches of the other ranks."""

    columns: Sequence[Tensor]
    rows: Tensor | None
    stratum: Tensor | None


class GivenBatch(NamedTuple):
    """The batch of this process, as the loss was called with it."""

    columns: Sequence[Any]
    index: Any
    stratum: Tensor | None
    name: str
    gather: bool
    check: Callable[[Pool], None] | None

    def gathered(self, placement: Placement, settings: Any) -> tuple[GivenBatch, Others | None]:
        """Return this batch and those of the other ranks, which are gathered in one message."""
        known = [part for part in (self.index, self.stratum) if part is not None]
        own, others = placement.gather((*self.columns, *known), settings)
        count = len(self.columns)
        index, stratum = self._apart(own[count:])
        batch = self._replace(columns=own[:count], index=index, stratum=stratum)
        return batch, None if others is None else Others(others[:count], *self._apart(others[count:]))

    def _apart(self, known: Sequence[Any]) -> tuple[Any, Any]:
        """Return the index and the stratum, where there are any."""
        rest = iter(known)
        return tuple(None if part is None else next(rest) for part in (self.index, self.stratum))  # type: ignore[return-value]


class Made(NamedTuple):
    """The estimates of a step."""

    inner: Tensor
    rows: Any
    shares: Shares | None
    tracked: Tensor | None = None
    """What the rows of the table meet, if not ``inner``."""
    kept: tuple[Fresh, Recalled | None, Tensor] | None = None
    """What is to be remembered of this step, if it succeeds."""
    own_factor: Tensor | None = None
    rival_side: Tensor | None = None

    def balance(self, loss: Tensor) -> Tensor:
        """Return a loss with the same value and the gradient of both sides."""
        if self.rival_side is None or self.own_factor is None:
            return loss
        value = loss.detach()
        return value + (loss - value) * self.own_factor + (self.rival_side - self.rival_side.detach())


class RememberingStep:
    """The estimates of one step with a memory.

    Attributes
    ----------
    pool : Pool
        The fresh examples: this process's own, and those of other ranks.
    fresh : list of Tensor
        The columns of all fresh examples in the order of the ranks. Only this process's own ones have a graph.
    every : list of Tensor
        The same without a graph.
    recalled : Recalled or None
        What is remembered; None in the first step.
    """

    def __init__(
        self, coupled: CoupledLoss, placement: Placement, batch: GivenBatch, others: Others | None, pool: Pool
    ) -> None:
        memory = coupled.memory
        assert memory is not None
        assert pool.rows is not None
        self.coupled, self.memory, self.placement = coupled, memory, placement
        self.batch, self.pool, self.has_rows = batch, pool, batch.index is not None
        self.own_rows, self.own_count = pool.rows[: len(batch.columns[0])], len(batch.columns[0])
        others_of = None
        if others is not None:
            others_of = [*(column.detach() for column in others.columns), pool.rows[self.own_count :]]
        *self.fresh, self.rows = placement.in_order([*batch.columns, self.own_rows], others_of)
        self.every = [column.detach() for column in self.fresh]
        self.stratum, self.is_gathered = batch.stratum, others is not None
        if batch.stratum is not None and others is not None:
            (self.stratum,) = placement.in_order([batch.stratum], [others.stratum])
        self.recalled = memory.recall(self.rows if self.has_rows else None)

    def make(self, estimate: EstimateFrom, f: Outer) -> Made:
        """Return the estimates. An error here leaves all state as it was."""
        virtual = self.memory.options.strength == "virtual" and self.recalled is not None
        made = self._virtual(estimate, f) if virtual else self._estimated(estimate)
        if self.batch.check is not None:
            self.batch.check(self.pool)
        return made

    def _estimated(self, estimate: EstimateFrom) -> Made:
        """Return the estimates of the fresh batch, and better ones to track."""
        inner, shares = split_estimate(estimate(self.pool))
        with torch.no_grad():
            every = as_estimate(estimate(self._everyone()))
        part = slice(self.placement.start, self.placement.start + self.own_count)
        known = as_column(every.share[part] > 0, inner)
        tracked = torch.where(known, every.inner[part], inner.detach())
        return Made(inner, self.own_rows, shares, tracked, self._kept(every))

    def _virtual(self, estimate: EstimateFrom, f: Outer) -> Made:
        """Return the estimates of both sides."""
        recalled = self.recalled
        assert recalled is not None
        rivals = [torch.cat([fresh, old]) for fresh, old in zip(self.every, recalled.columns, strict=True)]
        present = torch.cat([recalled.present.new_ones(self.own_count + len(self.rows)), recalled.present])
        rows = torch.cat([self.own_rows, self.rows, self._rows_of(recalled)])
        made = estimate(Pool(self.batch.columns, rivals, rows, True, Recall(present, apart=True)))
        inner, shares = split_estimate(made)
        if self.placement.alone:
            every = as_estimate(made)
        else:
            with torch.no_grad():
                every = as_estimate(estimate(self._everyone()))
        fresh, _, expected = self._kept(every)
        # The weights of the batch divide by the total that there is.
        own_factor = torch.where(expected[-1] > 0, every.total / expected[-1], 1.0).to(inner.dtype)
        side, refreshed = self._rival_side(estimate, f, expected[:-1])
        return Made(inner, self.own_rows, shares, None, (fresh, refreshed, expected), own_factor, side)

    def _rival_side(self, estimate: EstimateFrom, f: Outer, expected: Tensor) -> tuple[Tensor, Recalled]:
        """Return the loss of remembered outer examples as a function of the fresh ones, and their refreshed u."""
        recalled, space = self.recalled, self.coupled.table.space
        assert recalled is not None
        count, held = len(self.rows), self.memory.held(recalled, self.stratum, self.rows)
        present = torch.cat([recalled.present, recalled.present.new_ones(count)])
        rows = torch.cat([self._rows_of(recalled), self.rows])
        pool = Pool(recalled.columns, self.fresh, rows, True, Recall(present, True, expected, held))
        contributed = as_estimate(estimate(pool))
        inner, share = contributed.inner, recalled.share * (contributed.share > 0)
        weight = (share / torch.where(share.sum() > 0, share.sum(), 1.0)).to(inner.dtype)
        rate = (count / (count + recalled.present.sum())).to(inner.dtype)
        refreshed = space.mix(recalled.at.to(inner.dtype), inner.detach(), rate)
        at = torch.where(as_column(weight > 0, inner), refreshed, recalled.at.to(inner.dtype))
        carrier = space.carry(inner, at)
        carrier = torch.where(as_column(weight > 0, carrier), carrier, carrier.detach())
        side = total(f(carrier, recalled.rows.clamp(min=0)), weight)
        # Gradients are averaged over ranks. If they share a memory, each has the side of its own fresh examples only.
        return side * self.placement.parts if self.is_gathered else side, recalled._replace(at=at)

    def _everyone(self) -> Pool:
        """Return the pool of all fresh examples, as own ones, with what is remembered."""
        recalled = self.recalled
        if recalled is None:
            return Pool(self.every, None, self.rows)
        present = torch.cat([recalled.present.new_ones(len(self.rows)), recalled.present])
        rows = torch.cat([self.rows, self._rows_of(recalled)])
        return Pool(self.every, recalled.columns, rows, True, Recall(present))

    def _rows_of(self, recalled: Recalled) -> Tensor:
        """Return the rows of what is remembered; those of empty places, or unknown ones, are like no other."""
        places = torch.arange(len(recalled.rows), device=recalled.rows.device)
        return torch.where(recalled.present & (recalled.rows >= 0), recalled.rows, -1 - places)

    def _kept(self, every: Estimate) -> tuple[Fresh, Recalled | None, Tensor]:
        """Return what is to be remembered of this step."""
        rows = self.rows if self.has_rows else None
        fresh = Fresh(self.every, rows, self.stratum, every.inner.detach(), every.share.detach())
        expected = self.memory.expect(self.stratum, self.rows, every.total.detach())
        return fresh, self.recalled, expected


def as_estimate(made: Estimate | Tensor) -> Estimate:
    """Return inner values as an estimate in which all examples count alike."""
    if isinstance(made, Estimate):
        return made
    share = torch.ones_like(made[:, 0] if made.dim() == 2 else made)
    return Estimate(made, share, share.sum())
