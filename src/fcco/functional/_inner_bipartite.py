"""Inner estimates of average precision, p-norm push and partial AUC from a batch of positives and negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from fcco.functional._checks import as_mask, check_floats
from fcco.functional._inner import (
    Estimate,
    OwnTerm,
    can_estimate,
    check_own_term,
    masked_logsumexp,
    mean_weight,
    settle,
    stratum_weight,
)
from fcco.functional._surrogates import Surrogate


def _check(scores: Tensor, target: Tensor) -> Tensor:
    check_floats(scores, "scores", "[B]")
    return as_mask(target, "target", scores, "scores", signs=False)


def _pair_sums(own: Tensor, rivals: Tensor, weights: Tensor, surrogate: Surrogate) -> Tensor:
    """[M, k]: sums over the rivals of ℓ(rival - own), with k sets of weights [N, k]."""
    return surrogate(rivals.unsqueeze(0) - own.unsqueeze(1)) @ weights


def average_precision_inner(
    scores: Tensor, target: Tensor, *, n: int, n_pos: int, surrogate: Surrogate, own_term: OwnTerm = "exact"
) -> Estimate:
    r"""g of average precision for the positives of a batch.

    .. math:: g_{i1} = \frac 1 n \sum_{j \in S_+} \ell(h_j - h_i), \qquad
        g_{i2} = g_{i1} + \frac 1 n \sum_{j \in S_-} \ell(h_j - h_i)

    A positive has no term where the batch has no negative, or (own term exact) no other positive.

    Args:
        scores: h, [B].
        target: [B], 0 and 1, or bool.
        n: size of the population.
        n_pos: positives in it.
        surrogate: ℓ.
        own_term: "exact" or "sampled".

    Returns:
        inner [B, 2], weight [B].
    """
    check_own_term(own_term)
    positive = _check(scores, target)
    exact = own_term == "exact"
    masks = torch.stack([positive, ~positive], 1).to(scores.dtype)
    among_positives, among_negatives = _pair_sums(scores, scores, masks, surrogate).unbind(1)
    if exact:
        own = surrogate(torch.zeros_like(scores[:1]))
        among_positives = own + stratum_weight(positive, n_pos, of_others=True) * (among_positives - own)
    else:
        among_positives = stratum_weight(positive, n_pos, of_others=False) * among_positives
    among_negatives = stratum_weight(~positive, n - n_pos, of_others=False) * among_negatives
    known = can_estimate(positive, n_pos, of_others=exact) & can_estimate(~positive, n - n_pos, of_others=False)
    inner = torch.stack([among_positives, among_positives + among_negatives], 1) / n
    return settle(inner, mean_weight(positive & known, scores), log=False)


def p_norm_push_inner(scores: Tensor, target: Tensor, *, surrogate: Surrogate) -> Estimate:
    r"""g of p-norm push for the negatives of a batch; log g where ℓ is exp.

    .. math:: g_i = \frac{1}{n_+} \sum_{j \in S_+} \ell(h_i - h_j)

    Args:
        scores: h, [B].
        target: [B], 0 and 1, or bool.
        surrogate: ℓ.

    Returns:
        inner [B], weight [B].
    """
    positive = _check(scores, target)
    count = positive.sum()
    weight = mean_weight(~positive & (count > 0), scores)
    if surrogate.is_exp:
        inner = scores + masked_logsumexp(-scores, positive) - count.clamp(min=1).log()
    else:
        inner = _pair_sums(-scores, -scores, positive.to(scores.dtype).unsqueeze(1), surrogate).squeeze(1)
        inner = inner / count.clamp(min=1)
    return settle(inner, weight, log=surrogate.is_exp)


def partial_auc_inner(scores: Tensor, target: Tensor, *, surrogate: Surrogate, temperature: float) -> Estimate:
    r"""log g of one-way partial AUC for the positives of a batch.

    .. math:: g_i = \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Args:
        scores: h, [B].
        target: [B], 0 and 1, or bool.
        surrogate: ℓ.
        temperature: τ.

    Returns:
        inner [B], weight [B].
    """
    positive = _check(scores, target)
    negative = ~positive
    count = negative.sum()
    exponents = surrogate(scores.unsqueeze(0) - scores.unsqueeze(1)) / temperature
    inner = masked_logsumexp(exponents, negative.expand_as(exponents)) - count.clamp(min=1).log()
    return settle(inner, mean_weight(positive & (count > 0), scores), log=True)
