"""The objective as a fit goes on: when it has settled, what is shown and warned of, and its curve."""

from __future__ import annotations

import math
import sys
import time
import warnings
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fcco._extras import new_axes

_LIBRARIES = ("fcco", "sklearn", "scipy")
_REDRAWN = 0.1  # seconds, at least, between two states of a plain line


def warn_user(message: str, category: type[Warning] = ConvergenceWarning) -> None:
    """Give a warning that points at the line outside the libraries from which all was called."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


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


class Bar:
    """One line on stderr that shows how far a fit has come: tqdm's bar, or a plain line if tqdm is not installed.

    Parameters
    ----------
    name : str
        What is being fitted.
    total : int
        The largest number of values to come. The end of the ``with`` block counts as all of them.
    shown : int or bool
        If false, nothing is shown.
    quantity : str, default="objective"
        What the values are.
    """

    def __init__(self, name: str, total: int, shown: int | bool, quantity: str = "objective") -> None:
        self.name, self.total, self.shown, self.quantity = name, total, bool(shown), quantity
        self._began = time.time()
        self._line: Any = None

    def show(self, value: float) -> None:
        """Go on by one, and show the value."""
        if not self.shown:
            return
        if self._line is None:  # not before the first value, as a line about compiling may come first
            self._line = _new_line(self.total, self.name)
            self._line.start_t = self._began
        self._line.set_postfix_str(f"{self.quantity} {value:.6g}", refresh=False)
        self._line.update()

    def close(self) -> None:
        """End the line, if there is one."""
        if self._line is not None:
            self._line.total = self._line.n
            self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _new_line(total: int, name: str) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return _PlainLine(total, name)
    return tqdm(total=total, desc=name)


class _PlainLine:
    """What :class:`Bar` uses of tqdm's bar."""

    def __init__(self, total: int, name: str) -> None:
        self.n, self.total, self._name, self._text = 0, total, name, ""
        self.start_t, self._drawn, self._width = 0.0, -math.inf, 0

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self._text = text

    def update(self) -> None:
        self.n += 1
        if time.time() - self._drawn >= _REDRAWN:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.time()
        line = f"{self._name}: {self.n}/{self.total} [{self._drawn - self.start_t:.1f} s, {self._text}]"
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def close(self) -> None:
        self._draw()
        print(file=sys.stderr)


class Progress:
    """The objective, pass by pass: shown, refused where it is no number, and watched for when to stop.

    As a context manager it ends the line that shows it.

    Args:
        max_iter: how many passes at most.
        tol: smallest improvement that counts, relative to the size of the objective; 0 or less: never stop early.
        n_iter_no_change: how many passes without one end the fit.
        verbose: show the objective after each pass, in a :class:`Bar`.
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
        self.max_iter, self.tol, self.name, self._warns = max_iter, float(tol), name, warns
        self.curve: list[float] = []
        self._stall, self._bar = Stall(n_iter_no_change), Bar(name, max_iter, verbose)

    @classmethod
    def of(cls, model: Any, name: str, tol: float) -> Progress:
        """Return the progress of a model's fit, by its parameters."""
        patience = model.n_iter_no_change
        return cls(max_iter=model.max_iter, tol=tol, n_iter_no_change=patience, verbose=model.verbose, name=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def enough(self, objective: float, *, log: bool = False) -> float:
        """The smallest improvement on an objective, or on its logarithm, that counts."""
        return max(self.tol, 0.0) * (1.0 if log else abs(objective))

    def add(self, objective: float, log: float | None = None) -> bool:
        """Note the objective after a pass; whether it has settled.

        With ``log``, its logarithm, that is what is watched: the objective itself may overflow or underflow.
        """
        number, value = len(self.curve) + 1, objective if log is None else log
        self.curve.append(objective)
        self._bar.show(objective)
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
    """``plot_loss()`` of the tracked objective."""

    loss_curve_: list[float]

    def plot_loss(self, ax: Any = None) -> Any:
        """Plot ``loss_curve_``, the objective after each iteration.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to plot. By default it is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            Where it is plotted.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        check_is_fitted(self, "loss_curve_")
        ax = new_axes(f"{type(self).__name__}.plot_loss") if ax is None else ax
        ax.plot(np.arange(1, len(self.loss_curve_) + 1), self.loss_curve_)
        ax.set_xlabel("iteration")
        ax.set_ylabel(f"objective of {type(self).__name__}")
        return ax
