"""Training a linear model on a pairwise objective, compiled: sampling, scores, table, momentum and step in one loop."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcco.estimators._compile import njit
from fcco.estimators._kernels import SUMS, Array, Batch, Form, Room, Table, make_room, pairwise_step

PUSH, PRECISION, WHOLE, LISTS, ITEMS = range(5)  # how batches are drawn; see Draws

_NO_INTS = np.zeros(0, np.int64)
_NO_FLAGS = np.zeros(0, np.bool_)


class Draws(NamedTuple):
    """How batches are drawn, and what is known of each row.

    - PUSH, PRECISION: ``outer`` rows of the first class, then ``inner`` of the second. The rivals of an outer position
      are those of the second class (PUSH), or all (PRECISION, whose two sums are over the first class and over all).
    - WHOLE: ``outer`` rows of all, each the rival of each.
    - LISTS, ITEMS: ``outer`` lists, of each at most ``inner`` items, rivals within their list. The objective is a mean
      over the lists that have a relevant item, or over all items. Where a list is drawn in part, relevant and
      irrelevant items are weighed so that each kind stands for all of it, as :mod:`fcco.losses` does.

    Batches are smaller where there are fewer rows.
    """

    kind: int
    outer: int
    inner: int
    gain: Array  # [n]: how much f of a row counts; 0: it is never an outer one
    key: Array  # [n]: rivals have a key at least as large
    share: Array  # [2]: of each class in the population
    starts: Array = _NO_INTS  # of LISTS: where each list begins in ``members``, and where the last ends
    members: Array = _NO_INTS  # rows, list by list; in an order that changes
    relevant: Array = _NO_FLAGS  # [n]
    relevant_in: Array = _NO_INTS  # relevant items of each list


class Run(NamedTuple):
    """Everything that changes from step to step."""

    w: Array
    v: Array
    table: Table
    order: Array  # rows of the first class, or all, or the numbers of the lists; as shuffled
    other_order: Array  # rows of the second class
    cursor: Array  # [2]: how far each pass has come
    clock: Array  # [1]: steps taken
    state: Array  # [1] of uint64: of the random numbers


def new_run(w: Array, n: int, dim: int, first: Array, second: Array, seed: int) -> Run:
    """A run from w, with an empty table of n rows, that draws from ``first`` and ``second`` (which may be empty)."""
    return Run(
        np.array(w, np.float64),
        np.zeros(len(w)),
        Table(np.zeros((n, dim)), np.zeros(n, np.int64)),
        np.array(first, np.int64),
        np.array(second, np.int64),
        np.array([len(first), len(second)], np.int64),
        np.zeros(1, np.int64),
        np.array([seed], np.uint64),
    )


@njit(cache=True)
def draw(state: Array, bound: int) -> int:
    """A random integer below ``bound`` (splitmix64)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return int(np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0) * bound)


@njit(cache=True)
def shuffle(state: Array, values: Array) -> None:
    """Into a random order, in place."""
    for i in range(len(values) - 1, 0, -1):
        j = draw(state, i + 1)
        values[i], values[j] = values[j], values[i]


@njit(cache=True)
def _next(state: Array, order: Array, cursor: Array, which: int, count: int) -> Array:
    """The next ``count`` of a pass, or all; a new pass begins where too few are left."""
    count = min(count, len(order))
    if cursor[which] + count > len(order):
        shuffle(state, order)
        cursor[which] = 0
    begin = cursor[which]
    cursor[which] += count
    return order[begin : begin + count]


@njit(cache=True)
def empty_batch(draws: Draws, dim: int) -> Batch:
    """Room for any batch."""
    size = draws.outer * draws.inner if draws.kind >= LISTS else draws.outer + draws.inner
    return Batch(
        np.zeros(size, np.int64),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.zeros((dim, size)),
    )


@njit(cache=True)
def fill_batch(draws: Draws, run: Run, batch: Batch) -> int:
    """Draw a batch; how many positions of it are used."""
    if draws.kind >= LISTS:
        return _fill_lists(draws, run, batch)
    first = _next(run.state, run.order, run.cursor, 0, draws.outer)
    second = _next(run.state, run.other_order, run.cursor, 1, draws.inner)
    m, size, counted = len(first), len(first) + len(second), 0.0
    batch.rows[:m] = first
    batch.rows[m:size] = second
    for i in range(size):
        row = batch.rows[i]
        batch.key[i] = draws.key[row]
        batch.scale[i] = draws.gain[row] if i < m else 0.0
        counted += 1.0 if batch.scale[i] > 0.0 else 0.0
        batch.lo[i], batch.hi[i] = (m if draws.kind == PUSH else 0), size
        if draws.kind == PRECISION:
            batch.weight[0, i] = draws.share[0] / m if i < m else 0.0
            batch.weight[1, i] = draws.share[0] / m if i < m else draws.share[1] / (size - m)
        else:
            batch.weight[0, i] = 1.0 / (size - m) if draws.kind == PUSH else 1.0 / m
    for i in range(m):
        batch.scale[i] /= max(counted, 1.0)
    return size


