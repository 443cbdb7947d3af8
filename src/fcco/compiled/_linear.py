"""The training loop of a linear model on a pairwise objective, compiled: batch, scores, table, momentum and step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fcco.compiled._compile import SUMS, njit
from fcco.compiled._pairs import (
    Objective,
    PairBatch,
    Workspace,
    carry_back,
    carry_back_log,
    estimate,
    estimate_log,
    new_batch,
    new_workspace,
    step_table,
)
from fcco.compiled._rules import Array, Table, TableUpdate, new_table
from fcco.compiled._sampling import (
    ClassSampler,
    ListSampler,
    Stream,
    fill_from_classes,
    fill_from_lists,
    new_stream,
)


class LinearState(NamedTuple):
    """Everything that changes from step to step."""

    w: Array  # [d]
    v: Array  # [d]: the moving average of the gradient
    table: Table
    stream: Stream
    clock: Array  # [1]: steps taken


def new_state(w: Array, n: int, dim: int, first: Array, second: Array, seed: int) -> LinearState:
    """Return the state before the first step.

    Parameters
    ----------
    w : ndarray of shape (d,)
        The first coefficients.
    n, dim : int
        The rows of the table, and the inner values of each.
    first, second : ndarray of int
        What is visited: the rows of the two classes, or the numbers of the lists and nothing.
    seed : int
        Seed of the batches.
    """
    stream = new_stream(first, second, seed)
    return LinearState(np.array(w, np.float64), np.zeros(len(w)), new_table(n, dim), stream, np.zeros(1, np.int64))


@njit(borrows=True, fastmath=SUMS)
def _score(x: Array, rows: Array, used: int, w: Array, gathered: Array, scores: Array) -> None:
    """Score some rows, which are copied next to each other because they are needed twice."""
    for i in range(used):
        row, total = rows[i], 0.0
        for k in range(len(w)):
            gathered[i, k] = x[row, k]
        for k in range(len(w)):
            total += gathered[i, k] * w[k]
        scores[i] = total


@njit(borrows=True, fastmath=SUMS)
def _descend(
    w: Array, v: Array, slopes: Array, gathered: Array, used: int, lr: float, scale: Array, beta: float, alpha: float
) -> None:
    """Take a step along the moving average of the gradient."""
    for k in range(len(w)):
        v[k] += beta * (alpha * w[k] - v[k])
    for i in range(used):
        slope = beta * slopes[i]
        for k in range(len(w)):
            v[k] += slope * gathered[i, k]
    for k in range(len(w)):
        w[k] -= lr * scale[k] * v[k]


def _make_loop(fill: Any, estimate: Any, carry_back: Any) -> Any:
    """Return the loop that draws batches by ``fill``; it is compiled for the parts given, and for no others."""

    @njit(cache=True, borrows=True, nogil=True)
    def loop(
        x: Array,
        objective: Objective,
        update: TableUpdate,
        sampler: ClassSampler | ListSampler,
        state: LinearState,
        batch: PairBatch,
        work: Workspace,
        lr: Array,
        scale: Array,
        beta: float,
        alpha: float,
        values: Array,
    ) -> None:
        w, v, table, stream, clock = state
        for t in range(len(lr)):
            used = fill(sampler, stream, batch)
            _score(x, batch.rows, used, w, work.gathered, work.scores)
            clock[0] += 1
            peak = estimate(objective, batch, used, work)
            values[t] = step_table(objective, update, table, batch, used, clock[0], work)
            carry_back(objective, batch, used, work, peak)
            _descend(w, v, work.gradient, work.gathered, used, lr[t], scale, beta, alpha)

    return loop


_LOOPS = {
    (kind, log): _make_loop(fill, *parts)
    for kind, fill in ((ClassSampler, fill_from_classes), (ListSampler, fill_from_lists))
    for log, parts in ((False, (estimate, carry_back)), (True, (estimate_log, carry_back_log)))
}


def train_linear(
    x: Array,
    objective: Objective,
    update: TableUpdate,
    sampler: ClassSampler | ListSampler,
    state: LinearState,
    lr: Array,
    *,
    beta: float,
    alpha: float,
    scale: Array | None = None,
) -> Array:
    """Take a step for every entry of ``lr``.

    Parameters
    ----------
    x : ndarray of shape (n, d)
        The features. A read-only or non-contiguous array is copied.
    objective, update, sampler
        What is minimised, how the table is updated, and how batches are drawn.
    state : LinearState
        Changed in place.
    lr : ndarray of shape (steps,)
        Step sizes.
    beta : float
        Rate of the gradient's moving average.
    alpha : float
        Weight of the penalty alpha/2 |w|².
    scale : ndarray of shape (d,), optional
        Multiplies the step of each feature. By default it is 1.

    Returns
    -------
    ndarray of shape (steps,)
        The estimate of the objective at each step, without the penalty.
    """
    # Read-only arrays are a type of their own, for which everything would be compiled once more.
    x = np.require(x, requirements=["C", "W"])
    dim, values = state.table.u.shape[1], np.empty(len(lr))
    scale = np.ones(x.shape[1]) if scale is None else scale
    batch = new_batch(sampler.size, dim)
    work = new_workspace(sampler.size, 0 if objective.log else sampler.width, dim, x.shape[1])
    loop = _LOOPS[type(sampler), objective.log]
    loop(x, objective, update, sampler, state, batch, work, lr, scale, float(beta), float(alpha), values)
    return values
