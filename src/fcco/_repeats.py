"""Rows that stand more than once in a batch: their estimates are averaged, in fixed shapes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fcco._space import Space, as_column


class Repeats(NamedTuple):
    """Which positions of a batch are the same row.

    ``slot`` maps a position to the number of its row within the batch; ``weight`` is 1 for positions that count and 0
    for padding; ``total`` is the weight of each slot.
    """

    slot: Tensor
    weight: Tensor
    total: Tensor

    def mean(self, values: Tensor, space: Space) -> Tensor:
        """Each position's value replaced by the mean over its row; rows of padding alone keep theirs."""
        means = space.group_mean(values, self.slot, self.weight, self.total)[self.slot]
        return torch.where(as_column(self.present(), values), means, values)

    def present(self) -> Tensor:
        """Whether a position's row stands anywhere in the batch other than as padding."""
        return self.total[self.slot] > 0

    def distinct(self) -> Tensor:
        """How many rows there are."""
        return (self.total > 0).to(self.total.dtype).sum()


def number_distinct(values: Tensor) -> Tensor:
    """[B] of 0, 1, ...: the same number for the same value; by sorting, so that no shape depends on the data."""
    ordered, order = torch.sort(values)
    is_new = torch.ones_like(ordered, dtype=torch.int64)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(order).scatter(0, order, is_new.cumsum(0) - 1)


def find_repeats(rows: Tensor, where: Tensor | None, dtype: torch.dtype) -> Repeats:
    """Group the positions of ``rows`` by row."""
    slot = number_distinct(rows)
    weight = torch.ones_like(rows, dtype=dtype) if where is None else where.to(dtype)
    return Repeats(slot, weight, torch.zeros_like(weight).index_add(0, slot, weight))
