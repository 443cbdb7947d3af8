"""What an inner set is made of: the examples of a batch, and rivals from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco._checks import shape_of


class Estimate(NamedTuple):
    """Inner values of a batch's own examples, and how much each example's f counts in the objective."""

    inner: Tensor
    """[B] or [B, dim], an estimate of g or log g; a harmless constant where the share is 0."""
    share: Tensor
    """[B], proportional to the weight of each f; 0 where an example has no term, or none that can be estimated."""
    total: Tensor
    """What the shares are of: where the batch is in parts, the sum over its parts."""

    @property
    def weight(self) -> Tensor:
        """[B], such that the sum of weight * f estimates F."""
        return self.share / torch.where(self.total > 0, self.total, 1.0)


class Pool(NamedTuple):
    """The examples that inner estimates are made from, as columns: scores, targets, ...

    Estimates are made of the batch's *own* examples. Their *rivals* are each other, and those in ``rivals``, which come
    from other ranks.
    """

    own: Sequence[Any]
    """Columns of the batch, [B, ...] each, as the loss was called with."""
    rivals: Sequence[Tensor] | None = None
    """The same columns of further examples, [R, ...] each; None: there are none."""
    rows: Tensor | None = None
    """[B + R], the row of each, own examples first; None in ``eval()`` mode, where rows mean nothing."""
    may_repeat: bool = True
    """False if no row appears twice."""

    @property
    def repeated_rows(self) -> Tensor | None:
        """The rows, or None if none appears twice."""
        return self.rows if self.may_repeat else None

    def joined(self) -> Sequence[Any]:
        """Return the columns of own examples and rivals together."""
        return join(self.own, self.rivals)[0]


EstimateFrom = Callable[[Pool], Estimate | Tensor]


def join(own: Sequence[Any], rivals: Sequence[Any] | None) -> tuple[Sequence[Any], int | None]:
    """Return the columns of the pool, own examples first, and how many are own (None: all of them).

    Raises
    ------
    ValueError
        The rivals have other columns than the batch.
    """
    if rivals is None:
        return own, None
    if len(rivals) != len(own):
        raise ValueError(f"rivals must have the {len(own)} columns of the batch; got {len(rivals)}")
    for place, (one, other) in enumerate(zip(own, rivals, strict=True)):
        if not isinstance(other, Tensor) or other.shape[1:] != one.shape[1:]:
            got = shape_of(other) if isinstance(other, Tensor) else type(other).__name__
            wanted = ", ".join(["R", *map(str, one.shape[1:])])
            raise ValueError(f"rivals[{place}] must have the shape [{wanted}]; got {got}")
    return [torch.cat([one, other]) for one, other in zip(own, rivals, strict=True)], len(own[0])
