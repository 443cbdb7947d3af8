"""Sums over the candidates of each anchor, with their derivatives: the only ones, with sorting.py, written by hand.

A sum is taken for each *relation* that a candidate can have to an anchor, such as positive and negative; it is the
bare sum over those that are there, [S, m]. Every kernel returns its value and ``backward(grad, side, scale)``, like the
second result of ``torch.func.vjp``: the gradients in the anchors and in the candidates, or in one side alone.
``scale``, [1, R] or [S, R], multiplies what a candidate gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from fcco.core.arrays import (
    Array,
    ascending,
    can_read,
    cast,
    counted,
    extremes,
    namespace,
    numbered,
    ones,
    order_of,
    repeated,
    row_peaks,
    row_sums,
    stacked,
    taken,
    wide,
)
from fcco.core.sorting import (
    MOST_CELLS,
    TINY,
    WIDEST,
    Sorted,
    grouped_log_sums,
    hinge_sums,
    in_groups,
    ordered_log_sums,
    ramp_sums,
)
from fcco.core.surrogates import HALF_WIDTH, Surrogate

MANY = 60_000
"""Pairs from which on sorting scores takes less time than comparing all."""
GROUPED = 10_000
"""Pairs from which on sums of exponentials within groups do."""

FEW = 2_000
"""Pairs up to which comparing all takes less time than finding those of each group."""

Side = Literal["anchors", "candidates", "both"]
Backward = Callable[..., Any]


class Same(NamedTuple):
    """The pairs of an anchor and a candidate that are one example: they are in no sum."""

    anchors: Array
    """[p], which anchor; or where places cannot be known, the rows of the anchors, [m]."""
    candidates: Array
    """[p], which candidate; or the rows of the candidates, [R]."""
    is_sparse: bool = True
    """Whether these are places rather than rows."""
    is_each: bool = False
    """Whether there is one pair for each of the first anchors, in their order: the anchor itself, and no copy."""

    def at_anchors(self, values: Array) -> Array:
        """Return for each pair what belongs to its anchor, given [m] or [S, m]."""
        return values[..., : len(self.anchors)] if self.is_each else taken(values, self.anchors, -1)

    def off_anchors(self, values: Array, parts: Array) -> Array:
        """Return values of the anchors, [S, m], less the parts of their pairs, [S, p]; ``values`` may change."""
        if not self.is_each:
            return values - counted(self.anchors, values.shape[1], parts)
        values[:, : len(self.anchors)] -= parts
        return values

    def off_candidates(self, values: Array, parts: Array) -> Array:
        """Return values of the candidates, [S, R], less the parts of their pairs; ``values`` may change."""
        if not self.is_each:
            return values - counted(self.candidates, values.shape[1], parts)
        values[:, self.candidates] -= parts
        return values

    def without(self, pairs: Array, fill: float = 0.0) -> Array:
        """Return pairs, [m, R], of which those of an example with itself are ``fill``; ``pairs`` may change."""
        if not self.is_sparse:
            return namespace(pairs).where(self.anchors[:, None] == self.candidates, fill, pairs)
        pairs[self.anchors, self.candidates] = fill
        return pairs

    def copies(self, weight: Array, size: int, *, of_candidates: bool = False) -> Array:
        """Return how often each anchor is among the candidates, [m], or each candidate among the anchors, [R]."""
        if not self.is_sparse:
            alike = (self.anchors[:, None] == self.candidates) * (weight[:, None] if of_candidates else weight)
            return alike.sum(0 if of_candidates else 1)
        one, other = (self.candidates, self.anchors) if of_candidates else (self.anchors, self.candidates)
        return counted(one, size, taken(weight, other))


class Pairs(NamedTuple):
    """Which candidates an anchor is compared with, and as what."""

    relations: tuple[Array, ...]
    """For each relation, which candidates are in it: [R] or [m, R] of bool; None: all."""
    weight: Array | None = None
    """[R], how often a candidate counts: 0 for an empty place; None: once."""
    same: Same | None = None
    group: tuple[Array, Array] | None = None
    """Of the anchors, [m], and of the candidates, [R]: integers from 0 on; those of other groups are in no relation."""

    def columns(self, like: Array, *, dense: bool = False) -> list[Array]:
        """Return the weights of the candidates in each relation, [R] or [m, R]."""
        weight = ones(like) if self.weight is None else self.weight
        columns = [weight if mask is None else weight * mask for mask in self.relations]
        if self.group is None or not dense:
            return columns
        alike = self.group[0][:, None] == self.group[1]
        return [column * alike for column in columns]

    def can_sort(self, like: Array) -> bool:
        """Return whether sums can be taken by sorting."""
        is_known = self.same is None or self.same.is_sparse
        return is_known and can_read(like) and all(mask is None or mask.ndim == 1 for mask in self.relations)

    def cells(self, anchors: Array, candidates: Array) -> tuple[Cells, Pairs]:
        """Return a matrix for these pairs, and the pairs in it: all, or those of each anchor's group alone."""
        m, size = len(anchors), len(candidates)
        if self.group is None or m * size <= FEW or not self.can_sort(anchors):
            return Cells(), self
        xp, (of_anchors, group) = namespace(candidates), self.group
        groups = 1 + max(int(of_anchors.max()), int(group.max()))
        counts, order = counted(group, groups, xp.ones_like(group)), order_of(group)
        slot = numbered(size, group) - repeated(counts.cumsum(0) - counts, counts)
        places = xp.zeros_like(group[:1]) + size
        places = places.repeat(groups * int(counts.max())).reshape(groups, -1)
        places[taken(group, order), slot] = order
        cells, same = Cells(taken(places, of_anchors), size), self.same
        if same is not None:
            slots = xp.zeros_like(group)
            slots[order] = slot
            same = same._replace(candidates=taken(slots, same.candidates))
        weight = cells.taken(ones(candidates) if self.weight is None else self.weight)
        return cells, Pairs(tuple(None if k is None else cells.taken(k) for k in self.relations), weight, same)


