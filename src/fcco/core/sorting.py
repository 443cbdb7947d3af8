"""The sums of kernels.py by sorting, in O((m + R) log R) and double precision, where there are many pairs.

The weights of candidates are [S, R], for S sums, and the same for all anchors. ``same`` lists the pairs of an anchor
and a candidate that are left out. Groups, of the anchors and of the candidates, are compared within themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fcco.core.arrays import (
    Array,
    ascending,
    at_least,
    counted,
    extremes,
    flipped,
    located,
    namespace,
    numbered,
    order_of,
    peaks,
    places_of,
    running,
    scattered,
    searched,
    stacked,
    taken,
    wide,
)
from fcco.core.surrogates import HALF_WIDTH, Surrogate

WIDEST = 500.0
"""A range of log-hazards, beyond which exponentials in double precision lose the smallest."""

TINY = 1e-300
"""In place of an empty sum, where it is divided by."""

NEAR = 64.0
"""A range of scores within which squares of distances lose no digits that matter."""

MOST_CELLS = 2.0**30
"""How many cells of the ramp all groups may have together, if they are to lie behind each other in one line."""


class Sorted(NamedTuple):
    """Sums, and half of their derivatives."""

    value: Array
    """[S, m]."""
    slope: Array
    """[S, m], minus the derivative of a sum in the anchor's score; for a derivative of 1, of bool."""
    by_candidates: Callable[[Array], Array]
    """From the gradient in the sums, [S, m], to that in the candidates' scores, [S, R], one for each sum."""


def ramp_sums(
    anchors: Array, candidates: Array, weight: Array, same: Any, group: tuple[Array, Array] | None = None
) -> Sorted:
    """Return the sums of the ramp.

    Scores are held as depths below 0. Around the depth of an anchor there are parts, of which each has a parabola; all
    candidates above the parts count in full. Moments are about places that are close to all that a part has, so that
    neither the offset nor the spread of scores costs digits.
    """
    a, d, c, square = -wide(anchors), -wide(candidates), wide(weight), HALF_WIDTH * HALF_WIDTH
    least, most = extremes(d)
    is_near = group is None and most - least < NEAR
    parts = _around_centre(a, d, (least + most) / 2) if is_near else _in_cells(a, d, group)
    order, rank, local, offset, ends, first = parts
    c, half = taken(c, order, 1), len(offset) // 2
    moments = running(stacked([c, c * local, c * (local * local)]))
    upto = taken(moments, ends.reshape(-1), 2).reshape(3, len(c), *ends.shape)
    mass, one, two = upto[:, :, 1:] - upto[:, :, :-1]
    above = upto[0, :, half] if first is None else upto[0, :, half] - taken(moments[0], first, 1)
    value = above - _signed((offset * mass - 2 * one) * offset + two) / (2 * square)
    slope = _signed(one - offset * mass) / square

    def by_candidates(grad: Array) -> Array:
        """What a part's candidates get is linear in their place: added where it begins, taken off at its end."""
        grad = taken(wide(grad), rank, 1)[:, None] / square
        lines = stacked([grad * offset, grad + 0 * offset])
        lines[:, :, :half] *= -1
        steps = namespace(c).concatenate([lines[:, :, :1], lines[:, :, 1:] - lines[:, :, :-1], -lines[:, :, -1:]], 2)
        passing = counted(ends.reshape(-1), len(local) + 1, steps.reshape(2 * len(c), -1))
        level, tilt = passing.cumsum(1)[:, :-1].reshape(2, *c.shape)
        return scattered(c * (level - tilt * local), order)

    sums = Sorted(scattered(value, rank), scattered(slope, rank), by_candidates)
    return _without(same, sums, Surrogate("ramp"), a, d, wide(weight), -1.0)


def _around_centre(a: Array, d: Array, centre: Array) -> tuple[Array, ...]:
    """Return two parts for each anchor, above and below it, about one centre; see :func:`_in_cells`."""
    place, local = a - centre, d - centre
    order, rank = order_of(local, stable=False), order_of(place, stable=False)
    place, local = taken(place, rank), taken(local, order)
    above, below = place - HALF_WIDTH, place + HALF_WIDTH
    ends = [searched(local, edge) for edge in (above, place, below)]  # a search is fast for numbers in order
    return order, rank, local, stacked([above, below]), stacked(ends), None


