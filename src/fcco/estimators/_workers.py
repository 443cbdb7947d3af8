"""Threads that share the work of a fit, such that the result does not depend on how many there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier, Lock
from typing import TypeVar

import torch

T = TypeVar("T")
S = TypeVar("S")

_lock = Lock()


def run_in_order(work: Callable[[S], T], parts: Iterable[S]) -> list[T]:
    """Return what ``work`` makes of each part, in their order, on as many threads as PyTorch would use.

    PyTorch itself takes one thread within ``work``.
    """
    with _lock:
        pool = _pool(torch.get_num_threads(), os.getpid())
    return list(pool.map(work, parts))


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return threads on which PyTorch does not start others; a forked process has none of its parent's."""
    gate = Barrier(threads + 1)

    def begin() -> None:
        torch.get_num_threads()  # else the first product would set it anew
        torch.set_num_threads(1)
        gate.wait()

    pool = ThreadPoolExecutor(threads, thread_name_prefix="fcco", initializer=begin)
    for _ in range(threads):
        pool.submit(int)
    gate.wait()
    torch.set_num_threads(threads)  # threads that start later take over what was set last
    return pool
