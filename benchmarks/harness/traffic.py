"""The messages of a step on several ranks: as formulas, and as they go through torch.distributed."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
    """Bytes that the rank sends to each of the others; of ``all_reduce``, the bytes of the tensor."""

    def sent(self, ranks: int) -> float:
        """Bytes that a rank sends. A ring sends every part of a tensor that is reduced twice round."""
        return (2 * self.part / ranks if self.kind == "all_reduce" else self.part) * (ranks - 1)


@dataclass(frozen=True)
class Sizes:
    """What the traffic of a step depends on; the letters are those of docs/scale.md."""

    dim: int  # d, values a row of the table
    argument: int = ROW  # a, bytes a row of what is gathered: its number, and the arguments if examples are compared
    gradients: tuple[int, ...] = ()  # b, of each gathered argument that is differentiable
    outer: float = 1.0  # share of the rows that have a term

    def gathering(self, ranks: int, batch: int) -> list[Message]:
        """Return the messages of gathering batches of ``batch`` rows, of which the last ones return the gradients."""
        gradients = [Message("all_reduce", part * ranks * batch) for part in self.gradients]
        return [Message("all_gather", AGREEMENT), Message("all_gather", self.argument * batch), *gradients]

    def table(self, ranks: int, batch: int, sharded: bool) -> list[Message]:
        """Return the messages of updating the table: the estimates, and what the ranks hold of their rows."""
        rows = self.outer * batch
        estimates = Message("all_gather", (4 * self.dim + 8) * rows)
        held = [Message("all_reduce", part * ranks * rows) for part in (4 * self.dim, ROW)] if sharded else []
        waiting = [] if self.gradients else [Message("all_gather", AGREEMENT)]  # for what other ranks do not see
        return [estimates, *held, *waiting]

    def step(self, ranks: int, batch: int, sharded: bool) -> list[Message]:
        """Return the messages of a step, in the order of a run."""
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

    def note(kind: Kind, part: float, began: float) -> None:
        sent.append(Recorded(Message(kind, part), time.perf_counter() - began))

    def recorded_gather(every: Tensor, rows: Tensor, **options: Any) -> Any:
        began = time.perf_counter()
        done = gather(every, rows, **options)
        note("all_gather", rows.numel() * rows.element_size(), began)
        return done

    def recorded_reduce(rows: Tensor, **options: Any) -> Any:
        began = time.perf_counter()
        done = reduce(rows, **options)
        note("all_reduce", rows.numel() * rows.element_size(), began)
        return done

    setattr(dist, GATHER, recorded_gather)
    dist.all_reduce = recorded_reduce  # type: ignore[assignment]
    try:
        yield sent
    finally:
        setattr(dist, GATHER, gather)
        dist.all_reduce = reduce
