"""The array vocabulary: what torch and NumPy spell differently.

Everything else is written with operators, methods and the functions that both have under one name, such as
``xp.where`` for ``xp = namespace(x)``. Masks are bool: no ``-``, ``argmax`` or ``@`` on them, but ``&``, ``|``, ``~``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fcco._checks import reads_are_free

Array = Any  # a torch.Tensor or a numpy.ndarray; all arrays of a call are of one kind


def namespace(x: Array) -> Any:
    """Return the library that an array belongs to."""
    return torch if isinstance(x, torch.Tensor) else np


def can_read(x: Array) -> bool:
    """Return whether it costs nothing to look at values: on the CPU, and neither in a graph nor in a transform."""
    return not isinstance(x, torch.Tensor) or reads_are_free(x)


def cast(values: Array, like: Array) -> Array:
    """Return values in the dtype of other ones."""
    return values.to(like.dtype) if isinstance(values, torch.Tensor) else values.astype(like.dtype, copy=False)


def moved(values: Array, like: Array) -> Array:
    """Return values in the library and the place of other ones, floating ones in their dtype."""
    if isinstance(like, torch.Tensor):
        values = torch.as_tensor(values, device=like.device)
        return values.to(like.dtype) if values.is_floating_point() else values
    values = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    return values.astype(like.dtype) if values.dtype.kind == "f" else values


def numbered(count: int, like: Array) -> Array:
    """Return the numbers 0 ... count - 1, where another array is."""
    return torch.arange(count, device=like.device) if isinstance(like, torch.Tensor) else np.arange(count)


def wide(values: Array) -> Array:
    """Return values in double precision."""
    return values.double() if isinstance(values, torch.Tensor) else values.astype(np.float64, copy=False)


def taken(values: Array, places: Array, axis: int = 0) -> Array:
    """Return the values at some places of an axis, for which brackets take NumPy three times as long."""
    return values.index_select(axis, places) if isinstance(values, torch.Tensor) else values.take(places, axis)


def placed(values: Array, places: Array, size: int) -> Array:
    """Return so many zeros, with values at some places, all different."""
    if isinstance(values, torch.Tensor):
        return values.new_zeros(size, *values.shape[1:]).index_copy(0, places, values)
    result = np.zeros((size, *values.shape[1:]), values.dtype)
    result[places] = values
    return result


def scattered(values: Array, places: Array) -> Array:
    """Return [S, R] with values of the same shape at places, each of which is there once."""
    result = namespace(values).empty_like(values)
    if isinstance(values, torch.Tensor):
        result[:, places] = values
        return result
    for row, given in zip(result, values, strict=True):  # which takes NumPy a third of the time
        row[places] = given
    return result


def filled(like: Array, number: float) -> Array:
    """Return an array of one number, in the shape and the dtype of another one."""
    if isinstance(like, torch.Tensor):
        return torch.full_like(like, number)
    result = np.empty(like.shape, like.dtype)  # np.full_like takes several times as long
    result.fill(number)
    return result


def at_least(values: Array, number: float) -> Array:
    """Return values, or a number where they are below it; ``clip`` takes NumPy twice as long."""
    if isinstance(values, torch.Tensor):
        return values.clamp_min(number)
    return np.maximum(values, values.dtype.type(number))  # a number of Python's takes twice as long


def at_most(values: Array, number: float) -> Array:
    """Return values, or a number where they are above it."""
    if isinstance(values, torch.Tensor):
        return values.clamp_max(number)
    return np.minimum(values, values.dtype.type(number))


def where_true(mask: Array, values: Array) -> Array:
    """Return values, and 0 where a mask is not True; mostly it is."""
    if isinstance(values, torch.Tensor):
        return torch.where(mask, values, 0.0)
    return values if np.count_nonzero(mask) == mask.size else np.where(mask, values, 0.0)


def is_true(labels: Array) -> Array:
    """Return which labels are 1 or True."""
    return labels if labels.dtype == (torch.bool if isinstance(labels, torch.Tensor) else bool) else labels == 1


def as_numbers(mask: Array) -> Array:
    """Return a mask as integers 0 and 1."""
    return mask.long() if isinstance(mask, torch.Tensor) else mask.astype(np.int64)


def searched(ordered: Array, values: Array, side: str = "left") -> Array:
    """Return where values belong in others that are in ascending order."""
    if isinstance(ordered, torch.Tensor):
        return torch.searchsorted(ordered, values, side=side)
    return ordered.searchsorted(values, side)


def located(ordered: Array, values: Array) -> Array:
    """Return the same of values in any order; NumPy finds many in a third of the time if they are in order."""
    if isinstance(values, torch.Tensor) or len(values) < 64:
        return searched(ordered, values)
    order, result = values.argsort(), np.empty(len(values), np.int64)
    result[order] = ordered.searchsorted(values.take(order))
    return result


def running(values: Array) -> Array:
    """Return the sums of the first 0, 1, ... values of the last axis, one more than there are values."""
    if isinstance(values, torch.Tensor):
        return torch.nn.functional.pad(values.cumsum(-1), (1, 0))
    result = np.zeros((*values.shape[:-1], values.shape[-1] + 1), values.dtype)
    np.add.accumulate(values, -1, out=result[..., 1:])
    return result


def extremes(values: Array) -> tuple[Array, Array]:
    """Return the smallest and the largest value."""
    if isinstance(values, torch.Tensor):
        return values.aminmax()
    return np.minimum.reduce(values, None), np.maximum.reduce(values, None)


def counted(numbers: Array, size: int, weight: Array) -> Array:
    """Return the total weight, of the last axis, of each of the numbers 0 ... size - 1."""
    if isinstance(numbers, torch.Tensor):
        return weight.new_zeros((*weight.shape[:-1], size)).index_add(-1, numbers, weight)
    if weight.ndim > 1:
        cells = numbers if len(weight) == 1 else numbers + size * np.arange(len(weight))[:, None]
        return counted(cells.reshape(-1), size * len(weight), weight.reshape(-1)).reshape(len(weight), size)
    return np.bincount(numbers, weight, size).astype(weight.dtype, copy=False)


def peaks(numbers: Array, size: int, values: Array) -> Array:
    """Return the largest of the values, [m] or [m, dim], of each of the numbers 0 ... size - 1, or -inf."""
    if isinstance(numbers, torch.Tensor):
        result = values.new_full((size, *values.shape[1:]), -torch.inf)
        return result.scatter_reduce(0, column(numbers, values).expand_as(values), values, "amax")
    result = np.full((size, *values.shape[1:]), -np.inf, values.dtype)
    np.maximum.at(result, numbers, values)
    return result


def is_last(rows: Array) -> Array:
    """Return which appearance of each value is its last."""
    order = order_of(rows)
    ordered = taken(rows, order)
    mask = ordered == ordered  # all True
    mask[order[:-1]] = ordered[1:] != ordered[:-1]
    return mask


def slots_of(rows: Array) -> Array:
    """Number the distinct values 0, 1, ..., by sorting, so that no shape depends on the data."""
    order = order_of(rows)
    ordered = taken(rows, order)
    is_new = (ordered[1:] != ordered[:-1]).cumsum(0)
    if isinstance(rows, torch.Tensor):
        return torch.zeros_like(order).scatter(0, order[1:], is_new)
    slots = np.zeros_like(order)
    slots[order[1:]] = is_new
    return slots


def stacked(parts: list[Array]) -> Array:
    """Return arrays of one shape as one array, for which ``stack`` takes NumPy several times as long."""
    if len(parts) == 1:
        return parts[0][None]
    return torch.stack(parts) if isinstance(parts[0], torch.Tensor) else np.array(parts)


def is_positive(values: Array) -> bool:
    """Return whether numbers of at least 0 are known to be all above it, without waiting for a device."""
    if isinstance(values, torch.Tensor):
        return can_read(values) and bool(values.all())
    return np.count_nonzero(values) == values.size


def row_sums(x: Array) -> Array:
    """Return the sums of the rows of a matrix; a product takes less time than a sum over short rows."""
    return x @ namespace(x).ones_like(x[0]) if len(x) else x.sum(1)


def row_peaks(x: Array) -> Array:
    """Return the largest value of each row of a matrix, of which short ones take NumPy longer than a copy."""
    if isinstance(x, torch.Tensor):
        return x.amax(1)
    return np.maximum.reduce(x, 1) if x.shape[1] > 64 else np.maximum.reduce(x.T.copy(), 0)


def flipped(values: Array, axis: int = -1) -> Array:
    """Return values with the first or the last axis from its end; a view takes NumPy no time."""
    if isinstance(values, torch.Tensor):
        return values.flip(axis)
    return values[::-1] if axis == 0 else values[..., ::-1]


def ascending(values: Array) -> Array:
    """Return values in order, which takes NumPy a fraction of ``argsort``."""
    return values.sort()[0] if isinstance(values, torch.Tensor) else np.sort(values)


def order_of(values: Array, *, stable: bool = True) -> Array:
    """Return the places of values in ascending order; equal ones stay in theirs, which takes longer."""
    if isinstance(values, torch.Tensor):
        return values.argsort(stable=stable)
    return values.argsort(kind="stable" if stable else None)


def repeated(values: Array, counts: Array) -> Array:
    """Return each of the values as often as its count says."""
    return values.repeat_interleave(counts) if isinstance(values, torch.Tensor) else np.repeat(values, counts)


def contains(ordered: Array, values: Array) -> Array:
    """Return which integers are among others in ascending order."""
    if isinstance(values, torch.Tensor):
        return taken(ordered, searched(ordered[:-1], values)) == values  # at most the last place
    last_bits = 2 ** (len(ordered).bit_length() + 5) - 1  # most values differ in them, and need no search
    result, is_met = np.zeros(len(values), bool), np.zeros(last_bits + 1, bool)
    is_met[ordered & last_bits] = True
    places = is_met.take(values & last_bits).nonzero()[0]
    some = values.take(places)
    result[places] = ordered.take(ordered[:-1].searchsorted(some)) == some
    return result


class Views:
    """NumPy's views of the buffers of a module, which are made again where a buffer has moved."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.arrays: dict[str, Any] = {}

    def of(self, buffers: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Return a view of each buffer."""
        places = [buffer.data_ptr() for buffer in buffers.values()]  # nothing else is there while there are views
        if places != self.places:
            self.places, self.arrays = places, {name: buffer.numpy() for name, buffer in buffers.items()}
        return self.arrays

    def __reduce__(self) -> tuple[Any, ...]:  # a copy of a module has buffers of its own
        return Views, ()


def places_of(mask: Array) -> Array:
    """Return where a vector is True."""
    return mask.nonzero()[:, 0] if isinstance(mask, torch.Tensor) else mask.nonzero()[0]


def ones(like: Array) -> Array:
    """Return a 1 for each row of floating values."""
    if isinstance(like, torch.Tensor):
        return like.new_ones(len(like))
    result = np.empty(len(like), like.dtype)  # np.ones takes several times as long
    result.fill(1)
    return result


def column(values: Array, like: Array) -> Array:
    """Return one value a row, in a shape that broadcasts against [m] or [m, dim]."""
    return values.reshape(-1, 1) if like.ndim == 2 else values
