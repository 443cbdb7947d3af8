"""Small tensor operations that several objectives share."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def widen(tensor: Tensor) -> Tensor:
    """Convert to float64, so that sums over a million float32 values stay accurate.

    Devices without float64 use float32.
    """
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32; leave wider dtypes unchanged."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def narrower(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """Return the dtype with fewer digits: the floating one if only one is floating, and int64 if neither is."""
    if not (first.is_floating_point or second.is_floating_point):
        return torch.int64
    if not (first.is_floating_point and second.is_floating_point):
        return first if first.is_floating_point else second
    return first if torch.finfo(first).bits <= torch.finfo(second).bits else second


def graph_zero(*tensors: Tensor) -> Tensor:
    """Return a differentiable 0 with the dtype of the first tensor: the value of an objective without terms."""
    first, *others = [(tensor * 0).sum() for tensor in tensors]
    return sum(others, first)


def mean(values: Tensor) -> Tensor:
    """Return the mean, dividing before adding, since the sum may overflow even if the mean does not."""
    return (values / values.numel()).sum()


def segment_logsumexp(values: Tensor, segment: Tensor, count: int) -> Tensor:
    r"""Log-sum-exp over each of several segments.

    .. math:: \log \sum_{i : s_i = k} e^{x_i}

    Segments are numbered 0 ... count - 1, and none is empty. The result has shape (count,).

    Examples
    --------
    >>> segment_logsumexp(torch.tensor([1e4, 1e4, -1e4]), torch.tensor([0, 0, 1]), 2)
    tensor([ 10000.6934, -10000.0000])
    """
    peak = values.new_full((count,), -math.inf).scatter_reduce(0, segment, values.detach(), "amax")
    return peak + values.new_zeros(count).index_add(0, segment, (values - peak[segment]).exp()).log()
