"""Likelihoods with a sum over a large set, of which an anchor brings a sample: latent variables, and a softmax."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

from fcco.core.arrays import Array
from fcco.core.kernels import logsumexp
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

    def estimate_own(self, x: Latent) -> Array:
        weight = x.log_weight if x.log_q is None else x.log_weight - x.log_q
        return torch.stack([logsumexp(x.log_likelihood + weight), logsumexp(weight)], 1) - math.log(weight.shape[1])


class Logits(NamedTuple):
    target_logit: Array
    sampled_logits: Array
    log_q: Array | None = None
    """How likely each class was drawn, [m, B2]; None: uniformly."""
    target: Array | None = None
    candidates: Array | None = None
    """[m, B2], which classes were drawn; those that are the target do not count."""
    target_log_q: Array | None = None
    """[m], how likely the target was drawn, if that is known."""


class Softmax(OwnCandidates):
    """F = mean of the logarithm of g_i, the sum of e^(s_ic - t_i) over all classes c, of which some are sampled.

    The self term, of the target, is "exact" with the weight 1, or "sampled" with that of each candidate. None stands
    for "exact" where log q of the candidates alone is known.
    """

    Columns, outer, outputs, log = Logits, Logarithm(), 2, True

    def __init__(self, classes: int | None = None, term: Literal["exact", "sampled"] | None = None) -> None:
        self.classes, self.term = classes, term

    def is_known(self, x: Logits) -> Array:
        return self.drawn(x) > 0

    def is_hit(self, x: Logits) -> Array:
        """Return which candidates are the target, [m, B2]."""
        none = torch.zeros_like(x.sampled_logits, dtype=torch.bool)
        return none if x.target is None else x.candidates == x.target[:, None]

    def drawn(self, x: Logits) -> Array:
        """Return how many were drawn, [m]: a hit is a draw of weight 0 if q is known, and none otherwise."""
        is_hit = self.is_hit(x)
        return (~is_hit if x.log_q is None else is_hit | ~is_hit).sum(1)

    def log_weights(self, x: Logits) -> tuple[Array, Array]:
        """Return the logarithms of the weight of the target, [m, 1], and of each candidate, [m, 1] or [m, B2]."""
        log_q, only_others = x.log_q, x.log_q is not None and x.target_log_q is None
        is_exact = (self.term or ("exact" if only_others else "sampled")) == "exact"
        if log_q is not None and x.target_log_q is not None and not is_exact:
            total = math.log(x.sampled_logits.shape[1] + 1)
            return -x.target_log_q[:, None] - total, -log_q - total
        drawn = self.drawn(x)[:, None].clamp(min=1).to(x[0].dtype)
        others = drawn if self.classes is None else 0 * drawn + (self.classes - 1)
        each = (others / drawn if is_exact else (others + 1) / (drawn + 1)).log()
        own = 0 * each if is_exact else each
        return own, each if log_q is None else each - others.log() - log_q

    def estimate_own(self, x: Logits) -> Array:
        own, each = self.log_weights(x)
        logits = x.sampled_logits - x.target_logit[:, None] + each
        return logsumexp(torch.cat([own, logits.masked_fill(self.is_hit(x), -math.inf)], 1))
