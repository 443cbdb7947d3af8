"""Projections on convex sets, proximal operators, and regularisers that have one.

A set is a function from a tensor to its nearest point, so that it fits ``MovingAverageSGD(projection=...)`` and
``fcco.solve(..., projection=...)`` once its options are given: ``functools.partial(project_ball, radius=2.0)``. A
tensor of any shape is one vector; ``dim`` makes it one vector along that dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fcco._checks import check_finite, shape_of
from fcco.theory._checks import non_negative, positive

__all__ = [
    "ElasticNet",
    "Regulariser",
    "SquaredL2",
    "project_ball",
    "project_box",
    "project_l1_ball",
    "project_simplex",
    "prox_elastic_net",
    "prox_l1",
    "prox_l2",
]


def _check_point(x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a tensor of a floating dtype, got {got}")


def project_ball(
    x: Tensor, radius: float = 1.0, *, center: Tensor | float = 0.0, dim: int | tuple[int, ...] | None = None
) -> Tensor:
    r"""The nearest point of a Euclidean ball.

    .. math:: P(x) = c + (x - c) \min(1, r / \|x - c\|)

    Args:
        x: any shape.
        radius: r > 0.
        center: c, a number or of a shape that broadcasts against ``x``.
        dim: project along these dimensions only; all of ``x`` is one vector otherwise.

    Raises:
        TypeError: ``x`` is not of a floating dtype.
        ValueError: the radius is not positive, ``x`` is not finite, or ``center`` does not broadcast against it.

    >>> project_ball(torch.tensor([3.0, 4.0]), radius=1.0)
    tensor([0.6000, 0.8000])
    """
    positive("radius", radius)
    _check_point(x)
    if x.numel() == 0:
        return x
    middle = _like(x, center=center)
    offset = x - middle
    check_finite(offset, log=False, name="(x - center)")
    # Powers of two are divided out, exactly: neither squares nor quotients overflow then, whatever the dtype.
    scale = _power_of_two(offset.detach(), dim)
    size = math.ldexp(1.0, math.frexp(radius)[1] - 1)
    direction = offset / scale.to(x.dtype)
    norm = torch.linalg.vector_norm(direction, dim=dim, keepdim=True, dtype=torch.float64)
    inside = norm * scale <= radius
    ratio = torch.where(inside, 1.0, norm / (radius / size)).to(x.dtype)
    return torch.where(inside, x, middle + direction / ratio * size)


def _power_of_two(x: Tensor, dim: int | tuple[int, ...] | None) -> Tensor:
    """The largest one that is not above any |x|, in float64; 1 where all are 0."""
    largest = x.abs().amax(() if dim is None else dim, keepdim=True).double()
    return torch.where(largest > 0, largest / (2 * torch.frexp(largest).mantissa), 1.0)


def _like(x: Tensor, **given: Tensor | float) -> Tensor:
    """A number or tensor as one of the dtype of ``x`` that broadcasts to its shape."""
    ((name, value),) = given.items()
    try:
        tensor = torch.as_tensor(value).to(x)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number or a tensor, got {value!r}") from None
    try:
        tensor.expand(x.shape)
    except RuntimeError:
        raise ValueError(f"{name} {shape_of(tensor)} does not broadcast to x {shape_of(x)}") from None
    return tensor


def project_box(x: Tensor, lower: Tensor | float = -math.inf, upper: Tensor | float = math.inf) -> Tensor:
    r"""The nearest point of a box, :math:`\min(\max(x, l), u)`.

    Args:
        x: any shape.
        lower: l, a number or of a shape that broadcasts against ``x``; none by default.
        upper: u, likewise.

    Raises:
        TypeError: ``x`` is not of a floating dtype.
        ValueError: a lower bound is above the upper one, and the box is empty, or a bound does not broadcast.

    >>> project_box(torch.tensor([-2.0, 0.5, 2.0]), 0.0, 1.0)
    tensor([0.0000, 0.5000, 1.0000])
    """
    _check_point(x)
    low, high = _like(x, lower=lower), _like(x, upper=upper)
    if not (low <= high).all():
        raise ValueError(f"lower must not be above upper, got lower={lower!r} and upper={upper!r}")
    return torch.minimum(torch.maximum(x, low), high)


def project_simplex(x: Tensor, radius: float = 1.0, *, dim: int | None = None) -> Tensor:
    r"""The nearest point of a simplex, :math:`\{y : y \ge 0, \sum y = r\}`, by sorting.

    .. math:: P(x) = \max(x - \theta, 0) \quad\text{with } \theta \text{ such that it sums to } r

    Args:
        x: any shape, at least one element.
        radius: r > 0, what the entries add up to.
        dim: project along this dimension only; all of ``x`` is one vector otherwise.

    Raises:
        TypeError: ``x`` is not of a floating dtype.
        ValueError: the radius is not positive, or ``x`` is not finite.

    Reference: Duchi et al., *Efficient Projections onto the l1-Ball*, ICML 2008.

    >>> project_simplex(torch.tensor([0.5, 1.0, -1.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """
    positive("radius", radius)
    _check_point(x)
    check_finite(x, log=False, name="x")
    if dim is None:
        return project_simplex(x.reshape(-1), radius, dim=0).reshape(x.shape)
    # Entries further than the radius below the largest are zero; from the largest on, sums keep their precision.
    shifted = x - x.amax(dim, keepdim=True)
    ordered = shifted.sort(dim, descending=True).values
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    counts = torch.arange(1, x.shape[dim] + 1, dtype=x.dtype, device=x.device).view(shape)
    thresholds = (ordered.cumsum(dim) - radius) / counts
    support = (ordered > thresholds).sum(dim, keepdim=True)
    return (shifted - thresholds.gather(dim, support - 1)).clamp(min=0)


def project_l1_ball(x: Tensor, radius: float = 1.0, *, dim: int | None = None) -> Tensor:
    r"""The nearest point of :math:`\{y : \|y\|_1 \le r\}`: the signs of x, and its sizes on the simplex if too large.

    Args:
        x: any shape, at least one element.
        radius: r > 0.
        dim: project along this dimension only; all of ``x`` is one vector otherwise.

    Raises:
        TypeError: ``x`` is not of a floating dtype.
        ValueError: the radius is not positive, or ``x`` is not finite.

    >>> project_l1_ball(torch.tensor([-0.5, 1.0, 0.1]))
    tensor([-0.2500,  0.7500,  0.0000])
    """
    positive("radius", radius)
    _check_point(x)
    check_finite(x, log=False, name="x")
    sizes = x.abs()
    total = sizes.sum() if dim is None else sizes.sum(dim, keepdim=True)
    return torch.where(total <= radius, x, x.sign() * project_simplex(sizes, radius, dim=dim))


def prox_l1(x: Tensor, step: float, weight: float = 1.0) -> Tensor:
    r"""The soft threshold.

    .. math:: \arg\min_y s \lambda \|y\|_1 + \tfrac 1 2 \|y - x\|^2 = \mathrm{sign}(x) \max(|x| - s \lambda, 0)

    Args:
        x: any shape.
        step: s >= 0.
        weight: lambda >= 0.

    Raises:
        ValueError: a negative step or weight.

    >>> prox_l1(torch.tensor([-2.0, 0.3]), step=0.5)
    tensor([-1.5000,  0.0000])
    """
    non_negative("step", step)
    non_negative("weight", weight)
    return x - x.clamp(-step * weight, step * weight)


def prox_l2(x: Tensor, step: float, weight: float = 1.0) -> Tensor:
    r"""The proximal operator of half the *squared* norm.

    .. math:: \arg\min_y \tfrac{s \lambda} 2 \|y\|^2 + \tfrac 1 2 \|y - x\|^2 = x / (1 + s \lambda)

    Args:
        x: any shape.
        step: s >= 0.
        weight: lambda >= 0.

    Raises:
        ValueError: a negative step or weight.

    >>> prox_l2(torch.tensor([3.0]), step=0.5)
    tensor([2.])
    """
    non_negative("step", step)
    non_negative("weight", weight)
    return x / (1 + step * weight)


def prox_elastic_net(x: Tensor, step: float, l1: float = 1.0, l2: float = 1.0) -> Tensor:
    r"""The proximal operator of :math:`l_1 \|y\|_1 + \tfrac{l_2} 2 \|y\|^2`: a soft threshold, then a shrinkage.

    Args:
        x: any shape.
        step: s >= 0.
        l1: weight of the absolute values, >= 0.
        l2: weight of half the squares, >= 0.

    Raises:
        ValueError: a negative step or weight.

    >>> prox_elastic_net(torch.tensor([3.5]), step=0.5)
    tensor([2.])
    """
    return prox_l2(prox_l1(x, step, l1), step, l2)


@runtime_checkable
class Regulariser(Protocol):
    """A convex R that :func:`fcco.solve` adds to F: its value, its proximal step, and how strongly convex it is."""

    @property
    def mu(self) -> float:
        """The largest mu for which R - mu/2 |w|^2 is convex."""
        ...

    def __call__(self, w: Tensor) -> Tensor:
        """R(w), a scalar."""
        ...

    def prox(self, w: Tensor, step: float) -> Tensor:
        """The point y where step * R(y) + |y - w|^2 / 2 is least."""
        ...


@dataclass(frozen=True)
class SquaredL2:
    """R(w) = mu/2 |w|^2.

    >>> SquaredL2(mu=0.5)(torch.tensor([2.0, 0.0]))
    tensor(1.)
    """

    mu: float

    def __post_init__(self) -> None:
        non_negative("mu", self.mu)

    def __call__(self, w: Tensor) -> Tensor:
        """R(w)."""
        return self.mu / 2 * w.square().sum()

    def prox(self, w: Tensor, step: float) -> Tensor:
        """See :func:`prox_l2`."""
        return prox_l2(w, step, self.mu)


@dataclass(frozen=True)
class ElasticNet:
    """R(w) = l1 |w|_1 + l2/2 |w|^2, strongly convex with mu = l2, and not smooth at 0.

    >>> ElasticNet(l1=1.0, l2=0.5)(torch.tensor([2.0, 0.0]))
    tensor(3.)
    """

    l1: float
    l2: float

    def __post_init__(self) -> None:
        non_negative("l1", self.l1)
        non_negative("l2", self.l2)

    @property
    def mu(self) -> float:
        """How strongly convex R is: l2."""
        return self.l2

    def __call__(self, w: Tensor) -> Tensor:
        """R(w)."""
        return self.l1 * w.abs().sum() + self.l2 / 2 * w.square().sum()

    def prox(self, w: Tensor, step: float) -> Tensor:
        """See :func:`prox_elastic_net`."""
        return prox_elastic_net(w, step, self.l1, self.l2)
