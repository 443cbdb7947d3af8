"""One step of any pairwise objective on a batch of scores, compiled: inner estimates, table, gradient.

For every outer position i of a batch of scores h, with weight a_i > 0,

    g_ik = sum over j in [lo_i, hi_i) of  c_jk ℓ(sign (h_j - h_i)).

The table's row takes a step towards g_i, and f is differentiated where the rule says. Arrays and a few codes tell which
objective it is, so that the same code serves p-norm push, average precision, Cox and the listwise objectives.

Where ℓ = exp, all values are logarithms, as in :class:`fcco.CoupledLoss` with ``log=True``. The sums are then over
those j whose key is at least that of i, and take B exponentials rather than one for each pair.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fcco.compiled._compile import SUMS, njit
from fcco.compiled._rules import Array, Table, TableUpdate, rate_of_row, rate_of_step, step_row
from fcco.functional._ramps import HALF_WIDTH

SURROGATES = {"squared_hinge": 0, "hinge": 1, "logistic": 2, "sigmoid": 3, "exp": 4, "ramp": 5}
OUTERS = {"power": 0, "share": 1, "log": 2, "discount": 3}

_SQUARED_HINGE, _HINGE, _LOGISTIC, _SIGMOID, _EXP, _RAMP = SURROGATES.values()
_SLOPE = 1.0 / HALF_WIDTH
_POWER, _SHARE, _LOG, _DISCOUNT = OUTERS.values()
_LOG_2 = math.log(2.0)
_LOWEST = np.finfo(np.float64).min
_SAFE = 1e-200  # a sum of shares above it has lost no digits to underflow
_LARGEST_EXPONENT = -math.log(_SAFE)


class Objective(NamedTuple):
    """The codes and numbers that tell which objective it is."""

    surrogate: int
    margin: float
    sign: float  # of ℓ's argument: +1 for rivals above, -1 for rivals below
    outer: int
    power: float = 1.0  # p of u^p
    own_shift: float = 0.0  # the own term is ℓ(0) + own_shift, with ℓ = exp (1 + own_shift)

    @property
    def log(self) -> bool:
        """Whether inner values are logarithms."""
        return self.surrogate == _EXP


class PairBatch(NamedTuple):
    """The positions of a batch; [B] each, and ``weight`` [dim, B]."""

    rows: Array
    scale: Array  # a: how much f counts; 0 where a position is not an outer one
    key: Array
    lo: Array
    hi: Array
    weight: Array  # c


class Workspace(NamedTuple):
    """Scratch space of a step; the scores go in, and the gradient comes out."""

    scores: Array  # [B]
    gradient: Array  # [B]
    gathered: Array  # [B, d]: the features of the batch
    inner: Array  # [B, dim]: estimates of g, or of its logarithm
    pull: Array  # [B, dim]: derivatives of the objective in them
    values: Array  # [B]: ℓ at the rivals of one position, or e^(sign h), scaled
    slopes: Array  # [B, width]: ℓ' at the rivals of each
    row: Array  # [2, dim]: the new row, and where f is differentiated


def new_batch(size: int, dim: int) -> PairBatch:
    """Return room for a batch of ``size`` positions."""
    return PairBatch(
        np.zeros(size, np.int64),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.zeros((dim, size)),
    )


def new_workspace(size: int, width: int, dim: int, features: int) -> Workspace:
    """Return room for ``size`` positions of at most ``width`` rivals each (0 where ℓ = exp)."""
    shapes = (size, size, (size, features), (size, dim), (size, dim), size, (size, width), (2, dim))
    return Workspace(*(np.zeros(shape) for shape in shapes))


@njit(borrows=True, fastmath=SUMS, forceinline=True)
def _compare(objective: Objective, h: Array, own: float, lo: int, hi: int, values: Array, slopes: Array) -> None:
    """Set ℓ and ℓ' at the rivals of one position, whose score is ``own``."""
    sign, margin = objective.sign, objective.margin
    if objective.surrogate == _SQUARED_HINGE:
        for j in range(lo, hi):
            height = margin + sign * (h[j] - own)
            height = height if height > 0.0 else 0.0
            values[j - lo], slopes[j - lo] = height * height, 2.0 * height
    elif objective.surrogate == _HINGE:
        for j in range(lo, hi):
            height = margin + sign * (h[j] - own)
            values[j - lo], slopes[j - lo] = height if height > 0.0 else 0.0, 1.0 if height > 0.0 else 0.0
    elif objective.surrogate == _LOGISTIC:
        for j in range(lo, hi):
            t = sign * (h[j] - own)
            e = math.exp(-abs(t))
            values[j - lo] = (t if t > 0.0 else 0.0) + math.log1p(e)
            slopes[j - lo] = (1.0 if t >= 0.0 else e) / (1.0 + e)
    elif objective.surrogate == _RAMP:
        for j in range(lo, hi):
            place = sign * (h[j] - own) * _SLOPE
            place = 1.0 if place > 1.0 else (-1.0 if place < -1.0 else place)
            rest = 1.0 - abs(place)
            half = 0.5 * rest * rest  # never below 0, where a fractional power would be NaN
            values[j - lo], slopes[j - lo] = half if place < 0.0 else 1.0 - half, rest * _SLOPE
    else:
        for j in range(lo, hi):
            t = sign * (h[j] - own)
            e = math.exp(-abs(t))
            values[j - lo], slopes[j - lo] = (1.0 if t >= 0.0 else e) / (1.0 + e), e / ((1.0 + e) * (1.0 + e))


