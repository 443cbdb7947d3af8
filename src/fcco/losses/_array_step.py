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
from fcco._rules import BSGD, SOAP, SOX, Batch, is_per_row
from fcco._step import Visit
from fcco._table import InnerTable

Array = NDArray[Any]


class _PlainArrays:
    """The operations of the most common rules on arrays, for a rate that is a number."""

    def mix(self, old: Array, new: Array, rate: float) -> Array:
        return old + rate * (new - old)

    def floor(self, values: Array, other: Array, factor: float) -> Array:
        return values


class _LogArrays:
    def mix(self, old: Array, new: Array, rate: float) -> Array:
        return np.logaddexp(old + (math.log(1 - rate) if rate < 1 else -math.inf), new + math.log(rate))

    def floor(self, values: Array, other: Array, factor: float) -> Array:
        return np.maximum(values, other + math.log(factor))


_PLAIN: Any = _PlainArrays()
_LOG: Any = _LogArrays()


def can_track(coupled: CoupledLoss) -> bool:
    """Return whether :func:`track` knows the rule, and NumPy can reach the table, which no other process shares."""
    rule = coupled.rule
    if type(rule) not in (SOX, SOAP, BSGD) or is_per_row(rule.rate):
        return False
    placement = coupled.placement()
    return placement is not None and placement.alone and placement.table.u.is_cpu


def track(coupled: CoupledLoss, inner: Array, rows: Array) -> tuple[Array, Array]:
    """Take a step of the table; return the new rows and the rows that f is to be differentiated at.

    The caller must have checked that ``inner`` is finite, and that ``rows`` are distinct and within [0, n).
    """
    table: InnerTable = coupled._modules["table"]  # type: ignore[assignment]
    buffers: dict[str, Any] = table._buffers
    old, seen = buffers["u"].numpy()[rows], buffers["visits"].numpy()[rows]
    if not np.logical_and.reduce(seen):
        cold = inner if coupled.init is None else table.space.value(coupled.init)
        old = np.where(seen[:, None] if old.ndim == 2 else seen, old, cold)
    update: Any = coupled.rule.update
    estimate: Any = inner
    coverage = coupled.n_outer / len(rows)
    batch = Batch(estimate, None, coupled.rate(table, None), lambda: coverage, _LOG if coupled.log else _PLAIN)
    new, at = update(old, batch)
    if not coupled.is_frozen:
        if new.dtype == np.float64:
            table.promote(torch.float64)
        buffers["step"].add_(1)
        buffers["u"].numpy()[rows] = new
        buffers["visits"].numpy()[rows] = True
    if coupled.observers:
        made, before = (torch.as_tensor(part).to(table.u.dtype) for part in (inner, old))
        known = torch.as_tensor(seen).bool()
        coupled.notify(Visit(torch.from_numpy(rows), made, before, known, torch.ones_like(known)))
    return new, at
