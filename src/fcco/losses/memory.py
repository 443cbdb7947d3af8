"""The memory: the newest outputs of each stratum, each in a ring of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fcco._checks import whole_number
from fcco._table import at_least_single
from fcco.core.arrays import (
    Array,
    Views,
    ascending,
    at_most,
    can_read,
    cast,
    contains,
    is_last,
    is_positive,
    namespace,
    numbered,
    places_of,
    taken,
)
from fcco.core.objective import Objective
from fcco.core.rules import BSGD, Rule
from fcco.core.spaces import as_column
from fcco.core.step import Batch, Remembered, Step
from fcco.functional._checks import check_choice
from fcco.losses.together import EVERY, Together

HORIZON = 100
"""Over how many steps, about, the composition of batches is averaged."""


@dataclass(frozen=True)
class Memory:
    """What a loss remembers of recent batches: outputs such as scores, embeddings or risks, and what belongs to them.

    A row u_i of the table is as old as the last update of its example. The outputs of the last batches are a few steps
    old, and every example can be compared with all of them.

    Parameters
    ----------
    size : int, default 256
        How many outputs to remember of each stratum: of positives and of negatives, of events and of censored examples,
        or of all examples. Of every row only the newest output is kept.
    mode : {"gradient", "estimate"}, default "gradient"
        What the remembered outputs are used for. With "gradient", a batch with its memory acts like one large batch.
        Fresh examples are compared with remembered ones, remembered ones with fresh ones, and the gradient is that of a
        batch of their total size, estimated from the fresh part. With "estimate", remembered outputs only improve the
        estimate of g_i at which f is differentiated, and the gradient is that of the fresh batch. This is the safe
        choice for a deep model whose outputs change fast.

    Examples
    --------
    >>> import fcco
    >>> loss_fn = fcco.losses.CoxLoss(n=1000, memory=fcco.Memory(size=64, mode="estimate"))
    """

    size: int = 256
    mode: Literal["gradient", "estimate"] = "gradient"

    def __post_init__(self) -> None:
        whole_number("size", self.size)
        check_choice(self.mode, "mode", ("gradient", "estimate"))


def as_memory(memory: Memory | int, default: Memory | None = None) -> Memory | None:
    """Return the memory that an argument stands for: a number of outputs, or 0 for none."""
    if isinstance(memory, Memory):
        return memory
    size = whole_number("memory", memory, least=0)
    return replace(default or Memory(), size=size) if size else None


class Default(NamedTuple):
    """What was measured to be best for a loss."""

    table: Rule
    """The rule without a memory."""
    memory: Memory
    """The memory, or, if the table alone is better, what is best of a memory."""
    remembers: bool = True
    """Whether a memory is better than the table alone."""
    beside: Rule = BSGD()
    """The rule beside the memory, if neither is given."""

    def choose(self, rule: Rule | None, memory: Memory | int | None) -> tuple[Rule, Memory | None]:
        """Return the rule and the memory of a loss, given the arguments of its constructor.

        If neither is given, they are the default. A rule by itself has no memory, and a memory by itself has no table.
        """
        if rule is None and memory is None and self.remembers:
            return self.beside, self.memory
        remembered = as_memory(0 if memory is None else memory, self.memory)
        return rule or (self.table if remembered is None else BSGD()), remembered


class Rings(NamedTuple):
    """The buffers of a memory as arrays. The last place takes what does not fit, and is never read."""

    row: Array
    """[P], -1 where it is not known."""
    born: Array
    """[P], the step at which an output came; -1 if the place is empty."""
    at: Array
    share: Array
    cursor: Array
    """[rings], the place of each ring that is next."""
    step: Array
    mean: Array
    x: Any
    made: dict[str, Tensor]
    """The buffers that are new."""


class OutputMemory(nn.Module):
    """``size`` places for each ring, so that all shapes are static.

    The buffers of outputs are made at the first step, which tells their shapes. They follow ``.to()`` and
    ``state_dict``, and hold at least float32.
    """

    row: Tensor
    born: Tensor
    at: Tensor
    step: Tensor
    _buffers: dict[str, Any]

    def __init__(self, options: Memory, objective: Objective) -> None:
        super().__init__()
        if objective.repels:
            options = replace(options, mode="estimate")
        self.options, self.size, self.rings = options, options.size, objective.rings
        self.dim, self.in_gradient = objective.dim, options.mode == "gradient"
        places = self.rings * self.size + 1
        self.register_buffer("row", torch.full((places,), -1))
        self.register_buffer("born", torch.full((places,), -1))
        self.register_buffer("at", torch.zeros((places, objective.dim)[: 1 + (objective.dim > 1)]))
        self.register_buffer("share", torch.zeros(places))
        self.register_buffer("cursor", torch.zeros(self.rings, dtype=torch.int64))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(objective.strata * (1 + objective.anchor_relations)))
        self.n_columns, self.views, self.together = 0, Views(), Together()
        self.watchers: list[Callable[[Tensor, Tensor, Tensor], None]] = []

    def extra_repr(self) -> str:
        """Return the size and the number of rings.

        Returns
        -------
        str
            What ``repr`` shows between the brackets.
        """
        return f"size={self.size}, mode={self.options.mode}, rings={self.rings}"

    @property
    def columns(self) -> list[Tensor]:
        """The buffers of the outputs and of what belongs to them."""
        return [buffer for name, buffer in self._buffers.items() if name.startswith("column")]

    def prepared(self, x: Any, *, numpy: bool) -> Rings:
        """Return the buffers, which share their storage with what is returned; x may need others, which are new."""
        rings = self._arrays(x, numpy, {})
        for held, c in zip(rings.x, x, strict=True):
            if held is c is None:
                continue
            if held is None or c is None or held.dtype != c.dtype or held.shape[1:] != c.shape[1:]:
                self.check(x)
                return self._arrays(x, numpy, self._room_for([None if c is None else torch.as_tensor(c) for c in x]))
        return rings

    def _arrays(self, x: Any, numpy: bool, made: dict[str, Tensor]) -> Rings:
        buffers = {**self._buffers, **made} if made else self._buffers
        arrays = self.views.of(buffers) if numpy else buffers
        columns = [arrays.get(f"column{k}") for k in range(len(x))]
        held = {name: arrays[name] for name in Rings._fields[:-2]}
        return Rings(**held, x=type(x)(*columns), made=made)

    def check(self, x: Any) -> None:
        """Raise if a batch cannot be remembered, since its examples have other columns or shapes than those before."""
        if not self.n_columns:
            return
        for name, column, k in zip(x._fields, x, range(len(x)), strict=True):
            held = self._buffers.get(f"column{k}")
            if (held is None) != (column is None):
                given, before = ("not given", "with") if column is None else ("given", "without")
                raise ValueError(f"{name} is {given}, but the memory has examples {before} it")
            if held is not None and held.shape[1:] != column.shape[1:]:
                raise ValueError(
                    f"{name} must have the shape {['B', *held.shape[1:]]}, like those in the memory; "
                    f"got {list(column.shape)}"
                )

    def _room_for(self, x: list[Tensor | None]) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        for k, column in enumerate(x):
            if column is None:
                continue
            held, dtype = self._buffers.get(f"column{k}"), column.dtype
            if held is None:  # ones are legal wherever an output is
                shape = (len(self.row), *column.shape[1:])
                made[f"column{k}"] = torch.ones(shape, dtype=dtype, device=column.device)
            elif held.dtype != dtype and torch.promote_types(held.dtype, dtype) != held.dtype:
                made[f"column{k}"] = held.to(torch.promote_types(held.dtype, dtype))
        if "column0" in made and made["column0"].dtype == torch.float64 != self.at.dtype:
            made |= {name: self._buffers[name].double() for name in ("at", "share", "mean")}
        return made

    def recall(self, rings: Rings, objective: Objective, batch: Batch, *, knows_rows: bool) -> Remembered:
        """Return what is held of rows that are not in the batch."""
        is_here = rings.born >= 0
        if knows_rows:
            is_here = is_here & ~contains(ascending(batch.rows) if batch.ordered is None else batch.ordered, rings.row)
        share = rings.share * is_here
        weight = cast(is_here, share)
        rate = 1 / cast(at_most(rings.step, HORIZON - 1) + 1, share)
        anchors = None if batch.every is None else places_of(share)
        pool = objective.pool(rings.x, weight)
        return Remembered(rings.x, rings.row, pool, rings.at, share, anchors, rings.mean, rate, self.in_gradient)

    def remember(
        self, rings: Rings, objective: Objective, batch: Batch, step: Step, memory: Remembered, *, knows_rows: bool
    ) -> None:
        """Take in the newest outputs; the oldest of each ring make room."""
        xp, (row, born, at, share, cursor, count, mean, x, made) = namespace(rings.row), rings
        if made:
            self._buffers |= made
            self.n_columns = len(x)
        if knows_rows and self.in_gradient and can_read(row) and int(count) % EVERY == 0:
            self.together.look(objective, batch, np.asarray(row), np.asarray(born))
        if self.watchers and knows_rows:
            self._tell(torch.as_tensor(batch.rows), torch.as_tensor(batch.x[0]))
        if step.refreshed is not None and memory.anchors is not None:
            at[memory.anchors] = step.refreshed
        elif step.refreshed is not None:
            at[...] = xp.where(as_column(memory.share > 0, at), step.refreshed, at)
        mean[...] = step.mean
        ring = objective.ring(batch.x, batch.pool.kind) if self.rings > 1 else 0 * batch.rows
        member = ring == numbered(self.rings, row)[:, None]
        if not is_positive(batch.pool.weight):  # what is no candidate needs no place
            member = member & (batch.pool.weight > 0)
        if batch.repeats and knows_rows:  # only the last appearance of each row
            member = member & is_last(batch.rows)
        so_far = member.cumsum(1)
        new, rank = so_far[:, -1] if len(ring) else so_far.sum(1), (so_far * member).sum(0) - 1
        fits = (rank >= 0) & (taken(new, ring) - rank <= self.size)
        place = xp.where(fits, ring * self.size + (taken(cursor, ring) + rank) % self.size, len(row) - 1)
        born[...] = xp.where(memory.pool.weight > 0, born, -1)
        row[place], born[place], share[place], at[place] = batch.rows if knows_rows else -1, count, 0.0, 0.0
        of_anchors = place if batch.every is None else taken(place, batch.every)
        at[of_anchors], share[of_anchors] = step.kept * as_column(step.share > 0, step.kept), step.share
        for buffer, values in zip(x, batch.x, strict=True):
            if buffer is not None:
                buffer[place] = values
        born[-1], at[-1], share[-1] = -1, 0.0, 0.0
        cursor[...] = (cursor + new) % self.size
        count += 1

    def _tell(self, rows: Tensor, outputs: Tensor) -> None:
        """Tell the watchers of rows that come back while they are remembered: both outputs, and all that are held."""
        here, held = self.born >= 0, self._buffers["column0"]
        place, position = ((self.row[:, None] == rows) & here[:, None]).nonzero(as_tuple=True)
        for watcher in self.watchers:
            watcher(held[place], outputs[position], held[here])

    def ages(self) -> Tensor:
        """Return how many steps ago each of the outputs that are held was made.

        Returns
        -------
        Tensor
            Numbers of steps, one for each output.
        """
        return self.step - self.born[self.born >= 0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "watchers": []}  # those of the original do not watch its copies

    def _apply(self, fn: Any, recurse: bool = True) -> OutputMemory:
        return super()._apply(at_least_single(fn), recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        saved = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        errors: list[str] = args[-1]
        if errors or not saved:  # a table that was refused leaves its memory alone
            return
        for name in [name for name in self._buffers if name.startswith("column")]:
            delattr(self, name)
        self.n_columns = sum(name.startswith("column") for name in saved)
        if not self.n_columns:  # savers that load in place do not know of columns that are not there yet
            empty = {
                name: torch.full_like(b, -1 if name in ("row", "born") else 0) for name, b in self._buffers.items()
            }
            self._buffers |= empty
            return
        for name, value in saved.items():
            if name.startswith("column"):
                self.register_buffer(name, torch.zeros_like(value, device=self.row.device))
            elif value.dtype == torch.float64:
                self._buffers[name] = self._buffers[name].double()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def why_not_loaded(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        """Return why a state cannot be loaded, or None."""
        shapes = {
            name: list(state_dict[prefix + name].shape)
            for name in ("row", "cursor", "mean", "at")
            if prefix + name in state_dict
        }
        if all(shape == list(self._buffers[name].shape) for name, shape in shapes.items()):
            return None
        rings = shapes["cursor"][0]
        size = (shapes["row"][0] - 1) // rings
        return (
            f"the saved memory has size={size}, strata={rings}, this one has size={self.size}, strata={self.rings}. "
            f"Create the loss with memory={size}"
        )
