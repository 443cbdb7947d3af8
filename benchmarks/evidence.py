"""Which stored results were made by other code than today's, and making them again.

    python benchmarks/evidence.py                  # list them
    python benchmarks/evidence.py --run            # measure again what is stale
    python benchmarks/evidence.py --run defaults   # only some

A result is stale if a definition has changed that its script leads to. Comments, docstrings, messages of exceptions and
layout do not count. What made each result is recorded in ``docs/evidence.json`` when it has been measured.

All of them take some ten core-hours. A run may be stopped at any time, because scripts keep what they have done in
``build/`` and go on from there. The runs are also copied to ``benchmarks/runs/``, which is under version control, so
that another clone goes on where this one was stopped. A run counts only for the code that made it, or for code that was
compared with it (``confirm.py``).

Competitors are looked for in ``build/rivals``: ``pip install --no-deps --target build/rivals`` puts torchsurv,
pytorch-metric-learning, xgboost, lightgbm, libauc, and pydantic with what it needs there. Studies of the paper are
listed by ``fcco report docs/ap docs/push docs/nca docs/theory --stale``. Timings are printed and not stored: see
``make bench``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from fcco_reproduce._digest import digest_modules

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
RECORDS = ROOT / "docs" / "evidence.json"
RUNS = BENCHMARKS / "runs"


@dataclass(frozen=True)
class Result:
    """A script, the page or table that it writes, the file of its runs, and the options that make it write them.

    A script whose runs are short has no such file.
    """

    script: str
    writes: str
    cache: str = ""
    options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """The words that run the script from the root of the repository."""
        return [sys.executable, "-m", self.script, *self.options]

    @property
    def modules(self) -> list[str]:
        """The modules that the script consists of."""
        path = BENCHMARKS / self.script
        return [f"{self.script}.{file.stem}" for file in sorted(path.glob("*.py"))] if path.is_dir() else [self.script]

    def digest(self) -> str:
        """Return a hash of the code that makes the result."""
        return digest_modules(self.modules, tuple(path.stem for path in BENCHMARKS.iterdir()))


RESULTS = {
    "rivals": Result("memory_rivals", "docs/memory_rivals.csv", "build/memory_rivals.jsonl"),
    "networks": Result("networks_with_memory", "docs/networks_with_memory.csv", "build/networks_with_memory.jsonl"),
    "remembering": Result("remembering", "docs/remembering.csv", "build/remembering.jsonl"),
    "what_decides": Result("what_decides", "docs/what_decides.md", "build/what_decides/cache.jsonl"),
    "top_of_list": Result("top_of_list", "docs/top_of_list.md", "build/top_of_list/cache.jsonl"),
    "defaults": Result("defaults", "docs/defaults.csv", "docs/defaults.jsonl", ("--results", "docs/defaults")),
    "migration": Result("migration", "docs/migration.csv", options=("--results", "docs/migration.csv")),
    "applications": Result("applications", "BENCHMARKS.md", "build/applications/cache.jsonl"),
}


def read() -> dict[str, dict[str, str]]:
    """Return what is known of the stored results, by their names."""
    found: dict[str, dict[str, str]] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    return found


def state(name: str, records: dict[str, dict[str, str]]) -> str:
    """Return "as today", or why a result is stale."""
    record = records.get(name)
    if record is None:
        return "stale: it does not say which code made it"
    if record["digest"] != RESULTS[name].digest():
        return f"stale: the code has changed since {record['date']} ({record['commit']})"
    return "as today"


def measure(name: str) -> None:
    """Run a script to its end, and record which code it ran. Its runs are kept even if it is stopped."""
    before, commit, began = RESULTS[name].digest(), _commit(), time.time()
    working, kept = ROOT / RESULTS[name].cache, RUNS / f"{name}.jsonl"  # without a file of runs, the root itself
    if not working.exists():
        _copy(kept, working)
    try:
        subprocess.run(RESULTS[name].command, check=True, cwd=ROOT, env=_environment())
    finally:
        _copy(working, kept)
    hours = f"{(time.time() - began) / 3600:.2f}"
    record = {"digest": before, "date": date.today().isoformat(), "commit": commit, "hours": hours}
    RECORDS.write_text(json.dumps(read() | {name: record}, indent=2, sort_keys=True) + "\n")


def _copy(source: Path, target: Path) -> None:
    """Copy a file, if it is one."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _commit() -> str:
    """Return the commit of the code, marked if the code has changes that no commit has; pages and runs do not count."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks", ":(exclude)benchmarks/runs")
    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")


def _environment() -> dict[str, str]:
    """Return an environment in which scripts find one another, and what is installed beside them to compare with."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "benchmarks", "build/rivals"])}


def main() -> int:
    """List or measure, and return 1 if something is stale in the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", nargs="*", metavar="NAME", choices=RESULTS, help="measure what is stale, or only these"
    )
    given = parser.parse_args()
    asked = given.run or []
    if given.run == []:
        asked = [name for name in RESULTS if state(name, read()) != "as today"]
    for name in asked:
        print(f"{name}: {' '.join(RESULTS[name].command)}", flush=True)
        measure(name)
    states = {name: state(name, read()) for name in RESULTS}
    for name, found in states.items():
        print(f"{name:13} {RESULTS[name].writes:30} {found}")
    return int(any(found != "as today" for found in states.values()))


if __name__ == "__main__":
    sys.exit(main())
