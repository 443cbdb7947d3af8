"""Items in lists (one list per query, or one list of all items): cumulative sums and padded layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fcco.functional._tensors import widen


def padded_blocks(order: Tensor, sizes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Arrange lists as rows of matrices.

    Lists of similar size share a matrix, so that padding at most doubles the number of items.

    Parameters
    ----------
    order : Tensor of shape (n,)
        The positions of the items, list after list.
    sizes : Tensor of shape (Q,)
        The number of items in each list, at least 1.

    Yields
    ------
    items : Tensor of shape (q, size)
        The positions of the items of some of the lists.
    valid : Tensor of bool of shape (q, size)
        False for padding.

    Examples
    --------
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
    r"""For every item, log-sum-exp over the items of the same list whose rank is at most its own.

    .. math:: c_i = \log \sum_{j : q_j = q_i, r_j \le r_i} e^{x_j}

    Parameters
    ----------
    values : Tensor of shape (n,)
        The values x.
    lists : Tensor of shape (n,)
        The list q of each item, numbered 0 ... Q - 1 without gaps.
    rank : Tensor of shape (n,)
        The rank r of each item, an integer of at least 0.

    Returns
    -------
    totals : Tensor of shape (R,)
        The value of c for each run, sorted by list and then by rank. A run is the set of items with the same list and
        rank.
    run : Tensor of shape (n,)
        The run of each item, so that c is ``totals[run]``.

    Notes
    -----
    Every list is scanned separately. A single scan over all items would have to subtract everything that comes before a
    list, and would lose all digits of a list whose values lie far below those of the previous one.

    Examples
    --------
    >>> totals, run = cumulative_logsumexp(torch.zeros(3), torch.tensor([0, 0, 0]), torch.tensor([5, 2, 5]))
    >>> totals[run].exp()
    tensor([3., 1., 3.])
    """
    _, run, length = torch.unique(lists * (rank.max() + 1) + rank, return_inverse=True, return_counts=True)
    order = run.argsort(stable=True)
    scans, positions = [], []
    for items, valid in padded_blocks(order, lists.bincount()):
        # Padding comes after the items, so it does not enter their sums.
        scans.append(values[items].masked_fill(~valid, -math.inf).logcumsumexp(1)[valid])
        positions.append(items[valid])
    scan = torch.zeros_like(values).index_copy(0, torch.cat(positions), torch.cat(scans))
    return scan[order[length.cumsum(0) - 1]], run