class Cells(NamedTuple):
    """Which candidates a matrix of pairs has in the row of each anchor."""

    places: Array | None = None
    """[m, W], and R where there are fewer; None: all R."""
    size: int = 0

    def taken(self, values: Array | None) -> Array:
        """Return what belongs to each pair, given [R] or [S, R] of the candidates."""
        if values is None or self.places is None:
            return values
        xp = namespace(values)
        padded = xp.concatenate([values, xp.zeros_like(values[..., :1])], -1)
        return taken(padded, self.places.reshape(-1), -1).reshape(*values.shape[:-1], *self.places.shape)

    def to_scores(self, by_pair: Array, side: Side) -> Any:
        """Return the gradients in the anchors' and the candidates' scores, given those in their differences."""
        if self.places is None or side == "anchors":
            return to_scores(by_pair, side)
        of_candidates = counted(self.places.reshape(-1), self.size + 1, by_pair.reshape(-1))[:-1]
        return (None if side == "candidates" else -by_pair.sum(1),), (of_candidates,)


def score_sums(
    anchors: Array, candidates: Array, surrogate: Surrogate, pairs: Pairs, tau: float | Array = 1.0
) -> tuple[Array, Backward]:
    """Return the sums of surrogate((h_j - h_i) / tau); their logarithms for ``exp``."""
    if surrogate.log:
        return score_log_sums(anchors, candidates, pairs, tau)
    if surrogate.sorts and pairs.can_sort(anchors) and len(anchors) * _width(pairs, candidates) > MANY:
        return _sorted_sums(anchors, candidates, surrogate, pairs, tau)
    tau, (cells, pairs) = of_anchors(tau, pairs), pairs.cells(anchors, candidates)
    t, columns = differences(anchors, cells.taken(candidates), tau), pairs.columns(candidates, dense=True)
    if surrogate.overflows:  # on a pair that is in no relation, and 0 * inf is not 0
        t = namespace(t).where(sum(columns[1:], columns[0]) > 0, t, 0.0)
    value, slope = surrogate(t)
    if pairs.same is not None:
        value, slope = pairs.same.without(value), pairs.same.without(slope)
    if all(c.ndim == 1 for c in columns):  # two products of matrices, and no further matrix of pairs
        c = stacked(columns)

        def by_products(grad: Array, side: Side = "both", scale: Array | None = None) -> Any:
            grad = divided(grad, tau)
            to_anchors = None if side == "candidates" else -((c @ slope.T) * grad).sum(0)
            to_candidates = None if side == "anchors" else ((grad @ slope) * scaled(c, scale)).sum(0)
            return (to_anchors,), (to_candidates,)

        return c @ value.T, by_products

    def backward(grad: Array, side: Side = "both", scale: Array | None = None) -> Any:
        return cells.to_scores(slope * spread(divided(grad, tau), columns, cells.taken(scale)), side)

    return namespace(candidates).stack([(value * c).sum(1) for c in columns]), backward


