r"""Steps of stochastic NCA with plain in-batch sums, compiled from the parts of the estimator's.

For every row i of a batch, embedded as z = A x, over the other rows j of the batch,

.. math:: g_{i1} = \sum_{y_j = y_i} e^{-|z_i - z_j|^2}, \quad g_{i2} = \sum_j e^{-|z_i - z_j|^2}, \quad f(u) = -u_1/u_2

The estimator weighs mates and strangers apart, by the sizes of their classes; here, as in the paper, all weigh alike.
f is the same for all multiples of u, so that sums stand for means.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fcco.estimators._compile import njit
from fcco.estimators._kernels import Array, _Rate, _step_row
from fcco.estimators._nca_kernel import (
    Room,
    Rows,
    Run,
    _cut,
    _descend,
    _differentiate,
    _log,
    _square,
    _subtract,
    _to_distances,
    _to_slopes,
    _to_weights,
    make_room,
)


class How(NamedTuple):
    """How the table is updated, and what it makes of the gradient."""

    code: int  # of fcco.estimators._kernels.RULES
    rate: _Rate
    from_zero: bool  # rows start at 0, not at their first estimate
    factor: float  # of the gradient


@njit(cache=True, error_model="numpy")
def _attract(how: How, run: Run, batch: Array, room: Room, alike: Array) -> None:
    """Step the table and set ``pairs`` to the derivative in the distances."""
    table, clock, kind = run.table, run.clock[0], room.mates.dtype.type
    # Read before any is written: copies of a row, whose estimates are equal, make one step of it.
    old, ages = table.u[batch], clock - table.written[batch]
    room.column_sum[:] = 0.0
    for i in range(len(batch)):
        pairs, row, label = room.pairs[i], batch[i], room.label[i]
        age = ages[i] if how.from_zero or ages[i] < clock else 0
        nearest = _to_distances(pairs, room.norm, i)
        among_mates, among_all = _to_weights(pairs, nearest, room.label, label, kind(1.0), alike)
        of_mates, of_all = _log(among_mates) - nearest, _log(among_all) - nearest
        new_mates, at_mates = _step_row(how.code, True, how.rate, old[i, 0], of_mates, age)
        new_all, at_all = _step_row(how.code, True, how.rate, old[i, 1], of_all, age)
        table.u[row, 0], table.u[row, 1], table.written[row] = new_mates, new_all, clock
        scale = how.factor * math.exp(of_all - at_all) / (len(batch) * among_all)
        share = math.exp(at_mates - at_all)
        room.row_sum[i] = _to_slopes(
            pairs, room.label, label, kind(scale * (1.0 - share)), kind(-scale * share), room.column_sum
        )


@njit(cache=True, nogil=True, error_model="numpy")
def train(how: How, rows: Rows, run: Run, batches: Array, lr: float, beta: float, alpha: float) -> None:
    """Take a step on each of ``batches`` [steps, B]."""
    room = _cut(make_room(rows, run, batches.shape[1]), batches.shape[1])
    alike = np.ones_like(room.strangers)
    for t in range(len(batches)):
        batch = batches[t]
        for i in range(len(batch)):
            _subtract(rows.x[batch[i]], rows.center, room.x[i])
            room.label[i] = rows.label[batch[i]]
        run.clock[0] += 1
        np.dot(room.x, run.a.T, room.z)
        for i in range(len(batch)):
            room.norm[i] = _square(room.z[i])
        np.dot(room.z, room.z.T, room.pairs)
        _attract(how, run, batch, room, alike)
        _differentiate(room)
        _descend(rows, run, room.gradient, lr, beta, alpha)
