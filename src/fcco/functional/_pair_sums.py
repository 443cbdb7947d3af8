"""Weighted sums of a surrogate over all pairs of a batch, with a gradient that is written by hand.

Autograd would keep several matrices of pairs and dispatch an operation for each. This keeps one, the slopes, and needs
two matrix products for the gradient. It runs on every device and under ``torch.compile``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fcco.functional._inner import above, is_one, product
from fcco.functional._surrogates import Surrogate


def pair_sums(
    scores: Tensor,
    weight: Tensor,
    surrogate: Surrogate,
    own: int | None = None,
    excluded: Tensor | None = None,
    temperature: float | Tensor = 1.0,
) -> Tensor:
    r"""Return, for every own example, the weighted sums of the surrogate over the pool.

    .. math:: s_{ik} = \sum_j c_{jk}\, \ell((h_j - h_i) / \tau)

    Parameters
    ----------
    scores : Tensor of shape (B + R,)
        h, own examples first.
    weight : Tensor of shape (B + R, k)
        c. No gradient flows to it.
    surrogate : Surrogate
        ℓ. Functions of the caller's own are differentiated by autograd.
    own : int, optional
        The number of own examples. By default, it is all of them.
    excluded : Tensor of shape (B, B + R), optional
        Pairs that are left out.
    temperature : float or Tensor, default 1.0
        τ. No gradient flows to it.

    Returns
    -------
    Tensor of shape (B, k)
    """
    if not surrogate.has_name:
        values = surrogate(above(scores, own, temperature))
        return product(values if excluded is None else values.masked_fill(excluded, 0.0), weight)
    return _PairSums.apply(scores, weight, surrogate, own, excluded, temperature)[0]


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(
        scores: Tensor,
        weight: Tensor,
        surrogate: Surrogate,
        own: int | None,
        excluded: Tensor | None,
        temperature: float | Tensor,
    ) -> tuple[Tensor, Tensor]:
        values, slopes = surrogate.value_and_slope(above(scores, own, temperature))
        if excluded is not None:
            values, slopes = values.masked_fill(excluded, 0.0), slopes.masked_fill(excluded, 0.0)
        return product(values, weight), slopes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[1], output[1])
        ctx.temperature = inputs[5]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weight, slopes = ctx.saved_tensors
        gradient = gradient if is_one(ctx.temperature) else gradient / ctx.temperature
        by_own = (product(slopes, weight) * gradient).sum(1)
        by_rival = (product(slopes.T, gradient) * weight).sum(1)
        return by_rival - F.pad(by_own, (0, len(by_rival) - len(by_own))), None, None, None, None, None
