"""Sums of ramps over a set, for all thresholds at once, by sorting: O(n log n) time and O(n) memory.

The ramp rises from 0 at -δ to 1 at δ along two parabolas. A sum of ramps at a threshold θ therefore consists of a count
of the points above θ + δ and of second moments of the points in the two windows [θ - δ, θ) and [θ, θ + δ). Moments of a
window are differences of cumulative sums. The points are sorted into cells of width δ, and moments are taken about the
edge of each cell, so that neither the offset nor the spread of the scores costs digits. As δ is a power of two, the
edges are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fcco.functional._threads import in_order, slices

_BLOCK = 2**16  # thresholds, or points of short lists, that one thread works on at a time
_LONG = 2**17  # points from which on a list is sorted by several threads
_BUCKETS = 16  # that it is then divided into, at quantiles of a sample of this many values for each
_SAMPLE = 64

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
    return _RampSums.apply(thresholds, points, weights, order)[0]


class _RampSums(torch.autograd.Function):
    @staticmethod
    def forward(thresholds: Tensor, points: Tensor, weights: Tensor, order: int) -> tuple[Tensor, Tensor]:
        """Return the sums, and those of the next derivative, which the gradient needs."""
        if points.shape[-1] == 0 or thresholds.shape[-1] == 0:
            return torch.zeros_like(thresholds), torch.zeros_like(thresholds)
        if points.dim() == 1:
            everything = SortedPoints(points, weights)
            blocks = slices(len(thresholds), _BLOCK)
            parts = in_order(lambda some: everything.sums(thresholds[some], order), blocks, thresholds)
        else:
            blocks = slices(len(points), max(1, _BLOCK * len(points) // points.numel()))
            parts = in_order(
                lambda some: SortedPoints(points[some], weights[some]).sums(thresholds[some], order), blocks, thresholds
            )
        sums, slopes = zip(*parts, strict=True)
        return torch.cat(sums), torch.cat(slopes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:3], output[1])
        ctx.order = inputs[3]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """The derivatives are again sums of ramps, with points and thresholds mirrored and exchanged."""
        thresholds, points, weights, slopes = ctx.saved_tensors
        by_threshold = by_point = by_weight = None
        if torch.is_grad_enabled():  # second derivatives are wanted, so the slopes need a graph
            slopes = ramp_sums(thresholds, points, weights, ctx.order + 1)
        if ctx.needs_input_grad[0]:
            by_threshold = -grad * slopes
        if ctx.needs_input_grad[1]:
            by_point = weights * ramp_sums(-points, -thresholds, grad, ctx.order + 1)
        if ctx.needs_input_grad[2]:
            by_weight = ramp_sums(-points, -thresholds, grad, ctx.order)
        return by_threshold, by_point, by_weight, None


class _Moments(NamedTuple):
    """The zeroth, first and second moments of some points about the edge of their cell."""

    mass: Tensor
    first: Tensor
    second: Tensor

    def linear(self, offset: Tensor) -> Tensor:
        """Return the sum of c (offset - y), where y is a point's distance from the edge of its cell."""
        return offset * self.mass - self.first

    def square(self, offset: Tensor) -> Tensor:
        """Return the sum of c (offset - y)²."""
        return offset * (offset * self.mass - 2 * self.first) + self.second


