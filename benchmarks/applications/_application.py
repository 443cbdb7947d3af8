"""The parts of an application: cases to run, methods to compare, and a function that trains a method once."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.search import search_lr

Kind = Literal["ours", "in-batch", "field", "exact", "full"]


@dataclass(frozen=True)
class Case:
    """A row of the tables.

    Parameters
    ----------
    data : str
        The training data.
    batch : int
        The number of examples in a batch; 0 for methods that have no batches.
    passes : int
        The number of passes over the training data. The text of the application says what a pass is.
    model : str
        The model, if the application has several.
    """

    data: str
    batch: int
    passes: int
    model: str = ""

    @property
    def where(self) -> str:
        """The data and the model."""
        return f"{self.data}, {self.model}" if self.model else self.data


@dataclass(frozen=True)
class Method:
    """A column of the tables.

    Parameters
    ----------
    name : str
        The name in the tables.
    kind : Kind
        "ours"; "in-batch", the same objective with the batch treated as the population; "field", any other method
        that people would use; "exact", the minimum of the objective, over which the tables show the excess; "full",
        a reference that the tables show beside the others: training with all data at every step, or another loss of
        the library. A case has one "ours", at most one "exact", and any number of the others. The competitors are
        "in-batch" and "field".
    tuned : bool
        Whether the method has an lr. If not, it runs once for every seed.
    batched : bool
        Whether the method depends on the batch size. If not, it runs once for all batch sizes.
    needs : str
        A package that the method needs. Without it, the method is left out, and the page says so.
    """

    name: str
    kind: Kind
    tuned: bool = True
    batched: bool = True
    needs: str = ""

    @property
    def available(self) -> bool:
        """Whether the package that it needs is installed."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


class Result(NamedTuple):
    """The result of one run.

    Parameters
    ----------
    objective : float
        The exact objective on all training data; lower is better. NaN if the method has another objective.
    valid, test : float
        The metric on held-out data; higher is better.
    seconds : float
        The time of training; CPU time if the loop is ours.
    memory : float
        The peak memory of training in MiB, if the application measures it.
    """

    objective: float
    valid: float
    test: float
    seconds: float = math.nan
    memory: float = math.nan


DIVERGED = Result(math.inf, -math.inf, -math.inf)


@dataclass(frozen=True)
class Application:
    """A task that users have.

    Parameters
    ----------
    title : str
        The heading of the section.
    text : str
        Markdown that describes the data, the model, the optimizer, a pass, and the methods.
    objective, metric : str
        Descriptions of the two numbers, which follow "*Objective*:" and "*Metric*:" on the page.
    cases : tuple[Case, ...]
        The rows, whose settings are the same for all methods.
    methods : callable
        The columns of a case.
    run : callable
        ``run(case, method, lr, seed)`` trains the method of that name once. All methods of a seed share data and
        batches. It returns ``DIVERGED`` if training diverged.
    lr : callable
        The centre of the grid of learning rates, for a case.
    quick : Case
        A case that takes a second or two, for the tests.
    seeds : int
        The number of seeds.
    goal : callable
        Maps a :class:`Table` to sentences in Markdown that state a goal and whether it was reached.
    """

    title: str
    text: str
    objective: str
    metric: str
    cases: tuple[Case, ...]
    methods: Callable[[Case], tuple[Method, ...]]
    run: Callable[[Case, str, float, int], Result]
    lr: Callable[[Case], float]
    quick: Case
    seeds: int = 3
    goal: Callable[[Table], str] | None = None


class Tuned(NamedTuple):
    """The results of all seeds at the chosen learning rate, and whether it lies at the end of the grid."""

    lr: float
    results: list[Result]
    at_end: bool = False


@dataclass(frozen=True)
class Entry:
    """The results of a method in a case: at the lr chosen for the objective, and at the lr chosen for the metric."""

    method: Method
    by_objective: Tuned
    by_metric: Tuned

    @property
    def objective(self) -> list[float]:
        """The objective of each seed, at the lr that is best for it."""
        return [result.objective for result in self.by_objective.results]

    @property
    def metric(self) -> list[float]:
        """The metric of each seed on the test data, at the lr that is best on the validation data."""
        return [result.test for result in self.by_metric.results]

    def typical(self, of: str) -> float:
        """Return the median of ``seconds`` or ``memory`` over seeds."""
        return sorted(getattr(result, of) for result in self.by_objective.results)[len(self.objective) // 2]


Table = dict[Case, dict[str, Entry]]


def tune(run: Callable[[float, int], Result], centre: float, seeds: int, **grid: int) -> tuple[Tuned, Tuned]:
    """Search the best learning rate for the objective, and separately for the metric on the validation data.

    The grid is the same for every method (:mod:`harness.search`), and both searches share their runs.

    Parameters
    ----------
    run : callable
        Maps a learning rate and a seed to a :class:`Result`.
    centre : float
        The centre of the grid.
    seeds : int
        The number of seeds.
    grid : int
        Further arguments of :func:`harness.search.search_lr`.
    """
    known: dict[tuple[float, int], Result] = {}

    def at(lr: float, seed: int) -> Result:
        if (lr, seed) not in known:
            known[lr, seed] = run(lr, seed)
        return known[lr, seed]

    def best(score: Callable[[Result], float]) -> Tuned:
        found = search_lr(lambda lr, seed: score(at(lr, seed)), centre, seeds, **grid)
        return Tuned(found.lr, [at(found.lr, seed) for seed in range(seeds)], found.at_end)

    by_metric = best(lambda result: -result.valid)
    if math.isnan(by_metric.results[0].objective):  # the method has another objective
        return by_metric, by_metric
    return best(lambda result: result.objective), by_metric
