"""What all estimators share: passes over the data with a tracked objective, and its curve."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning


class Progress:
    """The objective, pass by pass: printed, refused where it is no number, and watched for when to stop.

    Args:
        max_iter: how many passes at most.
        tol: smallest improvement that counts, relative to the size of the objective; 0 or less: never stop early.
        n_iter_no_change: how many passes without one end the fit.
        verbose: print the objective after each pass.
        name: of the estimator, for messages.
    """

    def __init__(self, *, max_iter: int, tol: float, n_iter_no_change: int, verbose: int | bool, name: str) -> None:
        self.max_iter, self.tol, self.n_iter_no_change = max_iter, tol, n_iter_no_change
        self.verbose, self.name = verbose, name
        self.curve: list[float] = []
        self._best, self._since_best, self._began = np.inf, 0, time.perf_counter()

    def add(self, objective: float) -> bool:
        """Note the objective after a pass; whether it has settled."""
        number = len(self.curve) + 1
        self.curve.append(objective)
        if self.verbose:
            seconds = time.perf_counter() - self._began
            print(f"[{self.name}] pass {number:4d}  objective {objective:.6g}  {seconds:.1f} s")
        if not np.isfinite(objective):
            raise FloatingPointError(
                f"{self.name}: the objective is {objective} after pass {number}; scale the features, or lower "
                "learning_rate"
            )
        known = np.isfinite(self._best)
        improved = objective < self._best - self.tol * max(abs(self._best), 1e-12) if known else True
        self._since_best = 0 if improved else self._since_best + 1
        self._best = min(self._best, objective)
        return self.tol > 0 and self._since_best >= self.n_iter_no_change

    def warn_unsettled(self, stacklevel: int = 3) -> None:
        """Say that the passes have run out, if they were to go on until the objective settles."""
        if self.tol > 0:
            warnings.warn(
                f"{self.name} reached max_iter={self.max_iter} passes before the objective settled: raise max_iter, "
                "or tol",
                ConvergenceWarning,
                stacklevel=stacklevel + 1,
            )


def run_passes(
    one_pass: Callable[[int], float],
    *,
    max_iter: int,
    tol: float,
    n_iter_no_change: int,
    verbose: int | bool,
    name: str,
) -> list[float]:
    """Make passes until the objective has not improved by ``tol`` (relative) for ``n_iter_no_change`` of them.

    Args:
        one_pass: takes the number of the pass, from 0, and returns the objective as tracked over it.
        max_iter: how many passes at most; reaching it warns.
        tol: smallest improvement that counts, relative to the size of the objective; 0 or less: never stop early.
        n_iter_no_change: how many passes without one end the fit.
        verbose: print the objective after each pass.
        name: of the estimator, for messages.

    Returns:
        The objective after each pass.
    """
    progress = Progress(max_iter=max_iter, tol=tol, n_iter_no_change=n_iter_no_change, verbose=verbose, name=name)
    for number in range(max_iter):
        if progress.add(float(one_pass(number))):
            return progress.curve
    progress.warn_unsettled()
    return progress.curve


class LossCurveMixin:
    """``plot()`` of the tracked objective."""

    loss_curve_: list[float]

    def plot(self, ax: Any = None) -> Any:
        """Plot the objective by pass; matplotlib's axes, made where none are given."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "loss_curve_")
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        ax.plot(np.arange(1, len(self.loss_curve_) + 1), self.loss_curve_)
        ax.set_xlabel("pass")
        ax.set_ylabel(f"objective of {type(self).__name__}")
        return ax
