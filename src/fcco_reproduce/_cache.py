"""Finished work on disk: one JSON line a result, under a key that is made of what the result depends on."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


class Cache:
    """Results by key, appended to a file as they come, each with a checksum.

    A line that is damaged, or that a killed process left half written, is dropped: its work is done again.

    Args:
        path: the file; made with its folder when the first result is stored.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Cache(Path(folder) / "cache.jsonl").store("a", {"job": "square"}, [1, 4, 9])
    ...     Cache(Path(folder) / "cache.jsonl").results
    {'a': [1, 4, 9]}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, Any] = {}
        self._ends_cleanly = True
        if path.exists():
            self._load(path.read_text(encoding="utf-8", errors="replace"))

    def _load(self, text: str) -> None:
        self._ends_cleanly = text.endswith("\n") or not text
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                key, result = entry["key"], entry["result"]
                if entry["sha256"] == _checksum(key, result):
                    self.results[key] = result
            except (ValueError, KeyError, TypeError, RecursionError):
                continue

    def store(self, key: str, about: dict[str, Any], result: Any) -> None:
        """Keep a result; it is on the disk when this returns.

        Args:
            key: what to find it under.
            about: written beside it, for readers of the file.
            result: anything that JSON can say.
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


def _checksum(key: str, result: Any) -> str:
    return hashlib.sha256(json.dumps([key, result]).encode()).hexdigest()
