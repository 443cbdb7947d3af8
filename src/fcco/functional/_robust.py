"""Exact objectives of robust learning: invariance to perturbations, and the worst of several groups."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from fcco.functional._checks import as_groups, as_mask, as_value, check_floats, check_number
from fcco.functional._tensors import at_least_float32, mean, widen


def invariant_logistic_loss(scores: Tensor, target: Tensor) -> Tensor:
    r"""Logistic loss of the mean score over perturbed observations of each example.

    .. math:: F = \frac 1 n \sum_i \log\bigl(1 + e^{-b_i g_i}\bigr), \qquad g_i = \frac 1 m \sum_j s_{ij}

    Parameters
    ----------
    scores : Tensor of shape (n, m)
        The scores s of m observations of each of the n examples.
    target : Tensor of shape (n,)
        The labels b: -1 and 1, 0 and 1 (where 0 means -1), or bool.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``scores``.

    Raises
    ------
    ValueError
        If a shape, a label or a score is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.InvariantLogisticLoss : The same objective, estimated from a few observations at a time.

    References
    ----------
    .. [1] Hu et al., *Biased Stochastic First-Order Methods for Conditional Stochastic Optimization and Applications in
       Meta Learning*, NeurIPS 2020.

    Examples
    --------
    >>> import torch
    >>> invariant_logistic_loss(torch.tensor([[1.0, -1.0]]), torch.tensor([1]))  # log 2
    tensor(0.6931)
    """
    check_floats(scores, "scores", "[n, m]")
    positive = as_mask(target, "target", scores, "scores")
    height = at_least_float32(scores).div(scores.shape[1]).sum(1)
    return as_value(mean(F.softplus(height.where(~positive, -height))), scores, "scores")


def group_dro_loss(losses: Tensor, group: Tensor, *, temperature: float = 1.0) -> Tensor:
    r"""Soft maximum of the groups' mean losses: a distributionally robust objective over groups.

    .. math:: F = \tau \log \frac 1 K \sum_k e^{g_k / \tau}, \qquad g_k = \text{mean loss of group } k

    Equivalently, F is the largest mean over all reweightings of the groups, minus τ times the Kullback-Leibler
    divergence of the weights from uniform ones.

    Parameters
    ----------
    losses : Tensor of shape (n,)
        The losses of the examples.
    group : Tensor of shape (n,)
        The group of each example, an integer. K is the number of distinct groups.
    temperature : float, default 1.0
        The temperature τ, positive. τ → 0 gives the worst group, and τ → ∞ the mean over groups.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``losses``.

    Raises
    ------
    ValueError
        If the temperature is not positive, or if a shape or a loss is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.GroupDROLoss : The same objective, estimated from mini-batches.

    Notes
    -----
    In the coupled compositional form the *group* is the outer example, its members are the inner set, and f(u) = e^{u /
    τ}. The logarithm outside is monotone and only rescales the gradient.

    References
    ----------
    .. [1] Sagawa et al., *Distributionally Robust Neural Networks for Group Shifts*, ICLR 2020.

    Examples
    --------
    >>> import torch
    >>> group_dro_loss(torch.tensor([0.0, 2.0, 3.0]), torch.tensor([8, 8, 5]), temperature=0.01)  # nearly 3
    tensor(2.9931)
    """
    check_number(temperature, "temperature", above=0)
    check_floats(losses, "losses", room=max(1.0, 1 / temperature))
    member, count = as_groups(group, "group", losses, "losses")
    wide = widen(losses)
    of_group = wide.new_zeros(count).index_add(0, member, wide / member.bincount()[member])
    return as_value(temperature * ((of_group / temperature).logsumexp(0) - math.log(count)), losses, "losses")
