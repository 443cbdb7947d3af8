"""Weighted sums of a surrogate over pairs of scores in NumPy, and their gradients: pair by pair, or by sorting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fcco.functional._hinges import lost_digits
from fcco.functional._ramps import HALF_WIDTH
from fcco.functional._surrogates import Surrogate

Array = NDArray[Any]


def value_and_slope(surrogate: Surrogate, t: Array) -> tuple[Array, Array]:
    """Return ℓ(t) and ℓ'(t) of a surrogate that has a name, as arrays of their own; ``t`` may be overwritten."""
    if not surrogate.is_ramp:
        made = surrogate.value_and_slope(torch.from_numpy(t))
        return made[0].numpy(), (made[1].clone() if made[1] is made[0] else made[1]).numpy()
    t /= HALF_WIDTH
    values, slopes = _ramps(t)
    slopes /= HALF_WIDTH
    return values, slopes


def _ramps(t: Array) -> tuple[Array, Array]:
    """Return the ramp, 1/2 + r - r|r| / 2 for r = t / δ clipped to [-1, 1], in the place of r, and δ · slope."""
    np.minimum(t, 1, out=t)  # np.clip takes longer than both
    np.maximum(t, -1, out=t)
    slopes = np.abs(t)
    np.subtract(1, slopes, out=slopes)
    t += t * slopes
    t *= 0.5
    t += 0.5
    return t, slopes


class Pairs:
    """Weighted sums of ℓ(rival - own) over rivals, of shape (own, dim), and their gradients, by comparing all pairs.

    ``weight`` has shape (rivals, dim); each column defines a separate sum.
    """

    def __init__(self, surrogate: Surrogate, own: Array, rivals: Array, weight: Array) -> None:
        self.weight = weight
        if surrogate.is_ramp:
            values, self.slopes = _ramps(_differences(own / HALF_WIDTH, rivals / HALF_WIDTH))
            self.sums: Array = values @ weight
            self.factor: float = 1 / HALF_WIDTH
            return
        if surrogate.hinge_power is None:
            t = torch.from_numpy(rivals[None, :] - own[:, None])
            values, self.slopes = (part.numpy() for part in surrogate.value_and_slope(t))
            self.sums = values @ weight
            self.factor = 1
            return
        height = _differences(own, rivals)
        height += height.dtype.type(surrogate.margin)
        np.maximum(height, 0, out=height)
        self.factor = surrogate.hinge_power
        self.sums = (height if self.factor == 1 else height * height) @ weight
        self.slopes = np.sign(height, out=height) if self.factor == 1 else height

    def pull_own(self, pull: Array) -> Array:
        """Return the gradient of the sum of pull · sums with respect to the own scores; ``pull`` is (own, dim)."""
        return np.add.reduce((self.slopes @ self.weight) * (-self.factor * pull), 1)

    def pull_rivals(self, pull: Array) -> Array:
        """Return the same gradient with respect to the scores of the rivals."""
        return np.add.reduce((self.slopes.T @ (self.factor * pull)) * self.weight, 1)


def _differences(own: Array, rivals: Array) -> Array:
    """Return rivals minus own, of shape (own, rivals).

    The matrix product 1 · rival - own · 1 is also rounded only once, and takes a third of the time.
    """
    left, right = np.ones((len(own), 2), own.dtype), np.ones((2, len(rivals)), own.dtype)
    left[:, 1], right[0] = -own, rivals
    return left @ right


