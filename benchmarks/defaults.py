"""Which rule and own term each objective should have by default: the excess over the exact minimum, measured.

    python benchmarks/defaults.py [--objective cox] [--quick] [--seeds 3] [--results build/defaults]

Every objective is trained on real data with small batches by every candidate setting, and by the in-batch loss that
practitioners use. A row of a table is (data, batch, passes over the outer rows); an entry is the exact objective after
training less its exact minimum (full-batch L-BFGS in float64 from the same start), averaged over seeds. The optimizer
is MovingAverageSGD, beta 0.1, with a cosine lr. Each setting has the lr that is best for it: a walk over the powers of
two, which are the same grid for all, goes on until both neighbours are worse on the first seed, and then down to where
half the lr is worse over all seeds. It is the *training* objective that decides, for the lr as for the table: this is
about optimisation, not about generalisation.

Seeds draw the same batches for all settings. Runs are kept in RESULTS.jsonl as they end, so that an interrupted
command continues where it was; RESULTS.csv has the tables. Delete both to measure anew. Data: see ``_data.py``.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from statistics import geometric_mean, mean, stdev
from typing import Any, NamedTuple

import torch
from _task import Setting, Task
from _tasks import OBJECTIVES, Objective, task
from applications import minimise
from torch import Tensor, nn

import fcco

BETA = 0.1
FIRST_LR = 0.25
SMALLEST, LARGEST = 2.0**-14, 2.0**10


class Row(NamedTuple):
    """A row of the table of an objective."""

    objective: str
    data: str
    batch: int
    passes: int

    def __str__(self) -> str:
        return f"{self.data}, {self.batch}, {self.passes}"


class Entry(NamedTuple):
    """What a setting reached in a row, at its best lr: the excess, its standard error over seeds, the lr."""

    excess: float
    error: float
    lr: float


class Runs:
    """Results of single runs, by key, in memory and in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.values: dict[str, float] = {}
        for line in lines:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # cut off in the middle
                continue
            self.values[record["run"]] = record["value"]

    def get(self, key: str, compute: Any) -> float:
        if key not in self.values:
            self.values[key] = compute()
            with self.path.open("a") as file:  # short lines, appended in one piece
                file.write(json.dumps({"run": key, "value": self.values[key]}) + "\n")
        return self.values[key]


@lru_cache(maxsize=64)
def batches(row: Row, seed: int) -> list[Tensor]:
    return list(task(row.objective, row.data).batches(row.batch, row.passes, seed))


def train(row: Row, setting: Setting, lr: float, seed: int) -> float:
    """The exact objective after training; infinite where it diverged."""
    problem, plan = task(row.objective, row.data), batches(row, seed)
    generator = torch.Generator().manual_seed(seed)
    loss_fn = problem.loss(setting, len(plan))
    w = nn.Parameter(problem.start.clone())
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=BETA, weight_decay=problem.penalty)
    for t, rows in enumerate(plan):
        optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * t / len(plan))) / 2
        optimizer.zero_grad()
        try:
            problem.step(loss_fn, w, rows, generator).backward()
        except ValueError:  # the engine refuses estimates that are not finite
            if w.detach().abs().max() < 1e3:
                raise
            return math.inf
        optimizer.step()
        if not w.detach().abs().max() < 1e9:
            return math.inf
    value = problem.objective(w.detach().double()).item()
    return value if math.isfinite(value) else math.inf


def minimum(problem: Task, iterations: int) -> float:
    """By L-BFGS on all data; of objectives that are not convex, the one that it finds from the same start."""
    w = nn.Parameter(problem.start.double())
    minimise(lambda: problem.objective(w), [w], iterations)
    return problem.objective(w.detach()).item()


def walk(row: Row, setting: Setting, first: float, seeds: int, runs: Runs) -> tuple[float, list[float]]:
    """The best lr, and its values: from ``first`` downhill on seed 0, then downwards by the mean over seeds."""

    def score(lr: float, seed: int = 0) -> float:
        key = f"{row.objective} | {row} | {setting.name} | {lr:g} | {seed}"
        return runs.get(key, lambda: train(row, setting, lr, seed))

    best = first
    while score(best) == math.inf and best > SMALLEST:
        best /= 4
    for factor in (2.0, 0.5):
        moved = False
        while SMALLEST <= best * factor <= LARGEST and score(best * factor) < score(best):
            best, moved = best * factor, True
        if moved:
            break

    def values(lr: float) -> list[float]:
        return [score(lr, seed) for seed in range(seeds)]

    # What is best for one seed may be too much for another.
    while best > SMALLEST and (mean(values(best)) == math.inf or mean(values(best / 2)) < mean(values(best))):
        best /= 2
    return best, values(best)


def measure_row(row: Row, seeds: int, path: Path, quick: bool) -> Iterator[tuple[str, Entry]]:
    """The entries of a row, as they come; every setting starts where the one before it was best."""
    torch.set_num_threads(1)
    runs = Runs(path)
    problem = task(row.objective, row.data)
    lowest = runs.get(f"{row.objective} | {row.data} | minimum", lambda: minimum(problem, 10 if quick else 300))
    lr = FIRST_LR
    for setting in columns(row.objective, quick):
        lr, values = walk(row, setting, lr, seeds, runs)
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 and max(values) < math.inf else math.nan
        yield setting.name, Entry(mean(values) - lowest, error, lr)


