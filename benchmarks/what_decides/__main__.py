"""Answer the questions, draw the figures, and write their numbers; see the docstring of the package."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from what_decides._advice import as_table, verdicts
from what_decides._cells import QUESTIONS, advised, other_problems, problems, tried
from what_decides._figures import draw, tables
from what_decides._measure import Outcomes, measure

log = logging.getLogger("fcco.benchmarks.what_decides")

FOLDER = Path("docs/figures/what_decides")
ADVICE = "advice"


def main() -> None:
    """Run what the arguments ask for."""
    names = [*QUESTIONS, ADVICE]
    parser = argparse.ArgumentParser(prog="what_decides", description="What decides how far training gets.")
    parser.add_argument("--only", default=",".join(names), help=f"some of {', '.join(names)}, with commas")
    parser.add_argument("--quick", action="store_true", help="one seed of short runs, to see that it works")
    parser.add_argument("--cache", type=Path, default=Path("build/what_decides/cache.jsonl"))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    chosen = given.only.split(",")
    for name in chosen:
        if name not in names:
            parser.error(f"--only names some of {', '.join(names)}; got {name!r}")
    page = answer(chosen, given.folder, given.cache, quick=given.quick)
    print(page)
    if chosen == names:
        (given.folder / "figures.md").write_text(page, encoding="utf-8")


def answer(chosen: list[str], folder: Path, cache: Path | None, *, quick: bool = False) -> str:
    """Draw the figures of some questions; their numbers in Markdown."""
    panels, known, page = problems(quick=quick), Outcomes(), ["# The numbers behind what_decides.md\n"]
    for name in chosen:
        log.info("%s", name)
        if name == ADVICE:
            page.append("## Is the advice right?\n")
            for some in filter(None, (panels, other_problems(quick=quick))):
                cells = [cell for problem in some for place in advised(problem) for cell in tried(problem, *place)]
                runs = measure(some, cells, cache=cache, quick=quick, progress=sys.stderr)
                page.append(as_table(verdicts(some, runs, cache=cache, quick=quick, progress=sys.stderr)))
        else:
            lines = [line for panel in panels for line in QUESTIONS[name].lines(panel)]
            cells = [cell for line in lines for cell in line.cells]
            known |= measure(panels, cells, cache=cache, quick=quick, progress=sys.stderr)
            draw(QUESTIONS[name], panels, known, folder / f"{name}.svg")
            page.append(tables(QUESTIONS[name], panels, known))
    return "\n".join(page)


if __name__ == "__main__":
    main()
