"""Many independent pieces of work: in parallel, resumed where a run was interrupted, with the time that is left."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

import torch

from fcco._extras import import_extra
from fcco_reproduce._cache import Cache
from fcco_reproduce._digest import digest


@dataclass(frozen=True)
class Job:
    """A piece of work: ``function(**settings)``, which depends on nothing else.

    Args:
        function: of a module, so that another process can import it; returns what JSON can say.
        settings: its arguments, which JSON can say too, seeds included.
        cost: how long it takes, in any unit: the longest go first, and the time left is estimated with it.
        place: further arguments, on which the result does not depend, such as a folder of checkpoints.
        packages: further packages whose code the result depends on.

    >>> Job(round, {"number": 2.6}).run()
    3
    """

    function: Callable[..., Any]
    settings: dict[str, Any]
    cost: float = 1.0
    place: dict[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Where the function is."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def key(self) -> str:
        """A digest of the settings and of the code that the function runs (:mod:`fcco_reproduce._digest`)."""
        content = json.dumps([self.name, digest(self.function, self.packages), self.settings], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def run(self) -> Any:
        """The result, as it will be read from a file."""
        with _one_thread():
            return json.loads(json.dumps(self.function(**self.settings, **self.place)))


def run_jobs(
    jobs: Sequence[Job], *, workers: int = 1, cache: Path | None = None, progress: TextIO | None = None
) -> list[Any]:
    """The results of ``jobs``, in their order, whatever the number of workers.

    Args:
        jobs: what to do; the same job given twice is done once.
        workers: how many processes; 1 stays in this one.
        cache: a file of earlier results, which are not computed again, and of new ones, as they are finished.
        progress: where to write what is done and the time left.

    Raises:
        ValueError: ``workers`` is not positive.
        ChildProcessError: a worker was killed.

    >>> run_jobs([Job(round, {"number": 0.7}), Job(round, {"number": 5.2})])
    [1, 5]
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers!r}")
    store = None if cache is None else Cache(cache)
    done: dict[str, Any] = {} if store is None else dict(store.results)
    keys = [job.key for job in jobs]
    missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in done}
    bar = _Progress(progress, total=len(missing), cost=sum(job.cost for job in missing.values()))
    with closing(bar), closing(_compute(missing, workers)) as results:
        for key, result in results:
            done[key] = result
            if store is not None:
                store.store(key, {"job": missing[key].name, "settings": missing[key].settings}, result)
            bar.add(missing[key].cost)
    return [done[key] for key in keys]


def _compute(jobs: dict[str, Job], workers: int) -> Generator[tuple[str, Any]]:
    """Keys and results as they are finished; workers that are still busy when it is closed are ended."""
    longest_first = sorted(jobs.items(), key=lambda item: -item[1].cost)
    if workers == 1 or len(jobs) < 2:
        yield from ((key, job.run()) for key, job in longest_first)
        return
    # Spawned, since a fork of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with, initargs=(theirs,))
    with theirs, ours:
        try:
            with _interrupts_held():
                futures = {pool.submit(job.run): key for key, job in longest_first}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise ChildProcessError(
                "a worker was killed, perhaps for lack of memory: finished work is kept, try fewer --workers"
            ) from None
        except BaseException:
            ours.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with(parent: Connection) -> None:
    """End this process, whatever it does, once the other end of the pipe is closed or its process has ended."""

    def watch() -> None:
        with suppress(EOFError, OSError):
            parent.recv()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back: processes that are started meanwhile never see it, though a terminal sends it to them too."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Of PyTorch and of BLAS: workers share the cores, and sums come out the same on any machine."""
    limits = import_extra("threadpoolctl", "an experiment").threadpool_limits
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with limits(1):
            yield
    finally:
        torch.set_num_threads(before)


class _Progress:
    """How much is done and how long the rest will take: a bar on a terminal, a line for every job elsewhere."""

    _LINE = "{desc}, {elapsed} passed, {remaining} left"

    def __init__(self, stream: TextIO | None, total: int, cost: float) -> None:
        self.stream, self.total, self.count, self.bar = stream, total, 0, None
        if total == 0 or stream is None:
            return
        # The time left is that of the whole run so far, since jobs differ in cost and not in speed.
        self.bar = import_extra("tqdm", "an experiment").tqdm(
            total=cost,
            desc=f"0/{total} jobs",
            file=stream if stream.isatty() else StringIO(),
            ascii=" #",
            bar_format=f"[{{bar:20}}] {self._LINE}",
            smoothing=0,
            mininterval=0,
            miniters=0,
        )

    def add(self, cost: float) -> None:
        if self.bar is None or self.stream is None:
            return
        self.count += 1
        self.bar.set_description_str(f"{self.count}/{self.total} jobs", refresh=False)
        self.bar.update(min(cost, self.bar.total - self.bar.n))  # their sum may round to more than the total
        if not self.stream.isatty():
            shown = self.bar.format_meter(**{**self.bar.format_dict, "bar_format": self._LINE})
            self.stream.write(f"{shown}\n")
            self.stream.flush()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
