"""Linear models on Cox, average precision, p-norm push and partial AUC, with a memory of recent outputs, compiled.

All four objectives have the same form. With t = h_j - h_i for an outer example i and a rival j,

    u_ic = sum over rivals j of  W_j φ(t),    F = mean_i f(u_i)

where φ is e^t among those at risk (Cox), a ramp (average precision), e^-t (push) or e^((1 + t)₊²) (partial AUC).
Values of u are logarithms. Average precision has two of them: the sum over positives and that over all.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fcco.compiled import njit

Array = NDArray[Any]

COX, PRECISION, PUSH, PARTIAL_AUC = range(4)
KINDS = {"cox": COX, "average_precision": PRECISION, "p_norm_push": PUSH, "partial_auc": PARTIAL_AUC}
POWER = 4.0  # of p-norm push
BATCH, ESTIMATE, VIRTUAL = range(3)
LARGEST = 1e9  # of a weight, before a run counts as diverged


class Data(NamedTuple):
    """The training set, and what is known about its strata, of which 1 has the flag and 0 has not."""

    x: Array  # [n, d]
    key: Array  # [n]: times
    flag: Array  # [n]: events or positives
    mass: Array  # [2]: what the members of a stratum weigh together
    expected: Array  # [2]: how many of a batch are members
    balanced: bool  # whether a batch always has that many


class Method(NamedTuple):
    """What a step does; see :mod:`remembering._settings`."""

    kind: int
    mode: int
    size: Array  # [2]: M of each stratum
    rate: float
    blend: float
    recomputed: bool
    refresh: float
    limit: float
    pairs: bool


class Pool(NamedTuple):
    """Fresh outputs, then remembered ones, oldest first; [B + capacity] each."""

    out: Array
    key: Array
    flag: Array
    row: Array
    outer: Array  # whether a remembered output has a u
    u: Array  # [:, 2]
    weight: Array  # in the estimate from the pool; see _held


class Fresh(NamedTuple):
    """Weights [B] of fresh outputs (see _held), and the gradient with respect to them."""

    batch: Array  # in the estimate from the batch
    expected: Array  # as rivals of the memory
    valid: Array  # of bool: whether it is an outer example that can be estimated
    own: Array  # the derivative of its f(u) in its own role
    gradient: Array


@njit(nogil=True)
def _is_outer(kind: int, flag: bool) -> bool:
    return not flag if kind == PUSH else flag


@njit(nogil=True)
def _held(kind: int, weight: float) -> float:
    """Return how a weight is held: as itself for average precision, as its logarithm for the others."""
    return weight if kind == PRECISION else math.log(weight)


@njit(nogil=True)
def _compare(
    kind: int, h: float, key: float, own: int, pool: Pool, weight: Array, end: int, value: Array, slope: Array
) -> float:
    """Set W φ and W φ' at the first ``end`` members of a pool; both are scaled by e^-peak. Returns the peak.

    ``own`` is the place of the outer example itself, or -1. Its term is 1 and has no slope.
    """
    if kind == PRECISION:
        for j in range(end):
            place = min(max((pool.out[j] - h) * 0.25, -1.0), 1.0)
            rest = 1.0 - abs(place)
            half = 0.5 * rest * rest
            value[j] = weight[j] * (half if place < 0.0 else 1.0 - half)
            slope[j] = weight[j] * rest * 0.25
        if own >= 0:
            value[own], slope[own] = weight[own], 0.0
        return 0.0
    peak = -math.inf
    for j in range(end):
        value[j] = -math.inf
        t = pool.out[j] - h
        if kind == COX:
            if pool.key[j] >= key:
                value[j], slope[j] = t + weight[j], 1.0
        elif kind == PUSH:
            if pool.flag[j]:
                value[j], slope[j] = -t + weight[j], -1.0
        elif not pool.flag[j]:
            height = max(1.0 + t, 0.0)
            value[j], slope[j] = height * height + weight[j], 2.0 * height
        peak = max(peak, value[j])
    for j in range(end):
        if value[j] == -math.inf:
            value[j] = slope[j] = 0.0
        else:
            value[j] = math.exp(value[j] - peak)
            slope[j] *= value[j]
    if own >= 0:
        slope[own] = 0.0
    return peak


@njit(nogil=True)
def _log_sums(kind: int, pool: Pool, end: int, value: Array, peak: float) -> tuple[float, float]:
    """Return the logarithms of the sums over the positives and over all; they are equal but for average precision."""
    mates, total = 0.0, 0.0
    for j in range(end):
        total += value[j]
        if pool.flag[j]:
            mates += value[j]
    every = peak + math.log(total) if total > 0.0 else -math.inf
    if kind != PRECISION:
        return every, every
    return (math.log(mates) if mates > 0.0 else -math.inf), every


@njit(nogil=True)
def _pull(kind: int, first: float, second: float, peak: float) -> tuple[float, float]:
    """Return f' times e^peak at log u, for rivals with the flag and for the others."""
    if kind == PUSH:
        both = POWER * math.exp((POWER - 1.0) * second + peak)
        return both, both
    both = math.exp(peak - second)
    if kind != PRECISION:
        return both, both
    share = math.exp(first - second)
    return -(1.0 - share) * both, share * both


