"""Which stored results were made by other code than today's, and making them again.

    python benchmarks/evidence.py                  # list them
    python benchmarks/evidence.py --run            # measure again what is stale
    python benchmarks/evidence.py --run defaults   # only some

A result is stale if a file has changed that its script imports, directly or not. Comments, docstrings and layout do not
count. What made each result is recorded in ``docs/evidence.json`` when it has been measured. All scripts keep what they
have done in ``build/`` and go on from there, so a run may be stopped at any time; all of them take many hours. Studies
of the paper have finer digests of their own, which ``fcco report docs/* --stale`` lists. Timings are printed and not
stored: see ``make bench``.
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

from fcco_reproduce._digest import digest_files

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "docs" / "evidence.json"


@dataclass(frozen=True)
class Result:
    """A script, and the page or table that it writes."""

    script: str
    writes: str

    @property
    def command(self) -> list[str]:
        """The words that run the script from the root of the repository."""
        path = ROOT / "benchmarks" / self.script
        return (
            [sys.executable, "-m", self.script] if path.is_dir() else [sys.executable, f"benchmarks/{self.script}.py"]
        )

    @property
    def sources(self) -> list[Path]:
        """The files that the script consists of."""
        path = ROOT / "benchmarks" / self.script
        return sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


RESULTS = {
    "rivals": Result("memory_rivals", "docs/memory_rivals.csv"),
    "networks": Result("networks_with_memory", "docs/networks_with_memory.csv"),
    "remembering": Result("remembering", "docs/remembering.csv"),
    "what_decides": Result("what_decides", "docs/what_decides.md"),
    "top_of_list": Result("top_of_list", "docs/top_of_list.md"),
    "defaults": Result("defaults", "docs/defaults.csv"),
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
    if record["digest"] != digest_files(RESULTS[name].sources, ROOT):
        return f"stale: the code has changed since {record['date']} ({record['commit']})"
    return "as today"


def measure(name: str) -> None:
    """Run a script to its end, and record which code it ran."""
    before, began = digest_files(RESULTS[name].sources, ROOT), time.time()
    subprocess.run(RESULTS[name].command, check=True, cwd=ROOT, env=_environment())
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()
    hours = f"{(time.time() - began) / 3600:.2f}"
    record = {"digest": before, "date": date.today().isoformat(), "commit": commit, "hours": hours}
    RECORDS.write_text(json.dumps(read() | {name: record}, indent=2, sort_keys=True) + "\n")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": "src:benchmarks"}


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
