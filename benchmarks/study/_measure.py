"""Train at the lr that is best for a setting, and say how far from the minimum it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TextIO

from _tasks import task
from defaults import Row, batches, minimum

from fcco_reproduce import Task, run_tasks
from study._cells import Cell, Choice, Problem
from study._compiled import train

VERSION = 1
SEEDS = 5
GRID = (0.0625, 0.25, 1.0, 4.0, 16.0)
LIMIT = 8


@dataclass(frozen=True)
class Outcome:
    """The excess of every seed, at the lr that is best for their mean."""

    excess: tuple[float, ...]
    lr: float

    @property
    def mean(self) -> float:
        return mean(self.excess)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return stdev(self.excess) / math.sqrt(len(self.excess)) if len(self.excess) > 1 else 0.0


Outcomes = dict[Cell, Outcome]


def search(score: Callable[[float, int], float], start: float, seeds: int) -> tuple[float, list[float]]:
    """The best lr, and the scores of all seeds at it; the same rule for every setting.

    Of a coarse grid around ``start`` the best on the first seed; from there by factors of two, downwards or upwards, as
    long as the mean over all seeds falls.

    >>> search(lambda lr, seed: abs(math.log2(lr) - 5) + seed, 1.0, seeds=2)
    (32.0, [0.0, 1.0])
    """
    known: dict[tuple[float, int], float] = {}

    def at(lr: float, seed: int) -> float:
        if (lr, seed) not in known:
            known[lr, seed] = score(lr, seed)
        return known[lr, seed]

    def over_seeds(lr: float) -> float:
        return mean(at(lr, seed) for seed in range(seeds))

    best = min((start * factor for factor in GRID), key=lambda lr: at(lr, 0))
    steps = 0
    while over_seeds(best) == math.inf and steps < LIMIT:
        best, steps = best / 2, steps + 1
    for factor in (0.5, 2.0):
        here, steps = best, 0
        while steps < LIMIT and over_seeds(best * factor) < over_seeds(best):
            best, steps = best * factor, steps + 1
        if best != here:
            break
    return best, [at(best, seed) for seed in range(seeds)]


def tune_cell(cell: dict, start: float, seeds: int, version: int) -> tuple[float, list[float]]:
    """The best lr of a cell, and the objective of every seed; ``version`` only tells old results from new ones."""
    place = Cell(**cell)
    row, choice = Row(place.objective, place.data, place.batch, place.visits), Choice(place.setting)
    return search(lambda lr, seed: train(row, choice, lr, seed), start, seeds)


def lowest(objective: str, data: str, iterations: int) -> float:
    """The exact minimum, or the one that L-BFGS finds from the same start."""
    return minimum(task(objective, data), iterations)


def measure(
    problems: Sequence[Problem],
    cells: Iterable[Cell],
    *,
    cache: Path | None,
    quick: bool = False,
    progress: TextIO | None = None,
) -> Outcomes:
    """The outcomes of cells."""
    known, cells = {problem.objective: problem for problem in problems}, list(dict.fromkeys(cells))
    seeds, iterations = (1, 10) if quick else (SEEDS, 300)
    tasks = []
    for cell in cells:
        problem = known[cell.objective]
        settings = {"cell": asdict(cell), "start": problem.lr * cell.batch / problem.batch}
        settings |= {"seeds": seeds, "version": VERSION}
        tasks.append(
            Task(tune_cell, settings, cost=len(batches(Row(cell.objective, cell.data, cell.batch, 1), 0)) * cell.visits)
        )
    at_least = [Task(lowest, {"objective": p.objective, "data": p.data, "iterations": iterations}) for p in problems]
    results = run_tasks([*at_least, *tasks], cache=cache, progress=progress)
    floor = dict(zip(known, results, strict=False))
    return {
        cell: Outcome(tuple(value - floor[cell.objective] for value in values), lr)
        for cell, (lr, values) in zip(cells, results[len(at_least) :], strict=True)
    }
