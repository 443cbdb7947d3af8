"""What all inner estimates share: sums over the rivals in a batch that estimate sums over the population.

An estimate consists of terms, one for each rival j of example i. The terms are grouped by strata (positives and
negatives, events and censored examples, ...) whose sizes N in the population are known. Let the batch contain b
rivals of a stratum.

- ``own_term="exact"``: the own term counts once, the other b - 1 examples of its stratum represent the remaining N - 1,
  and the rivals of every other stratum represent all of its N members. This estimate is unbiased whatever the balance
  of the batch. If the batch has no other member of a stratum that matters, example i has no term.
- ``own_term="sampled"``: every term of a stratum, including the own term, has the weight N / b, as in every in-batch
  loss. This estimate has a bias of O(1 / b) and a much smaller variance.

If nothing is known about the population, the pool is taken as the whole population. ``rows`` identifies examples that
appear more than once in the pool, because an example is not its own rival.

In these functions all examples of a pool are in one tensor, own examples first. ``sides`` says how many are own, and
which of them are rivals.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fcco._pool import ALL, Estimate, Sides
from fcco.core.spaces import as_column
from fcco.functional._checks import check_choice

OwnTerm = Literal["exact", "sampled"]


def check_own_term(own_term: str) -> None:
    """Check the option ``own_term``."""
    check_choice(own_term, "own_term", ("exact", "sampled"))


def as_estimate(inner: Tensor, share: Tensor, *, log: bool, total: Tensor | None = None) -> Estimate:
    """Return an estimate in which g = 1 where the share is 0.

    At g = 1, f and its derivatives are defined, and the share of 0 removes the term. Without a total, f is averaged
    over the examples whose share is True.
    """
    share = share.to(inner.dtype)
    settled = torch.where(as_column(share > 0, inner), inner, 0.0 if log else 1.0)
    return Estimate(settled, share, share.sum() if total is None else total)


def against(values: Tensor, sides: Sides) -> tuple[Tensor, Tensor]:
    """Return the values of the rivals, of shape (1, pool), and the own values, of shape (own, 1)."""
    return sides.theirs(values).unsqueeze(0), sides.mine(values).unsqueeze(1)


def same(values: Tensor, sides: Sides = ALL) -> Tensor:
    """Return a mask of shape (own, pool): whether a rival has the same value."""
    theirs, mine = against(values, sides)
    return theirs == mine


def above(scores: Tensor, sides: Sides, temperature: float | Tensor = 1.0) -> Tensor:
    """Return how far each rival's score is above the own one, in units of the temperature, of shape (own, pool)."""
    theirs, mine = against(scores, sides)
    # Differences are divided, not scores, which would lose digits to a large offset.
    return theirs - mine if is_one(temperature) else (theirs - mine) / temperature


def is_one(temperature: float | Tensor) -> bool:
    """Return whether a temperature is known to be 1, without reading it from a tensor."""
    return isinstance(temperature, float) and temperature == 1.0


def diagonal(like: Tensor, sides: Sides) -> Tensor:
    """Return a mask of shape (own, pool) that is True where a position meets itself."""
    return torch.eye(len(sides.mine(like)), len(sides.theirs(like)), dtype=torch.bool, device=like.device)


def copies_of(rows: Tensor | None, like: Tensor, sides: Sides) -> Tensor:
    """Return a mask of shape (own, pool): whether two positions hold the same example.

    A position always matches itself.
    """
    return diagonal(like, sides) if rows is None else same(rows, sides)


def own_terms_fixed(differences: Tensor, copies: Tensor, sides: Sides) -> Tensor:
    """Return differences of which those of an example with itself have no gradient.

    They have none anyway, unless the own example and the one among its rivals are two tensors.
    """
    return torch.where(copies, differences.detach(), differences) if sides.recall.apart else differences


def stratum_weight(
    member: Tensor, population: int | Tensor, like: Tensor, *, copies: int | Tensor | None = None
) -> Tensor:
    """How many members of the population one member of a stratum in the batch represents.

    This is N / b, or (N - 1) / (b - c) if the own term is separate.

    Parameters
    ----------
    member : Tensor of bool of shape (..., B)
        The members of the stratum in the batch; b is their number.
    population : int or Tensor
        The size N of the stratum in the population.
    like : Tensor
        The tensor whose dtype the result has.
    copies : int, Tensor or None, default None
        How many times c the own example appears in the batch, if its term is separate; None if it is not.

    Returns
    -------
    Tensor
        The weight, with the shape of b or c. It is a finite number without meaning if the batch has no (other) member
        of the stratum.
    """
    count = (member.sum(-1) if copies is None else member.sum(-1) - copies).to(like.dtype)
    rest = population - int(copies is not None)
    rest = rest.clamp(min=0) if isinstance(rest, Tensor) else rest  # a batch without a population may lack a stratum
    return rest / count.clamp(min=1)


def each_represents(population: int | Tensor, expected: Tensor, *, apart: bool = False) -> Tensor:
    """How many members of the population a fresh rival represents to a remembered example, on average over batches.

    Parameters
    ----------
    population : int or Tensor
        The size N of the stratum in the population.
    expected : Tensor
        How many members of the stratum a batch has on average.
    apart : bool, default False
        Whether the remembered example is a member of the stratum, so that the batch can only have N - 1 of its rivals.
    """
    return torch.where(expected > 0, (population - int(apart)) / expected, 0.0)


def population_of(member: Tensor, sides: Sides) -> tuple[int | Tensor, Tensor]:
    """Return how many examples the pool has, and how many members of a stratum, if nothing else is known."""
    if sides.recall.present is None:
        return len(member), member.sum()
    return sides.size(torch.ones_like(member)), sides.size(member)


def own_weight(population: int | Tensor, held: Tensor, own_term: str) -> Tensor:
    """Return the weight of a remembered example's own term: 1, or that of every member of its stratum in the pool."""
    return torch.ones_like(held) if own_term == "exact" else population / held.clamp(min=1)


def can_estimate(member: Tensor, population: int | Tensor, *, copies: int | Tensor | None = None) -> Tensor:
    """Whether the batch has a member of the stratum (other than the own example), or the population has none either."""
    others = member.sum(-1) if copies is None else member.sum(-1) - copies
    return (others > 0) | (population <= int(copies is not None))


def masked_logsumexp(values: Tensor, where: Tensor) -> Tensor:
    """Log-sum-exp over the last dimension where ``where`` is True; -inf without a gradient if it is True nowhere."""
    present = where.any(-1, keepdim=True)
    # Without members, zeros are summed and the result is discarded, because a sum over -inf would have a NaN gradient.
    fill = torch.zeros_like(present, dtype=values.dtype).masked_fill(present, -math.inf)
    total = torch.where(where, values, fill).logsumexp(-1)
    return torch.where(present.squeeze(-1), total, -math.inf)


def product(first: Tensor, second: Tensor) -> Tensor:
    """Return the matrix product in the precision of its factors, even under autocast."""
    device = first.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return first @ second
    with torch.autocast(device, enabled=False):
        return first @ second
