"""Paired differences between methods over the splits, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from top_of_list._measure import Record
from top_of_list._methods import BEST, Kind, methods_of

Verdict = Literal["above", "even", "below"]
MEASURES = {"test_ap": "average precision", "partial_auc": "partial AUC", "precision_at_k": "precision at k"}


class Difference(NamedTuple):
    """Ours less a rival on the same splits: the mean, twice its standard error, and the verdict."""

    task: str
    group: str
    ours: str
    rival: str
    mean: float
    margin: float
    verdict: Verdict


class Results:
    """Records by kind, task and method, sorted by seed."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.rows = sorted(records, key=lambda row: row.seed)
        self.by_place: dict[tuple[str, str, str], list[Record]] = {}
        for row in self.rows:
            self.by_place.setdefault((row.kind, row.task, row.method), []).append(row)

    def values(self, kind: str, task: str, method: str, measure: str = "test_ap") -> dict[int, float]:
        """Return a measure by seed; nothing where the method was not measured."""
        return {row.seed: float(getattr(row, measure)) for row in self.by_place.get((kind, task, method), [])}

    def mean(self, kind: str, task: str, method: str, measure: str = "test_ap") -> float:
        """Return the mean over seeds, NaN where there are none."""
        found = self.values(kind, task, method, measure)
        return fmean(found.values()) if found else math.nan

    def tasks(self, kind: str) -> list[str]:
        """Return the tasks that have records of a kind."""
        return list(dict.fromkeys(task for found, task, _ in self.by_place if found == kind))

    def methods(self, kind: str) -> list[str]:
        """Return the methods that have records of a kind."""
        return list(dict.fromkeys(method for found, _, method in self.by_place if found == kind))

    def group(self, task: str) -> str:
        """Return the group of a task."""
        return next(row.group for row in self.rows if row.task == task)


def names(kind: Kind, role: str) -> list[str]:
    """Return the names of the methods with a role."""
    return [method.name for method in methods_of(kind) if method.role == role]


def best_on_test(results: Results, kind: Kind, task: str) -> str | None:
    """Return the usual method with the highest mean on the test parts, which no user could know."""
    known = [name for name in names(kind, "usual") if results.values(kind, task, name)]
    return max(known, key=lambda name: results.mean(kind, task, name)) if known else None


def paired(ours: dict[int, float], theirs: dict[int, float]) -> tuple[float, float, Verdict]:
    """Return the mean difference over common seeds, twice its standard error, and the verdict.

    Examples
    --------
    >>> paired({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.6})[2]
    'above'
    >>> paired({0: 0.5, 1: 0.5}, {0: 0.4, 1: 0.6})[2]
    'even'
    """
    each = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    mean = fmean(each)
    margin = 2 * stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.inf
    return mean, margin, "even" if abs(mean) <= margin else "above" if mean > 0 else "below"


def differences(
    results: Results, kind: Kind, ours: str, rival: str | None = None, *, harsh: bool = False
) -> list[Difference]:
    """Return ours less a rival: by default the best usual method by validation or, if harsh, by the test parts."""
    found, given = [], rival or BEST[kind]
    for task in results.tasks(kind):
        rival = best_on_test(results, kind, task) if harsh else given
        mine, theirs = (results.values(kind, task, name or "") for name in (ours, rival))
        if rival and mine.keys() & theirs.keys():
            found.append(Difference(task, results.group(task), ours, rival, *paired(mine, theirs)))
    return found


def tally(found: Sequence[Difference]) -> dict[str, int]:
    """Return how many differences have each verdict."""
    return {verdict: sum(one.verdict == verdict for one in found) for verdict in ("above", "even", "below")}
