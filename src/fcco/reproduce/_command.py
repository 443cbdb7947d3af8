"""The command ``fcco reproduce``: experiments, from their settings to tables and figures."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from fcco.reproduce._record import command_of, write_records
from fcco.reproduce._report import NAME, write_page
from fcco.reproduce._study import Scale, Study, as_page, as_report, run_study

STUDIES = {
    "quick": "every method on data that ships with scikit-learn, in two minutes",
    "theory": "the theorems hold, on problems with known constants",
    "push": "the paper's tables and figures of p-norm push",
    "nca": "the paper's figure of neighbourhood components analysis",
}
EXAMPLES = """examples:
  fcco reproduce quick
  fcco reproduce theory --quick
  fcco reproduce theory --only i,v --seeds 50 --out results/more-seeds
  fcco reproduce theory --docs docs/theory.md

An interrupted run goes on where it was: finished work is in OUT/cache.jsonl.
"""


def add_to(commands: Any) -> None:
    """Register the command with ``commands``, the subparsers of ``fcco``."""
    parser = commands.add_parser(
        "reproduce",
        help="experiments, with their tables and figures",
        description="Run the experiments of a study; write a CSV table and a PNG figure of each, and one HTML page.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", choices=STUDIES, help="; ".join(f"{name}: {what}" for name, what in STUDIES.items()))
    parser.add_argument("--quick", action="store_true", help="small settings: about a minute, and no evidence")
    parser.add_argument("--seeds", type=int, help="independent runs of every setting (default: the study's)")
    parser.add_argument("--only", metavar="KEYS", help="some of the experiments, such as i,iii")
    parser.add_argument("--out", type=Path, help="folder of the results (default: results/STUDY)")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results, as after a change of the library")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument(
        "--docs", type=Path, metavar="PAGE", help="write a Markdown page too, figures in a folder beside"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """What the command prints.

    Raises:
        ValueError: an option outside its range.
    """
    study: Study = import_module(f"fcco.reproduce.{arguments.study}").STUDY
    experiments = study.choose(arguments.only)
    scale = Scale(_seeds(arguments, study), arguments.quick)
    out = arguments.out or Path("results") / (f"{study.name}-quick" if arguments.quick else study.name)
    if arguments.fresh:
        (out / "cache.jsonl").unlink(missing_ok=True)
    findings = run_study(experiments, scale, out, workers=arguments.workers, progress=sys.stderr)
    if arguments.docs is not None:
        folder = arguments.docs.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        for experiment in experiments:
            for ending in ("csv", "png"):
                shutil.copy(out / f"{experiment.stem}.{ending}", folder)
        arguments.docs.write_text(as_page(study, scale, experiments, findings, folder.name), encoding="utf-8")
    write_records(study, experiments, findings, scale, out, command=command_of(arguments))
    return f"{as_report(experiments, findings)}\n\nreport: {write_page([out], out / NAME)}"


def _seeds(arguments: argparse.Namespace, study: Study) -> int:
    if arguments.seeds is None:
        return 4 if arguments.quick else study.seeds
    if arguments.seeds < 2:
        raise ValueError(f"--seeds must be at least 2, for a spread, got {arguments.seeds}")
    return arguments.seeds
