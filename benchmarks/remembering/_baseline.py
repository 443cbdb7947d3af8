"""``BaselineCoxLoss`` of a linear model, compiled: a row for each event time, updated by SOAP at 1 / sqrt(visits)."""

from __future__ import annotations

import math

import numpy as np

from fcco.compiled import njit
from remembering._kernels import LARGEST, Array, _mix

TRUST = 8.0  # as in fcco.losses.BaselineCoxLoss


@njit(nogil=True)
def _update(
    sums: Array, members: Array, held: Array, visits: Array, hazard: Array, events: Array, total: float
) -> None:
    """Update all rows with the log-sums of a batch, and set what each adds to the hazard.

    As in the library, a row that was never reached has no term, and a batch that exceeds a row by too much is limited.
    """
    for k in range(len(sums)):
        hazard[k] = 0.0
        if sums[k] == -math.inf and visits[k] == 0:
            continue
        scale, old = 1.0, held[k]
        if visits[k] == 0:
            held[k] = sums[k]
        else:
            held[k] = _mix(old, sums[k], (visits[k] + 1.0) ** -0.5)
            if members[k] > 0:
                limit = held[k] + math.log1p(TRUST / math.sqrt(members[k]))
                scale = math.exp(min(limit - sums[k], 0.0))
        visits[k] += 1
        hazard[k] = events[k] / total * scale * math.exp(-held[k])


@njit(nogil=True, cache=True)
def train(
    x: Array,
    event: Array,
    sets: Array,
    events: Array,
    order: Array,
    lr: Array,
    beta: float,
    penalty: float,
    w: Array,
) -> tuple[Array, bool]:
    """Take a step for every row of ``order`` [steps, B]; returns the weights and whether they stayed finite.

    ``sets`` [n] has the number of event times up to each time, and ``events`` [K] the number of events at each.
    """
    steps, size = order.shape
    (n, d), count, total = x.shape, len(events), events.sum()
    held, visits, hazard = np.zeros(count), np.zeros(count), np.zeros(count)
    sums, members, out, slope = np.zeros(count), np.zeros(count), np.zeros(size), np.zeros(size)
    w, v, log_weight = w.copy(), np.zeros(d), math.log(n / size)
    for step in range(steps):
        for i in range(size):
            out[i] = np.dot(x[order[step, i]], w)
        peak = out.max()
        sums[:], members[:] = 0.0, 0.0
        for i in range(size):
            k = sets[order[step, i]] - 1
            if k >= 0:
                sums[k] += math.exp(out[i] - peak)
                members[k] += 1.0
        for k in range(count - 2, -1, -1):
            sums[k] += sums[k + 1]
            members[k] += members[k + 1]
        for k in range(count):
            sums[k] = math.log(sums[k]) + peak + log_weight if sums[k] > 0.0 else -math.inf
        _update(sums, members, held, visits, hazard, events, total)
        for k in range(1, count):
            hazard[k] += hazard[k - 1]
        v += beta * (penalty * w - v)
        for i in range(size):
            row = order[step, i]
            slope[i] = math.exp(out[i] + log_weight) * hazard[sets[row] - 1] if sets[row] > 0 else 0.0
            slope[i] -= n / size / total if event[row] else 0.0
            v += beta * slope[i] * x[row]
        w -= lr[step] * v
        if not np.max(np.abs(w)) < LARGEST:
            return w, False
    return w, True
