"""Three objectives on data that ships with scikit-learn: f, and an estimate of g for many runs at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

P = 4
PENALTY = 1e-3
DIGITS = 1000


@dataclass(frozen=True)
class Batch:
    """Rows drawn for each of R runs, by what they are for.

    Args:
        sampled: rows that f is averaged over, [R, B1], numbered among the outer rows.
        inner: rows of the first inner set, [R, B2].
        others: rows of the second inner set, [R, B2]; unused where there is but one.
    """

    sampled: Tensor
    inner: Tensor
    others: Tensor


@dataclass(frozen=True)
class Objective:
    """F(w) = 1/n sum_i f(g_i(w)) + penalty/2 |w|^2, linear in the features.

    Args:
        n: outer rows.
        sets: how many rows each of the two inner sets has.
        shared: of which set, 0 or 1, the outer rows are: those of a batch are the batch's of that set.
        shape: of w, [k, d]: k scores or coordinates of d features.
        dim: values of g_i.
        log: whether estimates are log g.
        outer: f, from [rows, dim] to [rows].
        inner: estimates [R, rows, dim] of g at w [R, k, d] for rows [R, rows], from a batch.
    """

    n: int
    sets: tuple[int, int]
    shared: int
    shape: tuple[int, int]
    dim: int
    log: bool
    outer: Callable[[Tensor], Tensor]
    inner: Callable[[Tensor, Tensor, Batch], Tensor]

    def value(self, w: Tensor) -> Tensor:
        """The exact objective of every run, [R], from w [R, k, d]: every row is sampled."""
        rows, first, second = (torch.arange(size).expand(len(w), -1) for size in (self.n, *self.sets))
        estimate = self.inner(w, rows, Batch(rows, first, second)).flatten(0, 1)
        values = self.outer(estimate.squeeze(1) if self.dim == 1 else estimate).reshape(len(w), self.n)
        return values.mean(1) + PENALTY / 2 * w.square().sum((1, 2))


def _classes(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The ten features of the mean cell, standardised, of malignant (positive) and benign cases."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x = bunch.data[:, :10]
    scaled = torch.tensor((x - x.mean(0)) / x.std(0), dtype=dtype)
    malignant = torch.tensor(bunch.target == 0)
    return scaled[malignant], scaled[~malignant]


def _scores(x: Tensor, w: Tensor) -> Tensor:
    """Scores of every row, of every run, [R, rows]."""
    return w[:, 0] @ x.T


def p_norm_push(dtype: torch.dtype) -> Objective:
    """How high benign cases i stand above malignant ones j: g_i = mean_j exp(h_i - h_j), f = g^p."""
    positive, negative = _classes(dtype)

    def inner(w: Tensor, rows: Tensor, batch: Batch) -> Tensor:
        own, other = _scores(negative, w).gather(1, rows), _scores(positive, w).gather(1, batch.inner)
        lifted = own + (-other).logsumexp(1, keepdim=True) - math.log(batch.inner.shape[1])
        return lifted[:, :, None]

    return Objective(
        n=len(negative),
        sets=(len(positive), len(negative)),
        shared=1,
        shape=(1, positive.shape[1]),
        dim=1,
        log=True,
        outer=lambda log_u: torch.exp(P * log_u),
        inner=inner,
    )


def average_precision(dtype: torch.dtype) -> Objective:
    """Smooth counts of the positives, and of all cases, above malignant case i: f = -g_1 / g_2."""
    positive, negative = _classes(dtype)

    def inner(w: Tensor, rows: Tensor, batch: Batch) -> Tensor:
        h_positive, h_negative = _scores(positive, w), _scores(negative, w)
        own = h_positive.gather(1, rows)[:, :, None]

        def above(rivals: Tensor) -> Tensor:
            return (1 + rivals[:, None, :] - own).relu().square()

        # i itself counts once; the other positives of the batch stand for all the others.
        others = rows[:, :, None] != batch.inner[:, None, :]
        among = above(h_positive.gather(1, batch.inner)) * others
        among_positives = 1 + (len(positive) - 1) * among.sum(2) / others.sum(2).clamp(min=1)
        among_negatives = len(negative) * above(h_negative.gather(1, batch.others)).mean(2)
        return torch.stack([among_positives, among_positives + among_negatives], 2)

    return Objective(
        n=len(positive),
        sets=(len(positive), len(negative)),
        shared=0,
        shape=(1, positive.shape[1]),
        dim=2,
        log=False,
        outer=lambda u: -u[:, 0] / u[:, 1],
        inner=inner,
    )


def neighbours(dtype: torch.dtype) -> Objective:
    """How often a random near neighbour j of a digit i is the same digit: g_i sums exp(-|Ax_i - Ax_j|^2)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = torch.tensor(bunch.data[:DIGITS] / 16, dtype=dtype), torch.tensor(bunch.target[:DIGITS])

    def inner(w: Tensor, rows: Tensor, batch: Batch) -> Tensor:
        own, other = x[rows] @ w.mT, x[batch.inner] @ w.mT
        squares = own.square().sum(2)[:, :, None] + other.square().sum(2)[:, None, :] - 2 * own @ other.mT
        itself = rows[:, :, None] == batch.inner[:, None, :]
        stranger = y[rows][:, :, None] != y[batch.inner][:, None, :]
        # A row outside of the batch has B others in it, a row of the batch B - 1.
        scale = math.log(len(x) - 1) - (~itself).sum(2).to(x.dtype).log()
        log_all = (-squares).masked_fill(itself, -math.inf)
        log_same = log_all.masked_fill(stranger, -math.inf)
        return torch.stack([_log_sum(log_same), log_all.logsumexp(2)], 2) + scale[:, :, None]

    return Objective(
        n=len(x),
        sets=(len(x), 1),
        shared=0,
        shape=(10, x.shape[1]),
        dim=2,
        log=True,
        outer=lambda log_u: -(log_u[:, 0] - log_u[:, 1]).exp(),
        inner=inner,
    )


def _log_sum(terms: Tensor) -> Tensor:
    """logsumexp over the last axis, whose gradient is 0, not NaN, where there is no term."""
    none = (terms == -math.inf).all(-1)
    return terms.masked_fill(none[..., None], 0.0).logsumexp(-1).masked_fill(none, -math.inf)


@cache
def make(name: str, dtype: torch.dtype = torch.float32) -> Objective:
    """An objective by its name."""
    return {"p-norm push": p_norm_push, "average precision": average_precision, "NCA": neighbours}[name](dtype)
