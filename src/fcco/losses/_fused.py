"""Fast bipartite losses for eager mode on the CPU, where operations on a small batch cost more than their arithmetic.

The gradient with respect to the scores is computed by hand, in NumPy, during the forward pass, and attached to them as
a single node. Only outer rows are compared with the batch. Values and gradients equal those of the estimates in
:mod:`fcco.functional`, which run everywhere else: compiled, on accelerators, and on batches that lack a class.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco._checks import as_index, has_repeats, reads_are_free
from fcco._coupled import CoupledLoss
from fcco.functional._hinges import lost_digits
from fcco.functional._ramps import HALF_WIDTH
from fcco.functional._surrogates import Surrogate
from fcco.losses._array_memory import can_remember
from fcco.losses._array_step import can_track, track

Array = NDArray[Any]

_LABEL_TYPES = (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)


def can_fuse(coupled: CoupledLoss, surrogate: Surrogate, scores: Any, target: Any) -> bool:
    """Whether the step can be computed by hand: in training, eagerly, on the CPU, in single or double precision."""
    return (
        surrogate.has_name  # the caller's own function may have parameters to train
        and can_work_by_hand(coupled, scores, target)
    )


def can_work_by_hand(coupled: CoupledLoss, scores: Any, target: Any) -> bool:
    """The same for a loss without a surrogate."""
    return (
        (coupled.memory is None or can_remember(coupled.memory, scores))
        and coupled.training
        and torch.is_grad_enabled()
        and isinstance(scores, Tensor)
        and isinstance(target, Tensor)
        and scores.dtype in (torch.float32, torch.float64)
        and scores.dim() == 1
        and scores.shape == target.shape
        and target.dtype in _LABEL_TYPES
        and reads_are_free(scores)
        and not scores.is_neg()  # NumPy cannot handle such a view
        and target.is_cpu
        and can_track(coupled)
        and (coupled.rule.bounded or not coupled.log)  # otherwise the engine has to check the gradient
    )


def _refuse_second_derivatives(grad: Tensor) -> None:
    # A backward pass has gradients enabled only with create_graph=True.
    """Raise if a backward pass with ``create_graph=True`` reaches the loss."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this loss has no second derivatives in eager mode on the CPU, where its gradient is computed by hand; "
            "use fcco.CoupledLoss with your own inner estimate"
        )


class Split(NamedTuple):
    """A batch split by class.

    ``scores`` and ``places``, their positions in the batch, have the outer class first. ``outer_rows`` has its rows.
    """

    scores: Array
    places: Array
    outer_rows: Array

    def loss(self, scores: Tensor, value: float, gradient: Array) -> Tensor:
        """Return a scalar with the given value and the given gradient with respect to the scores."""
        in_place = np.empty(len(gradient), gradient.dtype)
        in_place[self.places] = gradient
        return with_gradient(scores, value, in_place)


def with_gradient(scores: Tensor, value: float, gradient: Array) -> Tensor:
    """Return a scalar with the given value and the given gradient with respect to the scores."""
    dtype = scores.detach().numpy().dtype  # it may be narrower than that of the table
    with np.errstate(over="ignore"):
        value, gradient = dtype.type(value), gradient.astype(dtype, copy=False)
    loss = torch.dot(scores.reshape(-1), torch.from_numpy(gradient.reshape(-1)))
    loss.detach().fill_(float(value))
    if loss.requires_grad:
        loss.register_hook(_refuse_second_derivatives)
    return loss


def split_batch(scores: Tensor, target: Tensor, index: Any, n: int, *, positives_first: bool) -> Split | None:
    """Split the batch by class.

    Returns None if the batch lacks a class, has no rows, repeats an outer one, or is invalid.
    """
    if index is None:
        return None
    rows = as_index(index, scores.device).numpy()
    values, label = scores.detach().numpy(), target.detach().numpy()
    with np.errstate(all="ignore"):
        usable = len(rows) == len(values) and math.isfinite(np.add.reduce(values))
    if not usable:
        return None
    first, second = (1, 0) if positives_first else (0, 1)
    outer, other = (label == first).nonzero()[0], (label == second).nonzero()[0]
    if not (len(outer) and len(other) and len(outer) + len(other) == len(label)):
        return None
    ordered, outer_rows = np.sort(rows), rows[outer]
    if ordered[0] < 0 or ordered[-1] >= n:
        return None
    if has_repeats(ordered) and np.isin(outer_rows, ordered[1:][ordered[1:] == ordered[:-1]]).any():
        return None
    places = np.concatenate((outer, other))
    return Split(values[places], places, outer_rows)


