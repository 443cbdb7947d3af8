"""Inner estimates of average precision, p-norm push and partial AUC from a batch of positives and negatives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fcco._pool import Estimate, Recall, Sides, join
from fcco.functional._checks import as_mask, check_floats
from fcco.functional._inner import (
    OwnTerm,
    above,
    as_estimate,
    can_estimate,
    check_own_term,
    copies_of,
    each_represents,
    masked_logsumexp,
    own_terms_fixed,
    own_weight,
    population_of,
    stratum_weight,
)
from fcco.functional._pair_sums import pair_sums
from fcco.functional._surrogates import Surrogate, SurrogateLike, resolve_surrogate
from fcco.functional._tensors import at_least_float32


def check_pool(scores: Tensor, target: Tensor, surrogate: Surrogate) -> tuple[Tensor, Tensor]:
    """Check the arguments; return the scores and a mask of the positives."""
    # The slope of a squared hinge is twice the difference of two scores. A bounded surrogate accepts any difference.
    check_floats(scores, "scores", "[B]", room=1 if surrogate.bounded else 4)
    return at_least_float32(scores), as_mask(target, "target", scores, "scores", signs=False)


def average_precision_inner(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: SurrogateLike = "ramp",
    margin: float = 1.0,
    temperature: float | Tensor = 1.0,
    n: int | None = None,
    n_pos: int | None = None,
    own_term: OwnTerm = "exact",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
    recall: Recall | None = None,
) -> Estimate:
    r"""Estimate the inner values of average precision for the positives of a batch.

    .. math:: g_{i1} = \frac 1 n \sum_{j \in S_+} \ell((h_j - h_i) / \tau), \qquad
        g_{i2} = g_{i1} + \frac 1 n \sum_{j \in S_-} \ell((h_j - h_i) / \tau)

    The own term is 1 if ℓ is bounded ("ramp" or "sigmoid") and ℓ(0) otherwise. The estimate is of log g if ℓ is exp. A
    positive has no term if the batch has no negative or, with an exact own term, no other positive.

    Parameters
    ----------
    scores : Tensor of shape (B,)
        The scores h.
    target : Tensor of shape (B,)
        The labels: 0 and 1, or bool.
    surrogate : str or callable, default "ramp"
        The surrogate ℓ, a name or an elementwise function; see :func:`fcco.functional.average_precision_loss`.
    margin : float, default 1.0
        The margin of the hinges.
    temperature : float or Tensor, default 1.0
        The temperature τ, in units of the scores.
    n : int or None, default None
        The size of the population. By default, the batch is the whole population.
    n_pos : int or None, default None
        The number of positives in the population.
    own_term : {"exact", "sampled"}, default "exact"
        "exact" counts the own term once, which is unbiased. "sampled" weighs it like the other terms of the batch,
        which has less variance.
    rows : Tensor of shape (B + R,) or None, default None
        The row of each example, needed if an example may appear more than once.
    rivals : sequence of Tensors of shape (R,) or None, default None
        The same columns for R further rivals. No estimates are made for them.
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

    Returns
    -------
    Estimate
        ``inner`` of shape (B, 2) and ``weight`` of shape (B,).

    See Also
    --------
    fcco.losses.AveragePrecisionLoss : The loss that uses this estimate.
    """
    check_own_term(own_term)
    (scores, target), sides = join((scores, target), rivals, recall)
    ell = resolve_surrogate(surrogate, margin)
    scores, positive = check_pool(scores, target, ell)
    size, positives = population_of(positive, sides) if n is None or n_pos is None else (n, n_pos)
    members = sides.members(positive), sides.members(~positive)
    sums = _log_sums if ell.is_exp else _sums
    if sides.recall.expected is not None:
        negatives_expected, positives_expected = sides.recall.expected.unbind()
        stands_for = (
            each_represents(positives, positives_expected, apart=True),
            each_represents(size - positives, negatives_expected),
        )
        assert sides.recall.held is not None
        own = own_weight(positives, sides.recall.held[1], own_term)
        inner = sums(scores, members, stands_for, own, None, ell, sides, temperature)
        known = torch.ones_like(members[0][:1])
    else:
        copies = None if rows is None else copies_of(rows, scores, sides)
        apart = None if own_term == "sampled" else 1 if copies is None else copies.sum(1)
        stands_for = (
            stratum_weight(members[0], positives, scores, copies=apart),
            stratum_weight(members[1], size - positives, scores),
        )
        inner = sums(scores, members, stands_for, own_term, copies, ell, sides, temperature)
        known = can_estimate(members[0], positives, copies=apart) & can_estimate(members[1], size - positives)
    if ell.is_exp:
        inner = inner - (size.to(inner.dtype).log() if isinstance(size, Tensor) else math.log(size))
    else:
        inner = inner / size
    return as_estimate(inner, sides.members_of_mine(positive) & known, log=ell.is_exp)


def _sums(
    scores: Tensor,
    members: tuple[Tensor, Tensor],
    stands_for: tuple[Tensor, Tensor],
    own_term: OwnTerm | Tensor,
    copies: Tensor | None,
    surrogate: Surrogate,
    sides: Sides,
    temperature: float | Tensor,
) -> Tensor:
    """Return estimates of the sums of ℓ over the positives and over all examples, of shape (B, 2).

    ``members`` are the positives and the negatives among the rivals. ``own_term`` is the weight of the own term if the
    own examples are not among them.
    """
    # Own terms of a pool that has the own examples apart are left out, because they would have a gradient.
    excluded = copies if sides.recall.apart or own_term == "exact" else None
    classes = torch.stack(members, 1).to(scores.dtype)
    among_positives, among_negatives = pair_sums(scores, classes, surrogate, sides, excluded, temperature).unbind(1)
    own_value, at_zero = surrogate.own_value(scores), surrogate(torch.zeros_like(scores[:1]))
    if isinstance(own_term, Tensor):
        among_positives = stands_for[0] * among_positives + own_term * own_value
    elif own_term == "exact":
        # Without copies only the own term has to be subtracted, which is cheaper than masking all pairs.
        others = among_positives - at_zero if copies is None else among_positives
        among_positives = own_value + stands_for[0] * others
    else:
        # Copies of the own example count like the example itself.
        missing = own_value if excluded is not None else own_value - at_zero
        among_positives = stands_for[0] * (among_positives + (missing if copies is None else missing * copies.sum(1)))
    return torch.stack([among_positives, among_positives + stands_for[1] * among_negatives], 1)


def _log_sums(
    scores: Tensor,
    members: tuple[Tensor, Tensor],
    stands_for: tuple[Tensor, Tensor],
    own_term: OwnTerm | Tensor,
    copies: Tensor | None,
    surrogate: Surrogate,
    sides: Sides,
    temperature: float | Tensor,
) -> Tensor:
    """Return the logarithms of the sums that :func:`_sums` returns, for ℓ = exp."""
    t = above(scores, sides, temperature)
    positive, negative = members
    if isinstance(own_term, Tensor):
        among_others = masked_logsumexp(t, positive.expand_as(t)) + stands_for[0].log()
        among_positives = torch.logaddexp(own_term.log().to(t.dtype).expand_as(among_others), among_others)
    elif own_term == "exact":
        others = positive & ~(copies_of(None, scores, sides) if copies is None else copies)
        among_others = masked_logsumexp(t, others) + stands_for[0].log()
        among_positives = torch.logaddexp(torch.zeros_like(among_others), among_others)
    else:
        if copies is not None:
            t = own_terms_fixed(t, copies, sides)
        among_positives = masked_logsumexp(t, positive.expand_as(t)) + stands_for[0].log()
    among_negatives = masked_logsumexp(t, negative.expand_as(t)) + stands_for[1].log()
    return torch.stack([among_positives, torch.logaddexp(among_positives, among_negatives)], 1)


def p_norm_push_inner(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: SurrogateLike = "exp",
    margin: float = 1.0,
    rivals: Sequence[Tensor] | None = None,
    recall: Recall | None = None,
) -> Estimate:
    r"""Estimate the inner values of p-norm push for the negatives of a batch.

    .. math:: g_i = \frac{1}{n_+} \sum_{j \in S_+} \ell(h_i - h_j)

    The estimate is of log g if ℓ is exp. A negative has no term if the batch has no positive.

    Parameters
    ----------
    scores : Tensor of shape (B,)
        The scores h.
    target : Tensor of shape (B,)
        The labels: 0 and 1, or bool.
    surrogate : str or callable, default "exp"
        The surrogate ℓ, a name or an elementwise function; see :func:`fcco.functional.average_precision_loss`.
    margin : float, default 1.0
        The margin of the hinges.
    rivals : sequence of Tensors of shape (R,) or None, default None
        The same columns for R further rivals. No estimates are made for them.
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

    Returns
    -------
    Estimate
        ``inner`` of shape (B,) and ``weight`` of shape (B,).

    See Also
    --------
    fcco.losses.PNormPushLoss : The loss that uses this estimate.
    """
    (scores, target), sides = join((scores, target), rivals, recall)
    ell = resolve_surrogate(surrogate, margin)
    scores, positive = check_pool(scores, target, ell)
    rival = sides.members(positive)
    share, known = mean_over(rival, 1, sides, scores)
    if ell.is_exp:
        # Only differences matter. Removing a common offset keeps their digits.
        scores = scores - scores.detach().amax()
        inner = sides.mine(scores) + masked_logsumexp(-sides.theirs(scores), rival) + share.log()
    else:
        inner = pair_sums(-scores, rival.to(scores.dtype).unsqueeze(1), ell, sides).squeeze(1) * share
    return as_estimate(inner, sides.members_of_mine(~positive) & known, log=ell.is_exp)


def mean_over(rival: Tensor, label: int, sides: Sides, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight of each rival in a mean over the class ``label``, and whether the mean is known."""
    expected = sides.recall.expected
    if expected is not None:
        return each_represents(1, expected[label]).to(like.dtype), torch.ones_like(rival[:1])
    return rival.sum().to(like.dtype).clamp(min=1).reciprocal(), rival.any()


