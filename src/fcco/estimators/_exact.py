"""Minimising an exact objective of a linear model, by L-BFGS."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from fcco.estimators._columns import Array
from fcco.estimators._progress import Progress

Slopes = Callable[[Array], tuple[float, Array]]


class Features(Protocol):
    """A linear map from coefficients to scores."""

    def scores(self, w: Array, /) -> Array:
        """Return the scores, of shape (n,)."""
        ...

    def gradient(self, by_score: Array, /) -> Array:
        """Return the gradient in the coefficients, of shape (d,), from that in the scores."""
        ...


_ROUNDING = 1e-9  # share of the objective below which an improvement is not looked for
_LEAST_SQUARE = 1e-290  # of |w|: below it the penalty's gradient cannot be told from that of 0


def value_and_slopes(objective: Callable[[Tensor], Tensor], scores: Array) -> tuple[float, Array]:
    """Return an objective of the scores, and its gradient in them."""
    leaf = torch.from_numpy(scores).requires_grad_()
    value = objective(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.item(), gradient.numpy()


def _penalise(value: float, gradient: Array, w: Array, alpha: float, log: bool) -> tuple[float, Array]:
    """Add alpha/2 |w|² and its gradient; if ``log``, to an objective whose logarithm is given and returned."""
    square = float(w @ w)
    if not log:
        return value + 0.5 * alpha * square, gradient + alpha * w
    if alpha * square < _LEAST_SQUARE:
        return value, gradient
    log_penalty = math.log(0.5 * alpha * square)
    total = float(np.logaddexp(value, log_penalty))
    # Shares of the sum, as the objective and the penalty themselves may underflow.
    return total, math.exp(value - total) * gradient + math.exp(log_penalty - total) * 2.0 / square * w


class _Reached(Exception):  # noqa: N818
    """The objective is 0, or too small for a number, and so has no logarithm: there is nothing left to do."""


class _Minimiser:
    """One run of L-BFGS, in units in which the curvature is about one."""

    def __init__(
        self, x: Features, slopes: Slopes, scale: Array, alpha: float, progress: Progress, log: bool, floor: float
    ) -> None:
        self.x, self.slopes, self.unit, self.alpha, self.progress = x, slopes, np.sqrt(scale), alpha, progress
        self.log, self.floor, self.settled = log, floor, False
        self.z = np.zeros(0)

    def value_and_gradient(self, z: Array) -> tuple[float, Array]:
        w = z * self.unit
        value, by_score = self.slopes(self.x.scores(w))
        value, gradient = _penalise(value, self.x.gradient(by_score), w, self.alpha, self.log)
        if value == -math.inf:
            self.z = z.copy()
            raise _Reached
        return value, gradient * self.unit

    def note(self, intermediate_result: OptimizeResult) -> None:
        value = float(intermediate_result.fun)
        self.settled = self.add(value) or value < self.floor
        if self.settled:
            raise StopIteration

    def add(self, value: float) -> bool:
        if not self.log:
            return self.progress.add(value)
        return self.progress.add(math.exp(value) if value < 709.0 else math.inf, log=value)

    def run(self, w: Array) -> Array:
        steps = self.progress.max_iter
        options = {"maxiter": steps, "maxfun": 20 * steps, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}
        self.z = w / self.unit
        try:
            found = minimize(
                self.value_and_gradient, self.z, jac=True, method="L-BFGS-B", callback=self.note, options=options
            )
        except _Reached:
            self.add(-math.inf)
            if self.floor > -math.inf:  # it is not 0, but too small for a number
                self.progress.warn_endless()
            return self.z * self.unit
        if not self.progress.curve:  # it began at the minimum
            self.add(float(found.fun))
        self.judge(found)
        return found.x * self.unit

    def judge(self, found: OptimizeResult) -> None:
        """Warn of an end that is no minimum."""
        outwards = self.alpha == 0.0 and self.falls_outwards(found.x, float(found.fun))
        if found.status == 1 and not self.settled:
            self.progress.warn_unsettled(outwards=outwards)
        elif outwards:
            self.progress.warn_endless()
        elif self.settled or found.status == 0:
            return
        elif 0.5 * found.jac @ found.hess_inv.dot(found.jac) > self.noticeable(float(found.fun)):
            self.progress.warn(
                f"L-BFGS stopped after {len(self.progress.curve)} iterations, as it found nothing lower along the "
                "gradient, which is not 0; the objective has a kink there (surrogate='hinge'), or rounding hides the "
                "way down: take another surrogate, or a larger alpha"
            )

    def noticeable(self, value: float) -> float:
        """The smallest improvement on the objective, or its logarithm, that is neither too small nor rounding."""
        return max(self.progress.enough(value, log=self.log), _ROUNDING * (1.0 if self.log else abs(value)))

    def falls_outwards(self, z: Array, value: float) -> bool:
        """Whether the objective is clearly lower at twice the coefficients."""
        if not z.any():
            return False
        further = self.slopes(self.x.scores(2.0 * z * self.unit))[0]
        return further < value - self.noticeable(value)


def minimise_exact(
    x: Features,
    slopes: Slopes,
    w: Array,
    scale: Array,
    alpha: float,
    progress: Progress,
    *,
    log: bool = False,
    floor: float = -math.inf,
) -> Array:
    """The coefficients that minimise objective(x w) + alpha/2 |w|², as far as ``progress`` lets it go.

    An end that is not at a minimum is warned of.

    Args:
        x: features, [n, d].
        slopes: the objective of all scores [n], and its gradient in them; of the objective's logarithm if ``log``.
        w: where to begin, [d].
        scale: [d], squares of the units that the coefficients are best measured in: a diagonal preconditioner.
        alpha: of the penalty.
        progress: is told the objective, with the penalty, after every iteration.
        log: minimise the logarithm of the sum, which neither overflows nor underflows.
        floor: of an objective, or its logarithm, that falls for ever: where to end.
    """
    with np.errstate(all="ignore"):  # a step too long may lead anywhere, and is taken back
        return _Minimiser(x, slopes, scale, alpha, progress, log, floor).run(w)