def of_anchors(tau: float | Array, pairs: Pairs) -> float | Array:
    """Return the temperature, or that of each anchor, [m], if each group has its own."""
    return taken(tau, pairs.group[0]) if pairs.group is not None and getattr(tau, "ndim", None) else tau


def _width(pairs: Pairs, candidates: Array) -> int:
    """Return with how many candidates an anchor is compared at most."""
    if pairs.group is None or not len(candidates):
        return len(candidates)
    group = pairs.group[1]
    return int(counted(group, int(group.max()) + 1, namespace(group).ones_like(group)).max())


def _sorted_sums(
    anchors: Array, candidates: Array, surrogate: Surrogate, pairs: Pairs, tau: float | Array
) -> tuple[Array, Backward]:
    group, same, scores = pairs.group, pairs.same, (anchors, candidates)
    weight = stacked(pairs.columns(candidates))
    if group is not None and getattr(tau, "ndim", None):
        scores = wide(anchors) / taken(tau, group[0]), wide(candidates) / taken(tau, group[1])
        tau = taken(tau, group[0])
    elif not is_one(tau):
        scores = wide(anchors) / tau, wide(candidates) / tau
    sums: Callable[..., Sorted] = ramp_sums if surrogate.name == "ramp" else partial(hinge_sums, surrogate=surrogate)
    if group is None:
        made = sums(*scores, weight, same)
    elif surrogate.name == "ramp" and _cells_of(scores[1], group[1]) < MOST_CELLS:
        made = ramp_sums(*scores, weight, same, group)
    else:
        made = in_groups(sums, scores[:1], scores[1:], weight, same, group)
    return _finish(made, anchors, tau)


def _cells_of(scores: Array, group: Array) -> float:
    return float((scores.max() - scores.min()) / HALF_WIDTH + 2) * float(group.max() + 1)


def _finish(made: Sorted, like: Array, tau: float | Array = 1.0) -> tuple[Array, Backward]:
    """Return sorted sums as a kernel does."""

    def backward(grad: Array, side: Side = "both", scale: Array | None = None) -> Any:
        grad = divided(grad, tau)
        to_anchors = None if side == "candidates" else cast(-added_up(made.slope * grad), like)
        to_candidates = None if side == "anchors" else cast(added_up(scaled(made.by_candidates(grad), scale)), like)
        return (to_anchors,), (to_candidates,)

    return cast(made.value, like), backward


def log_sums_from(
    anchors: Array, candidates: Array, keys: Array, candidate_keys: Array, pairs: Pairs
) -> tuple[Array, Backward]:
    """Return the logarithms of the sums of e^(h_j - h_i) over the candidates whose key is at or above the anchor's."""
    if pairs.group is not None:
        made = _grouped(anchors, candidates, pairs, (keys, candidate_keys))
        if made is not None:
            return _finish(made, anchors)
    elif pairs.can_sort(anchors) and len(candidates):
        least, peak = extremes(candidates)
        if peak - least < WIDEST:
            weight = stacked(pairs.columns(candidates))
            scores = anchors - peak, candidates - peak
            return _finish(ordered_log_sums(*scores, keys, candidate_keys, weight, pairs.same), anchors)
    above = candidate_keys >= keys[:, None]
    relations = tuple(above if mask is None else above & mask for mask in pairs.relations)
    return score_log_sums(anchors, candidates, pairs._replace(relations=relations))


