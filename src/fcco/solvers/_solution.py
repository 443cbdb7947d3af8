"""What a solver returns, and what it passes to a callback."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fcco._extras import new_axes
from fcco._table import InnerTable
from fcco.solvers._settings import Stage

History = dict[str, list[float]]


@dataclass(frozen=True, eq=False)
class SolverState:
    """The state between two steps, as a callback receives it.

    The tensors belong to the solver. Clone what you want to keep.

    Attributes
    ----------
    step : int
        Number of steps taken so far.
    stage : int
        Number of stages finished so far.
    weights : Tensor
        The current w.
    average : Tensor
        Mean of the iterates of the current stage, without the current one.
    table : InnerTable
        The running estimates u.
    inner_evaluations : int
        Number of inner samples drawn so far.
    seconds : float
        Time spent in steps.
    history : dict of str to list of float
        What has been recorded so far.
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
    """What :func:`fcco.solve` returns.

    Attributes
    ----------
    weights : Tensor
        The last iterate w^T. Theorem 3 is about the iterates, and SOX-boost returns the one that its last stage
        passes on.
    average : Tensor
        The mean of w^0 ... w^{T-1}, which Theorems 5 and 7 are about. If there are several stages, it is the mean over
        the last stage.
    history : dict of str to list of float
        Columns of equal length, so that ``pandas.DataFrame(solution.history)`` is a table. Each row describes the
        state after ``step`` steps. A value that the problem cannot compute is NaN. The columns are:

        - ``step``: number of steps taken;
        - ``stage``: number of stages finished;
        - ``inner_evaluations``: number of inner samples drawn;
        - ``seconds``: time spent in steps, without the recording;
        - ``objective``: the function that is minimised: F(w), plus the regulariser, plus SOX-boost's mu/2 |w|^2;
        - ``average_objective``: the same at the average of the iterates;
        - ``gradient_norm``: the norm of the gradient of that function. With a projection or a regulariser R, it is
          the norm of the gradient mapping with step size 1, w - P(prox_R(w - grad F(w))), which is 0 at the same
          points;
        - ``tracking_error``: Xi = 1/n |u - g(w)|^2, over the rows that have a u. These are the visited rows, and all
          rows for MOAP.
    steps : int
        Number of steps taken.
    inner_evaluations : int
        Number of inner samples drawn: the rows evaluated times ``inner_batch``, summed over the steps.
    outer_evaluations : int
        Number of outer functions differentiated: ``outer_batch`` in each step.
    seconds : float
        Time spent in steps.
    stopped_early : bool
        Whether the callback ended the run.
    method : str
        Name of the method.
    stages : tuple of Stage
        The step sizes that were used. Only SOX-boost has more than one stage.
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
        """Plot a column of the history against another one.

        Parameters
        ----------
        y : str, default "objective"
            Column on the vertical axis.
        x : str, default "inner_evaluations"
            Column on the horizontal axis.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on. By default new ones are created.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the history has no such column.
        """
        for column in (x, y):
            if column not in self.history:
                raise ValueError(f"column must be one of {', '.join(self.history)}; got {column!r}")
        if ax is None:
            ax = new_axes("Solution.plot")
        ax.plot(self.history[x], self.history[y], label=self.method)
        ax.set_xlabel(x.replace("_", " "))
        ax.set_ylabel(y.replace("_", " "))
        ax.legend()
        return ax
