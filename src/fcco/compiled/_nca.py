"""Neighbourhood components analysis on mini-batches, compiled: distances, table, gradient and step.

For every row i of a batch, embedded as z = A x,

    g_i1 = sum over mates j of  ω_ij e^(-|z_i - z_j|²),    g_i2 = the same over strangers,    f = -g_i1 / (g_i1 + g_i2).

A mate is another row of the same class, and a stranger a row of another class. ω_ij says for how many rows of the
training set j stands, as in the estimate of :class:`fcco.losses.NCALoss` with class sizes. The matrix products are left
to BLAS. Everything else goes row by row through one [B, B] array.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from fcco.compiled._compile import SUMS, njit
from fcco.compiled._rules import Array, Table, TableUpdate, new_table, rate_of_row, rate_of_step, step_row

SECOND_RATE = 1e-3  # of the moving average of squared gradients, as in Adam
_MARGIN = 20.0  # what a weight is multiplied with later stays above e^-20
_EPSILON = 1e-30  # far below any squared gradient that is not rounding, where features have a deviation of 1


class NCARows(NamedTuple):
    """The training set, which does not change."""

    x: Array  # [n, d]
    label: Array  # [n] of int32: classes 0 ... C - 1
    sizes: Array  # [C]: members of each class
    center: Array  # [d]: subtracted from every row, so that distances lose no digits to a common offset
    step_scale: Array  # [d]: multiplies the steps of a feature's column


class NCAState(NamedTuple):
    """Everything that changes from step to step."""

    a: Array  # [k, d]
    average: Array  # [k, d]: v, the moving average of the gradient
    square: Array  # [k, d]: that of its square, times step_scale²; [0, 0] if steps are not normalised by it
    table: Table
    clock: Array  # [1]: steps taken


class _Workspace(NamedTuple):
    """Scratch space for batches of at most B rows."""

    x: Array  # [B, d]
    z: Array  # [B, k]
    norm: Array  # [B]: |z|²
    pairs: Array  # [B * B]: z zᵀ, then distances, then the derivative in them
    by_row: Array  # [B, k]
    by_column: Array  # [B, k]
    row_sum: Array  # [B]: of ``pairs`` in the end
    column_sum: Array  # [B]
    gradient: Array  # [k, d]
    label: Array  # [B]
    members: Array  # [C]: members of each class in the batch
    mates: Array  # [B]: ω of the own class; negative if the row has no term
    strangers: Array  # [B]: ω of the others
    constant: Array  # [B]: ω of the others of one row, where it is the same for all of them
    old: Array  # [B, 2]: the rows of the table before the step
    written: Array  # [B]


def nca_rows(x: Array, label: Array, center: Array, step_scale: Array | None = None) -> NCARows:
    """Return the training set as the kernels take it.

    Parameters
    ----------
    x : ndarray of shape (n, d)
    label : ndarray of shape (n,)
        Classes, numbered from 0.
    center : ndarray of shape (d,)
    step_scale : ndarray of shape (d,), optional
        By default it is 1.
    """
    # Read-only arrays are a type of their own, for which everything would be compiled once more.
    x, center = np.require(x, requirements=["C", "W"]), np.asarray(center, x.dtype)
    step_scale = np.ones_like(center) if step_scale is None else np.asarray(step_scale, x.dtype)
    return NCARows(x, label.astype(np.int32), np.bincount(label), center, step_scale)


def nca_state(a: Array, n: int, *, normalise: bool) -> NCAState:
    """Return the state before the first step, which starts at a copy of ``a``, of shape (k, d)."""
    square = np.zeros_like(a) if normalise else np.zeros((0, 0), a.dtype)
    return NCAState(a.copy(), np.zeros_like(a), square, new_table(n, 2), np.zeros(1, np.int64))


def _new_workspace(rows: NCARows, state: NCAState, size: int) -> _Workspace:
    (k, d), b, kind = state.a.shape, size, state.a.dtype

    def numbers(*shape: int) -> Array:
        return np.empty(shape, kind)

    return _Workspace(
        x=numbers(b, d),
        z=numbers(b, k),
        norm=numbers(b),
        pairs=numbers(b * b),
        by_row=numbers(b, k),
        by_column=numbers(b, k),
        row_sum=numbers(b),
        column_sum=numbers(b),
        gradient=numbers(k, d),
        label=np.empty(b, np.int32),
        members=np.zeros(len(rows.sizes), np.int64),
        mates=numbers(b),
        strangers=numbers(b),
        constant=numbers(b),
        old=np.empty((b, 2)),
        written=np.empty(b, np.int64),
    )


@njit()
def _weigh(rows: NCARows, batch: Array, work: _Workspace, weighted: bool) -> tuple[int, bool]:
    """Set ω; return how many rows have a term, and whether strangers are weighed each by the size of its own class."""
    b, n, present = len(batch), len(rows.label), 0
    for i in range(b):
        work.label[i] = rows.label[batch[i]]
        work.mates[i] = work.strangers[i] = 1.0
    if not weighted:
        return b, True
    for i in range(b):
        work.members[work.label[i]] += 1
        present += work.members[work.label[i]] == 1
    by_class, known = present == len(rows.sizes), 0
    for i in range(b):
        size, here = rows.sizes[work.label[i]], work.members[work.label[i]]
        work.mates[i] = (size - 1) / max(here - 1, 1)
        work.strangers[i] = size / here if by_class else (n - size) / max(b - here, 1)
        if (here == 1 and size > 1) or (here == b and size < n) or b == 1:
            work.mates[i] = -1.0
        else:
            known += 1
    for i in range(b):
        work.members[work.label[i]] = 0
    return known, by_class


@njit(fastmath=SUMS)
def to_distances(own: float, products: Array, norm: Array, itself: int) -> float:
    """Turn z · z_j into |z - z_j|² in place, and return the nearest; |z|² is ``own``.

    The distance of z to itself, if it is among the rows (``itself`` >= 0), is set to the largest number there is.
    """
    zero, two = products.dtype.type(0.0), products.dtype.type(2.0)
    for j in range(len(products)):
        products[j] = max(own + norm[j] - two * products[j], zero)
    if itself >= 0:
        products[itself] = np.finfo(products.dtype).max
    nearest = products[0]
    for j in range(len(products)):
        nearest = products[j] if products[j] < nearest else nearest
    return nearest


def _exp_below(peak: float, values: Array) -> None:
    """Turn each value into e^(peak - value), in place; 0 where that is too small to count next to 1."""
    raise NotImplementedError


@overload(_exp_below, jit_options={"fastmath": SUMS, "error_model": "numpy"})
def _exp_below_compiled(peak: Any, values: Any) -> Any:
    """By e^x = 2^k e^r with |r| <= log(2) / 2, and a polynomial: unlike calls of libm, loops of it are vectorised."""
    single = values.dtype.bitwidth == 32
    kind, integer, bias, places = (np.float32, np.int32, 127, 23) if single else (np.float64, np.int64, 1023, 52)
    # log 2 in two parts, such that k times the first is exact.
    high = kind(0.693359375 if single else 0.6931471803691238)
    low = kind(-2.12194440e-4 if single else 1.9082149292705877e-10)
    per_log2, half, offset, shift = kind(1 / math.log(2)), kind(0.5), integer(bias), integer(places)
    terms = tuple(kind(1 / math.factorial(k)) for k in range(7 if single else 13, -1, -1))
    # What is smaller counts for nothing next to 1, and would slow the products down as a subnormal number.
    lowest, nothing = kind(math.log(np.finfo(kind).tiny) + _MARGIN), kind(0.0)

    def implementation(peak: Any, values: Any) -> Any:
        powers = np.empty(len(values), kind)
        bits = powers.view(integer)
        for j in range(len(values)):
            x = peak - values[j]
            within = max(x, lowest)
            k = np.floor(within * per_log2 + half)
            r = (within - k * high) - k * low
            total = nothing
            for term in terms:
                total = total * r + term
            bits[j] = (integer(k) + offset) << shift
            values[j] = total if x > lowest else nothing
        for j in range(len(values)):
            values[j] *= powers[j]

    return implementation


@njit(fastmath=SUMS)
def to_weights(
    distances: Array, nearest: float, labels: Array, label: int, mates: float, strangers: Array
) -> tuple[float, float]:
    """Turn distances into ω e^(nearest - distance) in place; the sums over mates and over strangers."""
    among_mates = among_strangers = nothing = distances.dtype.type(0.0)
    _exp_below(nearest, distances)
    for j in range(len(distances)):
        weight = distances[j] * (mates if labels[j] == label else strangers[j])
        distances[j] = weight
        among_mates += weight if labels[j] == label else nothing
        among_strangers += nothing if labels[j] == label else weight
    return among_mates, among_strangers


@njit()
def log_of_both(one: float, other: float) -> float:
    """Return log(e^one + e^other), of which not both are 0."""
    return max(one, other) + math.log1p(math.exp(min(one, other) - max(one, other)))


@njit(fastmath=SUMS)
def to_slopes(weights: Array, labels: Array, label: int, of_mates: float, of_others: float, column_sum: Array) -> float:
    """Turn weights into the derivative of the loss in the distances, in place; its sum."""
    total = weights.dtype.type(0.0)
    for j in range(len(weights)):
        slope = weights[j] * (of_mates if labels[j] == label else of_others)
        weights[j] = slope
        column_sum[j] += slope
        total += slope
    return total


@njit()
def _attract(
    update: TableUpdate, state: NCAState, batch: Array, pairs: Array, work: _Workspace, by_class: bool, known: int
) -> float:
    """Step the table, set ``pairs`` to the derivative in the distances, and return the value."""
    table, clock, kind, value = state.table, state.clock[0], work.mates.dtype.type, 0.0
    of_step = rate_of_step(update, clock, float(known))
    strangers = work.strangers if by_class else work.constant
    for i in range(len(batch)):
        # Read before any is written: copies of a row, whose estimates are equal, make one step of it.
        work.old[i, 0], work.old[i, 1] = table.u[batch[i], 0], table.u[batch[i], 1]
        work.written[i], work.column_sum[i] = table.written[batch[i]], 0.0
    for i in range(len(batch)):
        distances, row, label = pairs[i], batch[i], work.label[i]
        if work.mates[i] < 0.0:
            work.row_sum[i] = 0.0
            for j in range(len(distances)):
                distances[j] = 0.0
            continue
        if not by_class:
            for j in range(len(batch)):
                strangers[j] = work.strangers[i]
        nearest = to_distances(work.norm[i], distances, work.norm, i)
        among_mates, among_strangers = to_weights(distances, nearest, work.label, label, work.mates[i], strangers)
        of_mates = np.log(np.float64(among_mates)) - nearest
        of_strangers = np.log(np.float64(among_strangers)) - nearest
        age = clock - work.written[i] if work.written[i] > 0 else 0
        rate = rate_of_row(update, of_step, table, row)
        new_mates, at_mates = step_row(update.rule, True, rate, work.old[i, 0], of_mates, age)
        new_strangers, at_strangers = step_row(update.rule, True, rate, work.old[i, 1], of_strangers, age)
        table.u[row, 0], table.u[row, 1], table.written[row] = new_mates, new_strangers, clock
        table.visits[row] += 1
        value -= math.exp(new_mates - log_of_both(new_mates, new_strangers)) / known
        # f' is -(1 - share) / (u_1 + u_2) in u_1, and share / (u_1 + u_2) in u_2.
        at_all = log_of_both(at_mates, at_strangers)
        factor = update.factor * math.exp(-nearest - at_all) / known
        share = math.exp(at_mates - at_all)
        work.row_sum[i] = to_slopes(
            distances, work.label, label, kind(factor * (1.0 - share)), kind(-factor * share), work.column_sum
        )
    return value


@njit(fastmath=SUMS)
def _embed(rows: NCARows, a: Array, batch: Array, x: Array, z: Array, norm: Array) -> None:
    for i in range(len(batch)):
        row = batch[i]
        for j in range(x.shape[1]):
            x[i, j] = rows.x[row, j] - rows.center[j]
    np.dot(x, a.T, z)
    for i in range(len(batch)):
        total = z.dtype.type(0.0)
        for j in range(z.shape[1]):
            total += z[i, j] * z[i, j]
        norm[i] = total


@njit(fastmath=SUMS)
def _differentiate(pairs: Array, x: Array, z: Array, by_row: Array, by_column: Array, work: _Workspace) -> None:
    """Set ``gradient`` from the derivative W in the distances: 2 ((r + c) z - (W + Wᵀ) z)ᵀ x, by W's sums r and c."""
    np.dot(pairs, z, by_row)
    np.dot(pairs.T, z, by_column)
    for i in range(len(z)):
        total = work.row_sum[i] + work.column_sum[i]
        for k in range(z.shape[1]):
            z[i, k] = 2 * (total * z[i, k] - by_row[i, k] - by_column[i, k])
    np.dot(z.T, x, work.gradient)


