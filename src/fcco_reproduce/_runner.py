"""Run many independent jobs in parallel, and resume them after an interruption."""

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
    """A call of ``function(**settings)`` whose result depends on nothing else.

    Parameters
    ----------
    function : callable
        A module-level function, which other processes can import. Its result must be serialisable as JSON.
    settings : dict
        Its keyword arguments, seeds included, serialisable as JSON.
    cost : float
        The expected duration in any unit. The longest jobs start first, and the time left is estimated from it.
    place : dict
        Further arguments that do not affect the result, such as a folder of checkpoints.
    packages : tuple of str
        Further packages whose code the result depends on.

    Examples
    --------
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
        """The qualified name of the function."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def code(self) -> str:
        """A digest of the code that the function runs (:mod:`fcco_reproduce._digest`)."""
        return digest(self.function, self.packages)

    @property
    def key(self) -> str:
        """A digest of the settings and of the code."""
        content = json.dumps([self.name, self.code, self.settings], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def run(self) -> Any:
        """Run the job and return its result in the form in which it is read from a file.

        Returns
        -------
        object
            The result, of types that JSON has.
        """
        with _one_thread():
            return json.loads(json.dumps(self.function(**self.settings, **self.place)))


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    cache: Path | None = None,
    progress: TextIO | None = None,
    any_code: bool = False,
) -> list[Any]:
    """Run jobs and return their results in the order of the jobs.

    Parameters
    ----------
    jobs : sequence of Job
        The jobs. A job that is given twice runs once.
    workers : int
        The number of processes. With 1, all jobs run in the current process.
    cache : Path or None
        A file of results. Jobs whose result it holds do not run again, and new results are appended as they finish.
    progress : TextIO or None
        A stream for the progress. None shows none.
    any_code : bool
        Whether a result of the file also counts if other code made it. :func:`sources` tells which did.

    Returns
    -------
    list
        The result of each job.

    Raises
    ------
    ValueError
        If ``workers`` is less than 1.
    ChildProcessError
        If a worker process was killed.

    Examples
    --------
    >>> run_jobs([Job(round, {"number": 0.7}), Job(round, {"number": 5.2})])
    [1, 5]
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1; got {workers!r}")
    store = None if cache is None else Cache(cache)
    done: dict[str, Any] = {} if store is None else dict(store.results)
    keys = [job.key for job in jobs]
    if store is not None and any_code:
        for key, job in zip(keys, jobs, strict=True):
            entry = store.find(job.name, job.settings)
            if key not in done and entry is not None:
                done[key] = entry["result"]
    missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in done}
    bar = _Progress(progress, total=len(missing), cost=sum(job.cost for job in missing.values()))
    with closing(bar), closing(_compute(missing, workers)) as results:
        for key, result in results:
            done[key] = result
            if store is not None:
                job = missing[key]
                store.store(key, {"job": job.name, "code": job.code, "settings": job.settings}, result)
            bar.add(missing[key].cost)
    return [done[key] for key in keys]


def is_stored(job: Job, cache: Path, *, any_code: bool = False) -> bool:
    """Return whether a file has the result of a job; see :func:`run_jobs`."""
    store = Cache(cache)
    return job.key in store.results or (any_code and store.find(job.name, job.settings) is not None)


def sources(jobs: Sequence[Job], cache: Path) -> dict[str, list[str]]:
    """Return the digests of the code that made the stored results of jobs, by the name of the function.

    A result whose line does not say is an empty string.
    """
    store, found = Cache(cache), dict[str, set[str]]()
    for job in jobs:
        entry = None if job.key in store.results else store.find(job.name, job.settings)
        found.setdefault(job.name, set()).add(job.code if entry is None else entry.get("code", ""))
    return {name: sorted(codes) for name, codes in found.items()}


def _compute(jobs: dict[str, Job], workers: int) -> Generator[tuple[str, Any]]:
    """Yield keys and results as jobs finish; closing the generator ends workers that are still busy."""
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
                "a worker process was killed, perhaps for lack of memory; finished work is kept, so run the command "
                "again with fewer --workers"
            ) from None
        except BaseException:
            ours.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with(parent: Connection) -> None:
    """End this process as soon as the other end of the pipe is closed or its process has ended."""

    def watch() -> None:
        with suppress(EOFError, OSError):
            parent.recv()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT, so that processes started meanwhile ignore the Ctrl-C that a terminal sends to them too."""
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
    """Use one thread in PyTorch and BLAS, since workers share the cores and results must not depend on the machine."""
    limits = import_extra("threadpoolctl", "an experiment").threadpool_limits
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with limits(1):
            yield
    finally:
        torch.set_num_threads(before)


class _Progress:
    """The progress of jobs and the time left: a bar on a terminal, one line per job elsewhere."""

    _LINE = "{desc}, {elapsed} passed, {remaining} left"

    def __init__(self, stream: TextIO | None, total: int, cost: float) -> None:
        self.stream, self.total, self.count, self.bar = stream, total, 0, None
        if total == 0 or stream is None:
            return
        # No smoothing: jobs differ in cost and not in speed, so the mean speed of the whole run predicts best.
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
