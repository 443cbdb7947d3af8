"""The command ``fcco reproduce``: experiments, from their settings to tables and figures."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fcco._extras import package_of
from fcco_reproduce._record import command_of, write_records
from fcco_reproduce._report import NAME, write_docs, write_page
from fcco_reproduce._study import CHECKPOINTS, Scale, Study, as_report, run_study

STUDIES = {
    "quick": "every method on data that ships with scikit-learn, in two minutes",
    "theory": "the theorems hold, on problems with known constants",
    "push": "the paper's tables and figures of p-norm push",
    "nca": "the paper's figure of neighbourhood components analysis",
    "ap": "the paper's figures and table of average precision on CIFAR",
}
DETAILS = {
    "quick": """Three objectives (p-norm push, NCA, average precision) and six methods, with the same grid of settings,
next to the exact minimum. Needs no data but scikit-learn's.""",
    "theory": """  i    Theorem 3 with its own step sizes
  ii   how many steps are needed as n, B1, B2 and epsilon change, with tuned rates, beside gradient descent
  iii  how to split a batch
  iv   SOX-boost, and the schedule for strongly convex problems
  v    the recursion of the tracking error
  vi   six methods at equal inner evaluations
Needs no data: problems are made, and their optimum and constants are known.""",
    "push": """  i    covtype: tables 3 and 4, the methods tuned alike, and the exact optimum
  ii   ijcnn1: the same
  iii  the loss over iterations as the batch grows
  iv   the loss over iterations as gamma changes
Data: covtype and ijcnn1, from FCCO_DATA or downloaded. --quick takes scikit-learn's breast cancer data.""",
    "nca": """  i    usps
  ii   mnist
  iii  sensorless
Each compares the methods with the authors' rates and tuned alike. Data: from FCCO_DATA or downloaded. --quick takes
scikit-learn's digits.""",
    "ap": """  i    how to split a batch
  ii   how the batch size matters
  iii  how gamma matters
  iv   table 2: the methods, cross entropy and the in-batch loss, tuned alike
Scales: the default is for two cores (a small ResNet; 5,000 steps in iv), --scale small has 500 steps in iv too,
--scale paper is the paper's and wants a GPU (--device cuda). Data: CIFAR-10 and CIFAR-100, from FCCO_DATA or
downloaded. A data set that cannot be had is left out, and the page says so. --quick takes made images.""",
}
NEEDED = ("markdown_it", "matplotlib", "numba", "PIL", "scipy", "sklearn", "threadpoolctl", "tqdm")
EXAMPLES = """examples:
  fcco reproduce quick
  fcco reproduce theory --quick
  fcco reproduce theory --only i,v --seeds 50 --out results/more-seeds
  fcco reproduce theory --docs docs/theory.md
  fcco reproduce push --config my_ijcnn1.toml

An interrupted run goes on where it was: finished work is in OUT/cache.jsonl. Settings are in the TOML files of the
study's folder, fcco_reproduce/STUDY; a changed copy, or a file with name = "..." and what differs, goes to --config.
"""


def define(parser: argparse.ArgumentParser) -> None:
    """Give the parser of the command its description, and each study a parser of its own."""
    parser.description = (
        "Run the experiments of a study; write a CSV table and an SVG figure of each, and one HTML page.\n"
        "fcco reproduce STUDY --help says what a study measures, and which options there are."
    )
    parser.epilog = EXAMPLES
    parser.set_defaults(run=run)
    options = _options()
    studies = parser.add_subparsers(title="studies", dest="study", required=True, metavar="STUDY")
    for name, what in STUDIES.items():
        studies.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]}.\n\n{DETAILS[name]}",
            parents=[options],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )


