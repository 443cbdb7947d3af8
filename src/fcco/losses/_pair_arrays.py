"""Sums of a surrogate over pairs of scores in NumPy, and their gradients: pair by pair, or by sorting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from fcco.functional._ramps import HALF_WIDTH
from fcco.functional._surrogates import Surrogate
from fcco.losses._by_hand import Array, LeftToTheEngine

# With more pairs than this, sorting takes less time.
_MANY = 60_000
# In units of the surrogate. At this distance, cumulated squares lose four of the sixteen digits of a term.
_WIDEST = 256.0


def value_and_slope(surrogate: Surrogate, t: Array) -> tuple[Array, Array]:
    """Return ℓ(t) and ℓ'(t) of a surrogate that has a name, as arrays of their own; ``t`` may be overwritten."""
    if surrogate.is_ramp:
        t /= HALF_WIDTH
        values, slopes = _ramps(t)
        slopes /= HALF_WIDTH
        return values, slopes
    of_pairs = surrogate.value_and_slope(torch.from_numpy(t))
    values, slopes = (part.numpy() for part in of_pairs)
    return values, slopes.copy() if of_pairs[0] is of_pairs[1] else slopes  # exp is its own slope


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


def _compare_pairs(surrogate: Surrogate, own: Array, rivals: Array) -> tuple[Array, Array, float]:
    """Return ℓ(rival - own) of shape (own, rivals), and its slopes up to a factor, which is the last."""
    if surrogate.is_ramp:
        return *_ramps(_differences(own / HALF_WIDTH, rivals / HALF_WIDTH)), 1 / HALF_WIDTH
    if surrogate.hinge_power is None:
        return *value_and_slope(surrogate, _differences(own, rivals)), 1.0
    height = _differences(own, rivals)
    height += height.dtype.type(surrogate.margin)
    np.maximum(height, 0, out=height)
    return (height, np.sign(height), 1.0) if surrogate.hinge_power == 1 else (height * height, height, 2.0)


def _differences(own: Array, rivals: Array) -> Array:
    """Return rivals minus own, of shape (own, rivals).

    The matrix product 1 · rival - own · 1 is also rounded only once, and takes a third of the time.
    """
    left, right = np.ones((len(own), 2), own.dtype), np.ones((2, len(rivals)), own.dtype)
    left[:, 1], right[0] = -own, rivals
    return left @ right


class Pairs:
    """Sums of ℓ(rival - own) over the rivals of each group, of shape (groups, own), and their gradients.

    Parameters
    ----------
    surrogate : Surrogate
        The surrogate ℓ.
    own : Array of shape (m,)
        The own scores.
    groups : sequence of Arrays
        The scores of the rivals.
    """

    def __init__(self, surrogate: Surrogate, own: Array, groups: Sequence[Array]) -> None:
        values, self.slopes, self.factor = _compare_pairs(surrogate, own, np.concatenate(groups))
        self.member = np.zeros((values.shape[1], len(groups)), values.dtype)
        self.parts, end = [], 0
        for k, group in enumerate(groups):
            part = slice(end, end := end + len(group))
            self.member[part, k] = 1
            self.parts.append(part)
        self.sums: Array = (values @ self.member).T

    def pull_own(self, pull: Array) -> Array:
        """Return the gradient of the sum of pull · sums, of shape (groups, own), with respect to the own scores."""
        return np.add.reduce((self.slopes @ self.member).T * (-self.factor * pull), 0)

    def pull_rivals(self, pull: Array) -> Array:
        """Return the same gradient with respect to the scores of the rivals, group after group."""
        pull = self.factor * pull
        return np.concatenate([row @ self.slopes[:, part] for row, part in zip(pull, self.parts, strict=True)])


class Pieces(NamedTuple):
    """A surrogate in pieces: ℓ(t) = Σ factor · (t + shift)₊^power, where t matters in units of ``unit``."""

    power: int
    shifts: Array
    factors: Array
    unit: float


@lru_cache
def pieces_of(surrogate: Surrogate) -> Pieces | None:
    """Return the pieces of a surrogate, or None if it is not made of such."""
    if surrogate.is_ramp:
        shifts, factors = np.array([[1.0], [0.0], [-1.0]]), np.array([1.0, -2.0, 1.0])
        return Pieces(2, HALF_WIDTH * shifts, factors / (2 * HALF_WIDTH**2), HALF_WIDTH)
    if surrogate.hinge_power is None:
        return None
    return Pieces(surrogate.hinge_power, np.array([[surrogate.margin]]), np.ones(1), surrogate.margin)


