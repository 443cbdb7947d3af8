"""Checks of the numbers that the theorems take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fcco._checks import whole_number

_P = ParamSpec("_P")
_R = TypeVar("_R")


def real_number(name: str, value: Any) -> float:
    """Return ``value`` as a float.

    Any number is valid, also one of NumPy, or a tensor of one element. Strings and bools are not.

    Raises
    ------
    TypeError
        If ``value`` is not a number.
    ValueError
        If ``value`` is an integer that is too large for a float.
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number; got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several elements
        raise TypeError(f"{name} must be a number; got {value!r}") from None
    except OverflowError:  # an int that is larger than any float
        raise ValueError(f"{name} must be finite; got {value!r}") from None


def within_floats(formula: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a formula raise a ValueError if it overflows, divides by zero, or returns a value that is not finite."""

    @wraps(formula)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            found = formula(*args, **kwargs)
            if all(map(math.isfinite, _floats(found))):
                return found
        except (OverflowError, ZeroDivisionError):
            pass
        raise ValueError(
            f"{formula.__name__} goes beyond floating point: epsilon or a constant is too small or too large"
        )

    return checked


def _floats(found: Any) -> Iterator[float]:
    """Yield all floats of a number, a dataclass, or a tuple of either."""
    if isinstance(found, float):
        yield found
    elif is_dataclass(found) and not isinstance(found, type):
        yield from _floats(astuple(found))
    elif isinstance(found, tuple):
        for part in found:
            yield from _floats(part)


def positive(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise a ValueError if it is not positive and finite."""
    given = real_number(name, value)
    if not 0 < given < math.inf:
        raise ValueError(f"{name} must be positive and finite; got {value!r}")
    return given


def non_negative(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise a ValueError if it is not finite or less than 0."""
    given = real_number(name, value)
    if not 0 <= given < math.inf:
        raise ValueError(f"{name} must be finite and not negative; got {value!r}")
    return given


def unit_rate(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise a ValueError if it is not in (0, 1]."""
    given = real_number(name, value)
    if not 0 < given <= 1:
        raise ValueError(f"{name} must be in (0, 1]; got {value!r}")
    return given


def batches(n: Any, outer_batch: Any, inner_batch: Any = 1) -> tuple[int, int, int]:
    """Return n, B1 and B2 as integers. B1 distinct rows are drawn, so B1 must not exceed n."""
    n, outer_batch = whole_number("n", n), whole_number("outer_batch", outer_batch)
    if outer_batch > n:
        raise ValueError(f"outer_batch must not exceed n = {n}; got {outer_batch}")
    return n, outer_batch, whole_number("inner_batch", inner_batch)
