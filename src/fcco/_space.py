"""Arithmetic on inner values, which are held as g (``PLAIN``) or as log g (``LOG``).

The rules and the table are written once, in these few operations. The space says how each of them is computed.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

Rate = float | Tensor


class Space(Protocol):
    """The operations on inner values that a rule may use."""

    def value(self, number: float) -> float:
        """Return how this space holds a plain number."""
        ...

    def mix(self, old: Tensor, new: Tensor, rate: Rate) -> Tensor:
        """Return (1 - rate) * old + rate * new."""
        ...

    def scale(self, values: Tensor, factor: Rate) -> Tensor:
        """Return factor * values."""
        ...

    def decay(self, values: Tensor, log_factor: Tensor) -> Tensor:
        """Return exp(log_factor) * values."""
        ...

    def floor(self, values: Tensor, other: Tensor, factor: Rate) -> Tensor:
        """Return max(values, factor * other) in log space, where dividing by ``values`` can overflow."""
        ...

    def group_mean(self, values: Tensor, slot: Tensor, weight: Tensor | None, total: Tensor) -> Tensor:
        """Return the weighted mean of the values in each slot."""
        ...

    def carry(self, inner: Tensor, at: Tensor) -> Tensor:
        """Return a tensor that equals ``at`` and whose gradient reaches ``inner`` as if it were g."""
        ...


def as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``values.to(dtype)``, whose call alone takes as long as some operations where nothing is to be done."""
    return values if values.dtype == dtype else values.to(dtype)


def wider(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """Return the dtype that holds the values of both."""
    return one if one == other else torch.promote_types(one, other)


def as_column(row_values: Tensor, like: Tensor) -> Tensor:
    """Return one value per row, in a shape that broadcasts against [B1] or [B1, dim]."""
    return row_values.unsqueeze(1) if like.dim() == 2 else row_values


def _overwrite(carrier: Tensor, values: Tensor) -> Tensor:
    """Change the values of a tensor but not its graph, which must not have saved them."""
    carrier.detach().copy_(values)
    return carrier


def _log(number: Rate) -> Rate:
    if isinstance(number, Tensor):
        return number.log()
    return math.log(number) if number > 0 else -math.inf


class _Plain:
    def value(self, number: float) -> float:
        return number

    def mix(self, old: Tensor, new: Tensor, rate: Rate) -> Tensor:
        return torch.lerp(old, new, rate)

    def scale(self, values: Tensor, factor: Rate) -> Tensor:
        return values * factor

    def decay(self, values: Tensor, log_factor: Tensor) -> Tensor:
        return values * log_factor.exp().to(values.dtype)

    def floor(self, values: Tensor, other: Tensor, factor: Rate) -> Tensor:
        return values

    def group_mean(self, values: Tensor, slot: Tensor, weight: Tensor | None, total: Tensor) -> Tensor:
        weighted, count = values, total
        if weight is not None:  # a slot may be all padding
            weighted, count = values * as_column(weight, values), total.clamp(min=1)
        # Each value is divided before they are added: their sum may overflow where their mean does not.
        shares = weighted / as_column(count.index_select(0, slot), values)
        return torch.zeros_like(values).index_add(0, slot, shares)

    def carry(self, inner: Tensor, at: Tensor) -> Tensor:
        return _overwrite(inner.clone(), at)


class _Log:
    def value(self, number: float) -> float:
        return _log(number)  # type: ignore[return-value]

    def mix(self, old: Tensor, new: Tensor, rate: Rate) -> Tensor:
        return torch.logaddexp(old + _log(1 - rate), new + _log(rate))

    def scale(self, values: Tensor, factor: Rate) -> Tensor:
        return values + _log(factor)

    def decay(self, values: Tensor, log_factor: Tensor) -> Tensor:
        return values + log_factor.to(values.dtype)

    def floor(self, values: Tensor, other: Tensor, factor: Rate) -> Tensor:
        return torch.maximum(values, other + _log(factor))

    def group_mean(self, values: Tensor, slot: Tensor, weight: Tensor | None, total: Tensor) -> Tensor:
        weighted = values if weight is None else values + as_column(weight.log(), values)
        position = as_column(slot, values).expand_as(values)
        peak = torch.full_like(values, -math.inf).scatter_reduce(0, position, weighted, "amax")
        peak = peak.clamp(min=torch.finfo(values.dtype).min)  # -inf - -inf is not a number
        sums = torch.zeros_like(values).index_add(0, slot, (weighted - peak.index_select(0, slot)).exp())
        return peak + (sums / as_column(total.clamp(min=1), values)).log()

    def carry(self, inner: Tensor, at: Tensor) -> Tensor:
        held = inner.detach()
        ratio = (held - at.clamp(min=torch.finfo(at.dtype).min)).exp()
        # The fill stops the gradient where g = 0. f may have none there, and inf * 0 is not 0.
        return _overwrite((inner * ratio).masked_fill(held == -math.inf, 0.0), at)


PLAIN: Space = _Plain()
LOG: Space = _Log()
