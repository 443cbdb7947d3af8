"""ListNet, ListMLE and NDCG by hand; see :mod:`fcco.losses._by_hand`.

Items are sorted by query, and sums over the lists of a batch are sums over runs of items. The weights are those of
:func:`fcco.functional._inner_listwise.pair_items`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fcco._checks import has_repeats
from fcco.functional._inner_listwise import ListOwnTerm
from fcco.functional._surrogates import Surrogate
from fcco.losses._by_hand import Array, ArrayEstimate, LeftToTheEngine
from fcco.losses._pair_arrays import value_and_slope

# Exponentials of larger differences are left to log space.
_WIDEST = 500.0


class SortedLists:
    """The items of a batch, sorted by query.

    Attributes
    ----------
    order : Array of shape (B,)
        The positions of the sorted items in the batch. All other arrays of items follow it.
    scores, relevance : Array of shape (B,)
        The scores, in double precision, and the relevances of the batch.
    slot, starts : Array of shape (B,), Array of shape (Q,)
        The list of each item, and where each list begins.
    each : Array of shape (B,)
        How many items of its stratum, be it the relevant ones or the others, an item represents.
    size, relevant : Array of shape (B,)
        The number of items, and of relevant items, in the whole list.
    own_size : Array of shape (B,)
        The number of items in the stratum.
    lacks : Array of shape (B,)
        Whether the batch has only one of the strata of the list.
    share : Array of shape (B,)
        How much the item counts in its query.
    """

    def __init__(self, scores: Array, relevance: Array, query: Array, known: Sequence[Array]) -> None:
        h = scores.astype(np.float64, copy=False)
        if not (np.maximum.reduce(np.abs(h)) < 1e30 and math.isfinite(np.add.reduce(relevance))):
            raise LeftToTheEngine
        self.order, columns, begins = np.arange(len(query)), [h, relevance, *known], _changes(query)
        if has_repeats(np.sort(query[begins])):  # lists are not one after another yet
            self.order = _in_order_of_first(query)
            columns, begins = [values[self.order] for values in columns], _changes(query[self.order])
        self.starts, self.slot = begins.nonzero()[0], begins.cumsum() - 1
        self.scores, self.relevance, self.size, self.relevant, self.share, number, in_training = columns
        self._check(begins, number, in_training)
        is_relevant = self.relevance > 0
        self.shown = np.bincount(self.slot).take(self.slot)
        of_relevant = np.add.reduceat(is_relevant, self.starts, dtype=np.int64).take(self.slot)
        self.own_size = np.maximum(np.where(is_relevant, self.relevant, self.size - self.relevant), 1)
        self.alike = np.where(is_relevant, of_relevant, self.shown - of_relevant)
        self.each = self.own_size / self.alike
        self.lacks = self.alike == self.shown
        self.is_relevant = is_relevant

    def _check(self, begins: Array, number: Array, relevance: Array) -> None:
        """Leave a batch that contradicts the training data to the engine, which says how."""
        agrees = (_changes(number) == begins).all() and not has_repeats(np.sort(number[self.starts]))
        given = self.relevance
        if relevance.dtype.kind == given.dtype.kind == "f":  # only the digits of the narrower one are known to both
            relevance = relevance.astype(min(relevance.dtype, given.dtype), copy=False)
            given = given.astype(relevance.dtype, copy=False)
        if not agrees or (relevance != given).any() or ((relevance > 0) != (self.relevance > 0)).any():
            raise LeftToTheEngine

    def terms(self) -> tuple[Array, Array]:
        """Return each · e^(h - peak), and the peak of each item's list."""
        peak = np.maximum.reduceat(self.scores, self.starts).take(self.slot)
        below = self.scores - peak
        if np.minimum.reduce(below) < -_WIDEST:
            raise LeftToTheEngine
        return self.each * np.exp(below), peak

    def in_batch(self, gradient: Array) -> tuple[Array]:
        """Return a gradient of the sorted items in the order of the batch."""
        in_order = np.empty(len(gradient))
        in_order[self.order] = gradient
        return (in_order,)

    @property
    def whole(self) -> Array:
        """By how much more an item represents if the batch has only one of the strata, which then represents both."""
        return np.where(self.lacks, self.size / self.own_size, 1.0)

    @cached_property
    def column(self) -> Array:
        """The place of each item in its list."""
        return np.arange(len(self.slot)) - self.starts.take(self.slot)

    def padded(self, values: Array) -> Array:
        """Return values with a list in each row, filled up with zeros; each item is in its column."""
        rows = np.zeros((len(self.starts), np.maximum.reduce(self.shown)), values.dtype)
        rows[self.slot, self.column] = values
        return rows


def _changes(values: Array) -> Array:
    """Return where a run of equal values begins."""
    begins = np.empty(len(values), bool)
    begins[0] = True
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    return begins


def _in_order_of_first(query: Array) -> Array:
    """Return an order of items, list by list. That of lists is by first items: numbers of queries decide nothing."""
    _, first, which = np.unique(query, return_index=True, return_inverse=True)
    return np.argsort(first[which], kind="stable")


def _weights(share: Array, item: Array, size: Array) -> tuple[Array, Array]:
    """Return the positions of items with a term, and their weights; the batch has Σ item / size queries."""
    total, weight = np.add.reduce(item / np.maximum(size, 1)), share * item
    outer = (weight > 0).nonzero()[0]
    if not len(outer):
        raise LeftToTheEngine
    return outer, weight.take(outer) / total


def _all_items(lists: SortedLists) -> Array:
    return lists.each * lists.shown / lists.size


