"""Pairwise surrogates ℓ(t) of the indicator of t > 0, where t is the candidate's score minus the anchor's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fcco.core.arrays import Array, namespace

HALF_WIDTH = 4.0
"""Where the ramp ends. It has the slope of the sigmoid at 0, and fits it best in the mean square, to 0.01."""


@dataclass(frozen=True)
class Surrogate:
    """An elementwise ℓ, called for its values and its slopes.

    A *bounded* one rises from 0 to 1. The self term of a bounded surrogate is 1, since an example is never below
    itself, and ℓ(0) otherwise.
    """

    name: str
    margin: float = 0.0
    log: bool = field(init=False, compare=False, repr=False)
    """Whether sums of it are taken, and held, as logarithms."""
    overflows: bool = field(init=False, compare=False, repr=False)
    """Whether it may be infinite where differences are far from it."""
    sorts: bool = field(init=False, compare=False, repr=False)
    """Whether its sums can be taken by sorting."""

    def __post_init__(self) -> None:  # fields, as a property takes longer and no compiler reads a cached one
        sorts = self.name in ("ramp", "hinge", "squared_hinge")
        vars(self).update(log=self.name == "exp", overflows=self.name.startswith("exp"), sorts=sorts)

    @property
    def bounded(self) -> bool:
        return self.name in ("ramp", "sigmoid")

    @property
    def arrays(self) -> bool:
        """Whether it works on NumPy's arrays too."""
        return True

    @property
    def self_value(self) -> float:
        return 1.0 if self.bounded else float(self(np.zeros(1))[0][0])

    def __call__(self, t: Array) -> tuple[Array, Array]:
        xp = namespace(t)
        match self.name:
            case "ramp":
                place = (t * (1 / HALF_WIDTH)).clip(-1, 1)
                slope = abs(place)  # what follows is in place, as new memory takes longer than arithmetic
                slope -= 1
                slope *= -1 / HALF_WIDTH
                value = slope * (0.5 * HALF_WIDTH)
                value += 0.5
                value *= place
                value += 0.5
                return value, slope
            case "sigmoid":
                value = 1 / (1 + xp.exp(-t))
                return value, value * (1 - value)
            case "squared_hinge":
                height = (t + self.margin).clip(0, None)
                return height * height, 2 * height
            case "hinge":
                height = t + self.margin
                return height.clip(0, None), (height > 0) * xp.ones_like(t)
            case "logistic":
                return t.clip(0, None) + xp.log1p(xp.exp(-abs(t))), 1 / (1 + xp.exp(-t))
        value = xp.exp(t)
        return value, value


@dataclass(frozen=True)
class FromFunction(Surrogate):
    """The caller's own function, which autograd differentiates."""

    function: Callable[[Any], Any] = torch.exp
    arrays = bounded = False

    def __post_init__(self) -> None:
        vars(self).update(log=False, overflows=True, sorts=False)  # whatever its name

    @property
    def self_value(self) -> float:
        return float(self.function(torch.zeros(1, dtype=torch.float64)))

    def __call__(self, t: Array) -> tuple[Array, Array]:
        with torch.enable_grad():
            leaf = t.detach().requires_grad_()
            value = self.function(leaf)
            if value.shape != t.shape:
                raise ValueError(
                    f"surrogate {self.name} must be elementwise; it mapped the shape {tuple(t.shape)} to "
                    f"{tuple(value.shape)}"
                )
            if not value.requires_grad:  # a step, which is flat
                return value, torch.zeros_like(value)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), slope


SURROGATES = ("logistic", "exp", "ramp", "sigmoid", "squared_hinge", "hinge", "exponential")


def as_surrogate(surrogate: str | Callable[[Any], Any], margin: float = 1.0) -> Surrogate:
    """Return the surrogate of a name, or wrap a function as one; only hinges have a margin."""
    if isinstance(surrogate, Surrogate):
        return surrogate
    if not isinstance(surrogate, str):
        if not callable(surrogate):
            raise TypeError(f"surrogate must be a name or a callable; got {type(surrogate).__name__}")
        if surrogate is torch.exp or surrogate is torch.sigmoid:
            return Surrogate("exp" if surrogate is torch.exp else "sigmoid")
        name = getattr(surrogate, "__name__", type(surrogate).__name__)
        return FromFunction(name, function=surrogate)
    if surrogate not in SURROGATES:
        raise ValueError(f"surrogate must be callable or one of {', '.join(map(repr, SURROGATES))}; got {surrogate!r}")
    if "hinge" not in surrogate:
        return Surrogate("exp" if surrogate == "exponential" else surrogate)
    if not (0 <= margin < math.inf):
        raise ValueError(f"margin must be a finite number of at least 0; got {margin!r}")
    return Surrogate(surrogate, float(margin))
