"""How a batch sampler goes through its rows: visits to an outer pool once an epoch, inner rows dealt from decks."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from fcco._checks import whole_number

Ints = NDArray[np.int64]


def first_given(*values: int | None) -> int:
    """The first that is given."""
    return next(value for value in values if value is not None)


def half(batch: int, positives: int | None, negatives: int | None) -> int:
    if positives is not None or negatives is not None:
        raise ValueError(f"batch={batch!r} stands for both sizes: leave out positives and negatives, or batch")
    if whole_number("batch", batch, 2) % 2:
        raise ValueError(f"batch must be even, one half for each class, got {batch!r}")
    return batch // 2


def vector(name: str, values: Any) -> NDArray[Any]:
    """``values`` as a 1-d array of numbers or strings, none of them missing."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must have the shape [n], got {list(array.shape)}")
    if len(array) == 0:
        raise ValueError(f"{name} is empty")
    missing = np.zeros(len(array), bool)
    if array.dtype == object:
        missing[:] = [not isinstance(value, (str, numbers.Real, np.bool_)) or value != value for value in array]
    elif array.dtype.kind == "f":
        missing = ~np.isfinite(array)
    if missing.any():
        place = int(np.argmax(missing))
        raise ValueError(f"{name}[{place}] is {array.tolist()[place]!r}, neither a finite number nor a string")
    return np.array(array.tolist()) if array.dtype == object else array


