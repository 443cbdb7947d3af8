"""Sums of hinges over a set for every threshold at once, by sorting: O(n log n) time, O(n) memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def hinge_sums(thresholds: Tensor, points: Tensor, weights: Tensor, power: int) -> Tensor:
    r"""For every threshold, the weighted sum of a power of how far the points lie above it.

    .. math:: H_k(\theta_i) = \sum_j c_j (x_j - \theta_i)_+^k

    Any number of times differentiable in all three tensors; at a kink the derivative from the left is meant.

    Args:
        thresholds: θ, [..., M].
        points: x, [..., N], with the same leading dimensions, each of which is a problem of its own.
        weights: c, [..., N].
        power: k, 0 (a count of the points above), 1 or 2.

    Returns:
        [..., M].

    >>> hinge_sums(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]), torch.ones(2), power=2)
    tensor([10.,  1.])
    """
    return _HingeSums.apply(thresholds, points, weights, power)


class _HingeSums(torch.autograd.Function):
    @staticmethod
    def forward(thresholds: Tensor, points: Tensor, weights: Tensor, power: int) -> Tensor:
        return _sweep(thresholds, points, weights, power)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.power = inputs[3]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Seen from the points, the thresholds are points, mirrored: the derivatives are sums of hinges again."""
        thresholds, points, weights = ctx.saved_tensors
        power = ctx.power
        by_threshold = by_point = by_weight = None
        if ctx.needs_input_grad[0]:
            slope = hinge_sums(thresholds, points, weights, power - 1) if power else torch.zeros_like(grad)
            by_threshold = -power * grad * slope
        if ctx.needs_input_grad[1]:
            slope = hinge_sums(-points, -thresholds, grad, power - 1) if power else torch.zeros_like(points)
            by_point = power * weights * slope
        if ctx.needs_input_grad[2]:
            by_weight = hinge_sums(-points, -thresholds, grad, power)
        return by_threshold, by_point, by_weight, None


def _sweep(thresholds: Tensor, points: Tensor, weights: Tensor, power: int) -> Tensor:
    """Go down through thresholds and points, integrating: H_1 is the integral of H_0, H_2 twice that of H_1.

    Expanding the powers into prefix sums of x and x² would subtract large numbers from each other; here, with weights
    of one sign, only numbers of one sign are added, whatever the offset and the spread of the scores.
    """
    # Thresholds come first, and the sort is stable: a point at the threshold does not count as above.
    level, order = torch.cat([thresholds, points], -1).sort(stable=True, dim=-1, descending=True)
    sums = torch.cat([torch.zeros_like(thresholds), weights], -1).gather(-1, order).cumsum(-1)
    if power:
        gap = torch.zeros_like(level)
        gap[..., 1:] = level[..., :-1] - level[..., 1:]
        count = _shift(sums)
        sums = (gap * count).cumsum(-1)
        if power == 2:
            sums = (gap * (2 * _shift(sums) + gap * count)).cumsum(-1)
    return torch.empty_like(sums).scatter_(-1, order, sums)[..., : thresholds.shape[-1]]


def _shift(sums: Tensor) -> Tensor:
    """What each sum was one place earlier."""
    shifted = torch.zeros_like(sums)
    shifted[..., 1:] = sums[..., :-1]
    return shifted
