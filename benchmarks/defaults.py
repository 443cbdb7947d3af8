"""Which rule and own term each objective should have by default: the excess over the exact minimum, measured.

    python benchmarks/defaults.py [--objective cox] [--quick] [--seeds 3] [--results build/defaults]
    python benchmarks/defaults.py --show docs/defaults.csv

Every objective is trained on real data with small batches, by every candidate variant and by the in-batch loss that
practitioners use. A row of a table is (data, batch, passes over the outer rows). An entry is the exact objective after
training less its exact minimum (full-batch L-BFGS in float64 from the same start), averaged over seeds. Every variant
has the learning rate that is best for it on one grid (:mod:`harness.search`), which is moved where the best rate lies
at its end. The *training* objective decides, for the learning rate as for the table: this is about optimisation, not
about generalisation.

Results are kept in RESULTS.jsonl as jobs end, so that an interrupted command continues where it was; RESULTS.csv has
the tables, and ``--show`` prints those of a CSV file without measuring anything. Data: see ``harness/data.py``.

Cox, average precision, p-norm push and NCA are trained by compiled loops (:mod:`what_decides._compiled`), which tests
hold against the losses. The others take far longer, so the variants in ``LEFT_OUT`` are not measured.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from fcco_reproduce import Job, run_jobs
from harness.cache import make_job, sources
from harness.excess import Excess, Row, as_excess, minimum_job, tune_job
from harness.objectives import OBJECTIVES, Objective
from harness.search import Found
from harness.tables import as_markdown, brief, read_csv, write_csv
from what_decides._compiled import OBJECTIVES as COMPILED
from what_decides._measure import tune_cell

CENTRE = 0.25
REACH, COMPILED_REACH = 4, 6  # the coarse grid: 2**-10 to 2**6, and 2**-14 to 2**10 where runs cost little
MOVES = 3  # of the fine grid, at most
LEFT_OUT = {
    **dict.fromkeys(
        ("list_net", "list_mle", "ndcg", "softmax"),
        ("SOX .3 exact", "SOAP .1 exact", "SOAP .5 exact", "SOAP .7 exact", "SOAP .1 sampled"),
    ),
    **dict.fromkeys(
        ("contrastive", "partial_auc", "invariant_logistic", "latent_variable", "maml"),
        ("SOX .3", "SOAP .1"),
    ),
    "contrastive_with_positive": (
        "SOX .3 exact",
        "SOAP .1 exact",
        "SOAP .1 sampled",
        "SOAP .5 sampled",
        "SOAP .9 sampled",
        "SOAP cos .5 sampled",
    ),
}
Entry = tuple[Row, str]  # and the name of a variant
Tables = dict[Row, dict[str, Excess]]


def variants_of(objective: str, quick: bool) -> list[str]:
    left_out = LEFT_OUT.get(objective, ())
    names = [variant.name for variant in OBJECTIVES[objective].variants if variant.name not in left_out]
    return [name for name in names if name == "in-batch" or "SOAP .7" in name] if quick else names


def rows_of(name: str, objective: Objective, quick: bool) -> list[Row]:
    rows = [Row(name, *row) for row in objective.available]
    return [rows[0]._replace(passes=2)] if quick else rows


def measure(rows: list[Row], seeds: int, cache: Path, *, quick: bool, workers: int = 2) -> Tables:
    """Return the excess of every variant in every row."""

    def run(jobs: list[Job]) -> list[Any]:
        return run_jobs(jobs, workers=workers, cache=cache, progress=sys.stderr)

    places = list(dict.fromkeys((row.objective, row.data) for row in rows))
    lowest = dict(zip(places, run([minimum_job(*place, 10 if quick else 300) for place in places]), strict=True))
    found: dict[Entry, Found] = {}
    grids = {(row, name): grid_of(row, quick) for row in rows for name in variants_of(row.objective, quick)}
    for _ in range(1 if quick else 1 + MOVES):
        results = run([job_of(entry, grid, seeds) for entry, grid in grids.items()])
        found |= {entry: Found(*result) for entry, result in zip(grids, results, strict=True)}
        grids = {entry: {"centre": best.lr, "reach": 0} for entry, best in found.items() if best.at_end}
    tables: Tables = {row: {} for row in rows}
    for (row, name), best in found.items():
        tables[row][name] = as_excess(best, lowest[row.objective, row.data])
    return tables


def grid_of(row: Row, quick: bool) -> dict[str, Any]:
    """Return the grid of learning rates that is the same for every variant."""
    return {"centre": CENTRE, "reach": 1 if quick else COMPILED_REACH if row.objective in COMPILED else REACH}


def job_of(entry: Entry, grid: dict[str, Any], seeds: int) -> Job:
    """Return the job that tunes a variant in a row, by compiled loops if there are any: these cost little."""
    row, variant = entry
    if row.objective not in COMPILED:
        return tune_job(row, variant, grid, seeds)
    cell = {"objective": row.objective, "data": row.data, "batch": row.batch, "visits": row.passes, "variant": variant}
    of = sources(OBJECTIVES[row.objective].build)
    return make_job(tune_cell, {"cell": cell, "grid": grid, "seeds": seeds, "sources": of}, cost=row.passes)


def as_table(name: str, tables: Tables) -> str:
    """Return the table of an objective in Markdown.

    The last two rows show by which factor each variant differs from the in-batch loss.
    """
    rows = {row: entries for row, entries in tables.items() if row.objective == name}
    variants = list(dict.fromkeys(variant for entries in rows.values() for variant in entries))
    first = "data, batch, passes"
    lines: list[dict[str, Any]] = [
        {first: str(row)} | {v: brief(entries[v].excess) if v in entries else "" for v in variants}
        for row, entries in rows.items()
    ]
    complete = [entries for entries in rows.values() if len(entries) == len(variants)]
    ratios = {v: [e[v].excess / e["in-batch"].excess for e in complete] for v in variants}
    for title, summary in (("geometric mean of the ratio to in-batch", geometric_mean), ("largest ratio", max)):
        usable = {v: brief(summary(some)) if some and min(some) > 0 else "" for v, some in ratios.items()}
        lines.append({first: title, **usable})
    ends = [f"{v} ({row})" for row, entries in rows.items() for v, entry in entries.items() if entry.at_end]
    note = f"\n\nBest learning rate at the end of the grid: {'; '.join(ends)}." if ends else ""
    return f"{name}: excess over the exact minimum\n\n{as_markdown(lines)}{note}"


def save(tables: Tables, path: Path, seeds: int) -> None:
    """Write all entries to a CSV file, in the order of the objectives."""
    tables = dict(sorted(tables.items(), key=lambda item: [*OBJECTIVES].index(item[0].objective)))
    rows = [
        {**row._asdict(), "setting": name, "excess": f"{entry.excess:.6g}", "standard_error": f"{entry.error:.6g}"}
        | {"lr": f"{entry.lr:.6g}", "seeds": seeds, "lr_at_end_of_grid": int(entry.at_end)}
        for row, entries in tables.items()
        for name, entry in entries.items()
    ]
    write_csv(rows, path)


def read(path: Path) -> Tables:
    """Read the entries of a CSV file; files of the earlier search have no column ``lr_at_end_of_grid``."""
    tables: Tables = {}
    for line in read_csv(path):
        row = Row(line["objective"], line["data"], int(line["batch"]), int(line["passes"]))
        excess, error, lr = (float(line[key]) for key in ("excess", "standard_error", "lr"))
        at_end = line.get("lr_at_end_of_grid") == "1"
        tables.setdefault(row, {})[line["setting"]] = Excess(excess, error, lr, at_end)
    return tables


def kept(path: Path, measured: list[str]) -> Tables:
    """Return the entries of a CSV file, if it exists, for the objectives that are not measured now."""
    known = read(path) if path.exists() else {}
    return {row: entries for row, entries in known.items() if row.objective not in measured}


def main() -> None:
    parser = argparse.ArgumentParser(description="Excess of every candidate for a default over the exact minimum.")
    parser.add_argument("--objective", choices=OBJECTIVES, action="append", help="may be given more than once")
    parser.add_argument("--quick", action="store_true", help="one seed, one row and few variants: to see that it runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--results", type=Path, default=Path("build/defaults"), help="path without its ending")
    parser.add_argument("--show", type=Path, metavar="CSV", help="print the tables of a CSV file and measure nothing")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    names = given.objective or list(OBJECTIVES)
    if given.show is not None:
        tables = read(given.show)
    else:
        seeds = 1 if given.quick else given.seeds
        results = Path(f"{given.results}-quick") if given.quick else given.results
        rows = [row for name in names for row in rows_of(name, OBJECTIVES[name], given.quick)]
        cache = results.with_suffix(".jsonl")
        tables = measure(rows, seeds, cache, quick=given.quick, workers=given.workers)
        save(kept(results.with_suffix(".csv"), names) | tables, results.with_suffix(".csv"), seeds)
    measured = {row.objective for row in tables}
    print("\n\n".join(as_table(name, tables) for name in names if name in measured))


if __name__ == "__main__":
    main()