@njit(borrows=True, fastmath=SUMS)
def estimate(objective: Objective, batch: PairBatch, used: int, work: Workspace) -> float:
    """Set g of every outer position, and return 0."""
    scale, los, his, weight = batch.scale, batch.lo, batch.hi, batch.weight
    h, values, slopes, inner, own_shift = work.scores, work.values, work.slopes, work.inner, objective.own_shift
    for i in range(used):
        if scale[i] == 0.0:
            continue
        lo, hi = los[i], his[i]
        _compare(objective, h, h[i], lo, hi, values, slopes[i])
        for k in range(len(weight)):
            total = own_shift * weight[k, i]
            for j in range(lo, hi):
                total += weight[k, j] * values[j - lo]
            inner[i, k] = total
    return 0.0


@njit(borrows=True, fastmath=SUMS)
def carry_back(objective: Objective, batch: PairBatch, used: int, work: Workspace, _: float) -> None:
    """Set ``work.gradient``, in the scores, from the derivatives in g."""
    scale, los, his, weight = batch.scale, batch.lo, batch.hi, batch.weight
    sign, gradient, pull, all_slopes = objective.sign, work.gradient, work.pull, work.slopes
    for i in range(used):
        gradient[i] = 0.0
    for i in range(used):
        if scale[i] == 0.0:
            continue
        lo, hi, slopes, total = los[i], his[i], all_slopes[i], 0.0
        for k in range(len(weight)):
            factor = sign * pull[i, k]
            for j in range(lo, hi):
                flow = factor * weight[k, j] * slopes[j - lo]
                gradient[j] += flow
                total += flow
        gradient[i] -= total


@njit(borrows=True, fastmath=SUMS)
def _far_log_sum(sign: float, batch: PairBatch, h: Array, i: int, own_shift: float) -> float:
    """Return the logarithm of a sum that lies far below the batch's highest score, by a peak of its own."""
    peak, total, key, weight, lo, hi = _LOWEST, 0.0, batch.key, batch.weight, batch.lo[i], batch.hi[i]
    for j in range(lo, hi):
        if key[j] >= key[i] and weight[0, j] > 0.0:
            peak = sign * h[j] if sign * h[j] > peak else peak
    for j in range(lo, hi):
        if key[j] >= key[i]:
            total += weight[0, j] * math.exp(sign * h[j] - peak)
    if own_shift != 0.0:
        total += own_shift * weight[0, i] * math.exp(sign * h[i] - peak)
    return math.log(total) + peak if total > 0.0 else -math.inf


@njit(borrows=True, fastmath=SUMS)
def estimate_log(objective: Objective, batch: PairBatch, used: int, work: Workspace) -> float:
    """Set log g of every outer position, and return the peak that ``work.values`` is relative to."""
    scale, key, los, his, weight = batch.scale, batch.key, batch.lo, batch.hi, batch.weight
    h, shares, inner, sign, own_shift = work.scores, work.values, work.inner, objective.sign, objective.own_shift
    peak, last, total = _LOWEST, -1, 0.0
    for j in range(used):
        peak = sign * h[j] if sign * h[j] > peak else peak
    for j in range(used):
        shares[j] = weight[0, j] * math.exp(sign * h[j] - peak)
    for i in range(used):
        if scale[i] == 0.0:
            continue
        lo, hi, least = los[i], his[i], key[i]
        # Neighbours with the same rivals share the sum.
        if last < 0 or los[last] != lo or his[last] != hi or key[last] != least:
            last, total = i, 0.0
            for j in range(lo, hi):
                total += shares[j] if key[j] >= least else 0.0
        own_total = total + own_shift * shares[i]
        if own_total > _SAFE:
            inner[i, 0] = math.log(own_total) + peak - sign * h[i]
        else:
            inner[i, 0] = _far_log_sum(sign, batch, h, i, own_shift) - sign * h[i]
    return peak


