"""The messages of a step on several ranks: as formulas, and as they go through torch.distributed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch.distributed as dist
from torch import Tensor

GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
AGREEMENT = 32  # bytes: four numbers in double precision
ROW = 8  # bytes of a row's number
Kind = Literal["all_gather", "all_reduce"]


class Message(NamedTuple):
    """One collective operation, as one rank sees it."""

    kind: Kind
    part: float
    """Bytes that the rank sends to each of the others, on average; of ``all_reduce``, the bytes of the tensor."""

    def sent(self, ranks: int) -> float:
        """Bytes that a rank sends. A ring sends every part of a tensor that is reduced twice round."""
        return (2 * self.part / ranks if self.kind == "all_reduce" else self.part) * (ranks - 1)


@dataclass(frozen=True)
class Sizes:
    """What the traffic of a step depends on; the letters are those of docs/scale.md."""

    dim: int  # d, values a row of the table
    argument: int = ROW  # a, bytes a row of what is gathered: its number, and the columns that others are compared with
    gradient: int = 0  # b, those that are differentiable; 0: nothing is compared with others
    outer: float = 1.0  # e, share of the rows that have a term
    outputs: int = 1  # arguments that are differentiable

    def gathering(self, ranks: int, batch: int) -> list[Message]:
        """Return the messages of gathering the batches: an agreement, the arguments, and their gradients."""
        gathered = [Message("all_gather", AGREEMENT), Message("all_gather", self.argument * batch)]
        each = Message("all_reduce", self.gradient // self.outputs * batch * ranks)
        return [*gathered, *([each] * self.outputs if self.gradient else [])]

    def table(self, ranks: int, batch: int, sharded: bool) -> list[Message]:
        """Return the messages of updating the table, from ranks with batches of ``batch`` rows.

        These are the estimates, how much each f counts and what is remembered; of a sharded table, its rows and whether
        they were visited, which every rank adds its own to. Losses that gather nothing wait for each other at last.
        """
        rows = self.outer * batch
        read = [Message("all_reduce", size * rows * ranks) for size in (4 * self.dim, ROW)] if sharded else []
        waiting = [] if self.gradient else [Message("all_gather", AGREEMENT)]
        return [Message("all_gather", (8 * self.dim + 8) * rows), *read, *waiting]

    def step(self, ranks: int, batch: int, sharded: bool) -> list[Message]:
        """Return the messages of a step; that of the gradients of gathered rows is the last, as in a run."""
        gathering = self.gathering(ranks, batch)
        return [*gathering[:2], *self.table(ranks, batch, sharded), *gathering[2:]]


class Recorded(NamedTuple):
    """A message that has been sent, and how long the call took."""

    message: Message
    seconds: float


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """Within this context, record what goes through torch.distributed."""
    sent: list[Recorded] = []
    gather, reduce = getattr(dist, GATHER), dist.all_reduce

    def timed(kind: Kind, rows: Tensor, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        done = function(*arguments, **options)
        sent.append(Recorded(Message(kind, rows.numel() * rows.element_size()), time.perf_counter() - began))
        return done

    setattr(dist, GATHER, lambda every, rows, **options: timed("all_gather", rows, gather, every, rows, **options))
    dist.all_reduce = lambda rows, **options: timed("all_reduce", rows, reduce, rows, **options)
    try:
        yield sent
    finally:
        setattr(dist, GATHER, gather)
        dist.all_reduce = reduce
