"""Partial areas under the ROC curve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fcco.core.arrays import Array, namespace
from fcco.core.kernels import Backward, Pairs, places, score_sums, surrogate_log_sums
from fcco.core.outers import AmongHighest, Logarithm, PowerOfLog
from fcco.core.surrogates import Surrogate
from fcco.core.weights import Pool, Weights
from fcco.objectives.bipartite import AUC, Bipartite, Scored


class PartialAUC(AUC):
    """F = mean over positives i of tau log g_i, where g_i is the mean over negatives j of e^(l(h_j - h_i) / tau)."""

    def __init__(self, surrogate: Surrogate, tau: float = 1.0, sizes: Any = None, classes: int | None = None) -> None:
        super().__init__(surrogate, sizes, classes)
        self.outer, self.log, self.tau = Logarithm(tau), True, tau

    def sums(self, anchors: Any, candidates: Any, pairs: Pairs) -> tuple[Array, Backward]:
        return surrogate_log_sums(anchors.score, candidates.score, self.surrogate, pairs, self.tau)


class TwoWayPartialAUC(PartialAUC):
    """F = tau₊ log mean over positives i of g_i^(tau / tau₊), with g as in partial AUC.

    This is the inner of two levels: the mean of the powers, divided by e^peak. The outer one tracks its logarithm.
    """

    def __init__(self, surrogate: Surrogate, tau: float = 1.0, positive_tau: float = 1.0, sizes: Any = None) -> None:
        super().__init__(surrogate, tau, sizes)
        self.outer: PowerOfLog = PowerOfLog(tau / positive_tau)

    def outer_of(self, inner: Array, share: Array) -> PowerOfLog:
        xp = namespace(inner)
        if not len(inner):
            return self.outer
        peak = xp.where(share > 0, self.outer.p * inner, -float("inf")).max()
        return PowerOfLog(self.outer.p, xp.where((share > 0).any(), peak, 0.0))


class CVaRPartialAUC(Bipartite):
    """F = mean over negatives i of f(g_i), where g_i3 is the mean over positives j of l(h_i - h_j).

    g_i1 and g_i2 are which parts of the negatives are level with i, itself included, and above it. They have no
    gradient, and tell how much of i is among the highest.
    """

    dim, relations, self_relation, self_term, is_mean, refreshes = 3, 3, 0, "exact", True, False

    def __init__(self, surrogate: Surrogate, share: float = 0.1, sizes: Any = None) -> None:
        super().__init__(replace(surrogate, name="exponential") if surrogate.log else surrogate, sizes=sizes)
        self.outer, self.self_value = AmongHighest(share), 1.0
        if sizes is not None:
            self.anchor_sizes, self.total = sizes * (1 - namespace(sizes).arange(2)), float(sizes[0])

    def is_anchor(self, x: Scored) -> Array:
        return x.label != 1

    def relation(self, anchors: Scored, candidates: Scored) -> tuple[Array, ...]:
        positive = candidates.label == 1
        return ~positive, ~positive, positive

    def by_relation(self, x: Scored, counts: Array) -> Array:
        return counts[[0, 0, 1]][:, None]

    def population(self, x: Scored, there: Array) -> Array:
        return there if self.sizes is None else self.by_relation(x, self.sizes)

    def weigh(self, x: Scored, candidates: Scored, pool: Pool, copies: Any) -> Weights:
        w, sizes = super().weigh(x, candidates, pool, copies), self.population(x, self.there(x, candidates, pool))
        each = namespace(sizes).stack([w.each[0], w.each[0], w.each[2]])  # neither column counts the anchor itself
        return w._replace(each=each / sizes.clip(1, None), own=1 / sizes[0].clip(1, None))

    def sums(self, anchors: Scored, candidates: Scored, pairs: Pairs) -> tuple[Array, Backward]:
        at = places(anchors.score, candidates.score, pairs)
        positives = pairs._replace(relations=pairs.relations[2:], same=None)
        bare, back = score_sums(-anchors.score, -candidates.score, self.surrogate, positives)
        return namespace(bare).concatenate([at, bare]), lambda grad, *side: back(-grad[2:], *side)
