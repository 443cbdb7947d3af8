"""Objectives over neighbours in an embedding."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from fcco.core.arrays import Array, counted, namespace, ones, taken
from fcco.core.kernels import Backward, Pairs, log_sums, minus_squared_distances
from fcco.core.objective import OneKernel
from fcco.core.outers import Share
from fcco.core.weights import Pool, Weights


class Embedded(NamedTuple):
    embedding: Array
    label: Array


class NCA(OneKernel):
    """F = -mean of g_i1 / (g_i1 + g_i2), the sums of e^(-|z_i - z_j|²) over mates j, of i's class, and strangers."""

    Columns, dim, log, relations, self_relation, arrays = Embedded, 2, True, 2, 0, True

    conserves = True
    """Whether F does not change when all outputs move together."""

    def __init__(self, sizes: Any = None, *, likelihood: bool = False, by_class: bool = False) -> None:
        """``sizes`` are those of the classes, or [1] of all examples, of which batches are then random samples."""
        self.outer, self.needs_mate = Share(log=True, likelihood=likelihood), likelihood
        self.sizes, self.kinds = sizes, 1 if sizes is None else len(sizes)
        self.by_class = by_class
        self.strata, self.anchor_relations = self.kinds if by_class else 1, 2 if self.kinds > 1 else 1
        self.stratum_sizes = sizes
        if self.kinds == 1 and (sizes is None or likelihood):
            return
        with_mates = sizes * (sizes > 1)
        self.anchor_sizes = with_mates if likelihood else sizes
        self.total = float(self.anchor_sizes.sum())
        self.stratum_parts = (self.anchor_sizes if by_class else self.anchor_sizes.sum()[None]) / self.total
        if not by_class and self.kinds > 1:
            self.stratum_sizes = namespace(sizes).stack([with_mates.sum(), sizes.sum()])[:, None]

    def alone(self) -> Self:
        """Return the objective of a batch that is the whole population, with classes of its own."""
        objective = super().alone()
        objective.kinds = 1
        return objective

    def kind(self, x: Embedded) -> Array:
        return x.label if self.kinds > 1 else 0 * x.label

    def stratum(self, x: Embedded, kind: Array) -> Array:
        return kind if self.by_class else 0 * kind

    def ring(self, x: Embedded, kind: Array) -> Array:
        return 0 * kind

    def relation(self, anchors: Embedded, candidates: Embedded) -> tuple[Array, ...]:
        mates = anchors.label[:, None] == candidates.label
        return mates, ~mates

    def by_relation(self, x: Embedded, counts: Array) -> Array:
        if self.kinds == 1:  # mates and strangers together
            return counts[:, None]
        mates = taken(counts, x.label)
        return namespace(counts).stack([mates, counts.sum() - mates])

    by_anchors = by_relation

    def weigh(self, x: Embedded, candidates: Embedded, pool: Pool, copies: Array | float) -> Weights:
        """Return what each candidate of a pool stands for; there is no share of nobody, and no logarithm of 0."""
        w = super().weigh(x, candidates, pool, copies)
        known = w.known & (w.there.sum(0) > copies)
        if self.needs_mate:
            mates = ((x.label[:, None] == candidates.label) * pool.weight).sum(1) > copies
            known = known & mates & (w.each[0] > 0)
        return w._replace(known=known)

    def inner(self, anchors: Embedded, candidates: Embedded, pairs: Pairs, w: Weights) -> tuple[Array, Backward]:
        """Return g and its ``backward``. If all classes are there, strangers stand for their own class."""
        if self.kinds > 2:
            xp, there = namespace(w.each), counted(candidates.label, self.kinds, pairs.weight)
            are_there = ((there > 0) | (self.sizes == 0)).all()
            each = xp.where(are_there, self.sizes / there.clip(1, None), 1.0)
            pairs = pairs._replace(weight=pairs.weight * taken(each, candidates.label))
            strangers = xp.where(are_there & (w.each[1] > 0), 1.0, w.each[1])
            w = w._replace(each=xp.stack([w.each[0] / taken(each, anchors.label), strangers]))
        return super().inner(anchors, candidates, pairs, w)

    def without_net_force(self, gradient: Array, x: Embedded) -> Array:
        """Return the gradient without the mean of that of strangers, and with its own class's force on the others.

        Mates may always come together, so that their mean is not 0. The strangers of class c have -S / (n - n_c) on
        average, where S is the sum over the class. In random samples, every example can be a class of its own.
        """
        if self.sizes is None or not self.conserves:
            return gradient
        if self.kinds == 1:
            rest = gradient - (gradient.sum(0) - gradient) / max(len(gradient) - 1, 1)
            return rest - rest / self.sizes
        one = ones(gradient)
        there = counted(x.label, self.kinds, one)
        mates, strangers = taken(there, x.label)[:, None] - 1, len(one) - taken(there, x.label)[:, None]
        of_class = taken(counted(x.label, self.kinds, gradient.T), x.label, 1).T
        rest = gradient - (gradient.sum(0) - of_class) / strangers.clip(1, None)
        of_mates = taken(counted(x.label, self.kinds, rest.T), x.label, 1).T - rest
        others = (taken(self.sizes, x.label)[:, None] - 1) * of_mates / mates.clip(1, None)
        return rest - (rest + others) / self.sizes.sum()

    def sums(self, anchors: Embedded, candidates: Embedded, pairs: Pairs) -> tuple[Array, Backward]:
        t, to_embeddings = minus_squared_distances(anchors.embedding, candidates.embedding, pairs.weight)
        logs, to_pairs = log_sums(t, pairs)

        def backward(grad: Array, side: Any = "both", scale: Array | None = None) -> Any:
            return to_embeddings(to_pairs(grad, scale), side)

        return logs, backward
