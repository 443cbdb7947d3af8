"""Whether today's code still gives what the code behind stored runs gives, to the last digit.

    FCCO_DATA=... python benchmarks/confirm.py docs/ap

A digest tells that code has changed, and not whether a result has. Many changes cannot matter, such as a check of
input, but some studies take many hours. This command takes one stored run of each kind, where runs are of the same kind
if their settings differ only in numbers. It shortens the run and makes it twice on this machine: by the code of the
commit that the results name, in a worktree of its own, and by today's. If all results are equal, the records of the
folder say so, and ``fcco report --stale`` no longer lists them. The stored values themselves are not compared, because
they depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fcco_reproduce import Job
from fcco_reproduce._record import environment, read_records, write_record

ROOT = Path(__file__).parent.parent
SHORT = {"steps": 60, "every": 20, "first_steps": 30}  # instead of the settings of these names
RUN = (
    "import json, sys; from importlib import import_module; from fcco_reproduce import Job; "
    "jobs = [Job(getattr(import_module(m), f), s) for m, f, s in json.load(sys.stdin)]; "
    "json.dump([job.run() for job in jobs], sys.stdout)"
)
Entry = dict[str, Any]


def sample(entries: Sequence[Entry]) -> list[Entry]:
    """Return one result of each kind, at random with a fixed seed.

    Examples
    --------
    >>> runs = [{"job": "f", "settings": {"method": m, "seed": k}} for m in "abc" for k in range(9)]
    >>> [run["settings"]["method"] for run in sample(runs)]
    ['a', 'b', 'c']
    """
    kinds: dict[str, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(json.dumps([entry["job"], _texts(entry["settings"])]), []).append(entry)
    generator = random.Random(0)
    return [generator.choice(kinds[name]) for name in sorted(kinds)]


def _texts(value: Any) -> Any:
    """Return the texts in settings, and None for everything else."""
    if isinstance(value, dict):
        return {key: _texts(part) for key, part in sorted(value.items())}
    if isinstance(value, list):
        return [_texts(part) for part in value]
    return value if isinstance(value, str) else None


def shortened(value: Any) -> Any:
    """Return settings with shorter runs.

    Examples
    --------
    >>> shortened({"training": {"steps": 5000, "margin": 0.6}})
    {'training': {'steps': 60, 'margin': 0.6}}
    """
    if isinstance(value, dict):
        return {key: SHORT.get(key, shortened(part)) for key, part in value.items()}
    return [shortened(part) for part in value] if isinstance(value, list) else value


def without_times(value: Any) -> Any:
    """Return a result without the entries called "seconds"."""
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key != "seconds"}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def run_by(tree: Path, entries: Sequence[Entry]) -> Any:
    """Return the results of shortened runs by the code of a checkout."""
    jobs = [(*entry["job"].rsplit(".", 1), shortened(entry["settings"])) for entry in entries]
    where = {**os.environ, "PYTHONPATH": str(tree / "src")}
    words = [sys.executable, "-c", RUN]
    done = subprocess.run(words, input=json.dumps(jobs), capture_output=True, text=True, env=where, check=False)
    if done.returncode:
        raise RuntimeError(f"the runs of {tree} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def confirm(folder: Path, commit: str) -> dict[str, Any]:
    """Compare the code of a commit with today's on the stored runs of a folder.

    Raises
    ------
    ValueError
        If a result differs.
    """
    lines = (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    entries = sample([json.loads(line) for line in lines])
    with TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(tree), commit], check=True, cwd=ROOT)
        try:
            before = run_by(tree, entries)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True, cwd=ROOT)
    for entry, old, new in zip(entries, before, run_by(ROOT, entries), strict=True):
        if without_times(old) != without_times(new):
            raise ValueError(f"{commit} and today's code differ in {entry['settings']}")
        print(f"equal: {entry['job']} {_named(entry['settings'])}", flush=True)
    sources = {name: _code(name) for name in sorted({entry["job"] for entry in entries})}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"sources": sources, "runs": len(entries), "commit": commit, "date": date, "environment": environment()}


def _named(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.get("setting", settings).items())


def _code(name: str) -> str:
    module, _, function = name.rpartition(".")
    return Job(getattr(import_module(module), function), {}).code


def main() -> int:
    """Confirm the results of the folders that are given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="of results of fcco reproduce, with runs.jsonl")
    for folder in parser.parse_args().folders:
        records = read_records(folder)
        commits = {record["run"]["environment"]["commit"] for record in records}
        if len(commits) != 1:
            raise ValueError(f"{folder} has results of several commits: {', '.join(sorted(commits))}")
        found = confirm(folder, commits.pop())
        for record in records:
            write_record(folder / f"{record['stem']}.json", {**record, "confirmed": found})
        print(f"{folder}: {found['runs']} runs are equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
