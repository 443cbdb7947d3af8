"""Steps of neighbourhood components analysis on mini-batches, compiled: distances, table, gradient, step.

For every row i of a batch b, embedded as z = A x,

    g_i1 = sum over mates j of  ω_ij e^(-|z_i - z_j|²),    g_i2 = g_i1 + the same over strangers,    f = -g_i1 / g_i2,

where ω_ij says for how many rows of the training set j stands, as in :func:`fcco.functional.nca_loss`'s estimate with
class sizes. The matrix products are BLAS's; everything else goes row by row through one [B, B] array.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from fcco.estimators._compile import njit
from fcco.estimators._kernels import _LOG_OF_NOTHING, SUMS, Array, Table, _Rate, _step_row

SECOND_RATE = 1e-3  # of the moving average of squared gradients, as in Adam
_MARGIN = 20.0  # what a weight is multiplied with later stays above e^-20
_EPSILON = 1e-30  # far below any squared gradient that is not rounding, where features have a deviation of 1


class Rule(NamedTuple):
    """How the table is updated."""

    code: int  # of fcco.estimators._kernels.RULES
    gamma: float


class Rows(NamedTuple):
    """The training set, which does not change."""

    x: Array  # [n, d]
    label: Array  # [n], classes 0 ... C - 1
    sizes: Array  # [C], members of each class
    center: Array  # [d], subtracted from every row: distances lose no digits to a common offset
    step_scale: Array  # [d], by which the steps of a feature's column are multiplied


class Run(NamedTuple):
    """Everything that changes from step to step."""

    a: Array  # [k, d]
    average: Array  # [k, d], v: the moving average of the gradient
    square: Array  # [k, d], that of its square, times step_scale²; [0, 0]: steps are not normalised by it
    table: Table
    clock: Array  # [1], steps taken


class Room(NamedTuple):
    """Scratch space for batches of at most B rows."""

    x: Array  # [B, d]
    z: Array  # [B, k]
    norm: Array  # [B], |z|²
    pairs: Array  # [B, B]: z zᵀ, then distances, then the derivative in them
    by_row: Array  # [B, k]
    by_column: Array  # [B, k]
    row_sum: Array  # [B], of ``pairs`` in the end
    column_sum: Array  # [B]
    gradient: Array  # [k, d]
    label: Array  # [B]
    members: Array  # [C], members of each class in the batch
    mates: Array  # [B], ω of the own class; < 0: the row has no term
    strangers: Array  # [B], ω of the others


@njit(cache=True)
def mean_and_deviation(x: Array) -> tuple[Array, Array]:
    """Of every feature, without a copy of the data."""
    # Counted from the first row, features that are constant have a deviation of 0 and no rounding.
    first, mean, square = x[0].astype(np.float64), np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for i in range(len(x)):
        row = x[i]
        for j in range(len(row)):
            mean[j] += (row[j] - first[j]) / len(x)
    for i in range(len(x)):
        row = x[i]
        for j in range(len(row)):
            square[j] += (row[j] - first[j] - mean[j]) ** 2 / len(x)
    return (first + mean).astype(x.dtype), np.sqrt(square).astype(x.dtype)


@njit(cache=True, error_model="numpy")
def make_room(rows: Rows, run: Run, size: int) -> Room:
    k, d = run.a.shape
    kind = run.a.dtype
    return Room(
        np.empty((size, d), kind),
        np.empty((size, k), kind),
        np.empty(size, kind),
        np.empty((size, size), kind),
        np.empty((size, k), kind),
        np.empty((size, k), kind),
        np.empty(size, kind),
        np.empty(size, kind),
        np.empty((k, d), kind),
        np.empty(size, np.int32),
        np.zeros(len(rows.sizes), np.int64),
        np.empty(size, kind),
        np.empty(size, kind),
    )


@njit(cache=True, error_model="numpy")
def _cut(room: Room, size: int) -> Room:
    return Room(
        room.x[:size],
        room.z[:size],
        room.norm[:size],
        room.pairs.ravel()[: size * size].reshape(size, size),
        room.by_row[:size],
        room.by_column[:size],
        room.row_sum[:size],
        room.column_sum[:size],
        room.gradient,
        room.label[:size],
        room.members,
        room.mates[:size],
        room.strangers[:size],
    )


@njit(cache=True, error_model="numpy")
def _weigh(rows: Rows, batch: Array, room: Room) -> tuple[int, bool]:
    """Set ω; how many rows have a term, and whether strangers are weighed each by the size of its own class."""
    b, n, present = len(batch), len(rows.label), 0
    for i in range(b):
        room.label[i] = rows.label[batch[i]]
        room.members[room.label[i]] += 1
        present += room.members[room.label[i]] == 1
    by_class, known = present == len(rows.sizes), 0
    for i in range(b):
        size, here = rows.sizes[room.label[i]], room.members[room.label[i]]
        room.mates[i] = (size - 1) / max(here - 1, 1)
        room.strangers[i] = size / here if by_class else (n - size) / max(b - here, 1)
        if (here == 1 and size > 1) or (here == b and size < n) or b == 1:
            room.mates[i] = -1.0
        else:
            known += 1
    for i in range(b):
        room.members[room.label[i]] = 0
    return known, by_class


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _to_distances_from(own: float, products: Array, norm: Array, itself: int) -> float:
    """Turn z · z_j into |z - z_j|² in place, with the largest number there is for z itself; the nearest one."""
    zero, two = products.dtype.type(0.0), products.dtype.type(2.0)
    for j in range(len(products)):
        products[j] = max(own + norm[j] - two * products[j], zero)
    if itself >= 0:
        products[itself] = np.finfo(products.dtype).max
    nearest = products[0]
    for j in range(len(products)):
        nearest = products[j] if products[j] < nearest else nearest
    return nearest


@njit(cache=True, error_model="numpy")
def _to_distances(products: Array, norm: Array, i: int) -> float:
    """The same for row i of those that ``norm`` is of."""
    return _to_distances_from(norm[i], products, norm, i)


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


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _to_weights(
    distances: Array, nearest: float, labels: Array, label: int, mates: float, strangers: Array
) -> tuple[float, float]:
    """Turn distances into ω e^(nearest - distance) in place; the sums over mates and over all."""
    among_mates = among_strangers = nothing = distances.dtype.type(0.0)
    _exp_below(nearest, distances)
    for j in range(len(distances)):
        weight = distances[j] * (mates if labels[j] == label else strangers[j])
        distances[j] = weight
        among_mates += weight if labels[j] == label else nothing
        among_strangers += nothing if labels[j] == label else weight
    # Added up apart, so that without strangers the two are equal to the last digit, and the gradient is 0.
    return among_mates, among_mates + among_strangers


@njit(cache=True, error_model="numpy")
def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _to_slopes(
    weights: Array, labels: Array, label: int, of_mates: float, of_others: float, column_sum: Array
) -> float:
    """Turn weights into the derivative of the loss in the distances, in place; its sum."""
    total = weights.dtype.type(0.0)
    for j in range(len(weights)):
        slope = weights[j] * (of_mates if labels[j] == label else of_others)
        weights[j] = slope
        column_sum[j] += slope
        total += slope
    return total


@njit(cache=True)
def _rate(gamma: float, coverage: float) -> _Rate:
    log_rest = math.log1p(-gamma) if gamma < 1.0 else _LOG_OF_NOTHING
    return _Rate(gamma, math.log(gamma), log_rest, coverage, math.log(coverage))


@njit(cache=True, error_model="numpy")
def _attract(rule: Rule, table: Table, batch: Array, room: Room, by_class: bool, known: int, clock: int) -> float:
    """Step the table, set ``pairs`` to the derivative in the distances, and return the value."""
    value, rate = 0.0, _rate(rule.gamma, len(table.u) / known)
    room.column_sum[:] = 0.0
    kind, strangers = room.mates.dtype.type, room.strangers if by_class else np.empty_like(room.strangers)
    for i in range(len(batch)):
        pairs, row, label = room.pairs[i], batch[i], room.label[i]
        if room.mates[i] < 0.0:
            pairs[:] = room.row_sum[i] = 0.0
            continue
        if not by_class:
            strangers[:] = room.strangers[i]
        nearest = _to_distances(pairs, room.norm, i)
        among_mates, among_all = _to_weights(pairs, nearest, room.label, label, room.mates[i], strangers)
        of_mates, of_all = _log(among_mates) - nearest, _log(among_all) - nearest
        age = clock - table.written[row] if table.written[row] > 0 else 0
        new_mates, at_mates = _step_row(rule.code, True, rate, table.u[row, 0], of_mates, age)
        new_all, at_all = _step_row(rule.code, True, rate, table.u[row, 1], of_all, age)
        table.u[row, 0], table.u[row, 1], table.written[row] = new_mates, new_all, clock
        value -= math.exp(new_mates - new_all) / known
        # f' in log u_1, times g_1 / u_1, has no u_1 left in it: both sums are carried by the ratio g_2 / u_2.
        factor, share = math.exp(of_all - at_all) / (known * among_all), math.exp(at_mates - at_all)
        room.row_sum[i] = _to_slopes(
            pairs, room.label, label, kind(factor * (1.0 - share)), kind(-factor * share), room.column_sum
        )
    return value


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _subtract(first: Array, second: Array, out: Array) -> None:
    for j in range(len(out)):
        out[j] = first[j] - second[j]


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _square(values: Array) -> float:
    total = values.dtype.type(0.0)
    for j in range(len(values)):
        total += values[j] * values[j]
    return total


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _spread(total: float, z: Array, by_row: Array, by_column: Array) -> None:
    for k in range(len(z)):
        z[k] = 2 * (total * z[k] - by_row[k] - by_column[k])


@njit(cache=True, error_model="numpy")
def _differentiate(room: Room) -> None:
    """Set ``gradient`` from the derivative W in the distances: 2 ((r + c) z - (W + Wᵀ) z)ᵀ x, by W's sums r and c."""
    np.dot(room.pairs, room.z, room.by_row)
    np.dot(room.pairs.T, room.z, room.by_column)
    for i in range(len(room.z)):
        _spread(room.row_sum[i] + room.column_sum[i], room.z[i], room.by_row[i], room.by_column[i])
    np.dot(room.z.T, room.x, room.gradient)


