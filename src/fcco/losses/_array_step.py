"""A step of the table in NumPy, whose operations on small arrays cost a fraction of torch's.

It serves the losses that work out their gradient by hand on the CPU, and nothing else knows of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fcco._coupled import CoupledLoss
from fcco._step import Visit
from fcco._table import InnerTable
from fcco.core.rules import BSGD, SOAP, SOX, Batch, is_per_row
from fcco.losses._array_outer import ArrayOuter, is_finite

Array = NDArray[Any]


class LeftToTheEngine(Exception):  # noqa: N818 (nothing is wrong yet)
    """The batch is unusual or invalid: the engine has to take its step, or to say what is wrong with it."""


class _PlainArrays:
    """The operations of the most common rules on arrays."""

    def mix(self, old: Array, new: Array, rate: Any) -> Array:
        return old + rate * (new - old)

    def floor(self, values: Array, other: Array, factor: Any) -> Array:
        return values


class _LogArrays:
    def mix(self, old: Array, new: Array, rate: Any) -> Array:
        if isinstance(rate, float):
            return np.logaddexp(old + (math.log(1 - rate) if rate < 1 else -math.inf), new + math.log(rate))
        with np.errstate(divide="ignore"):  # a rate may be 1
            return np.logaddexp(old + np.log(1 - rate), new + np.log(rate))

    def floor(self, values: Array, other: Array, factor: Any) -> Array:
        return np.maximum(values, other + (math.log(factor) if isinstance(factor, float) else np.log(factor)))


_PLAIN: Any = _PlainArrays()
_LOG: Any = _LogArrays()


def can_track(coupled: CoupledLoss) -> bool:
    """Return whether :func:`track` knows the rule, and NumPy can reach the table, which no other process shares."""
    if type(coupled.rule) not in (SOX, SOAP, BSGD):
        return False
    placement = coupled.placement()
    return placement is not None and placement.alone and placement.table.u.is_cpu


def track(coupled: CoupledLoss, inner: Array, rows: Array, f: ArrayOuter | None = None) -> tuple[Array, Array]:
    """Take a step of the table; return the new rows and the rows that f is to be differentiated at.

    The caller must have checked that ``inner`` is finite (or -inf in log space), and that ``rows`` are distinct and
    within [0, n). Nothing has changed if the step is left to the engine, because f would overflow.
    """
    table: InnerTable = coupled._modules["table"]  # type: ignore[assignment]
    buffers: dict[str, Any] = table._buffers
    values, counts = buffers["u"].numpy(), buffers["visits"].numpy()
    old, visits = values.take(rows, 0), counts.take(rows)
    all_known = np.count_nonzero(visits) == len(rows)
    if not all_known:
        cold = inner if coupled.init is None else table.space.value(coupled.init)
        old = np.where(visits[:, None] if old.ndim == 2 else visits, old, cold)
    update: Any = coupled.rule.update
    estimate: Any = inner
    coverage = coupled.n_outer / len(rows)
    rate = _rate(coupled, table, visits, inner)
    new, at = update(old, Batch(estimate, rate, lambda: coverage, _LOG if coupled.log else _PLAIN))
    if f is not None:
        check_size(coupled, f, inner, new, at)
    if not coupled.is_frozen:
        if new.dtype == np.float64 != values.dtype:
            table.promote(torch.float64)
            values = buffers["u"].numpy()
        count_step(coupled)
        values[rows] = new
        if visits.dtype != np.bool_:
            counts[rows] = visits + 1
        elif not all_known:
            counts[rows] = True
    if coupled.observers:
        made, before = (torch.as_tensor(part).to(table.u.dtype) for part in (inner, old))
        known = torch.as_tensor(visits).bool()
        coupled.notify(Visit(torch.from_numpy(rows), made, before, known, torch.ones_like(known)))
    return new, at


def check_size(coupled: CoupledLoss, f: ArrayOuter, inner: Array, new: Array, at: Array) -> None:
    """Leave a step to the engine if f may overflow, and does: the engine says what to do."""
    if coupled.if_too_large and not is_finite(f, inner, new, at):
        raise LeftToTheEngine


def count_step(coupled: CoupledLoss) -> None:
    """Count a step of the table."""
    steps = coupled._modules["table"]._buffers["step"].numpy()  # type: ignore[union-attr]
    steps += 1


def _rate(coupled: CoupledLoss, table: InnerTable, visits: Array, inner: Array) -> Any:
    """Return gamma of this step: a number, or an array that broadcasts against ``inner``."""
    rate = coupled.rule.rate
    if not callable(rate):
        return rate
    if not is_per_row(rate):
        return coupled.rate(table, None)
    rates: Any = coupled.rate(table, torch.from_numpy(visits), torch.from_numpy(inner[:0]).dtype)
    return rates.numpy()
