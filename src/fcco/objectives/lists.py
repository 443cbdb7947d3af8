"""Objectives over the items of queries: ListNet, ListMLE, NDCG."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from fcco.core.arrays import Array, cast, counted, namespace, numbered, ones, order_of, peaks, slots_of, taken, wide
from fcco.core.kernels import Backward, Pairs, log_sums_from, score_log_sums, score_sums
from fcco.core.objective import OneKernel
from fcco.core.outers import Discount, Logarithm
from fcco.core.surrogates import Surrogate
from fcco.core.weights import Pool, SelfTerm, Weights


class Listed(NamedTuple):
    """Items of queries, and what is known of their lists; without it, the lists are taken as whole."""

    score: Array
    relevance: Array
    query: Array
    """The number of the query, from 0 on, if lists are known; otherwise any integers."""
    size: Array = None
    """How many items the query has."""
    relevant: Array = None
    """How many of them have a relevance above 0."""
    share: Array = None
    """How much the item counts in its query."""


class Listwise(OneKernel):
    """What they share: a candidate is of the anchor's query, and relevant like the anchor or unlike it."""

    Columns, relations, self_relation, arrays = Listed, 2, 0, True
    all_items = False
    """Whether all items are anchors, rather than the relevant ones."""

    def __init__(self, term: SelfTerm = "sampled") -> None:
        self.self_term, self.fills = term, term == "sampled"

    def share(self, y: Array, query: Array, count: Array) -> Array:
        """Return how much each item of whole lists counts in its query, given how many are in each."""
        return ones(y)

    def describe(self, x: Listed) -> Listed:
        if x.share is not None:
            return x
        y, query = wide(x.relevance), slots_of(x.query)
        count, relevant = (counted(query, len(y), part * ones(y)) for part in (1.0, y > 0))
        known = taken(count, query), taken(relevant, query), self.share(y, query, count)
        return Listed(x.score, x.relevance, query, *(cast(column, x.score) for column in known))

    def is_anchor(self, x: Listed) -> Array:
        return ones(x.score) > 0 if self.all_items else x.relevance > 0

    def group(self, x: Listed) -> Array:
        return x.query

    def relation(self, anchors: Listed, candidates: Listed) -> tuple[Array, ...]:
        """Return the relevant and the irrelevant items, which are the relations to a relevant anchor."""
        relevant = candidates.relevance > 0
        return relevant, ~relevant

    def swapped(self, x: Listed, rows: Array) -> Array:
        """Return rows of the relevant and the irrelevant items as rows of those like and unlike an anchor, or back."""
        xp = namespace(rows)
        return xp.where(x.relevance > 0, rows, xp.flip(rows, (0,)))

    def there(self, x: Listed, candidates: Listed, pool: Pool) -> Array:
        xp, order = namespace(x.score), order_of(candidates.query)
        query, weight, relevant = (taken(c, order) for c in (candidates.query, pool.weight, candidates.relevance > 0))
        parts = xp.stack([weight * relevant, weight * ~relevant])
        upto = xp.concatenate([0 * parts[:, :1], parts.cumsum(1)], 1)
        first, last = (taken(upto, xp.searchsorted(query, x.query, side=side), 1) for side in ("left", "right"))
        return self.swapped(x, last - first)

    def population(self, x: Listed, there: Array) -> Array:
        xp = namespace(x.score)
        alike = xp.where(x.relevance > 0, x.relevant, x.size - x.relevant)
        return xp.stack([alike, x.size - alike])

    def folded(self, pairs: Pairs, w: Weights, candidates: Listed) -> None:
        return None  # what a candidate stands for depends on the query of the anchor

    def sums(self, anchors: Listed, candidates: Listed, pairs: Pairs) -> tuple[Array, Backward]:
        bare, back = self.of_relevance(anchors, candidates, pairs)
        return self.swapped(anchors, bare), lambda grad, *rest: back(self.swapped(anchors, grad), *rest)

    def of_relevance(self, anchors: Listed, candidates: Listed, pairs: Pairs) -> tuple[Array, Backward]:
        """Return the sums over the relevant and the irrelevant items, and their ``backward``."""
        raise NotImplementedError

    def shares(self, x: Listed, w: Weights, fresh: Pool) -> tuple[Array, Array]:
        item = w.known * ones(x.score)
        if not self.all_items:
            return x.share * item, item / x.relevant.clip(1, None)
        # Items of a query count so that the relevant ones are the part of it that they are in the whole list.
        item = item * self.population(x, w.there)[0] / w.there[0] * (w.there.sum(0) / x.size)
        return x.share * item, item / x.size


