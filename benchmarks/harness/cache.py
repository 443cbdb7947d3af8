"""Jobs whose results are kept in a file of JSON lines, so that an interrupted benchmark continues where it was.

The file is that of ``fcco reproduce`` (:mod:`fcco_reproduce._cache`): a line is appended when a job ends, it carries a
checksum, and a damaged line is dropped. A result is found under its settings and a digest of the source code that made
it, in the library, in ``fcco_reproduce`` and in the benchmarks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fcco_reproduce import Job
from fcco_reproduce._digest import digest

PACKAGES = ("applications", "harness", "top_of_list", "what_decides")


def sources(function: Callable[..., Any]) -> str:
    """Return a digest of the code that a function leads to, for the settings of a job that looks it up by name."""
    return digest(function, PACKAGES)


def make_job(function: Callable[..., Any], settings: dict[str, Any], cost: float = 1.0) -> Job:
    """Return a job for :func:`fcco_reproduce.run_jobs` whose key covers the code of the benchmarks too."""
    return Job(function, settings, cost=cost, packages=PACKAGES)


def earlier_results(path: Path) -> dict[str, Any]:
    """Return the results of a file by their settings, whatever code made them.

    This reads files of earlier versions, whose keys no longer match. Where several lines have the same settings, the
    last one counts.

    Parameters
    ----------
    path : Path
        A file of JSON lines with ``settings`` and ``result``; or with ``run`` and ``value``, as ``defaults.py`` wrote
        them before it used this cache. A file that does not exist has no results.

    Returns
    -------
    dict
        From the settings, as sorted JSON (or the text of ``run``), to the result.
    """
    found: dict[str, Any] = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for line in lines:
        try:
            entry = json.loads(line)
            if "run" in entry:
                found[entry["run"]] = entry["value"]
            else:
                found[by_settings(entry["settings"])] = entry["result"]
        except (ValueError, KeyError, TypeError):  # a damaged line
            continue
    return found


def by_settings(settings: dict[str, Any]) -> str:
    """Return the name under which :func:`earlier_results` has the result of some settings."""
    return json.dumps(settings, sort_keys=True)
