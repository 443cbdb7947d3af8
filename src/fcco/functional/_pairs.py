"""Reductions over the rivals of every example: by sorting where the surrogate allows it, otherwise over all pairs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fcco.functional._chunks import Place, Places, chunk_rows, map_chunks
from fcco.functional._hinges import hinge_sums
from fcco.functional._ramps import ramp_sums
from fcco.functional._surrogates import Surrogate
from fcco.functional._tensors import at_least_float32, widen


def reduce_pairs(
    own: Tensor,
    rivals: Tensor,
    reduce: Callable[[Tensor, Tensor | None], Tensor],
    *,
    where: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Reduce the differences between all rivals and every own score, a few rows at a time.

    Parameters
    ----------
    own : Tensor of shape (Q, M)
        The own scores. Each of the Q problems is separate.
    rivals : Tensor of shape (Q, N)
        The scores of the rivals.
    reduce : callable
        Maps t of shape (q, m, N), the rivals' scores minus the own ones, and a mask of shape (q, 1, N) or None to
        values of shape (q, m). The mask marks rivals to ignore; t is 0 there.
    where : Tensor of bool of shape (Q, N) or None, default None
        The rivals to include; all by default.
    chunk : int or None, default None
        How many of the M own scores to process at a time. By default, as many as fit in memory.

    Returns
    -------
    Tensor of shape (Q, M)
        The reduced values.
    """
    (problems, rows), width = own.shape, rivals.shape[1]
    step = chunk_rows(width, own, chunk)
    deep, across = max(1, step // rows), -(-rows // step)

    def place(k: int) -> Place:
        some = slice(k // across * deep, (k // across + 1) * deep)
        return (some, slice(k % across * step, (k % across + 1) * step)), some

    places = Places(-(-problems // deep) * across, place)

    def tile(place: Place, own: Tensor, rivals: Tensor) -> Tensor:
        t = rivals.unsqueeze(1) - own.unsqueeze(2)
        absent = None if where is None else ~where[place[1]].unsqueeze(1)
        return reduce(t if absent is None else t.masked_fill(absent, 0.0), absent)

    return map_chunks(tile, places, problems * rows, own, rivals).reshape(problems, rows)


def surrogate_sums(
    own: Tensor,
    rivals: Tensor,
    surrogate: Surrogate,
    *,
    where: Tensor | None = None,
    weights: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    r"""For every own score, the weighted sum of the surrogate over its rivals.

    .. math:: \sum_j c_j \ell(r_j - h_i)

    Parameters
    ----------
    own : Tensor of shape (Q, M) or (M,)
        The own scores h.
    rivals : Tensor of shape (Q, N) or (N,)
        The scores r of the rivals.
    surrogate : Surrogate
        The surrogate ℓ. Hinges and the ramp cost O((M + N) log(M + N)), others O(MN).
    where : Tensor of bool of shape (Q, N) or (N,), or None, default None
        The rivals to include; all by default.
    weights : Tensor of shape (N,) or None, default None
        The weights c of the rivals; 1 by default.
    chunk : int or None, default None
        How many of the M own scores to process at a time if all pairs are compared.

    Returns
    -------
    Tensor of shape (Q, M) or (M,)
        The sums.
    """
    if surrogate.is_ramp or surrogate.hinge_power is not None:
        own, rivals = widen(own), widen(rivals)
        counts = torch.ones_like(rivals) if where is None else where.to(rivals)
        counts = counts if weights is None else counts * weights
        if surrogate.hinge_power is None:
            # Of rivals that are just within the width, moments cancel, and rounding may leave a sum below 0.
            return ramp_sums(own, rivals, counts).clamp(min=0)
        return _finite(hinge_sums(own, rivals, counts, surrogate.hinge_power, surrogate.margin), surrogate)
    if own.dim() == 1:
        where = where if where is None else where[None]
        return surrogate_sums(own[None], rivals[None], surrogate, where=where, weights=weights, chunk=chunk)[0]

    def reduce(t: Tensor, absent: Tensor | None) -> Tensor:
        values = surrogate(t)
        values = values if absent is None else values.masked_fill(absent, 0.0)
        # The last digits of a matrix product may depend on the number of threads.
        return (values if weights is None else values * weights.to(values.dtype)).sum(2)

    sums = reduce_pairs(at_least_float32(own), at_least_float32(rivals), reduce, where=where, chunk=chunk)
    return _finite(sums, surrogate)


def _finite(sums: Tensor, surrogate: Surrogate) -> Tensor:
    """Return the sums; raise if one is not finite."""
    if not bool(sums.detach().isfinite().all()):
        raise ValueError(
            f"scores must be close enough for sums of the surrogate to be finite; got an overflow with {surrogate.name}"
        )
    return sums
