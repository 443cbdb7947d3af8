"""A step with a memory: what is estimated from fresh and remembered examples, and which gradient that gives.

With the strength "virtual", the gradient has two sides, each of which is unbiased at fixed weights, given the u_i:

- the *own side*: fresh outer examples, compared with everyone in the pool, who are constants;
- the *rival side*: remembered outer examples, which are constants, compared with the fresh examples.

f of a remembered example is differentiated at its u, a moving average that every batch refreshes. The batch's part in
it is the batch's part in the pool, and its estimate of g costs nothing, because the rival side needs it anyway. With
the u that they had when they were fresh, training may be worse than without a memory: the fresh examples have moved on,
and the ratio of their part in g to an old u has no bound. For the same reason, if an estimate says from how many fresh
examples m it is made, as Cox's does, the gradient treats it as at most 1 + 8 (1 / sqrt(m) + 1 / m) times u.

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

from fcco._checks import check_inner, reads_are_free
from fcco._guard import EVERY, after_check
from fcco._memory import Fresh, Recalled
from fcco._outer import Outer, Shares, total
from fcco._pool import Estimate, EstimateFrom, Pool, Recall
from fcco._step import split_estimate
from fcco.core.spaces import as_column

TRUST = 8.0
"""A single example with a huge output must not undo what has been learned; see also BaselineCoxLoss."""

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

    def check_pool(self, pool: Pool) -> None:
        """Raise if the fresh examples contradict what is known. Without an index, two of them may be the same."""
        if self.check is not None:
            self.check(pool if self.index is not None else pool._replace(rows=None))

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
    kept: tuple[Fresh, Recalled | None, Tensor, Tensor | None] | None = None
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
        self, coupled: CoupledLoss, placement: Placement, batch: GivenBatch, others: Others | None, pool: Pool, own: Any
    ) -> None:
        memory = coupled.memory
        assert memory is not None
        self.coupled, self.memory, self.placement = coupled, memory, placement
        self.batch, self.pool, self.has_rows, self.given_rows = batch, pool, batch.index is not None, own
        self.is_gathered, self.stratum = others is not None, batch.stratum
        self.recalled: Recalled | None = None
        self.problem = _why_not(pool, lambda: memory.check(batch.columns, batch.stratum))
        if self.problem is not None:
            return
        assert pool.rows is not None
        self.own_rows, self.own_count = pool.rows[: len(batch.columns[0])], len(batch.columns[0])
        others_of = None
        if others is not None:
            others_of = [*(column.detach() for column in others.columns), pool.rows[self.own_count :]]
        *self.fresh, self.rows = placement.in_order([*batch.columns, self.own_rows], others_of)
        self.every = [column.detach() for column in self.fresh]
        if batch.stratum is not None and others is not None:
            (self.stratum,) = placement.in_order([batch.stratum], [others.stratum])
        self.recalled = memory.recall(self.rows if self.has_rows else None)

    def make(self, estimate: EstimateFrom, f: Outer) -> Made:
        """Return the estimates. An error here leaves all state as it was."""
        if self.problem is not None:
            estimate(self.pool)  # which may have a better reason to refuse the batch
            raise self.problem
        if self.recalled is not None and self._is_of_another_kind(self.recalled):
            with torch.no_grad():
                estimate(self.pool)  # joined with floating outputs, integers would pass for such
        if self.recalled is not None and not self.coupled.estimates_read_recall:
            self._check_estimate(estimate, self.recalled)
        made = self._virtual(estimate, f) if self._is_virtual() else self._of_batch(estimate)
        if self._is_check_due():
            assert made.kept is not None
            made = made._replace(kept=(*made.kept[:3], self._checked(estimate, f, made.kept[2])))
        self.batch.check_pool(self.pool)
        return made

    def _is_of_another_kind(self, recalled: Recalled) -> bool:
        """Return whether a column holds integers where floating numbers are remembered, or the other way round."""
        pairs = zip(self.every, recalled.columns, strict=True)
        return any(new.is_floating_point() != old.is_floating_point() for new, old in pairs)

    def _is_virtual(self) -> bool:
        """Return whether the gradient has two sides."""
        if self.memory.options.strength != "virtual" or self.recalled is None:
            return False
        usable = self.memory.is_usable(self.recalled)
        return not reads_are_free(usable) or bool(usable)

    def _of_batch(self, estimate: EstimateFrom) -> Made:
        """Return the estimates of the fresh batch and, with the strength "estimate", better ones to track."""
        inner, shares = self._split_of_batch(estimate)
        with torch.no_grad():
            every = self._as_estimate(estimate(self._everyone()))
        tracked = None
        if self.memory.options.strength == "estimate":
            part = slice(self.placement.start, self.placement.start + self.own_count)
            known = as_column(every.share[part] > 0, inner)
            tracked = torch.where(known, every.inner[part], inner.detach())
        return Made(inner, self.given_rows, shares, tracked, self._kept(every))

    def _is_check_due(self) -> bool:
        """Return whether the guard has to look at this step."""
        memory, recalled = self.memory, self.recalled
        if recalled is None or memory.options.strength != "virtual" or not memory.is_guarded:
            return False
        if not reads_are_free(memory.step) or int(memory.step) % EVERY:
            return False
        return bool(recalled.share.any())

    def _checked(self, estimate: EstimateFrom, f: Outer, expected: Tensor) -> Tensor:
        """Return the state of the guard after a look at this step, which is the same on all ranks."""
        recalled = self.recalled
        assert recalled is not None
        vectors = [k for k, c in enumerate(self.every) if c.is_floating_point() and c.dim() == 2]
        with torch.enable_grad():
            fresh = [c.clone().requires_grad_() if k in vectors else c for k, c in enumerate(self.every)]
            # Both sides of what is remembered, without the comparison of fresh examples with each other.
            rows = torch.cat([self.rows, self._rows_of(recalled)])
            present = torch.cat([recalled.present.new_ones(len(self.rows)), recalled.present])
            pool = Pool(fresh, recalled.columns, rows, True, Recall(present, apart=True))
            own = self._as_estimate(estimate(pool))
            carrier = self.placement.table.space.carry(own.inner, own.inner.detach())
            side, _ = self._rival_side(estimate, f, expected[:-1].to(own.inner.dtype), fresh)
            loss = total(f(carrier, self.rows.clamp(max=self.coupled.n - 1)), own.weight) + side
            gradients = torch.autograd.grad(loss, [fresh[k] for k in vectors])
        remembered = [recalled.columns[k][recalled.present] for k in vectors]
        return after_check(self.memory.guard, gradients, [self.every[k] for k in vectors], remembered)

    def _virtual(self, estimate: EstimateFrom, f: Outer) -> Made:
        """Return the estimates of both sides."""
        recalled, pool = self.recalled, self.pool
        assert recalled is not None
        assert pool.rows is not None
        # This process's own examples come first, as they do among the own ones.
        fresh = [column.detach() for column in pool.joined()]
        rivals = [torch.cat([new, old]) for new, old in zip(fresh, recalled.columns, strict=True)]
        present = torch.cat([recalled.present.new_ones(self.own_count + len(self.rows)), recalled.present])
        rows = torch.cat([self.own_rows, pool.rows, self._rows_of(recalled)])
        own = estimate(Pool(self.batch.columns, rivals, rows, True, Recall(present, apart=True)))
        inner, shares = self._split(own)
        if self.placement.alone:
            every = self._as_estimate(own)
        else:
            with torch.no_grad():
                every = self._as_estimate(estimate(self._everyone()))
        kept, _, expected, _ = self._kept(every)
        mean_total = torch.where(expected[-1] > 0, expected[-1], every.total).to(inner.dtype)
        if self.is_gathered or self.placement.alone:
            # The weights of the batch divide by the total that there is.
            own_factor = torch.where(mean_total > 0, every.total / mean_total, 1.0)
        else:
            own_factor, shares = torch.ones_like(mean_total), self._of_own_mean(every.share, mean_total)
        side, refreshed = self._rival_side(estimate, f, expected[:-1].to(inner.dtype))
        if self.is_gathered:
            # Gradients are averaged over ranks, and each has the side of its own fresh examples only.
            side = side * self.placement.parts
        made = Made(inner, self.given_rows, shares, None, (kept, refreshed, expected, None), own_factor, side)
        return made if reads_are_free(inner) else self._or_of_batch(made, estimate)

    def _or_of_batch(self, virtual: Made, estimate: EstimateFrom) -> Made:
        """Return the estimates of the batch by itself if the memory is not usable, without looking whether it is."""
        assert self.recalled is not None
        assert virtual.own_factor is not None
        assert virtual.rival_side is not None
        usable = self.memory.is_usable(self.recalled)
        batch_inner, batch_shares = self._split_of_batch(estimate)
        inner = torch.where(usable, virtual.inner, batch_inner)
        shares = virtual.shares
        if shares is not None and batch_shares is not None:
            parts = zip(shares, batch_shares, strict=True)
            shares = Shares(*(None if one is None else torch.where(usable, one, other) for one, other in parts))  # type: ignore[arg-type]
        factor = torch.where(usable, virtual.own_factor, 1.0)
        side = torch.where(usable, virtual.rival_side, virtual.rival_side.detach())
        assert virtual.kept is not None
        fresh, refreshed, expected, guard = virtual.kept
        assert refreshed is not None
        at = torch.where(usable, refreshed.at, self.recalled.at.to(refreshed.at.dtype))
        kept = (fresh, refreshed._replace(at=at), expected, guard)
        return virtual._replace(inner=inner, shares=shares, kept=kept, own_factor=factor, rival_side=side)

    def _split_of_batch(self, estimate: EstimateFrom) -> tuple[Tensor, Shares | None]:
        """Return the inner values of the fresh batch by itself, and their shares."""
        made = estimate(self.pool)
        inner, shares = self._split(made)
        if self.is_gathered or self.placement.alone or self.memory.options.strength == "estimate":
            return inner, shares
        known = self._as_estimate(made)
        return inner, self._of_own_mean(known.share, known.total)

    def _of_own_mean(self, share: Tensor, mean_total: Tensor) -> Shares:
        """Return the weights on one of several ranks that have memories, and means, of their own."""
        return Shares(share / torch.where(mean_total > 0, mean_total * self.placement.parts, 1.0), None)

    def _rival_side(
        self, estimate: EstimateFrom, f: Outer, expected: Tensor, fresh: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, Recalled]:
        """Return the loss of remembered outer examples as a function of the fresh ones, and their refreshed u."""
        fresh = self.fresh if fresh is None else fresh
        recalled, space = self.recalled, self.placement.table.space
        assert recalled is not None
        count, held = len(self.rows), self.memory.held(recalled, self.stratum, self.rows).to(expected.dtype)
        present = torch.cat([recalled.present, recalled.present.new_ones(count)])
        rows = torch.cat([self._rows_of(recalled), self.rows])
        pool = Pool(recalled.columns, fresh, rows, True, Recall(present, True, expected, held))
        contributed = self._as_estimate(estimate(pool))
        inner, share = contributed.inner, recalled.share * (contributed.share > 0)
        weight = (share / torch.where(share.sum() > 0, share.sum(), 1.0)).to(inner.dtype)
        at = recalled.at.to(inner.dtype)
        if self.memory.options.refresh:
            rate = count / (count + recalled.present.sum().to(inner.dtype))
            at = torch.where(as_column(weight > 0, inner), space.mix(at, inner.detach(), rate), at)
            recalled = recalled._replace(at=at)
            if contributed.rivals is not None:
                at = space.floor(at, inner.detach(), as_column(least_share(contributed.rivals.to(inner.dtype)), inner))
        else:  # g / u must be a number where u was 0
            at = space.floor(at, inner.detach(), torch.finfo(torch.float32).tiny)
        carrier = space.carry(inner, at)
        carrier = torch.where(as_column(weight > 0, carrier), carrier, carrier.detach())
        rows = recalled.rows.clamp(min=0)
        values = f(carrier, rows)
        side = total(values, weight)
        if self.coupled.if_too_large:
            self.coupled.check_value(values, side, rows, weight)
        return side, recalled

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
        known = recalled.present & (recalled.rows >= 0) if self.has_rows else torch.zeros_like(recalled.present)
        return torch.where(known, recalled.rows, -1 - places)

    def _kept(self, every: Estimate) -> tuple[Fresh, Recalled | None, Tensor, Tensor | None]:
        """Return what is to be remembered of this step."""
        rows = self.rows if self.has_rows else None
        fresh = Fresh(self.every, rows, self.stratum, every.inner.detach(), every.share.detach())
        expected = self.memory.expect(self.stratum, self.rows, every.total.detach())
        return fresh, self.recalled, expected, None

    def _split(self, made: Estimate | Tensor) -> tuple[Tensor, Shares | None]:
        """Return the inner values of an estimate, in the shape that the memory has, and their shares."""
        inner, shares = split_estimate(made)
        return (inner if self.own_count == 0 else check_inner(inner, self.coupled.dim)), shares

    def _as_estimate(self, made: Estimate | Tensor) -> Estimate:
        """Return inner values as an estimate in which all examples count alike."""
        if isinstance(made, Estimate):
            return made._replace(inner=check_inner(made.inner, self.coupled.dim))
        inner = check_inner(made, self.coupled.dim)
        share = torch.ones_like(inner if inner.dim() == 1 else inner[:, 0])
        return Estimate(inner, share, share.sum())

    def _check_estimate(self, estimate: EstimateFrom, recalled: Recalled) -> None:
        """Raise if an estimate does not read ``pool.recall``. This is done once, where values can be read."""
        if not reads_are_free(recalled.present) or not recalled.present.any():
            return
        # One more example counts as forgotten, so that there is one even in a full memory.
        present = recalled.present.clone()
        present[int(present.nonzero()[0])] = False
        everyone = self._everyone()
        assert everyone.rivals is not None
        assert everyone.rows is not None
        count = len(self.rows)
        there = torch.cat([present.new_ones(count), present])
        few = Pool(self.every, [column[present] for column in everyone.rivals], everyone.rows[there])
        many = everyone._replace(recall=Recall(there))
        apart = Pool(
            self.every,
            [torch.cat([fresh, old]) for fresh, old in zip(self.every, everyone.rivals, strict=True)],
            torch.cat([self.rows, everyone.rows]),
            recall=Recall(torch.cat([there[:count], there]), apart=True),
        )
        with torch.no_grad():
            wanted, again = (self._as_estimate(estimate(few)) for _ in range(2))
            if not _is_close(wanted, again):  # it is random
                return
            for pool in [many, apart] if self.memory.options.strength == "virtual" else [many]:
                if not _is_close(wanted, self._as_estimate(estimate(pool))):
                    raise ValueError(
                        "estimate must read pool.recall if there is a memory: examples for which recall.present is "
                        "False do not count, and if recall.apart is True, only those in pool.rivals are rivals. Pass "
                        "recall=pool.recall to a function of fcco.functional, or use memory=0"
                    )
        self.coupled.estimates_read_recall = True


def least_share(rivals: Tensor) -> Tensor:
    """Return the least ratio of u to the part of some fresh examples in g that the gradient takes for real."""
    share = rivals.clamp(min=1).reciprocal()
    return 1 / (1 + TRUST * (share.sqrt() + share))


def _why_not(pool: Pool, check: Callable[[], None]) -> Exception | None:
    """Return why the examples of a pool cannot be remembered, or None."""
    columns = pool.joined() if pool.rows is not None else pool.own
    if pool.rows is None or not all(isinstance(c, Tensor) and c.dim() and len(c) == len(pool.rows) for c in columns):
        return TypeError("with a memory, all columns must be tensors with an entry for each example")
    try:
        check()
    except ValueError as error:
        return error
    return None


def _is_close(one: Estimate, other: Estimate) -> bool:
    """Return whether two estimates agree up to rounding."""
    known = one.share > 0
    if one.inner.shape != other.inner.shape or not torch.equal(known, other.share > 0):
        return False
    tolerance = 100 * torch.finfo(one.inner.dtype).eps ** 0.5
    return torch.allclose(one.inner[known], other.inner[known], rtol=tolerance, atol=tolerance)
