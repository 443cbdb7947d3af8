"""Inner estimates of NCA and of contrastive losses from a batch of embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fcco._pool import ALL, Estimate, Recall, Sides, join
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
    each_represents,
    masked_logsumexp,
    population_of,
    product,
    same,
    stratum_weight,
)
from fcco.functional._similarity import _unit, refuse_temperatures
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
    recall: Recall | None = None,
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
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

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
    (embeddings, labels), sides = join((embeddings, labels), rivals, recall)
    check_floats(embeddings, "embeddings", "[B, d]")
    check_integers(labels, "labels", embeddings, "embeddings")
    logits = -squared_distances(at_least_float32(embeddings), sides)
    everyone = torch.ones_like(labels, dtype=torch.bool)
    size = population_of(everyone, sides)[0] if n is None else n
    if sides.recall.expected is not None:
        inner = _contributions(logits, labels, sides, size, class_sizes)
        return as_estimate(inner, sides.members_of_mine(everyone), log=True)
    copies = copies_of(rows, labels, sides)
    if class_sizes is None:
        inner, known = _at_random(logits, labels, copies, size, sides)
    else:
        inner, known = _by_class(logits, labels, copies, class_sizes, sides)
    known = known & sides.members_of_mine(everyone)
    if needs_mate:
        known = known & (inner[:, 0] > -math.inf)
    return as_estimate(inner, known, log=True)


def _at_random(logits: Tensor, labels: Tensor, copies: Tensor, n: int | Tensor, sides: Sides) -> tuple[Tensor, Tensor]:
    """Estimate log g from a batch that is a random sample of the population; also return which estimates are valid."""
    everyone, counts = sides.members(torch.ones_like(labels, dtype=torch.bool)), copies.sum(1)
    others = everyone & ~copies
    mates = same(labels, sides) & others
    scale = stratum_weight(everyone, n, logits, copies=counts).log()
    inner = torch.stack([masked_logsumexp(logits, mates) + scale, masked_logsumexp(logits, others) + scale], 1)
    return inner, others.any(1)


def _by_class(
    logits: Tensor, labels: Tensor, copies: Tensor, class_sizes: Tensor, sides: Sides
) -> tuple[Tensor, Tensor]:
    """Estimate log g with mates and strangers weighed separately; also return which estimates are valid."""
    labels, sizes = _within(labels, class_sizes), class_sizes.to(logits.dtype)
    present, classes = sides.members(torch.ones_like(labels, dtype=torch.bool)), sides.theirs(labels)
    alike, counts = same(labels, sides) & present, copies.sum(1)
    unlike = ~same(labels, sides) & present
    in_pool = torch.zeros_like(sizes).index_add(0, classes, present.to(sizes.dtype))
    own_size = sides.mine(sizes[labels])
    of_mates = stratum_weight(alike, own_size, logits, copies=counts)
    mates = alike & ~copies & (of_mates > 0).unsqueeze(1)
    among_mates = masked_logsumexp(logits, mates) + of_mates.log()
    of_strangers = stratum_weight(unlike, sizes.sum() - own_size, logits).unsqueeze(1)
    by_size = (sizes / in_pool)[classes].unsqueeze(0)
    has_all = ((in_pool > 0) | (sizes == 0)).all()
    stands_for = torch.where(has_all, by_size, of_strangers)
    among_strangers = masked_logsumexp(logits + stands_for.log(), unlike & (stands_for > 0))
    inner = torch.stack([among_mates, torch.logaddexp(among_mates, among_strangers)], 1)
    enough = can_estimate(alike, own_size, copies=counts) & can_estimate(unlike, sizes.sum() - own_size)
    return inner, enough & (inner[:, 1] > -math.inf)


def _within(labels: Tensor, class_sizes: Tensor) -> Tensor:
    """Return the labels, checked to be classes."""
    outside = (labels < 0) | (labels >= len(class_sizes))
    refuse_where("labels", labels, outside, f"in [0, {len(class_sizes)})")
    # If the check is asynchronous, an invalid label must not be used as an index before it fails.
    return labels.long().clamp(0, len(class_sizes) - 1)


def _contributions(logits: Tensor, labels: Tensor, sides: Sides, n: int | Tensor, class_sizes: Tensor | None) -> Tensor:
    """Return the logarithms of what fresh rivals contribute to g of remembered examples, of shape (own, 2)."""
    expected = sides.recall.expected
    assert expected is not None
    present = sides.members(torch.ones_like(labels, dtype=torch.bool)).expand_as(logits)
    if class_sizes is None:
        stands_for = each_represents(n, expected.sum(), apart=True)
    else:
        # Of n - 1 rivals, one is as likely as another to be in a random batch, be it a mate or a stranger.
        rest = class_sizes.to(expected.dtype) * ((n - 1) / n)
        stands_for = each_represents(rest, expected)[sides.theirs(_within(labels, class_sizes))]
    present = present & (stands_for > 0)
    weighted = logits + stands_for.log()
    mates = same(labels, sides) & present
    return torch.stack([masked_logsumexp(weighted, mates), masked_logsumexp(weighted, present)], 1)


def squared_distances(embeddings: Tensor, sides: Sides = ALL) -> Tensor:
    """Return |z_i - z_j|² for all pairs of an own example and a rival.

    The embeddings are centred first, so that the matrix product loses no digits to a common offset.
    """
    z = embeddings - embeddings.detach().mean(0)
    norm = z.square().sum(1)
    check_squares(norm)
    theirs, mine = sides.theirs(norm), sides.mine(norm)
    pairs = product(sides.mine(z), sides.theirs(z).T)
    return (mine.unsqueeze(1) + theirs.unsqueeze(0) - 2 * pairs).clamp(min=0.0)


def contrastive_inner(
    first: Tensor,
    second: Tensor,
    *,
    temperature: float | Tensor,
    mode: str,
    include_positive: bool,
    n: int | None = None,
    own_term: OwnTerm = "exact",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
    recall: Recall | None = None,
) -> Estimate:
    r"""Estimate log g of the global contrastive loss, with ``first`` and with ``second`` as anchors.

    .. math:: g_i = \text{mean over the candidates } c \text{ of } e^{(s(a_i, c) - s(a_i, b_i)) / \tau}

    Parameters
    ----------
    first : Tensor of shape (B, d)
        One view, or modality, of each example.
    second : Tensor of shape (B, d)
        The other view or modality.
    temperature : float or Tensor
        The temperature τ: a number, a tensor of one, or a tensor of shape (B, 2), of each anchor.
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
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

    Returns
    -------
    Estimate
        ``inner`` of shape (B, 2), which is log g, and ``weight`` of shape (B,). An example has no term if the batch has
        no other example.

    See Also
    --------
    fcco.losses.ContrastiveLoss : The loss that uses this estimate.
    """
    options = (mode, include_positive, n, own_term)
    return contrast(first, second, temperature, *options, rows, rivals, recall)[0]


def contrast(
    first: Tensor,
    second: Tensor,
    temperature: float | Tensor,
    mode: str,
    include_positive: bool,
    n: int | None,
    own_term: OwnTerm,
    rows: Tensor | None,
    rivals: Sequence[Tensor] | None,
    recall: Recall | None = None,
    *,
    with_slopes: bool = False,
) -> tuple[Estimate, Tensor | None]:
    """Return the estimate of :func:`contrastive_inner` and, if asked for, -τ times the slope of log g in τ, (B, 2)."""
    check_own_term(own_term)
    (first, second), sides = join((first, second), rivals, recall)
    a, b = directions(first, second)
    own_a, own_b, their_a, their_b = sides.mine(a), sides.mine(b), sides.theirs(a), sides.theirs(b)
    across = product(own_a, their_b.T)
    blocks_of = [[across], [across.T if sides.own is None else product(own_b, their_a.T)]]
    if mode == "two_views":
        blocks_of[0].append(product(own_a, their_a.T))
        blocks_of[1].append(product(own_b, their_b.T))
    positive = (own_a * own_b).sum(1, keepdim=True) if sides.recall.apart else None
    positive = across.diagonal().unsqueeze(1) if positive is None else positive
    everyone, views = torch.ones_like(a[:, 0], dtype=torch.bool), len(blocks_of[0])
    expected = sides.recall.expected
    if expected is None:
        other = sides.members(everyone) & ~copies_of(rows, a, sides)
        drawn = other.sum(1).to(a.dtype) * views
        known = other.any(1) & sides.members_of_mine(everyone)
    else:
        other = sides.members(everyone).expand_as(across)
        drawn = (expected.sum() * views).to(a.dtype).expand(len(own_a))
        known = sides.members_of_mine(everyone)
    if include_positive and n is None:  # the set of an example that is alone has its positive
        known = sides.members_of_mine(everyone)
    held = sides.recall.held
    of_pool = drawn if held is None else ((held.sum() - 1) * views).to(a.dtype).expand_as(drawn)
    candidates = of_pool if own_term == "sampled" or n is None else torch.full_like(drawn, (n - 1) * views)
    columns, slopes, taus = [], [], _of_anchors(temperature, a, sides)
    for blocks, tau in zip(blocks_of, taus, strict=True):
        logits = torch.cat([block - positive for block in blocks], 1) / tau
        log_weight = -drawn.clamp(min=1).log()
        log_mean = masked_logsumexp(logits, other.repeat(1, views)) + log_weight
        if include_positive:
            log_sum = torch.logaddexp(log_mean + candidates.log(), torch.zeros_like(log_mean))
            log_mean, log_weight = log_sum - candidates.log1p(), log_weight + candidates.log() - candidates.log1p()
        columns.append(log_mean)
        if with_slopes:
            held = logits.detach().masked_fill(~other.repeat(1, views), -math.inf)
            share = (held + (log_weight - log_mean.detach()).unsqueeze(1)).exp()
            slopes.append((share * held.clamp(min=torch.finfo(held.dtype).min)).sum(1))
    return as_estimate(torch.stack(columns, 1), known, log=True), torch.stack(slopes, 1) if slopes else None


def _of_anchors(temperature: float | Tensor, like: Tensor, sides: Sides) -> Sequence[float | Tensor]:
    """Return the temperature of either view as the anchor: a number, or a tensor that broadcasts against (B, pool)."""
    if not isinstance(temperature, Tensor):
        return [temperature, temperature]
    tau = temperature.to(like.dtype)
    refuse_temperatures(tau)
    if sides.recall.expected is not None:  # fresh examples as rivals only; their own terms have had the gradient
        tau = tau.detach()
    return [tau, tau] if tau.dim() == 0 else [column.unsqueeze(1) for column in tau.unbind(1)]


def directions(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Check both tensors; return their vectors scaled to unit length, in float32 at least."""
    check_floats(first, "first", "[B, d]")
    check_floats(second, "second", "[B, d]")
    check_same(second, "second", first, "first")
    check_directions(first, "first")
    check_directions(second, "second")
    return _unit(at_least_float32(first)), _unit(at_least_float32(second))
