"""What a solver returns, and what it shows while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from torch import Tensor

from fcco._table import InnerTable
from fcco.solvers._plan import Stage

History = dict[str, list[float]]


@dataclass(frozen=True, eq=False)
class State:
    """A run between two steps, as a callback sees it. The tensors are the run's own: clone what you keep.

    Attributes:
        step: steps taken so far.
        stage: stages finished so far.
        weights: the present w.
        average: the mean of the stage's iterates before the present one.
        table: the running estimates u.
        inner_evaluations: inner samples drawn so far.
        seconds: time spent in steps.
        history: what has been recorded so far.
    """

    step: int
    stage: int
    weights: Tensor
    average: Tensor
    table: InnerTable
    inner_evaluations: int
    seconds: float
    history: History


@dataclass(frozen=True, eq=False)
class Solution:
    """The end of a run.

    Attributes:
        weights: the last iterate w^T: what Theorem 1 and SOX-boost (as it passes its stages on) speak of.
        average: the mean of w^0 ... w^{T-1}, of the last stage where there are several: what Theorems 3 and 4 speak of.
        history: columns of equal length, so that ``pandas.DataFrame(solution.history)`` is a table. All are of the
            moment after ``step`` steps, and NaN where the problem does not tell:

            - ``step``, and ``stage``: how many are finished;
            - ``inner_evaluations``, and ``seconds``: spent in the steps, without the recording;
            - ``objective``: what is minimised, F(w) with the regulariser (and SOX-boost's mu/2 |w|^2) added;
            - ``average_objective``: the same at the average of the iterates;
            - ``gradient_norm``: of the gradient of what is minimised. With a projection or a regulariser R, the norm
              of the gradient mapping at step 1, w - P(prox_R(w - grad F(w))), which is 0 at the same points;
            - ``tracking_error``: Xi = 1/n |u - g(w)|^2, over the rows that have a u (those visited; for MOAP, all).

        steps: steps taken.
        inner_evaluations: inner samples drawn: rows evaluated times ``inner_batch``, of every step.
        outer_evaluations: outer functions differentiated: ``outer_batch`` a step.
        seconds: time spent in steps.
        stopped_early: whether the callback ended the run.
        method: its name.
        stages: the step sizes it was run with; one stage, but for SOX-boost.
    """

    weights: Tensor
    average: Tensor
    history: History = field(repr=False)
    steps: int
    inner_evaluations: int
    outer_evaluations: int
    seconds: float
    stopped_early: bool
    method: str
    stages: tuple[Stage, ...]

    def plot(self, y: str = "objective", x: str = "inner_evaluations", ax: Any = None) -> Any:
        """Draw a column of the history against another, on matplotlib axes, and return these.

        Args:
            y: the column to show.
            x: the column to show it against.
            ax: axes to draw on; new ones by default.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: there is no such column.
        """
        for column in (x, y):
            if column not in self.history:
                raise ValueError(f"the history has no column {column!r}; it has {', '.join(self.history)}")
        if ax is None:
            try:
                pyplot = import_module("matplotlib.pyplot")
            except ImportError as error:
                raise ImportError("Solution.plot needs matplotlib: pip install matplotlib") from error
            _, ax = pyplot.subplots()
        ax.plot(self.history[x], self.history[y], label=self.method)
        ax.set_xlabel(x.replace("_", " "))
        ax.set_ylabel(y.replace("_", " "))
        ax.legend()
        return ax