def vector_of_numbers(name: str, values: Any) -> NDArray[Any]:
    array = vector(name, values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, got the dtype {array.dtype}")
    return array


def rows_by_class(name: str, values: Any, needed: tuple[int, ...]) -> tuple[Ints, Ints]:
    """The rows of class 1 and those of class 0."""
    array = vector_of_numbers(name, values)
    strange = (array != 0) & (array != 1)
    if strange.any():
        place = int(np.argmax(strange))
        raise ValueError(f"{name}[{place}] is {array[place].item()!r}, neither 0 nor 1")
    for value in needed:
        if not (array == value).any():
            raise ValueError(f"{name} has no {value} among its {len(array)} values")
    return np.flatnonzero(array == 1), np.flatnonzero(array == 0)


def relevant_rows(relevance: Any, n: int) -> NDArray[np.bool_]:
    array = vector_of_numbers("relevance", relevance)
    if len(array) != n:
        raise ValueError(f"relevance must have query's length {n}, got {len(array)}")
    if not (array > 0).any():
        raise ValueError(f"relevance has no value above 0 among its {n}: there is no outer row")
    return array > 0


class Pool:
    """Rows sorted by group: those of group g are ``rows[bounds[g]:bounds[g + 1]]``."""

    def __init__(self, rows: Ints, group: Ints | None = None, groups: int = 1) -> None:
        group = np.zeros(len(rows), np.int64) if group is None else group
        order = np.argsort(group, kind="stable")
        self.rows, self.group = rows[order], group[order]
        self.bounds = np.append(0, np.bincount(group, minlength=groups).cumsum())

    def of(self, group: int) -> Ints:
        return self.rows[self.bounds[group] : self.bounds[group + 1]]

    def shuffled(self, rng: np.random.Generator) -> Ints:
        """The rows, those of each group in a random order."""
        order = rng.permutation(len(self.rows))
        return self.rows[order[np.argsort(self.group[order], kind="stable")]]


def full_visits(count: int, size: int, replicas: int, drop_last: bool) -> Ints:
    """Where visits of ``size`` rows begin and end, as many for every replica; the last round shares what is left."""
    edges = np.arange(count // (size * replicas) * replicas + 1) * size
    left = count - int(edges[-1])
    if drop_last and len(edges) == 1:
        raise ValueError(f"drop_last leaves no batch: {count} outer rows are fewer than {replicas} x {size}")
    if left and not drop_last:
        # One row each at least; those beyond the end are taken from the start again.
        left = max(left, replicas)
        edges = np.append(edges, edges[-1] + np.arange(1, replicas + 1) * left // replicas)
    return edges


def even_visits(pool: Pool, size: int) -> tuple[Ints, Ints]:
    """Where visits of at most ``size`` rows of one group begin and end, as even as they can be, and their groups."""
    counts = np.diff(pool.bounds)
    parts = -(-counts // size)
    group = np.repeat(np.arange(len(counts)), parts)
    nth = np.arange(len(group)) - np.repeat(parts.cumsum() - parts, parts)
    starts = pool.bounds[group] + nth * counts[group] // parts[group]
    return np.append(starts, len(pool.rows)), group


class Deck:
    """Rows dealt in a random order, each once in a pass, but never one that is in the batch already."""

    def __init__(self, rows: Ints, rng: np.random.Generator) -> None:
        self._cards, self._top, self._rng = rng.permutation(rows), 0, rng

    def deal(self, count: int, taken: set[int]) -> list[int]:
        dealt = self._from_top(count, taken)
        if len(dealt) < count:
            taken = taken.union(dealt)
            self._cards, self._top = self._rng.permutation(self._cards), 0
            dealt += self._from_top(count - len(dealt), taken)
        return dealt

    def _from_top(self, count: int, taken: set[int]) -> list[int]:
        # As many as could be needed were all of `taken` on top: the cost does not depend on the deck's size.
        window = self._cards[self._top : self._top + count + len(taken)]
        cards = window.tolist()
        fresh = [card for card in cards if card not in taken]
        if len(fresh) < len(cards):
            window[:] = fresh + [card for card in cards if card in taken]  # their turn comes later in this pass
        dealt = fresh[:count]
        self._top += len(dealt)
        return dealt


class Batch(list[int]):
    """A batch of rows that tells its iteration when it is sent to another process, such as a worker of a DataLoader."""

    __slots__ = ("iteration",)
    iteration: Iteration

    def __reduce__(self) -> tuple[Callable[..., list[int]], tuple[list[int]]]:
        return list, ([*self],)


def _send(batch: Batch) -> tuple[Callable[..., list[int]], tuple[list[int]]]:
    batch.iteration.sent = True
    return batch.__reduce__()


ForkingPickler.register(Batch, _send)


class Iteration(Iterator[list[int]]):
    """What is left of an epoch, from the moment the first batch is drawn: DataLoader makes iterators it does not use.

    ``state_dict`` and ``load_state_dict`` are for torchdata's StatefulDataLoader, which asks after every batch drawn
    and keeps the state until that batch is trained on.
    """

    def __init__(self, sampler: VisitSampler) -> None:
        self._sampler = sampler
        self._place: tuple[int, int] | None = None  # the epoch, and the batches of it drawn so far
        self._left: Iterator[list[int]] | None = None
        self._skipped = self._handed_out = 0
        self._followed = False  # by a loader that keeps states
        self.sent = False  # to workers of a DataLoader

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_left": None}

    def __next__(self) -> Batch:
        epoch, drawn = self._place = self.place()
        if self._left is None:
            self._left, self._skipped = self._sampler._begin(self, epoch, drawn), drawn
        batch = Batch(next(self._left))
        batch.iteration, self._place = self, (epoch, drawn + 1)
        return batch

    def place(self) -> tuple[int, int]:
        """The epoch, and how many batches of it were drawn, or will have been skipped."""
        return self._place or self._sampler._next_place()

    def hand_out(self) -> None:
        """Count a batch that a loader hands to the training loop."""
        self._handed_out += 1

    def done(self) -> int:
        """How many batches of the epoch were trained on."""
        if self._handed_out:
            return self._skipped + self._handed_out
        if self.sent and not self._followed:
            raise RuntimeError(
                "a DataLoader with workers draws batches ahead of training, so this sampler cannot tell how many were "
                "trained on: save the state of a fcco.data.ResumableLoader, or pass their number as drawn"
            )
        return self.place()[1]

    def state_dict(self) -> dict[str, int]:
        self._followed = True
        return self._sampler._state(*self.place())

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._sampler.load_state_dict(state)
        self._place, self._left = (state["epoch"], state["drawn"]), None


class VisitSampler(Sampler[list[int]]):
    """The one mechanism: visits to an outer pool, dealt to batches, and decks of inner rows."""

    _outer: Pool
    _edges: Ints  # visit v is rows edges[v] to edges[v + 1] of the shuffled outer pool
    _group: Ints  # and of this group
    _inner: Pool | None = None
    _inner_batch = 0
    _inner_first = False
    _steps: int  # batches of an epoch, over all ranks

    def __init__(self, *, seed: int = 0, num_replicas: int = 1, rank: int = 0) -> None:
        self.seed = whole_number("seed", seed, 0)
        self.num_replicas = whole_number("num_replicas", num_replicas)
        self.rank = whole_number("rank", rank, 0)
        if rank >= num_replicas:
            raise ValueError(f"rank must be less than num_replicas, got rank {rank} of {num_replicas}")
        self._epoch = self._start = 0  # where the next iteration begins, unless one has begun
        self._chosen = False  # by set_epoch: an epoch that is over is not followed by the next then
        self._iteration: Iteration | None = None  # the last that has begun since then

    def _arrange(self, outer: Pool, edges: Ints, group: Ints, visits: int) -> None:
        """Batches of at most ``visits`` visits, all to different groups."""
        self._outer, self._edges, self._group = outer, edges, group
        steps = max(-(-len(group) // visits), int(np.bincount(group).max()))
        self._steps = -(-steps // self.num_replicas) * self.num_replicas

    @property
    def epoch(self) -> int:
        """The epoch of the last iteration, or the one chosen since."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration at ``epoch``.

        After ``load_state_dict``, the loaded epoch keeps its place: nothing is left of it if it was over.
        """
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self._epoch or self._iteration is not None:
            self._epoch, self._start, self._iteration = epoch, 0, None
        self._chosen = True

    def state_dict(self, drawn: int | None = None) -> dict[str, int]:
        """The place in the epoch; the same on all ranks.

        Args:
            drawn: how many batches of this epoch were trained on. ``None``: as many as were drawn, which is right
                unless something draws ahead of training, as a DataLoader with workers does.

        Raises:
            ValueError: ``drawn`` is more than the batches of an epoch.
            RuntimeError: batches went to the workers of a DataLoader, and ``drawn`` is not given.
        """
        if drawn is None:
            drawn = self._start if self._iteration is None else self._iteration.done()
        return self._state(self._epoch, self._within_epoch(drawn))

    def _state(self, epoch: int, drawn: int) -> dict[str, int]:
        return {"epoch": epoch, "drawn": drawn, "seed": self.seed, "batches": len(self)}

    def _within_epoch(self, drawn: int) -> int:
        if whole_number("drawn", drawn, 0) > len(self):
            raise ValueError(f"drawn must be at most {len(self)}, the batches of an epoch, got {drawn}")
        return drawn

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration draw the batches that remained; raise if they would not be the same."""
        for key, own in {"seed": self.seed, "batches": len(self)}.items():
            if state.get(key) != own:
                raise ValueError(f"the state has {key} {state.get(key)}, this sampler {own}")
        epoch, drawn = whole_number("epoch", state["epoch"], 0), self._within_epoch(state["drawn"])
        self._epoch, self._start, self._iteration, self._chosen = epoch, drawn, None, False

    def __len__(self) -> int:
        return self._steps // self.num_replicas

    def __iter__(self) -> Iteration:
        return Iteration(self)

    def _next_place(self) -> tuple[int, int]:
        """The epoch of the next iteration, and how many batches of it are skipped."""
        if self._iteration is not None or (self._start >= len(self) and not self._chosen):
            return self._epoch + 1, 0
        return self._epoch, self._start

    def _begin(self, iteration: Iteration, epoch: int, drawn: int) -> Iterator[list[int]]:
        self._iteration, self._epoch = iteration, epoch
        return islice(self._batches(epoch), drawn, None)

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        # Stream 0 is shared: the ranks divide one order of the outer rows. Inner rows are each rank's own.
        shared, own = (
            np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(epoch, stream)))
            for stream in (0, 1 + self.rank)
        )
        order = np.resize(self._outer.shuffled(shared), self._edges[-1])
        decks: dict[int, Deck] = {}
        for visits in self._dealt_visits(shared)[:, self.rank :: self.num_replicas].T:
            yield [row for visit in visits if visit >= 0 for row in self._visit(visit, order, decks, own)]

    def _dealt_visits(self, rng: np.random.Generator) -> Ints:
        """The visits of every batch, [visits, batches], -1 where there is none."""
        groups, steps = len(self._outer.bounds) - 1, self._steps
        if groups == 1:  # the rows are shuffled already, and short visits belong at the end
            return np.arange(steps)[None] % len(self._group)
        # Visits in a random order of the groups are cut into pieces of `steps`, each with one visit for every batch.
        # A group has at most `steps` visits: only the one that is cut in two could meet itself in a batch.
        sequence = np.argsort(rng.permutation(groups)[self._group], kind="stable")
        sequence = np.resize(sequence, max(len(sequence), steps))
        dealt = np.full((-(-len(sequence) // steps), steps), -1)
        busy = np.zeros(steps, bool)
        for piece, start in zip(dealt, range(0, len(sequence), steps), strict=True):
            visits = sequence[start : start + steps]
            cut = int((self._group[visits] == self._group[sequence[start - 1]]).sum()) if start else 0
            free = rng.permutation(np.flatnonzero(~busy))
            places = np.append(free[:cut], rng.permutation(np.append(free[cut:], np.flatnonzero(busy))))
            piece[places[: len(visits)]] = visits
            busy = self._group[piece] == self._group[visits[-1]]
        return dealt

    def _visit(self, visit: int, order: Ints, decks: dict[int, Deck], rng: np.random.Generator) -> list[int]:
        outer: list[int] = order[self._edges[visit] : self._edges[visit + 1]].tolist()
        if self._inner is None:
            return outer
        group = int(self._group[visit])
        if group not in decks:
            decks[group] = Deck(self._inner.of(group), rng)
        inner = decks[group].deal(self._inner_count(len(outer)), set(outer))
        return [*inner, *outer] if self._inner_first else [*outer, *inner]

    def _inner_count(self, outer_count: int) -> int:
        return self._inner_batch

    def _arrange_one_group(self, outer: Ints, outer_batch: int, inner: Ints, inner_batch: int, drop_last: bool) -> None:
        """Batches of ``outer_batch`` rows from one pool and ``inner_batch`` from another."""
        edges = full_visits(len(outer), outer_batch, self.num_replicas, drop_last)
        self._arrange(Pool(outer), edges, np.zeros(len(edges) - 1, np.int64), visits=1)
        self._inner, self._inner_batch = Pool(inner), inner_batch
