"""What all inner estimates share: sums over the rivals in a batch that stand for sums over the population.

An estimate is made of terms, one for each rival j of example i, grouped in strata (positives and negatives, events and
censored, ...) whose sizes N in the population are known. With b rivals of a stratum in the batch,

- ``own_term="exact"``: i's own term counts once, the other b - 1 of its stratum stand for N - 1, and those of every
  other stratum for all of its N. Unbiased, whatever the batch's balance; where a stratum that matters has no other
  member in the batch, i has no term.
- ``own_term="sampled"``: every term of a stratum weighs N / b, i's own among them, as in every in-batch loss. Biased by
  O(1 / b), and of much less variance.

Where nothing is known of a population, the pool is all there is. An example that stands twice in the pool is no rival
of itself: ``rows`` tells. Within these functions the examples of a pool are one tensor, own examples first, and
``own`` says how many these are (None: all).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fcco._pool import Estimate
from fcco._space import as_column
from fcco.functional._checks import check_choice

OwnTerm = Literal["exact", "sampled"]


def check_own_term(own_term: str) -> None:
    check_choice(own_term, "own_term", ("exact", "sampled"))


def as_estimate(inner: Tensor, share: Tensor, *, log: bool, total: Tensor | None = None) -> Estimate:
    """An estimate with g = 1 where the share is 0: f and its derivatives are defined there, and nothing reaches it.

    Without a total, f is averaged: examples with a share of True count alike.
    """
    share = share.to(inner.dtype)
    settled = torch.where(as_column(share > 0, inner), inner, 0.0 if log else 1.0)
    return Estimate(settled, share, share.sum() if total is None else total)


def own_part(values: Tensor, own: int | None) -> Tensor:
    """The part of a pool that estimates are made of."""
    return values if own is None else values[:own]


def against(values: Tensor, own: int | None) -> tuple[Tensor, Tensor]:
    """[1, pool] and [own, 1]: the rivals, and those that they are compared with."""
    return values.unsqueeze(0), own_part(values, own).unsqueeze(1)


def same(values: Tensor, own: int | None) -> Tensor:
    """[own, pool] of bool: whether a rival has the same value."""
    theirs, mine = against(values, own)
    return theirs == mine


def above(scores: Tensor, own: int | None) -> Tensor:
    """[own, pool]: by how much each rival's score is above the own."""
    theirs, mine = against(scores, own)
    return theirs - mine


def diagonal(like: Tensor, own: int | None) -> Tensor:
    """[own, pool] of bool, each position against itself."""
    rows = len(like) if own is None else own
    return torch.eye(rows, len(like), dtype=torch.bool, device=like.device)


def copies_of(rows: Tensor | None, like: Tensor, own: int | None) -> Tensor:
    """[own, pool] of bool: whether two positions hold the same example, each position and itself among them."""
    return diagonal(like, own) if rows is None else same(rows, own)


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
    count = (member.sum(-1) if copies is None else member.sum(-1) - copies).to(like.dtype)
    rest = population - int(copies is not None)
    rest = rest.clamp(min=0) if isinstance(rest, Tensor) else rest  # where a batch is all there is, it may lack some
    return rest / count.clamp(min=1)


def can_estimate(member: Tensor, population: int | Tensor, *, copies: int | Tensor | None = None) -> Tensor:
    """Whether the batch has a member of the stratum (other than the own), or the population has none either."""
    others = member.sum(-1) if copies is None else member.sum(-1) - copies
    return (others > 0) | (population <= int(copies is not None))


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
