"""Bipartite losses for eager mode on the CPU, where each operation of a small batch costs more than its arithmetic.

The gradient in the scores is worked out in the forward pass, by hand and in NumPy, and hung on them as one node; only
outer rows are compared with the batch. Values and gradients are those of the estimates in :mod:`fcco.functional`, which
run everywhere else: compiled, on accelerators, and on batches that lack a class.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fcco._checks import as_index, check_finite, check_rows, has_repeats, reads_are_free
from fcco._coupled import CoupledLoss
from fcco.functional._surrogates import Surrogate

Array = NDArray[Any]

_LABEL_TYPES = (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)


def can_fuse(coupled: CoupledLoss, scores: Any, target: Any) -> bool:
    """Whether the step may be worked out by hand: in training, eagerly, on the CPU, in single or double precision."""
    return (
        coupled.training
        and torch.is_grad_enabled()
        and isinstance(scores, Tensor)
        and isinstance(target, Tensor)
        and scores.dtype in (torch.float32, torch.float64)
        and scores.dim() == 1
        and scores.shape == target.shape
        and target.dtype in _LABEL_TYPES
        and reads_are_free(scores)
        and reads_are_free(target)
    )


def _refuse_second_derivatives(grad: Tensor) -> None:
    # In a backward pass gradients are recorded only with create_graph=True.
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this loss has no second derivatives in eager mode on the CPU, where its gradient is worked out by hand; "
            "use fcco.CoupledLoss with an estimate of your own"
        )


class Split:
    """A batch by class: the scores and places of the outer class, then of the other."""

    def __init__(self, scores: Tensor, target: Tensor, rows: Tensor, *, positives_first: bool) -> None:
        label = target.detach().numpy()
        positive, negative = label == 1, label == 0
        self.outer_places = np.flatnonzero(positive if positives_first else negative)
        self.other_places = np.flatnonzero(negative if positives_first else positive)
        self.is_labelled = len(self.outer_places) + len(self.other_places) == len(label)
        values = scores.detach().numpy()
        self.outer, self.other = values[self.outer_places], values[self.other_places]
        self.rows = rows.numpy()
        self.outer_rows = torch.from_numpy(self.rows[self.outer_places])

    def repeats(self, places: Array) -> bool:
        """Whether an example stands twice among these, so that a copy would pass for another."""
        return has_repeats(np.sort(self.rows[places]))

    def loss(self, scores: Tensor, value: float, by_outer: Array, by_other: Array) -> Tensor:
        """A scalar of that value whose gradient in the scores is the given one."""
        gradient = np.empty(scores.shape, self.outer.dtype)
        gradient[self.outer_places] = by_outer
        gradient[self.other_places] = by_other
        loss = torch.dot(scores, torch.from_numpy(gradient))
        loss.detach().fill_(float(value))
        if loss.requires_grad:
            loss.register_hook(_refuse_second_derivatives)
        return loss


def split_batch(scores: Tensor, target: Tensor, index: Any, n: int, *, positives_first: bool) -> Split | None:
    """The batch by class; None where it lacks one, or where something in it is to be refused."""
    rows = as_index(index, scores.device)
    if rows.shape != scores.shape:
        return None
    check_finite(scores, log=False, name="scores")
    check_rows(rows, n)
    batch = Split(scores, target, rows, positives_first=positives_first)
    return batch if batch.is_labelled and len(batch.outer) and len(batch.other) else None


class Pairs:
    """Sums over rivals of ℓ(rival - own), and their gradients, by going through all pairs."""

    def __init__(self, surrogate: Surrogate, own: Array, rivals: Array) -> None:
        t = rivals[None, :] - own[:, None]
        if surrogate.hinge_power is None:
            values, self.slopes = (part.numpy() for part in _value_and_slope(surrogate, torch.from_numpy(t)))
            self.sums: Array = values.sum(1)
            return
        height = np.maximum(t + t.dtype.type(surrogate.margin), 0)
        if surrogate.hinge_power == 2:
            self.sums, self.slopes = np.einsum("ij,ij->i", height, height), 2 * height
        else:
            self.sums, self.slopes = height.sum(1), (height > 0).astype(t.dtype)

    def pull_back(self, weight: Array) -> tuple[Array, Array]:
        """The gradient of weight · sums in the own scores and in the rivals."""
        return -weight * self.slopes.sum(1), weight @ self.slopes


class SortedHinges:
    """The same for ℓ = (margin + t)₊ or its square, by sorting: O(B log B), and in double precision."""

    def __init__(self, surrogate: Surrogate, own: Array, rivals: Array) -> None:
        self.power = surrogate.hinge_power or 1
        self.threshold, self.rivals = own.astype(np.float64) - surrogate.margin, rivals.astype(np.float64)
        powers = _sweep(self.threshold, self.rivals, np.ones(len(rivals)), self.power)
        self.sums, self.slopes = powers[self.power], powers[self.power - 1]

    def pull_back(self, weight: Array) -> tuple[Array, Array]:
        """The gradient of weight · sums in the own scores and in the rivals."""
        # Seen from the rivals, the thresholds are the points, mirrored.
        by_rival = _sweep(-self.rivals, -self.threshold, weight, self.power - 1)[self.power - 1]
        return -self.power * weight * self.slopes, self.power * by_rival


def _sweep(thresholds: Array, points: Array, weights: Array, power: int) -> list[Array]:
    """For k up to ``power``, the sums over points x of weight · (x - threshold)₊^k, one for each threshold.

    As :func:`fcco.functional._hinges.hinge_sums`: going down through all of them, each power is the integral of the one
    before, so that numbers of one sign are added and none are subtracted, however far apart the scores lie.
    """
    # Thresholds come first, and the sort is stable: a point at the threshold is not above it.
    level = np.concatenate([thresholds, points])
    order = np.argsort(-level, kind="stable")
    level = level[order]
    sums = [np.concatenate([np.zeros(len(thresholds)), weights])[order].cumsum()]
    gap = np.zeros(len(level))
    np.subtract(level[:-1], level[1:], out=gap[1:])
    if power:
        before = _shift(sums[0])
        sums.append((gap * before).cumsum())
    if power == 2:
        sums.append((gap * (2 * _shift(sums[1]) + gap * before)).cumsum())
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return [total[place[: len(thresholds)]] for total in sums]


def _shift(sums: Array) -> Array:
    """What each sum was one place earlier."""
    shifted = np.zeros(len(sums))
    shifted[1:] = sums[:-1]
    return shifted


def compare(surrogate: Surrogate, own: Array, rivals: Array) -> Pairs | SortedHinges:
    """Sums of the surrogate over the rivals, in the cheaper way: sorting pays from some 150 rows on."""
    many = len(own) * len(rivals) > 150**2
    return (SortedHinges if surrogate.hinge_power is not None and many else Pairs)(surrogate, own, rivals)


def _value_and_slope(surrogate: Surrogate, t: Tensor) -> tuple[Tensor, Tensor]:
    if surrogate.function is F.softplus:
        return F.softplus(t), torch.sigmoid(t)
    if surrogate.function is torch.sigmoid:
        values = torch.sigmoid(t)
        return values, values * (1 - values)
    with torch.enable_grad():
        values = surrogate(t.requires_grad_())
        slope = torch.autograd.grad(values.sum(), t)[0] if values.requires_grad else torch.zeros_like(t)
    return values.detach(), slope.detach()


@np.errstate(all="ignore")  # what overflows is refused by the table, or is the loss's own value
def fused_average_precision(
    coupled: CoupledLoss,
    scores: Tensor,
    target: Tensor,
    index: Any,
    *,
    surrogate: Surrogate,
    own_value: float,
    n_pos: int,
    exact: bool,
) -> Tensor | None:
    """The loss, f = -u_1 / u_2; None where the batch lacks what an estimate needs. ``own_value`` is ℓ(0)."""
    batch = split_batch(scores, target, index, coupled.n, positives_first=True)
    if batch is None or (exact and (len(batch.outer) == 1 < n_pos or batch.repeats(batch.outer_places))):
        return None
    n, m, k = coupled.n, len(batch.outer), len(batch.other)
    if k > n - n_pos and not batch.repeats(batch.other_places):
        raise ValueError(f"the batch has {k} negatives, and n_pos = {n_pos} of n = {n} leaves {n - n_pos}")
    if m > n_pos and not batch.repeats(batch.outer_places):
        raise ValueError(f"the batch has {m} positives, and n_pos is {n_pos}")
    among, against = compare(surrogate, batch.outer, batch.outer), compare(surrogate, batch.outer, batch.other)
    of_positive = (n_pos - 1) / max(m - 1, 1) / n if exact else n_pos / m / n
    of_negative = (n - n_pos) / k / n
    inner = np.empty((m, 2), batch.outer.dtype)
    inner[:, 0] = of_positive * among.sums + (own_value * (1 / n - of_positive) if exact else 0.0)
    inner[:, 1] = inner[:, 0] + of_negative * against.sums
    new, at = (rows.numpy() for rows in coupled.track(torch.from_numpy(inner), batch.outer_rows))
    # f(u) = -u_1 / u_2, whose slopes are -1 / u_2 and u_1 / u_2².
    slope = -1 / (m * at[:, 1])
    other_slope = -slope * at[:, 0] / at[:, 1]
    own, by_positive = among.pull_back(of_positive * (slope + other_slope))
    also_own, by_negative = against.pull_back(of_negative * other_slope)
    value = -(new[:, 0] / new[:, 1]).mean()
    return batch.loss(scores, value, own + also_own + by_positive, by_negative)


@np.errstate(all="ignore")
def fused_p_norm_push(
    coupled: CoupledLoss, scores: Tensor, target: Tensor, index: Any, *, surrogate: Surrogate, p: float
) -> Tensor | None:
    """The loss, f = u^p; None where the batch lacks a class."""
    batch = split_batch(scores, target, index, coupled.n, positives_first=False)
    if batch is None:
        return None
    m, count = len(batch.outer), len(batch.other)
    if surrogate.is_exp:
        lowest = batch.other.min()
        share = np.exp(lowest - batch.other)
        inner = batch.outer + (math.log(share.sum() / count) - lowest)
        new, at = (rows.numpy() for rows in coupled.track(torch.from_numpy(inner), batch.outer_rows))
        # d u^p / d log g is p u^p g / u, one exponential.
        slope = p / m * np.exp((p - 1) * at + inner)
        value = np.exp(p * new).mean()
        return batch.loss(scores, value, slope, share * (-slope.sum() / share.sum()))
    pairs = compare(surrogate, -batch.outer, -batch.other)
    inner = (pairs.sums / count).astype(batch.outer.dtype, copy=False)
    new, at = (rows.numpy() for rows in coupled.track(torch.from_numpy(inner), batch.outer_rows))
    by_own, by_rival = pairs.pull_back(p / (m * count) * at ** (p - 1))
    return batch.loss(scores, (new**p).mean(), -by_own, -by_rival)
