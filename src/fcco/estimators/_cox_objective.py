"""The partial likelihood of a Cox model with its derivatives, on standardised rows."""

from __future__ import annotations

import numpy as np

from fcco.compiled._cox import RiskSets, Sums, pass_through, scale_rows, weigh
from fcco.estimators._columns import Array, SortedRows


class CoxObjective:
    """F(w)/n_E + ½ Σ penalty_k w_k² and its derivatives, on standardised rows; n_E is the sum of s over all events.

    Args:
        rows: sorted by :func:`sort_order`.
        sets: the groups of these rows; at least one has an event.
        penalty: [d].
    """

    def __init__(self, rows: SortedRows, sets: RiskSets, penalty: Array) -> None:
        self.rows, self.sets, self.penalty, self.event = rows, sets, penalty, sets.event
        self.events = float(sets.counts[sets.event].sum())
        n, groups = len(sets.event), len(sets.ends)
        self.weight, self.hazard = np.empty(n), np.empty(n)
        self.sums = Sums(*(np.empty(groups) for _ in Sums._fields))
        self.w = np.zeros(rows.shape[1])

    def value(self, w: Array) -> float:
        """The objective at w, where :meth:`derivatives` are then taken; not finite where w is too large for numbers."""
        self.w = w
        h = self.rows.linear(w)
        if not np.isfinite(h).all():
            return np.inf
        self.fit = weigh(h, self.sets, self.weight, self.sums)
        return self.fit / self.events + 0.5 * float(self.penalty @ w**2)

    def derivatives(self) -> tuple[Array, Array]:
        """Gradient [d] and Hessian [d, d] at the w of the last value."""
        pass_through(self.sets, self.weight, self.sums, self.hazard)
        d = self.rows.shape[1]
        gradient, hessian, running, k = np.zeros(d), np.zeros((d, d)), np.zeros((2, d)), 0
        spread = means = np.empty((0, d))
        for where, block in self.rows.blocks():
            if len(spread) < len(block):
                spread, means = np.empty((len(block), d)), np.empty((len(block) + 1, d))
            k, used = scale_rows(
                block, where.start, k, self.sets, self.sums, self.weight, self.hazard, running, spread, means
            )
            gradient += (self.hazard[where] - self.sets.event[where] * self.sets.counts[where]) @ block
            scaled, ended = spread[: len(block)], means[:used]
            hessian += scaled.T @ scaled
            hessian -= ended.T @ ended
        gradient, hessian = gradient / self.events, hessian / self.events
        return gradient + self.penalty * self.w, hessian + np.diag(self.penalty)

    def highest_at_risk(self, values: Array) -> Array:
        """The largest value in the risk set of each event."""
        sets, highest = self.sets, np.empty_like(values)
        begins = np.flatnonzero(sets.fresh)
        starts = np.where(begins > 0, sets.ends[begins - 1], 0)
        for begin, end in zip(starts, [*starts[1:], len(values)], strict=True):
            np.maximum.accumulate(values[begin:end], out=highest[begin:end])
        return np.repeat(highest[sets.ends - 1], sets.ends - sets.firsts)

    def log_baseline(self, time: Array) -> tuple[Array, Array, Array]:
        """Stratum, time and logarithm of Breslow's hazard at each distinct event time, rising, for h = 0.

        Strata are numbered in the order of the rows, whose times are given.
        """
        kept = np.flatnonzero(self.sets.ends > self.sets.firsts)
        times, stratum = time[self.sets.firsts[kept]], np.cumsum(self.sets.fresh)[kept] - 1
        hazard = np.log(self.sums.deaths[kept] / self.sums.total[kept]) - self.sums.unit[kept]
        rising = np.lexsort((times, stratum))
        return stratum[rising], times[rising], hazard[rising]
