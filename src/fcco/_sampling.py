"""The mechanism that all batch samplers of :mod:`fcco.data` share.

The outer rows of a pass are shuffled and cut into *chunks* of rows of one group. A batch consists of one or more
chunks of different groups, each followed by inner rows of its group. The inner rows are dealt from a shuffled *deck*,
which is shuffled again when it runs out. An epoch is a part of the endless stream of batches of pass 0, pass 1, and so
on. By default it is one pass.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count, islice
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, NamedTuple, TypedDict

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from fcco._checks import whole_number

Ints = NDArray[np.int64]


def first_given(*values: int | None) -> int:
    """Return the first value that is not None."""
    return next(value for value in values if value is not None)


def half_batch(batch: int, positives: int | None, negatives: int | None) -> int:
    """Return the size of each half of a batch, of which no other size may be given."""
    if positives is not None or negatives is not None:
        raise ValueError(f"batch={batch!r} sets both sizes: give either batch, or positives and negatives")
    if whole_number("batch", batch, 2) % 2:
        raise ValueError(f"batch must be even, since each class gets one half; got {batch!r}")
    return batch // 2


def as_vector(name: str, values: Any) -> NDArray[Any]:
    """Return ``values`` as a 1-d array of numbers or strings, none of which is missing."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must have the shape [n]; got {list(array.shape)}")
    if len(array) == 0:
        raise ValueError(f"{name} must have at least one value; got none")
    missing = np.zeros(len(array), bool)
    if array.dtype == object:
        missing[:] = [not isinstance(value, (str, numbers.Real, np.bool_)) or value != value for value in array]
    elif array.dtype.kind == "f":
        missing = ~np.isfinite(array)
    if missing.any():
        place = int(np.argmax(missing))
        found = array.tolist()[place]
        raise ValueError(f"{name} must contain finite numbers or strings; got {found!r} at position {place}")
    return np.array(array.tolist()) if array.dtype == object else array


