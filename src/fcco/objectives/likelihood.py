"""Likelihoods with a sum over a large set, of which an anchor brings a sample: latent variables, and a softmax."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from fcco.core.arrays import Array
from fcco.core.kernels import log_totals
from fcco.core.outers import Logarithm, LogRatio
from fcco.objectives.given import OwnCandidates


class Latent(NamedTuple):
    log_likelihood: Array
    log_weight: Array
    log_q: Array | None = None
    """How likely each z was drawn, [m, B2]; None: uniformly."""


class LatentVariable(OwnCandidates):
    """F = -mean of log(g_i1 / g_i2), the means of p(y_i | z) e^(w_iz) and of e^(w_iz) over z, drawn with chances q."""

    Columns, outer, outputs, dim, log = Latent, LogRatio(), 2, 2, True

    def is_known(self, x: Latent) -> Array:
        return (x.log_likelihood + x.log_weight > -math.inf).any(1)

    def estimate(self, x: Latent) -> Array:
        weight = x.log_weight if x.log_q is None else x.log_weight - x.log_q
        return torch.stack([log_totals(x.log_likelihood + weight), log_totals(weight)], 1) - math.log(weight.shape[1])


class Logits(NamedTuple):
    target_logit: Array
    sampled_logits: Array
    log_q: Array | None = None
    """How likely each class was drawn, [m, B2]; None: uniformly."""
    target: Array | None = None
    candidates: Array | None = None
    """[m, B2], which classes were drawn; those that are the target do not count."""


class Softmax(OwnCandidates):
    """F = mean of the logarithm of g_i, the sum of e^(s_ic - t_i) over all classes c, of which some are sampled.

    The self term, of the target, is "exact" with the weight 1, or "sampled" with that of each candidate.
    """

    Columns: ClassVar[type[Any]] = Logits
    outer, outputs, log = Logarithm(), 2, True

    def __init__(self, classes: int | None = None, term: Literal["exact", "sampled"] = "exact") -> None:
        self.classes, self.self_term = classes, term

    def is_known(self, x: Any) -> Array:
        return self.drawn(x) > 0

    def is_hit(self, x: Any) -> Array:
        """Return which candidates are the target, [m, B2]."""
        none = torch.zeros_like(x.sampled_logits, dtype=torch.bool)
        return none if x.target is None else x.candidates == x.target[:, None]

    def drawn(self, x: Any) -> Array:
        """Return how many were drawn, [m]: a hit is a draw of weight 0 if q is known, and none otherwise."""
        is_hit = self.is_hit(x)
        return (~is_hit if x.log_q is None else is_hit | ~is_hit).sum(1)

    def logits(self, x: Any) -> Array:
        """Return the candidates' logits less the target's, [m, B2]."""
        return x.sampled_logits - x.target_logit[:, None]

    def log_weights(self, x: Any) -> tuple[Array, Array]:
        """Return the logarithms of the weight of the target, [m, 1], and of each candidate, [m, 1] or [m, B2]."""
        drawn = self.drawn(x)[:, None].clamp(min=1).to(x[0].dtype)
        others = drawn if self.classes is None else 0 * drawn + (self.classes - 1)
        each = (others / drawn if self.self_term == "exact" else (others + 1) / (drawn + 1)).log()
        own = 0 * each if self.self_term == "exact" else each
        return own, each if x.log_q is None else each - others.log() - x.log_q

    def estimate(self, x: Any) -> Array:
        own, each = self.log_weights(x)
        return log_totals(torch.cat([own, (self.logits(x) + each).masked_fill(self.is_hit(x), -math.inf)], 1))


class Paired(NamedTuple):
    scores: Array
    """[B, B], of each example with the item of each; its target is its own."""
    item: Array
    log_q: Array | None = None
    """How likely an example has these items, [B]; None: all the same."""


class InBatchSoftmax(Softmax):
    """The softmax in which the candidates of an example are the targets of the others."""

    Columns, outputs = Paired, 1

    def is_hit(self, x: Any) -> Array:
        return x.item[:, None] == x.item

    def drawn(self, x: Any) -> Array:
        return super().drawn(x) - int(x.log_q is not None)

    def logits(self, x: Any) -> Array:
        return x.scores - x.scores.diagonal()[:, None]

    def log_weights(self, x: Any) -> tuple[Array, Array]:
        if x.log_q is None or self.self_term == "exact":
            return super().log_weights(x)
        each = -x.log_q - math.log(len(x.scores))  # how likely the target is, is known as well
        return each[:, None], each
