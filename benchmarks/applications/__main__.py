"""Measure the applications and write BENCHMARKS.md; see the docstring of the package."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from applications._measure import absent, load, measure, measured, names
from applications._page import as_page
from fcco_reproduce._record import environment

PAGE = Path("BENCHMARKS.md")


def main() -> None:
    """Measure or read the chosen applications, and write the page."""
    parser = argparse.ArgumentParser(prog="applications", description="Compare applications with their alternatives.")
    parser.add_argument("--only", help=f"some of {', '.join(names())}, separated by commas; the page has only these")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="run one short case of each, as a check")
    parser.add_argument("--seconds", action="store_true", help="show times; use one worker on an idle machine")
    parser.add_argument("--finished", action="store_true", help="run nothing, and write the page from the cache")
    parser.add_argument("--earlier", action="store_true", help="like --finished, but also use results of earlier code")
    parser.add_argument("--cache", type=Path, default=Path("build/applications/cache.jsonl"))
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    chosen = given.only.split(",") if given.only else names()
    for name in chosen:
        if name not in names():
            parser.error(f"--only names some of {', '.join(names())}; got {name!r}")
    missing: list[str] = []
    if given.finished or given.earlier:
        tables, missing = measured(chosen, given.cache, earlier=given.earlier)
    else:
        tables = measure(chosen, quick=given.quick, workers=given.workers, cache=given.cache, progress=sys.stderr)
    about = {key: value for key, value in environment().items() if key in ("Python", "torch", "CPU", "cores")}
    page = as_page(
        {name: (load(name), tables[name]) for name in chosen},
        absent(chosen),
        about,
        missing,
        seconds=given.seconds,
        earlier=given.earlier,
    )
    given.page.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
