"""Messages between ranks: an agreement before every step, and rows of tensors, packed into bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from fcco._describe import digest
from fcco._eager import eager

_AVAILABLE = dist.is_available()


@dataclass(frozen=True)
class Layout:
    """How a loss runs under a process group.

    ``group`` is a process group, or None for the default one. A deep copy shares it, since it cannot be copied. A loss
    that is ``alone`` takes its steps by itself, even if there is a group.
    """

    gather: bool = True
    group: Any = None
    alone: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Layout:
        return self


@dataclass(frozen=True)
class Group:
    """The ranks that take a step together."""

    handle: Any
    rank: int
    size: int

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        return self

    def span(self, lengths: Sequence[int]) -> slice:
        """Return the slice of this rank's rows among all ranks' rows, in the order of the ranks."""
        start = sum(lengths[: self.rank])
        return slice(start, start + lengths[self.rank])


def current_group(layout: Layout) -> Group | None:
    """Return the ranks to take a step with, or None if there are no others."""
    if not (_AVAILABLE and dist.is_initialized()) or layout.alone:
        return None
    size = dist.get_world_size(layout.group)
    if size < 1:
        raise RuntimeError("this rank is not in the process group that the loss was configured with")
    return Group(layout.group, dist.get_rank(layout.group), size) if size > 1 else None


def device_of(group: Group) -> torch.device:
    """Return the device that the group's messages must be on."""
    return torch.device("cuda" if "nccl" in dist.get_backend(group.handle) else "cpu")


def agree(group: Group, error: Exception | None, numbers: Tensor, settings: Mapping[str, str]) -> list[list[float]]:
    """Tell every rank some numbers of this one; raise on all of them if any has an error, or differs from the others.

    All such messages have one length, so that ranks which are at different messages notice.

    Parameters
    ----------
    group : Group
        The ranks.
    error : Exception | None
        What is wrong with this rank's batch, if anything.
    numbers : Tensor
        [2] of float64.
    settings : Mapping[str, str]
        What must be the same on all ranks, by name.

    Returns
    -------
    list[list[float]]
        The numbers of every rank.
    """
    mark = int(digest("\n".join(f"{name}={text}" for name, text in settings.items()).encode()), 16)
    head = torch.tensor([error is not None, mark], dtype=torch.float64, device=numbers.device)
    line = torch.cat([head, numbers]).unsqueeze(0)
    lines = _gather_evenly(group, line).tolist()
    if error is not None:
        raise error
    for rank, (refused, *_) in enumerate(lines):
        if refused:
            raise RuntimeError(f"rank {rank} has refused its batch, so that no rank takes this step")
    if any(theirs != mark for _, theirs, *_ in lines):
        raise ValueError(_difference(_tell(group, settings, numbers.device)))
    return [line[2:] for line in lines]


def _tell(group: Group, settings: Mapping[str, str], device: torch.device) -> list[dict[str, str]]:
    """Return the settings of every rank."""
    content = torch.tensor(list(json.dumps(dict(settings)).encode()), dtype=torch.uint8, device=device)
    lengths = _gather_evenly(group, torch.tensor([len(content)], device=device)).tolist()
    (every,) = all_gather(group, [content], lengths)
    return [json.loads(bytes(part.tolist())) for part in every.split(lengths)]


def _difference(ranks: Sequence[Mapping[str, str]]) -> str:
    """Describe how the first rank and another one differ: in settings of both, or else in one that is missing."""
    first = ranks[0]
    rank, other = next((rank, other) for rank, other in enumerate(ranks) if other != first)
    names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
    names = [name for name in names if name in first and name in other] or names
    has, differs = (
        ", ".join(f"{name}={texts[name]}" if name in texts else f"no {name}" for name in names)
        for texts in (first, other)
    )
    return f"all ranks must take the same step, and rank 0 has {has}, rank {rank} has {differs}"


def _gather_evenly(group: Group, rows: Tensor) -> Tensor:
    # The newer name of the same function; the older one warns where both are there.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    every = rows.new_empty(group.size * len(rows), *rows.shape[1:])
    gather(every, rows, group=group.handle)
    return every


