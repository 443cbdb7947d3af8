"""How the batches of a linear model are drawn, compiled, and what the drawn rows stand for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcco.compiled._compile import njit
from fcco.compiled._pairs import PairBatch
from fcco.compiled._rules import Array

PUSH, PRECISION, WHOLE = range(3)  # kinds of ClassSampler


class ClassSampler(NamedTuple):
    """Draws ``outer`` rows of the first class, then ``inner`` rows of the second.

    - PUSH: the rivals of an outer position are those of the second class.
    - PRECISION: the rivals are all. The first sum is over the first class, and the second sum over both.
    - WHOLE: there is one class, each of whose rows is a rival of each.

    Batches are smaller where there are fewer rows.
    """

    kind: int
    outer: int
    inner: int
    gain: Array  # [n]: how much f of a row counts; 0 for a row that is never an outer one
    key: Array  # [n]: rivals have a key at least as large
    share: Array  # [2]: of each class in the population

    @property
    def size(self) -> int:
        """The largest number of positions of a batch."""
        return self.outer + self.inner

    @property
    def width(self) -> int:
        """The largest number of rivals of a position."""
        return self.size


class ListSampler(NamedTuple):
    """Draws ``outer`` lists, and at most ``inner`` items of each, which are rivals within their list.

    The objective is a mean over all items if ``by_item``, else over the lists that have a relevant item. Where a part
    of a list is drawn, relevant and irrelevant items are weighed so that each kind stands for all of it, as in
    :mod:`fcco.losses`.
    """

    by_item: bool
    outer: int
    inner: int
    gain: Array  # [n]: how much f of a row counts; 0 for a row that is never an outer one
    key: Array  # [n]: rivals have a key at least as large
    starts: Array  # [Q + 1]: where each list begins in ``members``, and where the last one ends
    members: Array  # [n]: rows, list by list, in an order that changes
    relevant: Array  # [n] of bool
    relevant_in: Array  # [Q]: relevant items of each list

    @property
    def size(self) -> int:
        """The largest number of positions of a batch."""
        return self.outer * self.inner

    @property
    def width(self) -> int:
        """The largest number of rivals of a position."""
        return self.inner


class Stream(NamedTuple):
    """The random order in which rows, or lists, are visited."""

    order: Array  # rows of the first class, or the numbers of the lists, as shuffled
    other_order: Array  # rows of the second class
    cursor: Array  # [2]: how far each pass has come
    state: Array  # [1] of uint64: of the random numbers


def new_stream(first: Array, second: Array, seed: int) -> Stream:
    """Return a stream of ``first`` and ``second``, which may be empty; both are shuffled before the first visit."""
    return Stream(
        np.array(first, np.int64),
        np.array(second, np.int64),
        np.array([len(first), len(second)], np.int64),
        np.array([seed], np.uint64),
    )


@njit()
def draw(state: Array, bound: int) -> int:
    """Return a random integer below ``bound`` (splitmix64)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return int(np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0) * bound)


@njit()
def _advance(stream: Stream, order: Array, which: int, count: int) -> int:
    """Return where the next ``count`` visits begin in ``order``; a new pass begins where too few are left."""
    if stream.cursor[which] + count > len(order):
        for i in range(len(order) - 1, 0, -1):
            j = draw(stream.state, i + 1)
            order[i], order[j] = order[j], order[i]
        stream.cursor[which] = 0
    stream.cursor[which] += count
    return stream.cursor[which] - count


@njit()
def fill_from_classes(sampler: ClassSampler, stream: Stream, batch: PairBatch) -> int:
    """Draw a batch, and return how many of its positions are used."""
    m, k = min(sampler.outer, len(stream.order)), min(sampler.inner, len(stream.other_order))
    begin = _advance(stream, stream.order, 0, m)
    other_begin = _advance(stream, stream.other_order, 1, k)
    size, counted, kind = m + k, 0.0, sampler.kind
    for i in range(size):
        row = stream.order[begin + i] if i < m else stream.other_order[other_begin + i - m]
        batch.rows[i], batch.key[i] = row, sampler.key[row]
        batch.scale[i] = sampler.gain[row] if i < m else 0.0
        counted += 1.0 if batch.scale[i] > 0.0 else 0.0
        batch.lo[i], batch.hi[i] = (m if kind == PUSH else 0), size
        if kind == PRECISION:
            batch.weight[0, i] = sampler.share[0] / m if i < m else 0.0
            batch.weight[1, i] = sampler.share[0] / m if i < m else sampler.share[1] / k
        else:
            batch.weight[0, i] = 1.0 / k if kind == PUSH else 1.0 / m
    for i in range(m):
        batch.scale[i] /= max(counted, 1.0)
    return size


@njit()
def fill_from_lists(sampler: ListSampler, stream: Stream, batch: PairBatch) -> int:
    """Draw a batch, and return how many of its positions are used."""
    used, total, lists = 0, 0.0, min(sampler.outer, len(stream.order))
    begin = _advance(stream, stream.order, 0, lists)
    for which in stream.order[begin : begin + lists]:
        start, length = sampler.starts[which], sampler.starts[which + 1] - sampler.starts[which]
        taken, relevant, found = min(length, sampler.inner), sampler.relevant_in[which], 0
        for i in range(taken):
            # A list that is longer is shuffled as far as it is used.
            if length > taken:
                j, i_ = start + i + draw(stream.state, length - i), start + i
                sampler.members[i_], sampler.members[j] = sampler.members[j], sampler.members[i_]
            batch.rows[used + i] = sampler.members[start + i]
            found += sampler.relevant[sampler.members[start + i]]
        each = (length - relevant) / max(taken - found, 1)
        # Relevant items alone stand for the irrelevant ones too; to the latter the former do not matter, or have no f.
        each_relevant = (relevant if found < taken else length) / max(found, 1)
        for i in range(used, used + taken):
            row = batch.rows[i]
            batch.key[i], batch.lo[i], batch.hi[i] = sampler.key[row], used, used + taken
            batch.weight[0, i] = each_relevant if sampler.relevant[row] else each
            batch.scale[i] = sampler.gain[row]
            if sampler.by_item:
                stratum = relevant / found if sampler.relevant[row] else each
                batch.scale[i] *= stratum * taken / length
                total += batch.scale[i]
        if not sampler.by_item and relevant > 0:
            total += found / relevant
        used += taken
    for i in range(used):
        batch.scale[i] /= total if total > 0.0 else 1.0
    return used
