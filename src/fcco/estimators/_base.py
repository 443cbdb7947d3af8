"""What the estimators share: the tracked objective and when it has settled, warnings, and its curve."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba.core import event
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

_LIBRARIES = ("fcco", "sklearn", "scipy")


def warn_user(message: str) -> None:
    """Give a ``ConvergenceWarning`` that points at the line outside the libraries from which all was called."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, ConvergenceWarning, stacklevel=level)


def refuse_sparse(X: Any, method: str) -> None:  # noqa: N803
    """Raise a TypeError if X is sparse, for a method that steps from row to row."""
    if sparse.issparse(X):
        raise TypeError(f'method={method!r} takes dense X only, got a sparse one: take method="exact", or X.toarray()')


def refuse_other_features(X: Any, before: int) -> None:  # noqa: N803
    """Raise a ValueError if a warm start has X of other than the ``before`` features of the last fit.

    To be called before X is validated, which sets ``n_features_in_``: what was fitted is to stay as it was.
    """
    shape = np.shape(X)
    if len(shape) == 2 and shape[1] != before:
        raise ValueError(f"warm_start: X has {shape[1]} features, and the fit before had {before}")


class _Compilation(event.Listener):
    """Prints that something is being compiled, and then for how long it was."""

    def __init__(self, name: str) -> None:
        self.name, self.depth, self.began = name, 0, 0.0

    def on_start(self, event: Any) -> None:
        if self.depth == 0:
            print(f"[{self.name}] compiling ...", end=" ", flush=True)
            self.began = time.perf_counter()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            print(f"{time.perf_counter() - self.began:.1f} s", flush=True)


@contextmanager
def telling_of_compilation(name: str, verbose: int | bool) -> Iterator[None]:
    """Print a line for whatever Numba compiles meanwhile, if ``verbose``; code found on disk needs none."""
    if not verbose:
        yield
        return
    with event.install_listener("numba:compile", _Compilation(name)):
        yield


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
        self.max_iter, self.tol, self.n_iter_no_change = max_iter, float(tol), n_iter_no_change
        self.verbose, self.name = verbose, name
        self.curve: list[float] = []
        self._best, self._since_best, self._began = math.inf, 0, time.perf_counter()

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
        enough = self.enough(self._best, log=log is not None)
        improved = self._best == math.inf or value < self._best - enough
        self._since_best = 0 if improved else self._since_best + 1
        self._best = min(self._best, value)
        return self.tol > 0 and self._since_best >= self.n_iter_no_change

    def go_on(self) -> None:
        """Count passes without an improvement from here."""
        self._since_best = 0

    def warn(self, message: str) -> None:
        """Warn, if the passes were to go on until the objective settles."""
        if self.tol > 0:
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
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "loss_curve_")
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        ax.plot(np.arange(1, len(self.loss_curve_) + 1), self.loss_curve_)
        ax.set_xlabel("pass")
        ax.set_ylabel(f"objective of {type(self).__name__}")
        return ax