class _Windows(NamedTuple):
    """For every threshold, the points within δ, in four parts from the top down, and where they lie.

    The upper window consists of a part of the previous cell and a part of the threshold's own cell, the lower window of
    a part of the own cell and a part of the following one. ``place`` is the threshold's distance from the edge of its
    cell, and ``above`` the weight of all points that are not below it.
    """

    upper: tuple[_Moments, _Moments]
    lower: tuple[_Moments, _Moments]
    place: Tensor
    above: Tensor

    def sums(self, order: int) -> Tensor:
        """Return the sums of the ramp or of a derivative; from the third on they are 0."""
        # Offsets of θ + δ and θ - δ from the edges of the cells that the four parts lie in.
        offsets = self.place, self.place - HALF_WIDTH, self.place + HALF_WIDTH, self.place
        parts = list(zip((*self.upper, *self.lower), offsets, strict=True))
        if order == 0:
            # The ramp is one minus a parabola in the upper window and a parabola in the lower one.
            squares = [part.square(offset) for part, offset in parts]
            return self.above + (squares[2] + squares[3] - squares[0] - squares[1]) / (2 * HALF_WIDTH**2)
        if order == 1:
            lines = [part.linear(offset) for part, offset in parts]
            return (lines[2] + lines[3] - lines[0] - lines[1]) / HALF_WIDTH**2
        if order == 2:
            masses = [part.mass for part, _ in parts]
            return (masses[2] + masses[3] - masses[0] - masses[1]) / HALF_WIDTH**2
        return torch.zeros_like(self.place)


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
        depth, shape = -points, points.shape
        self.depth, self.moments = depth.new_empty(shape), points.new_zeros(*shape[:-1], shape[-1] + 1, 3)
        begin = 0
        for part, moments in _sorted_parts(depth, weights):
            end = begin + part.shape[-1]
            self.depth[..., begin:end] = part
            self.moments[..., begin + 1 : end + 1, :] = moments + self.moments[..., begin : begin + 1, :]
            begin = end

    def sums(self, thresholds: Tensor, order: int) -> tuple[Tensor, Tensor]:
        """Return the sums for every threshold of a derivative of the ramp, and those of the next one."""
        if thresholds.dim() > 1:
            windows = self.windows(thresholds)
            return windows.sums(order), windows.sums(order + 1)
        # Next to each other in the order, thresholds find their places in the same part of the cache.
        rank = _argsort(thresholds)
        windows, both = self.windows(thresholds[rank]), thresholds.new_empty(2, len(thresholds))
        both[0, rank], both[1, rank] = windows.sums(order), windows.sums(order + 1)
        return both[0], both[1]

    def windows(self, thresholds: Tensor) -> _Windows:
        """Return the windows around every threshold."""
        depth = (-thresholds).contiguous()
        cell = _cells(depth)
        # Far from 0, where neighbouring numbers are further apart than δ, only points at the threshold are in a window.
        reach = HALF_WIDTH * (depth.abs() < HALF_WIDTH / torch.finfo(depth.dtype).eps)
        # A point above the threshold has a smaller depth. From the top down: where the upper window begins, the
        # threshold's cell begins, the threshold is, its cell ends, and the lower window ends.
        edges = torch.stack([depth - reach, cell * HALF_WIDTH, (cell + 1) * HALF_WIDTH, depth + reach], -2)
        begins, cell_begins, cell_ends, ends = self._search(edges, right=False)
        (here,) = self._search(depth.unsqueeze(-2), right=True)
        begins, cell_ends = begins.minimum(cell_begins), cell_ends.maximum(here)
        ends = ends.maximum(cell_ends)
        upto = [self._upto(place) for place in (begins, cell_begins, here, cell_ends, ends)]
        parts = [_Moments(*(b - a).unbind(-1)) for a, b in pairwise(upto)]
        return _Windows((parts[0], parts[1]), (parts[2], parts[3]), depth - cell * HALF_WIDTH, upto[2][..., 0])

    def _search(self, values: Tensor, right: bool) -> tuple[Tensor, ...]:
        """Return where values of shape (..., k, M) stand among the depths, as k tensors of shape (..., M)."""
        found = torch.searchsorted(self.depth, values.flatten(-2), right=right)
        return found.unflatten(-1, values.shape[-2:]).unbind(-2)

    def _upto(self, places: Tensor) -> Tensor:
        """Return the moments of all points that come before some places in the order, of shape (..., M, 3)."""
        return self.moments.gather(-2, places.unsqueeze(-1).expand(*places.shape, 3))


def _cells(depth: Tensor) -> Tensor:
    """Return the cells that depths lie in. A tiny negative depth, whose quotient is 0, lies in the cell before 0."""
    quotient = depth / HALF_WIDTH
    return quotient.floor().masked_fill_(quotient.eq(0) & (depth < 0), -1.0)


def _argsort(values: Tensor) -> Tensor:
    """Return the order of values of shape (N,); on a CPU by NumPy, which is three times as fast."""
    return torch.from_numpy(np.argsort(values.numpy())) if values.is_cpu else values.argsort()


def _sorted_parts(depth: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the depths in ascending order, part by part, with cumulative moments within each part."""
    if not depth.is_cpu or depth.dim() > 1 or len(depth) < _LONG:
        return iter([_sort(depth, weights)])
    sample = depth[:: len(depth) // (_BUCKETS * _SAMPLE)].sort().values
    edges = sample[_SAMPLE::_SAMPLE].contiguous()
    places = in_order(
        lambda some: torch.bucketize(depth[some], edges).to(torch.uint8), slices(len(depth), _BLOCK), depth
    )
    bucket = torch.cat(list(places))

    def part(number: int) -> tuple[Tensor, Tensor]:
        members = (bucket == number).nonzero().squeeze(-1)
        return _sort(depth[members], weights[members])

    return in_order(part, range(len(edges) + 1), depth)


def _sort(depth: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the depths in ascending order, and cumulative moments of shape (..., N, 3) about the edges of cells."""
    if depth.dim() == 1:
        order = _argsort(depth)
        depth = depth[order]
    else:
        depth, order = depth.contiguous().sort(-1)
    weights = weights.gather(-1, order)
    local = depth - _cells(depth) * HALF_WIDTH
    return depth, torch.stack([weights, weights * local, weights * local.square()], -1).cumsum(-2)
