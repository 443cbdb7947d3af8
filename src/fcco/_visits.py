"""How a batch sampler goes through its rows: visits to an outer pool once an epoch, inner rows dealt from decks."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from itertools import islice
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
        self._epoch = self._drawn = 0
        self._iteration: object | None = None  # the one whose batches are counted, once it has begun

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
        """Begin the next iteration at ``epoch``; after ``load_state_dict``, the loaded epoch keeps its place."""
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self._epoch or self._iteration is not None:
            self._epoch, self._drawn, self._iteration = epoch, 0, None

    def state_dict(self, drawn: int | None = None) -> dict[str, int]:
        """The place in the epoch; the same on all ranks.

        A loader with workers draws ahead of the training loop: pass the batches trained on in this epoch as ``drawn``.
        """
        drawn = self._drawn if drawn is None else whole_number("drawn", drawn, 0)
        return {"epoch": self._epoch, "drawn": drawn, "seed": self.seed, "batches": len(self)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration draw the batches that remained; raise if they would not be the same."""
        for key, own in {"seed": self.seed, "batches": len(self)}.items():
            if state.get(key) != own:
                raise ValueError(f"the state has {key} {state.get(key)}, this sampler {own}")
        drawn = whole_number("drawn", state["drawn"], 0)
        self._epoch, self._drawn, self._iteration = whole_number("epoch", state["epoch"], 0), drawn, None

    def __len__(self) -> int:
        return self._steps // self.num_replicas

    def __iter__(self) -> Iterator[list[int]]:
        # A generator, so that nothing happens before the first batch: DataLoader makes iterators it does not use.
        if self._iteration is not None or self._drawn >= len(self):
            self._epoch, self._drawn = self._epoch + 1, 0
        iteration = self._iteration = object()
        for drawn, batch in islice(enumerate(self._batches(self._epoch), start=1), self._drawn, None):
            if self._iteration is iteration:
                self._drawn = drawn
            yield batch

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
