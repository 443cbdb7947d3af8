"""A memory in NumPy, for the losses that work out their gradient by hand on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco._memory import HORIZON, OutputMemory

Array = NDArray[Any]


class Held(NamedTuple):
    """What is remembered of rows that are not in the fresh batch, without empty places; ``at`` may be refreshed."""

    columns: list[Array]
    at: Array
    share: Array


class Batch(NamedTuple):
    """A fresh batch. Members of each ring are found by their positions in it."""

    columns: Sequence[Array]
    rows: Array | None
    members: Sequence[Array]


class ArrayMemory:
    """One step of the memory: what it holds, and what it takes in.

    Parameters
    ----------
    memory : OutputMemory
        The memory, on the CPU, after its first step.
    batch : Batch
        The fresh batch, of rows that do not repeat.
    """

    def __init__(self, memory: OutputMemory, batch: Batch) -> None:
        self.memory, self.batch = memory, batch
        buffers: dict[str, Any] = memory._buffers
        self.buffers: dict[str, Array] = {name: buffer.numpy() for name, buffer in buffers.items()}
        row, born = self.buffers["row"], self.buffers["born"]
        self.present = born >= 0
        if batch.rows is not None:
            self.present &= ~_is_among(row, batch.rows)
        self.places = places = self.present.nonzero()[0]
        self.held = Held(
            [self.buffers[f"column{k}"][places] for k in range(memory.n_columns)],
            self.buffers["at"][places],
            self.buffers["share"][places],
        )

    def is_enough(self) -> bool:
        """Return whether as many outer examples are remembered as a batch has; see ``OutputMemory.is_usable``."""
        share = np.add.reduce(self.held.share)
        return bool(share > 0 and share >= self.buffers["expected"][-1])

    def expect(self, total: float) -> Array:
        """Return how many members of each stratum a batch has on average, and, last, its total share."""
        now = np.array([*map(len, self.batch.members), total], self.buffers["expected"].dtype)
        rate = now.dtype.type(max(1.0 / (int(self.buffers["step"]) + 1), 1.0 / HORIZON))
        return (self.buffers["expected"] + rate * (now - self.buffers["expected"])).astype(np.float64)

    def remember(self, at: Array, share: Array, expected: Array) -> None:
        """Take in the batch; the oldest of each ring make room."""
        if self.memory.watchers and self.batch.rows is not None:
            self.memory.tell(torch.from_numpy(self.batch.columns[0]), torch.from_numpy(self.batch.rows))
        buffers, size = self.buffers, self.memory.options.size
        np.putmask(buffers["born"], ~self.present, -1)
        buffers["at"][self.places] = self.held.at
        step, cursor = int(buffers["step"]), buffers["cursor"]
        rows = np.full(len(at), -1) if self.batch.rows is None else self.batch.rows
        fresh = {f"column{k}": column for k, column in enumerate(self.batch.columns)}
        fresh |= {"row": rows, "at": at, "share": share}
        for ring, members in enumerate(self.batch.members):
            newest = members[-size:]
            first = cursor[ring] + len(members) - len(newest)
            places = ring * size + np.arange(first, first + len(newest)) % size
            for name, values in fresh.items():
                buffers[name][places] = values[newest]
            buffers["born"][places] = step
            cursor[ring] = (cursor[ring] + len(members)) % size
        buffers["step"] += 1
        buffers["expected"][:] = expected


def can_remember(memory: OutputMemory, scores: Any) -> bool:
    """Return whether :class:`ArrayMemory` can take the step: not the first one, on the CPU, in one precision."""
    if memory.n_columns == 0 or memory.options.strength != "virtual" or not isinstance(scores, Tensor):
        return False
    buffers: dict[str, Any] = memory._buffers
    return bool(buffers["column0"].is_cpu and buffers["column0"].dtype == scores.dtype == buffers["at"].dtype)


def _is_among(rows: Array, some: Array) -> Array:
    """Return which of ``rows`` are among some others."""
    ordered = np.sort(some)
    place = np.searchsorted(ordered, rows)
    place[place == len(ordered)] = 0
    return ordered[place] == rows