def _grouped(
    anchors: Array, candidates: Array, pairs: Pairs, keys: tuple[Array, Array] | None = None, tau: float | Array = 1.0
) -> Sorted | None:
    """Return sums within groups without comparing all pairs, if there are many and their digits allow it."""
    if not (len(anchors) * len(candidates) > GROUPED and pairs.can_sort(anchors)):
        return None
    xp = namespace(candidates)
    group = pairs.group or tuple(0 * numbered(len(x), x) for x in (anchors, candidates))
    weight = xp.stack(pairs.columns(candidates))
    return grouped_log_sums(anchors, candidates, weight, pairs.same, group, keys, tau)


def _shared(anchors: Array, candidates: Array, pairs: Pairs, tau: float | Array = 1.0) -> Sorted | None:
    """Return logarithms of sums that differ between anchors by their own scores alone, if all have the same pairs."""
    is_one = len(pairs.relations) == 1 and getattr(pairs.relations[0], "ndim", 1) == 1
    if not is_one or pairs.same is not None or pairs.group is not None or getattr(tau, "ndim", None):
        return None
    xp, (weight,) = namespace(candidates), pairs.columns(candidates)
    t = xp.where(weight > 0, wide(candidates), -math.inf)
    peak = t.max()
    peak = xp.where(peak > -math.inf, peak, 0.0)
    e = weight * xp.exp((t - peak) / tau)
    total, slope = e.sum(), (wide(anchors) - peak)[None]

    def by_candidates(grad: Array) -> Array:
        return e[None] * (wide(grad).sum() / (total + TINY))

    return Sorted(xp.log(total) - slope / tau, 0 * slope + (total > 0), by_candidates)


def score_log_sums(anchors: Array, candidates: Array, pairs: Pairs, tau: float | Array = 1.0) -> tuple[Array, Backward]:
    """Return the logarithms of the sums of exp((h_j - h_i) / tau)."""
    made = _shared(anchors, candidates, pairs, tau) or _grouped(anchors, candidates, pairs, None, tau)
    if made is not None:
        return _finish(made, anchors, of_anchors(tau, pairs))
    tau, (cells, pairs) = of_anchors(tau, pairs), pairs.cells(anchors, candidates)
    logs, back = log_sums(differences(anchors, cells.taken(candidates), tau), pairs)

    def backward(grad: Array, side: Side = "both", scale: Array | None = None) -> Any:
        return cells.to_scores(back(divided(grad, tau), cells.taken(scale)), side)

    return logs, backward


def surrogate_log_sums(
    anchors: Array, candidates: Array, surrogate: Surrogate, pairs: Pairs, tau: float = 1.0
) -> tuple[Array, Backward]:
    """Return the logarithms of the sums of exp(surrogate(h_j - h_i) / tau)."""
    cells, pairs = pairs.cells(anchors, candidates)
    value, slope = surrogate(differences(anchors, cells.taken(candidates)))
    logs, back = log_sums(value / tau, pairs)

    def backward(grad: Array, side: Side = "both", scale: Array | None = None) -> Any:
        by_pair = back(divided(grad, tau), cells.taken(scale))  # a pair in no relation may have a slope of inf
        return cells.to_scores(namespace(by_pair).where(by_pair == 0, by_pair, by_pair * slope), side)

    return logs, backward


