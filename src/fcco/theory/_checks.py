"""Refusing what no theorem speaks of."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from fcco._checks import whole_number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def positive(name: str, value: Any) -> float:
    """``value`` as a float, refused unless it is positive and finite."""
    number = _number(name, value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return number


def non_negative(name: str, value: Any) -> float:
    """``value`` as a float, refused unless it is finite and at least 0."""
    number = _number(name, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be finite and not negative, got {value!r}")
    return number


def rate(name: str, value: Any) -> float:
    """``value`` as a float, refused unless it is in (0, 1]."""
    number = _number(name, value)
    if not 0 < number <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value!r}")
    return number


def batches(n: Any, outer_batch: Any, inner_batch: Any = 1) -> tuple[int, int, int]:
    """n, B1 and B2 as integers; B1 distinct rows cannot be drawn from fewer."""
    n, outer_batch = whole_number("n", n), whole_number("outer_batch", outer_batch)
    if outer_batch > n:
        raise ValueError(f"outer_batch must not exceed n = {n}, got {outer_batch}")
    return n, outer_batch, whole_number("inner_batch", inner_batch)
