"""The outer function: how it is called, and how its values add up to the loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

Outer = Callable[..., Tensor]


class Shares(NamedTuple):
    """Weights up to a factor: the weights of a batch are ``share / total``, or all 0 where the total is 0.

    A batch may be spread over ranks, whose totals add up. Without a total, the shares are the weights themselves.
    """

    share: Tensor
    total: Tensor | None

    def weight(self) -> Tensor:
        """Return the weights of a batch that is all in this process."""
        return self.share if self.total is None else self.share / torch.where(self.total > 0, self.total, 1.0)


def takes_index(outer: Outer) -> bool:
    """Return whether ``outer`` is to be called as ``outer(u, index)`` rather than ``outer(u)``."""
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
    """Return the mean, or the weighted sum; if all weights are 0, a zero with a graph."""
    if weight is None:
        # Each value is divided before they are added: their sum may overflow where their mean does not.
        return values.dot(torch.full_like(values, 1 / values.shape[0]))
    return values.masked_fill(weight == 0, 0.0).dot(weight.to(values.dtype))