class Pairs:
    """Weighted sums of ℓ(rival - own) over rivals, of shape (own, dim), and their gradients, by comparing all pairs.

    ``weight`` has shape (rivals, dim); each column defines a separate sum.
    """

    def __init__(self, surrogate: Surrogate, own: Array, rivals: Array, weight: Array) -> None:
        self.weight = weight
        if surrogate.is_ramp:
            self._compare_ramps(own, rivals)
            return
        if surrogate.hinge_power is None:
            t = torch.from_numpy(rivals[None, :] - own[:, None])
            values, self.slopes = (part.numpy() for part in surrogate.value_and_slope(t))
            self.sums: Array = values @ weight
            self.factor: float = 1
            return
        height = _differences(own, rivals)
        height += height.dtype.type(surrogate.margin)
        np.maximum(height, 0, out=height)
        self.factor = surrogate.hinge_power
        self.sums = (height if self.factor == 1 else height * height) @ weight
        self.slopes = np.sign(height, out=height) if self.factor == 1 else height

    def _compare_ramps(self, own: Array, rivals: Array) -> None:
        """Set the sums and slopes of the ramp, which is 1/2 + r - r|r| / 2 for r = t / δ clipped to [-1, 1]."""
        place = _differences(own / HALF_WIDTH, rivals / HALF_WIDTH)
        np.clip(place, -1, 1, out=place)
        slopes = 1 - np.abs(place)
        place *= 0.5 * (slopes + 1)
        place += 0.5
        self.sums, self.slopes, self.factor = place @ self.weight, slopes, 1 / HALF_WIDTH

    def pull_own(self, pull: Array) -> Array:
        """Return the gradient of the sum of pull · sums with respect to the own scores; ``pull`` is (own, dim)."""
        return np.einsum("id,id->i", self.slopes @ self.weight, -self.factor * pull)

    def pull_rivals(self, pull: Array) -> Array:
        """Return the same gradient with respect to the scores of the rivals."""
        return np.einsum("jd,jd->j", self.slopes.T @ (self.factor * pull), self.weight)


def _differences(own: Array, rivals: Array) -> Array:
    """Return rivals minus own, of shape (own, rivals).

    The matrix product 1 · rival - own · 1 is also rounded only once, and takes a third of the time.
    """
    left, right = np.ones((len(own), 2), own.dtype), np.ones((2, len(rivals)), own.dtype)
    left[:, 1], right[0] = -own, rivals
    return left @ right


class SortedRamps:
    """The same sums for the ramp, by sorting: O(B log B), in double precision."""

    def __init__(self, own: Array, rivals: Array, weight: Array) -> None:
        self.own, self.rivals, self.weight = own.astype(np.float64), rivals.astype(np.float64), weight
        sums, self.slopes = _sums_of_ramps(self.own, self.rivals, weight)
        self.sums = np.maximum(sums, 0.0)  # rounding may leave a sum below 0, which has no roots

    def pull_own(self, pull: Array) -> Array:
        """Return the gradient of the sum of pull · sums with respect to the own scores."""
        return np.einsum("id,id->i", self.slopes, -pull)

    def pull_rivals(self, pull: Array) -> Array:
        """Return the same gradient with respect to the scores of the rivals."""
        by_rival = _sums_of_ramps(-self.rivals, -self.own, pull)[1]
        return np.einsum("jd,jd->j", by_rival, self.weight)


