"""Which stored results were made by other code than today's, and making them again.

    python benchmarks/evidence.py                  # list them
    python benchmarks/evidence.py --run            # measure again what is stale
    python benchmarks/evidence.py --run defaults   # only some

A result is stale if a definition has changed that its script leads to. Comments, docstrings, messages of exceptions and
layout do not count. What made each result is recorded in ``docs/evidence.json`` when it has been measured. All scripts
keep what they have done in ``build/`` and go on from there, so a run may be stopped at any time; all of them take many
hours. What ``build/rivals`` holds is compared with (see ``memory_rivals.py``). Studies of the paper are listed by
``fcco report docs/* --stale``. Timings are printed and not stored: see ``make bench``.
"""

from __future__ import annotations

import argparse
import json
import os
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


@dataclass(frozen=True)
class Result:
    """A script, the page or table that it writes, and the options that make it do so."""

    script: str
    writes: str
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
    "rivals": Result("memory_rivals", "docs/memory_rivals.csv"),
    "networks": Result("networks_with_memory", "docs/networks_with_memory.csv"),
    "remembering": Result("remembering", "docs/remembering.csv"),
    "what_decides": Result("what_decides", "docs/what_decides.md"),
    "top_of_list": Result("top_of_list", "docs/top_of_list.md"),
    "defaults": Result("defaults", "docs/defaults.csv", ("--results", "docs/defaults")),
    "applications": Result("applications", "BENCHMARKS.md"),
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
    """Run a script to its end, and record which code it ran."""
    before, commit, began = RESULTS[name].digest(), _commit(), time.time()
    subprocess.run(RESULTS[name].command, check=True, cwd=ROOT, env=_environment())
    hours = f"{(time.time() - began) / 3600:.2f}"
    record = {"digest": before, "date": date.today().isoformat(), "commit": commit, "hours": hours}
    RECORDS.write_text(json.dumps(read() | {name: record}, indent=2, sort_keys=True) + "\n")


def _commit() -> str:
    """Return the commit of the code, marked if the code has changes that no commit has; changed pages do not count."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks")
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