class ListNet(Listwise):
    """F = mean over queries of the sum of P(y_i) log g_i, where g_i is the sum of e^(h_j - h_i) over all items j."""

    outer, log = Logarithm(), True

    def __init__(self, target: Literal["proportional", "softmax"] = "proportional", term: SelfTerm = "sampled") -> None:
        super().__init__(term)
        self.all_items = target == "softmax"

    def share(self, y: Array, query: Array, count: Array) -> Array:
        """Return P(y). The largest y is removed first, as exponentials and sums could overflow."""
        xp, peak = namespace(y), taken(peaks(query, len(y), y), query)
        part = xp.exp(y - peak) if self.all_items else y / xp.where(peak > 0, peak, 1.0)
        total = taken(counted(query, len(y), part), query)
        return part / xp.where(total > 0, total, 1.0)

    def of_relevance(self, anchors: Listed, candidates: Listed, pairs: Pairs) -> tuple[Array, Backward]:
        return score_log_sums(anchors.score, candidates.score, pairs)


class ListMLE(Listwise):
    """F = mean over items of log g_i, the sum of e^(h_j - h_i) over the items j of the query with y_j <= y_i."""

    outer, log, all_items = Logarithm(), True, True

    def population(self, x: Listed, there: Array) -> Array:
        alike, others = super().population(x, there)
        return namespace(alike).stack([alike, others * (x.relevance > 0)])  # which do not matter to irrelevant ones

    def of_relevance(self, anchors: Listed, candidates: Listed, pairs: Pairs) -> tuple[Array, Backward]:
        keys = -wide(anchors.relevance), -wide(candidates.relevance)
        return log_sums_from(anchors.score, candidates.score, *keys, pairs)

    def shares(self, x: Listed, w: Weights, fresh: Pool) -> tuple[Array, Array]:
        share, _ = super().shares(x._replace(share=ones(x.score)), w, fresh)
        return share, share


class NDCG(Listwise):
    """F = -mean over queries of the sum of gain_i / log2(1 + r_i), for ranks r_i, 1 + the sum of l(h_j - h_i)."""

    def __init__(
        self,
        surrogate: Surrogate,
        tau: float | Array = 1.0,
        k: int | None = None,
        sharpness: float = 2.0,
        term: SelfTerm = "bounded",
    ) -> None:
        super().__init__(term)
        self.surrogate, self.tau, self.k, self.log = surrogate, tau, k, surrogate.log
        self.outer, self.arrays = Discount(surrogate.log, k, sharpness), surrogate.arrays

    def share(self, y: Array, query: Array, count: Array) -> Array:
        """Return the gain 2^y - 1 divided by the largest gain of the whole list that a ranking can have."""
        xp, gain = namespace(y), namespace(y).expm1(y * math.log(2))
        order = order_of(-gain)
        order = taken(order, order_of(taken(query, order)))
        ordered, start = taken(query, order), count.cumsum(0) - count
        place = numbered(len(y), y) - taken(start, ordered)
        terms = taken(gain, order) / xp.log2(place + 2)
        if self.k is not None:
            terms = terms * (place < self.k)
        ideal = taken(counted(ordered, len(y), terms), query)
        return gain / xp.where(ideal > 0, ideal, 1.0)

    def of_relevance(self, anchors: Listed, candidates: Listed, pairs: Pairs) -> tuple[Array, Backward]:
        return score_sums(anchors.score, candidates.score, self.surrogate, pairs, self.tau)
