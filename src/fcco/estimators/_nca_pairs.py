"""Sums over pairs of rows for neighbourhood components analysis: exact, in little memory, on all cores.

Rows are sorted by class, so that the mates of a row are consecutive. A block of anchors is compared with all their
rivals by matrix products. Blocks are shared out to a fixed number of lanes, whose sums are added in a fixed order:
results are the same to the last bit on any number of threads. PyTorch computes within lanes only. Outside of them, its
own threads would wait busily beside the lanes, so that NumPy does what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from fcco.estimators._validation import Array
from fcco.functional._threads import in_order

Part = TypeVar("Part")
Result = TypeVar("Result")

_HEIGHT = 32  # anchors of a block: with 10,000 rivals its weights fit into the cache of a core
_LANES = 8
_CHUNK = 4096  # rows that are multiplied with A at a time
_LOWEST = {
    torch.float32: -60.0,
    torch.float64: -600.0,
}  # e to the power of it is nothing next to 1, but not subnormal
_FEW = 4  # rows of a class in a block, on average, below which mates are found by a mask


class _Side(NamedTuple):
    """Rows on one side of the pairs, sorted by class, and their embedding."""

    x: Array  # [n, d]
    z: Array  # [n, k]
    label: Array  # [n]


class _Products(NamedTuple):
    """What blocks of pairs are made from."""

    left: Tensor  # [m, k + 2]: times ``right``, negative squared distances
    right: Tensor  # [k + 2, n]
    own: Tensor  # [m, k + 1]: z of the anchors, and a column of ones
    others: Tensor  # [n, k + 1]: the same of the rivals
    label: Array  # [n]: of the rivals
    itself: Tensor  # [m]: where each anchor is among the rivals; -1: nowhere
    first: Array  # [m]: where its mates begin among the rivals
    last: Array  # [m]: where they end


class _Sums(NamedTuple):
    """What blocks add to."""

    share: Tensor  # [m]: p_i
    own: Tensor  # [m, k]: the derivative of -p_i in the embedding of i
    columns: Tensor  # [k + 1, n]: W z and W, added up over the anchors of a lane


class Pairs:
    """Rows and their classes, between which pairs are.

    Parameters
    ----------
    x : ndarray of shape (n, d)
    label : ndarray of int, of shape (n,)
    center : ndarray of shape (d,)
        Subtracted from every row, so that distances lose no digits to a common offset.

    Notes
    -----
    ``anchors`` and ``rivals`` of the methods are positions in the order by class, ascending; None: all.
    """

    def __init__(self, x: Array, label: Array, center: Array) -> None:
        order = np.argsort(label, kind="stable")
        self.position = np.empty(len(x), np.int64)  # of each row in the order by class
        self.position[order] = np.arange(len(x))
        self.x, self.label = x[order], label[order]
        self.x -= np.asarray(center, x.dtype)

    def share(self, a: Array, anchors: Array | None = None) -> float:
        """Return the mean p_i of the anchors."""
        own, all_rows = self._sides(a, anchors, None)
        products = _products(own, all_rows, anchors, None)
        share = np.empty(len(own.label), self.x.dtype)
        nothing = torch.empty(0)
        sums = _Sums(torch.from_numpy(share), nothing, nothing)
        _in_lanes(lambda blocks: _add(own, products, blocks, sums, slopes=False), _lanes(own))
        return float(np.mean(share, dtype=np.float64))

    def share_and_gradient(
        self, a: Array, anchors: Array | None = None, rivals: Array | None = None, kind: DTypeLike | None = None
    ) -> tuple[float, Array]:
        """Return the mean p_i of the anchors, and the gradient of its negative in A, of shape (k, d).

        ``kind`` is the type of the sums over pairs; None: that of the rows.
        """
        own, others = self._sides(a, anchors, rivals, kind)
        products = _products(own, others, anchors, rivals)
        (m, k), n = own.z.shape, len(others.label)
        share, slope = np.empty(m, own.z.dtype), np.empty((m, k), own.z.dtype)

        def work(blocks: list[slice]) -> Array:
            columns = np.zeros((k + 1, n), own.z.dtype)
            sums = _Sums(*(torch.from_numpy(part) for part in (share, slope, columns)))
            _add(own, products, blocks, sums, slopes=True)
            return columns

        columns = _total(_in_lanes(work, _lanes(own)))
        of_others = columns[k][:, None] * others.z - columns[:k].T
        gradient = _times(slope, own.x) + _times(of_others, others.x)
        return float(np.mean(share, dtype=np.float64)), gradient * self.x.dtype.type(2.0 / m)

    def _sides(
        self, a: Array, anchors: Array | None, rivals: Array | None, kind: DTypeLike | None = None
    ) -> tuple[_Side, _Side]:
        others = self._side(a, rivals, kind)
        return (others if anchors is None and rivals is None else self._side(a, anchors, kind)), others

    def _side(self, a: Array, chosen: Array | None, kind: DTypeLike | None) -> _Side:
        x, label = (self.x, self.label) if chosen is None else (self.x[chosen], self.label[chosen])
        rows, across, z = torch.from_numpy(x), torch.from_numpy(a.T), np.empty((len(x), len(a)), x.dtype)

        def work(where: slice) -> None:
            torch.mm(rows[where], across, out=torch.from_numpy(z[where]))

        _in_lanes(work, _chunks(len(x)))
        return _Side(x, z.astype(kind or x.dtype, copy=False), label)


def _in_lanes(work: Callable[[Part], Result], parts: list[Part]) -> list[Result]:
    return list(in_order(work, parts, torch.empty(0)))


def _chunks(n: int) -> list[slice]:
    return [slice(begin, min(begin + _CHUNK, n)) for begin in range(0, n, _CHUNK)]


def _times(left: Array, right: Array) -> Array:
    """Return leftᵀ right."""
    first, second = torch.from_numpy(left.astype(right.dtype, copy=False)), torch.from_numpy(right)
    return _total(_in_lanes(lambda rows: (first[rows].T @ second[rows]).numpy(), _chunks(len(left))))


def _total(parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def _lanes(own: _Side) -> list[list[slice]]:
    """Return the blocks of each lane."""
    m = len(own.label)
    blocks = [slice(begin, min(begin + _HEIGHT, m)) for begin in range(0, m, _HEIGHT)]
    count = min(_LANES, len(blocks))
    return [blocks[begin:end] for begin, end in pairwise(len(blocks) * lane // count for lane in range(count + 1))]


def _products(own: _Side, others: _Side, anchors: Array | None, rivals: Array | None) -> _Products:
    def norms(z: Array) -> tuple[Array, Array]:
        return np.einsum("ij,ij->i", z, z)[:, None], np.ones((len(z), 1), z.dtype)

    (own_norm, own_one), (norm, one) = norms(own.z), norms(others.z)
    itself = np.arange(len(own.label)) if anchors is None else anchors
    if rivals is not None:
        place = np.minimum(np.searchsorted(rivals, itself), len(rivals) - 1)
        itself = np.where(rivals[place] == itself, place, -1)
    return _Products(
        left=torch.from_numpy(np.hstack([2 * own.z, -own_norm, -own_one])),
        right=torch.from_numpy(np.ascontiguousarray(np.hstack([others.z, one, norm]).T)),
        own=torch.from_numpy(np.hstack([own.z, own_one])),
        others=torch.from_numpy(np.hstack([others.z, one])),
        label=others.label,
        itself=torch.from_numpy(itself),
        first=np.searchsorted(others.label, own.label, "left"),
        last=np.searchsorted(others.label, own.label, "right"),
    )


def _weights(products: _Products, block: slice, room: Tensor) -> Tensor:
    """Return e^(nearest - distance) from a block of anchors to all rivals, 0 to themselves."""
    weights = torch.mm(products.left[block], products.right, out=room[: block.stop - block.start])
    place = products.itself[block]
    known = (place >= 0).nonzero()[:, 0]
    itself = known, place[known]
    weights[itself] = -torch.inf
    weights.sub_(weights.amax(1, keepdim=True)).clamp_(min=_LOWEST[weights.dtype]).exp_()
    # Not merely small: where no row has a mate, the gradient is to be 0.
    weights[itself] = 0.0
    return weights


def _add(own: _Side, products: _Products, blocks: list[slice], sums: _Sums, *, slopes: bool) -> None:
    """Set the shares of the anchors of some blocks, and with ``slopes`` the derivatives."""
    room = products.right.new_empty(_HEIGHT, len(products.label))
    for block in blocks:
        weights = _weights(products, block, room)
        mates = _take_mates(own.label, products, block, weights)
        near_others = weights @ products.others
        near_mates = torch.cat([them @ products.others[where] for _, where, them in mates])
        of_mates, of_others = near_mates[:, -1:], near_others[:, -1:]
        everyone = of_mates + of_others
        sums.share[block] = (of_mates / everyone)[:, 0]
        if not slopes:
            continue
        # The derivative W of -p in the distances is the weight times one of these; its sum over all rivals is 0.
        to_mates, to_others = of_others / everyone**2, -of_mates / everyone**2
        sums.own[block] = -(to_mates * near_mates + to_others * near_others)[:, :-1]
        sums.columns.addmm_((to_others * products.own[block]).T, weights)
        for part, where, them in mates:
            sums.columns[:, where].addmm_((to_mates * products.own[block])[part].T, them)


def _take_mates(label: Array, products: _Products, block: slice, weights: Tensor) -> list[tuple[slice, slice, Tensor]]:
    """Move the weights of mates out of ``weights``, where 0 is left.

    Returns parts of the block, one for each class or one for all, with where their mates are among the rivals.
    """
    label = label[block]
    changes = np.flatnonzero(np.diff(label)) + 1
    if len(label) < _FEW * (len(changes) + 1):
        changes = changes[:0]
    taken = []
    for begin, end in pairwise([0, *changes.tolist(), len(label)]):
        where = slice(int(products.first[block.start + begin]), int(products.last[block.start + end - 1]))
        here = weights[begin:end, where]
        if label[begin] == label[end - 1]:
            mates = here.clone()
            here.zero_()
        else:
            same = torch.from_numpy(label[begin:end, None] == products.label[where])
            mates = here * same
            here.mul_(~same)
        taken.append((slice(begin, end), where, mates))
    return taken
