"""How the processes of a run take a step together: three messages, gather, exchange and sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from fcco.core.step import Ranks
from fcco.placement._messages import Group, agree, all_gather, device_of


class GroupRanks(Ranks):
    """The processes of a group, of which each has a part of the batch."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.examples: list[int] = []
        """How many examples each process has."""
        self.anchors: list[int] = []
        """How many of them are anchors."""

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

    def exchange(self, *parts: Tensor) -> tuple[tuple[Tensor, ...], slice]:
        """Return the parts of all processes' anchors, joined, and where this process's are."""
        return tuple(all_gather(self.group, parts, self.anchors)), self.group.span(self.anchors)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        values = values.contiguous()
        dist.all_reduce(values, group=self.group.handle)
        return values
