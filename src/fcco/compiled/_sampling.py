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

    Batches are smaller where there are fewer rows. ``gain`` and ``key`` have one entry each if all rows share it: with
    an entry for each row, every visit would miss the caches twice more.
    """

    kind: int
    outer: int
    inner: int
    gain: Array  # [n] or [1]: how much f of a row counts; 0 for a row that is never an outer one
    key: Array  # [n] or [1]: rivals have a key at least as large
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


@njit(borrows=True)
def draw(state: Array, bound: int) -> np.int64:
    """Return a random integer below ``bound`` (splitmix64)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0) * bound)


@njit(borrows=True)
def _advance(order: Array, state: Array, cursor: int, count: int) -> int:
    """Return where the next ``count`` visits begin in ``order``; a new pass begins where too few are left."""
    if cursor + count <= len(order):
        return cursor
    for i in range(len(order) - 1, 0, -1):
        j = draw(state, i + 1)
        order[i], order[j] = order[j], order[i]
    return 0


@njit(borrows=True)
def fill_from_classes(sampler: ClassSampler, stream: Stream, batch: PairBatch) -> int:
    """Draw a batch, and return how many of its positions are used."""
    (order, other_order, cursor, state), (rows, scale, keys, lo, hi, weight) = stream, batch
    kind, share, gain, key, m, k = sampler.kind, sampler.share, sampler.gain, sampler.key, sampler.outer, sampler.inner
    m, k = m if m < len(order) else len(order), k if k < len(other_order) else len(other_order)
    begin = _advance(order, state, cursor[0], m)
    other_begin = _advance(other_order, state, cursor[1], k)
    cursor[0], cursor[1] = begin + m, other_begin + k
    size, counted = m + k, 0.0
    for i in range(size):
        row = order[begin + i] if i < m else other_order[other_begin + i - m]
        own = row if len(key) > 1 else 0
        rows[i], keys[i], lo[i], hi[i] = row, key[own], (m if kind == PUSH else 0), size
        scale[i] = gain[own] if i < m else 0.0
        counted += 1.0 if scale[i] > 0.0 else 0.0
        if kind == PRECISION:
            weight[0, i] = share[0] / m if i < m else 0.0
            weight[1, i] = share[0] / m if i < m else share[1] / k
        else:
            weight[0, i] = 1.0 / k if kind == PUSH else 1.0 / m
    if counted > 0.0:
        for i in range(m):
            scale[i] /= counted
    return size


@njit(borrows=True)
def fill_from_lists(sampler: ListSampler, stream: Stream, batch: PairBatch) -> int:
    """Draw a batch, and return how many of its positions are used."""
    (order, _, cursor, state), (rows, scale, keys, lo, hi, weight) = stream, batch
    by_item, lists, most, gain, key, starts, members, is_relevant, relevant_in = sampler
    lists = lists if lists < len(order) else len(order)
    begin, used, total = _advance(order, state, cursor[0], lists), 0, 0.0
    cursor[0] = begin + lists
    for place in range(begin, begin + lists):
        which = order[place]
        start, length, relevant, found = starts[which], starts[which + 1] - starts[which], relevant_in[which], 0
        taken = length if length < most else most
        for i in range(start, start + taken):
            # A list that is longer is shuffled as far as it is used.
            if length > taken:
                j = i + draw(state, length - (i - start))
                members[i], members[j] = members[j], members[i]
            rows[used + i - start] = members[i]
            found += 1 if is_relevant[members[i]] else 0
        each = (length - relevant) / (taken - found if taken > found else 1)
        # Relevant items alone stand for the irrelevant ones too; to the latter the former do not matter, or have no f.
        each_relevant = (relevant if found < taken else length) / (found if found > 0 else 1)
        for i in range(used, used + taken):
            row = rows[i]
            keys[i], lo[i], hi[i], scale[i] = key[row], used, used + taken, gain[row]
            weight[0, i] = each_relevant if is_relevant[row] else each
            if by_item:
                stratum = relevant / found if is_relevant[row] else each
                scale[i] *= stratum * taken / length
                total += scale[i]
        if not by_item and relevant > 0:
            total += found / relevant
        used += taken
    if total > 0.0:
        for i in range(used):
            scale[i] /= total
    return used