def _sums_of_ramps(thresholds: Array, points: Array, weights: Array) -> tuple[Array, Array]:
    """Return the sums of ramps and of their derivatives, each of shape (thresholds, columns of the weights).

    These are the sums of :mod:`fcco.functional._ramps`, for all columns at once.
    """
    order = np.argsort(-points)
    depth, weights = -points[order], weights[order].astype(np.float64)
    local = (depth - np.floor(depth / HALF_WIDTH) * HALF_WIDTH)[:, None]
    before = np.zeros((len(points) + 1, 3, weights.shape[1]))
    np.stack([weights, weights * local, weights * local**2], 1).cumsum(0, out=before[1:])
    at, cell = -thresholds, np.floor(-thresholds / HALF_WIDTH)
    reach = HALF_WIDTH * (np.abs(at) < HALF_WIDTH / np.finfo(at.dtype).eps)
    here = np.searchsorted(depth, at, "right")
    edges = np.concatenate([at - reach, cell * HALF_WIDTH, (cell + 1) * HALF_WIDTH, at + reach])
    begins, cell_begins, cell_ends, ends = np.searchsorted(depth, edges).reshape(4, -1)
    cell_ends = np.maximum(cell_ends, here)
    upto = before[[np.minimum(begins, cell_begins), cell_begins, here, cell_ends, np.maximum(ends, cell_ends)]]
    mass, first, second = np.moveaxis(np.diff(upto, axis=0), 2, 0)
    within = at - cell * HALF_WIDTH
    offset = np.stack([within, within - HALF_WIDTH, within + HALF_WIDTH, within])[:, :, None]
    sign = np.array([-1.0, -1.0, 1.0, 1.0])
    squares = np.tensordot(sign, offset * (offset * mass - 2 * first) + second, 1)
    lines = np.tensordot(sign, offset * mass - first, 1)
    return upto[2, :, 0] + squares / (2 * HALF_WIDTH**2), lines / HALF_WIDTH**2


class SortedHinges:
    """The same sums for ℓ = (margin + t)₊ or its square, by sorting: O(B log B), in double precision."""

    def __init__(self, surrogate: Surrogate, own: Array, rivals: Array, weight: Array) -> None:
        self.power, self.margin, self.weight = surrogate.hinge_power or 1, surrogate.margin, weight
        self.own, self.rivals = own.astype(np.float64), rivals.astype(np.float64)
        powers = _sweep(self.own, self.rivals, weight, self.power, self.margin)
        self.sums, self.slopes = powers[self.power], powers[self.power - 1]

    def pull_own(self, pull: Array) -> Array:
        """Return the gradient of the sum of pull · sums with respect to the own scores."""
        return np.einsum("id,id->i", self.slopes, -self.power * pull)

    def pull_rivals(self, pull: Array) -> Array:
        """Return the same gradient with respect to the scores of the rivals."""
        # From the rivals' point of view, the thresholds are the points, mirrored.
        by_rival = _sweep(-self.rivals, -self.own, pull, self.power - 1, self.margin)[self.power - 1]
        return np.einsum("jd,jd->j", by_rival, self.power * self.weight)


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
    order = np.lexsort((-rest, -level))
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


def compare(surrogate: Surrogate, own: Array, rivals: Array, weight: Array) -> Pairs | SortedHinges | SortedRamps:
    """Return the sums of the surrogate over the rivals in the cheaper way; sorting pays off with many pairs."""
    pairs = len(own) * len(rivals)
    if surrogate.is_ramp and pairs > 400**2:
        return SortedRamps(own, rivals, weight)
    if surrogate.hinge_power is not None and pairs > 250**2:
        return SortedHinges(surrogate, own, rivals, weight)
    return Pairs(surrogate, own, rivals, weight)


@lru_cache
def own_terms(surrogate: Surrogate) -> tuple[float, float, float]:
    """Return ℓ(0), the own term, and ℓ'(0)."""
    like = torch.zeros((), dtype=torch.float64)
    _, slope = surrogate.value_and_slope(like)
    return surrogate.at_zero(like), surrogate.own_value(like).item(), slope.item()


