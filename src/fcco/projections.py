"""Projections onto convex sets, proximal operators, and regularisers.

A set is represented by a function that maps a tensor to the nearest point of the set. With its options fixed, as in
``functools.partial(project_ball, radius=2.0)``, it can be passed to ``MovingAverageSGD(projection=...)`` and to
``fcco.solve(..., projection=...)``. A tensor of any shape is treated as one vector. With ``dim``, every slice along
that dimension is a vector.
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
        raise TypeError(f"x must be a tensor of a floating dtype; got {got}")


def project_ball(
    x: Tensor, radius: float = 1.0, *, center: Tensor | float = 0.0, dim: int | tuple[int, ...] | None = None
) -> Tensor:
    r"""Project onto a Euclidean ball.

    .. math:: P(x) = c + (x - c) \min(1, r / \|x - c\|)

    Parameters
    ----------
    x : Tensor
        Any shape.
    radius : float, default 1.0
        r, positive.
    center : float or Tensor, default 0.0
        c, of a shape that broadcasts to that of ``x``.
    dim : int or tuple of int, optional
        Dimensions that form a vector. By default all of ``x`` is one vector.

    Returns
    -------
    Tensor
        The nearest point of the ball, of the shape of ``x``.

    Raises
    ------
    TypeError
        If ``x`` is not of a floating dtype.
    ValueError
        If the radius is not positive, if ``x`` is not finite, or if ``center`` does not broadcast to it.

    Examples
    --------
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
    # Dividing by powers of two is exact, and keeps squares and quotients from overflowing in any dtype.
    scale = _power_of_two(offset.detach(), dim)
    size = math.ldexp(1.0, math.frexp(radius)[1] - 1)
    direction = offset / scale.to(x.dtype)
    norm = torch.linalg.vector_norm(direction, dim=dim, keepdim=True, dtype=torch.float64)
    inside = norm * scale <= radius
    ratio = torch.where(inside, 1.0, norm / (radius / size)).to(x.dtype)
    return torch.where(inside, x, middle + direction / ratio * size)


def _power_of_two(x: Tensor, dim: int | tuple[int, ...] | None) -> Tensor:
    """Return the largest power of two that does not exceed the largest |x|, in float64, or 1 if all of x is 0."""
    largest = x.abs().amax(() if dim is None else dim, keepdim=True).double()
    return torch.where(largest > 0, largest / (2 * torch.frexp(largest).mantissa), 1.0)


def _like(x: Tensor, **given: Tensor | float) -> Tensor:
    """Return a number or tensor as a tensor of the dtype of ``x`` that broadcasts to its shape."""
    ((name, value),) = given.items()
    try:
        tensor = torch.as_tensor(value).to(x)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number or a tensor; got {value!r}") from None
    try:
        tensor.expand(x.shape)
    except RuntimeError:
        raise ValueError(
            f"{name} must broadcast to the shape {shape_of(x)} of x; got the shape {shape_of(tensor)}"
        ) from None
    return tensor


def project_box(x: Tensor, lower: Tensor | float = -math.inf, upper: Tensor | float = math.inf) -> Tensor:
    r"""Project onto a box, :math:`P(x) = \min(\max(x, l), u)`.

    Parameters
    ----------
    x : Tensor
        Any shape.
    lower : float or Tensor, optional
        l, of a shape that broadcasts to that of ``x``. By default there is no lower bound.
    upper : float or Tensor, optional
        u, of a shape that broadcasts to that of ``x``. By default there is no upper bound.

    Returns
    -------
    Tensor
        The nearest point of the box, of the shape of ``x``.

    Raises
    ------
    TypeError
        If ``x`` is not of a floating dtype.
    ValueError
        If a lower bound is above the upper one, so that the box is empty, or if a bound does not broadcast.

    Examples
    --------
    >>> project_box(torch.tensor([-2.0, 0.5, 2.0]), 0.0, 1.0)
    tensor([0.0000, 0.5000, 1.0000])
    """
    _check_point(x)
    low, high = _like(x, lower=lower), _like(x, upper=upper)
    if not (low <= high).all():
        raise ValueError(f"lower must not be above upper; got lower={lower!r} and upper={upper!r}")
    return torch.minimum(torch.maximum(x, low), high)


