"""Outer functions in NumPy: their values, and the slopes that a step by hand needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class ArrayOuter(Protocol):
    """An outer function f on arrays of u, or of log u in log space, of shape (m,) or (m, dim)."""

    def value(self, u: Array) -> Array:
        """Return f(u), of shape (m,)."""
        ...

    def slope(self, inner: Array, at: Array) -> Array:
        """Return the derivative of the step's loss with respect to the estimate, in the shape of the estimate.

        That is the derivative of f at ``at``; in log space, times g / u, since the estimate ``inner`` is log g.
        """
        ...


def is_finite(f: ArrayOuter, inner: Array, new: Array, at: Array) -> bool:
    """Return whether a step has finite values, at the new rows, and finite slopes, at those to differentiate f at."""
    # The loss is a sum of the values in their own precision, and its gradients are sums of parts of the slopes.
    slopes = np.add.reduce(f.slope(inner, at), None, np.float64)
    return math.isfinite(np.add.reduce(f.value(new))) and math.isfinite(slopes)


@dataclass(frozen=True)
class Logarithm:
    """f = factor · log u, given log u."""

    factor: float = 1.0

    def value(self, u: Array) -> Array:
        return self.factor * u

    def slope(self, inner: Array, at: Array) -> Array:
        return self.factor * np.exp(inner - at)


class MeanLogarithm:
    """f = the mean of log u over its columns, given log u."""

    def value(self, u: Array) -> Array:
        return np.add.reduce(u, 1) / u.shape[1]

    def slope(self, inner: Array, at: Array) -> Array:
        return np.exp(inner - at) / at.shape[1]


@dataclass(frozen=True)
class Share:
    """f = -u_1 / u_2 or, with ``log_likelihood``, its logarithm -log(u_1 / u_2); given log u."""

    log_likelihood: bool = False

    def value(self, u: Array) -> Array:
        difference = u[:, 0] - u[:, 1]
        return -difference if self.log_likelihood else -np.exp(difference)

    def slope(self, inner: Array, at: Array) -> Array:
        slope = np.where(inner > -math.inf, np.exp(inner - at), 0.0)  # there is no g to divide by u if g = 0
        if not self.log_likelihood:
            slope *= np.exp(at[:, :1] - at[:, 1:])
        np.negative(slope[:, 0], out=slope[:, 0])
        return slope