def fused_average_precision(
    coupled: CoupledLoss,
    scores: Tensor,
    target: Tensor,
    index: Any,
    *,
    surrogate: Surrogate,
    temperature: float,
    n_pos: int,
    exact: bool,
) -> Tensor | None:
    """Return the average precision loss, f = -u_1 / u_2, or None if the batch lacks what an estimate needs."""
    batch = split_batch(scores, target, index, coupled.n, positives_first=True)
    if batch is None:
        return None
    n, m = coupled.n, len(batch.outer_rows)
    k = len(batch.scores) - m
    if m > n_pos or k > n - n_pos or (exact and m == 1 < n_pos):
        return None
    of_positive = (n_pos - 1) / max(m - 1, 1) / n if exact else n_pos / m / n
    # In double precision, a division by the temperature costs no digits that matter. An exact own term needs it too,
    # because it is first summed with the others, at 1 / n_pos of its final weight.
    h = batch.scores.astype(np.float64) / temperature if exact or temperature != 1.0 else batch.scores
    weight = np.zeros((m + k, 2), h.dtype)
    weight[:m], weight[m:, 1] = of_positive, (n - n_pos) / k / n
    with np.errstate(all="ignore"):
        pairs = compare(surrogate, h[:m], h, weight)
        at_zero, own_value, _ = own_terms(surrogate)
        sums = pairs.sums + (own_value / n - at_zero * of_positive if exact else (own_value - at_zero) * of_positive)
        inner = sums.astype(batch.scores.dtype, copy=False)
        if not math.isfinite(np.add.reduce(inner, None)):
            return None
        new, at = track(coupled, inner, batch.outer_rows)
        # The derivatives of f(u) = -u_1 / u_2 are -1 / u_2 and u_1 / u_2².
        share = at[:, 0] / at[:, 1]
        pull = np.empty(inner.shape, h.dtype)
        np.divide(-1 / m, at[:, 1], out=pull[:, 0], casting="unsafe")
        np.multiply(pull[:, 0], -share, out=pull[:, 1], casting="unsafe")
        pull /= temperature
        gradient = pairs.pull_rivals(pull)
        gradient[:m] += pairs.pull_own(pull)
        value = -np.add.reduce(share if new is at else new[:, 0] / new[:, 1]) / m
    return batch.loss(scores, value, gradient)


def fused_p_norm_push(
    coupled: CoupledLoss, scores: Tensor, target: Tensor, index: Any, *, surrogate: Surrogate, p: float
) -> Tensor | None:
    """Return the p-norm push loss, f = u^p, or None if the batch lacks a class or is invalid."""
    batch = split_batch(scores, target, index, coupled.n, positives_first=False)
    if batch is None or len(batch.outer_rows) > coupled.n_outer:
        return None
    m = len(batch.outer_rows)
    own, rivals = batch.scores[:m], batch.scores[m:]
    with np.errstate(all="ignore"):
        if surrogate.is_exp:
            made = _exp_push(coupled, batch.outer_rows, own, rivals, p)
            return None if made is None else batch.loss(scores, *made)
        weight = np.full((len(rivals), 1), 1 / len(rivals), own.dtype)
        pairs = compare(surrogate, -own, -rivals, weight)
        inner = pairs.sums[:, 0].astype(own.dtype, copy=False)
        if not math.isfinite(np.add.reduce(inner)):
            return None
        new, at = track(coupled, inner, batch.outer_rows)
        pull = (-p / m * at ** (p - 1))[:, None]
        gradient = np.concatenate((pairs.pull_own(pull), pairs.pull_rivals(pull)))
        return batch.loss(scores, np.add.reduce(new**p) / m, gradient)


def _exp_push(coupled: CoupledLoss, rows: Array, own: Array, rivals: Array, p: float) -> tuple[float, Array] | None:
    """Return the value and the gradient for ℓ = exp, in log space, where the sum over rivals is the same for all.

    Returns None if scores are so far apart that their differences are not finite.
    """
    lowest = np.minimum.reduce(rivals)
    share = np.exp(lowest - rivals)
    total = np.add.reduce(share)
    inner = (own - lowest) + own.dtype.type(math.log(total / len(rivals)))
    if not math.isfinite(np.add.reduce(inner)):
        return None
    new, at = track(coupled, inner, rows)
    # The derivative of u^p with respect to log g is p u^p g / u, which takes a single exponential.
    slope = p / len(own) * np.exp((p - 1) * at + inner)
    value = np.add.reduce(np.exp(p * new)) / len(own)
    return value, np.concatenate((slope, share * (-np.add.reduce(slope) / total)))
