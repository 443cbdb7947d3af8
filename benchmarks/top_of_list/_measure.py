"""Run the methods on the tasks, in parallel and resumed, and gather one record for every seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TextIO

from fcco_reproduce import Job, run_jobs
from fcco_reproduce._cache import Cache
from harness.cache import by_settings, make_job
from top_of_list._methods import BEST, START, Kind, Method, Scale, linear_methods, network_methods
from top_of_list._metrics import Result
from top_of_list._prepared import Prepared
from top_of_list._tasks import Task

Prepareds = dict[Task, Prepared]
Cell = tuple[Task, Method, float, int]  # the lr and the seed


class Record(NamedTuple):
    """What a method came to on a task with a seed: a row of the CSV file."""

    task: str
    group: str
    kind: str
    method: str
    seed: int
    test_ap: float
    partial_auc: float
    precision_at_k: float
    valid_ap: float
    setting: str
    seconds: float


class Measurer:
    """Runs jobs, or looks them up.

    Parameters
    ----------
    cache : Path or None
        The file of results.
    workers : int
        The number of processes; 0 runs nothing and only looks results up.
    progress : TextIO or None
        Where to show progress.
    earlier : bool
        Whether results that an earlier version of the code made are taken too.
    """

    def __init__(
        self, cache: Path | None, workers: int, progress: TextIO | None = None, *, earlier: bool = False
    ) -> None:
        self.cache, self.workers, self.progress = cache, workers, progress
        self._earlier = _by_job(cache) if earlier and cache is not None else {}

    def __call__(self, jobs: Sequence[tuple[Method, Job]]) -> list[Result | None]:
        """Return the results of jobs; None where a result is not in the file and the job cannot run here."""
        if self.workers:
            able = [job for method, job in jobs if method.available]
            ran = run_jobs(able, workers=self.workers, cache=self.cache, progress=self.progress)
            done = {job.key: result for job, result in zip(able, ran, strict=True)}
        else:
            done = {}
        known = done if self.cache is None else {**Cache(self.cache).results, **done}
        return [known.get(job.key) or self._earlier.get((job.name, by_settings(job.settings))) for _, job in jobs]


def _by_job(cache: Path) -> dict[tuple[str, str], Result]:
    """Return the results of a file by function and settings, whatever code made them; the last one counts."""
    entries = [json.loads(line) for line in cache.read_text(encoding="utf-8").splitlines()]
    return {(entry["job"], by_settings(entry["settings"])): entry["result"] for entry in entries}


def make(method: Method, task: Task, at: Prepared, seed: int, **more: Any) -> tuple[Method, Job]:
    """Return the job of a method; its key covers the content of the data, and not where they are."""
    settings = {"task": task.name, "data": at.data, "seed": seed, **method.settings, **more}
    cost = at.n * at.features if method.kind == "linear" else 10 * more["steps"] * (1000 + at.features)
    return method, replace(make_job(method.function, settings, cost=cost), place={"path": at.path})


def record(task: Task, method: str, kind: Kind, seed: int, result: Result) -> Record:
    """Return a result as a row."""
    measures = (result["ap"], result["partial_auc"], result["precision"], result["valid"])
    return Record(task.name, task.group, kind, method, seed, *measures, result["setting"], result["seconds"])


def measure(kind: Kind, tasks: Prepareds, scale: Scale, run: Measurer) -> list[Record]:
    """Return the records of one kind of models, and of the best of some methods by validation."""
    if kind == "linear":
        records, methods = complete(measure_linear(tasks, scale, run), scale), linear_methods(scale)
        starts = best_of(records, methods, ("usual", "start"), START)
        return records + best_of(records, methods, ("usual",), BEST[kind]) + starts
    tasks = {task: at for task, at in tasks.items() if not at.sparse}  # a linear model is what one takes there
    records = complete(measure_networks(tasks, scale, run), scale)
    return records + best_of(records, network_methods(), ("usual",), BEST[kind])


def complete(records: Sequence[Record], scale: Scale) -> list[Record]:
    """Leave out methods on tasks where a seed is missing, since other seeds would not be comparable."""
    counts = Counter((row.task, row.method) for row in records)
    return [row for row in records if counts[row.task, row.method] == scale.seeds]


def measure_linear(tasks: Prepareds, scale: Scale, run: Measurer) -> list[Record]:
    """Return the records of linear models."""
    plan = [(task, method, seed) for task in tasks for method in linear_methods(scale) for seed in range(scale.seeds)]
    results = run([make(method, task, tasks[task], seed) for task, method, seed in plan])
    pairs = zip(plan, results, strict=True)
    return [record(task, method.name, "linear", seed, result) for (task, method, seed), result in pairs if result]


def measure_networks(tasks: Prepareds, scale: Scale, run: Measurer) -> list[Record]:
    """Return the records of networks, each at the lr with the best mean validation AP over the first seeds."""
    cases = [(task, method) for task in tasks for method in network_methods()]
    tuning, rest = range(scale.tuning), range(scale.tuning, scale.seeds)
    known = _run_cells(tasks, scale, run, [(*case, lr, seed) for case in cases for lr in scale.lrs for seed in tuning])
    chosen = {case: lr for case in cases if (lr := _best_lr(case, scale, known)) is not None}
    known |= _run_cells(tasks, scale, run, [(*case, lr, seed) for case, lr in chosen.items() for seed in rest])
    found = []
    for (task, method), lr in chosen.items():
        for seed in range(scale.seeds):
            if result := known.get((task, method, lr, seed)):
                at_end = lr in (min(scale.lrs), max(scale.lrs))
                found.append(record(task, method.name, "network", seed, _at_end(result) if at_end else result))
    return found


def _run_cells(tasks: Prepareds, scale: Scale, run: Measurer, cells: Sequence[Cell]) -> dict[Cell, Result]:
    """Return the results of networks with a given lr and seed."""
    jobs = [make(method, task, tasks[task], seed, lr=lr, steps=scale.steps) for task, method, lr, seed in cells]
    return {cell: result for cell, result in zip(cells, run(jobs), strict=True) if result}


def _best_lr(case: tuple[Task, Method], scale: Scale, known: dict[Cell, Result]) -> float | None:
    """Return the lr with the best mean validation AP; None if a run of the grid is missing."""
    tried = {lr: [known.get((*case, lr, seed)) for seed in range(scale.tuning)] for lr in scale.lrs}
    scores = {lr: [result["valid"] for result in some if result] for lr, some in tried.items()}
    if any(len(some) < scale.tuning for some in scores.values()):
        return None
    return max(scores, key=lambda lr: fmean(scores[lr]))


def _at_end(result: Result) -> Result:
    return {**result, "setting": f"{result['setting']}, end of grid"}


def best_of(records: Iterable[Record], methods: Sequence[Method], roles: tuple[str, ...], name: str) -> list[Record]:
    """Return, for every task and seed, the method of some roles that is best by validation, and the seconds of all."""
    among = [method.name for method in methods if method.role in roles]
    by_place: dict[tuple[str, int], list[Record]] = {}
    for row in records:
        if row.method in among:
            by_place.setdefault((row.task, row.seed), []).append(row)
    found = []
    for rows in by_place.values():
        if len(rows) == len(among):
            best = max(rows, key=lambda row: row.valid_ap)
            setting, seconds = f"{best.method}: {best.setting}", sum(row.seconds for row in rows)
            found.append(best._replace(method=name, setting=setting, seconds=seconds))
    return found
