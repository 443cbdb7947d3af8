"""Many independent pieces of work: in parallel, resumed where a run was interrupted, with the time that is left."""

from __future__ import annotations

import hashlib
import inspect
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TextIO

import torch

from fcco.reproduce._cache import Cache


@dataclass(frozen=True)
class Task:
    """A piece of work: ``function(**settings)``, which depends on nothing else.

    Args:
        function: of a module, so that another process can import it; returns what JSON can say.
        settings: its arguments, which JSON can say too, seeds included.
        cost: how long it takes, in any unit: the longest go first, and the time left is estimated with it.

    >>> Task(round, {"number": 2.6}).run()
    3
    """

    function: Callable[..., Any]
    settings: dict[str, Any]
    cost: float = 1.0

    @property
    def name(self) -> str:
        """Where the function is."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def key(self) -> str:
        """A digest of the settings and of the function's source, though not of what the function calls."""
        source = inspect.getsource(self.function) if inspect.isfunction(self.function) else ""
        content = json.dumps([self.name, source, self.settings], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def run(self) -> Any:
        """The result, as it will be read from a file."""
        with _one_thread():
            return json.loads(json.dumps(self.function(**self.settings)))


def run_tasks(
    tasks: Sequence[Task], *, workers: int = 1, cache: Path | None = None, progress: TextIO | None = None
) -> list[Any]:
    """The results of ``tasks``, in their order, whatever the number of workers.

    Args:
        tasks: what to do; the same task given twice is done once.
        workers: how many processes; 1 stays in this one.
        cache: a file of earlier results, which are not computed again, and of new ones, as they are finished.
        progress: where to write what is done and the time left.

    Raises:
        ValueError: ``workers`` is not positive.

    >>> run_tasks([Task(round, {"number": 0.7}), Task(round, {"number": 5.2})])
    [1, 5]
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers!r}")
    store = None if cache is None else Cache(cache)
    done: dict[str, Any] = {} if store is None else dict(store.results)
    keys = [task.key for task in tasks]
    missing = {key: task for key, task in zip(keys, tasks, strict=True) if key not in done}
    bar = _Progress(progress, total=len(missing), cost=sum(task.cost for task in missing.values()))
    for key, result in _compute(missing, workers):
        done[key] = result
        if store is not None:
            store.store(key, {"task": missing[key].name, "settings": missing[key].settings}, result)
        bar.add(missing[key].cost)
    return [done[key] for key in keys]


def _compute(tasks: dict[str, Task], workers: int) -> Iterator[tuple[str, Any]]:
    """Keys and results as they are finished."""
    longest_first = sorted(tasks.items(), key=lambda item: -item[1].cost)
    if workers == 1 or len(tasks) < 2:
        yield from ((key, task.run()) for key, task in longest_first)
        return
    # Spawned, since a fork of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context, initializer=_end_with_parent)
    with pool:
        futures = {pool.submit(task.run): key for key, task in longest_first}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """Leave no worker behind when the parent is killed."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Workers share the cores, and sums come out the same on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Progress:
    """A line that says how much is done and how long the rest will take."""

    def __init__(self, stream: TextIO | None, total: int, cost: float) -> None:
        self.stream, self.total, self.cost = stream, total, cost
        self.count, self.spent = 0, 0.0
        self.begun = time.monotonic()

    def add(self, cost: float) -> None:
        self.count += 1
        self.spent += cost
        if self.stream is None:
            return
        passed = time.monotonic() - self.begun
        left = passed * (self.cost - self.spent) / max(self.spent, 1e-12)
        line = f"{self.count}/{self.total} tasks, {_minutes(passed)} passed, about {_minutes(left)} left"
        last = self.count == self.total
        self.stream.write(f"\r{line:<60}" + ("\n" if last else "") if self.stream.isatty() else line + "\n")
        self.stream.flush()


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
