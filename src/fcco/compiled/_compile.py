"""How kernels are compiled, and how the compiled code is kept on disk.

Numba's own cache checks the file that a function is defined in, but not the files of the functions that it calls.
After a change of a helper it would run the old machine code. Here a change of any file with kernels counts.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import numba
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

SUMS = {"reassoc", "contract", "nsz"}  # a value of ``fastmath``: sums may be taken in any order
PATIENCE = 1.0  # seconds of compiling after which the user is told

logger = logging.getLogger("fcco.compiled")


def kernel_files() -> list[Path]:
    """Return the files of this folder that define kernels."""
    return [path for path in sorted(Path(__file__).parent.glob("*.py")) if b"njit" in path.read_bytes()]


_SOURCES = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in kernel_files())).hexdigest()


class _Cache(FunctionCache):
    """Numba's cache of a function, which expires as soon as any kernel changes, and which may fail."""

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

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Tell kernels of one factory apart by the names of their parts, which Numba would pickle with a random id."""
        cells = self._py_func.__closure__ or ()
        parts = tuple(f"{cell.cell_contents.__module__}.{cell.cell_contents.__qualname__}" for cell in cells)
        return sig, codegen.magic_tuple(), parts


def njit(*, cache: bool = False, borrows: bool = False, **options: Any) -> Callable[[Kernel], Kernel]:
    """Compile a function as ``numba.njit`` does, with division by zero as in NumPy.

    Parameters
    ----------
    cache : bool, default=False
        Whether the function is an entry point. An entry point can be called from Python, and its compiled code is kept
        on disk where Numba keeps it. If no folder can be written to, every process compiles it again. A function that
        is not an entry point can only be called by other kernels, which makes it cheaper to compile.
    borrows : bool, default=False
        Whether the function makes no array and returns none. References are then not counted, which leaves out a third
        of the code that is compiled.
    **options
        Options of ``numba.njit``.

    Returns
    -------
    callable
        A decorator.
    """

    def compiled(function: Kernel) -> Kernel:
        settings = {"error_model": "numpy", "no_cfunc_wrapper": True, "no_cpython_wrapper": not cache, **options}
        if borrows:
            settings["_nrt"] = False
        dispatcher: Any = numba.njit(**settings)(function)
        if cache:
            with suppress(RuntimeError):  # no folder to write to
                dispatcher._cache = _Cache(function)
        return dispatcher

    return compiled


_told: set[str] = set()  # whose compilation the user has been told of, in this process


class _Watch(event.Listener):
    """Tells the user that kernels are being compiled: at once if ``verbose``, else as soon as it has taken a second.

    Garbage is not collected meanwhile: the collector would spend a tenth of the time on what the compiler keeps.
    """

    def __init__(self, name: str, verbose: int | bool) -> None:
        self.name, self.verbose = name, verbose
        self.depth, self.began, self.spent = 0, 0.0, 0.0
        self.collecting = False
        self.timer: threading.Timer | None = None

    def on_start(self, event: Any) -> None:
        if self.depth == 0:
            self.began, self.collecting = time.perf_counter(), gc.isenabled()
            gc.disable()
            if self.verbose:
                print(f"[{self.name}] compiling ...", end=" ", flush=True)
            elif self.name not in _told:
                # Another thread tells it, while this one compiles.
                folder = event.data["dispatcher"]._cache.cache_path
                self.timer = threading.Timer(max(PATIENCE - self.spent, 0.0), self.tell, [folder])
                self.timer.daemon = True
                self.timer.start()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth > 0:
            return
        if self.collecting:
            gc.enable()
        seconds = time.perf_counter() - self.began
        self.spent += seconds
        if self.verbose:
            print(f"{seconds:.1f} s", flush=True)
        if self.timer is not None:
            self.timer.cancel()

    def tell(self, folder: str | None) -> None:
        """Log a line, which Python prints on stderr unless logging is set up otherwise."""
        if self.name not in _told:
            _told.add(self.name)
            kept = f"kept in {folder}" if folder else "for this process, as no folder can be written to"
            logger.warning("compiling kernels for %s, once; %s", self.name, kept)


@contextmanager
def compiling(name: str, verbose: int | bool = 0) -> Iterator[None]:
    """Tell the user if kernels are compiled inside; code that is found on disk needs no message.

    Parameters
    ----------
    name : str
        Who needs the kernels.
    verbose : int or bool, default=0
        Whether to print a line with the seconds. If not, a line is logged as soon as compiling has taken a second, once
        for each name in a process. By default Python prints it on stderr.
    """
    with event.install_listener("numba:compile", _Watch(name, verbose)):
        yield
