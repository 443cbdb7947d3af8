"""Schedules for gamma, the rate at which a row of the table moves to its new estimate.

A schedule is a callable of the number of steps taken so far (0 at the first), as in ``SOX(gamma=Cosine(0.1, 1000))``.
It receives an ``int``, or a 0-d tensor under ``torch.compile`` and on accelerators, where reading a number would stall
the device. Any function of one argument is a schedule; those that should be compiled use tensor arithmetic.

A schedule with ``per_row = True`` is given, instead of the step, the number of times each row has been visited, as a
floating tensor [B1], and returns as many rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["Constant", "Cosine", "Power", "RunningMean"]


def _check_gamma(name: str, gamma: float) -> None:
    if not 0 < gamma <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {gamma!r}")


@dataclass(frozen=True)
class Constant:
    """gamma at every step; a plain float means the same.

    >>> Constant(0.5)(7)
    0.5
    """

    gamma: float

    def __post_init__(self) -> None:
        _check_gamma("gamma", self.gamma)

    def __call__(self, step: int | Tensor) -> float:
        """Gamma, whatever the step."""
        return self.gamma


@dataclass(frozen=True)
class Cosine:
    r"""From 1 down to ``final`` over ``steps`` steps, then ``final``.

    .. math:: \gamma_t = \gamma_{final} + (1 - \gamma_{final}) (1 + \cos(\pi \min(t / steps, 1))) / 2

    Half of the training run is a good value for ``steps``: early rows are stale as soon as they are written.

    >>> [round(Cosine(final=0.2, steps=4)(t), 3) for t in range(6)]
    [1.0, 0.883, 0.6, 0.317, 0.2, 0.2]
    """

    final: float
    steps: int

    def __post_init__(self) -> None:
        _check_gamma("final", self.final)
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps!r}")

    def __call__(self, step: int | Tensor) -> float | Tensor:
        """Gamma at a step."""
        if isinstance(step, Tensor):
            wave = torch.cos(math.pi * (step / self.steps).clamp(max=1.0))
            return self.final + (1 - self.final) * (1 + wave) / 2
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(step / self.steps, 1.0))) / 2


@dataclass(frozen=True)
class RunningMean:
    """1 / visits, at least ``floor``: a row is the mean of all its estimates, then a moving average.

    ``visits`` includes the current one, so that gamma is 1 at a row's first visit.

    >>> RunningMean()(torch.tensor([0.0, 1.0, 3.0]))
    tensor([1.0000, 0.5000, 0.2500])
    """

    floor: float = 0.0
    per_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be in [0, 1], got {self.floor!r}")

    def __call__(self, visits: Tensor) -> Tensor:
        """Gamma of rows that have been visited so often before."""
        return (1.0 / (visits + 1)).clamp(min=self.floor)


@dataclass(frozen=True)
class Power:
    """visits ** -exponent, at least ``floor``: a row averages over ever more of its estimates, and forgets old ones.

    Between a constant rate (exponent 0) and the mean of all estimates (exponent 1, :class:`RunningMean`). ``visits``
    includes the current one, so that gamma is 1 at a row's first visit.

    >>> Power(0.5)(torch.tensor([0.0, 3.0, 99.0]))
    tensor([1.0000, 0.5000, 0.1000])
    """

    exponent: float = 0.5
    floor: float = 0.0
    per_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("exponent", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)!r}")

    def __call__(self, visits: Tensor) -> Tensor:
        """Gamma of rows that have been visited so often before."""
        return ((visits + 1) ** -self.exponent).clamp(min=self.floor)
