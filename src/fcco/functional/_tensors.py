"""Small operations that several objectives share."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def widen(tensor: Tensor) -> Tensor:
    """In float64, where sums over a million float32 values keep digits; float32 on devices that have no more."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def narrower(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """The type of fewer digits; of a whole and a floating one the latter, and int64 of two whole ones."""
    if not (first.is_floating_point or second.is_floating_point):
        return torch.int64
    if not (first.is_floating_point and second.is_floating_point):
        return first if first.is_floating_point else second
    return first if torch.finfo(first).bits <= torch.finfo(second).bits else second


def graph_zero(*tensors: Tensor) -> Tensor:
    """0, differentiable in ``tensors`` and of the first one's dtype: the value of an objective without terms."""
    first, *others = [(tensor * 0).sum() for tensor in tensors]
    return sum(others, first)


def mean(values: Tensor) -> Tensor:
    """The mean; each is divided before they are added, since their sum may overflow where their mean does not."""
    return (values / values.numel()).sum()


def segment_logsumexp(values: Tensor, segment: Tensor, count: int) -> Tensor:
    r"""[count]: log of the sum of e^values over each segment; segments are numbered 0 ... count - 1, none is empty.

    .. math:: \log \sum_{i : s_i = k} e^{x_i}

    >>> segment_logsumexp(torch.tensor([1e4, 1e4, -1e4]), torch.tensor([0, 0, 1]), 2)
    tensor([ 10000.6934, -10000.0000])
    """
    peak = values.new_full((count,), -math.inf).scatter_reduce(0, segment, values.detach(), "amax")
    return peak + values.new_zeros(count).index_add(0, segment, (values - peak[segment]).exp()).log()
