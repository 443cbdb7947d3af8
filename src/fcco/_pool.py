"""What an inner set is made of: the examples of a batch, those of other ranks, and remembered ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco._checks import shape_of


class Estimate(NamedTuple):
    """Inner values of a batch's own examples, and how much each example's f counts in the objective.

    Parameters
    ----------
    inner : Tensor of shape (B,) or (B, dim)
        An estimate of g or log g.
    share : Tensor of shape (B,)
        What the weight of each f is proportional to.
    total : Tensor
        A scalar. The weight of each f is its share, divided by this.
    rivals : Tensor of shape (B,), optional
        How many fresh examples the estimate for a remembered example is made from.
    """

    inner: Tensor
    """[B] or [B, dim], an estimate of g or log g; a harmless constant where the share is 0."""
    share: Tensor
    """[B], proportional to the weight of each f; 0 where an example has no term, or none that can be estimated."""
    total: Tensor
    """What the shares are of: where the batch is in parts, the sum over its parts."""
    rivals: Tensor | None = None
    """[B], how many fresh examples an estimate for a remembered example is made from.

    If given, and in log space, the gradient takes the estimate for at most 1 + 8 (1 / sqrt(rivals) + 1 / rivals) times
    the remembered u.
    """

    @property
    def weight(self) -> Tensor:
        """[B], such that the sum of weight * f estimates F."""
        return self.share / torch.where(self.total > 0, self.total, 1.0)


class Recall(NamedTuple):
    """How a pool with remembered examples is to be read.

    Attributes
    ----------
    present : Tensor of shape (B + R,) or None
        Which examples count. The others are empty places of the memory.
    apart : bool
        Whether the own examples have no rivals except those in ``rivals``.
    expected : Tensor or None
        How many rivals of each stratum a batch has on average, if the own examples are remembered.
    held : Tensor or None
        How many examples the whole pool has, by stratum. It is given together with ``expected``.
    """

    present: Tensor | None = None
    """[B + R] of bool: False for places of the memory that are empty; None: there are none."""
    apart: bool = False
    """Whether the own examples have no rivals except those in ``rivals``.

    The own example itself may be among them. It is then found by its row, and its term has no gradient.
    """
    expected: Tensor | None = None
    """[strata], how many rivals of each stratum a batch has on average.

    If given, the own examples are remembered and their rivals fresh. The estimate of g is then a sum over the rivals,
    in which one of stratum c represents N_c / expected_c examples, and a constant own term if g has one. Every own
    example that is present is known, even if the batch has none of its rivals: g is right on average over batches.
    """
    held: Tensor | None = None
    """[rings], how many examples the whole pool has, remembered or fresh: of each stratum that the memory keeps apart.

    It is given together with ``expected``.
    """


class Sides(NamedTuple):
    """Who is compared with whom: own examples come first in every column, and then their rivals."""

    own: int | None = None
    """How many examples are own; None: all of them."""
    recall: Recall = Recall()

    def mine(self, values: Tensor) -> Tensor:
        """Return the part of a column for which estimates are made."""
        return values if self.own is None else values[: self.own]

    def theirs(self, values: Tensor) -> Tensor:
        """Return the part of a column that own examples are compared with."""
        return values[self.own :] if self.recall.apart else values

    def members(self, stratum: Tensor) -> Tensor:
        """Return which of the rivals belong to a stratum, given a mask of all examples."""
        present = self.recall.present
        return self.theirs(stratum if present is None else stratum & present)

    def size(self, stratum: Tensor) -> Tensor:
        """Return how many examples of a stratum there are in the pool, which is taken as the whole population."""
        if self.recall.expected is not None:  # rivals are fresh, and none of them is an own example
            return self.members(stratum).sum() + self.members_of_mine(stratum).sum()
        return self.members(stratum).sum()

    def members_of_mine(self, stratum: Tensor) -> Tensor:
        """Return which of the own examples belong to a stratum, given a mask of all examples."""
        present = self.recall.present
        return self.mine(stratum if present is None else stratum & present)


ALL = Sides()


def join(own: Sequence[Any], rivals: Sequence[Any] | None, recall: Recall | None = None) -> tuple[Sequence[Any], Sides]:
    """Return the columns of the pool, own examples first, and which of them are own.

    Raises
    ------
    ValueError
        The rivals have other columns than the batch.
    """
    if rivals is None:
        return own, ALL
    if len(rivals) != len(own):
        raise ValueError(f"rivals must have the {len(own)} columns of the batch; got {len(rivals)}")
    for place, (one, other) in enumerate(zip(own, rivals, strict=True)):
        if not isinstance(other, Tensor) or other.shape[1:] != one.shape[1:]:
            got = shape_of(other) if isinstance(other, Tensor) else type(other).__name__
            wanted = ", ".join(["R", *map(str, one.shape[1:])])
            raise ValueError(f"rivals[{place}] must have the shape [{wanted}]; got {got}")
    joined = [torch.cat([one, other]) for one, other in zip(own, rivals, strict=True)]
    return joined, Sides(len(own[0]), recall or Recall())
