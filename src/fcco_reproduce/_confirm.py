"""Repeat some of the stored runs with today's code, and see whether it still gives the same results.

A digest tells that code has changed, and not whether a result has. Many changes cannot matter, such as a check of
input, but some runs take hours. A sample of them that comes out equal to the last digit *confirms* the others: they may
be shown as those of today's code, with the number of runs that were repeated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from fcco_reproduce._runner import Job, run_jobs

Entry = dict[str, Any]


def confirm(path: Path, count: int, *, packages: Sequence[str] = (), progress: TextIO | None = None) -> dict[str, Any]:
    """Run a sample of the jobs of a file of results again.

    Parameters
    ----------
    path : Path
        The file, as :func:`fcco_reproduce.run_jobs` writes it.
    count : int
        How many jobs to repeat. They differ in as many names of methods and data sets as possible.
    packages : sequence of str
        Further packages whose code the results depend on; see :class:`fcco_reproduce.Job`.
    progress : TextIO or None, default None
        Where to show progress.

    Returns
    -------
    dict
        ``runs``, how many were repeated; ``of``, how many there are; and ``sources``, the digest of today's code by the
        name of the function.

    Raises
    ------
    ValueError
        If a result differs, or if there are no results.
    """
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not entries:
        raise ValueError(f"{path} has no results to confirm")
    chosen = sample(entries, count)
    jobs = [Job(_function(entry["job"]), entry["settings"], packages=tuple(packages)) for entry in chosen]
    for entry, result in zip(chosen, run_jobs(jobs, progress=progress), strict=True):
        if _without_times(result) != _without_times(entry["result"]):
            raise ValueError(f"a repeated run of {path} differs, so its results are stale: {entry['settings']}")
    names = sorted({entry["job"] for entry in entries})
    sources = {name: Job(_function(name), {}, packages=tuple(packages)).code for name in names}
    return {"runs": len(chosen), "of": len(entries), "sources": sources}


def sample(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Return at most ``count`` results, at random with a fixed seed, of as many kinds as possible.

    Results are of the same kind if their settings differ only in numbers.

    Examples
    --------
    >>> runs = [{"job": "f", "settings": {"method": m, "seed": k}} for m in "abc" for k in range(9)]
    >>> sorted(run["settings"]["method"] for run in sample(runs, 3))
    ['a', 'b', 'c']
    """
    generator, kinds = random.Random(0), dict[str, list[Entry]]()
    for entry in entries:
        kinds.setdefault(json.dumps([entry["job"], _texts(entry["settings"])]), []).append(entry)
    names = sorted(kinds)
    generator.shuffle(names)
    return [generator.choice(kinds[name]) for name in names[:count]]


def _texts(value: Any) -> Any:
    """Return the texts in settings, and None for everything else."""
    if isinstance(value, dict):
        return {key: _texts(part) for key, part in sorted(value.items())}
    if isinstance(value, list):
        return [_texts(part) for part in value]
    return value if isinstance(value, str) else None


def _without_times(value: Any) -> Any:
    """Return a result without the entries called "seconds"."""
    if isinstance(value, dict):
        return {key: _without_times(part) for key, part in value.items() if key != "seconds"}
    return [_without_times(part) for part in value] if isinstance(value, list) else value


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
