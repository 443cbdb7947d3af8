"""Sums of hinges over a set, for all thresholds at once, by sorting: O(n log n) time and O(n) memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def hinge_sums(thresholds: Tensor, points: Tensor, weights: Tensor, power: int, margin: float = 0.0) -> Tensor:
    r"""For every threshold, the weighted sum of powers of hinges over all points.

    .. math:: H_k(\theta_i) = \sum_j c_j (m + x_j - \theta_i)_+^k

    The result can be differentiated any number of times in all three tensors. At a kink, the derivative is that from
    the left.

    Parameters
    ----------
    thresholds : Tensor of shape (..., M)
        The thresholds θ.
    points : Tensor of shape (..., N)
        The points x. Each index of the leading dimensions is a separate problem.
    weights : Tensor of shape (..., N)
        The weights c.
    power : {0, 1, 2}
        The exponent k; 0 counts the points above the threshold.
    margin : float, default 0.0
        The margin m. It has an effect even on thresholds so large that subtracting it changes nothing.

    Returns
    -------
    Tensor of shape (..., M)
        The sums H_k.

    Examples
    --------
    >>> hinge_sums(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]), torch.ones(2), power=2)
    tensor([10.,  1.])
    """
    return _HingeSums.apply(thresholds, points, weights, power, margin)


class _HingeSums(torch.autograd.Function):
    @staticmethod
    def forward(thresholds: Tensor, points: Tensor, weights: Tensor, power: int, margin: float) -> Tensor:
        return _sweep(thresholds, points, weights, power, margin)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, float], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.power, ctx.margin = inputs[3:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The derivatives are again sums of hinges, with points and thresholds mirrored and exchanged."""
        thresholds, points, weights = ctx.saved_tensors
        power, margin = ctx.power, ctx.margin
        by_threshold = by_point = by_weight = None
        if ctx.needs_input_grad[0]:
            slope = hinge_sums(thresholds, points, weights, power - 1, margin) if power else torch.zeros_like(grad)
            by_threshold = -power * grad * slope
        if ctx.needs_input_grad[1]:
            slope = hinge_sums(-points, -thresholds, grad, power - 1, margin) if power else torch.zeros_like(points)
            by_point = power * weights * slope
        if ctx.needs_input_grad[2]:
            by_weight = hinge_sums(-points, -thresholds, grad, power, margin)
        return by_threshold, by_point, by_weight, None, None


def _sweep(thresholds: Tensor, points: Tensor, weights: Tensor, power: int, margin: float) -> Tensor:
    """Integrate downwards over thresholds and points: H_1 is the integral of H_0, and H_2 twice the integral of H_1.

    Expanding the powers into prefix sums of x and x² would subtract large numbers from each other. Here, with weights
    of one sign, all summands have the same sign, whatever the offset and the spread of the scores.
    """
    lowered = thresholds - margin
    # Thresholds come first and the sort is stable, so a point at the threshold does not count as above it.
    level = torch.cat([lowered, points], -1)
    rest = torch.cat([lost_digits(thresholds, lowered, margin), torch.zeros_like(points)], -1)
    by_rest = rest.argsort(stable=True, dim=-1, descending=True)
    level, order = level.gather(-1, by_rest).sort(stable=True, dim=-1, descending=True)
    order = by_rest.gather(-1, order)
    rest = rest.gather(-1, order)
    sums = torch.cat([torch.zeros_like(thresholds), weights], -1).gather(-1, order).cumsum(-1)
    if power:
        gap = torch.zeros_like(level)
        gap[..., 1:] = (level[..., :-1] - level[..., 1:]) + (rest[..., :-1] - rest[..., 1:])
        count = _shift(sums)
        sums = (gap * count).cumsum(-1)
        if power == 2:
            sums = (gap * (2 * _shift(sums) + gap * count)).cumsum(-1)
    return torch.empty_like(sums).scatter_(-1, order, sums)[..., : thresholds.shape[-1]]


def lost_digits(thresholds: Any, lowered: Any, margin: float) -> Any:
    """Return the rounding error of ``lowered = thresholds - margin``.

    Errors below a millionth of the margin are returned as 0, so that a point at the kink stays at the kink.
    """
    step = lowered - thresholds
    lost = (thresholds - (lowered - step)) - (margin + step)  # the exact error, by Knuth's two-sum
    return lost * (abs(lost) > margin * 2**-20)


def _shift(sums: Tensor) -> Tensor:
    """Return the sums shifted by one place, starting with 0."""
    shifted = torch.zeros_like(sums)
    shifted[..., 1:] = sums[..., :-1]
    return shifted
