"""What an application is: cases to run, methods to compare, and a function that trains one of them once."""

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

    Args:
        data: what is trained on.
        batch: examples in a batch; 0 for methods that have no batches.
        passes: how often the training data are gone through; what it means in detail is the application's to say.
        model: where there are several.
    """

    data: str
    batch: int
    passes: int
    model: str = ""

    @property
    def where(self) -> str:
        """Data and model."""
        return f"{self.data}, {self.model}" if self.model else self.data


@dataclass(frozen=True)
class Method:
    """A column of the tables.

    Args:
        name: as the tables have it.
        kind: "ours"; "in-batch", the same objective with the batch taken for the population; "field", what else people
            would use; "exact", the minimum of the objective, over which the tables show the excess; "full", what all
            data at every step reach where no minimum is known. A case has one "ours", at most one of the last two, and
            any number of the others, which are the competitors.
        tuned: whether it has an lr; if not, it runs once for every seed.
        batched: whether it depends on the batch size; if not, it runs once for all batch sizes.
        needs: a package without which it is left out, and named as absent.
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
    """What one run came to.

    Args:
        objective: on all training data, exact; the lower the better. NaN: the method has another objective.
        valid, test: the metric on held-out data; the higher the better.
        seconds: of training; CPU time, where the loop is ours.
        memory: MiB that training needed at most, where the application measures it.
    """

    objective: float
    valid: float
    test: float
    seconds: float = math.nan
    memory: float = math.nan


DIVERGED = Result(math.inf, -math.inf, -math.inf)


@dataclass(frozen=True)
class Application:
    """A task that users come with.

    Args:
        title: a heading.
        text: paragraphs on data, model, optimizer and what a pass is, in Markdown.
        objective, metric: what the two numbers are called.
        cases: the rows; ``passes`` and whatever else they say is the same for all methods.
        methods: the columns of a case.
        run: ``run(case, method, lr, seed)`` trains the method of that name once; seeds share their data and batches
            among methods. It returns ``DIVERGED`` where training did not survive the lr.
        lr: the centre of the grid of learning rates, for a case.
        quick: a case of a second or two, for the tests.
        seeds: how many.
        goal: what would be a win, as a sentence, and a function that says whether it came out, from a
            :class:`Table`; in Markdown.
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
    """The results of all seeds at the learning rate that was chosen, and whether it lies at the end of the grid."""

    lr: float
    results: list[Result]
    at_end: bool = False


@dataclass(frozen=True)
class Entry:
    """What a method came to in a case: at the lr chosen for the objective, and at that chosen for the metric."""

    method: Method
    by_objective: Tuned
    by_metric: Tuned

    @property
    def objective(self) -> list[float]:
        """Of each seed, at the lr that is best for it."""
        return [result.objective for result in self.by_objective.results]

    @property
    def metric(self) -> list[float]:
        """On the test data, of each seed, at the lr that is best on the validation data."""
        return [result.test for result in self.by_metric.results]

    def typical(self, of: str) -> float:
        """The median of ``seconds`` or ``memory`` over seeds."""
        return sorted(getattr(result, of) for result in self.by_objective.results)[len(self.objective) // 2]


Table = dict[Case, dict[str, Entry]]


def tune(run: Callable[[float, int], Result], centre: float, seeds: int, **grid: int) -> tuple[Tuned, Tuned]:
    """Search the best learning rate for the objective, and apart from it for the metric on the validation data.

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
