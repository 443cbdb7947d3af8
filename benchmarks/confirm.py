"""Whether today's code still gives what the code behind stored runs gives, to the last digit.

    FCCO_DATA=... python benchmarks/confirm.py docs/ap
    FCCO_DATA=... python benchmarks/confirm.py --runs benchmarks/runs/remembering.jsonl --commit d46837b

A digest tells that code has changed, and not whether a result has. Many changes cannot matter, such as a check of
input, but some studies take many hours. This command takes one stored run of each kind, where runs are of the same kind
if their settings differ only in numbers. It shortens the run and makes it twice on this machine: by the code of the
commit that the results name, in a worktree of its own, and by today's. If all results are equal, the records of the
folder say so, and ``fcco report --stale`` no longer lists them. The stored values themselves are not compared, because
they depend on the machine. Where no runs are stored, those of ``fcco reproduce STUDY --quick`` take their place.

The runs of a benchmark are short. With ``--runs``, some of them are repeated as they are. If they are equal, today's
code goes on from all of them, and their lines still say which code made them (``made_by``). Runs that a change is meant
to change are left out by ``--without``, and are made again by the next measurement.
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

import numpy as np

from applications._measure import load
from fcco_reproduce import Job
from fcco_reproduce._cache import Cache
from fcco_reproduce._record import environment, read_records, write_record
from harness.cache import PACKAGES, sources
from harness.objectives import OBJECTIVES

ROOT = Path(__file__).parent.parent
PREPARED = ROOT / "build" / "top_of_list" / "tasks"
SHORT = {"steps": 60, "every": 20, "first_steps": 30}  # instead of the settings of these names
RUN = (
    "import json, sys; from importlib import import_module; from fcco_reproduce import Job; "
    "jobs = [Job(getattr(import_module(m), f), s, place=p) for m, f, s, p in json.load(sys.stdin)]; "
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


def comparable(result: Any, settings: dict[str, Any]) -> Any:
    """Return what has to be equal of a result: all but times, and for the cases of applications all but memory too."""
    if "case" in settings:
        return [[lr, [run[:3] for run in runs], *end] for lr, runs, *end in result]
    return without_times(result)


def place_of(settings: dict[str, Any]) -> dict[str, str]:
    """Return where the data of a run are, if it takes data that ``python -m top_of_list --finished`` has prepared."""
    for path in PREPARED.glob("*.npz"):
        with np.load(path) as held:
            if str(held["hash"]) == settings.get("data"):
                return {"path": str(path)}
    return {}


def run_by(tree: Path, entries: Sequence[Entry]) -> Any:
    """Return the results of runs by the code of a checkout."""
    jobs = [(*entry["job"].rsplit(".", 1), entry["settings"], place_of(entry["settings"])) for entry in entries]
    paths = [str(place) for place in (tree / "src", tree / "benchmarks", ROOT / "build" / "rivals")]
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", RUN]
    done = subprocess.run(words, input=json.dumps(jobs), capture_output=True, text=True, env=where, check=False)
    if done.returncode:
        raise RuntimeError(f"the runs of {tree} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def repeated(tree: Path, entries: Sequence[Entry]) -> Any:
    """Return the results of a second run of everything.

    The first run may compile kernels. That changes where arrays lie in memory, and with it the last digits of products
    of matrices.
    """
    run_by(tree, entries)
    return run_by(tree, entries)


def compare(entries: Sequence[Entry], commit: str) -> None:
    """Run some jobs by the code of a commit and by today's.

    Raises
    ------
    ValueError
        If a result differs.
    """
    with TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(tree), commit], check=True, cwd=ROOT)
        try:
            before = repeated(tree, entries)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True, cwd=ROOT)
    for entry, old, new in zip(entries, before, repeated(ROOT, entries), strict=True):
        if comparable(old, entry["settings"]) != comparable(new, entry["settings"]):
            raise ValueError(f"{commit} and today's code differ in {entry['settings']}")
        print(f"equal: {entry['job']} {_named(entry['settings'])}", flush=True)


def confirm(folder: Path, commit: str) -> dict[str, Any]:
    """Compare the code of a commit with today's on the stored runs of a folder, and return what its records say."""
    entries = [{**entry, "settings": shortened(entry["settings"])} for entry in sample(runs_of(folder))]
    compare(entries, commit)
    code = {name: _job(name, {}).code for name in sorted({entry["job"] for entry in entries})}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"sources": code, "runs": len(entries), "commit": commit, "date": date, "environment": environment()}


