"""Reductions over the rivals of every example: by sorting where the surrogate allows it, else all pairs in chunks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fcco.functional._chunks import Place, Places, chunk_rows, map_chunks
from fcco.functional._hinges import hinge_sums
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
    """[Q, M]: a reduction over the differences of all rivals to every own score, a few rows at a time.

    Args:
        own: [Q, M]; each of the Q is a problem of its own.
        rivals: [Q, N].
        reduce: from t [q, m, N], the rivals' scores less the own, and the mask [q, 1, N] of those that do not count
            (t is 0 there) or None, to [q, m].
        where: [Q, N] of bool, the rivals that count; None: all.
        chunk: rows of M at a time.
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
    r"""[Q, M], or [M]: for every own score, the sum of the surrogate over its rivals.

    .. math:: \sum_j c_j \ell(r_j - h_i)

    Args:
        own: h, [Q, M] or [M].
        rivals: r, [Q, N] or [N].
        surrogate: ℓ. Hinges cost O((M + N) log(M + N)); others O(MN).
        where: [Q, N] or [N] of bool, the rivals that count; None: all.
        weights: c, [N], how much each rival counts; None: 1.
        chunk: rows of M at a time, where pairs are gone through.
    """
    if own.dim() == 1:
        where = where if where is None else where[None]
        return surrogate_sums(own[None], rivals[None], surrogate, where=where, weights=weights, chunk=chunk)[0]
    if surrogate.hinge_power is not None:
        own, rivals = widen(own), widen(rivals)
        counts = torch.ones_like(rivals) if where is None else where.to(rivals)
        counts = counts if weights is None else counts * weights
        return _finite(hinge_sums(own, rivals, counts, surrogate.hinge_power, surrogate.margin), surrogate)

    def reduce(t: Tensor, absent: Tensor | None) -> Tensor:
        values = surrogate(t)
        values = values if absent is None else values.masked_fill(absent, 0.0)
        return values.sum(2) if weights is None else values @ weights

    sums = reduce_pairs(at_least_float32(own), at_least_float32(rivals), reduce, where=where, chunk=chunk)
    return _finite(sums, surrogate)


def _finite(sums: Tensor, surrogate: Surrogate) -> Tensor:
    if not bool(sums.detach().isfinite().all()):
        raise ValueError(f"scores are too far apart: a sum of surrogate {surrogate.name} over them overflows")
    return sums
