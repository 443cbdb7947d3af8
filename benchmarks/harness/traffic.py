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
Kind = Literal["all_gather", "all_to_all", "all_reduce"]


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
    returned: int  # r, of what the rule makes: 1, or 2 where f is differentiated elsewhere (SOX)
    argument: int = 0  # a, bytes a row of the gathered arguments; 0: nothing is gathered
    gradient: int = 0  # b, those that are differentiable
    outer: float = 1.0  # share of the rows that have a term
    own_outer: bool = False  # whether f is the caller's, which ranks wait for before they write

    def gathering(self, batch: int) -> list[Message]:
        """Return the messages of gathering the batches: an agreement, the arguments, and backward their gradients."""
        if not self.argument:
            return []
        arguments, gradients = self.argument * batch, self.gradient * batch
        return [
            Message("all_gather", AGREEMENT),
            Message("all_gather", arguments),
            Message("all_to_all", gradients),
        ]

    def table(self, ranks: int, batch: int, sharded: bool) -> list[Message]:
        """Return the messages of updating the table, from ranks with batches of ``batch`` rows."""
        waiting = [Message("all_gather", AGREEMENT)] if self.own_outer else []
        if not sharded:
            rows = Message("all_gather", (ROW + 1 + 4 * self.dim) * batch)
            return [Message("all_gather", AGREEMENT), rows, *waiting]
        rows_a_rank = self.outer * batch / ranks
        there = Message("all_to_all", (ROW + 4 * self.dim) * rows_a_rank)
        back = Message("all_to_all", 4 * self.dim * self.returned * rows_a_rank)
        return [Message("all_to_all", AGREEMENT + 8), there, back, *waiting]

    def step(self, ranks: int, batch: int, sharded: bool) -> list[Message]:
        """Return the messages of a step; that of the gradients of gathered rows is the last, as in a run."""
        gathering = self.gathering(batch)
        return [*gathering[:2], *self.table(ranks, batch, sharded), *gathering[2:]]


class Recorded(NamedTuple):
    """A message that has been sent, and how long the call took."""

    message: Message
    seconds: float


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """Within this context, record what goes through torch.distributed."""
    sent: list[Recorded] = []
    gather, exchange = getattr(dist, GATHER), dist.all_to_all_single

    def note(kind: Kind, part: float, began: float) -> None:
        sent.append(Recorded(Message(kind, part), time.perf_counter() - began))

    def recorded_gather(every: Tensor, rows: Tensor, **options: Any) -> Any:
        began = time.perf_counter()
        done = gather(every, rows, **options)
        note("all_gather", rows.numel() * rows.element_size(), began)
        return done

    def recorded_exchange(received: Tensor, rows: Tensor, of: list[int], to: list[int], **options: Any) -> Any:
        began = time.perf_counter()
        done = exchange(received, rows, of, to, **options)
        others = sum(to) - to[dist.get_rank()]
        width = rows.shape[1:].numel() * rows.element_size()
        note("all_to_all", others * width / (dist.get_world_size() - 1), began)
        return done

    setattr(dist, GATHER, recorded_gather)
    dist.all_to_all_single = recorded_exchange  # type: ignore[assignment]
    try:
        yield sent
    finally:
        setattr(dist, GATHER, gather)
        dist.all_to_all_single = exchange
