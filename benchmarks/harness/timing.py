"""Seconds of a step, and its ratio to a competitor's in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

Step = Callable[[], object]
T = TypeVar("T")


class Comparison(NamedTuple):
    """Median seconds of two steps, and the median of their ratios, the first to the second."""

    first: float
    second: float
    ratio: float


def timed(work: Callable[[], T], clock: Callable[[], float] = time.perf_counter) -> tuple[float, T]:
    """Return the seconds that ``work`` takes, and what it returns.

    Parameters
    ----------
    work : callable
        What to time.
    clock : callable
        ``time.process_time`` counts CPU time only, which other processes on the machine hardly affect.
    """
    began = clock()
    result = work()
    return clock() - began, result


def seconds_of(step: Step, repeats: int = 1) -> float:
    """Return the mean seconds of a step over ``repeats`` calls in a row."""

    def all_of_them() -> None:
        for _ in range(repeats):
            step()

    return timed(all_of_them)[0] / repeats


def median_seconds(step: Step, rounds: int, *, before: Step | None = None, warmup: int = 3) -> float:
    """Return the median seconds of a step; ``before`` runs ahead of every call and is not counted."""
    times = []
    for _ in range(rounds + warmup):
        if before is not None:
            before()
        times.append(seconds_of(step))
    return statistics.median(times[warmup:])


def compare(first: Step, second: Step, rounds: int, repeats: int) -> Comparison:
    """Time two steps in rounds that alternate between them, after a warm-up of each."""
    for step in (first, second):
        seconds_of(step, repeats)
    pairs = [(seconds_of(first, repeats), seconds_of(second, repeats)) for _ in range(rounds)]
    return Comparison(
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def compare_calls(first: Step, second: Step, calls: int, run: int = 10) -> Comparison:
    """Time single calls of two steps, in runs that alternate between them.

    Returns the lower decile of either, and the ratio of these. Other processes on the machine hardly affect it: most
    calls are shorter than the time that a process has to itself.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(calls // run + 1):
        for step, seconds in zip((first, second), times, strict=True):
            seconds += [seconds_of(step) for _ in range(run)]
    one, other = (statistics.quantiles(seconds[run:] or seconds, n=10)[0] for seconds in times)
    return Comparison(one, other, one / other)
