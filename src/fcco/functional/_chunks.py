"""Comparison of all pairs, a few rows at a time: O(chunk · n) memory, both forward and backward."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fcco.functional._threads import in_order

Place = tuple[Any, ...]

# The size of one matrix of pairs. Forward and backward hold about ten of them at a time. On a CPU it fits the cache,
# which is 3 times faster than chunks of 32 MiB. On other devices it is large enough to keep the device busy. A million
# columns stay well below 1 GB on both.
_CPU_BYTES = 2**22
_DEVICE_BYTES = 2**26


def chunk_rows(width: int, like: Tensor, chunk: int | None) -> int:
    """Return how many rows of ``width`` pairs to hold at a time: ``chunk``, or what fits in the default memory."""
    fits = _CPU_BYTES if like.device.type == "cpu" else _DEVICE_BYTES
    return chunk or max(1, fits // (max(1, width) * like.element_size()))


@dataclass(frozen=True)
class Places:
    """The position of each chunk in each tensor.

    Positions are created on demand, because a million of them would take 200 MB.
    """

    count: int
    at: Callable[[int], Place]

    def __iter__(self) -> Iterator[Place]:
        return map(self.at, range(self.count))


def row_places(rows: int, width: int, like: Tensor, chunk: int | None, layout: Callable[[slice], Place]) -> Places:
    """Cut 0 ... rows - 1 into consecutive slices; ``layout`` maps a slice to the part of each tensor that goes with it.

    Examples
    --------
    >>> list(row_places(3, 100, torch.zeros(1), chunk=2, layout=lambda rows: (rows, ...)))
    [(slice(0, 2, None), Ellipsis), (slice(2, 3, None), Ellipsis)]
    """
    step = chunk_rows(width, like, chunk)
    return Places(-(-rows // step), lambda k: layout(slice(k * step, min((k + 1) * step, rows))))


def map_rows(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Apply ``function``, which maps rows (m, d) to rows (m, k), to all rows of a tensor.

    Only the result stays in memory.
    """
    n, d = tensor.shape
    values = function(tensor[:1].detach()).numel()
    places = row_places(n, d, tensor, None, lambda rows: (rows,))
    return map_chunks(lambda _, rows: function(rows), places, n * values, tensor).view(n, values)


def map_chunks(function: Callable[..., Tensor], places: Places, size: int, *tensors: Tensor) -> Tensor:
    """Apply a function to all parts of the tensors, a few at a time on all cores, and concatenate the results.

    The backward pass recomputes each chunk, so that nothing of a chunk stays in memory. (A checkpoint for every chunk
    would leave small objects between the large ones, and the heap would grow by a chunk each time.)

    Parameters
    ----------
    function : callable
        Called as ``function(place, *parts)``; returns some of the values in any shape. The backward pass calls it
        again. Everything that it differentiates must be among the parts.
    places : Places
        The part of each tensor for each chunk, as an index: a slice, a tuple of slices, or ``...`` for the whole
        tensor.
    size : int
        The total number of values.
    *tensors : Tensor
        The inputs, which share one dtype. A tensor that is passed twice has one gradient in memory, not two.

    Returns
    -------
    Tensor of shape (size,)
        The values of all chunks.
    """
    if places.count == 1:
        place = places.at(0)
        return _call(function, place, [tensor[index] for tensor, index in zip(tensors, place, strict=True)])
    distinct = list({id(tensor): tensor for tensor in tensors}.values())
    which = [next(k for k, other in enumerate(distinct) if other is tensor) for tensor in tensors]
    return _Chunks.apply(function, places, size, which, array("q"), *distinct)


def _parts(tensors: Sequence[Tensor], which: Iterable[int], place: Place) -> list[Tensor]:
    """Return the parts of the tensors at one place."""
    return [tensors[k][index] for k, index in zip(which, place, strict=True)]


def _call(function: Callable[..., Tensor], place: Place, parts: Sequence[Tensor]) -> Tensor:
    # The backward pass runs outside of autocast and has to recompute the same numbers.
    """Call the function without autocast and flatten the result."""
    with torch.autocast(parts[0].device.type, enabled=False):
        return function(place, *parts).reshape(-1)


class _Chunks(torch.autograd.Function):
    @staticmethod
    def forward(
        function: Callable[..., Tensor],
        places: Places,
        size: int,
        which: Sequence[int],
        ends: array[int],
        *tensors: Tensor,
    ) -> Tensor:
        """Return all values; ``ends`` is filled with where those of each chunk end."""

        def values_at(place: Place) -> Tensor:
            return _call(function, place, _parts(tensors, which, place))

        values = tensors[0].new_empty(size)
        done = 0
        for part in in_order(values_at, places, tensors[0]):
            values[done : done + len(part)] = part
            done += len(part)
            ends.append(done)
        return values

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.function, ctx.places, _, ctx.which, ctx.ends, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[5:]
        totals = [torch.zeros_like(tensor) if need else None for tensor, need in zip(tensors, needed, strict=True)]
        # With create_graph=True the parts stay connected to the tensors, which takes O(n²) memory.
        again = torch.is_grad_enabled()

        def terms_at(k: int) -> tuple[Place, Sequence[Tensor | None]]:
            place, upstream = ctx.places.at(k), grad[ctx.ends[k - 1] if k else 0 : ctx.ends[k]]
            with torch.enable_grad():
                parts = _parts(tensors, ctx.which, place)
                if not again:
                    parts = [part.detach().requires_grad_(needed[i]) for part, i in zip(parts, ctx.which, strict=True)]
                values = _call(ctx.function, place, parts)
            wanted = [part if needed[i] else None for part, i in zip(parts, ctx.which, strict=True)]
            return place, _gradients(values, wanted, upstream, again)

        numbers = range(len(ctx.ends))
        for place, terms in map(terms_at, numbers) if again else in_order(terms_at, numbers, grad):
            for i, index, term in zip(ctx.which, place, terms, strict=True):
                total = totals[i]
                if total is not None and term is not None:
                    total[index] += term
        return None, None, None, None, None, *totals


def _gradients(values: Tensor, wanted: list[Tensor | None], upstream: Tensor, again: bool) -> list[Tensor | None]:
    """Return the gradient of one chunk in its parts; None where it is not wanted, or where the values do not depend."""
    parts = [part for part in wanted if part is not None]
    if not values.requires_grad:
        return [None] * len(wanted)
    found = iter(torch.autograd.grad(values, parts, upstream, create_graph=again, allow_unused=True))
    return [None if part is None else next(found) for part in wanted]
