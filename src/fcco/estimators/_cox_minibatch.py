"""A Cox model by mini-batches: the compiled loop, and the exact objective after every pass."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from fcco.estimators._base import run_passes
from fcco.estimators._kernels import OUTERS, RULES, SURROGATES, Form
from fcco.estimators._loop import WHOLE, Draws, Run, new_run, train
from fcco.estimators._risk_sets import CoxObjective

Array = NDArray[Any]

_RATES = tuple(10.0 ** (k / 2) for k in range(-5, 4))  # of "auto", for features of unit spread
_TRIAL = 300  # steps of each of its trials


@dataclass(frozen=True)
class MiniBatch:
    """How to descend: see :class:`CoxRegressor`."""

    method: str
    learning_rate: float | str
    gamma: float
    beta: float
    batch_size: int
    alpha: float
    max_iter: int
    tol: float
    n_iter_no_change: int
    verbose: int
    seed: int


def cox_draws(time: Array, event: Array, batch_size: int) -> Draws:
    """Batches of any rows; events are outer ones, and their rivals those who live as long."""
    return Draws(
        kind=WHOLE,
        outer=min(batch_size, len(time)),
        inner=0,
        gain=event.astype(np.float64),
        key=time,
        share=np.ones(2),
    )


def cox_form(method: str, gamma: float, events: int) -> Form:
    """log of a mean of e^(h_j - h_i)."""
    return Form(
        surrogate=SURROGATES["exp"],
        margin=0.0,
        sign=1.0,
        outer=OUTERS["log"],
        power=1.0,
        log=True,
        rule=RULES[method],
        gamma=gamma,
        n_outer=float(events),
        own_shift=0.0,
    )


class Descent:
    """Mini-batch descent on X as it is, with steps scaled to features of unit spread.

    Args:
        x: [n, d], C-contiguous.
        time: [n].
        event: [n] of bool.
        objective: of the same data, standardised.
        how: the settings.
    """

    def __init__(self, x: Array, time: Array, event: Array, objective: CoxObjective, how: MiniBatch) -> None:
        self.x, self.objective, self.how = x, objective, how
        self.draws = cox_draws(time, event, how.batch_size)
        self.form = cox_form(how.method, how.gamma, objective.events)
        self.spread = np.where(np.isfinite(objective.rows.scale), objective.rows.scale, 0.0)
        self.step_scale = objective.rows.scale**-2.0
        self.steps = max(1, len(x) // self.draws.outer)

    def minimise(self, start: Array) -> tuple[Array, list[float], float]:
        """The best iterate, for standardised features, the objective after each pass, and the learning rate."""
        how, w = self.how, start / np.where(self.spread > 0, self.spread, 1.0)
        rate = self._try_rates(w) if how.learning_rate == "auto" else float(how.learning_rate)
        run, best, best_value, now = self._run(w), start, self.objective.value(start), rate

        def one_pass(_: int) -> float:
            nonlocal best, best_value, now
            self._descend(run, now, self.steps)
            value = self._value(run)
            if value < best_value:
                best, best_value = run.w * self.spread, value
            else:
                now *= 0.5  # what is left is noise, of the size of the rate
            return value

        curve = run_passes(
            one_pass,
            max_iter=how.max_iter,
            tol=how.tol,
            n_iter_no_change=how.n_iter_no_change,
            verbose=how.verbose,
            name="CoxRegressor",
        )
        if min(curve) > self.objective.value(start):
            warnings.warn(
                "CoxRegressor: no pass improved on the start; lower learning_rate", ConvergenceWarning, stacklevel=4
            )
        return best, curve, rate

    def _run(self, w: Array) -> Run:
        n = len(self.x)
        return new_run(w, n, 1, np.arange(n), np.zeros(0, np.int64), self.how.seed)

    def _descend(self, run: Run, rate: float, steps: int) -> None:
        rates, values = np.full(steps, rate), np.empty(steps)
        train(self.x, self.form, self.draws, run, rates, self.step_scale, self.how.beta, self.how.alpha, values)

    def _value(self, run: Run) -> float:
        return self.objective.value(run.w * self.spread)

    def _try_rates(self, w: Array) -> float:
        """Of a grid, the rate with the lowest objective after a few hundred steps."""
        reached = {}
        for rate in _RATES:
            run = self._run(w)
            self._descend(run, rate, _TRIAL)
            reached[rate] = self._value(run)
        return min(reached, key=lambda rate: reached[rate])
