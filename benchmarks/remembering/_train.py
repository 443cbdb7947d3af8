"""A run of a setting: what :func:`harness.excess.train` does, by the kernels of this package."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from fcco.losses.baseline_cox import _merge_times
from harness.excess import BETA, Row
from remembering import _baseline, _kernels, _nca
from remembering._kernels import KINDS, Array
from remembering._problem import Problem, problem
from remembering._settings import MODES, Setting

MOST_TIMES = 1024  # rows of BaselineCoxLoss, by default


@lru_cache(maxsize=64)
def batches(row: Row, seed: int, natural: bool) -> Array:
    """Return the rows of all batches of a run."""
    return problem(row.objective, row.data).batches(row.batch, row.passes, seed, natural=natural)


def weights(row: Row, setting: Setting, lr: float, seed: int) -> Array | None:
    """Train once and return the weights, or None if training diverged."""
    place, order = problem(row.objective, row.data), batches(row, seed, setting.natural)
    rates = lr * (1 + np.cos(np.pi * np.arange(len(order)) / len(order))) / 2
    w, finite = descend(place, setting, order, rates)
    return w if finite else None


def train(row: Row, setting: Setting, lr: float, seed: int) -> float:
    """Train once and return the exact objective, or ``inf`` if training diverged."""
    w = weights(row, setting, lr, seed)
    return math.inf if w is None else problem(row.objective, row.data).at(w)


def descend(place: Problem, setting: Setting, order: Array, rates: Array) -> tuple[Array, bool]:
    """Take a step for every batch; returns the weights and whether they stayed finite."""
    options = (order, rates, BETA, place.penalty, place.start)
    if setting.mode == MODES["baseline"]:
        sets, events = _event_times(place)
        return _baseline.train(place.x, place.flag, sets, events, *options)
    if place.objective == "nca":
        if setting.limit:
            raise ValueError(f"setting must not be limited for NCA; got {setting.name!r}")
        kind = _nca.Method(
            setting.mode,
            setting.size(order.shape[1]),
            setting.rate(place.objective),
            setting.blend,
            setting.recomputed,
            setting.refresh,
            setting.pairs,
        )
        return _nca.train(place.x, place.key.astype(np.int64), kind, *options)
    data = _data(place, order.shape[1], natural=setting.natural)
    sizes = np.array([setting.size(expected) for expected in data.expected])
    method = _kernels.Method(
        KINDS[place.objective],
        setting.mode,
        sizes,
        setting.rate(place.objective),
        setting.blend,
        setting.recomputed,
        setting.refresh,
        setting.limit,
        setting.pairs,
    )
    return _kernels.train(data, method, *options)


def _data(place: Problem, size: int, *, natural: bool) -> _kernels.Data:
    """Return the training set with the sizes of its strata; a mean has a mass of 1."""
    members = np.array([np.sum(~place.flag), np.sum(place.flag)], np.float64)
    random = natural or place.objective == "cox"
    expected = size * members / members.sum() if random else np.array([size / 2, size / 2])
    mass = np.ones(2) if place.objective in ("p_norm_push", "partial_auc") else members
    return _kernels.Data(place.x, place.key, place.flag, mass, expected, not random)


def _event_times(place: Problem) -> tuple[Array, Array]:
    """Return how many event times there are up to each time [n], and the number of events at each [K]."""
    times, events = torch.from_numpy(place.key[place.flag]).unique(return_counts=True)
    times, events = _merge_times(times, events, MOST_TIMES)
    sets = np.searchsorted(times.numpy(), place.key, side="right")
    return sets, events.double().numpy()