@njit(cache=True, error_model="numpy")
def _embed(rows: Rows, a: Array, chosen: Array, x: Array, z: Array, norm: Array) -> None:
    for i in range(len(chosen)):
        _subtract(rows.x[chosen[i]], rows.center, x[i])
    np.dot(x, a.T, z)
    for i in range(len(chosen)):
        norm[i] = _square(z[i])


@njit(cache=True, error_model="numpy")
def _estimate(rule: Rule, rows: Rows, run: Run, batch: Array, room: Room) -> tuple[float, int]:
    """Take a step of the table, and set ``gradient`` to the rule's gradient; the value, and of how many rows it is."""
    known, by_class = _weigh(rows, batch, room)
    run.clock[0] += 1
    _embed(rows, run.a, batch, room.x, room.z, room.norm)
    np.dot(room.z, room.z.T, room.pairs)
    value = _attract(rule, run.table, batch, room, by_class, max(known, 1), run.clock[0])
    _differentiate(room)
    return value, known


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _average(gradient: Array, a: Array, beta: float, alpha: float, average: Array) -> None:
    for j in range(len(a)):
        average[j] += beta * (gradient[j] + alpha * a[j] - average[j])


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _average_square(gradient: Array, a: Array, rate: float, alpha: float, scale: Array, square: Array) -> None:
    for j in range(len(a)):
        # By the feature's deviation, so that small units do not bring it near what counts as rounding.
        slope = scale[j] * (gradient[j] + alpha * a[j])
        square[j] += rate * (slope * slope - square[j])


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _move(a: Array, lr: float, scale: Array, average: Array) -> None:
    for j in range(len(a)):
        a[j] -= lr * scale[j] * average[j]


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _move_normalised(a: Array, lr: float, scale: Array, average: Array, square: Array, epsilon: float) -> None:
    for j in range(len(a)):
        a[j] -= lr * scale[j] * (scale[j] * average[j] / np.sqrt(square[j] + epsilon))


