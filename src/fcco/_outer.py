"""The outer function: how it is called, and how its values add up to the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

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


def total(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean, or the weighted sum; if all weights are 0, a zero with a graph."""
    if weight is None:
        # Each value is divided before they are added: their sum may overflow where their mean does not.
        return values.dot(torch.full_like(values, 1 / values.shape[0]))
    return values.masked_fill(weight == 0, 0.0).dot(weight.to(values.dtype))