def moments(anchors: Array, candidates: Array, pairs: Pairs, groups: int) -> tuple[Array, Backward]:
    """Return the sums of h_j for the first two relations, and of their squares for the others, in double precision."""
    xp, h, of_anchors, of_candidates = namespace(candidates), wide(candidates), None, None
    if pairs.group is not None:
        of_anchors, of_candidates = pairs.group
    c = wide(xp.stack(pairs.columns(candidates)))
    values, slopes = xp.stack([h, h, h * h, h * h]) * c, xp.stack([0 * h + 1, 0 * h + 1, 2 * h, 2 * h]) * c

    def total(values: Array, group: Array | None, other: Array | None) -> Array:
        return values.sum(1)[:, None] if group is None else taken(counted(group, groups, values), other, 1)

    def backward(grad: Array, side: Side = "both", scale: Array | None = None) -> Any:
        to_candidates = scaled(slopes * total(wide(grad), of_anchors, of_candidates), scale).sum(0)
        return (0 * anchors,), (cast(to_candidates, candidates),)

    return total(values, of_candidates, of_anchors) + 0 * wide(anchors), backward


def places(anchors: Array, candidates: Array, pairs: Pairs) -> Array:
    """Return how many candidates of the first relation are level with each anchor, and how many above it, [2, m]."""
    xp, weight, same = namespace(candidates), pairs.columns(candidates)[0], pairs.same
    ordered = ascending(xp.where(weight > 0, candidates, math.inf))
    below, upto = (cast(xp.searchsorted(ordered, anchors, side=side), candidates) for side in ("left", "right"))
    counts = xp.stack([upto - below, weight.sum() - upto])
    if same is None:
        return counts
    if not same.is_sparse:
        t, alike = differences(anchors, candidates), (same.anchors[:, None] == same.candidates) * weight
        return counts - xp.stack([(alike * (t == 0)).sum(1), (alike * (t > 0)).sum(1)])
    t, own = taken(candidates, same.candidates) - taken(anchors, same.anchors), taken(weight, same.candidates)
    return counts - counted(same.anchors, len(anchors), xp.stack([own * (t == 0), own * (t > 0)]))


def log_sums(t: Array, pairs: Pairs) -> tuple[Array, Callable[..., Array]]:
    """Return the logarithms of the sums of e^t, [S, m]; -inf, without a gradient, if empty. ``t`` is overwritten.

    The gradient is that in t, [m, R]. The sums share a matrix of exponentials, unless one of them would vanish in it.
    """
    xp, many = namespace(t), len(pairs.relations) > 1
    masks = pairs.relations
    if pairs.group is not None:
        alike = pairs.group[0][:, None] == pairs.group[1]
        masks = tuple(alike if mask is None else alike & mask for mask in masks)
    if pairs.weight is not None:
        t += xp.log(pairs.weight)
    if pairs.same is not None:
        t = pairs.same.without(t, -math.inf)
    if not many and masks[0] is not None:
        t, masks = xp.where(masks[0] > 0, t, -math.inf), (None,)
    room = 0.35 * math.log(xp.finfo(t.dtype).max) if many else 0.0  # below the largest number; it costs digits
    e, peak = _exponentials(t, room)
    parts = [(e, peak, mask) for mask in masks]
    totals = [row_sums(e if mask is None else e * mask) for mask in masks]
    if many and not (can_read(t) and all(_is_exact(total, t, mask) for total, mask in zip(totals, masks, strict=True))):
        parts = [(*_exponentials(t if mask is None else xp.where(mask > 0, t, -math.inf)), None) for mask in masks]
        totals = [row_sums(e) for e, _, _ in parts]

    def backward(grad: Array, scale: Array | None = None) -> Array:
        by_pair: Any = None
        for k, (row, total, (e, _, mask)) in enumerate(zip(grad, totals, parts, strict=True)):
            part = e * (row / xp.where(total > 0, total, 1.0))[:, None]
            if mask is not None:
                part *= mask
            if scale is not None:
                part *= scale[min(k, len(scale) - 1)]
            if by_pair is None:
                by_pair = part
            else:
                by_pair += part
        return by_pair

    return xp.stack([xp.log(total) + peak for total, (_, peak, _) in zip(totals, parts, strict=True)]), backward


