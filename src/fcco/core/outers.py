"""Outer functions f: their value, and their derivative in u, or in log u for those in log space."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fcco.core.arrays import Array, can_read, filled, namespace, stacked


class Outer:
    """f of every row. ``rows`` are their numbers and ``sample`` is what the caller gives, for an f of the caller's."""

    arrays = True
    """Whether it works on NumPy's arrays too."""

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        """Return f, [m]."""
        raise NotImplementedError

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        """Return the derivative, of the shape of u."""
        raise NotImplementedError


@dataclass(frozen=True)
class Share(Outer):
    """f = -u_1 / (u_1 + u_2), or with ``likelihood`` its logarithm, given u or log u."""

    log: bool = False
    likelihood: bool = False

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        xp, (one, two) = namespace(u), u.T
        if not self.log:
            share = one / (one + two)
            return -xp.log(share) if self.likelihood else -share
        log_share = one - xp.logaddexp(one, two)
        return -log_share if self.likelihood else -xp.exp(log_share)

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        xp, (one, two) = namespace(u), u.T
        if not self.log:
            total = one + two
            per = 1 / (one if self.likelihood else total)
            return stacked([-(two / total) * per, (one / total) * per]).T
        total = xp.logaddexp(one, two)
        of_two = xp.exp(two - total)
        slope = of_two if self.likelihood else of_two * xp.exp(one - total)
        return stacked([-slope, slope]).T


@dataclass(frozen=True)
class Power(Outer):
    """f = u^p."""

    p: float
    log: bool = False

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return namespace(u).exp(self.p * u) if self.log else u**self.p

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return self.p * (self.value(u, rows) if self.log else u ** (self.p - 1))


@dataclass(frozen=True)
class Logarithm(Outer):
    """f = factor * the mean over the columns of log u, given log u."""

    factor: float = 1.0

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return self.factor * (u.mean(1) if u.ndim == 2 else u)

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return filled(u, self.factor / (u.shape[1] if u.ndim == 2 else 1))


@dataclass(frozen=True)
class LogRatio(Outer):
    """f = log(u_2 / u_1), given log u."""

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return u[:, 1] - u[:, 0]

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return namespace(u).stack([0 * u[:, 0] - 1, 0 * u[:, 0] + 1], 1)


@dataclass(frozen=True)
class Logistic(Outer):
    """f = log(1 + e^-u)."""

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        xp = namespace(u)
        return xp.logaddexp(xp.zeros_like(u), -u)

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return -1 / (1 + namespace(u).exp(u))


@dataclass(frozen=True)
class PowerOfLog(Outer):
    """f = u^p / e^peak, given log u. A row that is still far above the peak counts as far as it can."""

    p: float
    peak: Any = 0.0

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return namespace(u).exp((self.p * u - self.peak).clip(None, 60.0))

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return self.p * self.value(u, rows) * (self.p * u - self.peak <= 60.0)


@dataclass(frozen=True)
class AmongHighest(Outer):
    """f = u_3 / share, times how much of one that is level with the part u_1 and below the part u_2 is in the share.

    The latter has no slope: at the edge, the loss of the one that enters is that of the one that leaves.
    """

    share: float

    def _inside(self, u: Array) -> Array:
        kind = namespace(u).finfo(u.dtype)
        return ((self.share - u[:, 1]) / u[:, 0].clip(kind.tiny, None)).clip(0, 1) / self.share

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return self._inside(u) * u[:, 2]

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        inside = self._inside(u)
        return namespace(u).stack([0 * inside, 0 * inside, inside], 1)


@dataclass(frozen=True)
class Margin(Outer):
    """f = Var_1 + Var_2 + (margin + u_2 - u_1)₊², given two means, u_1 and u_2, and those of the squares."""

    margin: float

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        one, two, squares, others = u.T
        spread = (squares - one * one).clip(0, None) + (others - two * two).clip(0, None)
        return spread + (self.margin + two - one).clip(0, None) ** 2

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        one, two = u.T[:2]
        height = (self.margin + two - one).clip(0, None)
        return 2 * namespace(u).stack([-one - height, height - two, 0 * one + 0.5, 0 * one + 0.5], 1)


@dataclass(frozen=True)
class Linear(Outer):
    """f = u."""

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return u

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        return namespace(u).ones_like(u)


@dataclass(frozen=True)
class Discount(Outer):
    """f = -1 / log2(1 + u) for ranks u, or log ranks; of the first k places only, by a sigmoid of ``sharpness``."""

    log: bool = False
    k: int | None = None
    sharpness: float = 2.0

    def _parts(self, u: Array) -> tuple[Array, Array, Array, Array]:
        """Return the discount and the part of the first places, each with its slope in u (log u)."""
        xp = namespace(u)
        rank = xp.exp(u.clip(None, 60.0)) if self.log else u
        depth = xp.logaddexp(xp.zeros_like(u), u) if self.log else xp.log1p(u)
        step = rank / (1 + rank) if self.log else 1 / (1 + rank)
        discount = -math.log(2) / depth
        slope = -discount / depth * step
        if self.k is None:
            return discount, slope, xp.ones_like(u), xp.zeros_like(u)
        top = 1 / (1 + xp.exp(self.sharpness * (rank - self.k - 0.5)))
        return discount, slope, top, -self.sharpness * top * (1 - top) * (rank if self.log else 1.0)

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        discount, _, top, _ = self._parts(u)
        return discount * top

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        discount, slope, top, of_top = self._parts(u)
        return slope * top + discount * of_top


class FromFunction(Outer):
    """The caller's own f, which autograd differentiates: ``f(u)``, ``f(u, index)`` or ``f(u, index, sample)``."""

    arrays = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.takes_rows = function, takes_index(function)

    def value(self, u: Array, rows: Array, sample: Any = None) -> Array:
        if sample is not None:
            values = self.function(u, rows, sample)
        else:
            values = self.function(u, rows) if self.takes_rows else self.function(u)
        if not isinstance(values, Tensor) or values.shape != u.shape[:1]:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"outer must map {list(u.shape)} to {list(u.shape[:1])}; got {got}")
        return values.to(u.dtype)

    def slope(self, u: Array, rows: Array, sample: Any = None) -> Array:
        if not can_read(u):
            return torch.func.grad(lambda u: self.value(u, rows, sample).sum())(u)
        with torch.enable_grad():
            leaf = u.detach().clone().requires_grad_()
            # A compiler looks at leaves alone, and f may work in place.
            u = leaf if hasattr(self.function, "_orig_mod") else leaf.clone()
            values = self.value(u, rows, sample)
            if not values.requires_grad:
                raise ValueError(
                    "outer must return a differentiable function of u; its values have no graph: use no detach(), no "
                    "item() and no NumPy in it"
                )
            (slope,) = torch.autograd.grad(values.sum(), leaf)
        return slope


def takes_index(outer: Callable[..., Any]) -> bool:
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
