"""``compare``: several methods on one problem, with equal numbers of inner samples and the same grid of step sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fcco._checks import NotFiniteError, whole_number
from fcco._extras import import_extra, progress_bar
from fcco.core.rules import BSGD, METHODS, Gamma, Rule
from fcco.solvers._problem import Problem
from fcco.solvers._settings import StepSize
from fcco.solvers._solution import Solution
from fcco.solvers._solve import solve
from fcco.theory._checks import positive

_CHOSEN_HERE = {"steps", "record", "random_state", "checkpoint", "callback", "method", "accuracy"}
_AXES = {"inner_evaluations": "inner samples", "seconds": "seconds"}


@dataclass(frozen=True, eq=False)
class Trials:
    """The runs of one method of a :class:`Comparison`.

    Attributes
    ----------
    lr : float
        The step size that was chosen, or NaN if every run of the choice diverged.
    lr_at_end : bool
        Whether it is the smallest or the largest of the grid, or the only one, or every run of the choice diverged. A
        wider grid may then do better.
    steps : int
        Number of steps that the inner samples paid for.
    solutions : tuple of Solution
        A run for each seed that did not diverge.
    diverged : int
        Number of runs that diverged.
    excess : ndarray, [seeds]
        F - min F at the end of each run; infinite if it diverged. If the minimum is not known, this is F itself.
    """

    lr: float
    lr_at_end: bool
    steps: int
    solutions: tuple[Solution, ...] = field(repr=False)
    diverged: int
    excess: np.ndarray


@dataclass(frozen=True, eq=False)
class Comparison:
    """What :func:`fcco.solvers.compare` returns.

    Printing it prints the table.

    Attributes
    ----------
    trials : dict of str to Trials
        The runs of each method, by name.
    minimum : float
        The minimum of F, or 0 if it is not known. An *excess* is F minus this number.
    is_excess : bool
        Whether the minimum is known.
    """

    trials: dict[str, Trials]
    minimum: float
    is_excess: bool

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row for each method, the best first. ``pandas.DataFrame(comparison.table)`` makes a data frame."""
        rows = [
            {
                "method": name,
                "excess" if self.is_excess else "objective": float(np.mean(trial.excess)),
                "standard error": _standard_error(trial.excess),
                "lr": trial.lr,
                "lr at an end of the grid": trial.lr_at_end,
                "steps": trial.steps,
                "seconds": float(np.mean([solution.seconds for solution in trial.solutions] or [math.nan])),
                "diverged": trial.diverged,
            }
            for name, trial in self.trials.items()
        ]
        return sorted(rows, key=lambda row: list(row.values())[1])

    def __str__(self) -> str:
        rows = self.table
        columns = [[name, *(_cell(row[name]) for row in rows)] for name in rows[0]]
        widths = [max(map(len, column)) for column in columns]
        lines = zip(*columns, strict=True)
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def plot(self, x: str | None = None, ax: Any = None) -> Any:
        """Plot the excess of every method, as the mean over seeds in a band from the smallest to the largest.

        Parameters
        ----------
        x : {"inner_evaluations", "seconds"}, optional
            What to plot it against. By default there are two panels, one for each.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on, if ``x`` is given. By default new ones are created.

        Returns
        -------
        matplotlib.axes.Axes or ndarray of them
            The axes drawn on.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If ``x`` is neither of the two.
        """
        if x is not None and x not in _AXES:
            raise ValueError(f"x must be one of {', '.join(_AXES)}; got {x!r}")
        axes = [x] if x is not None else list(_AXES)
        if ax is None:
            pyplot = import_extra("matplotlib.pyplot", "Comparison.plot", "plot")
            _, ax = pyplot.subplots(1, len(axes), sharey=True, squeeze=x is not None, figsize=(5.5 * len(axes), 4))
            ax = ax if x is not None else ax[0]
        for column, panel in zip(axes, np.atleast_1d(ax), strict=True):
            self._draw(panel, column)
        return ax

    def _draw(self, ax: Any, x: str) -> None:
        for name, trial in self.trials.items():
            if not trial.solutions:
                continue
            at = np.mean([solution.history[x] for solution in trial.solutions], axis=0)
            excess = np.array([solution.history["objective"] for solution in trial.solutions]) - self.minimum
            (line,) = ax.plot(at, excess.mean(axis=0), label=name)
            ax.fill_between(at, excess.min(axis=0), excess.max(axis=0), color=line.get_color(), alpha=0.2, linewidth=0)
        if self.is_excess:
            ax.set_yscale("log")
        ax.set_xlabel(_AXES[x])
        ax.set_ylabel("excess F - min F" if self.is_excess else "F")
        if ax.lines:
            ax.legend()


