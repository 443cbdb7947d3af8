"""Exact objectives on embeddings: neighbourhood components analysis and contrastive learning."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco._checks import shape_of
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
    refuse_where,
)
from fcco.functional._chunks import Place, map_chunks, map_rows, row_places
from fcco.functional._tensors import at_least_float32, graph_zero, widen

# Above this squared radius, |a|² + |b|² - 2ab has an error of more than about 1e-9 in float64.
_LARGEST_SQUARE = 1e6


def nca_loss(embeddings: Tensor, labels: Tensor, *, log_likelihood: bool = False, chunk: int | None = None) -> Tensor:
    r"""Negative of the expected accuracy of a stochastic nearest neighbour (neighbourhood components analysis).

    .. math:: F = -\frac 1 n \sum_i p_i, \qquad
        p_i = \frac{\sum_{j \ne i, y_j = y_i} e^{-|z_i - z_j|^2}}{\sum_{j \ne i} e^{-|z_i - z_j|^2}}

    An example that is alone in its class has p_i = 0. With ``log_likelihood``, F is the negative mean of log p_i over
    the examples that are not alone in their class, or 0 if there are none.

    Parameters
    ----------
    embeddings : Tensor of shape (n, d)
        The embeddings z, of any size whose square is finite. With n = 1 the loss is 0.
    labels : Tensor of shape (n,)
        The classes y, integers.
    log_likelihood : bool, default False
        Whether to average log p_i instead of p_i.
    chunk : int or None, default None
        How many examples to process at a time. By default, as many as fit in memory.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``embeddings``.

    Raises
    ------
    ValueError
        If squared distances or, with ``log_likelihood``, the loss overflow, or if a shape or an embedding is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.NCALoss : The same objective, estimated from mini-batches.

    References
    ----------
    .. [1] Goldberger et al., *Neighbourhood Components Analysis*, NIPS 2004.

    Examples
    --------
    >>> nca_loss(torch.tensor([[0.0], [0.0], [0.0]]), torch.tensor([4, 4, 1]))  # -(1/2 + 1/2 + 0) / 3
    tensor(-0.3333)
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
        # All distances of example i contain |z_i|², which does not change its softmax.
        logits = -direct_distances(own, z) if direct else torch.addmm(-norm.T, 2 * own, z.T)
        logits = logits.masked_fill(column[rows, None] == column, -math.inf)
        alike = group[rows, None] == group
        if log_likelihood:
            mates = alike | alone[rows, None]  # examples without a term contribute log 1
            return logits.masked_fill(~mates, -math.inf).logsumexp(1) - logits.logsumexp(1)
        return (logits.softmax(1) * alike).sum(1)

    norm = map_rows(lambda z: z.square().sum(1, keepdim=True), z)
    check_squares(norm)
    direct = float(norm.detach().max()) > _LARGEST_SQUARE
    places = row_places(n, n, z, chunk, lambda rows: (rows, ..., ...))
    terms = (~alone).sum().clamp(min=1) if log_likelihood else n
    return -as_value((map_chunks(shares, places, n, z, z, norm) / terms).sum(), embeddings, "embeddings")


def direct_distances(first: Tensor, second: Tensor) -> Tensor:
    """Return |a - b|² for all pairs, of shape (n, m).

    It is accurate for any norms, but several times slower than a matrix product.
    """
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").square()


def contrastive_loss(
    first: Tensor,
    second: Tensor,
    *,
    temperature: float | Tensor = 0.1,
    mode: str = "two_views",
    include_positive: bool = False,
    normalize: bool = True,
    chunk: int | None = None,
) -> Tensor:
    r"""Global contrastive loss: how much closer an example is to its counterpart than to all others.

    .. math:: F = \frac{1}{|A|} \sum_{a \in A} \log \frac{1}{|S_a|} \sum_{b \in S_a} e^{(a^T b - a^T a^+) / \tau}

    The counterpart a⁺ of the anchor a is the vector with the same number in the other tensor. In both modes, the
    anchors are the 2n vectors of both tensors.

    - "two_views": S_a has the 2n - 2 vectors of both tensors that are neither a nor a⁺.
    - "cross_modal": S_a has the n - 1 vectors of the *other* tensor that are not a⁺. Both directions weigh the same.

    Parameters
    ----------
    first : Tensor of shape (n, d)
        The first view, or the first modality.
    second : Tensor of shape (n, d)
        The second view, or the other modality. The loss is 0 if n = 1 and the positive is not included.
    temperature : float or Tensor, default 0.1
        The temperature τ, positive. A tensor of one number may be differentiated.
    mode : {"two_views", "cross_modal"}, default "two_views"
        Which vectors an anchor is compared with.
    include_positive : bool, default False
        Whether S_a also contains the counterpart a⁺.
    normalize : bool, default True
        Whether to scale the vectors to unit length. Vectors of unit length stay unchanged.
    chunk : int or None, default None
        How many anchors to process at a time. By default, as many as fit in memory.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``first``.

    Raises
    ------
    ValueError
        If a vector to be normalised is zero, if the temperature is not positive, or if a shape or a value is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.ContrastiveLoss : The same objective, estimated from mini-batches.

    Notes
    -----
    With ``include_positive``, F + log |S_a| is the loss of SimCLR (|S_a| = 2n - 1) or of CLIP (|S_a| = n) with all data
    as one batch. Some authors multiply F by τ; this function does not.

    References
    ----------
    .. [1] Yuan et al., *Provable Stochastic Optimization for Global Contrastive Learning*, ICML 2022 (SogCLR).
    .. [2] Qiu et al., *Not All Semantics are Created Equal*, ICML 2023 (iSogCLR).

    Examples
    --------
    >>> image, text = torch.eye(3), torch.eye(3)
    >>> contrastive_loss(image, text, temperature=1.0, mode="cross_modal")  # log(exp(0 - 1))
    tensor(-1.)
    """
    check_temperature_of_all(temperature)
    if isinstance(first, Tensor) and first.dim() == 2 and len(first) == 1 and not include_positive:
        log_means(first, second, temperature, mode, include_positive, normalize, chunk)  # checks its arguments
        return graph_zero(first, second)
    return log_means(first, second, temperature, mode, include_positive, normalize, chunk).mean().to(first.dtype)


