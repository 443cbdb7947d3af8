"""Minimising an exact objective of a linear model, by L-BFGS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from fcco.estimators._base import Progress
from fcco.estimators._kernels import Array

Slopes = Callable[[Array], tuple[float, Array]]


def minimise_exact(
    x: Array, slopes: Slopes, w: Array, scale: Array, alpha: float, progress: Progress, *, log: bool = False
) -> Array:
    """The coefficients that minimise objective(x w) + alpha/2 |w|², as far as ``progress`` lets it go.

    Args:
        x: features, [n, d].
        slopes: the objective of all scores [n], and its gradient in them; of the objective's logarithm if ``log``.
        w: where to begin, [d].
        scale: [d], squares of the units that the coefficients are best measured in: a diagonal preconditioner.
        alpha: of the penalty.
        progress: is told the objective, with the penalty, after every iteration.
        log: minimise the logarithm of the sum, which overflows nowhere.
    """
    wide, unit = x.astype(np.float64, copy=False), np.sqrt(scale)

    def value_and_gradient(z: Array) -> tuple[float, Array]:
        w = z * unit
        value, by_score = slopes(wide @ w)
        gradient, penalty = wide.T @ by_score, 0.5 * alpha * float(w @ w)
        if not log:
            return value + penalty, (gradient + alpha * w) * unit
        total = float(np.logaddexp(value, np.log(penalty))) if penalty > 0 else value
        return total, (np.exp(value - total) * gradient + np.exp(-total) * alpha * w) * unit

    def note(intermediate_result: object) -> None:
        value = float(intermediate_result.fun)  # type: ignore[attr-defined]
        if progress.add(float(np.exp(value)) if log else value):
            raise StopIteration

    options = {"maxiter": progress.max_iter, "maxfun": 20 * progress.max_iter, "maxcor": 20, "ftol": 0.0, "gtol": 1e-12}
    found = minimize(value_and_gradient, w / unit, jac=True, method="L-BFGS-B", callback=note, options=options)
    if not progress.curve:  # it began at the minimum
        progress.add(float(np.exp(found.fun)) if log else float(found.fun))
    if found.status == 1:
        progress.warn_unsettled(stacklevel=4)
    return found.x * unit