def _options() -> argparse.ArgumentParser:
    """Return a parser of the options that all studies have."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--quick", action="store_true", help="small settings: about a minute, and no evidence")
    parser.add_argument("--scale", metavar="NAME", help="a scale of the study's settings; --quick is --scale quick")
    parser.add_argument(
        "--config", type=Path, action="append", default=[], metavar="FILE", help="settings to lay over the shipped ones"
    )
    parser.add_argument("--seeds", type=int, help="independent runs of every setting (default: the study's)")
    parser.add_argument("--only", metavar="KEYS", help="some of the experiments, such as i,iii")
    parser.add_argument("--out", type=Path, help="folder of the results (default: results/STUDY)")
    parser.add_argument(
        "--stored",
        nargs="?",
        const="",
        metavar="FILE",
        help="use results of FILE (default: OUT/cache.jsonl) whatever code made them, and add new ones to it",
    )
    parser.add_argument("--no-run", action="store_true", help="run nothing, and judge what is stored as far as it goes")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results, as after an update of PyTorch")
    parser.add_argument("--device", default="cpu", help="where to compute, for studies that can choose (default: cpu)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument(
        "--docs", type=Path, metavar="PAGE", help="write a Markdown page too, figures in a folder beside"
    )
    return parser


def run(arguments: argparse.Namespace) -> str:
    """Run the command and return what it prints.

    Raises
    ------
    ValueError
        If an option is outside its range.
    ImportError
        If a package of the extra ``reproduce`` is missing.
    OSError
        If data are missing, or a file cannot be written.
    """
    _check_packages()
    study = load(arguments.study)
    scale = _scale(arguments, study)
    experiments = study.experiments(scale.name, arguments.only, arguments.config)
    out = arguments.out or Path("results") / "-".join(_words(arguments, scale))
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder; got the file {out}")
    if arguments.docs is not None and (arguments.docs.is_dir() or not arguments.docs.suffix):
        raise ValueError(f"--docs must be a Markdown file, such as docs/{study.name}.md; got {arguments.docs}")
    if arguments.fresh:
        (out / "cache.jsonl").unlink(missing_ok=True)
        shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    try:
        findings = run_study(
            experiments, scale, out, workers=arguments.workers, progress=sys.stderr, **_stored(arguments, out)
        )
    except KeyboardInterrupt:
        kept = f"; finished work is kept in {out}, and the same command continues from there"
        raise KeyboardInterrupt(kept) from None
    write_records(study, experiments, findings, scale, out, command=command_of(arguments))
    page = write_page([out], out / NAME)
    if arguments.docs is not None:
        folder = arguments.docs.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        for experiment in experiments:
            for ending in ("csv", "svg", "json"):
                shutil.copy(out / f"{experiment.stem}.{ending}", folder)
        write_docs([folder], arguments.docs)
    return f"{as_report(experiments, findings)}\n\nreport: {page}"


def _check_packages() -> None:
    """Check all packages at once, before hours of work that would fail when the figures are drawn."""
    missing = [package_of(module) for module in NEEDED if find_spec(module) is None]
    if missing:
        raise ImportError(f"experiments need {', '.join(missing)}: pip install 'fcco[reproduce]'")


def load(name: str) -> Study:
    """Return a study by its name."""
    study: Study = import_module(f"fcco_reproduce.{name}").STUDY
    return study


def _scale(arguments: argparse.Namespace, study: Study) -> Scale:
    if arguments.quick and arguments.scale not in (None, "quick"):
        raise ValueError(f"--quick means --scale quick; got --scale {arguments.scale} too, so give only one of them")
    if arguments.seeds is not None and arguments.seeds < 2:
        raise ValueError(f"--seeds must be at least 2, to estimate the spread; got {arguments.seeds}")
    kind = arguments.device.split(":")[0]
    if kind not in study.devices:
        raise ValueError(
            f"--device must be {' or '.join(study.devices)} for the study {study.name}; got {arguments.device}"
        )
    name = "quick" if arguments.quick else arguments.scale
    return Scale(arguments.seeds or (4 if name == "quick" else study.seeds), name, arguments.device)


def _stored(arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    if arguments.stored is None:
        if arguments.no_run:
            raise ValueError("--no-run needs --stored, the results to be judged")
        return {}
    stored = Path(arguments.stored or out / "cache.jsonl")
    if not stored.exists():
        if arguments.no_run:
            raise ValueError(f"--no-run needs stored results; got --stored {stored}, which does not exist")
        print(f"{stored} does not exist yet: all jobs run, and their results are stored there", file=sys.stderr)
    return {"stored": stored, "run": not arguments.no_run}


def _words(arguments: argparse.Namespace, scale: Scale) -> list[str]:
    """Return the parts of the folder's name, which differ for every scale and set of changed settings."""
    return [arguments.study, *([scale.name] if scale.name else []), *(path.stem for path in arguments.config)]