def all_gather(group: Group, columns: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    """Return the rows of all ranks, in the order of the ranks; ``lengths`` are their numbers of rows."""
    rows, longest = pack(columns), max(lengths)
    if len(rows) < longest:
        rows = torch.cat([rows, rows.new_zeros(longest - len(rows), rows.shape[1])])
    every = _gather_evenly(group, rows)
    if min(lengths) < longest:
        every = torch.cat([every[r * longest : r * longest + length] for r, length in enumerate(lengths)])
    return unpack(every, columns)


def all_to_all(group: Group, columns: Sequence[Tensor], to: Sequence[int], of: Sequence[int]) -> list[Tensor]:
    """Send ``to[r]`` rows to each rank r, and receive ``of[r]`` from it, both in the order of the ranks."""
    rows = pack(columns)
    received = rows.new_empty(sum(of), rows.shape[1])
    dist.all_to_all_single(received, rows, list(of), list(to), group=group.handle)
    return unpack(received, columns)


def pack(columns: Sequence[Tensor]) -> Tensor:
    """Return [rows, bytes]: tensors with the same number of rows, side by side."""
    flat = (column.reshape(len(column), _width(column)) for column in columns)
    # Copied, since an empty column may have any strides.
    return torch.cat([column.clone(memory_format=torch.contiguous_format).view(torch.uint8) for column in flat], 1)


def unpack(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The reverse of :func:`pack`, into columns of the dtypes and shapes of ``like``."""
    widths = [_width(column) * column.element_size() for column in like]
    # Copied, since a part of a row may begin at an address that is not aligned for its dtype.
    parts = (part.clone(memory_format=torch.contiguous_format) for part in rows.split(widths, 1))
    return [part.view(c.dtype).reshape(len(rows), *c.shape[1:]) for part, c in zip(parts, like, strict=True)]


def _width(column: Tensor) -> int:
    return column.shape[1:].numel()


class _Gather(torch.autograd.Function):
    """All ranks' rows. In backward, every rank receives what its own rows contribute to the losses of all."""

    @staticmethod
    def forward(ctx: Any, group: Group, lengths: Sequence[int], *columns: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.lengths = group, lengths
        ctx.differentiable = ctx.needs_input_grad[2:]
        every = all_gather(group, columns, lengths)
        ctx.mark_non_differentiable(*(e for e, wanted in zip(every, ctx.differentiable, strict=True) if not wanted))
        return tuple(every)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        own = ctx.lengths[ctx.group.rank]
        wanted = [g for g, wanted in zip(gradients, ctx.differentiable, strict=True) if wanted]
        parts = all_to_all(ctx.group, wanted, ctx.lengths, [own] * ctx.group.size)
        # sum() adds half precision up in single.
        sums = iter([part.reshape(ctx.group.size, own, *part.shape[1:]).sum(0) for part in parts])
        back = [next(sums) if wanted else None for wanted in ctx.differentiable]
        return None, None, *back


@eager
def gather_batch(
    group: Group, columns: Sequence[Any], settings: Mapping[str, str] | None = None
) -> tuple[list[Tensor], slice]:
    """Return the rows of all ranks, with gradient, and the slice of this rank's rows.

    Raises an error on all ranks if one of them has anything but tensors with the same number of rows, or differs from
    the others in their kinds or in ``settings``.
    """
    error: Exception | None = None
    device, settings = device_of(group), dict(settings or {})
    try:
        if not isinstance(columns[0], Tensor):
            raise TypeError(f"the first argument must be a tensor; got {type(columns[0]).__name__}")
        device = columns[0].device
        columns = [as_rows(column, device) for column in columns]
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"the arguments differ in length: {[len(column) for column in columns]}")
        settings |= {f"argument {place}": _kind(column) for place, column in enumerate(columns)}
    except Exception as caught:
        error, columns = caught, [torch.zeros(0)]
    length = torch.tensor([len(columns[0]), 0], dtype=torch.float64, device=device)
    lengths = [int(line[0]) for line in agree(group, error, length, settings)]
    if not any(lengths):
        raise ValueError("the batch is empty on all ranks")
    if not any(column.requires_grad for column in columns):
        return all_gather(group, columns, lengths), group.span(lengths)
    return list(_Gather.apply(group, lengths, *columns)), group.span(lengths)


def _kind(column: Tensor) -> str:
    shape = ", ".join(["B", *map(str, column.shape[1:])])
    return f"{'differentiable ' if column.requires_grad else ''}{column.dtype} of the shape [{shape}]"


def as_rows(values: Any, device: torch.device) -> Tensor:
    """A tensor, list or array of one dimension at least, as a tensor on ``device``."""
    try:
        rows = torch.as_tensor(values, device=device)
    except Exception as error:
        raise TypeError(f"an argument must be a tensor, or numbers; got {type(values).__name__}") from error
    if rows.dim() == 0:
        raise ValueError(f"an argument has no dimension to gather along: {values!r}")
    return rows
