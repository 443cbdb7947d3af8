"""Arithmetic on inner values, which are held as g (``PLAIN``) or as log g (``LOG``), for either kind of array."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from fcco.core.arrays import Array, column, counted, namespace, peaks, taken, where_true

Rate = float | Any  # one rate, or an array of one for each row


class Space(Protocol):
    """The operations on inner values that a rule may use, and those that a step and the table need."""

    def value(self, number: float) -> float:
        """Return how this space holds a plain number."""
        ...

    def mix(self, old: Array, new: Array, rate: Rate) -> Array:
        """Return (1 - rate) * old + rate * new."""
        ...

    def scale(self, values: Array, factor: Rate) -> Array:
        """Return factor * values."""
        ...

    def decay(self, values: Array, log_factor: Array) -> Array:
        """Return exp(log_factor) * values."""
        ...

    def floor(self, values: Array, other: Array, factor: Rate) -> Array:
        """Return max(values, factor * other) in log space, where dividing by ``values`` can overflow."""
        ...

    def group_mean(self, values: Array, slot: Array, weight: Array | None, total: Array) -> Array:
        """Return the weighted mean of the values in each slot."""
        ...

    def slope(self, of_f: Array, inner: Array, at: Array) -> Array:
        """Return the derivative in the inner value, given that of f at a row, as if the row had moved like g."""
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


as_column = column


def _overwrite(carrier: Tensor, values: Tensor) -> Tensor:
    """Change the values of a tensor but not its graph, which must not have saved them."""
    carrier.detach().copy_(values)
    return carrier


def _log(number: Rate) -> Rate:
    if not isinstance(number, float | int):
        return namespace(number).log(number)
    return math.log(number) if number > 0 else -math.inf


def _totals(slot: Array, values: Array) -> Array:
    """Return the sums of the values, [m] or [m, dim], of each slot."""
    if values.ndim == 1:
        return counted(slot, len(values), values)
    return counted(slot, len(values), values.T).T


class _Plain:
    def value(self, number: float) -> float:
        return number

    def mix(self, old: Array, new: Array, rate: Rate) -> Array:
        return torch.lerp(old, new, rate) if isinstance(old, Tensor) else old + rate * (new - old)

    def scale(self, values: Array, factor: Rate) -> Array:
        return values * factor

    def decay(self, values: Array, log_factor: Array) -> Array:
        factor = namespace(values).exp(log_factor)
        return values * (factor.to(values.dtype) if isinstance(factor, Tensor) else factor.astype(values.dtype))

    def floor(self, values: Array, other: Array, factor: Rate) -> Array:
        return values

    def group_mean(self, values: Array, slot: Array, weight: Array | None, total: Array) -> Array:
        weighted, count = values, total
        if weight is not None:  # a slot may be all padding
            weighted, count = values * column(weight, values), total.clip(1, None)
        # Each value is divided before they are added: their sum may overflow where their mean does not.
        shares = weighted / column(taken(count, slot), values)
        return _totals(slot, shares)

    def slope(self, of_f: Array, inner: Array, at: Array) -> Array:
        return of_f

    def carry(self, inner: Tensor, at: Tensor) -> Tensor:
        return _overwrite(inner.clone(), at)


class _Log:
    def value(self, number: float) -> float:
        return _log(number)

    def mix(self, old: Array, new: Array, rate: Rate) -> Array:
        return namespace(old).logaddexp(old + _log(1 - rate), new + _log(rate))

    def scale(self, values: Array, factor: Rate) -> Array:
        return values + _log(factor)

    def decay(self, values: Array, log_factor: Array) -> Array:
        return values + (log_factor.to(values.dtype) if isinstance(values, Tensor) else log_factor.astype(values.dtype))

    def floor(self, values: Array, other: Array, factor: Rate) -> Array:
        return namespace(values).maximum(values, other + _log(factor))

    def group_mean(self, values: Array, slot: Array, weight: Array | None, total: Array) -> Array:
        xp = namespace(values)
        weighted = values if weight is None else values + column(xp.log(weight), values)
        peak = peaks(slot, len(values), weighted)
        peak = peak.clip(xp.finfo(values.dtype).min, None)  # -inf - -inf is not a number
        sums = _totals(slot, xp.exp(weighted - taken(peak, slot)))
        return peak + xp.log(sums / column(total.clip(1, None), values))

    def slope(self, of_f: Array, inner: Array, at: Array) -> Array:
        xp = namespace(inner)  # at g = 0 f may have no slope, and inf * 0 is not 0
        return where_true(inner > -math.inf, of_f * xp.exp(inner - at))

    def carry(self, inner: Tensor, at: Tensor) -> Tensor:
        held = inner.detach()
        ratio = (held - at.clamp(min=torch.finfo(at.dtype).min)).exp()
        # The fill stops the gradient where g = 0. f may have none there, and inf * 0 is not 0.
        return _overwrite((inner * ratio).masked_fill(held == -math.inf, 0.0), at)


PLAIN: Space = _Plain()
LOG: Space = _Log()
