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

from fcco._pool import ALL, Recall, Sides
from fcco.functional._inner import above, is_one, product
from fcco.functional._surrogates import Surrogate


def pair_sums(
    scores: Tensor,
    weight: Tensor,
    surrogate: Surrogate,
    sides: Sides = ALL,
    excluded: Tensor | None = None,
    temperature: float | Tensor = 1.0,
) -> Tensor:
    r"""Return, for every own example, the weighted sums of the surrogate over the pool.

    .. math:: s_{ik} = \sum_j c_{jk}\, \ell((h_j - h_i) / \tau)

    Parameters
    ----------
    scores : Tensor of shape (B + R,)
        h, own examples first.
    weight : Tensor of shape (pool, k)
        c, for every rival. No gradient flows to it.
    surrogate : Surrogate
        ℓ. Functions of the caller's own are differentiated by autograd.
    sides : Sides, optional
        Who is own and who is a rival. By default, everyone is both.
    excluded : Tensor of shape (B, pool), optional
        Pairs that are left out.
    temperature : float or Tensor, default 1.0
        τ. No gradient flows to it.

    Returns
    -------
    Tensor of shape (B, k)
    """
    if not surrogate.has_name:
        values = surrogate(above(scores, sides, temperature))
        return product(values if excluded is None else values.masked_fill(excluded, 0.0), weight)
    return _PairSums.apply(scores, weight, surrogate, sides.own, sides.recall.apart, excluded, temperature)[0]


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(
        scores: Tensor,
        weight: Tensor,
        surrogate: Surrogate,
        own: int | None,
        apart: bool,
        excluded: Tensor | None,
        temperature: float | Tensor,
    ) -> tuple[Tensor, Tensor]:
        sides = Sides(own, Recall(apart=apart))
        values, slopes = surrogate.value_and_slope(above(scores, sides, temperature))
        if excluded is not None:
            values, slopes = values.masked_fill(excluded, 0.0), slopes.masked_fill(excluded, 0.0)
        return product(values, weight), slopes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[1], output[1])
        ctx.apart, ctx.temperature = inputs[4], inputs[6]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weight, slopes = ctx.saved_tensors
        gradient = gradient if is_one(ctx.temperature) else gradient / ctx.temperature
        by_own = (product(slopes, weight) * gradient).sum(1)
        by_rival = (product(slopes.T, gradient) * weight).sum(1)
        if ctx.apart:
            by_score = torch.cat([-by_own, by_rival])
        else:
            by_score = by_rival - F.pad(by_own, (0, len(by_rival) - len(by_own)))
        return by_score, None, None, None, None, None, None