def compare(
    problem: Problem,
    methods: Mapping[str, str | Rule],
    *,
    evaluations: int,
    lr: Sequence[float],
    beta: StepSize | None = None,
    gamma: Gamma | None = None,
    seeds: int | Iterable[int] = 5,
    outer_batch: int = 1,
    inner_batch: int = 1,
    minimum: float | None = None,
    records: int = 50,
    progress: bool = False,
    **options: Any,
) -> Comparison:
    """Run several methods on a problem, each with the same number of inner samples and its best step size of a grid.

    A method takes as many steps as ``evaluations`` inner samples pay for. SCGD and NASA, which sample the inner sets
    of all rows, therefore take fewer steps. The step size is the one with the lowest F at the end of a run of its own,
    on a seed that is not among the ``seeds``.

    Parameters
    ----------
    problem : Problem
        What to solve. It must be able to compute F, by ``objective`` or ``exact_inner``.
    methods : mapping of str to str or Rule
        What to compare, by the name to show: names of methods, or rules, as in :func:`fcco.solve`.
    evaluations : int
        Number of inner samples in each run.
    lr : sequence of float
        The grid of step sizes.
    beta, gamma : float or callable, optional
        As in :func:`fcco.solve`, for all methods that use them. Rules have a rate of their own in the place of gamma.
    seeds : int or iterable of int, default 5
        The seeds, or how many there are: 1, 2, and so on. Seed 0, or the smallest one that is not among them, chooses
        the step size.
    outer_batch, inner_batch : int, default 1
        As in :func:`fcco.solve`.
    minimum : float, optional
        The minimum of F. By default it is F at ``problem.optimum``, if that is known. Give it if ``options`` contain a
        regulariser or a projection.
    records : int, default 50
        How many points of each run to record, evenly spaced.
    progress : bool, default False
        Show a progress bar on stderr. This needs tqdm.
    **options
        Other options of :func:`fcco.solve`, the same for all methods. ``estimate_all`` does not apply to BSGD, which
        has no table, nor to methods whose rows start at a given value (MOAP).

    Returns
    -------
    Comparison
        The table and the runs.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If a value is out of range, if the problem cannot compute F, or if ``evaluations`` do not pay for a step.
    ImportError
        If ``progress=True`` and tqdm is not installed.

    Examples
    --------
    >>> import fcco
    >>> from fcco.solvers.problems import pseudo_huber
    >>> found = compare(
    ...     pseudo_huber("convex", n=16),
    ...     {"SOX": "sox", "SOAP": fcco.SOAP(gamma=0.5), "in-batch": "bsgd"},
    ...     evaluations=2000, lr=[0.1, 1.0], beta=0.5, gamma=0.5, seeds=2, outer_batch=4, inner_batch=4,
    ... )
    >>> [found.trials[name].steps for name in ("SOX", "SOAP", "in-batch")]
    [125, 125, 125]
    """
    _check(problem, methods, lr)
    for name in _CHOSEN_HERE & options.keys():
        raise TypeError(f"{name}= cannot be given to compare, which chooses it for every run; got {options[name]!r}")
    shared = {"outer_batch": outer_batch, "inner_batch": inner_batch, "beta": beta, **options}
    bench = _Bench(
        problem, [float(rate) for rate in lr], shared, gamma, *_seeds(seeds), whole_number("records", records)
    )
    budgets = {name: bench.steps(method, whole_number("evaluations", evaluations)) for name, method in methods.items()}
    least = _minimum(problem, minimum, options)
    with progress_bar(progress, len(methods) * (len(lr) + len(bench.seeds)), 0, problem.name) as advance:
        trials = {name: bench.try_out(method, budgets[name], least or 0.0, advance) for name, method in methods.items()}
    return Comparison(trials, least or 0.0, least is not None)


