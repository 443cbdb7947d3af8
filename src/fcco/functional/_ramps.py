"""Sums of ramps over a set, for all thresholds at once, by sorting: O(n log n) time and O(n) memory.

The ramp rises from 0 at -δ to 1 at δ along two parabolas. A sum of ramps at a threshold θ therefore consists of a count
of the points above θ + δ and of second moments of the points in the two windows [θ - δ, θ) and [θ, θ + δ). Moments of a
window are differences of cumulative sums. The points are sorted into cells of width δ, and moments are taken about the
edge of each cell, so that neither the offset nor the spread of the scores costs digits. As δ is a power of two, the
edges are exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_WIDTH = 4.0
"""δ, at which the ramp has the slope of the sigmoid at 0; it also fits it best in the mean square, to 0.01."""


def ramp(t: Tensor) -> Tensor:
    r"""Return the ramp :math:`[(t + δ)_+^2 - 2 t_+^2 + (t - δ)_+^2] / 2 δ^2`, elementwise."""
    place = (t / HALF_WIDTH).clamp(-1, 1)
    return 0.5 + place * (1 - 0.5 * place.abs())


def ramp_slope(t: Tensor) -> Tensor:
    """Return the derivative of :func:`ramp`, a tent of height 1 / δ."""
    return F.relu(1 - t.abs() / HALF_WIDTH) / HALF_WIDTH


def ramp_sums(thresholds: Tensor, points: Tensor, weights: Tensor, order: int = 0) -> Tensor:
    r"""For every threshold, the weighted sum of ramps over all points.

    .. math:: R(\theta_i) = \sum_j c_j \, \ell^{(k)}(x_j - \theta_i)

    The result can be differentiated twice in all three tensors.

    Parameters
    ----------
    thresholds : Tensor of shape (..., M)
        The thresholds θ.
    points : Tensor of shape (..., N)
        The points x. Each index of the leading dimensions is a separate problem.
    weights : Tensor of shape (..., N)
        The weights c.
    order : {0, 1, 2}, default 0
        Which derivative k of the ramp to sum.

    Returns
    -------
    Tensor of shape (..., M)
        The sums R.

    Examples
    --------
    >>> ramp_sums(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 9.0]), torch.ones(2))
    tensor([1.5000, 1.1250])
    """
    return _RampSums.apply(thresholds, points, weights, order)


class _RampSums(torch.autograd.Function):
    @staticmethod
    def forward(thresholds: Tensor, points: Tensor, weights: Tensor, order: int) -> Tensor:
        if points.shape[-1] == 0:
            return torch.zeros_like(thresholds)
        return SortedPoints(points, weights).sums(thresholds, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.order = inputs[3]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The derivatives are again sums of ramps, with points and thresholds mirrored and exchanged."""
        thresholds, points, weights = ctx.saved_tensors
        order = ctx.order
        by_threshold = by_point = by_weight = None
        if ctx.needs_input_grad[0] and order < 2:
            by_threshold = -grad * ramp_sums(thresholds, points, weights, order + 1)
        if ctx.needs_input_grad[1] and order < 2:
            by_point = weights * ramp_sums(-points, -thresholds, grad, order + 1)
        if ctx.needs_input_grad[2]:
            by_weight = ramp_sums(-points, -thresholds, grad, order)
        return by_threshold, by_point, by_weight, None


class _Moments(NamedTuple):
    """The zeroth, first and second moments of the points of a window about the edge of their cell."""

    count: Tensor
    first: Tensor
    second: Tensor


class SortedPoints:
    """Points that are sorted into cells of width δ, with cumulative moments from the highest point down.

    Parameters
    ----------
    points : Tensor of shape (..., N)
        The points x.
    weights : Tensor of shape (..., N)
        The weights c.
    """

    def __init__(self, points: Tensor, weights: Tensor) -> None:
        # Depths ascend from the highest point, so that sums over the points above a threshold come first.
        self.depth, order = (-points).contiguous().sort(-1)
        weights = weights.gather(-1, order)
        self.cell = (self.depth / HALF_WIDTH).floor()
        local = self.depth - self.cell * HALF_WIDTH
        sums = [F.pad(part.cumsum(-1), (1, 0)) for part in (weights, weights * local, weights * local.square())]
        self.count, self.first, self.second = sums

    def sums(self, thresholds: Tensor, order: int) -> Tensor:
        """Return the sums of the ramp, or of a derivative, at every threshold."""
        depth = (-thresholds).contiguous()
        cell = (depth / HALF_WIDTH).floor()
        # A point above the threshold has a smaller depth. From the top down: where the upper window begins, the
        # threshold's cell begins, the threshold is, its cell ends, and the lower window ends.
        cell_begins, cell_ends = (torch.searchsorted(self.cell, cell, right=right) for right in (False, True))
        # Far from 0, where neighbouring numbers are further apart than δ, only points at the threshold are in a window.
        reach = HALF_WIDTH * (depth.abs() < HALF_WIDTH / torch.finfo(depth.dtype).eps)
        begins = torch.searchsorted(self.depth, depth - reach).minimum(cell_begins)
        here = torch.searchsorted(self.depth, depth, right=True)
        ends = torch.searchsorted(self.depth, depth + reach).maximum(cell_ends)
        upper = self._between(begins, cell_begins), self._between(cell_begins, here)
        lower = self._between(here, cell_ends), self._between(cell_ends, ends)
        previous, same, following = (depth - (cell + k) * HALF_WIDTH for k in (-1, 0, 1))
        if order == 0:
            # One minus a parabola in the upper window, a parabola in the lower one; t = depth - point's depth.
            shortfall = _square(upper[0], previous - HALF_WIDTH) + _square(upper[1], same - HALF_WIDTH)
            excess = _square(lower[0], same + HALF_WIDTH) + _square(lower[1], following + HALF_WIDTH)
            above = self.count.gather(-1, here)
            return above + (excess - shortfall) / (2 * HALF_WIDTH**2)
        if order == 1:
            falling = _linear(upper[0], previous - HALF_WIDTH) + _linear(upper[1], same - HALF_WIDTH)
            rising = _linear(lower[0], same + HALF_WIDTH) + _linear(lower[1], following + HALF_WIDTH)
            return (rising - falling) / HALF_WIDTH**2
        return (lower[0].count + lower[1].count - upper[0].count - upper[1].count) / HALF_WIDTH**2

    def _between(self, begin: Tensor, end: Tensor) -> _Moments:
        """Return the moments of the points from one place in the order to another, all in the same cell."""
        differences = (part.gather(-1, end) - part.gather(-1, begin) for part in (self.count, self.first, self.second))
        return _Moments(*differences)


def _linear(window: _Moments, offset: Tensor) -> Tensor:
    """Return the sum of c (offset - y) over a window, where y is a point's distance from the edge of its cell."""
    return offset * window.count - window.first


def _square(window: _Moments, offset: Tensor) -> Tensor:
    """Return the sum of c (offset - y)² over a window."""
    return offset * (offset * window.count - 2 * window.first) + window.second
