"""NCA and contrastive losses by hand; see :mod:`fcco.losses._by_hand`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fcco.losses._by_hand import Array, ArrayEstimate, LeftToTheEngine


def contrastive_by_hand(
    first: Array, second: Array, *, temperature: float, mode: str, include_positive: bool, n: int, exact: bool
) -> ArrayEstimate:
    """Estimate log g of the contrastive loss; see :func:`fcco.functional.inner.contrastive_inner`."""
    if first.ndim != 2 or first.shape != second.shape or len(first) < 2:
        raise LeftToTheEngine
    # Cosines are at most 1. Relative to e^(1 / τ), no term underflows, unless τ is tiny.
    if 2 / temperature > (80 if first.dtype == np.float32 else 700):
        raise LeftToTheEngine
    (a, of_a), (b, of_b) = _directions(first), _directions(second)
    blocks = [_terms(a, b, temperature)]
    positive = np.einsum("id,id->i", a, b) / temperature
    if mode == "two_views":
        blocks += [_terms(a, a, temperature), _terms(b, b, temperature)]
    sums = np.empty((len(a), 2), a.dtype)
    np.add.reduce(blocks[0], 1, out=sums[:, 0])
    np.add.reduce(blocks[0], 0, out=sums[:, 1])
    for view, block in enumerate(blocks[1:]):
        sums[:, view] += np.add.reduce(block, 1)
    views = 2 if mode == "two_views" else 1
    drawn = (len(a) - 1) * views
    inner = np.log(sums / drawn) + (1 / temperature - positive)[:, None]
    share: Array | float = 1.0  # of the others, next to the positive pair
    if include_positive:
        candidates = (n - 1) * views if exact else drawn
        others = inner + math.log(candidates)
        every = np.logaddexp(others, 0)
        share = np.exp(others - every)
        inner = every - math.log1p(candidates)

    def pull(slope: Array) -> tuple[Array, Array]:
        slope = slope * share / temperature
        per_row = (slope / sums).astype(a.dtype, copy=False)
        across = blocks[0] * (per_row[:, :1] + per_row[:, 1])
        np.fill_diagonal(across, -np.add.reduce(slope, 1))
        to_a, to_b = across @ b, across.T @ a
        for view, (block, unit, to_view) in enumerate(zip(blocks[1:], (a, b), (to_a, to_b), strict=False)):
            of_both = per_row[:, view]
            to_view += (block * (of_both[:, None] + of_both)) @ unit  # each example is an anchor, and a candidate
        return of_a(to_a), of_b(to_b)

    return ArrayEstimate(inner, pull)


def _terms(own: Array, rivals: Array, temperature: float) -> Array:
    """Return e^((cos - 1) / τ), and 0 on the diagonal."""
    logits = (own / temperature) @ rivals.T
    logits -= 1 / temperature
    np.exp(logits, out=logits)
    np.fill_diagonal(logits, 0)
    return logits


def _directions(vectors: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return the vectors scaled to unit length, and a function from the gradient of these to that of the vectors."""
    lengths = np.sqrt(np.einsum("id,id->i", vectors, vectors))
    if not (np.minimum.reduce(lengths) > 1e-15 and np.maximum.reduce(lengths) < 1e15):
        raise LeftToTheEngine
    units = vectors / lengths[:, None]

    def pull(gradient: Array) -> Array:
        return (gradient - np.einsum("id,id->i", gradient, units)[:, None] * units) / lengths[:, None]

    return units, pull
