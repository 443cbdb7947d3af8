"""Measure the excess of every cell, at the learning rate that is best for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TextIO

from fcco_reproduce import run_jobs
from harness.cache import make_job, sources
from harness.excess import Row, batches, minimum_job, objectives
from harness.search import Found, search_lr
from what_decides._cells import Cell, Choice, Problem
from what_decides._compiled import train

SEEDS = 5


@dataclass(frozen=True)
class Outcome:
    """The excess of every seed, at the learning rate that is best for their mean."""

    excess: tuple[float, ...]
    lr: float
    at_end: bool = False

    @property
    def mean(self) -> float:
        return mean(self.excess)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return stdev(self.excess) / math.sqrt(len(self.excess)) if len(self.excess) > 1 else 0.0


Outcomes = dict[Cell, Outcome]


def tune_cell(cell: dict[str, Any], grid: dict[str, Any], seeds: int, sources: str) -> Found:
    """Search the learning rate of a cell; ``sources`` only distinguishes results of different code."""
    place = Cell(**cell)
    row, choice = Row(place.objective, place.data, place.batch, place.visits), Choice(place.variant)
    return search_lr(lambda lr, seed: train(row, choice, lr, seed), seeds=seeds, **grid)


def measure(
    problems: Sequence[Problem],
    cells: Iterable[Cell],
    *,
    cache: Path | None,
    quick: bool = False,
    progress: TextIO | None = None,
) -> Outcomes:
    """Return the outcome of every cell."""
    known, cells = {problem.objective: problem for problem in problems}, list(dict.fromkeys(cells))
    seeds, iterations = (1, 10) if quick else (SEEDS, 300)
    jobs = []
    for cell in cells:
        problem = known[cell.objective]
        grid: dict[str, Any] = {"centre": problem.lr * cell.batch / problem.batch}
        if quick:
            grid |= {"reach": 1, "around": 1}
        settings = {"cell": asdict(cell), "grid": grid, "seeds": seeds}
        settings["sources"] = sources(objectives()[cell.objective].build)
        steps = len(batches(Row(cell.objective, cell.data, cell.batch, 1), 0)) * cell.visits
        jobs.append(make_job(tune_cell, settings, cost=steps))
    minima = [minimum_job(problem.objective, problem.data, iterations) for problem in problems]
    results = run_jobs([*minima, *jobs], cache=cache, progress=progress)
    floor = dict(zip(known, results, strict=False))
    return {
        cell: Outcome(tuple(value - floor[cell.objective] for value in found.scores), found.lr, found.at_end)
        for cell, found in zip(cells, (Found(*result) for result in results[len(minima) :]), strict=True)
    }