def check_temperature_of_all(temperature: Any) -> None:
    """Check a temperature that is common to all examples: a number, or a tensor of one number."""
    if not isinstance(temperature, Tensor):
        check_number(temperature, "temperature", above=0)
    elif temperature.numel() != 1 or not temperature.is_floating_point():
        got = f"{shape_of(temperature)} of {temperature.dtype}"
        raise ValueError(f"temperature must be one floating number; got {got}")


def refuse_temperatures(tau: Tensor) -> None:
    """Raise if a temperature is not finite or not above 0."""
    tau = tau.detach()
    refuse_where("temperature", tau, ~((tau > 0) & (tau < math.inf)), "finite and above 0")


def log_means(
    first: Tensor,
    second: Tensor,
    temperature: float | Tensor,
    mode: str,
    include_positive: bool,
    normalize: bool,
    chunk: int | None,
) -> Tensor:
    """Return the logarithm of the mean of each anchor, of shape (2n,): the vectors of ``first``, then of ``second``.

    The temperature is a number, a tensor of one, or a tensor of shape (2n,).
    """
    check_count(chunk, "chunk")
    check_choice(mode, "mode", ("two_views", "cross_modal"))
    check_floats(first, "first", "[n, d]")
    check_floats(second, "second", "[n, d]")
    check_same(second, "second", first, "first")
    if normalize:
        check_directions(first, "first")
        check_directions(second, "second")
    one, other = (map_rows(_unit, wide) if normalize else wide for wide in map(at_least_float32, (first, second)))
    n, contrast = len(first), partial(_contrast, include_positive=include_positive, chunk=chunk)
    tau = torch.as_tensor(temperature, dtype=one.dtype, device=one.device).expand(2 * n)
    refuse_temperatures(tau)
    if n == 1 and not include_positive:
        return tau * 0
    if mode == "cross_modal":
        pairs = row_places(n, one.shape[1], one, None, lambda rows: (rows, rows))
        positive = map_chunks(_dot, pairs, n, one, other)
        return torch.cat([contrast(one, other, positive, tau[:n]), contrast(other, one, positive, tau[n:])])
    views = torch.cat([one, other])
    del one, other
    pairs = row_places(n, views.shape[1], views, None, lambda rows: (rows, slice(rows.start + n, rows.stop + n)))
    positive = map_chunks(_dot, pairs, n, views, views)
    return contrast(views, views, positive.repeat(2), tau)


def _unit(vectors: Tensor) -> Tensor:
    """Scale vectors to unit length, first by their largest entry, whose square could overflow or vanish."""
    return F.normalize(vectors / vectors.detach().abs().amax(1, keepdim=True), eps=0.0)


def _dot(_: Place, first: Tensor, second: Tensor) -> Tensor:
    """Return the inner products of corresponding vectors."""
    return (first * second).sum(1)


def _contrast(
    anchors: Tensor,
    candidates: Tensor,
    positive: Tensor,
    temperature: Tensor,
    *,
    include_positive: bool,
    chunk: int | None,
) -> Tensor:
    """Return the logarithm of the mean over the candidates of each anchor, of shape (n,).

    If the anchors are also the candidates, the counterpart of an anchor is half of all vectors further on.
    """
    n, among_themselves = len(anchors), anchors is candidates
    column = torch.arange(n, device=anchors.device)
    counterpart = column.roll(n // 2) if among_themselves else column

    def log_sums(place: Place, anchors: Tensor, positive: Tensor, tau: Tensor, candidates: Tensor) -> Tensor:
        rows = place[0]
        logits = (anchors @ candidates.T - positive.unsqueeze(1)) / tau.unsqueeze(1)
        # The logit of the positive is 0 by definition, whatever the rounding of the matrix product.
        logits = logits.masked_fill(column == counterpart[rows, None], 0.0 if include_positive else -math.inf)
        if among_themselves:
            logits = logits.masked_fill(column == column[rows, None], -math.inf)
        return logits.logsumexp(1)

    size = n - among_themselves - (not include_positive)
    places = row_places(n, n, anchors, chunk, lambda rows: (rows, rows, rows, ...))
    return map_chunks(log_sums, places, n, anchors, positive, temperature, candidates) - math.log(size)
