"""Objectives that compare positives with negatives: average precision, p-norm push and the area under the ROC curve."""

from __future__ import annotations

from typing import Any, NamedTuple

from fcco.core.arrays import Array, as_numbers, flipped, is_true, namespace, ones, taken, wide
from fcco.core.kernels import Backward, Pairs, moments, score_sums
from fcco.core.objective import OneKernel
from fcco.core.outers import Margin, Power, Share
from fcco.core.surrogates import Surrogate
from fcco.core.weights import Pool, SelfTerm, Weights


class Scored(NamedTuple):
    score: Array
    label: Array


class Classed(NamedTuple):
    """Pairs of an example and a class; see :func:`fcco.objectives.classes.by_class`."""

    score: Array
    label: Array
    """-1 where it is missing."""
    group: Array
    """The class."""


class Bipartite(OneKernel):
    """What they share: kinds 0 and 1 are the negatives and the positives; 2 k and 2 k + 1 are those of class k.

    With several classes, F is the mean of their objectives. A memory then needs ``sizes``.
    """

    Columns, kinds, strata, rings, arrays = Scored, 2, 2, 2, True

    def __init__(
        self, surrogate: Surrogate, tau: float | Array = 1.0, sizes: Array | None = None, classes: int | None = None
    ) -> None:
        self.surrogate, self.tau, self.log, self.self_value = surrogate, tau, surrogate.log, surrogate.self_value
        self.arrays, self.classes = surrogate.arrays, classes
        self.sizes = self.stratum_sizes = sizes
        if classes is not None:
            self.Columns = Classed  # type: ignore[misc, assignment]
            self.kinds = self.strata = self.rings = 2 * classes

    def have_positives(self, sizes: Any) -> None:
        """Tell how many anchors there are, if these are the positives."""
        if sizes is None:
            return
        of_class = sizes.reshape(-1, 2)
        self.anchor_sizes, self.total = (of_class * namespace(sizes).arange(2)).reshape(-1), float(of_class[:, 1].sum())
        if self.classes is not None:
            counts = (of_class[:, 1] > 0) & ((of_class[:, 0] > 0) | (not self.is_mean))
            self.total = float(counts.sum())
            self.stratum_parts = ((counts[:, None] * namespace(sizes).arange(2)) / self.total).reshape(-1)

    def of_class(self, x: Any, counts: Array) -> Array:
        """Return the counts of negatives and positives of the class of each example, [2, 1] or [2, m]."""
        return counts[:, None] if self.classes is None else taken(counts.reshape(-1, 2).T, x.group, 1)

    def kind(self, x: Any) -> Array:
        kind = as_numbers(is_true(x.label))
        return kind if self.classes is None else kind + 2 * x.group

    def group(self, x: Any) -> Array | None:
        return None if self.classes is None else x.group

    def pool(self, x: Any, weight: Array) -> Pool:
        return super().pool(x, weight if self.classes is None else weight * (x.label >= 0))

    def by_anchors(self, x: Any, counts: Array) -> Array:
        return self.of_class(x, counts).sum(0)[None]

    def shares(self, x: Any, w: Weights, fresh: Pool) -> tuple[Array, Array]:
        share = w.known * ones(x.score)
        if self.classes is not None:
            share = share / self.of_class(x, fresh.there)[1].clip(1, None)
        return share, share

    def worth(self, x: Any, share: Array) -> Array:
        if self.classes is None or self.anchor_sizes is None:
            return share
        return (share > 0) / self.of_class(x, self.anchor_sizes)[1].clip(1, None)


class AveragePrecision(Bipartite):
    """F = -mean over positives i of g_i1 / (g_i1 + g_i2), the sums of l(h_j - h_i) over positives and negatives j."""

    dim, relations, self_relation = 2, 2, 0
    refreshes_alike = True  # where positives are few, a g_1 of many steps ago would meet a new g_2

    def __init__(
        self,
        surrogate: Surrogate,
        tau: float | Array = 1.0,
        sizes: Any = None,
        term: SelfTerm = "sampled",
        classes: int | None = None,
    ) -> None:
        super().__init__(surrogate, tau, sizes, classes)
        self.outer, self.self_term = Share(surrogate.log), term
        self.have_positives(sizes)

    def is_anchor(self, x: Any) -> Array:
        return is_true(x.label)

    def relation(self, anchors: Any, candidates: Any) -> tuple[Array, ...]:
        positive = is_true(candidates.label)
        return positive, ~positive

    def by_relation(self, x: Any, counts: Array) -> Array:
        return flipped(self.of_class(x, counts), 0)

    def sums(self, anchors: Any, candidates: Any, pairs: Pairs) -> tuple[Array, Backward]:
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
        return (is_true(candidates.label),)

    def by_relation(self, x: Scored, counts: Array) -> Array:
        return counts[1:, None]

    def sums(self, anchors: Scored, candidates: Scored, pairs: Pairs) -> tuple[Array, Backward]:
        bare, back = score_sums(-anchors.score, -candidates.score, self.surrogate, pairs)
        return bare, lambda grad, *side: back(-grad, *side)


class AUC(Bipartite):
    """F = mean over positives i of g_i, the mean over negatives j of l(h_j - h_i).

    f is linear, so a table has nothing to improve. One row for each class only smooths the value.
    """

    is_mean = True

    def __init__(self, surrogate: Surrogate, sizes: Any = None, classes: int | None = None) -> None:
        super().__init__(surrogate, sizes=sizes, classes=classes)
        self.outer = Power(1.0, surrogate.log)
        self.have_positives(sizes)

    def is_anchor(self, x: Any) -> Array:
        return is_true(x.label)

    def relation(self, anchors: Any, candidates: Any) -> tuple[Array, ...]:
        return (candidates.label != 1,)

    def by_relation(self, x: Any, counts: Array) -> Array:
        return self.of_class(x, counts)[:1]

    def sums(self, anchors: Any, candidates: Any, pairs: Pairs) -> tuple[Array, Backward]:
        return score_sums(anchors.score, candidates.score, self.surrogate, pairs)


class AUCMargin(AUC):
    """F = Var₊ h + Var₋ h + (m + E₋ h - E₊ h)₊², given the means of h and of h² over the positives and the negatives.

    All positives of a class have the same g, and share a row.
    """

    dim = relations = 4

    def __init__(self, margin: float = 1.0, sizes: Any = None, classes: int | None = None) -> None:
        super().__init__(Surrogate("hinge", margin), sizes, classes)
        self.outer = Margin(margin)

    def relation(self, anchors: Any, candidates: Any) -> tuple[Array, ...]:
        positive = is_true(candidates.label)
        return positive, ~positive, positive, ~positive

    def by_relation(self, x: Any, counts: Array) -> Array:
        return wide(self.of_class(x, counts))[[1, 0, 1, 0]]  # variances are differences of what may be large

    def sums(self, anchors: Any, candidates: Any, pairs: Pairs) -> tuple[Array, Backward]:
        return moments(anchors.score, candidates.score, pairs, self.classes or 1)
