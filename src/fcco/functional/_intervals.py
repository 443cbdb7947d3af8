"""Sums over intervals that cover a point."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco.functional._inner import masked_logsumexp
from fcco.functional._tensors import segment_logsumexp


def covering_logsumexp(values: Tensor, first: Tensor, past: Tensor, count: int) -> Tensor:
    r"""For each point, log-sum-exp over the intervals that cover it.

    .. math:: c_k = \log \sum_{j : a_j \le k < b_j} e^{x_j}

    Parameters
    ----------
    values : Tensor of shape (n,)
        The values x.
    first, past : Tensor of shape (n,)
        Where each interval begins (a) and ends (b), integers in 0 ... count. If it ends where it begins, it is empty.
    count : int
        The number of points.

    Returns
    -------
    Tensor of shape (count,)
        The logarithms, which are -inf at points without an interval.

    Notes
    -----
    The difference of two cumulative sums would lose the digits of small sums beside large ones. This is a segment tree:
    its nodes are runs of 1, 2, 4, ... points, every interval is a union of at most two nodes of each size, and only
    sums are taken. The cost is O((n + count) log count).

    Examples
    --------
    >>> covering_logsumexp(torch.zeros(3), torch.tensor([0, 1, 1]), torch.tensor([2, 3, 1]), 4).exp()
    tensor([1., 2., 1., 0.])
    """
    levels = max(count - 1, 1).bit_length() + 1
    leaves = 1 << (levels - 1)
    low, high, everyone = first + leaves, past + leaves, torch.arange(len(values), device=values.device)
    nodes, members = [], []
    for _ in range(levels):
        begins, ends = (low < high) & (low % 2 == 1), (low < high) & (high % 2 == 1)
        nodes += [low[begins], high[ends] - 1]
        members += [everyone[begins], everyone[ends]]
        low, high = (low + 1) // 2, high // 2
    used, slot = torch.cat(nodes).unique(return_inverse=True)
    sums = segment_logsumexp(values[torch.cat(members)], slot, len(used))
    tree = values.new_full((2 * leaves,), -math.inf).index_copy(0, used, sums)
    shift = torch.arange(levels, device=values.device)
    above = tree[(torch.arange(count, device=values.device) + leaves).unsqueeze(1) >> shift]
    return masked_logsumexp(above, above > -math.inf)
