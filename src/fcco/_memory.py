"""The memory: the outputs of recent batches, as rivals and as outer examples of the next ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fcco._checks import reads_are_free, shape_of, whole_number
from fcco._guard import is_open, new_state
from fcco._table import _ANYWAY, at_least_single

Strength = Literal["virtual", "estimate"]

HORIZON = 100
"""Over how many steps, about, the composition of batches is averaged."""


@dataclass(frozen=True)
class Memory:
    """What a loss remembers of recent batches: outputs such as scores, embeddings or risks, and what belongs to them.

    A row u_i of the table is as old as the last visit of its example. The outputs of the last batches are a few steps
    old, and every example can be compared with all of them.

    Parameters
    ----------
    size : int, default 256
        How many outputs to remember of each stratum: of positives and of negatives, of events and of censored examples,
        or of all examples. Of every row only the newest output is kept.
    strength : {"virtual", "estimate"}, default "virtual"
        What the remembered outputs are used for. With "virtual", a batch with its memory acts like one large batch.
        Fresh examples are compared with remembered ones, remembered ones with fresh ones, and the gradient is that of a
        batch of their total size, estimated from the fresh part. With "estimate", remembered outputs only improve the
        estimate of g_i at which f is differentiated, and the gradient is that of the fresh batch. This is the safe
        choice for a deep model whose outputs change fast.
    refresh : bool, default True
        Whether every batch refreshes what is remembered of g, by a moving average. Losses that differentiate a
        logarithm or a ratio of g need this, because an old g in a denominator has no bound. It adds noise where f is a
        power of g, so that ``PNormPushLoss`` does without it.
    guard : bool, default True
        Whether steps with the strength "virtual" fall back to the batch by itself as long as the memory pushes all
        outputs away from itself together, by which a deep model can collapse. Only vectors are guarded, such as
        embeddings. The guard looks at every eighth step, in eager mode only.
    waits : bool or None, default None
        Whether a guarded memory waits for a verdict, which takes 64 steps, before it is used. None means the loss's
        choice: ``NCALoss`` does not wait.
    strata : int, default 1
        How many strata there are. Losses set this themselves, and the next one.
    per_stratum : bool, default True
        Whether ``size`` is the number of outputs of each stratum, or of all strata together.

    Examples
    --------
    >>> import fcco
    >>> loss_fn = fcco.losses.CoxLoss(n=1000, memory=fcco.Memory(size=64, strength="estimate"))
    """

    size: int = 256
    strength: Strength = "virtual"
    refresh: bool = True
    guard: bool = True
    waits: bool | None = None
    strata: int = 1
    per_stratum: bool = True

    def __post_init__(self) -> None:
        whole_number("size", self.size)
        whole_number("strata", self.strata)
        if self.strength not in ("virtual", "estimate"):
            raise ValueError(f"strength must be 'virtual' or 'estimate'; got {self.strength!r}")


class Recalled(NamedTuple):
    """The content of a memory. Each tensor has S · M places, of which some are empty."""

    columns: list[Tensor]
    rows: Tensor
    """The row of each; -1 where it is not known."""
    present: Tensor
    """Of bool; False for empty places, and for examples that are in the fresh batch too."""
    at: Tensor
    """g (log g) of each: as it was estimated when it was fresh, and has been refreshed by every batch since."""
    share: Tensor
    """The share of each in the objective when it was fresh; 0 if it was no outer example."""


class Fresh(NamedTuple):
    """What is to be remembered of a batch: that of all ranks, in the order of the ranks."""

    columns: Sequence[Tensor]
    rows: Tensor | None
    stratum: Tensor | None
    at: Tensor
    share: Tensor


class OutputMemory(nn.Module):
    """Buffers that hold the newest outputs of every stratum, each stratum in a ring of its own.

    The buffers of outputs are made at the first step, which tells their shapes. They follow ``.to()`` and
    ``state_dict``, and hold at least float32.
    """

    row: Tensor
    born: Tensor
    cursor: Tensor
    step: Tensor
    expected: Tensor
    at: Tensor
    share: Tensor
    guard: Tensor

    def __init__(self, options: Memory, dim: int) -> None:
        super().__init__()
        self.options, self.dim = options, dim
        # The last place is never read. What does not fit is written there, so that all shapes are static.
        self.rings = options.strata if options.per_stratum else 1
        self.places = self.rings * options.size
        self.register_buffer("row", torch.full((self.places + 1,), -1))
        self.register_buffer("born", torch.full((self.places + 1,), -1))
        self.register_buffer("cursor", torch.zeros(self.rings, dtype=torch.int64))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("expected", torch.zeros(options.strata + 1))
        self.register_buffer("at", torch.zeros((self.places + 1, dim)[: 1 + (dim > 1)]))
        self.register_buffer("share", torch.zeros(self.places + 1))
        self.register_buffer("guard", new_state())
        self.n_columns = 0
        self.watchers: list[Callable[[Tensor, Tensor, Tensor], None]] = []

    def extra_repr(self) -> str:
        return f"size={self.options.size}, rings={self.rings}, strength={self.options.strength}"

    @property
    def columns(self) -> list[Tensor]:
        """The buffers of the outputs and of what belongs to them."""
        return [getattr(self, f"column{k}") for k in range(self.n_columns)]

    def recall(self, rows: Tensor | None) -> Recalled | None:
        """Return what is remembered of rows other than those of the fresh batch; None before the first step."""
        if self.n_columns == 0:
            return None
        places = self.places
        held, present = self.row[:places], self.born[:places] >= 0
        if rows is not None:
            present = present & ~(held.unsqueeze(1) == rows.unsqueeze(0)).any(1)
        # Copies, because the buffers change before the gradient is computed.
        columns, at = [column[:places].clone() for column in self.columns], self.at[:places].clone()
        return Recalled(columns, held.clone(), present, at, self.share[:places] * present)

    def is_usable(self, recalled: Recalled) -> Tensor:
        """Return whether a step may have two sides.

        There must be as many remembered outer examples as a batch has, and the guard must not object.
        """
        share = recalled.share.sum()
        enough = (share > 0) & (share >= self.expected[-1])
        return enough & is_open(self.guard, waits=self.options.waits is not False) if self.is_guarded else enough

    @property
    def is_guarded(self) -> bool:
        """Whether the guard decides: if what is remembered are vectors of one space."""
        widths = {column.shape[1] for column in self.columns if column.is_floating_point() and column.dim() == 2}
        return self.options.guard and len(widths) == 1

    def check(self, columns: Sequence[Tensor], stratum: Tensor | None) -> None:
        """Raise if a batch cannot be remembered: if its examples have another shape, or no stratum of this memory."""
        if self.n_columns not in (0, len(columns)):
            raise ValueError(f"the batch must have {self.n_columns} columns, like the memory; got {len(columns)}")
        for place, (buffer, column) in enumerate(zip(self.columns, columns, strict=False)):
            if column.shape[1:] != buffer.shape[1:]:
                got, held = list(column.shape[1:]), list(buffer.shape[1:])
                raise ValueError(
                    f"an example must have the shape {held} in column {place}, like those in the memory; got {got}"
                )
        strata = self.options.strata
        if stratum is None:
            if strata > 1:
                raise ValueError(f"stratum must be given, because the memory has {strata} strata; got None")
            return
        if stratum.shape != columns[0].shape[:1]:
            raise ValueError(f"stratum must have the shape [{len(columns[0])}]; got {shape_of(stratum)}")
        outside = (stratum < 0) | (stratum >= strata)
        if not reads_are_free(outside):
            torch._assert_async(~outside.any(), f"stratum must be in [0, {strata})")
        elif bool(outside.any()):
            place = int(outside.nonzero()[0])
            raise ValueError(f"stratum must be in [0, {strata}); got {stratum[place].item()} at position {place}")

    def held(self, recalled: Recalled, stratum: Tensor | None, like: Tensor) -> Tensor:
        """Return how many examples there are in each ring, with those of the fresh batch."""
        remembered = recalled.present.view(self.rings, -1).sum(1)
        return remembered + _one_hot(self._ring_of(stratum, like), self.rings).sum(0)

    def _ring_of(self, stratum: Tensor | None, like: Tensor) -> Tensor:
        """Return the ring that each example of a batch belongs to."""
        if stratum is None or self.rings == 1:
            return torch.zeros(len(like), dtype=torch.int64, device=like.device)
        return stratum.long()

    def expect(self, stratum: Tensor | None, like: Tensor, total: Tensor) -> Tensor:
        """Return how many examples of each stratum a batch has on average, and, last, its total share."""
        strata = self.options.strata
        if stratum is None:
            counts = torch.full((1,), float(len(like)), device=like.device)
        else:
            counts = _one_hot(stratum, strata).sum(0)
        now = torch.cat([counts.to(self.expected.dtype), total.reshape(1).to(self.expected.dtype)])
        rate = torch.clamp(1.0 / (self.step + 1).to(now.dtype), min=1.0 / HORIZON)
        return self.expected + rate * (now - self.expected)

    @torch.no_grad()
    def remember(self, fresh: Fresh, recalled: Recalled | None, expected: Tensor, guard: Tensor | None = None) -> None:
        """Take in the newest outputs; the oldest of each stratum make room. ``recalled`` may hold refreshed values."""
        self._allocate(fresh)
        self.tell(fresh.columns[0], fresh.rows)
        places, size = self.places, self.options.size
        if recalled is not None:  # older outputs of the same rows are forgotten
            self.born[:places].masked_fill_(~recalled.present, -1)
            self.at[:places].copy_(recalled.at)
        ring = self._ring_of(fresh.stratum, fresh.at)
        kept = _newest(fresh.rows, ring)
        one_hot = _one_hot(ring, self.rings) * kept.unsqueeze(1)
        count = one_hot.sum(0)
        rank = (one_hot.cumsum(0) * one_hot).sum(1) - 1
        kept = kept & (count[ring] - rank <= size)
        place = torch.where(kept, ring * size + (self.cursor[ring] + rank) % size, places)
        rows = torch.full_like(ring, -1) if fresh.rows is None else fresh.rows
        for buffer, values in zip(
            [*self.columns, self.row, self.born, self.at, self.share],
            [*fresh.columns, rows, self.step.expand_as(rows), fresh.at, fresh.share],
            strict=True,
        ):
            buffer.index_copy_(0, place, values.detach().to(buffer.dtype))
        self.born[places] = -1
        self.cursor.copy_((self.cursor + count) % size)
        self.step.add_(1)
        self.expected.copy_(expected)
        if guard is not None:
            self.guard.copy_(guard)

    def _allocate(self, fresh: Fresh) -> None:
        """Make the buffers of the columns, or make them wider if the outputs are."""
        if self.n_columns == 0:
            for k, column in enumerate(fresh.columns):
                self.register_buffer(f"column{k}", _room_for(column, self.places + 1))
            self.n_columns = len(fresh.columns)
            self.born.fill_(-1)
        held = {f"column{k}": column for k, column in enumerate(fresh.columns)}
        for name, values in {**held, "at": fresh.at, "share": fresh.share}.items():
            buffer = getattr(self, name)
            wide = torch.promote_types(buffer.dtype, values.dtype)
            if buffer.dtype != wide:
                setattr(self, name, buffer.to(wide))

    def tell(self, outputs: Tensor, rows: Tensor | None) -> None:
        """Tell the watchers of rows that come back while they are remembered: both outputs, and all that are held."""
        if not self.watchers or rows is None or self.n_columns == 0:
            return
        here = self.born[: self.places] >= 0
        again = (self.row[: self.places].unsqueeze(1) == rows.unsqueeze(0)) & here.unsqueeze(1)
        place, position = again.nonzero(as_tuple=True)
        held = self.columns[0][: self.places]
        for watcher in self.watchers:
            watcher(held[place], outputs[position].to(held.dtype), held[here])

    def __getstate__(self) -> dict[str, Any]:
        # Watchers of the original do not watch its copies.
        return {**self.__dict__, "watchers": []}

    def ages(self) -> Tensor:
        """Return the ages, in steps, of the outputs that are held."""
        born = self.born[: self.places]
        return self.step - born[born >= 0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OutputMemory:
        return super()._apply(at_least_single(fn), recurse)

    def empty_state(self) -> dict[str, Tensor]:
        """Return the state of an empty memory like this one."""
        return OutputMemory(self.options, self.dim).state_dict()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        saved = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
        errors: list[str] = args[-1]
        if not saved or errors:  # a table that was refused leaves its memory alone
            return
        if self._mismatch(saved, prefix):  # which fcco.load_anyway() allows
            saved = {prefix + name: value for name, value in self.empty_state().items()}
        for k in range(self.n_columns):
            delattr(self, f"column{k}")
        self.n_columns = sum(name.startswith(f"{prefix}column") for name in saved)
        if self.n_columns == 0:  # savers that load in place do not know of columns that are not there yet
            saved |= {f"{prefix}{name}": torch.full_like(self.row, -1) for name in ("row", "born")}
        for k in range(self.n_columns):
            value = saved[f"{prefix}column{k}"]
            self.register_buffer(f"column{k}", torch.zeros_like(value, device=self.row.device))
        for name in ("at", "share", "expected"):
            if (value := saved.get(prefix + name)) is not None and value.dtype == torch.float64:
                setattr(self, name, getattr(self, name).double())
        super()._load_from_state_dict(saved, prefix, *args)

    def why_not_loaded(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        """Return why a state will not be loaded, or None."""
        return None if _ANYWAY.get() else self._mismatch(state_dict, prefix)

    def _mismatch(self, saved: dict[str, Any], prefix: str) -> str | None:
        """Return why a state cannot be loaded, or None."""
        theirs, ours = (
            {name: list(values[at + name].shape) for name in ("row", "cursor", "expected", "at") if at + name in values}
            for values, at in ((saved, prefix), (self.state_dict(), ""))
        )
        if all(shape == ours[name] for name, shape in theirs.items()):
            return None
        rings, strata = theirs["cursor"][0], theirs["expected"][0] - 1
        size = (theirs["row"][0] - 1) // rings
        return (
            f"the saved memory has size={size}, strata={strata}, this one has size={self.options.size}, "
            f"strata={self.options.strata}. Create the loss with memory={size}, or load the state within "
            "fcco.load_anyway(), where the memory starts empty"
        )


def _room_for(column: Tensor, places: int) -> Tensor:
    dtype = torch.promote_types(column.dtype, torch.float32) if column.is_floating_point() else column.dtype
    # Ones are legal wherever an output is: a vector of zeros would have no direction.
    return torch.ones((places, *column.shape[1:]), dtype=dtype, device=column.device)


def _one_hot(stratum: Tensor, strata: int) -> Tensor:
    return (stratum.unsqueeze(1) == torch.arange(strata, device=stratum.device)).long()


def _newest(rows: Tensor | None, like: Tensor) -> Tensor:
    """Return a mask of the last appearance of each row in a batch."""
    if rows is None:
        return torch.ones_like(like, dtype=torch.bool)
    return ~(rows.unsqueeze(1) == rows.unsqueeze(0)).triu(1).any(1)


def as_memory(memory: Any, **of_loss: Any) -> Memory | None:
    """Return the engine's memory for that of a loss: a number of outputs, 0 or None for none."""
    if isinstance(memory, Memory) or memory is None:
        return None if memory is None else replace(memory, **of_loss)
    given = of_loss_memory(memory)
    strength: Strength = "virtual" if given is None or given.mode == "gradient" else "estimate"
    return None if given is None else Memory(given.size, strength, **of_loss)


def of_loss_memory(memory: Any) -> Any:
    """Return what a loss remembers, as the shell of losses knows it."""
    from fcco.losses.memory import as_memory

    return as_memory(memory)