@njit(nogil=True)
def _mix(old: float, new: float, rate: float) -> float:
    """Return log((1 - rate) e^old + rate e^new)."""
    if rate >= 1.0:
        return new
    return _log_add(old + math.log1p(-rate), new + math.log(rate))


@njit(nogil=True)
def _log_add(first: float, second: float) -> float:
    """Return log(e^first + e^second)."""
    top = max(first, second)
    return top if top == -math.inf else top + math.log1p(math.exp(min(first, second) - top))


@njit(nogil=True)
def _forget(pool: Pool, size: int, end: int, used: Array, limit: Array, stamp: Array, clock: int) -> int:
    """Drop from the memory what exceeds its sizes, and the rows of this batch; returns where the pool ends now."""
    surplus0, surplus1 = used[0] - limit[0], used[1] - limit[1]
    kept = size
    used[0] = used[1] = 0
    for j in range(size, end):
        flag = pool.flag[j]
        if flag and surplus1 > 0:
            surplus1 -= 1
            continue
        if not flag and surplus0 > 0:
            surplus0 -= 1
            continue
        if stamp[pool.row[j]] == clock:
            continue
        if kept < j:
            pool.out[kept], pool.key[kept], pool.flag[kept] = pool.out[j], pool.key[j], flag
            pool.row[kept], pool.outer[kept] = pool.row[j], pool.outer[j]
            pool.u[kept, 0], pool.u[kept, 1] = pool.u[j, 0], pool.u[j, 1]
        used[1 if flag else 0] += 1
        kept += 1
    return kept


@njit(nogil=True)
def _remember(pool: Pool, size: int, end: int, used: Array) -> int:
    """Append the fresh outputs to the memory; returns where the pool ends now."""
    for i in range(size):
        j = end + i
        pool.out[j], pool.key[j], pool.flag[j] = pool.out[i], pool.key[i], pool.flag[i]
        pool.row[j], pool.outer[j] = pool.row[i], pool.outer[i]
        pool.u[j, 0], pool.u[j, 1] = pool.u[i, 0], pool.u[i, 1]
        used[1 if pool.flag[i] else 0] += 1
    return end + size


@njit(nogil=True)
def _weigh(kind: int, data: Data, pool: Pool, fresh: Fresh, size: int, end: int, used: Array) -> None:
    """Set the weights of all members of the pool, and which fresh ones are outer examples with rivals."""
    b1 = 0
    for i in range(size):
        b1 += 1 if pool.flag[i] else 0
    b0 = size - b1
    p0, p1 = b0 + used[0], b1 + used[1]
    lacking = 1.0  # if one stratum is missing, the other stands for both (Cox)
    if kind == COX:
        lacking = (data.mass[0] + data.mass[1]) / ((data.mass[0] if p0 else 0.0) + (data.mass[1] if p1 else 0.0))
    w0 = _held(kind, lacking * data.mass[0] / max(p0, 1))
    w1 = _held(kind, lacking * data.mass[1] / max(p1, 1))
    for j in range(end):
        pool.weight[j] = w1 if pool.flag[j] else w0
    for i in range(size):
        flag = pool.flag[i]
        c, there = (1, b1) if flag else (0, b0)
        # Batches of Cox are random samples of all examples, so that every fresh one weighs the same.
        here = (data.mass[0] + data.mass[1]) / size if kind == COX else data.mass[c] / there
        fresh.batch[i] = _held(kind, here)
        fresh.expected[i] = _held(kind, data.mass[c] / data.expected[c])
        fresh.valid[i] = _is_outer(kind, flag) and (kind == COX or (p0 > 0 and p1 > 0))


@njit(nogil=True)
def _add_batch_gradient(
    kind: int, pool: Pool, fresh: Fresh, size: int, share: float, value: Array, slope: Array
) -> None:
    """Add ``share`` of the gradient of the batch, in both roles of its outputs, with f' at the u of each."""
    rivals0, rivals1, outers = 0, 0, 0
    for i in range(size):
        rivals1 += 1 if pool.flag[i] else 0
        outers += 1 if fresh.valid[i] else 0
    rivals0 = size - rivals1
    if outers == 0 or (kind != COX and (rivals0 == 0 or rivals1 == 0)):
        return
    for i in range(size):
        if not fresh.valid[i]:
            continue
        peak = _compare(kind, pool.out[i], pool.key[i], i, pool, fresh.batch, size, value, slope)
        of_mates, of_others = _pull(kind, pool.u[i, 0], pool.u[i, 1], peak)
        for j in range(size):
            change = share * (of_mates if pool.flag[j] else of_others) * slope[j] / outers
            fresh.gradient[j] += change
            fresh.gradient[i] -= change


