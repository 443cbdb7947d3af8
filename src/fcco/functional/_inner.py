"""What all inner estimates share: sums over the rivals in a batch that stand for sums over the population.

An estimate is made of terms, one for each rival j of example i, grouped in strata (positives and negatives, events and
censored, ...) whose sizes N in the population are known. With b rivals of a stratum in the batch,

- ``own_term="exact"``: i's own term counts once, the other b - 1 of its stratum stand for N - 1, and those of every
  other stratum for all of its N. Unbiased, whatever the batch's balance; where a stratum that matters has no other
  member in the batch, i has no term.
- ``own_term="sampled"``: every term of a stratum weighs N / b, i's own among them, as in every in-batch loss. Biased by
  O(1 / b), and of much less variance.

Where nothing is known of a population, the batch is all there is. An example that stands twice in a batch is no rival
of itself: ``rows`` tells. Estimates are made of the examples ``outer``, a slice of the batch (None: all of it), and
their rivals are those of the whole batch.
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
    """[B] or [B, dim], an estimate of g or log g; a harmless constant where the share is 0."""
    share: Tensor
    """[B], proportional to the weight of each f; 0 where i has no term, or none that can be estimated."""
    total: Tensor
    """What the shares are of: where the batch is in parts, the sum over its parts."""

    @property
    def weight(self) -> Tensor:
        """[B], such that the sum of weight * f estimates F."""
        return self.share / torch.where(self.total > 0, self.total, 1.0)


def check_own_term(own_term: str) -> None:
    check_choice(own_term, "own_term", ("exact", "sampled"))


def settle(inner: Tensor, share: Tensor, *, log: bool, total: Tensor | None = None) -> Estimate:
    """An estimate with g = 1 where the share is 0: f and its derivatives are defined there, and nothing reaches it.

    Without a total, f is averaged: examples with a share of True count alike.
    """
    share = share.to(inner.dtype)
    settled = torch.where(as_column(share > 0, inner), inner, 0.0 if log else 1.0)
    return Estimate(settled, share, share.sum() if total is None else total)


def outer_of(values: Tensor, outer: slice | None) -> Tensor:
    """The part of a batch that estimates are made of."""
    return values if outer is None else values[outer]


def against(values: Tensor, outer: slice | None) -> tuple[Tensor, Tensor]:
    """[1, B] and [B, 1]: the rivals, and those that they are compared with."""
    return values.unsqueeze(0), outer_of(values, outer).unsqueeze(1)


def same(values: Tensor, outer: slice | None) -> Tensor:
    """[B, B] of bool: whether a rival has the same value."""
    rivals, own = against(values, outer)
    return rivals == own


def above(scores: Tensor, outer: slice | None) -> Tensor:
    """[B, B]: by how much each rival's score is above the own."""
    rivals, own = against(scores, outer)
    return rivals - own


def diagonal(like: Tensor, outer: slice | None) -> Tensor:
    """[B, B] of bool, each position against itself."""
    if outer is None:
        return torch.eye(len(like), dtype=torch.bool, device=like.device)
    return same(torch.arange(len(like), device=like.device), outer)


def copies_of(rows: Tensor | None, like: Tensor, outer: slice | None) -> Tensor:
    """[B, B] of bool: whether two positions hold the same example, each position and itself among them."""
    return diagonal(like, outer) if rows is None else same(rows, outer)


def stratum_weight(
    member: Tensor, population: int | Tensor, like: Tensor, *, copies: int | Tensor | None = None
) -> Tensor:
    """What one member of a stratum in the batch stands for: N / b, or (N - 1) / (b - c) of the others than the own.

    Args:
        member: [B] of bool, or [..., B].
        population: N.
        like: gives the dtype.
        copies: c, how often the own example stands in the batch, where its term is apart; None: it is not.

    Returns:
        Of the shape of b or c; where the batch has nobody (else) of the stratum, it is a number without a use.
    """
    count = _rivals(member, copies).to(like.dtype)
    rest = population - int(copies is not None)
    rest = rest.clamp(min=0) if isinstance(rest, Tensor) else rest  # where a batch is all there is, it may lack some
    return rest / count.clamp(min=1)


def can_estimate(member: Tensor, population: int | Tensor, *, copies: int | Tensor | None = None) -> Tensor:
    """Whether the batch has a member of the stratum (other than the own), or the population has none either."""
    return (_rivals(member, copies) > 0) | (population <= int(copies is not None))


def _rivals(member: Tensor, copies: int | Tensor | None) -> Tensor:
    return member.sum(-1) if copies is None else member.sum(-1) - copies


def masked_logsumexp(values: Tensor, where: Tensor) -> Tensor:
    """log of the sum of e^values over the last dimension where ``where`` holds; -inf, without gradient, if nowhere."""
    present = where.any(-1, keepdim=True)
    # A row without members is summed over zeros and then thrown away: over -inf, its gradient would not be a number.
    fill = torch.zeros_like(present, dtype=values.dtype).masked_fill(present, -math.inf)
    total = torch.where(where, values, fill).logsumexp(-1)
    return torch.where(present.squeeze(-1), total, -math.inf)


def product(first: Tensor, second: Tensor) -> Tensor:
    """The matrix product, in the factors' own precision under autocast too."""
    device = first.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return first @ second
    with torch.autocast(device, enabled=False):
        return first @ second
