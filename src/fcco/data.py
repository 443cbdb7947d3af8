"""Row indices for any dataset, and batch samplers that feed the losses: B1 outer rows next to B2 inner ones.

All samplers are one mechanism. An epoch *visits* every outer row once, in shuffled order; a batch is one or more
visits, each with inner rows dealt from a shuffled deck, which is reshuffled when it runs out. A row never stands twice
in a batch: where there are fewer rows than asked for, the batch is smaller.

Each is a batch sampler for ``DataLoader(Indexed(dataset), batch_sampler=sampler)``, and takes by keyword

- seed (0): the batches are a function of seed, epoch and rank alone.
- num_replicas (1), rank (0): the split over processes. The outer rows of an epoch are divided among the ranks without
  overlap, and all ranks have equally many batches. Only where a rank would be left with an empty batch are rows of the
  epoch's start visited again. Inner rows are dealt on each rank independently.

``set_epoch(epoch)`` chooses the next epoch; without it every new iteration begins the next one.

A run that was stopped in the middle of an epoch continues with the batch after the last one trained on. Save
``loader.state_dict()`` with the model, and give it to ``loader.load_state_dict()``, of a :class:`ResumableLoader` or of
torchdata's ``StatefulDataLoader``. A loop without a loader uses the same two methods of the sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import index as as_int
from typing import Any, Literal

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fcco._checks import whole_number
from fcco._sampling import (
    Pool,
    VisitSampler,
    even_visits,
    first_given,
    half,
    relevant_rows,
    rows_by_class,
    vector,
)

__all__ = [
    "ClassSampler",
    "EventSampler",
    "Indexed",
    "OuterInnerSampler",
    "PositiveNegativeSampler",
    "QuerySampler",
    "ResumableLoader",
]


class Indexed(Dataset[Any]):
    """A map-style dataset whose items also say which row they are: the ``index`` that the losses ask for.

    ``(x, y)`` becomes ``(x, y, i)``, a list likewise; a dict gets the key "index"; any other ``x`` becomes ``(x, i)``.

    The row is that of the dataset wrapped here. ``Subset(Indexed(data), rows)`` keeps the rows of ``data``, and the
    loss needs a table of ``len(data)``; ``Indexed(Subset(data, rows))`` counts from 0, for a table of ``len(rows)``.

    Args:
        dataset: anything with ``__getitem__`` and ``__len__``; its ``__getitems__`` is used where it has one.

    Raises:
        TypeError: the dataset is iterable-style: its items have no row.
        ValueError: an item is a dict that has the key ``"index"`` already.

    >>> data = Indexed(["a", "b", "c"])
    >>> data[1], data[-1], len(data)
    (('b', 1), ('c', 2), 3)
    >>> Indexed([{"x": 0.5}])[0]
    {'x': 0.5, 'index': 0}
    """

    def __init__(self, dataset: Any) -> None:
        has_rows = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not has_rows:
            raise TypeError(
                f"Indexed needs a map-style dataset, with __getitem__ and __len__, got {type(dataset).__name__}"
            )
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        row = self._row(index)
        return _with_row(self.dataset[row], row)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        rows = [self._row(index) for index in indices]
        many = getattr(self.dataset, "__getitems__", None)
        items = many(rows) if callable(many) else [self.dataset[row] for row in rows]
        return [_with_row(item, row) for item, row in zip(items, rows, strict=True)]

    def _row(self, index: int) -> int:
        if isinstance(index, list):
            raise TypeError(
                f"index must be one row, got a list of {len(index)}: a sampler of fcco.data draws whole batches; "
                "pass it to DataLoader as batch_sampler=, not as sampler="
            )
        row, n = as_int(index), len(self)
        if not -n <= row < n:
            raise IndexError(f"index {row} is outside the dataset's {n} rows")
        return row % n


def _with_row(item: Any, row: int) -> Any:
    if isinstance(item, Mapping):
        if "index" in item:
            raise ValueError(f"item {row} has the key 'index' already: {item['index']!r}")
        return {**item, "index": row}
    if isinstance(item, list):
        return [*item, row]
    return (*item, row) if isinstance(item, tuple) else (item, row)


class ResumableLoader(DataLoader[Any]):
    """A ``DataLoader`` that can be saved and resumed in the middle of an epoch, with any number of workers.

    Workers draw batches ahead of training. The state of this loader counts those that it has handed out: a loop that
    saves it after the step on a batch is resumed at the next batch. The state is the same on all ranks.

    Args:
        dataset: such as :class:`Indexed`.
        batch_sampler: one of :mod:`fcco.data`.
        options: what else ``DataLoader`` takes: ``num_workers``, ``persistent_workers``, ``prefetch_factor``, ...

    Raises:
        TypeError: ``batch_sampler`` is not of :mod:`fcco.data`.
        ValueError: ``in_order=False``: what was handed out is then no beginning of the epoch.

    >>> def make_loader():
    ...     sampler = OuterInnerSampler(8, outer_batch=2, inner_batch=1)
    ...     return ResumableLoader(Indexed("abcdefgh"), sampler, num_workers=1, prefetch_factor=4)
    >>> loader = make_loader()
    >>> for step, (letters, index) in enumerate(loader, start=1):
    ...     if step == 3:  # the worker was sent all 4
    ...         break
    >>> loader.state_dict()
    {'epoch': 0, 'drawn': 3, 'seed': 0, 'batches': 4}
    >>> resumed = make_loader()
    >>> resumed.load_state_dict(loader.state_dict())
    >>> len(list(resumed)), len(list(resumed))  # what was left, and the next epoch
    (1, 4)
    """

    batch_sampler: VisitSampler

    def __init__(self, dataset: Dataset[Any], batch_sampler: VisitSampler, **options: Any) -> None:
        if not isinstance(batch_sampler, VisitSampler):
            raise TypeError(f"batch_sampler must be a sampler of fcco.data, got {type(batch_sampler).__name__}")
        if not options.get("in_order", True):
            raise ValueError("in_order must be True: batches in another order cannot be resumed")
        super().__init__(dataset, batch_sampler=batch_sampler, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The batches that are left of the epoch."""
        iteration = None
        for batch in super().__iter__():
            iteration = iteration or self.batch_sampler._iteration
            assert iteration is not None  # it began when it drew this batch
            iteration.hand_out()
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The place in the epoch, after the last batch handed out."""
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration begin there; raise if the batches would not be the same."""
        self.batch_sampler.load_state_dict(state)