def list_net_by_hand(
    scores: Array,
    relevance: Array,
    query: Array,
    *,
    known: Sequence[Array],
    own_term: ListOwnTerm,
    target: str,
) -> ArrayEstimate:
    """Estimate log g of ListNet with sampled own terms; see :func:`fcco.functional.inner.list_net_inner`."""
    if own_term != "sampled":
        raise LeftToTheEngine
    lists = SortedLists(scores, relevance, query, known)
    terms, peak = lists.terms()
    if target == "softmax":
        outer, weight = _weights(lists.share, _all_items(lists), lists.size)
    elif np.minimum.reduce(relevance) < 0:
        raise LeftToTheEngine
    else:
        outer, weight = _weights(lists.share, lists.is_relevant.astype(np.float64), lists.relevant)
    sums = np.add.reduceat(terms, lists.starts)
    slot, whole = lists.slot.take(outer), lists.whole.take(outer)

    def pull(slope: Array) -> tuple[Array]:
        per_list = np.bincount(slot, slope, len(sums)) / sums
        gradient = terms * per_list.take(lists.slot)
        gradient[outer] -= slope
        return lists.in_batch(gradient)

    inner = np.log(sums.take(slot) * whole) + (peak - lists.scores).take(outer)
    return ArrayEstimate(inner, pull, lists.order.take(outer), weight)


def list_mle_by_hand(
    scores: Array, relevance: Array, query: Array, *, known: Sequence[Array], own_term: ListOwnTerm
) -> ArrayEstimate:
    """Estimate log g of ListMLE with sampled own terms; see :func:`fcco.functional.inner.list_mle_inner`."""
    if own_term != "sampled":
        raise LeftToTheEngine
    lists = SortedLists(scores, relevance, query, known)
    terms, peak = lists.terms()
    upwards = np.lexsort((lists.relevance, lists.slot))
    slot, ranked = lists.slot[upwards], lists.relevance[upwards]
    rows, column = lists.padded(terms[upwards]), lists.column
    # The items of a tie are all below each other.
    begins = _changes(slot) | _changes(ranked)
    ties = begins.nonzero()[0]
    tie, last = begins.cumsum() - 1, np.append(ties[1:], len(slot)) - 1
    sums = rows.cumsum(1)[slot, column[last[tie]]]
    # The irrelevant items do not matter to each other's ranks if there are no others.
    alone = lists.lacks & lists.is_relevant
    whole = np.where(alone, lists.size / lists.own_size, 1.0)[upwards]
    weight = _all_items(lists)
    weight /= np.add.reduce(weight)

    def pull(slope: Array) -> tuple[Array]:
        per_item = lists.padded(slope / sums)
        above = per_item[:, ::-1].cumsum(1)[:, ::-1][slot, column[ties[tie]]]
        gradient = np.empty(len(slope))
        gradient[upwards] = terms[upwards] * above - slope
        return lists.in_batch(gradient)

    inner = np.log(sums * whole) + (peak - lists.scores)[upwards]
    return ArrayEstimate(inner, pull, lists.order[upwards], weight[upwards])


def ndcg_by_hand(
    scores: Array,
    relevance: Array,
    query: Array,
    *,
    known: Sequence[Array],
    own_term: ListOwnTerm,
    surrogate: Surrogate,
    temperature: float,
) -> ArrayEstimate:
    """Estimate smooth ranks with sampled or bounded own terms; see :func:`fcco.functional.inner.ndcg_inner`."""
    if own_term == "exact" or np.minimum.reduce(relevance) < 0:
        raise LeftToTheEngine
    lists = SortedLists(scores, relevance, query, known)
    outer, weight = _weights(lists.share, lists.is_relevant.astype(np.float64), lists.relevant)
    rows, column, slot = lists.padded(lists.scores), lists.column, lists.slot[outer]
    mine, stands_for = (np.arange(len(outer)), column[outer]), lists.padded(lists.each)[slot]
    own = _weigh_own(lists, outer, slot, stands_for, own_term)
    stands_for[mine] = 0.0
    values, slopes = value_and_slope(surrogate, (rows[slot] - lists.scores[outer, None]) / temperature)
    inner = np.einsum("ij,ij->i", values, stands_for) + own
    slopes *= stands_for
    present = _changes(slot).nonzero()[0]

    def pull(slope: Array) -> tuple[Array]:
        pulls = slopes * (slope / temperature)[:, None]
        of_lists = np.zeros_like(rows)
        of_lists[slot[present]] = np.add.reduceat(pulls, present)
        gradient = of_lists[lists.slot, column]
        gradient[outer] -= np.add.reduce(pulls, 1)
        return lists.in_batch(gradient)

    return ArrayEstimate(inner, pull, lists.order[outer], weight)


def _weigh_own(lists: SortedLists, outer: Array, slot: Array, stands_for: Array, own_term: ListOwnTerm) -> Array:
    """Return what each own item represents; set what its rivals represent to it, all of the relevant ones alike."""
    each = lists.each.take(outer)
    if own_term == "sampled":
        whole = lists.whole.take(outer)
        stands_for *= whole[:, None]
        return each * whole
    everyone, others = np.where(lists.lacks, lists.size, lists.own_size).take(outer), lists.alike.take(outer) - 1
    own = np.where(others > 0, 2 - 1 / np.maximum(each, 1), everyone)
    of_others = (everyone - own) / np.maximum(others, 1)
    np.copyto(stands_for, of_others[:, None], where=lists.padded(lists.is_relevant)[slot])
    return own
