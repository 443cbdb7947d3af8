"""Inner estimates of NCA and of contrastive losses from a batch of embeddings."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco.functional._checks import check_floats, check_per_example, check_same
from fcco.functional._inner import Estimate, masked_logsumexp, mean_weight, settle


def nca_inner(embeddings: Tensor, labels: Tensor, *, n: int, class_sizes: Tensor | None = None) -> Estimate:
    r"""log g of neighbourhood components analysis.

    .. math:: g_{i1} = \sum_{j \ne i, y_j = y_i} e^{-|z_i - z_j|^2}, \qquad g_{i2} = \sum_{j \ne i} e^{-|z_i - z_j|^2}

    Args:
        embeddings: z, [B, d].
        labels: y, [B] of integers.
        n: size of the population.
        class_sizes: [C], members of class c in the population. If given, each class is weighed by its size, and classes
            other than the own that the batch lacks are stood for by those it has; labels are then 0 ... C - 1. If None
            the batch is taken as drawn at random from all.

    Returns:
        inner [B, 2], weight [B]. g_1 = 0 (-inf) where no other member of the class is in the batch.
    """
    check_floats(embeddings, "embeddings", "[B, d]")
    check_per_example(labels, "labels", embeddings, "embeddings")
    logits = -squared_distances(embeddings)
    other = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    mates = (labels.unsqueeze(0) == labels.unsqueeze(1)) & other
    if class_sizes is None:
        scale = math.log(n - 1) - math.log(max(len(labels) - 1, 1)) if n > 1 else 0.0
        inner = torch.stack([masked_logsumexp(logits, mates), masked_logsumexp(logits, other)], 1) + scale
        known = torch.ones_like(labels, dtype=torch.bool) & (len(labels) > 1)
    else:
        inner, known = _by_class(logits, labels, mates, class_sizes.to(logits.dtype))
    return settle(inner, mean_weight(known, embeddings), log=True)


def _by_class(logits: Tensor, labels: Tensor, mates: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    in_batch = torch.zeros_like(sizes).index_add(0, labels, torch.ones_like(labels, dtype=sizes.dtype))
    own_count, own_size = in_batch[labels], sizes[labels]
    of_mates = (own_size - 1) / (own_count - 1).clamp(min=1)
    among_mates = masked_logsumexp(logits, mates) + of_mates.log()
    strangers = labels.unsqueeze(0) != labels.unsqueeze(1)
    # Classes are a sample too: the K - 1 others in the batch stand for the C - 1 others that there are.
    others, others_in_batch = (sizes > 0).sum() - 1, (in_batch > 0).sum() - 1
    spread = others.to(sizes.dtype) / others_in_batch.clamp(min=1)
    weight = (own_size / own_count).log().unsqueeze(0) + spread.log()
    among_strangers = masked_logsumexp(logits + weight, strangers)
    inner = torch.stack([among_mates, torch.logaddexp(among_mates, among_strangers)], 1)
    known = ((own_count > 1) | (own_size <= 1)) & ((others_in_batch > 0) | (others == 0))
    return inner, known


def squared_distances(embeddings: Tensor) -> Tensor:
    """[B, B] of |z_i - z_j|². Centred first, so that the product loses no digits to a common offset."""
    z = embeddings - embeddings.detach().mean(0)
    norm = z.square().sum(1)
    return (norm.unsqueeze(1) + norm.unsqueeze(0) - 2 * z @ z.T).clamp(min=0.0)


def contrastive_inner(
    first: Tensor, second: Tensor, *, n: int, temperature: float, mode: str, include_positive: bool
) -> Tensor:
    r"""[B, 2], log g of the global contrastive loss, with ``first`` and with ``second`` as anchors.

    .. math:: g_i = \text{mean over the candidates } c \text{ of } e^{(s(a_i, c) - s(a_i, b_i)) / \tau}

    Args:
        first: [B, d], one view (or kind) of each example.
        second: [B, d], the other.
        n: size of the population.
        temperature: τ.
        mode: "two_views": candidates are both views of all others; "cross_modal": only the other kind.
        include_positive: the positive pair is a candidate too.
    """
    check_floats(first, "first", "[B, d]")
    check_floats(second, "second", "[B, d]")
    check_same(second, "second", first, "first")
    a, b = F.normalize(first, dim=1), F.normalize(second, dim=1)
    across = a @ b.T / temperature
    sides = [[across], [across.T]]
    if mode == "two_views":
        sides[0].append(a @ a.T / temperature)
        sides[1].append(b @ b.T / temperature)
    positive = across.diagonal().unsqueeze(1)
    other = ~torch.eye(len(a), dtype=torch.bool, device=a.device)
    return torch.stack([_side(blocks, positive, other, n, include_positive) for blocks in sides], 1)


def _side(blocks: list[Tensor], positive: Tensor, other: Tensor, n: int, include_positive: bool) -> Tensor:
    logits = torch.cat([block - positive for block in blocks], 1)
    among_others = masked_logsumexp(logits, other.repeat(1, len(blocks)))
    sampled, candidates = len(blocks) * (len(positive) - 1), len(blocks) * (n - 1)
    if not include_positive:
        return among_others - math.log(max(sampled, 1))
    scale = math.log(max(candidates, 1)) - math.log(max(sampled, 1))
    return torch.logaddexp(among_others + scale, torch.zeros_like(among_others)) - math.log(candidates + 1)