def _in_cells(a: Array, d: Array, group: tuple[Array, Array] | None) -> tuple[Array, ...]:
    """Return four parts for each anchor, as its cell divides those above and below it; a cell is half a ramp wide.

    They are: the orders of candidates and anchors by depth; and in these, the places of candidates in their cells,
    those of the ends of parabolas in the cells of parts, how many candidates there are up to the ends of parts, and up
    to the first of the group.
    """
    xp, width = namespace(d), HALF_WIDTH
    (home, place), (cell, local) = _cells(a), _cells(d)
    if group is None:  # far from 0, where neighbouring numbers are further apart, an anchor meets its equals only
        reach = width * (abs(a) < width / xp.finfo(a.dtype).eps)
        key, first, edges = d, None, stacked([a - reach, home * width, a, (home + 1) * width, a + reach])
    else:  # the cells of a group lie behind those of the last; what is lost of a place moves no candidate by a cell
        start, part = cell.min(), (1 - 2.0**-20) / width
        cells = cell.max() - start + 1
        key = cell - start + local.clip(0, width * (1 - 2.0**-50)) * part + group[1] * cells
        at, behind = (home - start).clip(-2, cells + 1), group[0] * cells
        edges = stacked([at - 1 + place * part, at, at + place * part, at + 1, at + 1 + place * part])
        edges, first = edges.clip(0, cells) + behind, behind
    order, rank = order_of(key, stable=False), order_of(edges[2], stable=False)
    key, local, place, edges = taken(key, order), taken(local, order), taken(place, rank), taken(edges, rank, 1)
    ends = searched(key, edges.reshape(-1)).reshape(edges.shape)
    here = searched(key, edges[2], side="right")
    if first is not None:
        first = taken(first, rank)
        here, first = xp.minimum(here, searched(key, first + cells)), searched(key, first)
    ahead, behind = xp.minimum(ends[1], here), xp.maximum(ends[3], here)
    ends = stacked([xp.minimum(ends[0], ahead), ahead, here, behind, xp.maximum(ends[4], behind)])
    return order, rank, local, stacked([place, place - width, place + width, place]), ends, first


def _cells(depth: Array) -> tuple[Array, Array]:
    """Return the cell of each depth, and the place in it."""
    cell = namespace(depth).floor(depth / HALF_WIDTH)
    cell = cell - 1.0 * (cell * HALF_WIDTH > depth)  # a tiny negative depth, whose quotient is 0
    return cell, depth - cell * HALF_WIDTH


def _signed(parts: Array) -> Array:
    """Return the parts above an anchor, less those below it."""
    if parts.shape[1] == 2:
        return parts[:, 0] - parts[:, 1]
    return parts[:, 0] + parts[:, 1] - parts[:, 2] - parts[:, 3]


def hinge_sums(anchors: Array, candidates: Array, weight: Array, same: Any, surrogate: Surrogate) -> Sorted:
    """Return the sums of a hinge, or of its square, in one sweep down over anchors and candidates.

    The sum of hinges is the integral of the count of those above, and that of squares twice the integral of hinges.
    All summands have one sign, whereas moments would subtract large numbers from each other.
    """
    xp, m, power = namespace(candidates), len(anchors), 2 if surrogate.name == "squared_hinge" else 1
    a, c = wide(anchors), wide(weight)
    lowered = a - surrogate.margin
    step = lowered - a
    lost = (a - (lowered - step)) - (surrogate.margin + step)  # the rounding error of this difference
    lost = lost * (abs(lost) > surrogate.margin * 2.0**-20)  # a candidate at the kink stays there
    level = xp.concatenate([lowered, wide(candidates)])
    rest = xp.concatenate([lost, 0 * wide(candidates)])
    by_rest = order_of(-rest)
    order = taken(by_rest, order_of(-taken(level, by_rest)))
    level, rest = taken(level, order), taken(rest, order)
    gap = xp.concatenate([0 * level[:1], (level[:-1] - level[1:]) + (rest[:-1] - rest[1:])])
    sums = [taken(xp.concatenate([xp.zeros_like(c[:, :1]) + 0 * a, c], 1), order, 1).cumsum(1)]
    before = _shifted(sums[0])
    sums.append((gap * before).cumsum(1))
    if power == 2:
        sums.append((gap * (2 * _shifted(sums[1]) + gap * before)).cumsum(1))
    made = [scattered(part, order)[:, :m] for part in sums]

    def by_candidates(grad: Array) -> Array:
        padded = xp.concatenate([wide(grad), 0 * c], 1)
        below = xp.flip(xp.flip(taken(padded, order, 1), (1,)).cumsum(1), (1,))  # of the anchors from here on down
        if power == 2:
            part = xp.flip(xp.flip(_shifted(gap * below, back=True), (1,)).cumsum(1), (1,))
            below = 2 * part
        return c * scattered(below, order)[:, m:]

    of_all = Sorted(made[power], power * made[power - 1], by_candidates)
    return _without(same, of_all, surrogate, a, wide(candidates), c)


