"""Whether losses that remember train small networks at least as well as in-batch losses do.

    FCCO_DATA=... python benchmarks/networks_with_memory.py [--problem cox] [--quick] [--seeds 3] [--workers 2] \
        [--results docs/networks_with_memory]
    python benchmarks/networks_with_memory.py --show docs/networks_with_memory.csv

Every network is trained from scratch, for the same number of passes, by the in-batch loss and by those of this library
(:mod:`harness.networks`). Each has the learning rate of a grid, in steps of a factor of sqrt(10), at which the exact
objective on the training data is lowest on average over seeds. A grid is extended while the best rate is at its end.

An entry is a mean over seeds ± its standard error. A verdict is "better" or "worse" if the mean of the paired
differences from the in-batch loss exceeds two of its standard errors. With three seeds, noise alone exceeds this in
nearly one of five comparisons.

Results are kept in build/networks_with_memory.jsonl as runs end, so that an interrupted command continues where it was.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fcco_reproduce import Job, run_jobs
from harness.cache import make_job
from harness.data import has
from harness.networks import PROBLEMS, Outcome, run
from harness.tables import as_markdown, read_csv, write_csv

LOG_RATES = (-6, -5, -4)  # the learning rate is 10^(k / 2): 1e-3, 3e-3, 1e-2
LOWEST, HIGHEST = -10, -1
CACHE = Path("build/networks_with_memory.jsonl")
NEEDS = {"cox": "survival", "average precision": "ijcnn1", "average precision, balanced": "ijcnn1"}


class Row(NamedTuple):
    """A row of a table."""

    problem: str
    batch: int
    passes: int


class Entry(NamedTuple):
    """The outcomes of all seeds at the best learning rate, and how many runs diverged at any rate."""

    log_rate: int
    outcomes: list[Outcome]
    at_end: bool
    diverged: int


ROWS = (
    Row("contrastive", 16, 5),
    Row("contrastive", 64, 8),
    Row("cox", 16, 5),
    Row("cox", 64, 8),
    Row("nca", 32, 5),
    Row("average precision", 32, 3),
    Row("average precision, balanced", 32, 3),
)
Cell = tuple[Row, str]
Runs = dict[int, list[Outcome]]  # the outcomes of all seeds by learning rate
Line = dict[str, Any]


def rows_of(problems: list[str], *, quick: bool) -> list[Row]:
    """Return the rows of some problems; in short form, one small row of those whose data is there."""
    rows = [row for row in ROWS if row.problem in problems]
    if not quick:
        return rows
    here = [row for row in rows if row.problem not in NEEDS or has(NEEDS[row.problem])]
    return [row._replace(batch=64, passes=1) for row in {row.problem: row for row in here}.values()]


def measure(rows: list[Row], seeds: int, cache: Path, *, quick: bool, workers: int = 2) -> dict[Cell, Entry]:
    """Return the entry of every setting in every row; grids grow while the best rate is at their end."""
    cells = [(row, name) for row in rows for name in PROBLEMS[row.problem]().settings]
    rates: dict[Cell, tuple[int, ...]] = dict.fromkeys(cells, LOG_RATES[:1] if quick else LOG_RATES)
    while True:
        runs = _run(rates, seeds, cache, workers)
        grown = rates if quick else {cell: grow(rates[cell], runs[cell]) for cell in cells}
        if grown == rates:
            return {cell: entry_of(runs[cell]) for cell in cells}
        rates = grown


def _run(rates: dict[Cell, tuple[int, ...]], seeds: int, cache: Path, workers: int) -> dict[Cell, Runs]:
    plan = [(cell, rate, seed) for cell, some in rates.items() for rate in some for seed in range(seeds)]
    jobs = [_job(cell, rate, seed) for cell, rate, seed in plan]
    found: dict[Cell, Runs] = {cell: {rate: [] for rate in some} for cell, some in rates.items()}
    results = run_jobs(jobs, workers=workers, cache=cache, progress=sys.stderr)
    for (cell, rate, _), result in zip(plan, results, strict=True):
        found[cell][rate].append(Outcome(*result))
    return found


def _job(cell: Cell, rate: int, seed: int) -> Job:
    row, name = cell
    settings = {**row._asdict(), "setting": name, "log_lr": rate, "seed": seed}
    return make_job(run, settings, cost=row.passes / row.batch)


def best_of(runs: Runs) -> int:
    """Return the learning rate with the lowest mean of the objective."""
    return min(runs, key=lambda rate: fmean(outcome.objective for outcome in runs[rate]))


def grow(rates: tuple[int, ...], runs: Runs) -> tuple[int, ...]:
    """Return the grid with one more rate where the best one is at its end."""
    best = best_of(runs)
    if best == rates[0] and best > LOWEST:
        return (best - 1, *rates)
    return (*rates, best + 1) if best == rates[-1] and best < HIGHEST else rates


def entry_of(runs: Runs) -> Entry:
    best = best_of(runs)
    diverged = sum(math.isinf(outcome.objective) for some in runs.values() for outcome in some)
    return Entry(best, runs[best], best in (min(runs), max(runs)), diverged)


def error(values: list[float]) -> float:
    """Return the standard error of the mean, which is NaN for one value or a run that diverged."""
    known = len(values) > 1 and all(map(math.isfinite, values))
    return stdev(values) / math.sqrt(len(values)) if known else math.nan


def verdict(values: list[float], base: list[float], *, higher: bool = False) -> str:
    """Return "better" or "worse" if the paired difference exceeds two standard errors, else "even"."""
    differences = [(b - a if higher else a - b) for a, b in zip(values, base, strict=True)]
    noise = 2 * error(differences)
    if math.isnan(noise) or abs(fmean(differences)) <= noise:
        return "even" if all(map(math.isfinite, values)) else "worse"
    return "worse" if fmean(differences) > 0 else "better"


def as_lines(entries: dict[Cell, Entry]) -> list[Line]:
    """Return all entries with their verdicts, as they stand in the CSV file."""
    lines = []
    for (row, name), entry in entries.items():
        problem = PROBLEMS[row.problem]()
        first = next(iter(problem.settings))
        (objective, metric), (base, base_metric) = (
            [list(values) for values in zip(*entries[row, of].outcomes, strict=True)] for of in (name, first)
        )
        line: Line = {**row._asdict(), "setting": name, "lr": f"{10 ** (entry.log_rate / 2):.3g}"}
        line |= {"lr_at_end": int(entry.at_end), "seeds": len(objective)}
        line |= {"objective": f"{fmean(objective):.5f}", "objective_error": f"{error(objective):.5f}"}
        line |= {"metric": problem.metric, "value": f"{fmean(metric):.5f}", "value_error": f"{error(metric):.5f}"}
        line |= {"difference": f"{fmean(objective) - fmean(base):.5f}"}
        line |= {"difference_error": f"{error([a - b for a, b in zip(objective, base, strict=True)]):.5f}"}
        line |= {"verdict": "" if name == first else verdict(objective, base)}
        line |= {"metric_verdict": "" if name == first else verdict(metric, base_metric, higher=True)}
        lines.append(line | {"diverged_runs": entry.diverged})
    return lines


def as_tables(lines: list[Line]) -> str:
    """Return a table for every problem in Markdown."""
    tables = []
    for problem in dict.fromkeys(line["problem"] for line in lines):
        some = [line for line in lines if line["problem"] == problem]
        shown = as_markdown([_shown(line) for line in some])
        tables.append(f"{problem}\n\n{shown}")
    return "\n\n".join(tables)


def _shown(line: Line) -> Line:
    rate = f"{line['lr']} (end of the grid)" if int(line["lr_at_end"]) else line["lr"]
    return {
        "batch": line["batch"],
        "passes": line["passes"],
        "loss": line["setting"],
        "lr": rate,
        "objective": _with_error(line["objective"], line["objective_error"], 3),
        "against in-batch": line["verdict"],
        line["metric"]: _with_error(line["value"], line["value_error"], 4),
        "against in-batch, held out": line["metric_verdict"],
        "runs that diverged": line["diverged_runs"],
    }


def _with_error(mean: str, deviation: str, digits: int) -> str:
    return f"{float(mean):.{digits}f} ± {float(deviation):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Small networks trained by losses with and without a memory.")
    parser.add_argument("--problem", choices=PROBLEMS, action="append", help="may be given more than once")
    parser.add_argument("--quick", action="store_true", help="one seed, rate and pass: to see that it runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--results", type=Path, default=Path("docs/networks_with_memory"), help="without its ending")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--show", type=Path, metavar="CSV", help="print the tables of a CSV file and measure nothing")
    given = parser.parse_args()
    if given.show is not None:
        print(as_tables(read_csv(given.show)))
        return
    rows = rows_of(given.problem or list(PROBLEMS), quick=given.quick)
    seeds = 1 if given.quick else given.seeds
    lines = as_lines(measure(rows, seeds, given.cache, quick=given.quick, workers=given.workers))
    results = Path("build/networks_with_memory-quick") if given.quick else given.results
    write_csv(lines, results.with_suffix(".csv"))
    print(as_tables(lines))


if __name__ == "__main__":
    main()
