"""The parts of a step: what goes in, what is worked out, and what observers see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco._checks import check_weight
from fcco._outer import Shares
from fcco._pool import Estimate
from fcco._table import Seen
from fcco.core.spaces import Rate


class Visit(NamedTuple):
    """One step of the table as an observer sees it, with an entry for each position of the batch."""

    rows: Tensor
    """[B1]."""
    estimate: Tensor
    """[B1] or [B1, dim], of g (log g in log space)."""
    before: Tensor
    """What the rows held; the estimate where a row was not visited before."""
    seen: Tensor
    """[B1] of bool: whether the row was visited before."""
    where: Tensor
    """[B1] of bool: False for padding."""


class SharedEstimate(NamedTuple):
    """Inner values of all n rows, which every rank has alike."""

    inner: Tensor
    """[n] or [n, dim]."""
    weight: Tensor
    """[n], the weight of each f, or a mask of bool for the mean over some."""
    sample: Tensor | None = None
    """[n], what f is evaluated on."""
    extra: Tensor | None = None
    """A scalar that is added to the loss."""


class Inputs(NamedTuple):
    """What a step is called with, checked."""

    inner: Tensor
    rows: Tensor
    shares: Shares | None
    previous: Tensor | None
    may_repeat: bool
    tracked: Tensor
    """What the rows meet: ``inner`` without its graph, or a better estimate of the same."""


class Step(NamedTuple):
    """A step of the table that is worked out, and not yet written."""

    inner: Tensor
    new: Tensor
    at: Tensor
    sampled: Tensor | None  # those of ``inner`` that f is taken at; None: all
    tracked: Tensor | None  # rows of the table to write; None: all
    seen: Seen | None  # which of them were written before
    values: Tensor  # what to write: ``new``, unless ranks write each other's
    rate: Rate
    written: Tensor | None  # where the values are not padding
    visit: Visit | None


def step_without_rows(given: Inputs) -> Step:
    """Return the step of a batch whose rows are not known, for rules that keep none."""
    inner = given.inner.to(torch.promote_types(given.inner.dtype, torch.float32))
    at = given.tracked.to(inner.dtype)
    return Step(inner, at, at, None, None, None, at, 1.0, None, None)


def split_estimate(made: Estimate | Tensor) -> tuple[Tensor, Shares | None]:
    """Return the inner values of an estimate and the shares of their f (None: f is averaged)."""
    return (made, None) if isinstance(made, Tensor) else (made.inner, Shares(made.share, made.total))


def as_shares(weight: Any, rows: Tensor, dtype: torch.dtype, *, needed: bool) -> Shares | None:
    """Return checked weights of values of ``dtype`` as shares, or None for the mean, unless shares are needed."""
    if isinstance(weight, Shares) or (weight is None and not needed):
        return weight
    dtype = torch.promote_types(dtype, torch.float32)
    if weight is None:
        everyone = torch.ones_like(rows, dtype=dtype)
        return Shares(everyone, everyone.sum())
    share = check_weight(weight, rows, dtype)
    return Shares(share, weight.sum() if weight.dtype == torch.bool else None)


def estimate_of_nothing(columns: Sequence[Any], dim: int) -> Tensor:
    """Return an estimate of no example, differentiable with respect to the columns of an empty part of a batch."""
    floats = [part for part in columns if isinstance(part, Tensor) and part.is_floating_point()]
    dtype = torch.promote_types(floats[0].dtype, torch.float32)
    nothing = torch.cat([part.to(dtype).reshape(0, part.shape[1:].numel()) for part in floats], 1).sum(1)
    return nothing if dim == 1 else nothing.unsqueeze(1).repeat(1, dim)