def logsumexp(t: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the sum of e^t in each row; unlike torch's, it has a gradient, 0, where all are -inf.

    Parameters
    ----------
    t : Tensor of shape (m, R)
        The logarithms; -inf for those that do not count.

    Returns
    -------
    Tensor of shape (m,)
        The logarithms of the sums, -inf where nothing counts.

    Examples
    --------
    >>> logsumexp(torch.tensor([[0.0, 0.0], [-math.inf, 0.0], [-math.inf, -math.inf]]))
    tensor([0.6931, 0.0000,   -inf])
    """
    is_empty = ~(t > -math.inf).any(1)
    return t.masked_fill(is_empty[:, None], 0.0).logsumexp(1).masked_fill(is_empty, -math.inf)


def _exponentials(t: Array, room: float = 0.0) -> tuple[Array, Array]:
    """Return e^(t - peak), of which the largest is e^room, and the peak of each row."""
    xp = namespace(t)
    peak = row_peaks(t) if t.shape[1] else 0.0 * t.sum(1)
    peak = xp.where(peak > -math.inf, peak, 0.0) - room
    e = t - peak[:, None]
    return xp.exp(e, out=e), peak


def _is_exact(total: Array, t: Array, mask: Array | None) -> bool:
    """Return whether no terms of a sum are too small for the type of number."""
    kind = namespace(t).finfo(t.dtype)
    faint = total < kind.tiny / kind.eps
    return mask is None or not faint.any() or not ((mask > 0) & faint[:, None] & (t > -math.inf)).any()


def differences(anchors: Array, candidates: Array, tau: float | Array = 1.0) -> Array:
    """Return (h_j - h_i) / tau, [m, R]. Scores are not divided themselves, which could cost digits."""
    t = candidates - anchors[:, None]
    if is_one(tau):
        return t
    return t / tau if isinstance(tau, float) or not tau.ndim else t / tau[:, None]


def divided(grad: Array, tau: float | Array) -> Array:
    """Return gradients divided by a temperature."""
    return grad if is_one(tau) else grad / tau


def is_one(tau: float | Array) -> bool:
    """Return whether a temperature is known to be 1, without reading it from an array."""
    return isinstance(tau, float) and tau == 1.0


def minus_squared_distances(anchors: Array, candidates: Array, weight: Array) -> tuple[Array, Backward]:
    """Return -|z_i - z_j|², [m, R]. The mean of the candidates that count is taken off, which would cost digits."""
    centre = weight @ candidates / (weight.sum() + 1e-30)  # of which there may be none
    a, b = anchors - centre, candidates - centre
    t = (2 * a) @ b.T
    t -= row_sums(a * a)[:, None]
    t -= row_sums(b * b)

    def backward(grad: Array, side: Side = "both") -> Any:
        to_anchors = None if side == "candidates" else 2 * (grad @ b - row_sums(grad)[:, None] * a)
        to_candidates = None if side == "anchors" else 2 * (grad.T @ a - row_sums(grad.T)[:, None] * b)
        return (to_anchors,), (to_candidates,)

    return t, backward


def added_up(values: Array) -> Array:
    """Return the sum over relations."""
    return values[0] if len(values) == 1 else values.sum(0)


def scaled(values: Array, scale: Array | None) -> Array:
    """Return what the candidates get, [S, R], times a scale, [1, R] or [S, R]."""
    return values if scale is None else values * scale


def spread(grad: Array, columns: list[Array], scale: Array | None) -> Array:
    """Return what each pair gets, [m, R], given the gradient in each sum."""
    by_pair: Any = 0.0
    for k, (row, c) in enumerate(zip(grad, columns, strict=True)):
        by_pair = by_pair + row[:, None] * (c if scale is None else c * scale[min(k, len(scale) - 1)])
    return by_pair


def to_scores(by_pair: Array, side: Side) -> Any:
    """Return the gradients in the anchors' and the candidates' scores, given those in their differences."""
    return (None if side == "candidates" else -by_pair.sum(1),), (None if side == "anchors" else by_pair.sum(0),)
