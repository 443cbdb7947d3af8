"""The partial likelihood of a Cox model if rows enter late (left truncation), with its derivatives."""

from __future__ import annotations

import numpy as np

from fcco.compiled._cox import Sums, share_groups
from fcco.compiled._intervals import cover, cover_rows, intervals, within
from fcco.estimators._columns import Array, SortedRows


class TruncatedCoxObjective:
    """The same as :class:`CoxObjective`, of rows that are at risk from their entry on, and not at it.

    The distinct event times of all strata are points in a row, stratum after stratum. A row is at risk in an interval
    of these points, and risk sets are sums over the intervals that cover a point; see :mod:`fcco.compiled._intervals`.

    Args:
        rows: in any order.
        times: [2, n], entry and time.
        event: [n] of bool; some are True.
        stratum: [n], integers >= 0.
        efron: how ties are treated.
        counts: [n], positive: how often each row counts.
        penalty: [d].
    """

    def __init__(
        self,
        rows: SortedRows,
        times: Array,
        event: Array,
        stratum: Array,
        efron: bool,
        counts: Array,
        penalty: Array,
    ) -> None:
        self.rows, self.event, self.counts, self.penalty = rows, event, counts, penalty
        self.efron, self.events = efron, float(counts[event].sum())
        distinct, rank = np.unique(times, return_inverse=True)
        entry, exit_ = rank.reshape(times.shape) + stratum * len(distinct)
        points, self.place = np.unique(exit_[event], return_inverse=True)
        self.point_times, self.point_strata = distinct[points % len(distinct)], points // len(distinct)
        first, past = (np.searchsorted(points, bound, side="right") for bound in (entry, exit_))
        # The events of a time are apart from the rest of its risk set.
        self.sets, self.whole = intervals(first, past - event, len(points)), intervals(first, past, len(points))
        self.sums = Sums(*(np.empty(len(points)) for _ in Sums._fields))
        self.tied = np.bincount(self.place)
        self.sums.deaths[:] = np.bincount(self.place, weights=counts[event])

    def value(self, w: Array) -> float:
        """The objective at w, where :meth:`derivatives` are then taken; not finite where w is too large for numbers."""
        self.w = w
        h = self.rows.linear(w)
        if not np.isfinite(h).all():
            return np.inf
        self.logs = h + np.log(self.counts)
        log_tied = np.full(len(self.tied), -np.inf)
        np.logaddexp.at(log_tied, self.place, self.logs[self.event])
        loss = share_groups(cover(self.logs, self.sets), log_tied, self.tied, self.efron, self.sums)
        self.fit = loss - float(self.counts[self.event] @ h[self.event])
        return self.fit / self.events + 0.5 * float(self.penalty @ w**2)

    def derivatives(self) -> tuple[Array, Array]:
        """Gradient [d] and Hessian [d, d] at the w of the last value."""
        sums, own = self.sums, self.place
        hazard = np.exp(self.logs + within(np.log(sums.hazard) - sums.unit, self.sets))
        hazard[self.event] += np.exp(self.logs[self.event] - sums.unit[own]) * sums.own_hazard[own]
        excess = hazard - self.event * self.counts
        rows = np.empty(self.rows.shape)
        gradient, hessian = np.zeros(rows.shape[1]), np.zeros((rows.shape[1], rows.shape[1]))
        for where, block in self.rows.blocks():
            rows[where] = block
            gradient += excess[where] @ block
            hessian += block.T @ (hazard[where, None] * block)
        tied = np.zeros((len(self.tied), rows.shape[1]))
        np.add.at(tied, own, np.exp(self.logs[self.event] - sums.unit[own])[:, None] * rows[self.event])
        mean = sums.lead[:, None] * cover_rows(self.logs, rows, self.sets, sums.unit) + sums.mix[:, None] * tied
        tied *= sums.left[:, None]
        hessian -= mean.T @ mean + tied.T @ tied
        gradient, hessian = gradient / self.events, hessian / self.events
        return gradient + self.penalty * self.w, hessian + np.diag(self.penalty)

    def highest_at_risk(self, values: Array) -> Array:
        """The largest value in the risk set of each event, to 1e-7 of their range."""
        # The logarithm of a sum of exponentials of differences this large is their maximum.
        steep = 1e8 / max(float(np.ptp(values)), np.finfo(float).tiny)
        return (cover(steep * (values - values.max()), self.whole) / steep + values.max())[self.place]

    def log_baseline(self) -> tuple[Array, Array, Array]:
        """Stratum, time and logarithm of Breslow's hazard at each distinct event time, rising, for h = 0."""
        return self.point_strata, self.point_times, np.log(self.sums.deaths / self.sums.total) - self.sums.unit