def partial_auc_inner(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    temperature: float = 1.0,
    rivals: Sequence[Tensor] | None = None,
    recall: Recall | None = None,
) -> Estimate:
    r"""Estimate the logarithms of the inner values of one-way partial AUC for the positives of a batch.

    .. math:: g_i = \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    A positive has no term if the batch has no negative.

    Parameters
    ----------
    scores : Tensor of shape (B,)
        The scores h.
    target : Tensor of shape (B,)
        The labels: 0 and 1, or bool.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ, a name or an elementwise function; see :func:`fcco.functional.average_precision_loss`.
    margin : float, default 1.0
        The margin of the hinges.
    temperature : float, default 1.0
        The temperature τ.
    rivals : sequence of Tensors of shape (R,) or None, default None
        The same columns for R further rivals. No estimates are made for them.
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

    Returns
    -------
    Estimate
        ``inner`` of shape (B,), which is log g, and ``weight`` of shape (B,).

    See Also
    --------
    fcco.losses.PartialAUCLoss : The loss that uses this estimate.
    """
    (scores, target), sides = join((scores, target), rivals, recall)
    ell = resolve_surrogate(surrogate, margin)
    scores, positive = check_pool(scores, target, ell)
    rival = sides.members(~positive)
    share, known = mean_over(rival, 0, sides, scores)
    own = sides.members_of_mine(positive)
    # ℓ only sees pairs of a positive and a negative. On other pairs it could overflow and cause NaN.
    pairs = own.unsqueeze(1) & rival.unsqueeze(0)
    exponents = ell(above(scores, sides).masked_fill(~pairs, 0.0)) / temperature
    inner = masked_logsumexp(exponents, pairs) + share.log()
    return as_estimate(inner, own & known, log=True)
