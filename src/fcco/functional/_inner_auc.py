"""Inner estimates of partial AUC over the highest negatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fcco._pool import Estimate, Recall, Sides, join
from fcco.functional._inner import (
    above,
    as_estimate,
    can_estimate,
    copies_of,
    each_represents,
    population_of,
    stratum_weight,
)
from fcco.functional._inner_bipartite import check_pool, mean_over
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate


def cvar_partial_auc_inner(
    scores: Tensor,
    target: Tensor,
    *,
    surrogate: SurrogateLike = "squared_hinge",
    margin: float = 1.0,
    n_neg: int | None = None,
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
    recall: Recall | None = None,
) -> Estimate:
    r"""Estimate the inner values of one-way partial AUC by CVaR for the negatives of a batch.

    .. math:: g_{j1} = \frac{\#\{k \in S_- : h_k > h_j\}}{n_-}, \qquad
        g_{j2} = \frac{\#\{k \in S_- : h_k = h_j\}}{n_-}, \qquad
        g_{j3} = \frac{1}{n_+} \sum_{i \in S_+} \ell(h_j - h_i)

    The first two, which say how high a negative is among the negatives, have no gradient. All three estimates are
    unbiased whatever the balance of the batch. A negative has no term if the batch has no positive or no other
    negative.

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
    n_neg : int or None, default None
        The number of negatives in the population. By default, the batch is the whole population.
    rows : Tensor of shape (B + R,) or None, default None
        The row of each example, needed if an example may appear more than once.
    rivals : sequence of Tensors of shape (R,) or None, default None
        The same columns for R further rivals. No estimates are made for them.
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

    Returns
    -------
    Estimate
        ``inner`` of shape (B, 3) and ``weight`` of shape (B,).

    See Also
    --------
    fcco.losses.CVaRPartialAUCLoss : The loss that uses this estimate.
    """
    (scores, target), sides = join((scores, target), rivals, recall)
    ell = resolve_surrogate(surrogate, margin)
    scores, positive = check_pool(scores, target, ell)
    own, rival = sides.members_of_mine(~positive), sides.members(positive)
    share, known = mean_over(rival, 1, sides, scores)
    # ℓ only sees pairs of a positive and a negative. On other pairs it could overflow and cause NaN.
    pairs = own.unsqueeze(1) & rival.unsqueeze(0)
    losses = ell(-above(scores, sides).masked_fill(~pairs, 0.0)).masked_fill(~pairs, 0.0)
    ranks, ranked = _ranks(scores.detach(), ~positive, n_neg, rows, sides)
    inner = torch.cat([ranks, (losses.sum(1) * share).unsqueeze(1)], 1)
    return as_estimate(inner, own & known & ranked, log=False)


def _ranks(
    scores: Tensor, negative: Tensor, n_neg: int | None, rows: Tensor | None, sides: Sides
) -> tuple[Tensor, Tensor]:
    """Return the shares of the negatives that are above an own example and level with it, and whether they are known.

    The shape of the shares is (B, 2).
    """
    population = population_of(negative, sides)[1] if n_neg is None else n_neg
    members, copies = sides.members(negative), copies_of(rows, scores, sides)
    others, apart = members & ~copies, copies.sum(1)
    if sides.recall.expected is not None:
        weight = each_represents(population, sides.recall.expected[0], apart=True)
        known = torch.ones_like(members[:1])
    else:
        weight = stratum_weight(members, population, scores, copies=apart)
        known = can_estimate(members, population, copies=apart)
    difference = above(scores, sides)
    higher, level = (((difference > 0) & others).sum(1), ((difference == 0) & others).sum(1))
    counts = torch.stack([weight * higher, 1 + weight * level], 1)
    size = population.clamp(min=1) if isinstance(population, Tensor) else population
    return counts.to(scores.dtype) / size, known
