"""Sums over intervals in log space, compiled: of the intervals that cover a point, and of the points of an interval.

Points are 0 ... K - 1, and an interval has the points l ... r. If l < r, let b be the highest bit in which they differ.
Points that agree in all bits above b form a block, the interval is a suffix of its left half and a prefix of its right
half, and both kinds of sums come from one scan of the block. Each interval is used at its level b only. The cost is
O(n + K log K), and nothing is subtracted, so that small sums keep their digits beside large ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fcco.compiled._compile import njit
from fcco.compiled._rules import Array

_RISE = 300.0  # how far a weight may lie above the unit before the unit is changed


class Intervals(NamedTuple):
    """Intervals, grouped by level; those of a single point are at level -1, and those of none at none."""

    first: Array  # [n]: l
    last: Array  # [n]: r
    by_first: Array  # the intervals of all levels, level by level, by rising l
    by_last: Array  # the same by falling r
    ends: Array  # [levels + 1]: where each level ends in these, beginning with level -1
    points: int


def intervals(first: Array, past: Array, points: int) -> Intervals:
    """Sort the intervals [first, past) of some of the points.

    >>> intervals(np.array([0, 2, 3]), np.array([3, 3, 3]), 4).ends
    array([1, 1, 2])
    """
    last = past - 1
    level = np.frexp((first ^ last).astype(np.float64))[1] - 1  # the highest bit; -1 of 0
    used = np.flatnonzero(past > first)
    by_first = used[np.lexsort((first[used], level[used]))]
    by_last = used[np.lexsort((-last[used], level[used]))]
    ends = np.searchsorted(level[by_first], np.arange(-1, max(points - 1, 1).bit_length()), side="right")
    return Intervals(first, last, by_first, by_last, ends, points)


@njit()
def _add(a: float, b: float) -> float:
    """log(e^a + e^b)."""
    if a < b:
        a, b = b, a
    return a if b == -math.inf else a + math.log1p(math.exp(b - a))


@njit(cache=True)
def cover(logs: Array, sets: Intervals) -> Array:
    """For each point, log Σ e^logs over the intervals that cover it, [K]."""
    out = np.full(sets.points, -math.inf)
    for i in range(sets.ends[0]):
        j = sets.by_first[i]
        out[sets.first[j]] = _add(out[sets.first[j]], logs[j])
    for level in range(len(sets.ends) - 1):
        begin, end, half = sets.ends[level], sets.ends[level + 1], 1 << level
        if begin == end:
            continue
        i, running = begin, -math.inf
        for k in range(sets.points):
            if k & (half - 1) == 0:
                running = -math.inf
            while i < end and sets.first[sets.by_first[i]] == k:
                running = _add(running, logs[sets.by_first[i]])
                i += 1
            if running > -math.inf:
                out[k] = _add(out[k], running)
        i, running = begin, -math.inf
        for k in range(sets.points - 1, -1, -1):
            if (k + 1) & (half - 1) == 0:
                running = -math.inf
            while i < end and sets.last[sets.by_last[i]] == k:
                running = _add(running, logs[sets.by_last[i]])
                i += 1
            if running > -math.inf:
                out[k] = _add(out[k], running)
    return out


@njit(cache=True)
def within(logs: Array, sets: Intervals) -> Array:
    """For each interval, log Σ e^logs over its points, [n]."""
    out, scan = np.full(len(sets.first), -math.inf), np.empty(sets.points)
    for i in range(sets.ends[0]):
        j = sets.by_first[i]
        out[j] = logs[sets.first[j]]
    for level in range(len(sets.ends) - 1):
        begin, end, half = sets.ends[level], sets.ends[level + 1], 1 << level
        if begin == end:
            continue
        running = -math.inf
        for k in range(sets.points - 1, -1, -1):
            running = logs[k] if (k + 1) & (half - 1) == 0 else _add(running, logs[k])
            scan[k] = running
        for i in range(begin, end):
            out[sets.by_first[i]] = scan[sets.first[sets.by_first[i]]]
        for k in range(sets.points):
            running = logs[k] if k & (half - 1) == 0 else _add(running, logs[k])
            scan[k] = running
        for i in range(begin, end):
            out[sets.by_first[i]] = _add(out[sets.by_first[i]], scan[sets.last[sets.by_first[i]]])
    return out


@njit()
def _take_in(running: Array, unit: float, log: float, row: Array) -> float:
    """Add e^log times a row to what is counted in units of e^unit; return the unit, which may have changed."""
    if unit == -math.inf:
        unit = log
    elif log > unit + _RISE:
        running *= math.exp(unit - log)
        unit = log
    weight = math.exp(log - unit)
    for c in range(len(row)):
        running[c] += weight * row[c]
    return unit


@njit(cache=True)
def cover_rows(logs: Array, rows: Array, sets: Intervals, units: Array) -> Array:
    """For each point, Σ e^(logs - unit of the point) rows over the intervals that cover it, [K, d]."""
    out, running = np.zeros((sets.points, rows.shape[1])), np.zeros(rows.shape[1])
    for i in range(sets.ends[0]):
        j = sets.by_first[i]
        k = sets.first[j]
        out[k] += math.exp(logs[j] - units[k]) * rows[j]
    for level in range(len(sets.ends) - 1):
        begin, end, half = sets.ends[level], sets.ends[level + 1], 1 << level
        if begin == end:
            continue
        for side in range(2):
            i, unit = begin, -math.inf
            order, place = (sets.by_first, sets.first) if side == 0 else (sets.by_last, sets.last)
            for step in range(sets.points):
                k = step if side == 0 else sets.points - 1 - step
                if (k if side == 0 else k + 1) & (half - 1) == 0:
                    running[:] = 0.0
                    unit = -math.inf
                while i < end and place[order[i]] == k:
                    unit = _take_in(running, unit, logs[order[i]], rows[order[i]])
                    i += 1
                if unit > -math.inf:
                    scale = math.exp(unit - units[k])
                    for c in range(len(running)):
                        out[k, c] += scale * running[c]
    return out