class OuterInnerSampler(VisitSampler):
    """The general case: ``outer_batch`` rows, then ``inner_batch`` further rows drawn uniformly from the others.

    An epoch visits every row once as an outer row. The last batch may have fewer outer rows.

    Args:
        n: number of rows.
        outer_batch: B1.
        inner_batch: B2; ``None``: as many.
        drop_last: leave out the last batch if it has fewer than ``outer_batch`` outer rows.
        split: ``seed``, ``num_replicas`` and ``rank``, see :mod:`fcco.data`.

    Raises:
        ValueError: a size is less than 1, or no batch is left.

    >>> [len(batch) for batch in OuterInnerSampler(10, outer_batch=4)]  # 4 + 4, 4 + 4, 2 + 4
    [8, 8, 6]
    """

    def __init__(
        self, n: int, outer_batch: int = 32, inner_batch: int | None = None, *, drop_last: bool = False, **split: int
    ) -> None:
        super().__init__(**split)
        rows = np.arange(whole_number("n", n))
        outer_size = whole_number("outer_batch", outer_batch)
        self._arrange_one_group(
            rows, outer_size, rows, whole_number("inner_batch", first_given(inner_batch, outer_batch)), drop_last
        )


class EventSampler(VisitSampler):
    """For survival: ``events`` rows with an event, then ``others`` rows of any kind that are not in the batch yet.

    An epoch visits every event once as an outer row; the others are drawn from *all* rows, events and censored, as risk
    sets hold both. The last batch may have fewer outer rows.

    Args:
        event: [n], 1 or True where the event was observed, 0 or False where it was censored.
        events: B1.
        others: B2; ``None``: as many.
        drop_last: leave out the last batch if it has fewer than ``events`` outer rows.
        split: ``seed``, ``num_replicas`` and ``rank``, see :mod:`fcco.data`.

    Raises:
        ValueError: ``event`` holds anything but 0 and 1, or no 1; a size is less than 1; no batch is left.

    >>> event = np.array([1, 0, 0, 1, 0, 1])
    >>> [event[batch[:2]].tolist() for batch in EventSampler(event, events=2, others=3, drop_last=True)]
    [[1, 1]]
    """

    def __init__(
        self, event: Any, events: int = 16, others: int | None = None, *, drop_last: bool = False, **split: int
    ) -> None:
        super().__init__(**split)
        observed, censored = rows_by_class("event", event, needed=(1,))
        everyone = np.arange(len(observed) + len(censored))
        outer_size = whole_number("events", events)
        self._arrange_one_group(
            observed, outer_size, everyone, whole_number("others", first_given(others, events)), drop_last
        )


