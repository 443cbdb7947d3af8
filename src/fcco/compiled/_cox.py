"""Sums over risk sets, compiled: the partial likelihood, its gradient and its Hessian after one sort.

With rows by stratum, then by falling time, and within a time the censored first, the events of each distinct time t_k
close a group of rows, and the risk set of t_k is all rows of its stratum up to there. Let row j count s_j times, w_j =
s_j e^{h_j}, and of group k let D_l = rest + c_l tied be the denominators, where ``tied`` is the sum of w over its d
events, ``rest`` the sum over all rows before them, and c_l = 1 (Breslow) or 1 - l/d (Efron), l = 0 ... d - 1. With r_k
the mean of s over these events,

    F = Σ_k r_k Σ_l log D_l - Σ_events s h,    ∇F = Σ_j (a_j - s_j E_j) x_j,
    ∇²F = Σ_j a_j x_j x_jᵀ - Σ_k r_k Σ_l m_l m_lᵀ,    m_l = (rest_1 + c_l tied_1) / D_l,

where rest_1 and tied_1 are the sums of w x, and row j has passed through the hazard
a_j = w_j Σ_k r_k Σ_l [1 or, if j is one of the tied, c_l] / D_l. By Breslow this is what repeating row j s_j times
would give; by Efron, whose d counts rows, it is the weighted likelihood of lifelines and of R's survival.

Both terms of the Hessian are products of tall matrices, left to BLAS. Only positive numbers are added up, and the unit
that w is counted in follows the largest h, so that no risk set underflows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fcco.compiled._compile import njit
from fcco.compiled._rules import Array

_RISE = 300.0  # how far h may lie above the unit before it is changed: e^(2 * 300) n^2 is still finite


class RiskSets(NamedTuple):
    """Which rows die when: of the sorted rows, group by group."""

    event: Array  # [n] of bool
    firsts: Array  # [K]: where the events of each group begin
    ends: Array  # [K]: where they, and the group, end
    efron: bool
    counts: Array  # [n], positive: s, how often each row counts
    fresh: Array  # [K] of bool: whether a stratum begins with the group


class Sums(NamedTuple):
    """What is known of each group once its risk set is summed, [K] each, in units of e^unit."""

    unit: Array
    deaths: Array  # the sum of s over the events
    total: Array  # rest + tied
    hazard: Array  # r Σ 1 / D_l
    own_hazard: Array  # r Σ c_l / D_l
    lead: Array  # r Σ_l m_l m_lᵀ = p pᵀ + q qᵀ with p = lead rest_1 + mix tied_1
    mix: Array
    left: Array  # and q = left tied_1


def sort_order(time: Array, event: Array, stratum: Array | None = None) -> Array:
    """Rows by stratum, within it by falling time, within a time the censored first."""
    order = np.argsort(event, kind="stable")
    order = order[np.argsort(-time[order], kind="stable")]
    return order if stratum is None else order[np.argsort(stratum[order], kind="stable")]


def risk_sets(time: Array, event: Array, efron: bool, counts: Array, stratum: Array | None = None) -> RiskSets:
    """The groups of sorted rows."""
    stratum = np.zeros(len(time), np.int64) if stratum is None else stratum
    firsts, ends, fresh = _group(time, event, stratum)
    return RiskSets(event, firsts, ends, efron, counts, fresh)


def group(time: Array, event: Array) -> tuple[Array, Array]:
    """Of sorted rows of one stratum, where the events of each group begin and end."""
    return _group(time, event, np.zeros(len(time), np.int64))[:2]


def _group(time: Array, event: Array, stratum: Array) -> tuple[Array, Array, Array]:
    """Of sorted rows, where the events of each group begin and end, and whether the group is the first of its stratum.

    The last group of a stratum may have no events.
    """
    changes = stratum[1:] != stratum[:-1]
    closed = event[:-1] & ~(event[1:] & (time[1:] == time[:-1]))
    last = np.ones(len(time), np.bool_)
    last[:-1] = changes | closed
    ends = np.flatnonzero(last) + 1
    events = np.diff(np.cumsum(event, dtype=np.int64)[ends - 1], prepend=0)
    begins = np.append(0, ends[:-1])[: len(ends)]
    return ends - events, ends, np.append(True, changes)[begins]


@njit(borrows=True)
def _share(rest: float, tied: float, d: int, efron: bool, k: int, sums: Sums) -> float:
    """Set what group k adds up to, and return r times the sum of log D_l."""
    deaths = sums.deaths[k]
    if d == 1 or not efron:
        total = rest + tied
        sums.hazard[k] = sums.own_hazard[k] = deaths / total
        sums.lead[k] = sums.mix[k] = math.sqrt(deaths) / total
        sums.left[k] = 0.0
        return deaths * math.log(total)
    each = deaths / d
    logs, hazard, own, pp, pq, qq = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for place in range(d):
        c = 1.0 - place / d
        inverse = 1.0 / (rest + c * tied)
        logs -= math.log(inverse)
        hazard += inverse
        own += c * inverse
        pp += each * inverse * inverse
        pq += each * c * inverse * inverse
        qq += each * c * c * inverse * inverse
    sums.hazard[k], sums.own_hazard[k] = each * hazard, each * own
    sums.lead[k] = math.sqrt(pp)
    sums.mix[k] = pq / sums.lead[k]
    rest_of_qq = qq - sums.mix[k] * sums.mix[k]
    sums.left[k] = math.sqrt(rest_of_qq) if rest_of_qq > 0.0 else 0.0
    return each * logs


@njit(cache=True, borrows=True)
def weigh(h: Array, sets: RiskSets, weight: Array, sums: Sums) -> float:
    """Set w and the sums of each group; return F."""
    loss, rest, unit, begin = 0.0, 0.0, h[0], 0
    for k in range(len(sets.ends)):
        first, end = sets.firsts[k], sets.ends[k]
        if sets.fresh[k]:
            rest, unit = 0.0, h[begin]
        peak = unit
        for j in range(begin, end):
            peak = h[j] if h[j] > peak else peak
        if peak > unit + _RISE:
            rest *= math.exp(unit - peak)
            unit = peak
        for j in range(begin, end):
            weight[j] = sets.counts[j] * math.exp(h[j] - unit)
        tied, deaths = 0.0, 0.0
        for j in range(begin, first):
            rest += weight[j]
        for j in range(first, end):
            tied += weight[j]
            deaths += sets.counts[j]
            loss += sets.counts[j] * (unit - h[j])
        sums.unit[k], sums.deaths[k], sums.total[k] = unit, deaths, rest + tied
        if end > first:
            loss += _share(rest, tied, end - first, sets.efron, k, sums)
        else:
            sums.hazard[k] = sums.own_hazard[k] = 0.0
        rest, begin = rest + tied, end
    return loss


@njit(cache=True, borrows=True)
def share_groups(log_rest: Array, log_tied: Array, tied: Array, efron: bool, sums: Sums) -> float:
    """Set the sums of each group, given those over its events, over the rest of its risk set, and its deaths.

    Returns F without its linear part.
    """
    loss = 0.0
    for k in range(len(tied)):
        unit = log_rest[k] if log_rest[k] > log_tied[k] else log_tied[k]
        rest, events = math.exp(log_rest[k] - unit), math.exp(log_tied[k] - unit)
        sums.unit[k], sums.total[k] = unit, rest + events
        loss += sums.deaths[k] * unit + _share(rest, events, tied[k], efron, k, sums)
    return loss


@njit(cache=True, borrows=True)
def pass_through(sets: RiskSets, weight: Array, sums: Sums, hazard: Array) -> None:
    """Set a, the hazard that each row has passed through, earliest groups first."""
    passed, unit = 0.0, sums.unit[-1]
    for k in range(len(sets.ends) - 1, -1, -1):
        passed *= math.exp(sums.unit[k] - unit)
        unit = sums.unit[k]
        for j in range(sets.firsts[k], sets.ends[k]):
            hazard[j] = weight[j] * (passed + sums.own_hazard[k])
        passed += sums.hazard[k]
        for j in range(sets.ends[k - 1] if k else 0, sets.firsts[k]):
            hazard[j] = weight[j] * passed
        if sets.fresh[k] and k:
            passed, unit = 0.0, sums.unit[k - 1]


@njit(cache=True, borrows=True)
def scale_rows(
    block: Array,
    begin: int,
    k: int,
    sets: RiskSets,
    sums: Sums,
    weight: Array,
    hazard: Array,
    running: Array,
    spread: Array,
    means: Array,
) -> tuple[int, int]:
    """Of a block of rows, set √a x and the p and q of the groups that end in it; the next group, and how many of these.

    ``running`` carries rest_1 and tied_1, [2, d], from block to block.
    """
    used, d = 0, block.shape[1]
    for i in range(len(block)):
        j = begin + i
        root, w, side = math.sqrt(hazard[j]), weight[j], 1 if sets.event[j] else 0
        for c in range(d):
            spread[i, c] = root * block[i, c]
            running[side, c] += w * block[i, c]
        if j + 1 < sets.ends[k]:
            continue
        if sets.event[j]:
            lead, mix, left = sums.lead[k], sums.mix[k], sums.left[k]
            for c in range(d):
                means[used, c] = lead * running[0, c] + mix * running[1, c]
            used += 1
            if left > 0.0:
                for c in range(d):
                    means[used, c] = left * running[1, c]
                used += 1
        k += 1
        ended = k == len(sets.ends) or sets.fresh[k]
        change = 0.0 if ended else math.exp(sums.unit[k - 1] - sums.unit[k])
        for c in range(d):
            running[0, c] = (running[0, c] + running[1, c]) * change
            running[1, c] = 0.0
    return k, used
