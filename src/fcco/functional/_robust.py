"""Objectives of robust learning: invariance to perturbations, and the worst of several groups."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from fcco.functional._checks import as_groups, as_mask, as_value, check_floats, check_number
from fcco.functional._tensors import at_least_float32, mean, widen


def invariant_logistic_loss(scores: Tensor, target: Tensor) -> Tensor:
    r"""Logistic loss of the mean score over perturbed observations of each example.

    .. math:: F = \frac 1 n \sum_i \log\bigl(1 + e^{-b_i g_i}\bigr), \qquad g_i = \frac 1 m \sum_j s_{ij}

    Args:
        scores: s, [n, m], of m observations of each of the n examples.
        target: b, [n], -1 and 1, 0 and 1 (0 standing for -1), or bool.

    Raises:
        ValueError: shapes, labels or scores that cannot be meant.
        TypeError: an argument of the wrong type or dtype.

    >>> import torch
    >>> invariant_logistic_loss(torch.tensor([[1.0, -1.0]]), torch.tensor([1]))  # log 2
    tensor(0.6931)

    Reference: Hu et al., *Biased Stochastic First-Order Methods for Conditional Stochastic Optimization and
    Applications in Meta Learning*, NeurIPS 2020.
    """
    check_floats(scores, "scores", "[n, m]")
    positive = as_mask(target, "target", scores, "scores")
    height = at_least_float32(scores).div(scores.shape[1]).sum(1)
    return as_value(mean(F.softplus(height.where(~positive, -height))), scores, "scores")


def group_dro_loss(losses: Tensor, group: Tensor, *, temperature: float = 1.0) -> Tensor:
    r"""Soft maximum of the groups' mean losses: distributionally robust over groups.

    .. math:: F = \tau \log \frac 1 K \sum_k e^{g_k / \tau}, \qquad g_k = \text{mean loss of group } k

    It is the largest mean over re-weighted groups, less τ times the divergence (Kullback-Leibler) of the weights from
    equal ones. Its coupled compositional form has the *group* as outer example and its members as inner set, with
    f(u) = e^{u / τ}; the logarithm outside is monotone, and only rescales the gradient.

    Args:
        losses: [n], of the examples.
        group: [n] of integers; K is how many distinct ones there are.
        temperature: τ, positive; τ → 0 gives the worst group, τ → ∞ the mean over groups.

    Raises:
        ValueError: the temperature is not positive; shapes or losses that cannot be meant.
        TypeError: an argument of the wrong type or dtype.

    >>> import torch
    >>> group_dro_loss(torch.tensor([0.0, 2.0, 3.0]), torch.tensor([8, 8, 5]), temperature=0.01)  # nearly 3
    tensor(2.9931)

    Reference: Sagawa et al., *Distributionally Robust Neural Networks for Group Shifts*, ICLR 2020.
    """
    check_number(temperature, "temperature", above=0)
    check_floats(losses, "losses", room=max(1.0, 1 / temperature))
    member, count = as_groups(group, "group", losses, "losses")
    wide = widen(losses)
    of_group = wide.new_zeros(count).index_add(0, member, wide / member.bincount()[member])
    return as_value(temperature * ((of_group / temperature).logsumexp(0) - math.log(count)), losses, "losses")
