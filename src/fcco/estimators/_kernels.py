"""One step of any pairwise objective on a batch of scores, compiled: inner estimates, table, gradient.

For every outer position i of a batch of scores h, with weight a_i > 0,

    g_ik = sum over j in [lo_i, hi_i) of  c_jk ℓ(sign (h_j - h_i)),

the table's row takes a step towards it, and f is differentiated as the rule says. Which objective it is, is told by
arrays and by a few codes: the same kernel serves p-norm push, average precision, Cox and the listwise ones.
Where ℓ = exp everything is held as logarithms (``log``), as in :class:`fcco.CoupledLoss`; the sums are then over those
j whose key is at least that of i, and take B exponentials rather than one for each pair.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fcco.estimators._compile import njit

Array = NDArray[Any]

SURROGATES = {"squared_hinge": 0, "hinge": 1, "logistic": 2, "sigmoid": 3, "exp": 4}
RULES = {"bsgd": 0, "soap": 1, "moap": 2, "sox": 3}
OUTERS = {"power": 0, "share": 1, "log": 2, "discount": 3}

_SQUARED_HINGE, _HINGE, _LOGISTIC, _SIGMOID, _EXP = SURROGATES.values()
_BSGD, _SOAP, _MOAP, _SOX = RULES.values()
_POWER, _SHARE, _LOG, _DISCOUNT = OUTERS.values()
_LOG_2 = math.log(2.0)
_LOWEST = np.finfo(np.float64).min
SUMS = {"reassoc", "contract", "nsz"}  # sums may be taken in any order
_SAFE = 1e-200  # above it, a sum of shares has lost no digits to underflow
_LARGEST_EXPONENT = -math.log(_SAFE)
_LOG_OF_NOTHING = -1e5  # as in fcco.InnerTable


class Form(NamedTuple):
    """What objective, and by which rule: the codes and numbers that the compiled code branches on."""

    surrogate: int
    margin: float
    sign: float  # of ℓ's argument: +1 for rivals above, -1 for rivals below
    outer: int
    power: float  # p of u^p
    log: bool
    rule: int
    gamma: float
    n_outer: float  # rows that are ever outer ones: MOAP scales by their number over that in the batch
    own_shift: float  # by how much the own term is to exceed ℓ(0)


class Table(NamedTuple):
    """The running estimates of the inner values, as :class:`fcco.InnerTable` has them."""

    u: Array  # [n, dim]
    written: Array  # [n], the step of a row's last write, from 1; 0: it was never visited


class Batch(NamedTuple):
    """A batch as the kernel takes it; [B] each, and ``weight`` [dim, B]."""

    rows: Array
    scale: Array  # a: how much f counts, 0 where a position is not an outer one
    key: Array
    lo: Array
    hi: Array
    weight: Array  # c


class Room(NamedTuple):
    """Scratch of a step."""

    inner: Array  # [B, dim]: estimates of g, or of its logarithm
    pull: Array  # [B, dim]: derivatives of the objective in them
    values: Array  # [B]: ℓ at the rivals of one position, or e^(sign h), scaled
    slopes: Array  # [B, width]: ℓ' at the rivals of each


@njit(cache=True)
def make_room(size: int, width: int, dim: int) -> Room:
    """Room for ``size`` positions of at most ``width`` rivals each."""
    return Room(np.zeros((size, dim)), np.zeros((size, dim)), np.zeros(size), np.zeros((size, width)))


@njit(cache=True, fastmath=SUMS, forceinline=True)
def _compare(form: Form, h: Array, own: float, lo: int, hi: int, values: Array, slopes: Array) -> None:
    """ℓ and ℓ' at the rivals of one position, whose score is ``own``."""
    sign, margin = form.sign, form.margin
    if form.surrogate == _SQUARED_HINGE:
        for j in range(lo, hi):
            height = max(margin + sign * (h[j] - own), 0.0)
            values[j - lo], slopes[j - lo] = height * height, 2.0 * height
    elif form.surrogate == _HINGE:
        for j in range(lo, hi):
            height = margin + sign * (h[j] - own)
            values[j - lo], slopes[j - lo] = max(height, 0.0), 1.0 if height > 0.0 else 0.0
    elif form.surrogate == _LOGISTIC:
        for j in range(lo, hi):
            t = sign * (h[j] - own)
            e = math.exp(-abs(t))
            values[j - lo], slopes[j - lo] = max(t, 0.0) + math.log1p(e), (1.0 if t >= 0.0 else e) / (1.0 + e)
    else:
        for j in range(lo, hi):
            t = sign * (h[j] - own)
            e = math.exp(-abs(t))
            values[j - lo], slopes[j - lo] = (1.0 if t >= 0.0 else e) / (1.0 + e), e / ((1.0 + e) * (1.0 + e))