@njit(nogil=True)
def _estimate(
    method: Method, pool: Pool, fresh: Fresh, size: int, end: int, table: Array, value: Array, slope: Array
) -> None:
    """Set u of the fresh outer examples from the batch or from the pool, through the table if there is one."""
    last, weight = (size, fresh.batch) if method.mode == BATCH else (end, pool.weight)
    for i in range(size):
        if not fresh.valid[i]:
            continue
        peak = _compare(method.kind, pool.out[i], pool.key[i], i, pool, weight, last, value, slope)
        first, second = _log_sums(method.kind, pool, last, value, peak)
        if method.rate < 1.0:
            row = pool.row[i]
            if table[row, 2] > 0.0:
                first = _mix(table[row, 0], first, method.rate)
                second = _mix(table[row, 1], second, method.rate)
            table[row, 0], table[row, 1], table[row, 2] = first, second, 1.0
        pool.u[i, 0], pool.u[i, 1] = first, second
        of_mates, of_others = _pull(method.kind, first, second, peak)
        fresh.own[i] = 0.0
        for j in range(last):
            fresh.own[i] -= (of_mates if pool.flag[j] else of_others) * slope[j]


@njit(nogil=True)
def _add_own_side(method: Method, data: Data, fresh: Fresh) -> None:
    """Add the gradient of fresh outer examples in that role, where all members of the pool are constants."""
    outers = data.expected[0 if method.kind == PUSH else 1]
    for i in range(len(fresh.own)):
        if fresh.valid[i]:
            fresh.gradient[i] += method.blend * fresh.own[i] / outers


@njit(nogil=True)
def _recompute(kind: int, pool: Pool, size: int, end: int, value: Array, slope: Array) -> None:
    """Set u of the outer examples of the memory from the pool."""
    for i in range(size, end):
        if pool.outer[i]:
            peak = _compare(kind, pool.out[i], pool.key[i], i, pool, pool.weight, end, value, slope)
            pool.u[i, 0], pool.u[i, 1] = _log_sums(kind, pool, end, value, peak)


@njit(nogil=True)
def _refresh(kind: int, pool: Pool, i: int, size: int, rate: float, value: Array, peak: float) -> None:
    """Move u of a remembered outer example towards its estimate from the fresh rivals and its own term."""
    first, second = _log_sums(kind, pool, size, value, peak)
    if kind in (COX, PRECISION):
        own = pool.weight[i] if kind == COX else math.log(pool.weight[i])
        first, second = _log_add(first, own), _log_add(second, own)
    pool.u[i, 0], pool.u[i, 1] = _mix(pool.u[i, 0], first, rate), _mix(pool.u[i, 1], second, rate)


@njit(nogil=True)
def _trusted(method: Method, pool: Pool, i: int, size: int, value: Array, peak: float) -> float:
    """Return the factor that limits an estimate from m fresh rivals to 1 + limit (1 / sqrt(m) + 1 / m) times u."""
    if method.limit == 0.0:
        return 1.0
    rivals = 0
    for k in range(size):
        rivals += 1 if value[k] > 0.0 else 0
    estimate = _log_sums(method.kind, pool, size, value, peak)[1]
    most = pool.u[i, 1] + math.log1p(method.limit * (1.0 / math.sqrt(max(rivals, 1)) + 1.0 / max(rivals, 1)))
    return math.exp(min(most - estimate, 0.0))


@njit(nogil=True)
def _add_rival_side(
    method: Method, pool: Pool, fresh: Fresh, size: int, end: int, outers: int, value: Array, slope: Array
) -> None:
    """Add the gradient of fresh outputs as rivals of the outer examples of the memory."""
    kind = method.kind
    rate = min(method.refresh * size / end, 1.0)
    for i in range(size, end):
        if not pool.outer[i]:
            continue
        peak = _compare(kind, pool.out[i], pool.key[i], -1, pool, fresh.expected, size, value, slope)
        if rate > 0.0:
            _refresh(kind, pool, i, size, rate, value, peak)
        if peak == -math.inf:
            continue
        of_mates, of_others = _pull(kind, pool.u[i, 0], pool.u[i, 1], peak)
        share = method.blend * _trusted(method, pool, i, size, value, peak) / outers
        for k in range(size):
            fresh.gradient[k] += share * (of_mates if pool.flag[k] else of_others) * slope[k]


