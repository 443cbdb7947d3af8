"""Timing two things in one run: alternating rounds, and the median of their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

Step = Callable[[], object]


def time_of(step: Step, repeats: int) -> float:
    """Mean seconds of a step."""
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - began) / repeats


def compare(first: Step, second: Step, rounds: int, repeats: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median ratio of the first to the second."""
    for step in (first, second):
        time_of(step, repeats)
    pairs = [(time_of(first, repeats), time_of(second, repeats)) for _ in range(rounds)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )
