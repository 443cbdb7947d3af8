"""Objectives on embeddings: neighbourhood components analysis and contrastive learning."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco.functional._checks import (
    as_groups,
    as_value,
    check_choice,
    check_count,
    check_directions,
    check_floats,
    check_number,
    check_same,
    check_squares,
)
from fcco.functional._chunks import Place, map_chunks, map_rows, row_places
from fcco.functional._tensors import at_least_float32, graph_zero, widen

# Above this squared radius, |a|² + |b|² - 2ab is no longer good to some 1e-9 in float64.
_LARGEST_SQUARE = 1e6


def nca_loss(embeddings: Tensor, labels: Tensor, *, log_likelihood: bool = False, chunk: int | None = None) -> Tensor:
    r"""Negative of the expected accuracy of a random nearest neighbour.

    .. math:: F = -\frac 1 n \sum_i p_i, \qquad
        p_i = \frac{\sum_{j \ne i, y_j = y_i} e^{-|z_i - z_j|^2}}{\sum_{j \ne i} e^{-|z_i - z_j|^2}}

    or, with ``log_likelihood``, of the mean of log p_i, over the examples that are not alone in their class (if there
    are none, 0). Without it, an example alone in its class has p_i = 0. Embeddings may be of any size whose square is
    a number.

    Args:
        embeddings: z, [n, d]. With n = 1 the loss is 0.
        labels: y, [n] of integers.
        log_likelihood: the mean of log p_i rather than of p_i.
        chunk: rows at a time; None: as many as fit in memory.

    Raises:
        ValueError: embeddings whose squared distances, or with ``log_likelihood`` the value, overflow; shapes or
            embeddings that cannot be meant.
        TypeError: an argument of the wrong type or dtype.

    >>> nca_loss(torch.tensor([[0.0], [0.0], [0.0]]), torch.tensor([4, 4, 1]))  # -(1/2 + 1/2 + 0) / 3
    tensor(-0.3333)

    Reference: Goldberger et al., *Neighbourhood Components Analysis*, NIPS 2004.
    """
    check_count(chunk, "chunk")
    check_floats(embeddings, "embeddings", "[n, d]", room=4)
    group, _ = as_groups(labels, "labels", embeddings, "embeddings")
    n = len(embeddings)
    if n == 1:
        return graph_zero(embeddings)
    z = widen(embeddings)
    z = z - z.detach().mean(0)
    column, alone = torch.arange(n, device=z.device), (group.bincount() == 1)[group]

    def shares(place: Place, own: Tensor, z: Tensor, norm: Tensor) -> Tensor:
        rows = place[0]
        # |z_i|², which all distances of a row have, leaves its softmax as it is.
        logits = -direct_distances(own, z) if direct else torch.addmm(-norm.T, 2 * own, z.T)
        logits = logits.masked_fill(column[rows, None] == column, -math.inf)
        alike = group[rows, None] == group
        if log_likelihood:
            mates = alike | alone[rows, None]  # log 1 for those that have no term
            return logits.masked_fill(~mates, -math.inf).logsumexp(1) - logits.logsumexp(1)
        return (logits.softmax(1) * alike).sum(1)

    norm = map_rows(lambda z: z.square().sum(1, keepdim=True), z)
    check_squares(norm)
    direct = float(norm.detach().max()) > _LARGEST_SQUARE
    places = row_places(n, n, z, chunk, lambda rows: (rows, ..., ...))
    terms = (~alone).sum().clamp(min=1) if log_likelihood else n
    return -as_value((map_chunks(shares, places, n, z, z, norm) / terms).sum(), embeddings, "embeddings")


def direct_distances(first: Tensor, second: Tensor) -> Tensor:
    """[n, m] of |a - b|², to the last digit whatever the norms, and several times slower than a matrix product."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").square()


def contrastive_loss(
    first: Tensor,
    second: Tensor,
    *,
    temperature: float = 0.1,
    mode: str = "two_views",
    include_positive: bool = False,
    normalize: bool = True,
    chunk: int | None = None,
) -> Tensor:
    r"""Global contrastive loss: how much closer an example is to its counterpart than to all others.

    .. math:: F = \frac{1}{|A|} \sum_{a \in A} \log \frac{1}{|S_a|} \sum_{b \in S_a} e^{(a^T b - a^T a^+) / \tau}

    where a⁺ is the counterpart of the anchor a: the other row of the same number.

    - "two_views": the anchors are all 2n rows; S_a has the 2n - 2 rows of both tensors that are neither a nor a⁺.
    - "cross_modal": the anchors are all 2n rows, weighing alike in both directions; S_a has the n - 1 rows of the
      *other* tensor that are not a⁺.

    ``include_positive`` adds a⁺ to S_a. Then F + log |S_a| is SimCLR's loss (|S_a| = 2n - 1), or CLIP's (|S_a| = n),
    with all data as one batch. The factor τ that some write before F is left out.

    Args:
        first: [n, d].
        second: [n, d], the other views, or the other modality. With n = 1 and no positive included the loss is 0.
        temperature: τ, positive.
        mode: "two_views" or "cross_modal".
        include_positive: whether the counterpart is in the set it is compared to.
        normalize: scale rows to unit length; rows that are, stay as they are.
        chunk: anchors at a time; None: as many as fit in memory.

    Raises:
        ValueError: a zero row to be normalised, a temperature that is not positive; shapes or values that cannot be
            meant.
        TypeError: an argument of the wrong type or dtype.

    >>> image, text = torch.eye(3), torch.eye(3)
    >>> contrastive_loss(image, text, temperature=1.0, mode="cross_modal")  # log(exp(0 - 1))
    tensor(-1.)

    References: Yuan et al., *Provable Stochastic Optimization for Global Contrastive Learning*, ICML 2022 (SogCLR). Qiu
    et al., *Not All Semantics are Created Equal*, ICML 2023 (iSogCLR).
    """
    check_count(chunk, "chunk")
    check_number(temperature, "temperature", above=0)
    check_choice(mode, "mode", ("two_views", "cross_modal"))
    check_floats(first, "first", "[n, d]")
    check_floats(second, "second", "[n, d]")
    check_same(second, "second", first, "first")
    if normalize:
        check_directions(first, "first")
        check_directions(second, "second")
    if len(first) == 1 and not include_positive:
        return graph_zero(first, second)
    one, other = (map_rows(_unit, wide) if normalize else wide for wide in map(at_least_float32, (first, second)))
    n, contrast = (
        len(first),
        partial(_contrast, temperature=temperature, include_positive=include_positive, chunk=chunk),
    )
    if mode == "cross_modal":
        pairs = row_places(n, one.shape[1], one, None, lambda rows: (rows, rows))
        positive = map_chunks(_dot, pairs, n, one, other)
        return ((contrast(one, other, positive) + contrast(other, one, positive)) / 2).to(first.dtype)
    views = torch.cat([one, other])
    del one, other
    pairs = row_places(n, views.shape[1], views, None, lambda rows: (rows, slice(rows.start + n, rows.stop + n)))
    positive = map_chunks(_dot, pairs, n, views, views)
    return contrast(views, views, positive.repeat(2)).to(first.dtype)


def _unit(vectors: Tensor) -> Tensor:
    """Rows scaled to unit length; first by their largest entry, whose square may overflow or vanish."""
    return F.normalize(vectors / vectors.detach().abs().amax(1, keepdim=True), eps=0.0)


def _dot(_: Place, first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum(1)


def _contrast(
    anchors: Tensor,
    candidates: Tensor,
    positive: Tensor,
    *,
    temperature: float,
    include_positive: bool,
    chunk: int | None,
) -> Tensor:
    """Mean over the anchors. Their positives are half a turn further where they are among the candidates themselves."""
    n, among_themselves = len(anchors), anchors is candidates
    column = torch.arange(n, device=anchors.device)
    counterpart = column.roll(n // 2) if among_themselves else column

    def log_sums(place: Place, anchors: Tensor, positive: Tensor, candidates: Tensor) -> Tensor:
        rows = place[0]
        logits = (anchors @ candidates.T - positive.unsqueeze(1)) / temperature
        # The positive's own logit is 0 by definition, however the matrix product rounds.
        logits = logits.masked_fill(column == counterpart[rows, None], 0.0 if include_positive else -math.inf)
        if among_themselves:
            logits = logits.masked_fill(column == column[rows, None], -math.inf)
        return logits.logsumexp(1)

    size = n - among_themselves - (not include_positive)
    places = row_places(n, n, anchors, chunk, lambda rows: (rows, rows, ...))
    return map_chunks(log_sums, places, n, anchors, positive, candidates).mean() - math.log(size)