def work(jobs: Any, results: Any, seeds: int, path: Path, quick: bool) -> None:
    for row in iter(jobs.get, None):
        try:
            for name, entry in measure_row(row, seeds, path, quick):
                results.put((row, name, entry))
        except Exception as error:  # a row that fails must not take the others with it
            results.put((row, "failed", repr(error)))


def columns(objective: str, quick: bool) -> tuple[Setting, ...]:
    settings = OBJECTIVES[objective].settings
    return tuple(s for s in settings if s.name == "in-batch" or "SOAP .7" in s.name) if quick else settings


def rows_of(name: str, objective: Objective, quick: bool) -> list[Row]:
    rows = [Row(name, *row) for row in objective.available]
    return [rows[0]._replace(passes=2)] if quick else rows


def measure(rows: list[Row], seeds: int, path: Path, quick: bool) -> dict[Row, dict[str, Entry]]:
    """All entries, by two processes of one thread each; says how far it is."""
    torch.set_num_threads(1)
    cost = {row: len(batches(row, 0)) for row in rows}
    context = multiprocessing.get_context("fork")
    jobs, results = context.Queue(), context.Queue()
    for job in [*sorted(rows, key=lambda row: cost[row] // 1500), None, None]:  # the longest last
        jobs.put(job)
    for _ in range(2):
        context.Process(target=work, args=(jobs, results, seeds, path, quick), daemon=True).start()
    total, done, began = sum(len(columns(r.objective, quick)) * cost[r] for r in rows), 0, time.perf_counter()
    table: dict[Row, dict[str, Entry]] = {row: {} for row in rows}
    while done < total:
        row, name, entry = results.get()
        if name == "failed":
            print(f"{row.objective}: {row}: FAILED: {entry}", flush=True)
            done += (len(columns(row.objective, quick)) - len(table[row])) * cost[row]
            continue
        table[row][name] = entry
        done += cost[row]
        left = (time.perf_counter() - began) * (total - done) / done
        print(
            f"{row.objective}: {row}: {name}: {entry.excess:.5f} ± {entry.error:.5f} at lr {entry.lr:g}"
            f"   [{100 * done // total}%, {left / 60:.0f} min left]",
            flush=True,
        )
    return table


def brief(value: float) -> str:
    """Three significant digits at most, and none beyond the fifth place."""
    if not value < 1e3:
        return "diverged"
    digits = 5 if value < 0.001 else 4 if value < 0.1 else 3 if value < 1 else 2
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def show(name: str, table: dict[Row, dict[str, Entry]]) -> None:
    """A table in Markdown; below it, by which factor each setting differs from the in-batch loss."""
    rows = {row: entries for row, entries in table.items() if row.objective == name}
    settings = list(dict.fromkeys(setting for entries in rows.values() for setting in entries))
    print(f"\n{name}: excess over the exact minimum\n\n| data, batch, passes | " + " | ".join(settings) + " |")
    print("|---" * (len(settings) + 1) + "|")
    for row, entries in rows.items():
        cells = [brief(entries[setting].excess) if setting in entries else "" for setting in settings]
        print(f"| {row} | " + " | ".join(cells) + " |")
    complete = [entries for entries in rows.values() if len(entries) == len(settings)]
    ratios = {s: [e[s].excess / e["in-batch"].excess for e in complete] for s in settings}
    for title, summary in (("geometric mean of the ratio to in-batch", geometric_mean), ("largest ratio", max)):
        cells = [brief(summary(ratios[s])) if ratios[s] and min(ratios[s]) > 0 else "" for s in settings]
        print(f"| {title} | " + " | ".join(cells) + " |")


def save(table: dict[Row, dict[str, Entry]], path: Path, seeds: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["objective", "data", "batch", "passes", "setting", "excess", "standard_error", "lr", "seeds"])
        for row, entries in table.items():
            for name, entry in entries.items():
                writer.writerow([*row, name, *(f"{value:.6g}" for value in entry), seeds])


def main() -> None:
    parser = argparse.ArgumentParser(description="Excess of every candidate for a default over the exact minimum.")
    parser.add_argument("--objective", choices=OBJECTIVES, action="append", help="may be given more than once")
    parser.add_argument("--quick", action="store_true", help="one seed, one row and few settings: to see that it runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path("build/defaults"), help="path without its ending")
    arguments = parser.parse_args()
    seeds = 1 if arguments.quick else arguments.seeds
    results = Path(f"{arguments.results}-quick") if arguments.quick else arguments.results
    names = arguments.objective or list(OBJECTIVES)
    rows = [row for name in names for row in rows_of(name, OBJECTIVES[name], arguments.quick)]
    table = measure(rows, seeds, results.with_suffix(".jsonl"), arguments.quick)
    for name in names:
        show(name, table)
    save(table, results.with_suffix(".csv"), seeds)


if __name__ == "__main__":
    main()
