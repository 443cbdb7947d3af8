"""CoupledLoss: the engine. From an estimate of the inner values and an outer function, the gradient of a rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from fcco._checks import (
    as_index,
    check_finite,
    check_gradient,
    check_inner,
    check_rows,
    check_weight,
    guarded,
    reads_are_free,
    shape_of,
    whole_number,
)
from fcco._describe import Descriptions, options_of
from fcco._outer import Outer, takes_index, total
from fcco._repeats import Repeats, find_repeats
from fcco._rules import BSGD, SOAP, SOX, Batch, Rule, is_per_row
from fcco._space import LOG_ARRAYS, PLAIN_ARRAYS, Array, Rate, as_column
from fcco._table import InnerTable
from fcco.distributed._comm import Group, Layout, current_group, gather_batch, is_nothing
from fcco.distributed._meet import LazyBatch, Shares, call_off, meet, settled
from fcco.distributed._route import Held, Route


class _Step(NamedTuple):
    """A step of the table that is worked out, and not yet written."""

    inner: Tensor
    new: Tensor
    at: Tensor
    sampled: Tensor | None  # those of ``inner`` that f is taken at, None for all
    tracked: Tensor | None  # rows of the table to write, None for all
    values: Tensor  # what to write: ``new``, unless ranks write each other's
    rate: Rate
    written: Tensor | None  # where the values are not padding


class CoupledLoss(nn.Module):
    r"""Loss whose gradient steps minimise a sum of functions of inner *expectations*.

    .. math:: F(w) = \frac 1 n \sum_i f_i(g_i(w)), \qquad g_i(w) = \text{mean over a set } S_i

    Called with an estimate of g_i for every i of a batch, it updates a running estimate u_i of each, and returns a
    scalar whose value estimates F and whose gradient is mean_i <∇f_i(ū_i), ∂g_i>, where the rule says which ū that is.

    Args:
        outer: f, as ``outer(u)`` or ``outer(u, index)``, from [B1, dim] ([B1] when ``dim == 1``) to [B1]. It is
            differentiated by autograd, and may be a module with parameters of its own. If it is stochastic, it draws
            its sample itself or is given one with the call, as ``outer(u, index, sample)``. Rules that differentiate at
            another row than the new one (SOX) call it twice a step, for the gradient and for the value.
        n: number of rows: examples i in the training set.
        dim: how many values g_i has.
        rule: how u_i is updated and where f is differentiated; see :class:`fcco.SOX` and its siblings.
        log: ``inner``, the table and the argument of ``outer`` are log g. Averages are those of g, taken without ever
            leaving log space; -inf stands for g = 0.
        init: what a row holds before its first visit, as a value of g. ``None``: its first estimate. With 0, f must
            have a derivative there (log has none).
        n_outer: how many of the n rows ever come as ``index``, where not all do (only the positives, say): what a batch
            is a share of, which MOAP scales by.

    Raises:
        ValueError: the rule is not defined in this space, or ``init`` does not suit it.

    Call:
        ``loss_fn(inner, index, *, weight=None, sample=None, previous=None, alike=None)``

        - inner: [B1] or [B1, dim], differentiable; for rules that track all rows (SCGD, NASA) [n] or [n, dim].
        - index: [B1] of ints in [0, n), the rows. A row that stands twice has its estimates averaged and is updated
          once; the gradient counts both.
        - weight: [B1]. The loss is then the sum of weight * f, rather than the mean of f; a mask of bool stands for the
          mean over the positions that are True. Positions of weight 0 are padding: they are not written to the table,
          and may hold any legal value at which f is defined.
        - sample: what a stochastic f is evaluated on; it is then called as ``outer(u, index, sample)``.
        - previous: a second estimate, at the previous weights, for rules that ask for one (MSVR).
        - alike: options of your own that ``inner`` depends on (a temperature, say), by name. Under a process group they
          must be the same on all ranks, as the rule and all arguments of the constructor must.

        In ``eval()`` mode and under ``torch.no_grad()`` the value is that of f at ``inner`` itself, and the table is
        neither used nor changed (``index`` may then be anything that f can use). Under a process group, the batch is
        that of all ranks together (see :mod:`fcco.distributed`). Bad input (shapes, NaN, rows out of
        range, an empty batch) raises before any change; what is not finite, a :class:`fcco.NotFiniteError`. Every call
        in training is a step of the table, so keep the loss outside of functions that ``torch.utils.checkpoint`` runs a
        second time.

    ``state_dict`` has the table, and what it is of; it is loaded only where it belongs, unless within
    :func:`fcco.load_anyway`. See :class:`fcco.InnerTable`.

    Example, with f = log and g_i a mean over a sampled set:

    >>> loss_fn = CoupledLoss(torch.log, n=3, rule=SOX(gamma=0.5))
    >>> inner = torch.tensor([1.0, 4.0], requires_grad=True)
    >>> loss = loss_fn(inner, torch.tensor([0, 2]))
    >>> loss.backward()
    >>> inner.grad  # (1 / u_i) / B1
    tensor([0.5000, 0.1250])
    >>> loss_fn.table.u
    tensor([1., 0., 4.])

    Reference: Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022.
    """

    def __init__(
        self,
        outer: Outer,
        n: int,
        dim: int = 1,
        rule: Rule = SOX(gamma=0.1),  # noqa: B008 (frozen)
        log: bool = False,
        init: float | None = None,
        n_outer: int | None = None,
    ) -> None:
        super().__init__()
        if not callable(outer):
            raise TypeError(f"outer must be callable, got {outer!r}")
        if not isinstance(rule, Rule):
            raise TypeError(f"rule must be an instance of a rule such as fcco.SOX(gamma=0.1), got {rule!r}")
        if rule.log is not None and rule.log != log:
            raise ValueError(f"{type(rule).__name__} is defined for log={rule.log} only")
        self.outer = outer
        self.rule = rule
        self.init = _resolve_init(init, rule, log)
        self.table = InnerTable(n, dim, log, visits=is_per_row(rule.rate), decays=rule.decays)
        self.table.identity = {"kind": type(self).__name__}
        self.n, self.dim, self.log = self.table.n, self.table.dim, self.table.log
        self.n_outer = self.n if n_outer is None else whole_number("n_outer", n_outer)
        self.layout = Layout()
        # Under a process group ranks then wait for each other's f before they write, which takes a message a step.
        self.outer_may_fail = True
        self._described = Descriptions()
        self._outer_takes_index = takes_index(outer)

    def extra_repr(self) -> str:
        return f"outer={getattr(self.outer, '__name__', type(self.outer).__name__)}, rule={self.rule}, init={self.init}"

    def forward(
        self,
        inner: Tensor,
        index: Tensor,
        *,
        weight: Tensor | None = None,
        sample: Any = None,
        previous: Tensor | None = None,
        alike: Mapping[str, Any] | None = None,
    ) -> Tensor:
        f = self._f if sample is None else partial(self._f, sample=sample)
        takes_step = self.training and torch.is_grad_enabled()
        together = current_group(self.layout) if takes_step else None
        if together is not None:
            return self._forward_together(together, f, inner, index, weight, previous, alike)
        inner, rows, weight = self._check_shapes(inner, index, weight)
        if not takes_step:
            return self._plug_in(f, inner, rows, weight)
        table = self.table.block
        may_repeat = self._check_values(table, inner, rows, previous)
        step = self._advance(table, inner, rows, weight, previous, may_repeat)
        loss = self._loss_of(f, table, step, rows, weight)
        table.write(step.tracked, step.values, step.rate, step.written)
        return loss

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def settings(self, options: Mapping[str, Any] | None = None) -> dict[str, str]:
        """All that makes a step, by name, in words that are the same in every process.

        Args:
            options: of the caller; names with a leading underscore are left out.
        """
        rule, table = self.rule, self.table
        own = {"n": self.n, "dim": self.dim, "log": self.log, "n_outer": self.n_outer, "init": self.init}
        others = {name: value for name, value in (options or {}).items() if name[0] != "_"}
        made = {**table.identity, "rule": type(rule), **options_of(rule), "outer": self.outer}
        return self._described.texts({**others, **made, **own, "gather": self.layout.gather, "table": type(table)})

    def group(self) -> Group | None:
        """The ranks that a call takes a step with; None if it takes it alone, or takes none."""
        return current_group(self.layout) if self.training and torch.is_grad_enabled() else None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def refuse(self, error: Exception) -> NoReturn:
        """Raise the error, on the other ranks too, which wait for this one to take a step."""
        group = self.group()
        if group is not None:
            call_off(group, self.table, error)
        raise error

    @property
    def _may_overflow(self) -> bool:
        return self.log and not self.rule.bounded

    def _loss_of(self, f: Outer, table: InnerTable, step: _Step, rows: Tensor, weight: Tensor | None) -> Tensor:
        """The value of f at the new rows, with the gradient at those of the rule."""
        with torch.no_grad():
            # A copy, since f may work in place, and the table is to have the rows as they are.
            value = None if step.at is step.new else total(f(_take(step.new, step.sampled).clone(), rows), weight)
        inner = _take(step.inner, step.sampled)
        if self._may_overflow:
            inner = guarded(inner)
        carrier = table.space.carry(inner, _take(step.at, step.sampled))
        if weight is not None:
            # Nothing flows back to padding, where the derivative of f need not exist.
            carrier = torch.where(as_column(weight > 0, carrier), carrier, carrier.detach())
        loss = total(f(carrier, rows), weight)
        if self._may_overflow:
            remedy = "safeguard=True" if isinstance(self.rule, SOX) else "fcco.SOX"
            check_gradient(loss, inner, rows, f"{self.rule} does not bound g / u, as {remedy} does")
        if value is not None:
            loss.detach().copy_(value)
        return loss

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _forward_together(
        self, group: Group, f: Outer, inner: Any, index: Any, weight: Any, previous: Any, options: Any
    ) -> Tensor:
        """The step of all ranks' batches; the loss is this rank's part of it, times the number of ranks."""
        alike = self.settings(options)
        if self.rule.all_rows:
            # Every rank has an estimate of every row, and their mean is that of a batch of all.
            one = inner.unsqueeze(0) if isinstance(inner, Tensor) else inner
            inner = gather_batch(group, [one], alike)[0][0].mean(0)
        table = self.table.block
        try:
            inner, rows, shares = self._check_rank(table, inner, index, weight, previous)
        except Exception as error:
            self.refuse(error)
        alike = {**alike, "dtype": str(inner.dtype)}
        weight, route = meet(group, self.table, rows, shares, alike, all_rows=self.rule.all_rows)
        if self.rule.needs_previous and previous is None:  # which only a rank without rows may leave out
            previous = inner
        step = self._advance(table, inner, rows, weight, previous, not self.rule.all_rows, route)
        with settled(group) if self.outer_may_fail or self._may_overflow else nullcontext():
            loss = self._loss_of(f, table, step, rows, weight)
        table.write(step.tracked, step.values, step.rate, step.written)
        return loss

    def _check_rank(
        self, table: InnerTable, inner: Any, index: Any, weight: Any, previous: Any
    ) -> tuple[Tensor, Tensor, Shares]:
        """This rank's batch, which may be empty, and its weights up to a factor that all ranks share."""
        if is_nothing(index) and isinstance(inner, Tensor) and (self.rule.all_rows or len(inner) == 0):
            inner = inner if self.rule.all_rows else inner.reshape(0, *table.u.shape[1:])
            nothing = inner.new_zeros(0)
            return inner, nothing.long(), Shares(nothing, nothing.sum())
        inner = check_inner(inner, self.dim)
        rows, dtype = as_index(index, inner.device), torch.promote_types(inner.dtype, torch.float32)
        self._check_values(table, inner, rows, previous)
        if weight is None or isinstance(weight, Shares):
            everyone = torch.ones_like(rows, dtype=dtype)
            return inner, rows, weight or Shares(everyone, everyone.sum())
        share = check_weight(weight, rows, dtype)
        if weight.dtype == torch.bool:
            return inner, rows, Shares(weight.to(dtype), weight.sum())
        return inner, rows, Shares(share, None)

    @property
    def can_track_arrays(self) -> bool:
        """Whether :meth:`track_arrays` knows the rule, and the table is here alone, where NumPy can reach it."""
        rule, u = self.rule, self.table.u
        return type(rule) in (SOX, SOAP, BSGD) and not is_per_row(rule.rate) and u.is_cpu and self.group() is None

    def track_arrays(self, inner: Array, rows: Array) -> tuple[Array, Array]:
        """Take a step of the table alone, on the CPU: the new rows, and those that the rule differentiates f at.

        For callers that know f and its derivative, carry the gradient back themselves, and have checked that ``inner``
        is finite and that ``rows`` lie in [0, n) and are distinct. It is the step of :meth:`forward` in NumPy, whose
        operations on small arrays cost a fraction of torch's.
        """
        table: InnerTable = self._modules["table"].block  # type: ignore[assignment, union-attr]
        old = table.read_arrays(rows, inner if self.init is None else table.space.value(self.init))
        space = LOG_ARRAYS if self.log else PLAIN_ARRAYS
        update: Any = self.rule.update
        estimate: Any = inner
        new, at = update(old, Batch(estimate, None, self.rate(table, None), self.n_outer / len(rows), space))
        table.write_arrays(rows, new)
        return new, at

    def _plug_in(self, f: Outer, inner: Tensor, rows: Tensor, weight: Tensor | None) -> Tensor:
        if self.rule.all_rows and inner.shape[0] == self.n:
            check_rows(rows, self.n)
            inner = _take(inner, rows)
        _check_same_length(inner, rows)
        check_finite(inner, self.log)
        estimate = inner.to(torch.promote_types(inner.dtype, torch.float32), copy=True)
        return total(f(estimate, rows), weight)

    def _check_shapes(self, inner: Any, index: Any, weight: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        inner = check_inner(inner, self.dim)
        rows = as_index(index, inner.device)
        if weight is not None:
            weight = weight.weight() if isinstance(weight, Shares) else weight
            weight = check_weight(weight, rows, torch.promote_types(inner.dtype, torch.float32))
        return inner, rows, weight

    def _advance(
        self,
        table: InnerTable,
        inner: Tensor,
        rows: Tensor,
        weight: Tensor | None,
        previous: Tensor | None,
        may_repeat: bool,
        route: Route | None = None,
    ) -> _Step:
        """The rows before and after the update, which is not written yet: f may still fail."""
        rule = self.rule
        inner = inner.to(torch.promote_types(inner.dtype, table.u.dtype))
        if previous is not None:
            previous = previous.detach().reshape(inner.shape).to(inner.dtype)
        # Rules that track all rows are given an estimate for each, and f is taken at the sampled ones among them.
        tracked, sampled = (None, rows) if rule.all_rows else (rows, None)
        where = None if weight is None or rule.all_rows else weight > 0
        with torch.no_grad():
            held = own = Held(tracked, where, inner.detach(), previous)
            if route is not None:
                held = route.send(own)
            if table.offload:
                held = held.to(table.u.device)
            repeats = find_repeats(held.rows, held.where, inner.dtype) if may_repeat and held.rows is not None else None
            batch = self._batch(table, held, repeats, route)
            cold = batch.estimate if self.init is None else batch.space.value(self.init)
            old = table.read(held.rows, cold, inner.dtype)
            values, at = rule.update(old, batch)
            made = [values] if at is values else [values, at]
            if table.offload:
                made = [part.to(inner.device) for part in made]
            if route is not None:
                made = route.back(made, own.estimate)
        written = repeats.present() if repeats and held.where is not None else held.where
        return _Step(inner, made[0], made[-1], sampled, held.rows, values, batch.rate, written)

    def _check_values(self, table: InnerTable, inner: Tensor, rows: Tensor, previous: Tensor | None) -> bool:
        """Refuse what cannot be meant; return whether rows of ``inner`` may stand for the same row of the table."""
        device = table.u.device
        if inner.device != device and not table.offload:
            raise ValueError(f"inner is on {inner.device}, the table on {device}: move one with .to()")
        if self.rule.all_rows:
            if inner.shape[0] != self.n:
                raise ValueError(
                    f"{type(self.rule).__name__} tracks all rows: inner needs {self.n} rows, got {shape_of(inner)}"
                )
        else:
            _check_same_length(inner, rows)
        if (previous is not None) != self.rule.needs_previous:
            verb = "needs" if self.rule.needs_previous else "takes no"
            raise ValueError(f"{type(self.rule).__name__} {verb} previous=, an estimate at the previous weights")
        check_finite(inner, self.log)
        if previous is not None:
            previous = check_inner(previous, self.dim, "previous")
            if previous.shape != inner.shape:
                raise ValueError(f"previous must have inner's shape {shape_of(inner)}, got {shape_of(previous)}")
            check_finite(previous, self.log, "previous")
        return check_rows(rows, self.n) and not self.rule.all_rows

    def _batch(self, table: InnerTable, held: Held, repeats: Repeats | None, route: Route | None) -> Batch:
        space, estimate, previous = table.space, held.estimate, held.previous
        if previous is not None:
            # On a row's first visit there was no previous step to correct for.
            seen = table.visited(held.rows).bool()
            previous = torch.where(as_column(seen, previous), previous, estimate)
        if repeats:
            estimate = repeats.mean(estimate, space)
            previous = previous if previous is None else repeats.mean(previous, space)
            distinct: Any = repeats.distinct()
        elif held.where is not None:
            distinct = held.where.to(estimate.dtype).sum()
        else:
            distinct = estimate.shape[0]
        rate = self.rate(table, held.rows, estimate.dtype)
        if route is None:
            return Batch(estimate, previous, rate, self.n_outer / _at_least_one(distinct), space)
        coverage: Any = lambda: self.n_outer / _at_least_one(route.over_all(distinct))  # noqa: E731
        return LazyBatch(estimate, previous, rate, coverage, space)

    def rate(self, table: InnerTable, tracked: Tensor | None, dtype: torch.dtype | None = None) -> Rate:
        """This step's gamma: a number, or [B1(, 1)] where the schedule goes by row (None: all rows)."""
        schedule = self.rule.rate
        if not callable(schedule):
            return schedule
        dtype = dtype or table.u.dtype
        if is_per_row(schedule):
            visits = table.visited(tracked).to(dtype)
            rates = torch.as_tensor(schedule(visits), device=visits.device).to(visits.dtype).expand_as(visits)
            self.rule.check_rate(rates)
            return as_column(rates, table.u)
        if reads_are_free(table.step):
            return self.rule.check_rate(float(schedule(int(table.step))))
        return self.rule.check_rate(schedule(table.step.to(dtype)))

    def _f(self, u: Tensor, rows: Tensor, sample: Any = None) -> Tensor:
        if sample is not None:
            values = self.outer(u, rows, sample)
        else:
            values = self.outer(u, rows) if self._outer_takes_index else self.outer(u)
        if not isinstance(values, Tensor) or values.shape != rows.shape:
            got = shape_of(values) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"outer must map {shape_of(u)} to {shape_of(rows)}, got {got}")
        return values if values.dtype == u.dtype else values.to(u.dtype)


def _resolve_init(init: float | None, rule: Rule, log: bool) -> float | None:
    if init is None:
        return rule.start
    if rule.start is not None and init != rule.start:
        raise ValueError(f"{type(rule).__name__} starts from {rule.start}, so init cannot be {init!r}")
    if not math.isfinite(init) or (log and init < 0):
        raise ValueError(
            f"init must be a finite value of g{', not negative in log space' if log else ''}, got {init!r}"
        )
    return init


def _at_least_one(count: Rate) -> Rate:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def _take(values: Tensor, rows: Tensor | None) -> Tensor:
    return values if rows is None else values.index_select(0, rows)


def _check_same_length(inner: Tensor, rows: Tensor) -> None:
    if inner.shape[0] != rows.shape[0]:
        raise ValueError(f"inner {shape_of(inner)} and index {shape_of(rows)} differ in length")