def as_number_vector(name: str, values: Any) -> NDArray[Any]:
    """Return ``values`` as a 1-d array of finite numbers."""
    array = as_vector(name, values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must contain numbers; got the dtype {array.dtype}")
    return array


def rows_by_class(name: str, values: Any, needed: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Return the rows of class 1 and the rows of class 0. Every class in ``needed`` must have a row."""
    array = as_number_vector(name, values)
    invalid = (array != 0) & (array != 1)
    if invalid.any():
        place = int(np.argmax(invalid))
        found = array[place].item()
        advice = f". If the labels are -1 and 1, pass {name} > 0" if found == -1 else ""
        raise ValueError(f"{name} must contain only 0 and 1; got {found!r} at position {place}{advice}")
    for value in needed:
        if not (array == value).any():
            raise ValueError(f"{name} must contain a {value}; got {len(array)} values without one")
    return np.flatnonzero(array == 1), np.flatnonzero(array == 0)


def relevant_rows(relevance: Any, n: int) -> NDArray[np.bool_]:
    """Return which rows are relevant, [n]. At least one must be."""
    array = as_number_vector("relevance", relevance)
    if len(array) != n:
        raise ValueError(f"relevance must have the length {n} of query; got {len(array)}")
    if not (array > 0).any():
        raise ValueError(f"relevance must contain a value above 0; got {n} values without one")
    return array > 0


class GroupedRows:
    """Rows sorted by group. The rows of group g are ``rows[bounds[g]:bounds[g + 1]]``.

    Parameters
    ----------
    rows : array of int, [n]
        The rows.
    group : array of int, [n], optional
        The group of each row. By default there is one group.
    groups : int, default 1
        Number of groups.
    """

    def __init__(self, rows: Ints, group: Ints | None = None, groups: int = 1) -> None:
        group = np.zeros(len(rows), np.int64) if group is None else group
        order = np.argsort(group, kind="stable")
        self.rows, self.group = rows[order], group[order]
        self.bounds = np.append(0, np.bincount(group, minlength=groups).cumsum())

    def of(self, group: int) -> Ints:
        """Return the rows of one group."""
        return self.rows[self.bounds[group] : self.bounds[group + 1]]

    def shuffled(self, rng: np.random.Generator) -> Ints:
        """Return all rows by group, in a random order within each group."""
        order = rng.permutation(len(self.rows))
        return self.rows[order[np.argsort(self.group[order], kind="stable")]]


def full_chunks(count: int, size: int, replicas: int, drop_last: bool) -> Ints:
    """Return the edges of chunks of ``size`` rows, with equally many chunks for every replica.

    The replicas share the rows that are left in the last round, unless ``drop_last``.
    """
    edges = np.arange(count // (size * replicas) * replicas + 1) * size
    left = count - int(edges[-1])
    if drop_last and len(edges) == 1:
        raise ValueError(
            f"drop_last=True needs at least {replicas} x {size} outer rows; got {count}: no batch would be left"
        )
    if left and not drop_last:
        # Every replica gets at least one row. Rows beyond the end are taken from the start again.
        left = max(left, replicas)
        edges = np.append(edges, edges[-1] + np.arange(1, replicas + 1) * left // replicas)
    return edges


def even_chunks(grouped: GroupedRows, size: int) -> tuple[Ints, Ints]:
    """Return the edges and the groups of chunks of at most ``size`` rows, as even as possible within each group."""
    counts = np.diff(grouped.bounds)
    parts = -(-counts // size)
    group = np.repeat(np.arange(len(counts)), parts)
    nth = np.arange(len(group)) - np.repeat(parts.cumsum() - parts, parts)
    starts = grouped.bounds[group] + nth * counts[group] // parts[group]
    return np.append(starts, len(grouped.rows)), group


class Deck:
    """Rows that are dealt in a random order, each once in a pass, except that rows in the batch have to wait."""

    def __init__(self, rows: Ints, rng: np.random.Generator) -> None:
        self._cards, self._top, self._rng = rng.permutation(rows), 0, rng

    def deal(self, count: int, taken: set[int]) -> list[int]:
        """Return ``count`` rows that are not in ``taken``, or as many as there are."""
        dealt = self._from_top(count, taken)
        if len(dealt) < count:
            taken = taken.union(dealt)
            self._cards, self._top = self._rng.permutation(self._cards), 0
            dealt += self._from_top(count - len(dealt), taken)
        return dealt

    def _from_top(self, count: int, taken: set[int]) -> list[int]:
        # The window suffices even if all of `taken` are on top, so the cost does not depend on the size of the deck.
        window = self._cards[self._top : self._top + count + len(taken)]
        cards = window.tolist()
        fresh = [card for card in cards if card not in taken]
        if len(fresh) < len(cards):
            window[:] = fresh + [card for card in cards if card in taken]  # taken rows come later in this pass
        dealt = fresh[:count]
        self._top += len(dealt)
        return dealt


class SampledBatch(list[int]):
    """A batch of rows that notes when it is sent to another process, such as a worker of a DataLoader.

    Attributes
    ----------
    source : EpochIterator
        The iterator that drew the batch. Its ``sent`` becomes True.
    """

    __slots__ = ("source",)
    source: EpochIterator

    def __reduce__(self) -> tuple[Callable[..., list[int]], tuple[list[int]]]:
        return list, ([*self],)


def _send(batch: SampledBatch) -> tuple[Callable[..., list[int]], tuple[list[int]]]:
    batch.source.sent = True
    return batch.__reduce__()


ForkingPickler.register(SampledBatch, _send)


class EpochIterator(Iterator[list[int]]):
    """The batches that are left of an epoch.

    The epoch is chosen when the first batch is drawn, because a DataLoader makes iterators that it does not use.

    ``state_dict`` and ``load_state_dict`` are for torchdata's StatefulDataLoader. It asks for the state after every
    batch drawn, and keeps the state until that batch is trained on.

    Attributes
    ----------
    sent : bool
        Whether a batch was sent to a worker of a DataLoader.
    """

    def __init__(self, sampler: CoupledSampler) -> None:
        self._sampler = sampler
        self._place: tuple[int, int] | None = None  # the epoch, and the number of its batches drawn so far
        self._left: Iterator[list[int]] | None = None
        self._skipped = self._handed_out = 0
        self._has_stateful_loader = False  # a loader that asks for the state after every batch
        self.sent = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_left": None}

    def __next__(self) -> SampledBatch:
        epoch, drawn = self._place = self.place()
        if self._left is None:
            self._left, self._skipped = self._sampler._begin(self, epoch, drawn), drawn
        batch = SampledBatch(next(self._left))
        batch.source, self._place = self, (epoch, drawn + 1)
        return batch

    def place(self) -> tuple[int, int]:
        """Return the epoch, and how many of its batches were drawn or will be skipped."""
        return self._place or self._sampler._next_place()

    def hand_out(self) -> None:
        """Count a batch that a loader hands to the training loop."""
        self._handed_out += 1

    def done(self) -> int:
        """Return how many batches of the epoch were trained on.

        Raises
        ------
        RuntimeError
            If workers of a DataLoader drew batches ahead, so that the number is unknown.
        """
        if self._handed_out:
            return self._skipped + self._handed_out
        if self.sent and not self._has_stateful_loader:
            raise RuntimeError(
                "a DataLoader with workers draws batches ahead of training, so the sampler does not know how many were "
                "trained on: save the state of a fcco.data.ResumableLoader, or pass their number as drawn"
            )
        return self.place()[1]

    def state_dict(self) -> dict[str, int]:
        """Return the place in the epoch after the last batch drawn."""
        self._has_stateful_loader = True
        return self._sampler._state(*self.place())

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a saved place."""
        self._sampler.load_state_dict(state)
        self._place, self._left = (state["epoch"], state["drawn"]), None


class Split(TypedDict, total=False):
    """The keyword arguments that all samplers have."""

    steps: int | None
    seed: int
    num_replicas: int | None
    rank: int | None


class Division(NamedTuple):
    """How the outer rows of a pass are divided among the replicas."""

    replicas: int
    edges: Ints
    """Chunk c has the rows edges[c] to edges[c + 1] of the shuffled outer rows."""
    group: Ints
    """The group of each chunk."""
    batches: int
    """Number of batches of a pass, over all replicas."""


def accelerate_divides() -> bool:
    """Return whether Accelerate runs on several ranks. It then gives each rank every k-th batch of a loader."""
    state = sys.modules.get("accelerate.state")
    return state is not None and state.PartialState._shared_state.get("num_processes", 1) > 1


def is_in_prepared_loader(sampler: Sampler[list[int]]) -> bool:
    """Return whether the loader that Accelerate is iterating over draws from the sampler."""
    source = getattr(sys.modules["accelerate.state"].GradientState(), "active_dataloader", None)
    while source is not None and source is not sampler:
        source = getattr(source, "batch_sampler", None)  # the loader, and then samplers that wrap others
    return source is sampler


class CoupledSampler(Sampler[list[int]]):
    """Base of the batch samplers of :mod:`fcco.data`.

    Parameters
    ----------
    steps : int, optional
        Number of batches of an epoch, on each rank. By default an epoch is one pass.
    seed : int, default 0
        Seed of all shuffling.
    num_replicas, rank : int, optional
        Number of processes, and the one that this sampler is for. By default they are read from the process group
        whenever they are needed.
    """

    _outer: GroupedRows
    _size: int  # the most rows of a chunk
    _chunks: int  # the most chunks of a batch
    _drop_last: bool | None  # of full chunks; None: the chunks of a group are as even as possible
    _division: Division | None = None  # the last one that was needed
    _inner: GroupedRows | None = None
    _inner_batch = 0
    _inner_first = False
    _sizes: ClassVar[tuple[str, ...]] = ()  # the arguments that set the size of a batch

    def __init__(
        self,
        *,
        steps: int | None = None,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise TypeError(
                f"{type(self).__name__} takes no argument {next(iter(unknown))!r}. The size of its batches is set by "
                f"{', '.join(f'{name}=' for name in self._sizes)}"
            )
        self.steps = None if steps is None else whole_number("steps", steps)
        self.seed = whole_number("seed", seed, 0)
        if num_replicas is not None:
            whole_number("num_replicas", num_replicas)
        if rank is not None:
            whole_number("rank", rank, 0)
        if num_replicas is None and rank is None:
            self._given = None
        elif num_replicas is None or rank is None:
            raise ValueError(
                f"num_replicas and rank must be given together; got {num_replicas} and {rank}. By default they are "
                "those of the process group"
            )
        elif rank >= num_replicas:
            raise ValueError(f"rank must be less than num_replicas = {num_replicas}; got {rank}")
        else:
            self._given = (num_replicas, rank)
        self._epoch = self._start = 0  # where the next iteration begins, unless one has begun
        self._epoch_is_set = False  # by set_epoch; a finished epoch is then not followed by the next one
        self._iterator: EpochIterator | None = None  # the last one that has begun since then

    def _arrange(self, outer: GroupedRows, size: int, chunks: int, drop_last: bool | None = None) -> None:
        """Make batches of at most ``chunks`` chunks, all of different groups, of at most ``size`` rows each."""
        self._outer, self._size, self._chunks, self._drop_last = outer, size, chunks, drop_last
        self._divide()  # raises if no batch would be left

    def _divide(self) -> Division:
        """Return the division among the replicas that there are at this moment."""
        replicas = self.num_replicas
        if self._division is None or self._division.replicas != replicas:
            if self._drop_last is None:
                edges, group = even_chunks(self._outer, self._size)
            else:
                edges = full_chunks(len(self._outer.rows), self._size, replicas, self._drop_last)
                group = np.zeros(len(edges) - 1, np.int64)
            steps = max(-(-len(group) // self._chunks), int(np.bincount(group).max()))
            self._division = Division(replicas, edges, group, -(-steps // replicas) * replicas)
        return self._division

    @property
    def _replica(self) -> tuple[int, int]:
        """The number of replicas, and which of them this is."""
        if self._given is not None:
            return self._given
        if not (dist.is_available() and dist.is_initialized()) or accelerate_divides():
            return 1, 0
        return dist.get_world_size(), dist.get_rank()

    @property
    def num_replicas(self) -> int:
        """Number of processes that the outer rows are divided among."""
        return self._replica[0]

    @property
    def rank(self) -> int:
        """The process that the sampler is for."""
        return self._replica[1]

    @property
    def sampler(self) -> CoupledSampler:
        """This sampler: Lightning and Accelerate call ``set_epoch`` on the ``sampler`` of a batch sampler."""
        return self

    @property
    def steps_per_pass(self) -> int:
        """Number of batches, on each rank, in which the ranks together visit every outer row once.

        With ``drop_last``, the rows of the batches that are left out are not visited.
        """
        division = self._divide()
        return division.batches // division.replicas

    @property
    def epoch(self) -> int:
        """The epoch of the last iteration, or the one that was set since then."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of ``epoch``.

        If this is the epoch that ``load_state_dict`` has loaded, it continues from its place. Nothing is left of it if
        it was over.

        Parameters
        ----------
        epoch : int
            The epoch, at least 0.
        """
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self._epoch or self._iterator is not None:
            self._epoch, self._start, self._iterator = epoch, 0, None
        self._epoch_is_set = True

    def state_dict(self, drawn: int | None = None) -> dict[str, int]:
        """Return the place in the epoch, which is the same on all ranks.

        Parameters
        ----------
        drawn : int, optional
            How many batches of this epoch were trained on. By default this is the number of batches drawn, which is
            right unless something draws ahead of training, as a DataLoader with workers does.

        Returns
        -------
        dict of str to int
            The place, and what must be the same when it is loaded.

        Raises
        ------
        ValueError
            If ``drawn`` exceeds the number of batches in an epoch.
        RuntimeError
            If batches were sent to the workers of a DataLoader, and ``drawn`` is not given.
        """
        if drawn is None:
            drawn = self._start if self._iterator is None else self._iterator.done()
        return self._state(self._epoch, self._within_epoch(drawn))

    def _state(self, epoch: int, drawn: int) -> dict[str, int]:
        return {"epoch": epoch, "drawn": drawn, **self._identity()}

    def _identity(self) -> dict[str, int]:
        """Return what must be the same in a state, so that the batches are the same."""
        return {"seed": self.seed, "batches": len(self), "steps_per_pass": self.steps_per_pass}

    def _within_epoch(self, drawn: int) -> int:
        if whole_number("drawn", drawn, 0) > len(self):
            raise ValueError(f"drawn must be at most {len(self)}, the number of batches in an epoch; got {drawn}")
        return drawn

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration draw the batches that remained.

        Parameters
        ----------
        state : dict
            What ``state_dict`` returned.

        Raises
        ------
        ValueError
            If the seed, the number of batches of an epoch or that of a pass differs, so that the batches would not be
            the same.
        """
        # A state that does not say how long a pass is comes from a sampler whose epochs are passes.
        found = {"steps_per_pass": state.get("batches"), **state}
        for key, own in self._identity().items():
            if found.get(key) != own:
                raise ValueError(f"{key} of the state must be {own}, as in this sampler; got {found.get(key)}")
        epoch, drawn = whole_number("epoch", state["epoch"], 0), self._within_epoch(state["drawn"])
        self._epoch, self._start, self._iterator, self._epoch_is_set = epoch, drawn, None, False

    def __len__(self) -> int:
        return self.steps_per_pass if self.steps is None else self.steps

    def __repr__(self) -> str:
        steps = f"{len(self)} step{'s' if len(self) > 1 else ''} an epoch"
        ranks = f" on each of {self.num_replicas} ranks" if self.num_replicas > 1 else ""
        one_pass = f"a pass over the {len(self._outer.rows)} outer rows takes {self.steps_per_pass}{ranks}"
        return f"{type(self).__name__}({steps}; {one_pass})"

    def __iter__(self) -> EpochIterator:
        return EpochIterator(self)

    def _next_place(self) -> tuple[int, int]:
        """Return the epoch of the next iteration, and how many of its batches are skipped."""
        if self._iterator is not None or (self._start >= len(self) and not self._epoch_is_set):
            return self._epoch + 1, 0
        return self._epoch, self._start

    def _begin(self, iterator: EpochIterator, epoch: int, drawn: int) -> Iterator[list[int]]:
        division, rank = self._divide(), self.rank
        if division.replicas > 1 and accelerate_divides() and is_in_prepared_loader(self):
            raise ValueError(
                f"num_replicas must not be given for a loader that Accelerate prepares; got {division.replicas}. "
                "Accelerate divides the batches among the ranks itself, and would drop most of those of each rank"
            )
        self._iterator, self._epoch = iterator, epoch
        first_pass, skipped = divmod(epoch * len(self) + drawn, self.steps_per_pass)
        stream = chain.from_iterable(self._pass(number, division, rank) for number in count(first_pass))
        return islice(stream, skipped, skipped + len(self) - drawn)

    def _pass(self, number: int, division: Division, rank: int) -> Iterator[list[int]]:
        """Yield the batches of one rank of one pass over the outer rows."""
        # Stream 0 is shared, because the ranks divide one order of the outer rows. Each rank draws its own inner rows.
        shared, own = (
            np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(number, stream)))
            for stream in (0, 1 + rank)
        )
        order = np.resize(self._outer.shuffled(shared), division.edges[-1])
        decks: dict[int, Deck] = {}
        for chunks in self._deal_chunks(division, shared)[:, rank :: division.replicas].T:
            places = [(division.group[c], order[division.edges[c] : division.edges[c + 1]]) for c in chunks if c >= 0]
            yield [row for group, outer in places for row in self._rows(int(group), outer.tolist(), decks, own)]

    def _deal_chunks(self, division: Division, rng: np.random.Generator) -> Ints:
        """Return the chunks of every batch, [chunks, batches], with -1 where there is none."""
        groups, steps, group = len(self._outer.bounds) - 1, division.batches, division.group
        if groups == 1:  # the rows are shuffled already, and short chunks belong at the end
            return np.arange(steps)[None] % len(group)
        # The chunks, in a random order of their groups, are cut into pieces of `steps`, with a chunk for every batch.
        # A group has at most `steps` chunks, so only a group that is cut in two could be twice in a batch.
        sequence = np.argsort(rng.permutation(groups)[group], kind="stable")
        sequence = np.resize(sequence, max(len(sequence), steps))
        dealt = np.full((-(-len(sequence) // steps), steps), -1)
        busy = np.zeros(steps, bool)
        for piece, start in zip(dealt, range(0, len(sequence), steps), strict=True):
            chunks = sequence[start : start + steps]
            cut = int((group[chunks] == group[sequence[start - 1]]).sum()) if start else 0
            free = rng.permutation(np.flatnonzero(~busy))
            places = np.append(free[:cut], rng.permutation(np.append(free[cut:], np.flatnonzero(busy))))
            piece[places[: len(chunks)]] = chunks
            busy = group[piece] == group[chunks[-1]]
        return dealt

    def _rows(self, group: int, outer: list[int], decks: dict[int, Deck], rng: np.random.Generator) -> list[int]:
        """Return the outer rows of a chunk, and inner rows from the deck of its group."""
        if self._inner is None:
            return outer
        if group not in decks:
            decks[group] = Deck(self._inner.of(group), rng)
        inner = decks[group].deal(self._inner_count(len(outer)), set(outer))
        return [*inner, *outer] if self._inner_first else [*outer, *inner]

    def _inner_count(self, outer_count: int) -> int:
        return self._inner_batch

    def _arrange_one_group(self, outer: Ints, outer_batch: int, inner: Ints, inner_batch: int, drop_last: bool) -> None:
        """Make batches of ``outer_batch`` rows of ``outer`` and ``inner_batch`` rows of ``inner``."""
        self._arrange(GroupedRows(outer), outer_batch, 1, drop_last)
        self._inner, self._inner_batch = GroupedRows(inner), inner_batch