def _shifted(sums: Array, back: bool = False) -> Array:
    xp = namespace(sums)
    return xp.concatenate([sums[:, 1:], 0 * sums[:, :1]] if back else [0 * sums[:, :1], sums[:, :-1]], 1)


def _without(
    same: Any, sums: Sorted, surrogate: Surrogate, anchors: Array, candidates: Array, weight: Array, sign: float = 1.0
) -> Sorted:
    """Return the sums without some pairs; scores may be given as depths."""
    if same is None:
        return sums
    away = taken(candidates, same.candidates[:1] if same.is_each else same.candidates)
    away = 0 * away if same.is_each else away - taken(anchors, same.anchors)
    value, slope = surrogate(sign * away)
    own = taken(weight, same.candidates, 1)

    def by_candidates(grad: Array) -> Array:
        return same.off_candidates(sums.by_candidates(grad), slope * own * same.at_anchors(wide(grad)))

    return Sorted(same.off_anchors(sums.value, value * own), same.off_anchors(sums.slope, slope * own), by_candidates)


def ordered_log_sums(
    anchors: Array, candidates: Array, keys: Array, candidate_keys: Array, weight: Array, same: Any
) -> Sorted:
    """Return the logarithms of the sums of e^(h_j - h_i) over the candidates whose key is at or above the anchor's.

    Log-hazards are relative to the largest. The slope is 1, and -inf stands for an empty sum.
    """
    xp, size, order = namespace(candidates), len(candidates), order_of(candidate_keys, stable=False)
    e = weight * xp.exp(wide(candidates))
    first = located(taken(candidate_keys, order), keys)
    total = taken(running(flipped(taken(e, order, 1))), size - first, 1)
    if same is not None:
        own = taken(e, same.candidates, 1)
        if not same.is_each:  # copies may have other keys
            own = own * (taken(candidate_keys, same.candidates) >= taken(keys, same.anchors))
        total = at_least(same.off_anchors(total, own), 0)
    is_some = total > 0

    def by_candidates(grad: Array) -> Array:
        per = wide(grad) * is_some / at_least(total, TINY)
        result = e * scattered(counted(first, size + 1, per)[:, :-1].cumsum(1), order)
        return result if same is None else same.off_candidates(result, own * same.at_anchors(per))

    return Sorted(xp.log(total) - anchors, is_some, by_candidates)


def grouped_log_sums(
    anchors: Array,
    candidates: Array,
    weight: Array,
    same: Any,
    group: tuple[Array, Array],
    keys: tuple[Array, Array] | None = None,
    tau: float | Array = 1.0,
) -> Sorted | None:
    """Return the logarithms of the sums of e^((h_j - h_i) / tau), with keys only of those at or above the anchor's.

    None: the scores of a group are too far apart.
    """
    xp, size = namespace(candidates), int(max(part.max() for part in group)) + 1
    peak, taus = peaks(group[1], size, wide(candidates)), (tau, tau)
    if getattr(tau, "ndim", None):  # each group has its own
        taus = taken(tau, group[0]), taken(tau, group[1])
    below = (wide(candidates) - taken(peak, group[1])) / taus[1]
    if not below.min() > -WIDEST:
        return None
    e, above = wide(weight) * xp.exp(below), (wide(anchors) - taken(peak, group[0]).clip(-1e300, None)) / taus[0]
    if keys is None:
        collect, give = _within_groups(group, size)
    else:
        collect, give = _at_or_above(group, keys)
    total = collect(e)
    if same is not None:
        own = taken(e, same.candidates, 1)
        if keys is not None:
            own = own * (taken(keys[1], same.candidates) >= taken(keys[0], same.anchors))
        total = (total - counted(same.anchors, len(anchors), own)).clip(0, None)

    def by_candidates(grad: Array) -> Array:
        per = xp.where(total > 0, wide(grad) / xp.where(total > 0, total, 1.0), 0.0)
        result = give(per) * e
        if same is not None:
            result = result - counted(same.candidates, len(candidates), own * taken(per, same.anchors, 1))
        return result

    return Sorted(xp.log(total) - above, (total > 0) * xp.ones_like(above), by_candidates)


