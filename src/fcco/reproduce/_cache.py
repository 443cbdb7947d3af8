"""Finished work on disk: one JSON line a result, under a key that is made of what the result depends on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Cache:
    """Results by key, appended to a file as they come; what a killed process left half written is dropped.

    Args:
        path: the file; made with its folder when the first result is stored.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Cache(Path(folder) / "cache.jsonl").store("a", {"task": "square"}, [1, 4, 9])
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
                self.results[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue

    def store(self, key: str, about: dict[str, Any], result: Any) -> None:
        """Keep a result; it is on the disk when this returns.

        Args:
            key: what to find it under.
            about: written beside it, for readers of the file.
            result: anything that JSON can say.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"key": key, **about, "result": result})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n" if self._ends_cleanly else "\n" + line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._ends_cleanly = True
        self.results[key] = result
