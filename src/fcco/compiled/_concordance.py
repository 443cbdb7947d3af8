"""Harrell's concordance index in O(n log n), compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcco.compiled._compile import njit
from fcco.compiled._cox import group, sort_order
from fcco.compiled._rules import Array


class PairCounts(NamedTuple):
    """How many comparable pairs there are of each kind, or how much they weigh."""

    concordant: float
    discordant: float
    tied: float

    @property
    def concordance(self) -> float:
        """The concordance index, in which a pair with tied risks counts half; NaN if there is no pair."""
        total = self.concordant + self.discordant + self.tied
        return (self.concordant + 0.5 * self.tied) / total if total else float("nan")


def count_pairs(
    time: Array, event: Array, risk: Array, weight: Array | None = None, *, tied_tol: float = 1e-8
) -> PairCounts:
    """Count the comparable pairs (i, j): i has an event, and j is at risk after it.

    That is T_j > T_i, or T_j = T_i and j is censored. A pair is tied if the risks differ by ``tied_tol`` at most, and
    concordant if i has the higher risk: the rules of scikit-survival's ``concordance_index_censored``. With ``weight``
    [n], a pair counts w_i w_j times, as it would if every row were repeated as often as it weighs.

    >>> import numpy as np
    >>> count_pairs(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]), np.array([3.0, 1.0, 3.0]))
    PairCounts(concordant=1.0, discordant=0.0, tied=1.0)

    Reference: Harrell et al., *Evaluating the Yield of Medical Tests*, 1982.
    """
    order = sort_order(time, event)
    weight = np.ones(len(time)) if weight is None else weight
    by_risk = np.argsort(risk, kind="stable")
    rising = risk[by_risk]
    rank = np.empty(len(risk), np.int64)
    rank[by_risk] = np.arange(len(risk))
    below = np.searchsorted(rising, rising - tied_tol, side="left")
    upto = np.searchsorted(rising, rising + tied_tol, side="right")
    return PairCounts(*_count(rank[order], weight[order], below, upto, *group(time[order], event[order])))


@njit()
def _add(tree: Array, place: int, weight: float) -> None:
    place += 1
    while place < len(tree):
        tree[place] += weight
        place += place & -place


@njit()
def _sum_below(tree: Array, place: int) -> float:
    total = 0.0
    while place > 0:
        total += tree[place]
        place -= place & -place
    return total


@njit(cache=True)
def _count(
    rank: Array, weight: Array, below: Array, upto: Array, firsts: Array, ends: Array
) -> tuple[float, float, float]:
    """Add rows to a Fenwick tree over the ranks of their risks, latest first, and ask it at each event."""
    tree = np.zeros(len(rank) + 1)
    concordant, discordant, tied, begin = 0.0, 0.0, 0.0, 0
    for k in range(len(ends)):
        first, end = firsts[k], ends[k]
        for j in range(begin, first):
            _add(tree, rank[j], weight[j])
        everyone = _sum_below(tree, len(rank))
        for j in range(first, end):
            lower, not_higher = _sum_below(tree, below[rank[j]]), _sum_below(tree, upto[rank[j]])
            concordant += weight[j] * lower
            # Sums of the same weights in another order may differ by rounding.
            tied += weight[j] * max(not_higher - lower, 0.0)
            discordant += weight[j] * max(everyone - not_higher, 0.0)
        for j in range(first, end):
            _add(tree, rank[j], weight[j])
        begin = end
    return concordant, discordant, tied
