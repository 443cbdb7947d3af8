"""Objectives that compare positives with negatives: average precision and p-norm push."""

from __future__ import annotations

from typing import Any, NamedTuple

from fcco.core.arrays import Array, namespace
from fcco.core.kernels import Backward, Pairs, score_sums
from fcco.core.objective import Objective
from fcco.core.outers import Power, Share
from fcco.core.surrogates import Surrogate
from fcco.core.weights import SelfTerm


class Scored(NamedTuple):
    score: Array
    label: Array


class Bipartite(Objective):
    """What they share: kinds 0 and 1 are the negatives and the positives."""

    Columns, kinds, strata, rings, arrays = Scored, 2, 2, 2, True

    def __init__(self, surrogate: Surrogate, tau: float | Array = 1.0, sizes: Array | None = None) -> None:
        self.surrogate, self.tau, self.log, self.self_value = surrogate, tau, surrogate.log, surrogate.self_value
        self.arrays = surrogate.arrays
        self.sizes = self.stratum_sizes = sizes

    def kind(self, x: Scored) -> Array:
        return (x.label == 1) * 1


class AveragePrecision(Bipartite):
    """F = -mean over positives i of g_i1 / (g_i1 + g_i2), the sums of l(h_j - h_i) over positives and negatives j."""

    dim, relations, self_relation = 2, 2, 0

    def __init__(
        self, surrogate: Surrogate, tau: float | Array = 1.0, sizes: Any = None, term: SelfTerm = "sampled"
    ) -> None:
        super().__init__(surrogate, tau, sizes)
        self.outer, self.self_term = Share(surrogate.log), term
        if sizes is not None:
            self.anchor_sizes, self.total = sizes * namespace(sizes).arange(2), float(sizes[1])

    def is_anchor(self, x: Scored) -> Array:
        return x.label == 1

    def relation(self, anchors: Scored, candidates: Scored) -> tuple[Array, ...]:
        positive = candidates.label == 1
        return positive, ~positive

    def by_relation(self, x: Scored, counts: Array) -> Array:
        return counts[[1, 0]][:, None]

    def sums(self, anchors: Scored, candidates: Scored, pairs: Pairs) -> tuple[Array, Backward]:
        return score_sums(anchors.score, candidates.score, self.surrogate, pairs, self.tau)


class PNormPush(Bipartite):
    """F = mean over negatives i of g_i^p, where g_i is the mean over positives j of l(h_i - h_j)."""

    is_mean, refreshes = True, False

    def __init__(self, surrogate: Surrogate, p: float = 4) -> None:
        super().__init__(surrogate)
        self.outer, self.p = Power(p, surrogate.log), p

    def is_anchor(self, x: Scored) -> Array:
        return x.label != 1

    def relation(self, anchors: Scored, candidates: Scored) -> tuple[Array, ...]:
        return (candidates.label == 1,)

    def by_relation(self, x: Scored, counts: Array) -> Array:
        return counts[1:, None]

    def sums(self, anchors: Scored, candidates: Scored, pairs: Pairs) -> tuple[Array, Backward]:
        bare, back = score_sums(-anchors.score, -candidates.score, self.surrogate, pairs)
        return bare, lambda grad, *side: back(-grad, *side)
