"""How the processes of a run take a step together: three messages, gather, exchange and sum."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from fcco.core.step import Ranks
from fcco.placement._messages import Group, agree, all_gather, device_of

_EQUAL_BATCHES = 3  # of all ranks, in as many steps, before a warning


class GroupRanks(Ranks):
    """The processes of a group, of which each has a part of the batch."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.examples: list[int] = []
        """How many examples each process has."""
        self.anchors: list[int] = []
        """How many of them are anchors."""
        self.is_careful = False
        """Whether one process may fail by itself from here on, so that all agree before each message that follows."""

    def agree(self, error: Exception | None = None) -> None:
        """Raise in all processes if one of them has an error, where that is possible."""
        if self.is_careful:
            self.is_careful = False
            agree(self.group, error, torch.zeros(2, dtype=torch.float64, device=device_of(self.group)), {})
            self.is_careful = True

    def gather(
        self, columns: Sequence[Tensor], settings: Mapping[str, str], error: Exception | None
    ) -> tuple[list[Tensor], slice]:
        """Return the examples of all processes in order, and which are this one's; an error is one of all processes."""
        device = device_of(self.group) if error else columns[0].device
        kinds = {f"argument {k}": f"{c.dtype} of the shape {['B', *c.shape[1:]]}" for k, c in enumerate(columns)}
        length = torch.tensor([len(columns[0]) if columns else 0, 0], dtype=torch.float64, device=device)
        self.examples = [int(line[0]) for line in agree(self.group, error, length, {**settings, **kinds})]
        if not any(self.examples):
            raise ValueError("the batch is empty on all ranks")
        return all_gather(self.group, columns, self.examples), self.group.span(self.examples)

    def know_anchors(self, every: Tensor | None) -> None:
        """Keep how many anchors each process has, given where those of all are; None: all examples are."""
        self.anchors = self.examples
        if every is not None:
            ends = torch.tensor(self.examples).cumsum(0).to(every.device)
            self.anchors = torch.searchsorted(every, ends).diff(prepend=ends[:1] * 0).tolist()

    def exchange(self, *parts: Tensor) -> tuple[tuple[Tensor, ...], slice]:
        """Return the parts of all processes' anchors, joined, and where this process's are."""
        self.agree()
        return tuple(all_gather(self.group, parts, self.anchors)), self.group.span(self.anchors)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        self.agree()
        values = values.contiguous()
        dist.all_reduce(values, group=self.group.handle)
        return values


def warn_of_equal(columns: Sequence[Tensor], ranks: int, so_far: int | None) -> int | None:
    """Warn once if every rank has the same rows from the first step on. A few equal batches may be chance.

    Returns in how many steps they had; None: there is nothing left to find out.
    """
    if so_far is None or not columns:
        return so_far
    parts = [column.unflatten(0, (ranks, -1)) for column in columns if len(column) % ranks == 0]
    if not parts or not all(torch.equal(part, part[:1].expand_as(part)) for part in parts):
        return None
    if so_far + 1 < _EQUAL_BATCHES:
        return so_far + 1
    warnings.warn(
        f"all {ranks} ranks had the same rows in each of the first {_EQUAL_BATCHES} steps, and train as "
        "one rank would: give each rank rows of its own. Samplers of fcco.data do so if num_replicas and rank "
        "are left out, other loaders need a DistributedSampler, and Accelerate needs to prepare the loader",
        stacklevel=3,
    )
    return None