Linear = Callable[[Array], Array]


def _within_groups(group: tuple[Array, Array], size: int) -> tuple[Linear, Linear]:
    """Return the map from values of candidates, [S, R], to the sums that anchors see, [S, m], and its transpose."""
    one, other = group
    return lambda v: taken(counted(other, size, v), one, 1), lambda v: taken(counted(one, size, v), other, 1)


def _at_or_above(group: tuple[Array, Array], keys: tuple[Array, Array]) -> tuple[Linear, Linear]:
    """Return the same maps, of the candidates whose key is at or above the anchor's."""
    xp, (one, other), count = namespace(keys[0]), group, len(keys[1]) + 1
    rank = [searched(ascending(keys[1]), part) for part in keys]
    line = other * count - rank[1]  # group after group, from the highest key down
    order = order_of(line)
    line, ordered = taken(line, order), taken(other, order)
    first = searched(ordered, ordered)
    place, rest = numbered(len(line), order) - first, searched(ordered, ordered, side="right")
    rest = xp.flip(rest - first - 1 - place, (0,))
    last = searched(line, one * count - rank[0], side="right") - 1
    sees, last = last >= searched(ordered, one), last.clip(0, None)

    def collect(values: Array) -> Array:
        return taken(_running_sums(taken(values, order, 1), place), last, 1) * sees

    def give(values: Array) -> Array:
        per = xp.flip(counted(last, len(order), values), (1,))
        return scattered(xp.flip(_running_sums(per, rest), (1,)), order)

    return collect, give


def _running_sums(values: Array, place: Array) -> Array:
    """Return the sums up to each value, [S, R], within segments in which it has a place.

    Each pass doubles what a sum covers. Sums over all segments, less those of former ones, would lose digits.
    """
    xp, step, most = namespace(values), 1, int(place.max())
    while step <= most:
        before = xp.concatenate([0 * values[:, :step], values[:, :-step]], 1)
        values, step = values + before * (place >= step), 2 * step
    return values


def in_groups(
    sums: Callable[..., Sorted],
    of_anchors: tuple[Array, ...],
    of_candidates: tuple[Array, ...],
    weight: Array,
    same: Any,
    group: tuple[Array, Array],
) -> Sorted:
    """Return the sums of every group by itself, one after the other."""
    value = 0 * wide(weight[:, :1]) + 0 * wide(of_anchors[0])
    value, slope, parts = value - float("inf"), value, []
    for number in sorted(set(group[0].tolist())):
        some, others = places_of(group[0] == number), places_of(group[1] == number)
        at = None if same is None else _within(same, some, others)
        columns = *(taken(c, some) for c in of_anchors), *(taken(c, others) for c in of_candidates)
        made = sums(*columns, taken(weight, others, 1), at)
        value[:, some], slope[:, some] = made.value, made.slope
        parts.append((some, others, made))

    def by_candidates(grad: Array) -> Array:
        result = 0 * wide(weight)
        for some, others, made in parts:
            result[:, others] = made.by_candidates(taken(grad, some, 1))
        return result

    return Sorted(value, slope, by_candidates)


def _within(same: Any, some: Array, others: Array) -> Any:
    """Return the pairs of some anchors, whose candidates are others, by their places among these."""
    mine = places_of((some[searched(some, same.anchors).clip(None, len(some) - 1)]) == same.anchors)
    anchors, candidates = taken(same.anchors, mine), taken(same.candidates, mine)
    return same._replace(is_each=False, anchors=searched(some, anchors), candidates=searched(others, candidates))