class PositiveNegativeSampler(VisitSampler):
    """For binary tasks: ``positives`` rows of the positive class, then ``negatives`` rows of the other.

    An epoch visits every row of the outer class once, and its last batch may have fewer of them. The other class is
    dealt evenly within an epoch: every row of it once before any comes again.

    Args:
        target: [n], 1 or True for the positive class, 0 or False for the negative.
        positives: rows of the positive class; ``None``: as many as ``negatives``, or 32.
        negatives: rows of the negative class; ``None``: as many as ``positives``, or 32.
        outer: the class that an epoch passes over once: "positive" for average precision, "negative" for p-norm push,
            and for average precision when epochs are counted in passes over the negatives.
        batch: the size of both halves together, instead of ``positives`` and ``negatives``.
        drop_last: leave out the last batch if it is short of outer rows.
        split: ``seed``, ``num_replicas`` and ``rank``, see :mod:`fcco.data`.

    Raises:
        ValueError: ``target`` holds anything but 0 and 1, or one class only; a size is less than 1; no batch is left.

    >>> target = np.array([1, 0, 0, 1, 0, 0, 0, 1])
    >>> [target[batch].tolist() for batch in PositiveNegativeSampler(target, positives=2)]
    [[1, 1, 0, 0], [1, 0, 0]]
    """

    def __init__(
        self,
        target: Any,
        positives: int | None = None,
        negatives: int | None = None,
        outer: Literal["positive", "negative"] = "positive",
        *,
        batch: int | None = None,
        drop_last: bool = False,
        **split: int,
    ) -> None:
        super().__init__(**split)
        if outer not in ("positive", "negative"):
            raise ValueError(f"outer must be 'positive' or 'negative', got {outer!r}")
        if batch is not None:
            positives = negatives = half(batch, positives, negatives)
        sizes = (
            whole_number("positives", first_given(positives, negatives, 32)),
            whole_number("negatives", first_given(negatives, positives, 32)),
        )
        pools = rows_by_class("target", target, needed=(1, 0))
        own, other = (0, 1) if outer == "positive" else (1, 0)
        self._inner_first = outer == "negative"
        self._arrange_one_group(pools[own], sizes[own], pools[other], sizes[other], drop_last)


class ClassSampler(VisitSampler):
    """For neighbours and metric learning: batches of ``classes`` classes with ``per_class`` examples each.

    An epoch visits every example once. A class of c examples comes ceil(c / per_class) times, in parts as even as they
    can be and at most once in a batch; an example is without its like only if the class has one, or ``per_class=1``.
    The parts are spread evenly: batches have equally many classes, give or take one, and never more than ``classes``.
    A class with more parts than there would be batches is in every batch, and the others are spread over those.

    Args:
        labels: [n], numbers or strings.
        classes: classes in a batch, at most.
        per_class: examples of each, at most.
        split: ``seed``, ``num_replicas`` and ``rank``, see :mod:`fcco.data`.

    Raises:
        ValueError: ``labels`` is empty, not 1-d or has missing values; a size is less than 1.

    >>> labels = np.array(["cat", "dog", "cow", "cat", "dog", "cat"])
    >>> [sorted(labels[batch].tolist()) for batch in ClassSampler(labels, classes=3, per_class=3)]
    [['cat', 'cat', 'cat', 'cow', 'dog', 'dog']]
    """

    def __init__(self, labels: Any, classes: int = 8, per_class: int = 8, **split: int) -> None:
        super().__init__(**split)
        values, group = np.unique(vector("labels", labels), return_inverse=True)
        pool = Pool(np.arange(len(group)), group, len(values))
        self._arrange(pool, *even_visits(pool, whole_number("per_class", per_class)), whole_number("classes", classes))


class QuerySampler(VisitSampler):
    """For ranking: ``queries`` queries a batch with ``items`` items each, one query after the other.

    With ``relevance``, the outer rows are the relevant items: an epoch visits each once, first in its query's part of
    the batch, and other items of the query, dealt evenly, make up ``items``. A query without a relevant item is never
    visited. Without ``relevance`` every item is an outer row, visited once.

    A query with more outer rows than ``items`` comes several times, in parts as even as they can be and at most once in
    a batch. Batches have equally many queries, give or take one, and never more than ``queries``.

    Args:
        query: [n], the query of each item: numbers or strings, in any order.
        relevance: [n], relevant where > 0.
        queries: queries in a batch, at most.
        items: items of each, at most; ``None``: whole lists.
        split: ``seed``, ``num_replicas`` and ``rank``, see :mod:`fcco.data`.

    Raises:
        ValueError: values are missing, the lengths differ, nothing is relevant, or a size is less than 1.

    >>> query, relevance = np.array([7, 7, 7, 7, 9, 9]), np.array([0, 2, 0, 0, 1, 0])
    >>> batches = list(QuerySampler(query, relevance, queries=1, items=3))
    >>> sorted(relevance[batch].tolist() for batch in batches)
    [[1, 0], [2, 0, 0]]
    """

    def __init__(
        self, query: Any, relevance: Any = None, queries: int = 4, items: int | None = 32, **split: int
    ) -> None:
        super().__init__(**split)
        values, group = np.unique(vector("query", query), return_inverse=True)
        self._items = whole_number("items", first_given(items, len(group)))
        is_outer = np.ones(len(group), bool) if relevance is None else relevant_rows(relevance, len(group))
        outer, inner = (Pool(np.flatnonzero(rows), group[rows], len(values)) for rows in (is_outer, ~is_outer))
        self._arrange(outer, *even_visits(outer, self._items), whole_number("queries", queries))
        self._inner = inner

    def _inner_count(self, outer_count: int) -> int:
        return self._items - outer_count
