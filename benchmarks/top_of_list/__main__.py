"""Measure the methods and write docs/top_of_list.md; see the docstring of the package."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from fcco_reproduce._record import environment
from harness.tables import write_csv
from top_of_list._compare import Results
from top_of_list._figures import draw
from top_of_list._measure import Measurer, Prepareds, measure
from top_of_list._methods import FULL, KINDS, QUICK, Kind, Scale
from top_of_list._page import as_page
from top_of_list._prepared import prepare
from top_of_list._tasks import Task, available

BUILD = Path("build/top_of_list")
log = logging.getLogger("fcco.benchmarks.top_of_list")


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="top_of_list", description="What to do for a high average precision.")
    parser.add_argument("--only", choices=KINDS, help="linear models or networks; the page has what is known of both")
    parser.add_argument("--tasks", help="some of the tasks, with commas; the page then has only these")
    parser.add_argument("--quick", action="store_true", help="short runs on data of scikit-learn, to see that it works")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--finished", action="store_true", help="run nothing: the page of what is in the cache")
    parser.add_argument(
        "--earlier", action="store_true", help="as --finished, and with results that earlier code made too"
    )
    parser.add_argument("--folder", type=Path, help="of the page; docs by default")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    names = [task.name for task in available()]
    chosen = given.tasks.split(",") if given.tasks else ["breast cancer", "digits 8"] if given.quick else names
    for name in chosen:
        if name not in names:
            parser.error(f"--tasks names some of {', '.join(names)}; got {name!r}")
    scale, build = (QUICK, BUILD / "quick") if given.quick else (FULL, BUILD)
    tasks = [task for task in available() if task.name in chosen]
    kinds = [given.only] if given.only else list(KINDS)
    workers = 0 if given.finished or given.earlier else given.workers
    folder = given.folder or (build if given.quick else Path("docs"))
    print(run(tasks, kinds, scale, build, folder, workers=workers, earlier=given.earlier))


def run(
    tasks: list[Task],
    kinds: list[Kind],
    scale: Scale,
    build: Path,
    folder: Path,
    *,
    workers: int,
    earlier: bool = False,
) -> str:
    """Measure some kinds of models, look up the other ones, and write the page, the table and the figures."""
    prepared: Prepareds = {}
    for task in tasks:
        log.info("preparing %s", task.name)
        prepared[task] = prepare(task, build / "tasks")
    records = []
    for kind in KINDS:
        log.info("%s models", kind)
        runner = Measurer(build / "cache.jsonl", workers if kind in kinds else 0, sys.stderr, earlier=earlier)
        records += measure(kind, prepared, scale, runner)
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(records)
    write_csv([row._asdict() for row in records], folder / "top_of_list.csv")
    for kind in KINDS:
        draw(results, kind, folder / f"top_of_list_{kind}.svg")
    about = {key: value for key, value in environment().items() if key in ("Python", "torch", "scikit-learn", "CPU")}
    page = as_page(results, prepared, scale, about, earlier=earlier)
    (folder / "top_of_list.md").write_text(page, encoding="utf-8")
    return page


if __name__ == "__main__":
    main()