def project_simplex(x: Tensor, radius: float = 1.0, *, dim: int | None = None) -> Tensor:
    r"""Project onto a simplex, :math:`\{y : y \ge 0, \sum y = r\}`, by sorting.

    .. math:: P(x) = \max(x - \theta, 0) \quad\text{with } \theta \text{ such that it sums to } r

    Parameters
    ----------
    x : Tensor
        Any shape with at least one element.
    radius : float, default 1.0
        r, positive: the sum of the entries.
    dim : int, optional
        Dimension that forms a vector. By default all of ``x`` is one vector.

    Returns
    -------
    Tensor
        The nearest point of the simplex, of the shape of ``x``.

    Raises
    ------
    TypeError
        If ``x`` is not of a floating dtype.
    ValueError
        If the radius is not positive, or if ``x`` is not finite.

    References
    ----------
    Duchi et al., *Efficient Projections onto the l1-Ball for Learning in High Dimensions*, ICML 2008.

    Examples
    --------
    >>> project_simplex(torch.tensor([0.5, 1.0, -1.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """
    positive("radius", radius)
    _check_point(x)
    check_finite(x, log=False, name="x")
    if dim is None:
        return project_simplex(x.reshape(-1), radius, dim=0).reshape(x.shape)
    # Entries more than the radius below the largest become zero. Measured from the largest, sums keep their precision.
    shifted = x - x.amax(dim, keepdim=True)
    ordered = shifted.sort(dim, descending=True).values
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    counts = torch.arange(1, x.shape[dim] + 1, dtype=x.dtype, device=x.device).view(shape)
    thresholds = (ordered.cumsum(dim) - radius) / counts
    support = (ordered > thresholds).sum(dim, keepdim=True)
    return (shifted - thresholds.gather(dim, support - 1)).clamp(min=0)