class SortedPairs:
    """The same as :class:`Pairs` for a surrogate in pieces, by sorting: O(B log B), in double precision.

    Scores are held as *depths* below a common centre, in ascending order. With its depth t and θ = t + shift, an own
    score meets rivals of depth x < θ, which add (θ - x)^k each. Their sum follows from their number, and from cumulated
    sums of x and x². So do gradients, with own scores and rivals exchanged.

    Raises
    ------
    LeftToTheEngine
        If scores are so far apart that cumulated sums lose digits.
    """

    def __init__(self, pieces: Pieces, own: Array, groups: Sequence[Array]) -> None:
        rivals = np.concatenate(groups)
        self.pieces, self.order, self.rival_order = pieces, own.argsort()[::-1], rivals.argsort()[::-1]
        t, x = own.take(self.order).astype(np.float64), rivals.take(self.rival_order).astype(np.float64)
        low, high = min(t[-1], x[-1]), max(t[0], x[0])
        if not high - low <= _WIDEST * pieces.unit:
            raise LeftToTheEngine
        centre = 0.5 * (low + high)
        self.t, self.x = centre - t, centre - x
        self.group = np.arange(len(groups)).repeat([len(group) for group in groups]).take(self.rival_order)
        self._cumulate(self.group == np.arange(len(groups))[:, None])

    def _cumulate(self, member: Array) -> None:
        """Compute the sums over groups, whose members have depth x, and their slopes."""
        power, shifts, factors, _ = self.pieces
        moments = np.zeros((power + 1, len(member), len(self.x) + 1))
        moments[0, :, 1:] = member
        for k in range(power):
            np.multiply(moments[k, :, 1:], self.x, out=moments[k + 1, :, 1:])
        thresholds = self.t + shifts
        self.above = self.x.searchsorted(thresholds)  # how many rivals are met
        met = np.add.accumulate(moments, 2).take(self.above, 2)
        terms = heights = thresholds * met[0] - met[1]
        slopes = met[0]
        if power == 2:
            terms, slopes = met[2] + thresholds * (heights - met[1]), heights
        self.sums, self.slopes = np.empty((2, len(member), len(self.t)))
        self.sums[:, self.order] = np.maximum(factors @ terms, 0.0)  # rounding may leave a sum below 0
        self.slopes[:, self.order] = (power * factors) @ slopes

    def pull_own(self, pull: Array) -> Array:
        """Return the gradient of the sum of pull · sums, of shape (groups, own), with respect to the own scores."""
        return -np.add.reduce(self.slopes * pull, 0)

    def pull_rivals(self, pull: Array) -> Array:
        """Return the same gradient with respect to the scores of the rivals, group after group."""
        power, shifts, factors, _ = self.pieces
        size, place = len(self.t) + 1, np.empty((len(shifts), len(self.x)), np.int64)
        for row, met in zip(place, self.above, strict=True):  # rival j is met by all but those that meet up to j rivals
            np.add.accumulate(np.bincount(met, minlength=len(self.x) + 1)[:-1], out=row)
        place += size * self.group
        moments = np.zeros((power, len(pull), size))
        moments[0, :, :-1] = pull.take(self.order, 1)
        if power == 2:
            np.multiply(moments[0, :, :-1], self.t, out=moments[1, :, :-1])
        met = np.add.accumulate(moments[:, :, ::-1], 2)[:, :, ::-1].reshape(power, -1).take(place, 1)
        slopes = met[0] if power == 1 else met[1] - (self.x - shifts) * met[0]
        gradient = np.empty(len(self.x))
        gradient[self.rival_order] = (power * factors) @ slopes
        return gradient


Compared = Pairs | SortedPairs


def compare(surrogate: Surrogate, own: Array, *groups: Array) -> Compared:
    """Return the sums of the surrogate over each group of rivals in the cheaper way; sorting pays with many pairs."""
    many = len(own) * sum(map(len, groups)) > _MANY
    pieces = pieces_of(surrogate) if many else None
    return Pairs(surrogate, own, groups) if pieces is None else SortedPairs(pieces, own, groups)


class OwnTerm(NamedTuple):
    """What a surrogate is for an example and itself."""

    at_zero: float
    """The value at 0."""
    counted: float
    """The own term, which is 1 if the surrogate is bounded."""
    slope: float
    """The slope at 0."""


@lru_cache
def own_terms(surrogate: Surrogate) -> OwnTerm:
    """Return the own terms of a surrogate."""
    like = torch.zeros((), dtype=torch.float64)
    _, slope = surrogate.value_and_slope(like)
    return OwnTerm(surrogate.at_zero(like), surrogate.own_value(like).item(), slope.item())
