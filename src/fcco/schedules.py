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
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

__all__ = ["Constant", "Cosine", "Power", "RunningMean", "Stages"]


def _check_gamma(name: str, gamma: float) -> None:
    if not 0 < gamma <= 1:
        raise ValueError(f"{name} must be in (0, 1]; got {gamma!r}")


@dataclass(frozen=True)
class Constant:
    """The same gamma at every step, like a plain float.

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
    floor : float, default 0.0
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
    exponent : float, default 0.5
        The exponent, in [0, 1].
    floor : float, default 0.0
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


class _Stage(NamedTuple):
    lr: float
    beta: float
    gamma: float
    steps: int


@dataclass(frozen=True)
class Stages:
    """SOX-boost in an ordinary training loop: step size, momentum and gamma change together from stage to stage.

    The schedule itself is that of gamma. :meth:`scheduler` sets the other two in an optimizer. w, the table and the
    gradient's average go on from stage to stage, as Algorithm 2 has it. The last stage never ends.

    Parameters
    ----------
    stages : iterable
        What the stages are: :class:`fcco.solvers.Stage` with numbers, or what :func:`fcco.theory.sox_boost` prescribes.

    Raises
    ------
    TypeError
        If a stage lacks one of lr, beta, gamma and steps, or if one of them is not a number.
    ValueError
        If there is no stage, or if a value is outside its range.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, Algorithm 2.

    Examples
    --------
    >>> import fcco
    >>> from fcco.solvers import Stage
    >>> stages = Stages([Stage(lr=0.2, beta=0.5, gamma=0.5, steps=100), Stage(0.1, 0.25, 0.25, steps=200)])
    >>> model = torch.nn.Linear(3, 1)
    >>> loss_fn = fcco.CoupledLoss(torch.log, n=10, rule=fcco.SOX(gamma=stages))
    >>> optimizer = fcco.optim.MovingAverageSGD(model.parameters(), lr=0.2)
    >>> scheduler = stages.scheduler(optimizer)  # after each optimizer.step(), call scheduler.step()
    >>> optimizer.param_groups[0]["beta"], stages(99), stages(100)
    (0.5, 0.5, 0.25)
    """

    stages: tuple[Any, ...]

    def __init__(self, stages: Iterable[Any]) -> None:
        object.__setattr__(self, "stages", tuple(_as_stage(stage) for stage in stages))
        if not self.stages:
            raise ValueError("stages must contain at least one stage; got none")

    def __call__(self, step: int | Tensor) -> float | Tensor:
        """Return gamma at a step. The first step is 0."""
        if not isinstance(step, Tensor):
            return self.at(step).gamma
        ends = torch.tensor(self._ends, device=step.device, dtype=step.dtype)
        gammas = torch.tensor([stage.gamma for stage in self.stages], device=step.device, dtype=torch.float64)
        return gammas.to(step.dtype if step.is_floating_point() else torch.float32)[(step >= ends).sum()]

    @property
    def _ends(self) -> list[int]:
        """The steps at which all stages but the first begin."""
        return list(accumulate(stage.steps for stage in self.stages[:-1]))

    def at(self, step: int) -> Any:
        """Return the stage of a step, with ``lr``, ``beta``, ``gamma`` and ``steps``.

        Parameters
        ----------
        step : int
            The step. The first one is 0.

        Returns
        -------
        NamedTuple
            The stage.
        """
        return self.stages[sum(step >= end for end in self._ends)]

    def scheduler(self, optimizer: Optimizer, last_epoch: int = -1) -> LRScheduler:
        """Return a scheduler that sets ``lr`` and, if the optimizer has it, ``beta`` of every parameter group.

        Call its ``step`` after every step of the optimizer. The table counts its own steps, one for each call of the
        loss, so with gradient accumulation the lengths for gamma are in calls of the loss.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
            The optimizer, such as :class:`fcco.optim.MovingAverageSGD`.
        last_epoch : int, default -1
            The last step that was taken, as in ``torch.optim.lr_scheduler``. The default stands for none.

        Returns
        -------
        torch.optim.lr_scheduler.LRScheduler
            The scheduler.
        """
        return _StageScheduler(optimizer, self, last_epoch)


class _StageScheduler(LRScheduler):
    def __init__(self, optimizer: Optimizer, stages: Stages, last_epoch: int) -> None:
        self._stages = stages
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        stage = self._stages.at(self.last_epoch)
        for group in self.optimizer.param_groups:
            if "beta" in group:
                group["beta"] = stage.beta
        return [stage.lr for _ in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps taken. The stages are not part of it."""
        return {name: value for name, value in super().state_dict().items() if name != "_stages"}


def _as_stage(stage: Any) -> _Stage:
    try:
        found = _Stage(*(getattr(stage, name) for name in _Stage._fields))
    except AttributeError:
        raise TypeError(f"each stage must be a fcco.solvers.Stage or a fcco.theory.Parameters; got {stage!r}") from None
    if any(not isinstance(value, int | float) for value in found):
        raise TypeError(f"lr, beta, gamma and steps of each stage must be numbers here; got {stage!r}")
    if not (0 <= found.lr < math.inf and 0 < found.beta <= 1 and 0 < found.gamma <= 1 and found.steps >= 1):
        raise ValueError(f"each stage needs lr >= 0, beta and gamma in (0, 1], and steps >= 1; got {stage!r}")
    return found