@njit(cache=True, fastmath=SUMS)
def _estimate(form: Form, batch: Batch, h: Array, room: Room) -> None:
    """g of every outer position."""
    values, weight, inner = room.values, batch.weight, room.inner
    for i in range(len(h)):
        if batch.scale[i] == 0.0:
            continue
        lo, hi = batch.lo[i], batch.hi[i]
        _compare(form, h, h[i], lo, hi, values, room.slopes[i])
        for k in range(len(weight)):
            total = form.own_shift * weight[k, i]
            for j in range(lo, hi):
                total += weight[k, j] * values[j - lo]
            inner[i, k] = total


@njit(cache=True, fastmath=SUMS)
def _pull(form: Form, batch: Batch, h: Array, room: Room, gradient: Array) -> None:
    """Carry the derivatives in g back to the scores."""
    weight = batch.weight
    for i in range(len(h)):
        if batch.scale[i] == 0.0:
            continue
        lo, hi, slopes, total = batch.lo[i], batch.hi[i], room.slopes[i], 0.0
        for k in range(len(weight)):
            factor = form.sign * room.pull[i, k]
            for j in range(lo, hi):
                flow = factor * weight[k, j] * slopes[j - lo]
                gradient[j] += flow
                total += flow
        gradient[i] -= total


@njit(cache=True, fastmath=SUMS, forceinline=True)
def _far_log_sum(sign: float, batch: Batch, h: Array, lo: int, hi: int, least: float) -> float:
    """The logarithm of a sum that lies far below the batch's highest score, by a peak of its own."""
    peak, total = _LOWEST, 0.0
    for j in range(lo, hi):
        if batch.key[j] >= least and batch.weight[0, j] > 0.0:
            peak = max(peak, sign * h[j])
    for j in range(lo, hi):
        if batch.key[j] >= least:
            total += batch.weight[0, j] * math.exp(sign * h[j] - peak)
    return math.log(total) + peak if total > 0.0 else -math.inf


@njit(cache=True, forceinline=True)
def _same_rivals(batch: Batch, i: int, j: int) -> bool:
    return batch.lo[i] == batch.lo[j] and batch.hi[i] == batch.hi[j] and batch.key[i] == batch.key[j]


@njit(cache=True, fastmath=SUMS)
def _estimate_log(form: Form, batch: Batch, h: Array, room: Room) -> float:
    """log g of every outer position; the peak that ``room.values`` is relative to."""
    sign, key, shares, peak = form.sign, batch.key, room.values, _LOWEST
    for j in range(len(h)):
        peak = max(peak, sign * h[j])
    for j in range(len(h)):
        shares[j] = batch.weight[0, j] * math.exp(sign * h[j] - peak)
    last, log_sum = -1, 0.0
    for i in range(len(h)):
        if batch.scale[i] == 0.0:
            continue
        if last < 0 or not _same_rivals(batch, last, i):
            lo, hi, least, total = batch.lo[i], batch.hi[i], key[i], 0.0
            for j in range(lo, hi):
                total += shares[j] if key[j] >= least else 0.0
            log_sum = math.log(total) + peak if total > _SAFE else _far_log_sum(sign, batch, h, lo, hi, least)
            last = i
        room.inner[i, 0] = log_sum - sign * h[i]
    return peak


@njit(cache=True, fastmath=SUMS, forceinline=True)
def _spread_log(batch: Batch, i: int, factor: float, shares: Array, gradient: Array) -> None:
    """Add to the gradient of each rival of i its share, times ``factor``."""
    least = batch.key[i]
    for j in range(batch.lo[i], batch.hi[i]):
        gradient[j] += factor * (shares[j] if batch.key[j] >= least else 0.0)


@njit(cache=True, fastmath=SUMS)
def _pull_log(form: Form, batch: Batch, h: Array, room: Room, peak: float, gradient: Array) -> None:
    """As :func:`_pull`, from derivatives in log g. Neighbours with the same rivals are carried back as one."""
    sign, shares, last, carried = form.sign, room.values, -1, 0.0
    for i in range(len(h)):
        if batch.scale[i] == 0.0 or room.pull[i, 0] == 0.0:
            continue
        factor, shift = sign * room.pull[i, 0], sign * h[i] + room.inner[i, 0]
        gradient[i] -= factor
        if peak - shift >= _LARGEST_EXPONENT:
            for j in range(batch.lo[i], batch.hi[i]):
                if batch.key[j] >= batch.key[i]:
                    gradient[j] += factor * batch.weight[0, j] * math.exp(sign * h[j] - shift)
            continue
        if last >= 0 and not _same_rivals(batch, last, i):
            _spread_log(batch, last, carried, shares, gradient)
            carried = 0.0
        last, carried = i, carried + factor * math.exp(peak - shift)
    if last >= 0:
        _spread_log(batch, last, carried, shares, gradient)


