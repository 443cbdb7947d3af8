"""What a report needs to know, in a JSON file beside the table and the figure of every experiment."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fcco_reproduce._study import ROMAN, Experiment, Finding, Scale, Study

FIELDS: dict[str, Any] = {
    **dict.fromkeys(("study.name", "study.title", "study.introduction", "study.making"), str),
    **dict.fromkeys(("stem", "key", "claim", "method", "verdict", "run.command", "run.date"), str),
    "place": int,
    "holds": bool | None,
    "rows": list,
    "run.seeds": int,
    "run.quick": bool,
    "run.environment": dict,
}
PACKAGES = ("fcco", "torch", "numpy", "scipy", "scikit-learn", "numba", "matplotlib")


def environment() -> dict[str, str]:
    """Versions, the machine and the commit, as far as they can be found out.

    Examples
    --------
    >>> {"CPU", "Python", "cores", "torch"} <= environment().keys()
    True
    """
    found = {"Python": platform.python_version(), "system": platform.platform(), "CPU": _processor()}
    found["cores"] = str(os.cpu_count())
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = _commit()
    return {**found, "commit": commit} if commit else found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the commit of the checkout that this file belongs to, or None."""
    here = Path(__file__)
    try:
        for command in (["ls-files", "--error-unmatch", here.name], ["describe", "--always", "--dirty", "--abbrev=12"]):
            done = subprocess.run(["git", *command], cwd=here.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def command_of(given: Namespace) -> str:
    """Return the command line that gives the same results, without options that affect only speed or caching.

    Examples
    --------
    >>> given = {"study": "theory", "quick": True, "scale": None, "config": [], "device": "cpu", "seeds": None}
    >>> command_of(Namespace(**given, only="i,v", out=None))
    'fcco reproduce theory --quick --only i,v'
    """
    words = ["fcco", "reproduce", given.study] + (["--quick"] if given.quick else [])
    for path in given.config:
        words += ["--config", str(path)]
    for option in ("scale", "seeds", "only", "out", "stored"):
        if getattr(given, option, None):
            words += [f"--{option}", str(getattr(given, option))]
    return shlex.join(words + ([] if given.device == "cpu" else ["--device", given.device]))


def write_records(
    study: Study,
    experiments: Sequence[Experiment],
    findings: Sequence[Finding],
    scale: Scale,
    out: Path,
    *,
    command: str,
) -> None:
    """Write a JSON file for each experiment to ``out``."""
    run: dict[str, Any] = {"command": command, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    run |= {"seeds": scale.seeds, "scale": scale.name, "quick": scale.quick, "device": scale.device}
    run |= {"environment": environment()}
    about = {key: getattr(study, key) for key in ("name", "title", "introduction", "making")}
    for experiment, finding in zip(experiments, findings, strict=True):
        record = {
            "study": about,
            "place": ROMAN.index(experiment.key),
            "stem": experiment.stem,
            **{key: getattr(experiment, key) for key in ("key", "claim", "method", "settings")},
            **{key: getattr(finding, key) for key in ("holds", "verdict", "rows", "sources")},
            "run": run,
        }
        write_record(out / f"{experiment.stem}.json", record)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record to its file."""
    text = json.dumps(record, indent=1, default=_as_plain, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _as_plain(value: Any) -> Any:
    """Return a NumPy or PyTorch number as a Python number."""
    return value.item()


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a folder in the order of the study.

    Raises
    ------
    ValueError
        If the folder has no record, or one is damaged.
    """
    records = [_read(path) for path in sorted(folder.glob("*.json"))]
    found = [record for record in records if record is not None]
    if not found:
        raise ValueError(f"{folder} holds no results of fcco reproduce")
    return sorted(found, key=lambda record: (record["study"]["name"], record["place"]))


def _read(path: Path) -> dict[str, Any] | None:
    """Return a record, or None if the JSON file holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict) or not {"study", "place", "stem", "rows", "run"} <= set(content):
        return None
    flaw = next(_flaws(content), None)
    if flaw is not None:
        raise ValueError(f"{path} is damaged: its {flaw} is missing, or is not what fcco reproduce writes")
    return content


def _flaws(record: dict[str, Any]) -> Iterator[str]:
    for name, kind in FIELDS.items():
        value: Any = record
        for part in name.split("."):
            value = value.get(part, ...) if isinstance(value, dict) else ...
        if not isinstance(value, kind):
            yield name
    if not all(isinstance(row, dict) for row in record["rows"]):
        yield "rows"
    if not all(isinstance(value, str) for value in record["run"]["environment"].values()):
        yield "run.environment"
    # The figure is read from beside the record, and from nowhere else.
    if Path(record["stem"]).name != record["stem"]:
        yield "stem"
