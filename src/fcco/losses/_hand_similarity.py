"""NCA and contrastive losses by hand; see :mod:`fcco.losses._by_hand`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fcco.losses._by_hand import Array, ArrayEstimate, LeftToTheEngine


class NeighbourSums(NamedTuple):
    """Sums over rivals of e^-|z_i - z_j|² for every own example: over its mates, and over all.

    ``terms`` and ``mate`` have shape (own, rivals); a term is relative to the largest of its row, whose logarithm is
    ``peak``. ``logs`` has shape (own, 2).
    """

    terms: Array
    mate: Array
    peak: Array
    logs: Array

    def weights(self, slope: Array) -> Array:
        """Return the derivative of the loss with respect to -|z_i - z_j|², given that with respect to the logs."""
        scale = slope * np.exp(self.peak[:, None] - self.logs)
        scale[~np.isfinite(scale)] = 0.0  # an example without a mate
        scale = scale.astype(self.terms.dtype, copy=False)
        weights = self.mate * scale[:, :1]
        weights += scale[:, 1:]
        weights *= self.terms
        return weights


def neighbour_sums(own: Array, rivals: Array, label: Array, their_label: Array, *, own_first: bool) -> NeighbourSums:
    """Compare embeddings, which must be centred so that the matrix product loses no digits to a common offset.

    With ``own_first``, the first rivals are the own examples, which are not their own neighbours.

    Raises
    ------
    LeftToTheEngine
        If a sum over mates needs log space.
    """
    logits = own @ (2 * rivals.T)
    logits -= np.einsum("id,id->i", own, own)[:, None]
    logits -= np.einsum("jd,jd->j", rivals, rivals)
    np.minimum(logits, 0, out=logits)
    if own_first:
        np.fill_diagonal(logits, -math.inf)
    peak = np.maximum.reduce(logits, 1)
    logits -= peak[:, None]
    terms = np.exp(logits, out=logits)
    mate = label[:, None] == their_label
    sums = np.empty((len(own), 2), terms.dtype)
    np.einsum("ij,ij->i", terms, mate, out=sums[:, 0])
    np.add.reduce(terms, 1, out=sums[:, 1])
    # Mates that are much farther than strangers underflow, which they do not in a sum of their own.
    faint = (sums[:, 0] < np.finfo(sums.dtype).tiny / np.finfo(sums.dtype).eps).nonzero()[0]
    if len(faint) and np.maximum.reduce(np.count_nonzero(mate[faint], axis=1)) > int(own_first):
        raise LeftToTheEngine
    return NeighbourSums(terms, mate, peak, np.log(sums) + peak[:, None])


def nca_by_hand(z: Array, label: Array, *, n: int, log_likelihood: bool) -> ArrayEstimate:
    """Estimate log g of NCA from a random batch; see :func:`fcco.functional.inner.nca_inner`."""
    if z.ndim != 2 or len(z) < 2 or label.dtype.kind not in "iu" or not math.isfinite(np.add.reduce(z, None)):
        raise LeftToTheEngine
    z = z - z.mean(0)
    sums = neighbour_sums(z, z, label, label, own_first=True)
    inner = sums.logs + z.dtype.type(math.log((n - 1) / (len(z) - 1)))
    if not (np.minimum.reduce(inner[:, 1]) > -math.inf):
        raise LeftToTheEngine
    outer = None
    if log_likelihood and not (np.minimum.reduce(inner[:, 0]) > -math.inf):
        outer = (inner[:, 0] > -math.inf).nonzero()[0]  # the others have no mate, and no term
        if not len(outer):
            raise LeftToTheEngine

    def pull(slope: Array) -> tuple[Array]:
        if outer is not None:
            every = np.zeros((len(z), 2), slope.dtype)
            every[outer] = slope
            slope = every
        weights = sums.weights(slope)
        pulls = weights @ z
        pulls += weights.T @ z
        totals = np.add.reduce(weights, 1) + np.add.reduce(weights, 0)
        pulls -= totals[:, None] * z
        pulls *= 2
        return (pulls,)

    return ArrayEstimate(inner if outer is None else inner[outer], pull, outer)


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
