"""Objectives over neighbours in an embedding."""

from __future__ import annotations

from typing import Any, NamedTuple

from fcco.core.arrays import Array, counted, namespace, ones, taken
from fcco.core.kernels import Backward, Pairs, log_sums, minus_squared_distances
from fcco.core.objective import Objective
from fcco.core.outers import Share
from fcco.core.weights import Pool, Weights


class Embedded(NamedTuple):
    embedding: Array
    label: Array


class NCA(Objective):
    """F = -mean of g_i1 / (g_i1 + g_i2), the sums of e^(-|z_i - z_j|²) over mates j, of i's class, and strangers."""

    Columns, dim, log, relations, anchor_relations, self_relation, arrays = Embedded, 2, True, 2, 2, 0, True

    conserves = True
    """Whether F does not change when all outputs move together."""

    def __init__(self, sizes: Any = None, *, kinds: int = 1, likelihood: bool = False, by_class: bool = False) -> None:
        self.outer, self.needs_mate = Share(log=True, likelihood=likelihood), likelihood
        self.sizes = sizes
        self.kinds = kinds if sizes is None else len(sizes)
        self.by_class = by_class
        self.strata = self.kinds if by_class else 1
        if sizes is not None:
            with_mates = sizes * (sizes > 1)
            self.anchor_sizes = with_mates if likelihood else sizes
            self.total = float(self.anchor_sizes.sum())
            self.stratum_parts = (self.anchor_sizes if by_class else self.anchor_sizes.sum()[None]) / self.total
            self.stratum_sizes = sizes
            if not by_class:
                self.stratum_sizes = namespace(sizes).stack([with_mates.sum(), sizes.sum()])[:, None]

    def kind(self, x: Embedded) -> Array:
        return x.label

    def stratum(self, x: Embedded, kind: Array) -> Array:
        return kind if self.by_class else 0 * kind

    def ring(self, x: Embedded, kind: Array) -> Array:
        return 0 * kind

    def relation(self, anchors: Embedded, candidates: Embedded) -> tuple[Array, ...]:
        mates = anchors.label[:, None] == candidates.label
        return mates, ~mates

    def by_relation(self, x: Embedded, counts: Array) -> Array:
        mates = taken(counts, x.label)
        return namespace(counts).stack([mates, counts.sum() - mates])

    by_anchors = by_relation

    def weigh(self, x: Embedded, candidates: Embedded, pool: Pool, copies: Array | float) -> Weights:
        """Return what each candidate of a pool stands for; a logarithm needs a mate."""
        w = super().weigh(x, candidates, pool, copies)
        return w._replace(known=w.known & (w.each[0] > 0)) if self.needs_mate else w

    def without_net_force(self, gradient: Array, x: Embedded) -> Array:
        """Return the gradient without the mean of that of strangers, and with its own class's force on the others.

        Mates may always come together, so that their mean is not 0. The strangers of class c have -S / (n - n_c) on
        average, where S is the sum over the class.
        """
        if self.sizes is None or not self.conserves:
            return gradient
        one = ones(gradient)
        there = counted(x.label, self.kinds, one)
        mates, strangers = taken(there, x.label)[:, None] - 1, len(one) - taken(there, x.label)[:, None]
        of_class = taken(counted(x.label, self.kinds, gradient.T), x.label, 1).T
        rest = gradient - (gradient.sum(0) - of_class) / strangers.clip(1, None)
        of_mates = taken(counted(x.label, self.kinds, rest.T), x.label, 1).T - rest
        others = (taken(self.sizes, x.label)[:, None] - 1) * of_mates / mates.clip(1, None)
        return rest - (rest + others) / self.sizes.sum()

    def sums(self, anchors: Embedded, candidates: Embedded, pairs: Pairs) -> tuple[Array, Backward]:
        t, to_embeddings = minus_squared_distances(anchors.embedding, candidates.embedding)
        logs, to_pairs = log_sums(t, pairs)

        def backward(grad: Array, side: Any = "both", scale: Array | None = None) -> Any:
            return to_embeddings(to_pairs(grad, scale), side)

        return logs, backward