class _Rate(NamedTuple):
    """gamma, and logarithms that are taken once a step."""

    gamma: float
    log: float
    log_rest: float  # of 1 - gamma
    coverage: float  # n / B1
    log_coverage: float


@njit(cache=True)
def _rate(form: Form, batch: Batch) -> _Rate:
    present = 0.0
    for i in range(len(batch.scale)):
        present += 1.0 if batch.scale[i] > 0.0 else 0.0
    coverage, log_rest = form.n_outer / max(present, 1.0), _LOG_OF_NOTHING
    if form.gamma < 1.0:
        log_rest = math.log1p(-form.gamma)
    return _Rate(form.gamma, math.log(form.gamma), log_rest, coverage, math.log(coverage))


@njit(cache=True, forceinline=True)
def _mix(old: float, new: float, rate: _Rate, log: bool) -> float:
    """(1 - gamma) old + gamma new, of logarithms where ``log``."""
    if not log:
        return old + rate.gamma * (new - old)
    if rate.gamma >= 1.0:
        return new
    first, second = old + rate.log_rest, new + rate.log
    high = max(first, second)
    return high if high == -math.inf else high + math.log1p(math.exp(min(first, second) - high))


@njit(cache=True, forceinline=True)
def _step_row(rule: int, log: bool, rate: _Rate, old: float, estimate: float, age: int) -> tuple[float, float]:
    """The new value of a row, and the one to differentiate f at; ``age``: steps since its last write, 0 for never."""
    if rule == _BSGD:
        return estimate, estimate
    if rule == _MOAP:
        if age == 0:
            old = -math.inf if log else 0.0
        elif age > 1:
            # All rows decay at every step; this step's share is the mixing's.
            decay = (age - 1) * rate.log_rest
            old = old + decay if log else old * math.exp(decay)
        estimate = estimate + rate.log_coverage if log else estimate * rate.coverage
    elif age == 0:
        old = estimate
    new = _mix(old, estimate, rate, log)
    if rule == _SOX:
        return new, (max(old, estimate + rate.log) if log else old)
    return new, new


@njit(cache=True, forceinline=True)
def _outer(form: Form, u: Array) -> float:
    """f at a row of the table."""
    if form.outer == _POWER:
        return math.exp(form.power * u[0]) if form.log else u[0] ** form.power
    if form.outer == _SHARE:
        return -u[0] / u[1]
    if form.outer == _LOG:
        return u[0]
    return -_LOG_2 / math.log1p(u[0])


@njit(cache=True, forceinline=True)
def _outer_slope(form: Form, u: Array, factor: float, out: Array) -> None:
    """``factor`` times the derivative of f in the row, or in its logarithm where the row is one."""
    if form.outer == _POWER:
        height = math.exp(form.power * u[0]) if form.log else u[0] ** (form.power - 1.0)
        out[0] = factor * form.power * height
    elif form.outer == _SHARE:
        out[0] = -factor / u[1]
        out[1] = factor * u[0] / (u[1] * u[1])
    elif form.outer == _LOG:
        out[0] = factor
    else:
        discount = math.log1p(u[0])
        out[0] = factor * _LOG_2 / ((1.0 + u[0]) * discount * discount)


@njit(cache=True)
def _step_table(form: Form, table: Table, batch: Batch, clock: int, room: Room) -> float:
    """Update the rows of the outer positions; ``room.pull`` gets the derivatives in g; the value."""
    dim, value, rate = room.inner.shape[1], 0.0, _rate(form, batch)
    new, at = np.empty(dim), np.empty(dim)
    for i in range(len(batch.rows)):
        scale, row = batch.scale[i], batch.rows[i]
        if scale == 0.0:
            continue
        last = table.written[row]
        age = clock - last if last > 0 else 0
        for k in range(dim):
            new[k], at[k] = _step_row(form.rule, form.log, rate, table.u[row, k], room.inner[i, k], age)
            table.u[row, k] = new[k]
        table.written[row] = clock
        value += scale * _outer(form, new)
        _outer_slope(form, at, scale, room.pull[i])
        if form.log:
            room.pull[i, 0] *= math.exp(room.inner[i, 0] - at[0]) if room.inner[i, 0] > -math.inf else 0.0
    return value


@njit(cache=True)
def pairwise_step(form: Form, table: Table, batch: Batch, h: Array, clock: int, room: Room, gradient: Array) -> float:
    """Take a step of the table, set ``gradient`` to the rule's gradient in the scores, and return the value."""
    gradient[:] = 0.0
    if form.log:
        peak = _estimate_log(form, batch, h, room)
        value = _step_table(form, table, batch, clock, room)
        _pull_log(form, batch, h, room, peak, gradient)
    else:
        _estimate(form, batch, h, room)
        value = _step_table(form, table, batch, clock, room)
        _pull(form, batch, h, room, gradient)
    return value
