"""Schedules for gamma, the rate at which a row of the table moves towards its new estimate.

A schedule is a callable of the number of steps taken so far, which is 0 at the first step, as in
``SOX(gamma=Cosine(0.1, 1000))``. It receives an ``int``. Under ``torch.compile`` and on accelerators, where reading a
number would stall the device, it receives a 0-d tensor instead. Any function of one argument is a schedule. A schedule
that is to be compiled must use tensor arithmetic.

A schedule with ``per_row = True`` receives the number of times that each row has been visited, as a floating tensor
[B1], and returns a rate for each row.
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
        raise ValueError(f"{name} must be in (0, 1]; got {gamma!r}")


@dataclass(frozen=True)
class Constant:
    """The same gamma at every step. A plain float has the same meaning.

    Parameters
    ----------
    gamma : float
        The rate, in (0, 1].

    Raises
    ------
    ValueError
        If the rate is outside (0, 1].

    Examples
    --------
    >>> Constant(0.5)(7)
    0.5
    """

    gamma: float

    def __post_init__(self) -> None:
        _check_gamma("gamma", self.gamma)

    def __call__(self, step: int | Tensor) -> float:
        """Return gamma, whatever the step is."""
        return self.gamma


@dataclass(frozen=True)
class Cosine:
    r"""A cosine that decreases from 1 to ``final`` over ``steps`` steps, and stays there.

    .. math:: \gamma_t = \gamma_{final} + (1 - \gamma_{final}) (1 + \cos(\pi \min(t / steps, 1))) / 2

    Parameters
    ----------
    final : float
        The last rate, in (0, 1].
    steps : int
        Number of steps until then. Half of the training run is a good value, because rows that are written early soon
        become stale.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Examples
    --------
    >>> [round(Cosine(final=0.2, steps=4)(t), 3) for t in range(6)]
    [1.0, 0.883, 0.6, 0.317, 0.2, 0.2]
    """

    final: float
    steps: int

    def __post_init__(self) -> None:
        _check_gamma("final", self.final)
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1; got {self.steps!r}")

    def __call__(self, step: int | Tensor) -> float | Tensor:
        """Return gamma at a step."""
        if isinstance(step, Tensor):
            wave = torch.cos(math.pi * (step / self.steps).clamp(max=1.0))
            return self.final + (1 - self.final) * (1 + wave) / 2
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(step / self.steps, 1.0))) / 2


@dataclass(frozen=True)
class RunningMean:
    """The rate max(1 / visits, ``floor``), which makes a row the mean of all its estimates.

    ``visits`` includes the current visit, so gamma is 1 at a row's first visit. Once the rate has reached ``floor``,
    the row is a moving average.

    Parameters
    ----------
    floor : float, default=0.0
        Smallest rate, in [0, 1].

    Raises
    ------
    ValueError
        If ``floor`` is outside [0, 1].

    Examples
    --------
    >>> RunningMean()(torch.tensor([0.0, 1.0, 3.0]))
    tensor([1.0000, 0.5000, 0.2500])
    """

    floor: float = 0.0
    per_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be in [0, 1]; got {self.floor!r}")

    def __call__(self, visits: Tensor) -> Tensor:
        """Return gamma for rows that have been visited ``visits`` times before."""
        return (1.0 / (visits + 1)).clamp(min=self.floor)


@dataclass(frozen=True)
class Power:
    """The rate max(visits ** -exponent, ``floor``), with which a row averages over more and more of its estimates.

    Unlike :class:`RunningMean`, which is the case ``exponent=1``, it gradually forgets old estimates if the exponent is
    less than 1. The case ``exponent=0`` is a constant rate. ``visits`` includes the current visit, so gamma is 1 at a
    row's first visit.

    Parameters
    ----------
    exponent : float, default=0.5
        The exponent, in [0, 1].
    floor : float, default=0.0
        Smallest rate, in [0, 1].

    Raises
    ------
    ValueError
        If a value is outside [0, 1].

    Examples
    --------
    >>> Power(0.5)(torch.tensor([0.0, 3.0, 99.0]))
    tensor([1.0000, 0.5000, 0.1000])
    """

    exponent: float = 0.5
    floor: float = 0.0
    per_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("exponent", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1]; got {getattr(self, name)!r}")

    def __call__(self, visits: Tensor) -> Tensor:
        """Return gamma for rows that have been visited ``visits`` times before."""
        return ((visits + 1) ** -self.exponent).clamp(min=self.floor)