class SortedRamps:
    """The same sums for the ramp, by sorting: O(B log B), in double precision.

    In units of the ramp's half width, a rival x within 1 of the own score t adds 1/2 + r - r|r| / 2 for r = x - t. Such
    sums are differences of cumulated moments of x, of rivals below t - 1, t and t + 1. So that these lose no digits,
    moments are about the centre of a *frame*, a cell of width 4: of one that has all scores, or of a cell that has all
    that is within 1 of t. For the latter there are two grids of cells, half a cell apart.
    """

    def __init__(self, own: Array, rivals: Array, weight: Array) -> None:
        self.order, self.rival_order = np.argsort(own), np.argsort(rivals)
        self.own, self.rivals = (
            values[order].astype(np.float64) / HALF_WIDTH
            for values, order in ((own, self.order), (rivals, self.rival_order))
        )
        self.weight = weight[self.rival_order].T.astype(np.float64)
        # Only rivals nearer than 1 are surely in the frame; others add 0 or 1 anyway.
        self.within = [
            np.searchsorted(self.rivals, self.own - 1, "right"),
            np.searchsorted(self.rivals, self.own),
            np.searchsorted(self.rivals, self.own + 1),
        ]
        below, above, centred, at = self._around(self.own, self.rivals, self.weight, self.within, 2)
        sums = self.weight.sum(1)[:, None] - 0.5 * above[0] + below[1] - at * below[0]
        sums += 0.5 * (centred[2] - at * (2 * centred[1] - at * centred[0]))
        self.sums, self.slopes = np.empty((len(own), len(sums))), np.empty((len(own), len(sums)))
        self.sums[self.order] = np.maximum(sums, 0.0).T  # rounding may leave a sum below 0, which has no roots
        self.slopes[self.order] = (below[0] + centred[1] - at * centred[0]).T

    def pull_own(self, pull: Array) -> Array:
        """Return the gradient of the sum of pull · sums with respect to the own scores."""
        return np.add.reduce(self.slopes * pull, 1) * (-1 / HALF_WIDTH)

    def pull_rivals(self, pull: Array) -> Array:
        """Return the same gradient with respect to the scores of the rivals."""
        # Rival j is above an edge of own score i if at most j rivals are below that edge.
        counts = [np.bincount(edge, minlength=len(self.rivals) + 1)[:-1].cumsum() for edge in self.within[::-1]]
        pulls = pull[self.order].T.astype(np.float64)
        within, _, centred, at = self._around(self.rivals, self.own, pulls, counts, 1)
        gradient = np.empty(len(self.rivals))
        slopes = within[0] + centred[1] - at * centred[0]
        gradient[self.rival_order] = np.add.reduce(slopes * self.weight, 0) / HALF_WIDTH
        return gradient

    def _around(
        self, at: Array, points: Array, weights: Array, edges: Sequence[Array], highest: int
    ) -> tuple[Array, Array, Array, Array]:
        """Return moments of the points about their frames, each of shape (highest + 1, dim, at), and t in its frame.

        With the moments M up to the edges t - 1, t and t + 1, these are M(t + 1) - M(t - 1), the moments of the points
        around t; M(t + 1) + M(t - 1); and the moments around t in which points above t count negatively.
        """
        at, frames, offset = self._frames(at, points)
        size = len(points) + 1
        moments = np.zeros((highest + 1, len(weights), len(frames), size))
        moments[0, :, :, 1:] = weights[:, None]
        for k in range(highest):
            np.multiply(moments[k, :, :, 1:], frames, out=moments[k + 1, :, :, 1:])
        in_a_row = moments.cumsum(3).reshape(highest + 1, len(weights), -1)
        lower, middle, upper = (in_a_row.take(edge + offset, 2) for edge in edges)
        both = upper + lower
        return upper - lower, both, 2 * middle - both, at

    def _frames(self, at: Array, points: Array) -> tuple[Array, Array, Any]:
        """Return where each t is in its frame, where each point is in frames of one grid or two, and t's grid."""
        low, high = min(self.own[0], self.rivals[0]), max(self.own[-1], self.rivals[-1])
        if high - low <= 4:
            centre = 0.5 * (low + high)
            return at - centre, (points - centre)[None], 0
        one, other = _from_centre(at, 0), _from_centre(at, 2)
        first = np.abs(one) <= 1
        frames = np.stack([_from_centre(points, 0), _from_centre(points, 2)])
        return np.where(first, one, other), frames, np.where(first, 0, len(points) + 1)


def _from_centre(values: Array, shift: int) -> Array:
    """Return how far values are from the centre of their cell; there is one at ``shift`` and at every fourth number."""
    return values - (4 * np.round((values - shift) / 4) + shift)


