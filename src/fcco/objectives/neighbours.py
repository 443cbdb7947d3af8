"""Objectives over neighbours in an embedding."""

from __future__ import annotations

from typing import Any, NamedTuple

from fcco.core.arrays import Array, namespace, ones, taken
from fcco.core.kernels import Backward, Pairs, log_sums, minus_squared_distances
from fcco.core.objective import Objective
from fcco.core.outers import Share


class Embedded(NamedTuple):
    embedding: Array
    label: Array


class NCA(Objective):
    """F = -mean of g_i1 / (g_i1 + g_i2), the sums of e^(-|z_i - z_j|²) over mates j, of i's class, and strangers."""

    Columns, dim, log, relations, anchor_relations, self_relation, arrays = Embedded, 2, True, 2, 2, 0, True

    def __init__(self, sizes: Any = None, *, kinds: int = 1, likelihood: bool = False, by_class: bool = False) -> None:
        self.outer = Share(log=True, likelihood=likelihood)
        self.sizes = self.anchor_sizes = sizes
        self.kinds = kinds if sizes is None else len(sizes)
        self.by_class = by_class
        self.strata = self.kinds if by_class else 1
        if sizes is not None:
            self.total = float(sizes.sum())
            self.stratum_sizes = sizes if by_class else sizes.sum()[None]
            self.stratum_parts = self.stratum_sizes / self.total

    def kind(self, x: Embedded) -> Array:
        return x.label

    def stratum(self, x: Embedded) -> Array:
        return x.label if self.by_class else 0 * x.label

    def ring(self, x: Embedded) -> Array:
        return 0 * x.label

    def relation(self, anchors: Embedded, candidates: Embedded) -> tuple[Array, ...]:
        mates = anchors.label[:, None] == candidates.label
        return mates, ~mates

    def by_relation(self, x: Embedded, counts: Array) -> Array:
        mates = taken(counts, x.label)
        return namespace(counts).stack([mates, counts.sum() - mates])

    by_anchors = by_relation

    def sums(self, anchors: Embedded, candidates: Embedded, pairs: Pairs) -> tuple[Array, Backward]:
        t, to_embeddings = minus_squared_distances(anchors.embedding, candidates.embedding)
        logs, to_pairs = log_sums(t, pairs)

        def backward(grad: Array, side: Any = "both", scale: Array | None = None) -> Any:
            return to_embeddings(to_pairs(grad, scale), side)

        return logs, backward
