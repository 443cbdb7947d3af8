"""The outer function: how it is called, and the total of its values."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import Tensor, nn

Outer = Callable[..., Tensor]


def takes_index(outer: Outer) -> bool:
    """Whether ``outer`` is to be called as ``outer(u, index)`` rather than ``outer(u)``."""
    outer = getattr(outer, "_orig_mod", outer)  # what torch.compile wraps
    try:
        parameters = inspect.signature(outer.forward if isinstance(outer, nn.Module) else outer).parameters
    except ValueError:  # built-in functions such as torch.log do not tell
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters.values() if p.kind in by_position]
    required = [p for p in positional if p.default is inspect.Parameter.empty]
    return len(required) >= 2 or any(p.name == "index" for p in positional[1:2])


def total(values: Tensor, weight: Tensor | None) -> Tensor:
    """The mean, or the weighted sum; a zero with a graph where all weights are 0."""
    if weight is None:
        # Each is divided before they are added: their sum may overflow where their mean does not.
        return (values / len(values)).sum()
    return (values.masked_fill(weight == 0, 0.0) * weight).sum()
