"""Cox's partial likelihood by hand, with sampled own terms; see :mod:`fcco.losses._by_hand`."""

from __future__ import annotations

import numpy as np

from fcco.losses._by_hand import Array, ArrayEstimate, LeftToTheEngine

# Exponentials of larger differences are left to log space.
_WIDEST = 500.0


def cox_by_hand(risk: Array, time: Array, event: Array, *, n: int, n_events: int | None) -> ArrayEstimate:
    """Estimate log g_i = log Σ_{T_j ≥ T_i} w_j e^{h_j - h_i} for the events of a batch, by sorting.

    See :func:`fcco.functional.inner.cox_inner`.
    """
    seen = event != 0
    stands_for = np.log(_represented(seen, event, n, n_events))
    logs = risk.astype(np.float64, copy=False) + stands_for
    peak = np.maximum.reduce(logs)
    if not (peak - np.minimum.reduce(logs) < _WIDEST and abs(peak) < 1e30 and (time >= 0).all()):
        raise LeftToTheEngine
    order = np.argsort(time)
    time, terms, seen = time[order], np.exp(logs - peak)[order], seen[order]
    events = seen.nonzero()[0]
    if not len(events):
        raise LeftToTheEngine
    sums = terms[::-1].cumsum()[::-1]
    ties = np.count_nonzero(time[1:] == time[:-1])
    at_risk = sums[np.searchsorted(time, time[events]) if ties else events]
    outer = order[events]

    def pull(slope: Array) -> tuple[Array]:
        # An example is in the risk set of every event at its time or before.
        per_event = np.zeros(len(terms))
        per_event[events] = slope / at_risk
        before = per_event.cumsum()
        if ties:
            before = before[np.searchsorted(time, time, "right") - 1]
        before -= per_event
        gradient = np.empty(len(terms))
        gradient[order] = terms * before
        # The own term is a part of the sum that does not change with h.
        gradient[outer] -= slope * (1 - terms[events] / at_risk)
        return (gradient,)

    # A risk set without others is exactly what the event represents.
    return ArrayEstimate(np.log(at_risk / terms[events]) + stands_for[outer], pull, outer)


def _represented(seen: Array, event: Array, n: int, n_events: int | None) -> Array:
    """Return how many examples of the population each one represents; those in the batch also represent a stratum that
    it lacks.
    """
    size, events = len(seen), int(np.count_nonzero(seen))
    if event.dtype.kind != "b" and np.count_nonzero(event == 1) != events:
        raise LeftToTheEngine
    if n_events is None:
        return np.full(size, n / size)
    if events > n_events or size - events > n - n_events:
        raise LeftToTheEngine
    of_event, of_other = n_events / max(events, 1), (n - n_events) / max(size - events, 1)
    whole = n / max(events * of_event + (size - events) * of_other, 1)
    return np.where(seen, of_event * whole, of_other * whole)