class SortedHinges:
    """The same sums for ℓ = (margin + t)₊ or its square, by sorting: O(B log B), in double precision."""

    def __init__(self, surrogate: Surrogate, own: Array, rivals: Array, weight: Array) -> None:
        self.power, self.margin, self.weight = surrogate.hinge_power or 1, surrogate.margin, weight
        self.own, self.rivals = own.astype(np.float64), rivals.astype(np.float64)
        powers = _sweep(self.own, self.rivals, weight, self.power, self.margin)
        self.sums, self.slopes = powers[self.power], powers[self.power - 1]

    def pull_own(self, pull: Array) -> Array:
        """Return the gradient of the sum of pull · sums with respect to the own scores."""
        return np.add.reduce(self.slopes * (-self.power * pull), 1)

    def pull_rivals(self, pull: Array) -> Array:
        """Return the same gradient with respect to the scores of the rivals."""
        # From the rivals' point of view, the thresholds are the points, mirrored.
        by_rival = _sweep(-self.rivals, -self.own, pull, self.power - 1, self.margin)[self.power - 1]
        return np.add.reduce(by_rival * (self.power * self.weight), 1)


def _sweep(thresholds: Array, points: Array, weights: Array, power: int, margin: float) -> list[Array]:
    """Return the sums over points x of weight · (margin + x - threshold)₊^k for all k up to ``power``.

    Each sum has shape (thresholds, columns). As in :func:`fcco.functional._hinges.hinge_sums`, the sweep goes downwards
    over thresholds and points, and each power is the integral of the previous one. It only adds numbers of one sign and
    never subtracts, however far apart the scores are.
    """
    # Thresholds come first and the sort is stable, so a point at the threshold does not count as above it.
    lowered = thresholds - margin
    level = np.concatenate([lowered, points])
    rest = np.concatenate([lost_digits(thresholds, lowered, margin), np.zeros_like(points)])
    # With a few digits to spare, as of single precision, none are lost.
    order = np.lexsort((-rest, -level)) if rest.any() else np.argsort(-level, kind="stable")
    level, rest = level[order], rest[order]
    sums = [np.concatenate([np.zeros((len(thresholds), weights.shape[1])), weights])[order].cumsum(0)]
    gap = np.zeros((len(level), 1))
    gap[1:, 0] = (level[:-1] - level[1:]) + (rest[:-1] - rest[1:])
    if power:
        before = _shift(sums[0])
        sums.append((gap * before).cumsum(0))
    if power == 2:
        sums.append((gap * (2 * _shift(sums[1]) + gap * before)).cumsum(0))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return [total[place[: len(thresholds)]] for total in sums]


def _shift(sums: Array) -> Array:
    """Return the sums shifted by one place, starting with 0."""
    shifted = np.zeros_like(sums)
    shifted[1:] = sums[:-1]
    return shifted


Compared = Pairs | SortedHinges | SortedRamps


def compare(surrogate: Surrogate, own: Array, rivals: Array, weight: Array) -> Compared:
    """Return the sums of the surrogate over the rivals in the cheaper way; sorting pays off with many pairs."""
    pairs = len(own) * len(rivals)
    if surrogate.is_ramp and pairs > 200**2 and _largest(own) < 2.0**50 > _largest(rivals):
        return SortedRamps(own, rivals, weight)
    if surrogate.hinge_power is not None and pairs > 250**2:
        return SortedHinges(surrogate, own, rivals, weight)
    return Pairs(surrogate, own, rivals, weight)


def _largest(values: Array) -> float:
    return float(np.maximum.reduce(np.abs(values)))


@lru_cache
def own_terms(surrogate: Surrogate) -> tuple[float, float, float]:
    """Return ℓ(0), the own term, and ℓ'(0)."""
    like = torch.zeros((), dtype=torch.float64)
    _, slope = surrogate.value_and_slope(like)
    return surrogate.at_zero(like), surrogate.own_value(like).item(), slope.item()
