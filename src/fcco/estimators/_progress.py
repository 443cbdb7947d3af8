"""The objective as a fit goes on: when it has settled, what is printed and warned of, and its curve."""

from __future__ import annotations

import math
import sys
import time
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

_LIBRARIES = ("fcco", "sklearn", "scipy")


def warn_user(message: str) -> None:
    """Give a ``ConvergenceWarning`` that points at the line outside the libraries from which all was called."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, ConvergenceWarning, stacklevel=level)


class Stall:
    """Counts how long a value has not improved.

    Parameters
    ----------
    patience : int
        How many values in a row without an improvement make a stall.
    """

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.since_best = patience, math.inf, 0

    def add(self, value: float, enough: float) -> bool:
        """Note a value, and return whether it has stalled; an improvement is one by more than ``enough``."""
        improved = self.best == math.inf or value < self.best - enough
        self.since_best = 0 if improved else self.since_best + 1
        self.best = min(self.best, value)
        return self.since_best >= self.patience

    def restart(self) -> None:
        """Count from here."""
        self.since_best = 0


class Progress:
    """The objective, pass by pass: printed, refused where it is no number, and watched for when to stop.

    Args:
        max_iter: how many passes at most.
        tol: smallest improvement that counts, relative to the size of the objective; 0 or less: never stop early.
        n_iter_no_change: how many passes without one end the fit.
        verbose: print the objective after each pass.
        name: of the estimator, for messages.
        warns: whether an end before the objective settles is worth a warning.
    """

    def __init__(
        self,
        *,
        max_iter: int,
        tol: float,
        n_iter_no_change: int,
        verbose: int | bool,
        name: str,
        warns: bool = True,
    ) -> None:
        self.max_iter, self.tol, self.verbose, self.name = max_iter, float(tol), verbose, name
        self._warns = warns
        self.curve: list[float] = []
        self._stall, self._began = Stall(n_iter_no_change), time.perf_counter()

    @classmethod
    def of(cls, model: Any, name: str, tol: float) -> Progress:
        """Return the progress of a model's fit, by its parameters."""
        patience = model.n_iter_no_change
        return cls(max_iter=model.max_iter, tol=tol, n_iter_no_change=patience, verbose=model.verbose, name=name)

    def enough(self, objective: float, *, log: bool = False) -> float:
        """The smallest improvement on an objective, or on its logarithm, that counts."""
        return max(self.tol, 0.0) * (1.0 if log else abs(objective))

    def add(self, objective: float, log: float | None = None) -> bool:
        """Note the objective after a pass; whether it has settled.

        With ``log``, its logarithm, that is what is watched: the objective itself may overflow or underflow.
        """
        number, value = len(self.curve) + 1, objective if log is None else log
        self.curve.append(objective)
        if self.verbose:
            seconds = time.perf_counter() - self._began
            print(f"[{self.name}] pass {number:4d}  objective {objective:.6g}  {seconds:.1f} s")
        if not (np.isfinite(value) or (log is not None and value == -math.inf)):
            raise FloatingPointError(
                f"{self.name}: the objective is {objective} after pass {number}; scale the features, lower "
                "learning_rate (of the stochastic methods), or begin at 0 (warm_start=False)"
            )
        stalled = self._stall.add(value, self.enough(self._stall.best, log=log is not None))
        return self.tol > 0 and stalled

    def go_on(self) -> None:
        """Count passes without an improvement from here."""
        self._stall.restart()

    def warn(self, message: str) -> None:
        """Warn, if the passes were to go on until the objective settles."""
        if self.tol > 0 and self._warns:
            warn_user(f"{self.name}: {message}")

    def warn_unsettled(self, *, outwards: bool) -> None:
        """Say that the passes have run out; ``outwards``: while the objective fell as the coefficients grew."""
        hint = "; if the coefficients only grow, there may be no finite optimum: set alpha > 0" if outwards else ""
        self.warn(f"reached max_iter={self.max_iter} passes before the objective settled; raise max_iter, or tol{hint}")

    def warn_endless(self) -> None:
        """Say that larger coefficients would always be better."""
        self.warn(
            "the objective still falls as the coefficients grow (at twice their size it is lower), so that there may "
            "be no finite optimum, as with classes that can be told apart without error; set alpha > 0"
        )


class LossCurveMixin:
    """``plot()`` of the tracked objective."""

    loss_curve_: list[float]

    def plot(self, ax: Any = None) -> Any:
        """Plot the objective by pass; matplotlib's axes, made where none are given."""
        check_is_fitted(self, "loss_curve_")
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        ax.plot(np.arange(1, len(self.loss_curve_) + 1), self.loss_curve_)
        ax.set_xlabel("pass")
        ax.set_ylabel(f"objective of {type(self).__name__}")
        return ax
