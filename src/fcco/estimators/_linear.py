"""What the linear rankers share: their parameters, and fitting coefficients to a pairwise objective."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fcco._checks import check_rate, whole_number
from fcco.estimators._base import LossCurveMixin, Progress, run_passes
from fcco.estimators._exact import minimise_exact
from fcco.estimators._kernels import RULES, Array, Form
from fcco.estimators._loop import Draws, Run, new_run, train
from fcco.functional._checks import check_choice, check_number

METHODS = ("exact", *RULES)
_RATES = [4.0**k for k in range(2, -23, -1)]
_TRIAL_STEPS = 300


@dataclass(frozen=True)
class Task:
    """A pairwise objective of the scores of training rows.

    ``objective`` maps the scores of ``watched`` rows to the exact objective; where that is all rows, it is what
    method="exact" minimises. With ``log`` it gives the objective's logarithm.
    """

    x: Array  # [n, d]
    objective: Callable[[Tensor], Tensor]
    form: Form
    draws: Draws
    first: Array  # rows that batches are drawn from, as in Run
    second: Array
    steps: int  # of a pass
    watched: Array | None = None  # None: all rows
    log: bool = False
    dim: int = 1

    def value(self, w: Array, alpha: float) -> float:
        """The objective at w, with its penalty."""
        x = self.x if self.watched is None else self.x[self.watched]
        with np.errstate(all="ignore"):  # a step too large may lead anywhere
            scores, penalty = x @ w.astype(x.dtype), 0.5 * alpha * float(w @ w)
        if not np.isfinite(scores).all():
            return math.inf
        value = float(self.objective(torch.from_numpy(scores).double()))
        return (_exp(value) if self.log else value) + penalty

    def slopes(self, scores: Array) -> tuple[float, Array]:
        """The objective (its logarithm) of all scores, and its gradient in them."""
        leaf = torch.from_numpy(scores).requires_grad_()
        value = self.objective(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
        return value.item(), gradient.numpy()


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf


class LinearRanker(LossCurveMixin, BaseEstimator):
    """Base of the linear rankers: scores are X w, and w minimises a pairwise objective plus alpha/2 |w|²."""

    coef_: Array
    n_iter_: int

    def _check_parameters(self) -> None:
        check_choice(self.method, "method", METHODS)
        check_number(self.alpha, "alpha", at_least=0.0)
        for name in ("gamma", "beta"):
            check_rate(name, type(self).__name__, getattr(self, name), largest=1.0)
        for name in ("outer_batch", "inner_batch", "max_iter", "n_iter_no_change"):
            whole_number(name, getattr(self, name))
        if self.learning_rate != "auto":
            check_number(self.learning_rate, 'learning_rate, if not "auto",', above=0.0)
        if not isinstance(self.tol, Real) or math.isnan(self.tol):
            raise ValueError(f"tol must be a number, got {self.tol!r}")

    def _settings(self) -> dict[str, Any]:
        return {
            "max_iter": self.max_iter,
            "tol": self.tol,
            "n_iter_no_change": self.n_iter_no_change,
            "verbose": self.verbose,
            "name": type(self).__name__,
        }

    def _fit_task(self, task: Task) -> None:
        """Set the coefficients, and what is told of the way there."""
        w = np.zeros(task.x.shape[1])
        if self.warm_start and hasattr(self, "coef_"):
            if self.coef_.size != len(w):
                raise ValueError(f"warm_start: X has {len(w)} features, and the fit before had {self.coef_.size}")
            w = self.coef_.ravel().astype(np.float64)
        # In these units every coefficient meets a curvature of about one, of the objective and the penalty together.
        scale = task.x.var(0, dtype=np.float64) + self.alpha
        scale = 1.0 / np.where(scale > 0.0, scale, 1.0)
        if self.method == "exact":
            progress = Progress(**self._settings())
            w = minimise_exact(task.x, task.slopes, w, scale, self.alpha, progress, log=task.log)
            curve = progress.curve
        else:
            w, curve = _Descent(self, task, w, scale).run()
        self.coef_ = w.astype(task.x.dtype)
        self.loss_curve_, self.n_iter_ = curve, len(curve)

    def _scores(self, X: Any) -> Array:  # noqa: N803
        check_is_fitted(self, "coef_")
        x = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return x @ self.coef_.ravel().astype(x.dtype)


class _Descent:
    """Passes of stochastic steps. One that makes the objective worse is taken back; without a gain the step halves."""

    def __init__(self, ranker: LinearRanker, task: Task, w: Array, scale: Array) -> None:
        self.ranker, self.task, self.scale = ranker, task, scale
        # Read-only arrays are a type of their own, for which all would be compiled once more.
        self.x = np.require(task.x, requirements=["C", "W"])
        self.random = check_random_state(ranker.random_state)
        self.best_w, self.best = w, task.value(w, ranker.alpha)
        self.gained = self.moved = False
        self.lr = self._choose_rate() if ranker.learning_rate == "auto" else float(ranker.learning_rate)

    def run(self) -> tuple[Array, list[float]]:
        self.state = self._start()
        curve = run_passes(self._pass, **self.ranker._settings())
        if self.moved and not self.gained:
            warnings.warn(
                f"{type(self.ranker).__name__}: no pass improved on the start; lower learning_rate, or gamma",
                ConvergenceWarning,
                stacklevel=4,
            )
        return self.best_w, curve

    def _start(self) -> Run:
        task, seed = self.task, int(self.random.randint(2**31 - 1))
        return new_run(self.best_w, len(task.x), task.dim, task.first, task.second, seed)

    def _steps(self, run: Run, count: int, lr: float) -> float:
        """Take steps; the objective after them."""
        task, ranker = self.task, self.ranker
        rates, values = np.full(count, lr), np.empty(count)
        alpha, beta = float(ranker.alpha), float(ranker.beta)
        train(self.x, task.form, task.draws, run, rates, self.scale, beta, alpha, values)
        return task.value(run.w, alpha) if np.isfinite(run.w).all() else math.inf

    def _choose_rate(self) -> float:
        """The rate that comes furthest in a short trial; from the largest down, until they get worse."""
        best_rate, best = _RATES[-1], math.inf
        for rate in _RATES:
            objective = self._steps(self._start(), min(self.task.steps, _TRIAL_STEPS), rate)
            if objective < best:
                best_rate, best = rate, objective
            elif best < self.best:
                break
        return best_rate

    def _pass(self, number: int) -> float:
        objective = self._steps(self.state, self.task.steps, self.lr)
        gain, enough = self.best - objective, max(self.ranker.tol, 0.0) * max(abs(self.best), 1e-12)
        self.gained |= gain > 0.0
        self.moved |= not np.allclose(self.state.w, self.best_w)  # rounding moves it too
        if gain > 0.0:
            self.best, self.best_w = objective, self.state.w.copy()
        elif math.isfinite(objective):
            self.state.w[:], self.state.v[:] = self.best_w, 0.0
        else:
            self.state = self._start()
        if not gain > enough:
            self.lr *= 0.5
        return self.best
