"""Stochastic descent of a linear model: passes of compiled steps, with the exact objective after each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcco.compiled import (
    ClassSampler,
    LinearState,
    ListSampler,
    Objective,
    TableUpdate,
    new_state,
    train_linear,
)
from fcco.estimators._progress import Progress, warn_user
from fcco.estimators._validation import Array

_RATES = [4.0**k for k in range(2, -23, -1)]  # of a trial
_TRIAL_STEPS = 300
_LONGEST_RATE = 4.0**20  # of a later trial


@dataclass(frozen=True)
class StepPlan:
    """What the compiled steps of a pass are, except for the features."""

    objective: Objective
    update: TableUpdate
    sampler: ClassSampler | ListSampler
    first: Array  # rows, or lists, that batches are drawn from
    second: Array
    count: int  # steps of a pass
    dim: int = 1  # inner values of a row


@dataclass(frozen=True)
class Steps:
    """Steps on one batch each, and the objective that they are to lower."""

    x: Array  # [n, d]
    plan: StepPlan
    scale: Array  # [d]: multiplies the step of each feature
    alpha: float
    beta: float
    value: Callable[[Array], float]  # the objective of w [d], with its penalty
    size: float = 1.0  # of the objective at w = 0: rates are tried in units of its inverse

    @property
    def count(self) -> int:
        """Steps of a pass."""
        return self.plan.count

    def start(self, w: Array, seed: int) -> LinearState:
        """Return the state before the first step from w."""
        return new_state(w, len(self.x), self.plan.dim, self.plan.first, self.plan.second, seed)

    def take(self, state: LinearState, count: int, rate: float) -> float:
        """Take steps, and return the objective after them."""
        plan, rates = self.plan, np.full(count, rate)
        options: Any = {"beta": self.beta, "alpha": self.alpha, "scale": self.scale}
        train_linear(self.x, plan.objective, plan.update, plan.sampler, state, rates, **options)
        if not np.isfinite(state.w).all():
            return math.inf
        value = self.value(state.w)
        return math.inf if math.isnan(value) else value


class Descent:
    """Passes of stochastic steps. One that makes the objective worse is taken back; without a gain the rate halves.

    Args:
        steps: what to do.
        w: where to begin, [d].
        rate: the step size; None: that of a grid which comes furthest in a trial. It is then looked for again where the
            objective seems to have settled.
        progress: is told the objective after every pass.
        random: of the seeds.

    Attributes:
        rate: as it was in the beginning.
        w: the best coefficients so far.
        value: the objective there.
        settled: whether the run ended because nothing was to be gained.
    """

    def __init__(
        self, steps: Steps, w: Array, rate: float | None, progress: Progress, random: np.random.RandomState
    ) -> None:
        self.steps, self.progress, self.random = steps, progress, random
        self.w, self.value = w, steps.value(w)
        self.settled = self._moved = False
        self._auto = rate is None
        self.rate = self._choose_rate() if rate is None else rate

    def run(self) -> Array:
        """The best coefficients found."""
        self._now = self._highest = self.rate
        self._state, self._begun_at = self._start(), self.value
        for _ in range(self.progress.max_iter):
            self._pass()
            self.settled = self.progress.add(self.value) and not (self._auto and self._larger_rate())
            if self.settled:
                break
        return self.w

    def warn(self) -> None:
        """Say so, if the run did not end at a minimum."""
        if self._moved and not self.value < self._begun_at:
            warn_user(f"{self.progress.name}: no pass improved on the start; lower learning_rate, or gamma")
            return
        if self.settled and not self._auto and self._hardly_moves():
            warn_user(
                f"{self.progress.name}: the coefficients have hardly moved from the start, where larger steps lower "
                f"the objective; raise learning_rate={self.rate:g}"
            )
            return
        outwards = self.steps.alpha == 0.0 and self._falls_outwards()
        if not self.settled:
            self.progress.warn_unsettled(outwards=outwards)
        elif outwards:
            self.progress.warn_endless()

    def _falls_outwards(self) -> bool:
        """Whether the objective is clearly lower at twice the coefficients."""
        return bool(self.w.any()) and self.steps.value(2.0 * self.w) < self.value - self.progress.enough(self.value)

    def _hardly_moves(self) -> bool:
        """Whether passes gained no more than those that end a run, and a trial of another rate gains more."""
        little = 10.0 * self.progress.enough(self._begun_at)
        return self._begun_at - self.value <= little and self._try(self._choose_rate()) < self._begun_at - little

    def _start(self) -> LinearState:
        return self.steps.start(self.w, int(self.random.randint(2**31 - 1)))

    def _try(self, rate: float) -> float:
        return self.steps.take(self._start(), _TRIAL_STEPS, rate)

    def _choose_rate(self) -> float:
        """The rate that comes furthest in a trial; from the largest down, until they get worse."""
        rates = [rate / self.steps.size for rate in _RATES]
        best_rate, best = rates[-1], math.inf
        for rate in rates:
            value = self._try(rate)
            if value < best:
                best_rate, best = rate, value
            elif best < self.value:
                break
        return best_rate

    def _larger_rate(self) -> bool:
        """Whether longer steps than any so far still gain enough: where all is flat, short ones do not."""
        best, rate = self.value, 4.0 * self._highest
        while rate * self.steps.size < _LONGEST_RATE and (value := self._try(rate)) < best:
            best, rate = value, 4.0 * rate
        found = self.value - best > self.progress.enough(self.value)
        if found:
            self._now = self._highest = rate / 4.0
            self.progress.go_on()
        return found

    def _pass(self) -> None:
        value = self.steps.take(self._state, self.steps.count, self._now)
        gain, end = self.value - value, self._state.w.copy()
        self._moved |= not np.allclose(end, self.w)  # rounding moves it too
        if not gain > self.progress.enough(self.value):
            self._now *= 0.5
        if gain > 0.0:
            self.value, self.w = value, end
        elif math.isfinite(value):
            self._state.w[:], self._state.v[:] = self.w, 0.0
        else:
            self._state = self._start()