@njit(fastmath=SUMS)
def _descend(rows: NCARows, state: NCAState, gradient: Array, lr: float, beta: float, alpha: float) -> None:
    """Take a step along the average of the gradient, which ``square``, if it is kept, normalises entry by entry."""
    kind, t, scale = state.a.dtype.type, state.clock[0], rows.step_scale
    normalise = state.square.size > 0
    # Both averages start from 0, and are divided by the weight that they have gathered since.
    gathered = math.sqrt(1.0 - (1.0 - SECOND_RATE) ** t) / (1.0 - (1.0 - beta) ** t)
    step, rate, second = kind(lr * gathered if normalise else lr), kind(beta), kind(SECOND_RATE)
    penalty, epsilon = kind(alpha), kind(_EPSILON)
    for k in range(len(state.a)):
        a, average = state.a[k], state.average[k]
        for j in range(len(a)):
            gradient[k, j] += penalty * a[j]
            average[j] += rate * (gradient[k, j] - average[j])
        if normalise:
            square = state.square[k]
            for j in range(len(a)):
                # By the feature's deviation, so that small units do not bring it near what counts as rounding.
                slope = scale[j] * gradient[k, j]
                square[j] += second * (slope * slope - square[j])
                a[j] -= step * scale[j] * (scale[j] * average[j] / np.sqrt(square[j] + epsilon))
        else:
            for j in range(len(a)):
                a[j] -= step * scale[j] * average[j]