@njit(nogil=True)
def _add_pairs(
    method: Method, data: Data, pool: Pool, fresh: Fresh, size: int, outers: int, value: Array, slope: Array
) -> None:
    """Add the gradient of fresh outputs as rivals of the other fresh outer examples, of which the batch has fewer."""
    kind, n = method.kind, len(data.x)
    weight = np.empty(size)
    for i in range(size):
        if not fresh.valid[i]:
            continue
        for k in range(size):
            c = 1 if pool.flag[k] else 0
            there, mass = data.expected[c], data.mass[c]
            if not data.balanced:
                there *= (size - 1.0) / size * n / (n - 1.0)
            elif pool.flag[k] == pool.flag[i]:
                there, mass = max(there - 1.0, 1.0), mass - 1.0
            weight[k] = _held(kind, mass / there)
        peak = _compare(kind, pool.out[i], pool.key[i], i, pool, weight, size, value, slope)
        if peak == -math.inf:
            continue
        of_mates, of_others = _pull(kind, pool.u[i, 0], pool.u[i, 1], peak)
        for k in range(size):
            fresh.gradient[k] += method.blend * (of_mates if pool.flag[k] else of_others) * slope[k] / outers


@njit(nogil=True)
def _differentiate(
    method: Method, data: Data, pool: Pool, fresh: Fresh, size: int, end: int, value: Array, slope: Array
) -> None:
    """Set the gradient with respect to the fresh outputs."""
    fresh.gradient[:] = 0.0
    outers = 0
    for i in range(size, end):
        outers += 1 if pool.outer[i] else 0
    if method.mode != VIRTUAL or outers == 0:
        _add_batch_gradient(method.kind, pool, fresh, size, 1.0, value, slope)
        return
    if method.blend < 1.0:
        _add_batch_gradient(method.kind, pool, fresh, size, 1.0 - method.blend, value, slope)
    _add_own_side(method, data, fresh)
    if method.recomputed:
        _recompute(method.kind, pool, size, end, value, slope)
    if method.pairs:
        for i in range(size):
            outers += 1 if fresh.valid[i] else 0
        _add_pairs(method, data, pool, fresh, size, outers, value, slope)
    _add_rival_side(method, pool, fresh, size, end, outers, value, slope)


@njit(nogil=True)
def _new_pool(size: int, capacity: int) -> Pool:
    room = size + capacity
    return Pool(
        np.zeros(room),
        np.zeros(room),
        np.zeros(room, np.bool_),
        np.zeros(room, np.int64),
        np.zeros(room, np.bool_),
        np.zeros((room, 2)),
        np.zeros(room),
    )


@njit(nogil=True, cache=True)
def train(
    data: Data, method: Method, order: Array, lr: Array, beta: float, penalty: float, w: Array
) -> tuple[Array, bool]:
    """Take a step for every row of ``order`` [steps, B]; returns the weights and whether they stayed finite."""
    steps, size = order.shape
    n, d = data.x.shape
    pool = _new_pool(size, method.size[0] + method.size[1] + 2 * size)
    fresh = Fresh(np.zeros(size), np.zeros(size), np.zeros(size, np.bool_), np.zeros(size), np.zeros(size))
    value, slope = np.zeros(len(pool.out)), np.zeros(len(pool.out))
    table, stamp, used = np.zeros((n, 3)), np.full(n, -1), np.zeros(2, np.int64)
    w, v, end = w.copy(), np.zeros(d), size
    for step in range(steps):
        for i in range(size):
            row = order[step, i]
            total = 0.0
            for k in range(d):
                total += data.x[row, k] * w[k]
            pool.out[i], pool.key[i], pool.flag[i], pool.row[i] = total, data.key[row], data.flag[row], row
            stamp[row] = step
        end = _forget(pool, size, end, used, method.size, stamp, step)
        _weigh(method.kind, data, pool, fresh, size, end, used)
        _estimate(method, pool, fresh, size, end, table, value, slope)
        _differentiate(method, data, pool, fresh, size, end, value, slope)
        for i in range(size):
            pool.outer[i] = fresh.valid[i]
        if method.mode != BATCH:
            end = _remember(pool, size, end, used)
        for k in range(d):
            v[k] += beta * (penalty * w[k] - v[k])
        for i in range(size):
            if fresh.gradient[i] != 0.0:
                row = order[step, i]
                for k in range(d):
                    v[k] += beta * fresh.gradient[i] * data.x[row, k]
        for k in range(d):
            w[k] -= lr[step] * v[k]
            if not abs(w[k]) < LARGEST:
                return w, False
    return w, True