def project_l1_ball(x: Tensor, radius: float = 1.0, *, dim: int | None = None) -> Tensor:
    r"""Project onto :math:`\{y : \|y\|_1 \le r\}`.

    A point outside the ball keeps its signs, and its absolute values are projected onto the simplex.

    Parameters
    ----------
    x : Tensor
        Any shape with at least one element.
    radius : float, default 1.0
        r, positive.
    dim : int, optional
        Dimension that forms a vector. By default all of ``x`` is one vector.

    Returns
    -------
    Tensor
        The nearest point of the ball, of the shape of ``x``.

    Raises
    ------
    TypeError
        If ``x`` is not of a floating dtype.
    ValueError
        If the radius is not positive, or if ``x`` is not finite.

    Examples
    --------
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
    r"""Return the proximal point of the l1 norm, by a soft threshold.

    .. math:: \arg\min_y s \lambda \|y\|_1 + \tfrac 1 2 \|y - x\|^2 = \mathrm{sign}(x) \max(|x| - s \lambda, 0)

    Parameters
    ----------
    x : Tensor
        Any shape.
    step : float
        s, at least 0.
    weight : float, default 1.0
        :math:`\lambda`, at least 0.

    Returns
    -------
    Tensor
        The proximal point, of the shape of ``x``.

    Raises
    ------
    ValueError
        If the step or a weight is negative.

    Examples
    --------
    >>> prox_l1(torch.tensor([-2.0, 0.3]), step=0.5)
    tensor([-1.5000,  0.0000])
    """
    non_negative("step", step)
    non_negative("weight", weight)
    return x - x.clamp(-step * weight, step * weight)


def prox_l2(x: Tensor, step: float, weight: float = 1.0) -> Tensor:
    r"""Return the proximal point of half the *squared* norm.

    .. math:: \arg\min_y \tfrac{s \lambda} 2 \|y\|^2 + \tfrac 1 2 \|y - x\|^2 = x / (1 + s \lambda)

    Parameters
    ----------
    x : Tensor
        Any shape.
    step : float
        s, at least 0.
    weight : float, default 1.0
        :math:`\lambda`, at least 0.

    Returns
    -------
    Tensor
        The proximal point, of the shape of ``x``.

    Raises
    ------
    ValueError
        If the step or a weight is negative.

    Examples
    --------
    >>> prox_l2(torch.tensor([3.0]), step=0.5)
    tensor([2.])
    """
    non_negative("step", step)
    non_negative("weight", weight)
    return x / (1 + step * weight)


def prox_elastic_net(x: Tensor, step: float, l1: float = 1.0, l2: float = 1.0) -> Tensor:
    r"""Return the proximal point of :math:`l_1 \|y\|_1 + \tfrac{l_2} 2 \|y\|^2`: a soft threshold, then a shrinkage.

    Parameters
    ----------
    x : Tensor
        Any shape.
    step : float
        s, at least 0.
    l1 : float, default 1.0
        Weight of the absolute values, at least 0.
    l2 : float, default 1.0
        Weight of half the squares, at least 0.

    Returns
    -------
    Tensor
        The proximal point, of the shape of ``x``.

    Raises
    ------
    ValueError
        If the step or a weight is negative.

    Examples
    --------
    >>> prox_elastic_net(torch.tensor([3.5]), step=0.5)
    tensor([2.])
    """
    return prox_l2(prox_l1(x, step, l1), step, l2)


@runtime_checkable
class Regulariser(Protocol):
    """A convex function R that :func:`fcco.solve` adds to F.

    It has a value, a proximal step, and a modulus of strong convexity.
    """

    @property
    def mu(self) -> float:
        """The largest mu for which R - mu/2 |w|^2 is convex."""
        ...

    def __call__(self, w: Tensor) -> Tensor:
        """Return R(w), a scalar."""
        ...

    def prox(self, w: Tensor, step: float) -> Tensor:
        """Return the y that minimises step * R(y) + |y - w|^2 / 2.

        Parameters
        ----------
        w : Tensor
            Any shape.
        step : float
            The step size, at least 0.

        Returns
        -------
        Tensor
            The proximal point, of the shape of ``w``.
        """
        ...


@dataclass(frozen=True)
class SquaredL2:
    """The regulariser R(w) = mu/2 |w|^2.

    Parameters
    ----------
    mu : float
        The weight, at least 0.

    Raises
    ------
    ValueError
        If the weight is negative.

    Examples
    --------
    >>> SquaredL2(mu=0.5)(torch.tensor([2.0, 0.0]))
    tensor(1.)
    """

    mu: float

    def __post_init__(self) -> None:
        non_negative("mu", self.mu)

    def __call__(self, w: Tensor) -> Tensor:
        """Return R(w)."""
        return self.mu / 2 * w.square().sum()

    def prox(self, w: Tensor, step: float) -> Tensor:
        """Return :func:`prox_l2` of w.

        Parameters
        ----------
        w : Tensor
            Any shape.
        step : float
            The step size, at least 0.

        Returns
        -------
        Tensor
            The proximal point, of the shape of ``w``.

        Raises
        ------
        ValueError
            If the step is negative.
        """
        return prox_l2(w, step, self.mu)


@dataclass(frozen=True)
class ElasticNet:
    """The regulariser R(w) = l1 |w|_1 + l2/2 |w|^2, which is strongly convex with mu = l2, and not smooth at 0.

    Parameters
    ----------
    l1 : float
        Weight of the absolute values, at least 0.
    l2 : float
        Weight of half the squares, at least 0.

    Raises
    ------
    ValueError
        If a weight is negative.

    Examples
    --------
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
        """The modulus of strong convexity of R, l2."""
        return self.l2

    def __call__(self, w: Tensor) -> Tensor:
        """Return R(w)."""
        return self.l1 * w.abs().sum() + self.l2 / 2 * w.square().sum()

    def prox(self, w: Tensor, step: float) -> Tensor:
        """Return :func:`prox_elastic_net` of w.

        Parameters
        ----------
        w : Tensor
            Any shape.
        step : float
            The step size, at least 0.

        Returns
        -------
        Tensor
            The proximal point, of the shape of ``w``.

        Raises
        ------
        ValueError
            If the step is negative.
        """
        return prox_elastic_net(w, step, self.l1, self.l2)
