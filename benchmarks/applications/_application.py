"""What an application is: cases to run, methods to compare, and a function that trains one of them once."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

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
        lr: where the walk over learning rates begins, for a case.
        quick: a case of a second or two, for the tests.
        seeds: how many.
        version: raise it when ``run`` changes, so that earlier results are not used.
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
    version: int = 1
    goal: Callable[[Table], str] | None = None


class Tuned(NamedTuple):
    """The results of all seeds at the lr that was chosen."""

    lr: float
    results: list[Result]


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


Run = Callable[[float, int], Result]  # of an lr and a seed
Score = Callable[[Result], float]  # the lower the better
LIMIT = 8


def tune(run: Run, start: float, seeds: int, limit: int = LIMIT) -> tuple[Tuned, Tuned]:
    """The best lr for the objective, and for the metric on the validation data; the same rule for every method.

    Of ``start`` times powers of two, a walk on the first seed goes on until both neighbours are worse, ``limit`` steps
    at most. From there all seeds go down together, as long as half of the lr is better on average: what suits the first
    may be too much for another.
    """
    known: dict[tuple[float, int], Result] = {}

    def at(lr: float, seed: int) -> Result:
        if (lr, seed) not in known:
            known[lr, seed] = run(lr, seed)
        return known[lr, seed]

    def best(of: Score, first: float) -> float:
        lr = walk(lambda lr: of(at(lr, 0)), first, limit)
        return _descend(lambda lr: fmean(of(at(lr, seed)) for seed in range(seeds)), lr)

    def finish(lr: float) -> Tuned:
        return Tuned(lr, [at(lr, seed) for seed in range(seeds)])

    by_objective = best(_objective, start)
    return finish(by_objective), finish(best(_error, by_objective))


def walk(score: Callable[[float], float], start: float, limit: int) -> float:
    """Where a score is lower than at half and at twice the lr; where it is infinite at the start, from further down.

    >>> walk(lambda lr: abs(lr - 5), 1.0, limit=8)
    4.0
    """
    best, steps = start, 0
    while score(best) == math.inf and steps < limit:
        best, steps = best / 4, steps + 1
    for factor in (2.0, 0.5):
        here, steps = best, 0
        while steps < limit and score(best * factor) < score(best):
            best, steps = best * factor, steps + 1
        if best != here:
            break
    return best


def _descend(score: Callable[[float], float], start: float) -> float:
    best = start
    for _ in range(LIMIT):
        if score(best) != math.inf and not score(best / 2) < score(best):
            break
        best /= 2
    return best


def _objective(result: Result) -> float:
    """A method that has another objective has NaN, and any lr will do."""
    return 0.0 if math.isnan(result.objective) else result.objective


def _error(result: Result) -> float:
    return -result.valid
