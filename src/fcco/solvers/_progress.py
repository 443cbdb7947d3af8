"""A progress bar: tqdm's where it is installed, a line of text otherwise."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any, Protocol


class Bar(Protocol):
    """What the loop does with a progress bar."""

    def update(self, n: int) -> Any:
        """Count n more steps."""
        ...

    def close(self) -> None:
        """No more steps will come."""
        ...


class _NoBar:
    def update(self, n: int) -> None:
        pass

    def close(self) -> None:
        pass


class TextBar:
    """A line on stderr, written again at most every ``interval`` seconds."""

    def __init__(self, total: int, initial: int, desc: str, interval: float = 0.5) -> None:
        self.total, self.count, self.desc, self.interval = total, initial, desc, interval
        self._written = -interval

    def update(self, n: int) -> None:
        """Count n more steps."""
        self.count += n
        if time.monotonic() - self._written >= self.interval:
            self._write("")

    def close(self) -> None:
        """Write the last count, and leave the line."""
        self._write("\n")

    def _write(self, end: str) -> None:
        share = self.count / self.total if self.total else 1.0
        sys.stderr.write(f"\r{self.desc}: {self.count}/{self.total} steps ({share:.0%}){end}")
        sys.stderr.flush()
        self._written = time.monotonic()


def progress_bar(shown: bool, total: int, initial: int, desc: str) -> Bar:
    """A bar over ``total`` steps of which ``initial`` are done, or one that shows nothing."""
    if not shown:
        return _NoBar()
    try:
        tqdm = import_module("tqdm").tqdm
    except ImportError:
        return TextBar(total, initial, desc)
    return tqdm(total=total, initial=initial, desc=desc)
