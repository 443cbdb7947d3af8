"""Inner estimates of NCA and of contrastive losses from a batch of embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fcco._pool import Estimate, join
from fcco.functional._checks import (
    check_directions,
    check_floats,
    check_integers,
    check_same,
    check_squares,
    refuse_where,
)
from fcco.functional._inner import (
    OwnTerm,
    as_estimate,
    can_estimate,
    check_own_term,
    copies_of,
    masked_logsumexp,
    own_part,
    product,
    same,
    stratum_weight,
)
from fcco.functional._similarity import _unit
from fcco.functional._tensors import at_least_float32


def nca_inner(
    embeddings: Tensor,
    labels: Tensor,
    *,
    n: int | None = None,
    class_sizes: Tensor | None = None,
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
    needs_mate: bool = False,
) -> Estimate:
    r"""Estimate the logarithms of the inner values of neighbourhood components analysis.

    .. math:: g_{i1} = \sum_{j \ne i, y_j = y_i} e^{-|z_i - z_j|^2}, \qquad g_{i2} = \sum_{j \ne i} e^{-|z_i - z_j|^2}

    The *mates* of example i are the other examples of its class. Its *strangers* are the examples of other classes.

    Parameters
    ----------
    embeddings : Tensor of shape (B, d)
        The embeddings z.
    labels : Tensor of shape (B,)
        The classes y, integers.
    n : int or None, default None
        The size of the population. By default, the batch is the whole population.
    class_sizes : Tensor of shape (C,) or None, default None
        The number of members of each class in the population; labels are then 0 ... C - 1. If given, mates and
        strangers are weighed separately. If the batch has all classes, each class is weighed by its size, and the batch
        may hold any share of each. Otherwise the strangers in the batch have equal weights and represent those of the
        population. If None, the batch is taken as a random sample of the population.
    rows : Tensor of shape (B + R,) or None, default None
        The row of each example, needed if an example may appear more than once.
    rivals : sequence of Tensors or None, default None
        The same columns for R further rivals. No estimates are made for them.
    needs_mate : bool, default False
        Whether an example has no term if its g_1 would be 0.

    Returns
    -------
    Estimate
        ``inner`` of shape (B, 2), which is log g, and ``weight`` of shape (B,). If the batch has no mate of an example,
        the result depends on the class sizes. Without them, g_1 = 0 (-inf in ``inner``). With them, the example has no
        term unless it is alone in its class.

    See Also
    --------
    fcco.losses.NCALoss : The loss that uses this estimate.
    """
    (embeddings, labels), own = join((embeddings, labels), rivals)
    check_floats(embeddings, "embeddings", "[B, d]")
    check_integers(labels, "labels", embeddings, "embeddings")
    logits = -squared_distances(at_least_float32(embeddings), own)
    copies = copies_of(rows, labels, own)
    if class_sizes is None:
        inner, known = _at_random(logits, labels, copies, len(labels) if n is None else n, own)
    else:
        inner, known = _by_class(logits, labels, copies, class_sizes, own)
    if needs_mate:
        known = known & (inner[:, 0] > -math.inf)
    return as_estimate(inner, known, log=True)


def _at_random(logits: Tensor, labels: Tensor, copies: Tensor, n: int, own: int | None) -> tuple[Tensor, Tensor]:
    """Estimate log g from a batch that is a random sample of the population; also return which estimates are valid."""
    others = ~copies
    mates = same(labels, own) & others
    everyone, counts = torch.ones_like(labels, dtype=torch.bool), copies.sum(1)
    scale = stratum_weight(everyone, n, logits, copies=counts).log()
    inner = torch.stack([masked_logsumexp(logits, mates) + scale, masked_logsumexp(logits, others) + scale], 1)
    return inner, others.any(1)


def _by_class(
    logits: Tensor, labels: Tensor, copies: Tensor, class_sizes: Tensor, own: int | None
) -> tuple[Tensor, Tensor]:
    """Estimate log g with mates and strangers weighed separately; also return which estimates are valid."""
    outside = (labels < 0) | (labels >= len(class_sizes))
    refuse_where("labels", labels, outside, f"in [0, {len(class_sizes)})")
    # If the check is asynchronous, an invalid label must not be used as an index before it fails.
    labels = labels.long().clamp(0, len(class_sizes) - 1)
    sizes = class_sizes.to(logits.dtype)
    alike, counts = same(labels, own), copies.sum(1)
    in_batch = torch.zeros_like(sizes).index_add(0, labels, torch.ones_like(labels, dtype=sizes.dtype))
    own_size = own_part(sizes[labels], own)
    of_mates = stratum_weight(alike, own_size, logits, copies=counts)
    mates = alike & ~copies & (of_mates > 0).unsqueeze(1)
    among_mates = masked_logsumexp(logits, mates) + of_mates.log()
    of_strangers = stratum_weight(~alike, sizes.sum() - own_size, logits).unsqueeze(1)
    by_size = (sizes / in_batch)[labels].unsqueeze(0)
    has_all = ((in_batch > 0) | (sizes == 0)).all()
    stands_for = torch.where(has_all, by_size, of_strangers)
    among_strangers = masked_logsumexp(logits + stands_for.log(), ~alike & (stands_for > 0))
    inner = torch.stack([among_mates, torch.logaddexp(among_mates, among_strangers)], 1)
    enough = can_estimate(alike, own_size, copies=counts) & can_estimate(~alike, sizes.sum() - own_size)
    return inner, enough & (inner[:, 1] > -math.inf)


def squared_distances(embeddings: Tensor, own: int | None = None) -> Tensor:
    """Return |z_i - z_j|² for all pairs, of shape (B, B).

    The embeddings are centred first, so that the matrix product loses no digits to a common offset.
    """
    z = embeddings - embeddings.detach().mean(0)
    norm = z.square().sum(1)
    check_squares(norm)
    mine, own_norm = own_part(z, own), own_part(norm, own)
    return (own_norm.unsqueeze(1) + norm.unsqueeze(0) - 2 * product(mine, z.T)).clamp(min=0.0)


def contrastive_inner(
    first: Tensor,
    second: Tensor,
    *,
    temperature: float,
    mode: str,
    include_positive: bool,
    n: int | None = None,
    own_term: OwnTerm = "exact",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
) -> Estimate:
    r"""Estimate log g of the global contrastive loss, with ``first`` and with ``second`` as anchors.

    .. math:: g_i = \text{mean over the candidates } c \text{ of } e^{(s(a_i, c) - s(a_i, b_i)) / \tau}

    Parameters
    ----------
    first : Tensor of shape (B, d)
        One view, or modality, of each example.
    second : Tensor of shape (B, d)
        The other view or modality.
    temperature : float
        The temperature τ.
    mode : {"two_views", "cross_modal"}
        With "two_views", the candidates are both views of all other examples. With "cross_modal", they are only those
        of the other modality.
    include_positive : bool
        Whether the positive pair is also a candidate.
    n : int or None, default None
        The size of the population. By default, the batch is the whole population.
    own_term : {"exact", "sampled"}, default "exact"
        How to weigh the positive pair, if it is included. With "exact" it is one candidate next to all others of the
        population. With "sampled" it is one next to those of the batch.
    rows : Tensor of shape (B + R,) or None, default None
        The row of each example, needed if an example may appear more than once.
    rivals : sequence of Tensors of shape (R, d) or None, default None
        The same columns for R further rivals. No estimates are made for them.

    Returns
    -------
    Estimate
        ``inner`` of shape (B, 2), which is log g, and ``weight`` of shape (B,). An example has no term if the batch has
        no other example.

    See Also
    --------
    fcco.losses.ContrastiveLoss : The loss that uses this estimate.
    """
    check_own_term(own_term)
    (first, second), own = join((first, second), rivals)
    a, b = _directions(first, second)
    own_a, own_b = own_part(a, own), own_part(b, own)
    across = product(own_a, b.T) / temperature
    sides = [[across], [across.T if own is None else product(own_b, a.T) / temperature]]
    if mode == "two_views":
        sides[0].append(product(own_a, a.T) / temperature)
        sides[1].append(product(own_b, b.T) / temperature)
    other = ~copies_of(rows, a, own)
    sampled = other.sum(1).to(a.dtype) * len(sides[0])
    candidates = sampled if own_term == "sampled" or n is None else torch.full_like(sampled, (n - 1) * len(sides[0]))
    positive = across.diagonal().unsqueeze(1)
    columns = []
    for blocks in sides:
        logits = torch.cat([block - positive for block in blocks], 1)
        log_mean = masked_logsumexp(logits, other.repeat(1, len(blocks))) - sampled.clamp(min=1).log()
        if include_positive:
            log_sum = torch.logaddexp(log_mean + candidates.log(), torch.zeros_like(log_mean))
            log_mean = log_sum - candidates.log1p()
        columns.append(log_mean)
    return as_estimate(torch.stack(columns, 1), other.any(1), log=True)


def _directions(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Check both tensors; return their vectors scaled to unit length, in float32 at least."""
    check_floats(first, "first", "[B, d]")
    check_floats(second, "second", "[B, d]")
    check_same(second, "second", first, "first")
    check_directions(first, "first")
    check_directions(second, "second")
    return _unit(at_least_float32(first)), _unit(at_least_float32(second))