@dataclass(frozen=True, eq=False)
class _Bench:
    """What all methods of a comparison have in common."""

    problem: Problem
    grid: list[float]
    options: dict[str, Any]
    gamma: Gamma | None
    seeds: list[int]
    choosing_seed: int
    records: int

    def steps(self, method: str | Rule, evaluations: int) -> int:
        """Return how many steps the inner samples pay for."""
        rule = method if isinstance(method, Rule) else _rule_of(method)
        inner_batch = whole_number("inner_batch", self.options["inner_batch"])
        rows = self.problem.n if rule.all_rows else whole_number("outer_batch", self.options["outer_batch"])
        cost = rows * inner_batch
        before = self.problem.n * inner_batch if self._estimates_all(rule) else 0
        if evaluations < before + cost:
            raise ValueError(
                f"evaluations must pay for at least one step of {method}, which takes {before + cost} inner samples; "
                f"got {evaluations}"
            )
        return (evaluations - before) // cost

    def _estimates_all(self, rule: Rule) -> bool:
        """Return whether the rows of a rule are estimated before the first step."""
        return bool(self.options.get("estimate_all")) and rule.start is None and not isinstance(rule, BSGD)

    def try_out(self, method: str | Rule, steps: int, minimum: float, advance: Callable[[int], Any]) -> Trials:
        """Choose a step size, and run the method with it on all seeds."""

        def run(lr: float, seed: int, record: int | None) -> Solution | None:
            solution = self._run(method, steps, lr, seed, record)
            advance(1)
            return solution

        ends = [_end(run(lr, self.choosing_seed, None)) for lr in self.grid]
        lr = self.grid[int(np.argmin(ends))]
        runs = [run(lr, seed, max(steps // self.records, 1)) for seed in self.seeds]
        kept = tuple(solution for solution in runs if solution is not None)
        return Trials(
            lr=lr if math.isfinite(min(ends)) else math.nan,
            lr_at_end=lr in (min(self.grid), max(self.grid)) or not math.isfinite(min(ends)),
            steps=steps,
            solutions=kept,
            diverged=len(runs) - len(kept),
            excess=np.array([_end(solution) for solution in runs]) - minimum,
        )

    def _run(self, method: str | Rule, steps: int, lr: float, seed: int, record: int | None) -> Solution | None:
        """Return a run, or None if it diverged."""
        gamma = {} if isinstance(method, Rule) else {"gamma": self.gamma}
        first = self._estimates_all(method if isinstance(method, Rule) else _rule_of(method))
        options = {**self.options, **gamma, "steps": steps, "lr": lr, "record": record, "estimate_all": first}
        try:
            solution = solve(self.problem, method, random_state=seed, **options)
        except NotFiniteError:
            return None
        return solution if math.isfinite(_end(solution)) else None


def _end(solution: Solution | None) -> float:
    """Return F at the end of a run; infinity if it diverged."""
    return math.inf if solution is None else solution.history["objective"][-1]


def _check(problem: Problem, methods: Mapping[str, str | Rule], lr: Sequence[float]) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a fcco.solvers.Problem; got {problem!r}")
    if not problem.is_exact:
        raise ValueError(f"{problem.name} has neither objective nor exact_inner: methods are compared by their exact F")
    if not isinstance(methods, Mapping) or not methods:
        raise TypeError(f"methods must be a mapping from names to methods or rules, not empty; got {methods!r}")
    for method in methods.values():
        if not isinstance(method, Rule):
            _rule_of(method)
    if isinstance(lr, str) or not isinstance(lr, Sequence) or not lr:
        raise TypeError(f"lr must be a sequence of step sizes, not empty; got {lr!r}")
    for rate in lr:
        positive("each lr", rate)


def _rule_of(method: Any) -> Rule:
    """Return a rule with the needs of a named method."""
    name = str(method).upper().replace("_", "-")
    if name in ("PROJECTED", "STRONGLY-CONVEX"):
        name = "SOX"
    if name not in METHODS:
        raise ValueError(
            "each method must be a rule, or the name of a method whose step size can be tuned: "
            f"{', '.join(METHODS).lower()}, projected, strongly-convex; got {method!r}"
        )
    return METHODS[name].rule()


def _seeds(seeds: int | Iterable[int]) -> tuple[list[int], int]:
    """Return the seeds, and the smallest one that is not among them."""
    if isinstance(seeds, Iterable):
        listed = [whole_number("each seed", seed, least=0) for seed in seeds]
        if len(set(listed)) < len(listed):
            raise ValueError(f"seeds must differ; got {listed}")
    else:
        listed = list(range(1, whole_number("seeds", seeds) + 1))
    if not listed:
        raise ValueError("seeds must contain at least one seed; got none")
    return listed, next(seed for seed in range(len(listed) + 1) if seed not in listed)


def _minimum(problem: Problem, minimum: float | None, options: Mapping[str, Any]) -> float | None:
    """Return the minimum of F, or None if it is not known. An optimum of F is none of F + R or of a smaller set."""
    if minimum is not None:
        return float(minimum)
    if problem.optimum is None or any(options.get(name) is not None for name in ("projection", "regulariser")):
        return None
    with torch.no_grad():
        return float(problem.value(problem.optimum))


def _standard_error(values: np.ndarray) -> float:
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
