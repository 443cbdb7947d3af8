"""Numba's ``njit`` for the kernels; compiled code is kept on disk, and used for as long as no kernel changes.

Numba's own cache checks the file that a function is defined in, but not the files of the functions that it calls:
after a change of a helper, it would run the old machine code. Here a change of any file with kernels counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def kernel_files() -> list[Path]:
    """The files of this folder that define kernels."""
    return [path for path in sorted(Path(__file__).parent.glob("*.py")) if b"njit" in path.read_bytes()]


_SOURCES = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in kernel_files())).hexdigest()


class _Cache(FunctionCache):
    """Numba's cache of a function: out of date as soon as any kernel changes, and optional if the disk fails."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), _SOURCES
        self._cache_file = IndexDataCacheFile(self.cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except (OSError, EOFError, UnpicklingError):
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)


def njit(*, cache: bool = False, **options: Any) -> Callable[[Kernel], Kernel]:
    """``numba.njit``, for functions that call each other across files.

    Args:
        cache: whether to keep the compiled code on disk, where Numba would. If no folder can be written to, the code is
            compiled in every process that needs it.
        options: those of ``numba.njit``.
    """

    def compiled(function: Kernel) -> Kernel:
        dispatcher: Any = numba.njit(**options)(function)
        if cache:
            with suppress(RuntimeError):  # no folder to write to
                dispatcher._cache = _Cache(function)
        return dispatcher

    return compiled
