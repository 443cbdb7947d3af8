"""Cox's partial likelihood."""

from __future__ import annotations

from typing import Any, NamedTuple

from fcco.core.arrays import Array, ascending, at_least, can_read, cast, is_true, located, namespace
from fcco.core.kernels import Backward, Pairs, Same, log_sums_from
from fcco.core.objective import OneKernel
from fcco.core.outers import Logarithm
from fcco.core.weights import SelfTerm


class Survival(NamedTuple):
    risk: Array
    time: Array
    event: Array
    stratum: Array | None = None
    """Risk sets are within strata; None: there is one."""


class Cox(OneKernel):
    """F = mean over events i of the logarithm of g_i, the sum of e^(h_j - h_i) over all j with T_j >= T_i."""

    Columns, log, arrays = Survival, True, True
    outer = Logarithm()
    kinds = strata = rings = relations = 2
    self_relation = 1

    def __init__(self, sizes: Any = None, term: SelfTerm = "sampled") -> None:
        self.self_term, self.fills = term, term == "sampled"
        self.sizes = self.stratum_sizes = sizes
        if sizes is not None and len(sizes) == 1:  # it is not known how many of them are events
            self.kinds = self.strata = self.rings = self.relations = 1
            self.self_relation = 0
        elif sizes is not None:
            self.anchor_sizes, self.total = sizes * (namespace(sizes).arange(2)), float(sizes[1])

    def is_anchor(self, x: Survival) -> Array:
        return is_true(x.event)

    def group(self, x: Survival) -> Array | None:
        return x.stratum

    def relation(self, anchors: Survival, candidates: Survival) -> tuple[Array, ...]:
        event = is_true(candidates.event)
        return (None,) if self.kinds == 1 else (~event, event)

    def pairs(self, anchors: Survival, candidates: Survival, weight: Array | None, same: Same | None) -> Pairs:
        """Return which candidates an anchor is compared with; strata may be any integers, and groups count from 0."""
        pairs, xp, m = super().pairs(anchors, candidates, weight, same), namespace(anchors.risk), len(anchors.risk)
        if pairs.group is None or not can_read(anchors.risk):
            return pairs
        numbers = xp.unique(xp.concatenate(pairs.group), return_inverse=True)[1]
        return pairs._replace(group=(numbers[:m], numbers[m:]))

    def sums(self, anchors: Survival, candidates: Survival, pairs: Pairs) -> tuple[Array, Backward]:
        return log_sums_from(anchors.risk, candidates.risk, anchors.time, candidates.time, pairs)

    def floor(self, anchors: Survival, candidates: Survival, inner: Array, at: Array) -> Array:
        """Return rows that a single fresh candidate with a huge output cannot undo."""
        xp = namespace(inner)
        earlier = located(ascending(candidates.time), anchors.time)
        part = 1.0 / cast(at_least(len(candidates.time) - earlier, 1), inner)
        return xp.maximum(at, inner - xp.log1p(8.0 * (part**0.5 + part)))
