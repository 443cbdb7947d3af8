"""Measure every setting in every row, at the learning rate that is best for it, and choose among them."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from statistics import fmean, geometric_mean, stdev
from typing import Any, NamedTuple

from fcco_reproduce import run_jobs
from harness.cache import make_job
from harness.excess import Row
from harness.search import search_lr
from remembering._problem import problem
from remembering._rows import Cells
from remembering._settings import Setting
from remembering._train import batches, train

CENTRE, REACH = 0.25, 6  # the coarse grid: 2**-14 to 2**10
IN_BATCH = "in-batch"


class Entry(NamedTuple):
    """The excess of all seeds at the best learning rate, and what the search took and saw."""

    lr: float
    excess: list[float]
    at_end: bool
    seconds: float
    lowest: float

    @property
    def mean(self) -> float:
        return fmean(self.excess)

    @property
    def error(self) -> float:
        return stdev(self.excess) / math.sqrt(len(self.excess)) if _known(self.excess) else math.nan


Tables = dict[Row, dict[str, Entry]]


def _known(values: list[float]) -> bool:
    return len(values) > 1 and all(map(math.isfinite, values))


def tune(row: list[Any], setting: str, grid: dict[str, Any], seeds: int) -> dict[str, Any]:
    """Search the learning rate of a setting in a row; ``grid`` holds the arguments of ``search_lr``."""
    place, chosen, lowest = Row(*row), Setting(setting), math.inf

    def score(lr: float, seed: int) -> float:
        nonlocal lowest
        value = train(place, chosen, lr, seed)
        lowest = min(lowest, value)
        return value

    began = time.process_time()
    found = search_lr(score, seeds=seeds, **grid)
    return {**found._asdict(), "seconds": time.process_time() - began, "lowest": lowest}


def minimum(objective: str, data: str, iterations: int) -> float:
    """Return the minimum that L-BFGS finds."""
    return problem(objective, data).minimum(iterations)


def measure(cells: Cells, seeds: int, cache: Path, *, quick: bool = False, workers: int = 1) -> Tables:
    """Return the entry of every cell; excesses are over the lowest value seen anywhere, L-BFGS included."""
    grid: dict[str, Any] = {"centre": CENTRE, "reach": 1 if quick else REACH}
    places = list(dict.fromkeys((row.objective, row.data) for row in cells))
    minima = [
        make_job(minimum, {"objective": o, "data": d, "iterations": 10 if quick else 300}, cost=1e6) for o, d in places
    ]
    entries = [(row, name) for row, names in cells.items() for name in names]
    jobs = [_job(row, name, grid, seeds) for row, name in entries]
    results = run_jobs([*minima, *jobs], workers=workers, cache=cache, progress=sys.stderr)
    floor = dict(zip(places, results, strict=False))
    found = list(zip(entries, results[len(minima) :], strict=True))
    for (row, _), result in found:
        floor[row.objective, row.data] = min(floor[row.objective, row.data], result["lowest"])
    tables: Tables = {row: {} for row in cells}
    for (row, name), result in found:
        lowest = floor[row.objective, row.data]
        excess = [score - lowest for score in result["scores"]]
        tables[row][name] = Entry(result["lr"], excess, result["at_end"], result["seconds"], result["lowest"])
    return tables


def _job(row: Row, name: str, grid: dict[str, Any], seeds: int) -> Any:
    steps = len(batches(row, 0, False))
    size = Setting(name).size(row.batch) if name not in (IN_BATCH, "table", "baseline") else row.batch
    return make_job(
        tune, {"row": list(row), "setting": name, "grid": grid, "seeds": seeds}, cost=float(steps * size * row.batch)
    )


def verdict(entry: Entry, base: Entry) -> str:
    """Return "better" or "worse" if the paired difference over seeds exceeds two standard errors, else "even"."""
    differences = [a - b for a, b in zip(entry.excess, base.excess, strict=True)]
    if not _known(differences):
        return "worse" if entry.mean > base.mean else "better" if entry.mean < base.mean else "even"
    noise = 2 * stdev(differences) / math.sqrt(len(differences))
    gain = fmean(differences)
    return "worse" if gain > noise else "better" if gain < -noise else "even"


def ratio(entry: Entry, base: Entry) -> float:
    """Return how the excess compares with that of the in-batch loss."""
    return entry.mean / base.mean if base.mean > 0 else math.nan


def summary(tables: Tables, name: str) -> tuple[float, list[Row]]:
    """Return the geometric mean of the ratio over the rows that have a setting, and the rows where it is worse."""
    rows = {row: entries for row, entries in tables.items() if name in entries}
    ratios = [ratio(entries[name], entries[IN_BATCH]) for entries in rows.values()]
    worse = [row for row, entries in rows.items() if verdict(entries[name], entries[IN_BATCH]) == "worse"]
    usable = bool(ratios) and all(0 < r < math.inf for r in ratios)
    return (geometric_mean(ratios) if usable else math.inf), worse


def choose(tables: Tables, candidates: list[str]) -> list[str]:
    """Return the candidates by rank: first those that are worse in no row, then by the mean ratio."""
    rank = {name: summary(tables, name) for name in candidates}
    return sorted(candidates, key=lambda name: (len(rank[name][1]) > 0, rank[name][0]))
