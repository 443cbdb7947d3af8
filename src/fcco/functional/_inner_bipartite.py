"""Inner estimates of average precision, p-norm push and partial AUC from a batch of positives and negatives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco.functional._checks import as_mask, check_floats
from fcco.functional._inner import (
    Estimate,
    OwnTerm,
    above,
    can_estimate,
    check_own_term,
    copies_of,
    masked_logsumexp,
    outer_of,
    product,
    settle,
    stratum_weight,
)
from fcco.functional._surrogates import Surrogate
from fcco.functional._tensors import at_least_float32


def _check(scores: Tensor, target: Tensor, surrogate: Surrogate) -> tuple[Tensor, Tensor]:
    """Scores, and which are of positives."""
    # Twice the difference of two scores is the slope of a squared hinge; a sigmoid takes any.
    check_floats(scores, "scores", "[B]", room=1 if surrogate.name == "sigmoid" else 4)
    return at_least_float32(scores), as_mask(target, "target", scores, "scores", signs=False)


def average_precision_inner(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: Surrogate,
    n: int | None = None,
    n_pos: int | None = None,
    own_term: OwnTerm = "exact",
    rows: Tensor | None = None,
    outer: slice | None = None,
) -> Estimate:
    r"""g of average precision for the positives of a batch; log g where ℓ is exp.

    .. math:: g_{i1} = \frac 1 n \sum_{j \in S_+} \ell(h_j - h_i), \qquad
        g_{i2} = g_{i1} + \frac 1 n \sum_{j \in S_-} \ell(h_j - h_i)

    A positive has no term where the batch has no negative, or (own term exact) no other positive.

    Args:
        scores: h, [B].
        target: [B], 0 and 1, or bool.
        surrogate: ℓ.
        n: size of the population; None: the batch is all there is.
        n_pos: positives in it.
        own_term: "exact" or "sampled".
        rows: [B], which example each is, if one may stand twice.
        outer: the part of the batch to estimate; None: all of it.

    Returns:
        inner [B, 2], weight [B].
    """
    check_own_term(own_term)
    scores, positive = _check(scores, target, surrogate)
    size, positives = (len(scores), positive.sum()) if n is None or n_pos is None else (n, n_pos)
    copies = None if rows is None else copies_of(rows, scores, outer)
    apart = None if own_term == "sampled" else 1 if copies is None else copies.sum(1)
    stands_for = (
        stratum_weight(positive, positives, scores, copies=apart),
        stratum_weight(~positive, size - positives, scores),
    )
    if surrogate.is_exp:
        inner = _log_sums(scores, positive, stands_for, own_term, copies, outer) - math.log(size)
    else:
        inner = _sums(scores, positive, stands_for, own_term, copies, surrogate, outer) / size
    known = can_estimate(positive, positives, copies=apart) & can_estimate(~positive, size - positives)
    return settle(inner, outer_of(positive, outer) & known, log=surrogate.is_exp)


def _sums(
    scores: Tensor,
    positive: Tensor,
    stands_for: tuple[Tensor, Tensor],
    own_term: OwnTerm,
    copies: Tensor | None,
    surrogate: Surrogate,
    outer: slice | None,
) -> Tensor:
    """[B, 2]: estimates of the sums of ℓ over positives and over all."""
    values = surrogate(above(scores, outer))
    own = surrogate(torch.zeros_like(scores[:1]))
    if own_term == "exact" and copies is not None:
        values = values.masked_fill(copies, 0.0)
    sums = product(values, torch.stack([positive, ~positive], 1).to(scores.dtype))
    among_positives, among_negatives = sums.unbind(1)
    if own_term == "exact":
        # Without copies the own term is the only one to be taken off, which is cheaper than a mask of all pairs.
        others = among_positives - own if copies is None else among_positives
        among_positives = own + stands_for[0] * others
    else:
        among_positives = stands_for[0] * among_positives
    return torch.stack([among_positives, among_positives + stands_for[1] * among_negatives], 1)


def _log_sums(
    scores: Tensor,
    positive: Tensor,
    stands_for: tuple[Tensor, Tensor],
    own_term: OwnTerm,
    copies: Tensor | None,
    outer: slice | None,
) -> Tensor:
    """[B, 2]: logarithms of estimates of the sums of e^(h_j - h_i) over positives and over all."""
    t = above(scores, outer)
    if own_term == "exact":
        others = positive & ~(copies_of(None, scores, outer) if copies is None else copies)
        among_others = masked_logsumexp(t, others) + stands_for[0].log()
        among_positives = torch.logaddexp(torch.zeros_like(among_others), among_others)
    else:
        among_positives = masked_logsumexp(t, positive.expand_as(t)) + stands_for[0].log()
    among_negatives = masked_logsumexp(t, (~positive).expand_as(t)) + stands_for[1].log()
    return torch.stack([among_positives, torch.logaddexp(among_positives, among_negatives)], 1)


def p_norm_push_inner(scores: Tensor, target: Tensor, *, surrogate: Surrogate, outer: slice | None = None) -> Estimate:
    r"""g of p-norm push for the negatives of a batch; log g where ℓ is exp.

    .. math:: g_i = \frac{1}{n_+} \sum_{j \in S_+} \ell(h_i - h_j)

    Args:
        scores: h, [B].
        target: [B], 0 and 1, or bool.
        surrogate: ℓ.
        outer: the part of the batch to estimate; None: all of it.

    Returns:
        inner [B], weight [B].
    """
    scores, positive = _check(scores, target, surrogate)
    count = positive.sum().to(scores.dtype).clamp(min=1)
    counts = ~outer_of(positive, outer) & positive.any()
    if surrogate.is_exp:
        # Only differences count; near 0 they keep the digits that a common offset takes.
        scores = scores - scores.detach().amax()
        inner = outer_of(scores, outer) + masked_logsumexp(-scores, positive) - count.log()
    else:
        inner = product(surrogate(above(-scores, outer)), positive.to(scores.dtype)) / count
    return settle(inner, counts, log=surrogate.is_exp)


def partial_auc_inner(
    scores: Tensor, target: Tensor, *, surrogate: Surrogate, temperature: float, outer: slice | None = None
) -> Estimate:
    r"""log g of one-way partial AUC for the positives of a batch.

    .. math:: g_i = \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Args:
        scores: h, [B].
        target: [B], 0 and 1, or bool.
        surrogate: ℓ.
        temperature: τ.
        outer: the part of the batch to estimate; None: all of it.

    Returns:
        inner [B], weight [B].
    """
    scores, positive = _check(scores, target, surrogate)
    negative = ~positive
    count = negative.sum().to(scores.dtype).clamp(min=1)
    # Only pairs that count are given to ℓ, which may overflow on others and leave no number behind.
    pairs = outer_of(positive, outer).unsqueeze(1) & negative.unsqueeze(0)
    exponents = surrogate(above(scores, outer).masked_fill(~pairs, 0.0)) / temperature
    inner = masked_logsumexp(exponents, pairs) - count.log()
    return settle(inner, outer_of(positive, outer) & negative.any(), log=True)