@njit(borrows=True, fastmath=SUMS)
def _spread_log(lo: int, hi: int, key: Array, least: float, factor: float, shares: Array, gradient: Array) -> None:
    """Add its share, times ``factor``, to the gradient of each rival."""
    for j in range(lo, hi):
        gradient[j] += factor * (shares[j] if key[j] >= least else 0.0)


@njit(borrows=True, fastmath=SUMS)
def carry_back_log(objective: Objective, batch: PairBatch, used: int, work: Workspace, peak: float) -> None:
    """Do the same from derivatives in log g. Neighbours with the same rivals are carried back as one."""
    scale, key, los, his, weight = batch.scale, batch.key, batch.lo, batch.hi, batch.weight
    h, shares, gradient, inner, pull = work.scores, work.values, work.gradient, work.inner, work.pull
    sign, own_shift, last, carried = objective.sign, objective.own_shift, -1, 0.0
    for i in range(used):
        gradient[i] = 0.0
    for i in range(used):
        if scale[i] == 0.0 or pull[i, 0] == 0.0:
            continue
        lo, hi, factor, shift = los[i], his[i], sign * pull[i, 0], sign * h[i] + inner[i, 0]
        gradient[i] -= factor
        if own_shift != 0.0:
            gradient[i] += factor * own_shift * weight[0, i] * math.exp(sign * h[i] - shift)
        if peak - shift >= _LARGEST_EXPONENT:
            for j in range(lo, hi):
                if key[j] >= key[i]:
                    gradient[j] += factor * weight[0, j] * math.exp(sign * h[j] - shift)
            continue
        if last >= 0 and (los[last] != lo or his[last] != hi or key[last] != key[i]):
            _spread_log(los[last], his[last], key, key[last], carried, shares, gradient)
            carried = 0.0
        last, carried = i, carried + factor * math.exp(peak - shift)
    if last >= 0:
        _spread_log(los[last], his[last], key, key[last], carried, shares, gradient)


@njit(borrows=True)
def _outer(objective: Objective, u: Array, at: Array, factor: float, out: Array) -> float:
    """Return f at u, and set ``out`` to ``factor`` times its derivative at ``at``, or in its logarithm."""
    if objective.outer == _POWER:
        p = objective.power
        if objective.surrogate == _EXP:
            out[0] = factor * p * math.exp(p * at[0])
            return math.exp(p * u[0])
        out[0] = factor * p * at[0] ** (p - 1.0)
        return u[0] ** p
    if objective.outer == _SHARE:
        out[0] = -factor / at[1]
        out[1] = factor * at[0] / (at[1] * at[1])
        return -u[0] / u[1]
    if objective.outer == _LOG:
        out[0] = factor
        return u[0]
    discount = math.log1p(at[0])
    out[0] = factor * _LOG_2 / ((1.0 + at[0]) * discount * discount)
    return -_LOG_2 / math.log1p(u[0])


@njit(borrows=True)
def step_table(
    objective: Objective, update: TableUpdate, table: Table, batch: PairBatch, used: int, clock: int, work: Workspace
) -> float:
    """Update the rows of the outer positions, set ``work.pull`` to the derivatives in g, and return the value."""
    value, present, log, rule, weigh = 0.0, 0.0, objective.surrogate == _EXP, update.rule, update.factor
    inner, pull, new, at, rows, scales = work.inner, work.pull, work.row[0], work.row[1], batch.rows, batch.scale
    u, written, visits = table
    for i in range(used):
        present += 1.0 if scales[i] > 0.0 else 0.0
    of_step = rate_of_step(update, clock, present)
    for i in range(used):
        scale, row = scales[i], rows[i]
        if scale == 0.0:
            continue
        age = clock - written[row] if written[row] > 0 else 0
        rate = rate_of_row(update, of_step, table, row)
        for k in range(len(new)):
            new[k], at[k] = step_row(rule, log, rate, u[row, k], inner[i, k], age)
            u[row, k] = new[k]
        written[row] = clock
        visits[row] += 1
        value += scale * _outer(objective, new, at, scale * weigh, pull[i])
        if log:
            pull[i, 0] *= math.exp(inner[i, 0] - at[0]) if inner[i, 0] > -math.inf else 0.0
    return value
