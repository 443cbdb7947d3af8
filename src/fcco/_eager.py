"""Functions that are never part of a compiled graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function such that ``torch.compile`` breaks the graph at it: ``torch.compiler.disable``, but lazily.

    ``torch.compiler.disable`` imports the compiler, which takes about as long as importing torch. This decorator
    leaves it to those who compile.

    Examples
    --------
    >>> @eager
    ... def double(x):
    ...     return 2 * x
    >>> double(21)
    42
    """
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:  # so that nothing is compiled
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return call
