"""What all inner estimates share: sums over the rivals in a batch that stand for sums over the population.

An estimate is made of terms, one for each rival j of example i, grouped in strata (positives and negatives, events and
censored, ...) whose sizes N in the population are known. With b rivals of a stratum in the batch,

- ``own_term="exact"``: i's own term counts once, the other b - 1 of its stratum stand for N - 1, and those of every
  other stratum for all of its N. Unbiased, whatever the batch's balance.
- ``own_term="sampled"``: every term of a stratum weighs N / b, i's own among them, as in every in-batch loss. Biased by
  O(1 / b), and of much less variance.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fcco._space import as_column
from fcco.functional._checks import check_choice

OwnTerm = Literal["exact", "sampled"]


class Estimate(NamedTuple):
    """An inner estimate from a batch, and how much each example's f counts in the objective."""

    inner: Tensor
    """[B] or [B, dim], an estimate of g or log g; a harmless constant where the weight is 0."""
    weight: Tensor
    """[B], such that the sum of weight * f estimates F; 0 where i has no term, or none that can be estimated."""


def check_own_term(own_term: str) -> None:
    check_choice(own_term, "own_term", ("exact", "sampled"))


def mean_weight(counts: Tensor, like: Tensor) -> Tensor:
    """Equal weights for the examples that count, adding up to 1; all 0 where none does."""
    weight = counts.to(like.dtype)
    return weight / weight.sum().clamp(min=1)


def settle(inner: Tensor, weight: Tensor, *, log: bool) -> Estimate:
    """An estimate with g = 1 where the weight is 0: f and its derivatives are defined there, and nothing reaches it."""
    return Estimate(torch.where(as_column(weight > 0, inner), inner, 0.0 if log else 1.0), weight)


def stratum_weight(member: Tensor, population: float | Tensor, *, of_others: bool) -> Tensor:
    """What one member of a stratum in the batch stands for: N / b, or (N - 1) / (b - 1) of the others than the own.

    0 where the stratum is empty (or has no other member): its sum cannot be estimated.
    """
    count = member.sum(-1) - int(of_others)
    return (population - int(of_others)) / count.clamp(min=1) * (count > 0)


def can_estimate(member: Tensor, population: float | Tensor, *, of_others: bool) -> Tensor:
    """Whether the batch has a member of the stratum (other than the own), or the population has none either."""
    return (member.sum(-1) > int(of_others)) | (torch.as_tensor(population, device=member.device) <= int(of_others))


def masked_logsumexp(values: Tensor, where: Tensor) -> Tensor:
    """log of the sum of e^values over the last dimension where ``where`` holds; -inf, without gradient, if nowhere."""
    present = where.any(-1)
    # A row without members is summed over as it is and then thrown away: its gradient would not be a number.
    total = values.masked_fill(~where & present.unsqueeze(-1), -math.inf).logsumexp(-1)
    return torch.where(present, total, -math.inf)