@njit(cache=True, nogil=True)
def _loop(
    rows: NCARows,
    update: TableUpdate,
    state: NCAState,
    work: _Workspace,
    order: Array,
    bounds: Array,
    lr: Array,
    beta: float,
    alpha: float,
    weighted: bool,
    values: Array,
    known: Array,
) -> None:
    for t in range(len(lr)):
        batch = order[bounds[t] : bounds[t + 1]]
        b = len(batch)
        x, z, pairs = work.x[:b], work.z[:b], work.pairs[: b * b].reshape(b, b)
        known[t], by_class = _weigh(rows, batch, work, weighted)
        state.clock[0] += 1
        _embed(rows, state.a, batch, x, z, work.norm)
        np.dot(z, z.T, pairs)
        values[t] = _attract(update, state, batch, pairs, work, by_class, max(known[t], 1))
        _differentiate(pairs, x, z, work.by_row[:b], work.by_column[:b], work)
        _descend(rows, state, work.gradient, lr[t], beta, alpha)


def train_nca(
    rows: NCARows,
    update: TableUpdate,
    state: NCAState,
    order: Array,
    bounds: Array,
    lr: Array,
    *,
    beta: float,
    alpha: float,
    weighted: bool = True,
) -> tuple[Array, Array]:
    """Take a step on each batch order[bounds[t] : bounds[t + 1]].

    Parameters
    ----------
    rows : NCARows
    update : TableUpdate
    state : NCAState
        Changed in place.
    order, bounds : ndarray of int
        The rows of all batches, and where each begins and ends.
    lr : ndarray of shape (steps,)
        Step sizes.
    beta : float
        Rate of the gradient's moving average.
    alpha : float
        Weight of the penalty alpha/2 |A|².
    weighted : bool, default=True
        Whether mates and strangers stand for all rows of their kind. If not, all pairs of a batch weigh alike, as in
        the paper.

    Returns
    -------
    values : ndarray of shape (steps,)
        The estimate of the objective at each step, without the penalty; 0 where no row has a term.
    known : ndarray of shape (steps,)
        How many rows of each batch have a term.
    """
    values, known = np.zeros(len(lr)), np.zeros(len(lr), np.int64)
    work = _new_workspace(rows, state, int(np.max(np.diff(bounds))))
    _loop(rows, update, state, work, order, bounds, lr, float(beta), float(alpha), weighted, values, known)
    return values, known
