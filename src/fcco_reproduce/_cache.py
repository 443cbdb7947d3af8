"""A cache of results on disk: one JSON line per result, under a key made of everything the result depends on."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


class Cache:
    """Results by key, appended to a file as they arrive, each with a checksum.

    A damaged line, or one that a killed process left half written, is ignored, so its job runs again. ``damaged`` is
    the number of those lines.

    Parameters
    ----------
    path : Path
        The file. It is created, with its folder, when the first result is stored.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Cache(Path(folder) / "cache.jsonl").store("a", {"job": "square"}, [1, 4, 9])
    ...     Cache(Path(folder) / "cache.jsonl").results
    {'a': [1, 4, 9]}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, Any] = {}
        self._by_settings: dict[str, dict[str, Any]] = {}
        self._ends_cleanly, self.damaged = True, 0
        if path.exists():
            self._load(path.read_text(encoding="utf-8", errors="replace"))

    def _load(self, text: str) -> None:
        self._ends_cleanly = text.endswith("\n") or not text
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                key, result = entry["key"], entry["result"]
                intact = entry["sha256"] == _checksum(key, result)
                if intact:
                    self.results[key] = result
                    self._by_settings[_content(entry.get("job"), entry.get("settings"))] = entry
            except (ValueError, KeyError, TypeError, RecursionError):
                intact = False
            self.damaged += not intact and bool(line)

    def find(self, job: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Return the last line of the file with a result of a job and its settings, whatever code made it."""
        return self._by_settings.get(_content(job, settings))

    def store(self, key: str, about: dict[str, Any], result: Any) -> None:
        """Store a result and wait until it is on disk.

        Parameters
        ----------
        key : str
            The key of the result.
        about : dict
            Further fields of the line, for people who read the file.
        result : Any
            Anything that can be serialised as JSON.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"key": key, **about, "result": result, "sha256": _checksum(key, result)})
        before, self._ends_cleanly = "" if self._ends_cleanly else "\n", False
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{before}{line}\n")
            file.flush()
            os.fsync(file.fileno())
        self._ends_cleanly = True
        self.results[key] = result


def _content(job: Any, settings: Any) -> str:
    return json.dumps([job, settings], sort_keys=True)


def _checksum(key: str, result: Any) -> str:
    return hashlib.sha256(json.dumps([key, result]).encode()).hexdigest()