@njit(cache=True)
def _take_list(draws: Draws, state: Array, which: int, used: int, rows: Array) -> int:
    """Put rows of a list behind the ``used`` first ones of a batch; how many."""
    begin, end = draws.starts[which], draws.starts[which + 1]
    length = end - begin
    taken = min(length, draws.inner)
    for i in range(taken):
        # A list that is longer is shuffled as far as it is used.
        if length > taken:
            j = begin + i + draw(state, length - i)
            draws.members[begin + i], draws.members[j] = draws.members[j], draws.members[begin + i]
        rows[used + i] = draws.members[begin + i]
    return taken


@njit(cache=True)
def _fill_lists(draws: Draws, run: Run, batch: Batch) -> int:
    used, total = 0, 0.0
    for which in _next(run.state, run.order, run.cursor, 0, draws.outer):
        taken = _take_list(draws, run.state, which, used, batch.rows)
        length, relevant = draws.starts[which + 1] - draws.starts[which], draws.relevant_in[which]
        found = 0
        for i in range(used, used + taken):
            found += draws.relevant[batch.rows[i]]
        each = (length - relevant) / max(taken - found, 1)
        # Relevant items alone stand for the irrelevant ones too; to the latter the former do not matter, or have no f.
        each_relevant = (relevant if found < taken else length) / max(found, 1)
        for i in range(used, used + taken):
            row = batch.rows[i]
            batch.key[i], batch.lo[i], batch.hi[i] = draws.key[row], used, used + taken
            batch.weight[0, i] = each_relevant if draws.relevant[row] else each
            batch.scale[i] = draws.gain[row]
            if draws.kind == ITEMS:
                stratum = relevant / found if draws.relevant[row] else each
                batch.scale[i] *= stratum * taken / length
                total += batch.scale[i]
        if draws.kind == LISTS and relevant > 0:
            total += found / relevant
        used += taken
    for i in range(used):
        batch.scale[i] /= total if total > 0.0 else 1.0
    return used


@njit(cache=True)
def cut(batch: Batch, used: int) -> Batch:
    """The positions that are used."""
    return Batch(
        batch.rows[:used],
        batch.scale[:used],
        batch.key[:used],
        batch.lo[:used],
        batch.hi[:used],
        batch.weight[:, :used],
    )


@njit(cache=True, fastmath=SUMS)
def _score(x: Array, rows: Array, w: Array, gathered: Array, scores: Array) -> None:
    """Scores of some rows, which are copied next to each other: they are needed twice."""
    for i in range(len(rows)):
        row, total = rows[i], 0.0
        for k in range(len(w)):
            gathered[i, k] = x[row, k]
        for k in range(len(w)):
            total += gathered[i, k] * w[k]
        scores[i] = total


@njit(cache=True, fastmath=SUMS)
def _descend(run: Run, gathered: Array, slopes: Array, lr: float, scale: Array, beta: float, alpha: float) -> None:
    """A step along the moving average of the gradient."""
    w, v = run.w, run.v
    for k in range(len(w)):
        v[k] += beta * (alpha * w[k] - v[k])
    for i in range(len(slopes)):
        slope = beta * slopes[i]
        for k in range(len(w)):
            v[k] += slope * gathered[i, k]
    for k in range(len(w)):
        w[k] -= lr * scale[k] * v[k]


@njit(cache=True)
def _make_room(draws: Draws, form: Form, dim: int) -> Room:
    size = draws.outer * draws.inner if draws.kind >= LISTS else draws.outer + draws.inner
    width = 0 if form.log else draws.inner if draws.kind >= LISTS else size
    return make_room(size, width, dim)


@njit(cache=True, nogil=True)
def train(
    x: Array,
    form: Form,
    draws: Draws,
    run: Run,
    lr: Array,
    scale: Array,
    beta: float,
    alpha: float,
    values: Array,
) -> None:
    """Take a step for every entry of ``lr``.

    ``scale`` [d] multiplies the step of each feature, ``alpha`` is of the penalty alpha/2 |w|², and ``values`` gets the
    estimates of the objective without it.
    """
    dim = run.table.u.shape[1]
    batch, room = empty_batch(draws, dim), _make_room(draws, form, dim)
    size = len(batch.rows)
    scores, slopes, gathered = np.zeros(size), np.zeros(size), np.zeros((size, len(run.w)))
    for t in range(len(lr)):
        used = fill_batch(draws, run, batch)
        _score(x, batch.rows[:used], run.w, gathered, scores)
        run.clock[0] += 1
        values[t] = pairwise_step(form, run.table, cut(batch, used), scores[:used], run.clock[0], room, slopes[:used])
        _descend(run, gathered, slopes[:used], lr[t], scale, beta, alpha)
