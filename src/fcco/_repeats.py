"""Rows that appear more than once in a batch: their estimates are averaged, in fixed shapes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fcco.core.spaces import Space, as_column


class Repeats(NamedTuple):
    """Which positions of a batch hold the same row.

    ``slot`` maps each position to a number of its row within the batch. ``weight`` is 1, or 0 for padding, or None if
    there is no padding. ``total`` is the weight of each slot.
    """

    slot: Tensor
    weight: Tensor | None
    total: Tensor

    def mean(self, values: Tensor, space: Space) -> Tensor:
        """Replace the value at each position by the mean over its row. Rows that are only padding keep theirs."""
        means = space.group_mean(values, self.slot, self.weight, self.total).index_select(0, self.slot)
        return means if self.weight is None else torch.where(as_column(self.present(), values), means, values)

    def present(self) -> Tensor:
        """Return, for each position, whether its row appears in the batch other than as padding."""
        return self.total.index_select(0, self.slot) > 0

    def distinct(self) -> Tensor:
        """Return the number of distinct rows."""
        return (self.total > 0).to(self.total.dtype).sum()


def number_distinct(values: Tensor) -> Tensor:
    """Number the distinct values 0, 1, ..., by sorting, so that no shape depends on the data."""
    ordered, order = torch.sort(values)
    is_new = ordered[1:] != ordered[:-1]
    return torch.zeros_like(order).scatter(0, order[1:], is_new.cumsum(0))


def find_repeats(rows: Tensor, where: Tensor | None, dtype: torch.dtype) -> Repeats:
    """Group the positions of ``rows`` by row."""
    slot = number_distinct(rows)
    weight = None if where is None else where.to(dtype)
    counted = torch.ones_like(rows, dtype=dtype) if weight is None else weight
    return Repeats(slot, weight, torch.zeros_like(counted).index_add(0, slot, counted))
