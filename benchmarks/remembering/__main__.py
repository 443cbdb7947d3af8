"""Measure a half of the study and print its tables; see the docstring of the package."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from harness.tables import as_markdown, brief, read_csv, write_csv
from remembering._figure import draw
from remembering._measure import IN_BATCH, Tables, choose, measure, ratio, summary, verdict
from remembering._problem import OBJECTIVES
from remembering._rows import Cells, candidates, cells

HALVES = ("choosing", "reporting")
PAGE = Path("docs/remembering.csv")


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="remembering", description="Excess with a memory of recent outputs.")
    parser.add_argument("--objective", choices=OBJECTIVES, action="append", help="may be given more than once")
    parser.add_argument("--half", choices=HALVES, action="append", help="may be given more than once")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one row and two settings, to see that it works")
    parser.add_argument("--cache", type=Path, default=Path("build/remembering.jsonl"))
    parser.add_argument("--results", type=Path, default=PAGE)
    parser.add_argument("--figure", type=Path, help="only draw the picture of the stored results")
    given = parser.parse_args()
    if given.figure is not None:
        draw(given.results, given.figure)
        return
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    for half in given.half or HALVES:
        for objective in given.objective or OBJECTIVES:
            plan = cells(objective, half)
            if given.quick:
                plan = shortened(plan)
            tables = measure(plan, given.seeds, given.cache, quick=given.quick, workers=given.workers)
            print(as_table(objective, half, tables), flush=True)
            if not given.quick:
                save(tables, half, given.results)


def shortened(plan: Cells) -> Cells:
    """Return the first row with two passes and two settings."""
    row, names = next(iter(plan.items()))
    return {row._replace(passes=2): [IN_BATCH, names[-1]]}


def as_table(objective: str, half: str, tables: Tables) -> str:
    """Return a Markdown table: excesses, ~ where a setting is even with the in-batch loss, ! where it is worse."""
    names = list(dict.fromkeys(name for entries in tables.values() for name in entries))
    first = "data, batch, passes"
    marks = {"better": "", "even": " ~", "worse": " !"}
    lines: list[dict[str, Any]] = []
    for row, entries in tables.items():
        shown = {n: brief(e.mean) + marks[verdict(e, entries[IN_BATCH])] for n, e in entries.items() if n != IN_BATCH}
        lines.append({first: str(row), **dict.fromkeys(names, ""), IN_BATCH: brief(entries[IN_BATCH].mean), **shown})
    means = {name: summary(tables, name) for name in names}
    lines.append({first: "geometric mean of the ratio"} | {name: brief(means[name][0]) for name in names})
    lines.append({first: "rows where it is worse"} | {name: str(len(means[name][1])) for name in names})
    ends = [f"{n} ({row}: {e.lr:g})" for row, entries in tables.items() for n, e in entries.items() if e.at_end]
    seconds = sum(e.seconds for entries in tables.values() for e in entries.values())
    notes = f"\n\nBest learning rate at the end of its grid: {'; '.join(ends) or 'nowhere'}."
    notes += f" Core-hours: {seconds / 3600:.2f}."
    if half == "choosing":
        rank = choose(tables, [name for name in candidates(objective) if name in names])
        notes += f" Rank: {', '.join(rank)}."
    return f"\n{objective}, {half} half: excess\n\n{as_markdown(lines)}{notes}\n"


def as_lines(tables: Tables, half: str) -> list[dict[str, Any]]:
    """Return the lines of the CSV file."""
    lines = []
    for row, entries in tables.items():
        base = entries[IN_BATCH]
        for name, entry in entries.items():
            place = {"objective": row.objective, "half": half, "data": row.data, "batch": row.batch}
            found = {"excess": f"{entry.mean:.6g}", "standard_error": f"{entry.error:.3g}", "lr": f"{entry.lr:.6g}"}
            against = {
                "ratio": f"{ratio(entry, base):.4g}",
                "verdict": verdict(entry, base) if name != IN_BATCH else "",
            }
            lines.append(
                {**place, "passes": row.passes, "setting": name, **found, "lr_at_end": int(entry.at_end), **against}
            )
    return lines


def save(tables: Tables, half: str, path: Path) -> None:
    """Write the entries of a half to the CSV file, in the place of earlier ones of the same objectives."""
    new = {row.objective for row in tables}
    old: list[dict[str, Any]] = [*read_csv(path)] if path.exists() else []
    kept = [line for line in old if line["half"] != half or line["objective"] not in new]
    order = {(half, name): i for i, (half, name) in enumerate((h, o) for h in HALVES for o in OBJECTIVES)}
    lines = sorted([*kept, *as_lines(tables, half)], key=lambda line: order[line["half"], line["objective"]])
    write_csv(lines, path)


if __name__ == "__main__":
    main()