@njit(cache=True, error_model="numpy")
def _descend(rows: Rows, run: Run, gradient: Array, lr: float, beta: float, alpha: float) -> None:
    """A step along the average of the gradient, which ``square``, if it is kept, normalises entry by entry."""
    kind, t = run.a.dtype.type, run.clock[0]
    normalise = run.square.size > 0
    # Both averages start from 0, and are divided by the weight that they have gathered since.
    gathered = math.sqrt(1.0 - (1.0 - SECOND_RATE) ** t) / (1.0 - (1.0 - beta) ** t)
    step = kind(lr * gathered if normalise else lr)
    for k in range(len(run.a)):
        a, slope, average = run.a[k], gradient[k], run.average[k]
        _average(slope, a, kind(beta), kind(alpha), average)
        if normalise:
            _average_square(slope, a, kind(SECOND_RATE), kind(alpha), rows.step_scale, run.square[k])
            _move_normalised(a, step, rows.step_scale, average, run.square[k], kind(_EPSILON))
        else:
            _move(a, step, rows.step_scale, average)


@njit(cache=True, nogil=True, error_model="numpy")
def train(
    rows: Rows,
    rule: Rule,
    run: Run,
    order: Array,
    bounds: Array,
    lr: Array,
    beta: float,
    alpha: float,
    values: Array,
    known: Array,
) -> None:
    """Take a step on each batch order[bounds[t] : bounds[t + 1]].

    ``values`` gets the batches' estimates of the objective, 0 where no row has a term, and ``known`` how many have.
    """
    room = make_room(rows, run, int(np.max(bounds[1:] - bounds[:-1])))
    for t in range(len(lr)):
        batch = order[bounds[t] : bounds[t + 1]]
        here = _cut(room, len(batch))
        values[t], known[t] = _estimate(rule, rows, run, batch, here)
        _descend(rows, run, here.gradient, lr[t], beta, alpha)
