"""Ctrl-C between two steps, where a run can be saved, rather than within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred(active: bool) -> Iterator[Callable[[], None]]:
    """Let a first Ctrl-C wait for the function this yields, or for the end; a second one does not wait.

    Signals are left alone if not ``active``, in threads (which receive none), and where the program handles Ctrl-C.
    """
    ours = active and threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, press)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, previous)
    check()
