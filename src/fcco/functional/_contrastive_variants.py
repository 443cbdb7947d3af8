"""Exact contrastive objectives with a temperature for every anchor, and with several positives."""

from __future__ import annotations

import torch
from torch import Tensor

from fcco._checks import is_empty, shape_of
from fcco.functional._checks import check_directions, check_floats, check_number
from fcco.functional._similarity import _unit, check_temperature_of_all, log_means, nca_loss, refuse_temperatures
from fcco.functional._tensors import at_least_float32, graph_zero


def robust_contrastive_loss(
    first: Tensor,
    second: Tensor,
    temperature: Tensor | float = 0.1,
    *,
    rho: float = 1.0,
    mode: str = "two_views",
    include_positive: bool = False,
    chunk: int | None = None,
) -> Tensor:
    r"""Global contrastive loss with a temperature for every anchor.

    .. math:: F = \frac{1}{2n} \sum_a \tau_a \Bigl( \log \frac{1}{|S_a|} \sum_{b \in S_a}
        e^{(a^T b - a^T a^+) / \tau_a} + \rho \Bigr)

    At its minimum in τ, the term of an anchor is the mean of its most similar candidates: the largest expectation of
    :math:`a^T b - a^T a^+` under any distribution over S_a whose KL divergence from the uniform one is at most ρ.

    Parameters
    ----------
    first, second : Tensor of shape (n, d)
        Two views or modalities; see :func:`contrastive_loss`.
    temperature : Tensor of shape (n, 2) or float, default 0.1
        τ of either vector of each example as the anchor, positive.
    rho : float, default 1.0
        ρ, at least 0.
    mode, include_positive, chunk
        As in :func:`contrastive_loss`.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``first``.

    See Also
    --------
    fcco.losses.RobustContrastiveLoss : The same objective, estimated from mini-batches, with its temperatures.

    References
    ----------
    .. [1] Qiu et al., *Not All Semantics are Created Equal*, ICML 2023 (iSogCLR).

    Examples
    --------
    >>> robust_contrastive_loss(torch.eye(3), torch.eye(3), 2.0, rho=0.0, mode="cross_modal")  # 2 log(exp(-1 / 2))
    tensor(-1.)
    """
    check_number(rho, "rho", at_least=0)
    check_floats(first, "first", "[n, d]")
    if isinstance(temperature, Tensor):
        if temperature.shape != (len(first), 2):
            raise ValueError(f"temperature must have the shape [{len(first)}, 2]; got {shape_of(temperature)}")
        temperature = temperature.T.reshape(-1)
    values = log_means(first, second, temperature, mode, include_positive, True, chunk)
    if len(first) == 1 and not include_positive:
        return graph_zero(first, second)
    tau = torch.as_tensor(temperature, dtype=values.dtype, device=values.device)
    return (tau * (values + rho)).mean().to(first.dtype)


def supervised_contrastive_loss(
    embeddings: Tensor, labels: Tensor, *, temperature: float | Tensor = 0.1, chunk: int | None = None
) -> Tensor:
    r"""Contrastive loss with several positives: all other examples of the same class.

    .. math:: F = -\frac{1}{n'} \sum_i \log \frac{\sum_{j \ne i, y_j = y_i} e^{s_{ij} / \tau}}
        {\sum_{j \ne i} e^{s_{ij} / \tau}}

    Here s is the cosine similarity, and the mean is over the n' examples that are not alone in their class.

    Parameters
    ----------
    embeddings : Tensor of shape (n, d)
        The embeddings, which are scaled to unit length. Two views of an example are two examples of the same class.
    labels : Tensor of shape (n,)
        The classes y, integers.
    temperature : float or Tensor, default 0.1
        The temperature τ, positive. A tensor of one number may be differentiated.
    chunk : int or None, default None
        How many examples to process at a time.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``embeddings``.

    See Also
    --------
    fcco.losses.SupervisedContrastiveLoss : The same objective, estimated from mini-batches.

    Notes
    -----
    This is L_in of [1]_: the positives are summed inside the logarithm. L_out, the loss of most other libraries, has
    the mean over the positives of a logarithm each. With a single positive both are the same, that of SimCLR. It is
    also the log-likelihood of neighbourhood components analysis on unit vectors divided by sqrt(2 τ), and computed as
    such.

    References
    ----------
    .. [1] Khosla et al., *Supervised Contrastive Learning*, NeurIPS 2020.

    Examples
    --------
    >>> supervised_contrastive_loss(torch.ones(3, 2), torch.tensor([0, 0, 1]))  # log 2
    tensor(0.6931)
    """
    return nca_loss(on_sphere(embeddings, temperature), labels, log_likelihood=True, chunk=chunk).to(embeddings.dtype)


def on_sphere(embeddings: Tensor, temperature: float | Tensor, shape: str = "[n, d]") -> Tensor:
    """Return unit vectors divided by sqrt(2 τ), whose squared distances are 1 / τ - s / τ."""
    check_temperature_of_all(temperature)
    if not is_empty(embeddings):  # one of several ranks may have no rows
        check_floats(embeddings, "embeddings", shape)
        check_directions(embeddings, "embeddings")
    if isinstance(temperature, Tensor):
        refuse_temperatures(temperature.reshape(-1))
    unit = _unit(at_least_float32(embeddings))
    return unit / torch.as_tensor(2.0 * temperature, dtype=unit.dtype, device=unit.device).reshape(()).sqrt()