def runs_of(folder: Path) -> list[Entry]:
    """Return the stored runs of a folder, or where none are stored, those of the short form of its study."""
    if (folder / "runs.jsonl").exists():
        return _read(folder / "runs.jsonl")
    with TemporaryDirectory() as place:
        words = ["-c", "from fcco_command import main; main()", "reproduce", folder.name, "--quick", "--out", place]
        subprocess.run([sys.executable, *words], check=True, cwd=ROOT, capture_output=True)
        return _read(Path(place) / "cache.jsonl")


def adopt(path: Path, commit: str, count: int, without: str = "") -> None:
    """Give the runs of a benchmark the keys of today's code, if some of them are the same by both.

    Runs that have the text ``without`` among their settings are dropped.
    """
    stored = [entry for entry in _read(path) if not without or without not in _all_texts(entry["settings"])]
    kinds = sample(stored)
    compare(random.Random(0).sample(kinds, min(count, len(kinds))), commit)
    renewed = path.with_suffix(".new")
    renewed.unlink(missing_ok=True)
    cache = Cache(renewed)
    for entry in stored:
        job = _job(entry["job"], as_today(entry["settings"]))
        about = {"job": job.name, "code": job.code, "made_by": entry["code"], "settings": job.settings}
        cache.store(job.key, about, entry["result"])
    renewed.replace(path)  # at the end, so that no run is lost if this is stopped


def as_today(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with the digest of today's code, if they have one of the code that they look up."""
    if "sources" not in settings:
        return settings
    if "case" in settings:
        return {**settings, "sources": sources(load(settings["name"]).run)}
    place = settings.get("cell", settings)
    objective = place["objective"] if "objective" in place else settings["row"][0]
    return {**settings, "sources": sources(OBJECTIVES[objective].build)}


def _all_texts(value: Any) -> list[str]:
    """Return all texts in settings, however deep."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for part in parts for text in _all_texts(part)]


def _read(path: Path) -> list[Entry]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _named(settings: dict[str, Any]) -> str:
    """Return what to show of settings: those of the method, if they are apart from the rest."""
    shown = settings.get("setting")
    return ", ".join(f"{key} {value}" for key, value in (shown if isinstance(shown, dict) else settings).items())


def _job(name: str, settings: dict[str, Any]) -> Job:
    """Return the job of a function; its key covers the code of the benchmarks if it is one of theirs."""
    module, _, function = name.rpartition(".")
    packages = () if module.startswith("fcco_reproduce.") else PACKAGES
    return Job(getattr(import_module(module), function), settings, packages=packages)


def main() -> int:
    """Confirm the results of the folders that are given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="of results of fcco reproduce")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="the runs of a benchmark")
    parser.add_argument("--commit", help="of the code that made them; for folders, it is that of their records")
    parser.add_argument("--count", type=int, default=12, help="how many of them to repeat")
    parser.add_argument("--without", default="", metavar="TEXT", help="drop runs that have this text in their settings")
    given = parser.parse_args()
    if given.runs is not None and given.commit is None:
        parser.error("--runs needs --commit")
    if given.runs is not None:
        adopt(given.runs, given.commit, given.count, given.without)
    for folder in given.folders:
        records = read_records(folder)
        commits = {given.commit or record["run"]["environment"]["commit"] for record in records}
        if len(commits) != 1:
            raise ValueError(f"{folder} has results of several commits: {', '.join(sorted(commits))}")
        found = confirm(folder, commits.pop())
        for record in records:
            write_record(folder / f"{record['stem']}.json", {**record, "confirmed": found})
        print(f"{folder}: {found['runs']} runs are equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
