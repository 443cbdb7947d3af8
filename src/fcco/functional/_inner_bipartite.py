"""Inner estimates of average precision, p-norm push and partial AUC from a batch of positives and negatives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fcco._pool import Estimate, join
from fcco.functional._checks import as_mask, check_floats
from fcco.functional._inner import (
    OwnTerm,
    above,
    as_estimate,
    can_estimate,
    check_own_term,
    copies_of,
    masked_logsumexp,
    own_part,
    stratum_weight,
)
from fcco.functional._pair_sums import pair_sums
from fcco.functional._surrogates import Surrogate, SurrogateLike, resolve_surrogate
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
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    n: int | None = None,
    n_pos: int | None = None,
    own_term: OwnTerm = "exact",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
) -> Estimate:
    r"""g of average precision for the positives of a batch; log g where ℓ is exp.

    .. math:: g_{i1} = \frac 1 n \sum_{j \in S_+} \ell(h_j - h_i), \qquad
        g_{i2} = g_{i1} + \frac 1 n \sum_{j \in S_-} \ell(h_j - h_i)

    A positive has no term where the batch has no negative, or (own term exact) no other positive.

    Args:
        scores: h, [B].
        target: [B], 0 and 1, or bool.
        surrogate: ℓ, a name or an elementwise function; see :func:`fcco.functional.average_precision_loss`.
        margin: of the hinges.
        n: size of the population; None: the batch is all there is.
        n_pos: positives in it.
        own_term: "exact" or "sampled".
        rows: [B + R], which example each is, if one may stand twice.
        rivals: the same columns of further examples, [R] each, which no estimates are made of.

    Returns:
        inner [B, 2], weight [B].
    """
    check_own_term(own_term)
    (scores, target), own = join((scores, target), rivals)
    ell = resolve_surrogate(surrogate, margin)
    scores, positive = _check(scores, target, ell)
    size, positives = (len(scores), positive.sum()) if n is None or n_pos is None else (n, n_pos)
    copies = None if rows is None else copies_of(rows, scores, own)
    apart = None if own_term == "sampled" else 1 if copies is None else copies.sum(1)
    stands_for = (
        stratum_weight(positive, positives, scores, copies=apart),
        stratum_weight(~positive, size - positives, scores),
    )
    if ell.is_exp:
        inner = _log_sums(scores, positive, stands_for, own_term, copies, own) - math.log(size)
    else:
        inner = _sums(scores, positive, stands_for, own_term, copies, ell, own) / size
    known = can_estimate(positive, positives, copies=apart) & can_estimate(~positive, size - positives)
    return as_estimate(inner, own_part(positive, own) & known, log=ell.is_exp)


def _sums(
    scores: Tensor,
    positive: Tensor,
    stands_for: tuple[Tensor, Tensor],
    own_term: OwnTerm,
    copies: Tensor | None,
    surrogate: Surrogate,
    own: int | None,
) -> Tensor:
    """[B, 2]: estimates of the sums of ℓ over positives and over all."""
    excluded = copies if own_term == "exact" else None
    classes = torch.stack([positive, ~positive], 1).to(scores.dtype)
    among_positives, among_negatives = pair_sums(scores, classes, surrogate, own, excluded).unbind(1)
    own_value = surrogate(torch.zeros_like(scores[:1]))
    if own_term == "exact":
        # Without copies the own term is the only one to be taken off, which is cheaper than a mask of all pairs.
        others = among_positives - own_value if copies is None else among_positives
        among_positives = own_value + stands_for[0] * others
    else:
        among_positives = stands_for[0] * among_positives
    return torch.stack([among_positives, among_positives + stands_for[1] * among_negatives], 1)


def _log_sums(
    scores: Tensor,
    positive: Tensor,
    stands_for: tuple[Tensor, Tensor],
    own_term: OwnTerm,
    copies: Tensor | None,
    own: int | None,
) -> Tensor:
    """[B, 2]: logarithms of estimates of the sums of e^(h_j - h_i) over positives and over all."""
    t = above(scores, own)
    if own_term == "exact":
        others = positive & ~(copies_of(None, scores, own) if copies is None else copies)
        among_others = masked_logsumexp(t, others) + stands_for[0].log()
        among_positives = torch.logaddexp(torch.zeros_like(among_others), among_others)
    else:
        among_positives = masked_logsumexp(t, positive.expand_as(t)) + stands_for[0].log()
    among_negatives = masked_logsumexp(t, (~positive).expand_as(t)) + stands_for[1].log()
    return torch.stack([among_positives, torch.logaddexp(among_positives, among_negatives)], 1)


def p_norm_push_inner(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: SurrogateLike = "exp",
    margin: float = 1.0,
    rivals: Sequence[Tensor] | None = None,
) -> Estimate:
    r"""g of p-norm push for the negatives of a batch; log g where ℓ is exp.

    .. math:: g_i = \frac{1}{n_+} \sum_{j \in S_+} \ell(h_i - h_j)

    Args:
        scores: h, [B].
        target: [B], 0 and 1, or bool.
        surrogate: ℓ, a name or an elementwise function; see :func:`fcco.functional.average_precision_loss`.
        margin: of the hinges.
        rivals: the same columns of further examples, [R] each, which no estimates are made of.

    Returns:
        inner [B], weight [B].
    """
    (scores, target), own = join((scores, target), rivals)
    ell = resolve_surrogate(surrogate, margin)
    scores, positive = _check(scores, target, ell)
    count = positive.sum().to(scores.dtype).clamp(min=1)
    counts = ~own_part(positive, own) & positive.any()
    if ell.is_exp:
        # Only differences count; near 0 they keep the digits that a common offset takes.
        scores = scores - scores.detach().amax()
        inner = own_part(scores, own) + masked_logsumexp(-scores, positive) - count.log()
    else:
        inner = pair_sums(-scores, positive.to(scores.dtype).unsqueeze(1), ell, own).squeeze(1) / count
    return as_estimate(inner, counts, log=ell.is_exp)


def partial_auc_inner(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    temperature: float = 1.0,
    rivals: Sequence[Tensor] | None = None,
) -> Estimate:
    r"""log g of one-way partial AUC for the positives of a batch.

    .. math:: g_i = \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Args:
        scores: h, [B].
        target: [B], 0 and 1, or bool.
        surrogate: ℓ, a name or an elementwise function; see :func:`fcco.functional.average_precision_loss`.
        margin: of the hinges.
        temperature: τ.
        rivals: the same columns of further examples, [R] each, which no estimates are made of.

    Returns:
        inner [B], weight [B].
    """
    (scores, target), own = join((scores, target), rivals)
    ell = resolve_surrogate(surrogate, margin)
    scores, positive = _check(scores, target, ell)
    negative = ~positive
    count = negative.sum().to(scores.dtype).clamp(min=1)
    # Only pairs that count are given to ℓ, which may overflow on others and leave no number behind.
    pairs = own_part(positive, own).unsqueeze(1) & negative.unsqueeze(0)
    exponents = ell(above(scores, own).masked_fill(~pairs, 0.0)) / temperature
    inner = masked_logsumexp(exponents, pairs) - count.log()
    return as_estimate(inner, own_part(positive, own) & negative.any(), log=True)
