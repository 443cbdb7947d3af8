"""Objectives whose anchors bring their candidates, or their inner values, and are not compared with each other."""

from __future__ import annotations

from typing import Any, NamedTuple

from fcco.core.arrays import Array, ones
from fcco.core.kernels import Backward, Pairs, Side
from fcco.core.objective import Objective, differentiated
from fcco.core.outers import Outer
from fcco.core.weights import Pool, Weights


class OwnCandidates(Objective):
    """An objective of which an anchor brings its own candidates: g is a function of the columns of each anchor."""

    has_pool, self_relation, is_mean = False, None, False

    def estimate_own(self, x: Any) -> Array:
        """Return g, [m] or [m, dim], in torch."""
        raise NotImplementedError

    def is_known(self, x: Any) -> Array:
        """Return of which anchors g can be estimated, [m] of bool."""
        return ones(x[0]) > 0

    def pool(self, x: Any, weight: Array) -> Pool:
        return Pool(weight, weight, weight)  # which nobody asks

    def weigh(self, x: Any, candidates: Any, pool: Pool, copies: Array | float) -> Weights:
        return Weights(1.0, None, self.is_known(x))

    def inner(self, anchors: Any, candidates: Any, pairs: Pairs, w: Weights) -> tuple[Array, Backward]:
        k = self.outputs

        def estimate(*leaves: Any) -> Array:
            return self.learning(leaves[k:]).estimate_own(type(anchors)(*leaves[:k], *anchors[k:]))

        inner, pull = differentiated(estimate, (*anchors[:k], *self.parameters))

        def backward(grad: Array, side: Side = "both") -> Any:
            made = pull(grad)
            return made[:k], (), *made[k:]

        return inner, backward


class Given(NamedTuple):
    inner: Array


class GivenInner(OwnCandidates):
    """F = mean of f(g_i), where the caller gives g_i: the objective of ``CoupledLoss``."""

    Columns, arrays = Given, True

    def __init__(self, outer: Outer, dim: int = 1, *, log: bool = False) -> None:
        self.outer, self.dim, self.log, self.arrays = outer, dim, log, outer.arrays

    def inner(self, anchors: Given, candidates: Given, pairs: Pairs, w: Weights) -> tuple[Array, Backward]:
        return anchors.inner, lambda grad, side="both": ((grad,), ())
