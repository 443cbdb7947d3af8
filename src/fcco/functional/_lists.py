"""Items in lists (of queries, or one list of all): sums over those at or below an item, and padded layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fcco.functional._tensors import widen


def padded_blocks(order: Tensor, sizes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Lists as rows of matrices, those of similar size together, so that padding at most doubles the number of items.

    Args:
        order: [n], positions of the items, the first list's first.
        sizes: [Q], how many items each list has, at least 1.

    Yields:
        ``(items, valid)``, [q, size] each: positions of the items of some of the lists, and which are not padding.

    >>> for items, valid in padded_blocks(torch.tensor([4, 3, 2, 1, 0]), torch.tensor([2, 1, 2])):
    ...     print(items.tolist(), valid.tolist())
    [[2]] [[True]]
    [[4, 3], [1, 0]] [[True, True], [True, True]]
    """
    starts = sizes.cumsum(0) - sizes
    size_class = widen(sizes).log2().ceil()
    for one in size_class.unique():
        lists = (size_class == one).nonzero()
        column = torch.arange(int(sizes[lists].max()), device=sizes.device)
        valid = column < sizes[lists]
        yield order[(starts[lists] + column).clamp(max=len(order) - 1)], valid


def cumulative_logsumexp(values: Tensor, lists: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    r"""log of the sum of e^values over the items of the same list whose rank is at most the own one.

    .. math:: c_i = \log \sum_{j : q_j = q_i, r_j \le r_i} e^{x_j}

    Every list is scanned by itself: a scan over all items that subtracts what came before a list would lose every
    digit of a list that lies below the one before it.

    Args:
        values: x, [n].
        lists: q, [n] of 0 ... Q - 1, none missing.
        rank: r, [n] of integers from 0.

    Returns:
        ``(totals, run)``: items with the same list and rank form a run; totals [R] has c once for each run, sorted by
        list, then rank, and run [n] says which run an item is in: c is ``totals[run]``.

    >>> totals, run = cumulative_logsumexp(torch.zeros(3), torch.tensor([0, 0, 0]), torch.tensor([5, 2, 5]))
    >>> totals[run].exp()
    tensor([3., 1., 3.])
    """
    _, run, length = torch.unique(lists * (rank.max() + 1) + rank, return_inverse=True, return_counts=True)
    order = run.argsort(stable=True)
    scans, positions = [], []
    for items, valid in padded_blocks(order, lists.bincount()):
        # Padding stands behind the items, where the scan has already passed.
        scans.append(values[items].masked_fill(~valid, -math.inf).logcumsumexp(1)[valid])
        positions.append(items[valid])
    scan = torch.zeros_like(values).index_copy(0, torch.cat(positions), torch.cat(scans))
    return scan[order[length.cumsum(0) - 1]], run
