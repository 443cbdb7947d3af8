"""Row indices for any dataset, and batch samplers that feed the losses: B1 outer rows together with B2 inner rows.

All samplers work in the same way. A *pass* visits every outer row once, in a random order. Every batch also has inner
rows, which are dealt from a shuffled deck; the deck is shuffled again when it runs out. A row is never twice in a
batch. If there are fewer rows than asked for, the batch is smaller.

An epoch is one pass, unless ``steps`` is given. If only a few rows are outer rows, such as the positives of an
imbalanced task, a pass has far fewer steps than the usual epoch over all rows. ``print(sampler)`` shows how many steps
an epoch and a pass have. They are ``len(sampler)`` and ``sampler.steps_per_pass``.

Each sampler is a batch sampler for ``DataLoader(Indexed(dataset), batch_sampler=sampler)``. Each takes these keyword
arguments:

steps : int, optional
    Number of batches of an epoch, on each rank. An epoch begins where the last one ended: one pass follows another, and
    an epoch may consist of several passes or of a part of one. No row is therefore favoured. By default an epoch is one
    pass.
seed : int, default 0
    The batches of a pass depend only on the seed, the number of the pass and the rank.
num_replicas, rank : int, optional
    Number of processes, and the one that the sampler is for. By default they are those of the default process group
    when iteration begins, or 1 and 0 if there is none. The outer rows of a pass are divided among the processes without
    overlap, and all ranks have equally many batches. If a rank would have an empty batch, rows from the start of the
    pass are visited again. Each rank draws its inner rows independently.

    Accelerate divides the batches of a loader among the ranks itself. If it runs on several ranks, the default is
    therefore 1 and 0, and ``steps`` counts the batches of all ranks together.

``set_epoch(epoch)`` chooses the next epoch. Without it, every new iteration begins the next epoch.

A run that was stopped in the middle of an epoch continues with the batch after the last one trained on. Save
``loader.state_dict()`` with the model, and pass it to ``loader.load_state_dict()``, where the loader is a
:class:`ResumableLoader` or torchdata's ``StatefulDataLoader``. A loop without a loader uses the same two methods of the
sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import index as as_int
from typing import Any, Literal, Unpack

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fcco._checks import whole_number
from fcco._sampling import (
    CoupledSampler,
    GroupedRows,
    Split,
    as_vector,
    first_given,
    half_batch,
    relevant_rows,
    rows_by_class,
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


# More tensors in a list are rows rather than columns.
_MOST_COLUMNS = 8


class Indexed(Dataset[Any]):
    """A map-style dataset that adds to every item its row, which is the ``index`` that the losses need.

    ``(x, y)`` becomes ``(x, y, i)``, and a list is extended in the same way. A dict gets the key ``"index"``. Any other
    ``x`` becomes ``(x, i)``.

    Parameters
    ----------
    dataset : map-style dataset
        Anything with ``__getitem__`` and ``__len__``. Its ``__getitems__`` is used if it has one.
    *columns
        Must not be given. Tensors make a dataset as ``Indexed(TensorDataset(x, y))``.

    Raises
    ------
    TypeError
        If the dataset is iterable-style, since its items have no row, or if it consists of columns: a data frame, or
        tensors or arrays in a tuple or a list.
    ValueError
        If an item is a dict that already has the key ``"index"``.

    Notes
    -----
    The row is that of the wrapped dataset. ``Subset(Indexed(data), rows)`` keeps the rows of ``data``, so the loss
    needs a table of ``len(data)`` rows. ``Indexed(Subset(data, rows))`` counts from 0, for a table of ``len(rows)``
    rows.

    Examples
    --------
    >>> data = Indexed(["a", "b", "c"])
    >>> data[1], data[-1], len(data)
    (('b', 1), ('c', 2), 3)
    >>> Indexed([{"x": 0.5}])[0]
    {'x': 0.5, 'index': 0}
    """

    def __init__(self, dataset: Any, *columns: Any) -> None:
        if columns:
            raise TypeError(
                f"Indexed takes one dataset; got {1 + len(columns)} arguments. Pass Indexed(TensorDataset(x, y)), with "
                "TensorDataset of torch.utils.data"
            )
        has_rows = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not has_rows:
            raise TypeError(
                f"dataset must be a map-style dataset, with __getitem__ and __len__; got {type(dataset).__name__}"
            )
        _refuse_columns(dataset)
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
                f"index must be one row; got a list of {len(index)}. A sampler of fcco.data draws whole batches: "
                "pass it to DataLoader as batch_sampler=, not as sampler="
            )
        row, n = as_int(index), len(self)
        if not -n <= row < n:
            raise IndexError(f"index must be in [{-n}, {n}); got {row}")
        return row % n


def _refuse_columns(dataset: Any) -> None:
    """Refuse columns in place of a dataset, since its length would be their number."""
    advice = "torch.utils.data.TensorDataset(*tensors) makes a dataset of their rows"
    if hasattr(dataset, "columns") and hasattr(dataset, "iloc"):
        raise TypeError(
            f"dataset must be a map-style dataset; got a {type(dataset).__name__}, which is indexed by the names of "
            f"columns, not by rows. Turn its columns into tensors: {advice}"
        )
    parts = list(dataset) if isinstance(dataset, tuple | list) and 0 < len(dataset) <= _MOST_COLUMNS else []
    if not parts or not all(isinstance(part, Tensor | np.ndarray) for part in parts):
        return
    # Items have one number of dimensions, and columns, such as features and targets, one length.
    are_columns = len({part.ndim for part in parts}) > 1 and len({part.shape[:1] for part in parts}) == 1
    are_tensors = all(isinstance(part, Tensor) for part in parts)
    if are_columns or (are_tensors and isinstance(dataset, tuple)):
        noun = "tensors" if are_tensors else "arrays"
        kind = type(dataset).__name__
        raise TypeError(f"dataset must be a map-style dataset; got a {kind} of {len(parts)} {noun}. {advice}")


def _with_row(item: Any, row: int) -> Any:
    if isinstance(item, Mapping):
        if "index" in item:
            raise ValueError(f"items must not have the key 'index'; got {item['index']!r} under it in item {row}")
        return {**item, "index": row}
    if isinstance(item, list):
        return [*item, row]
    return (*item, row) if isinstance(item, tuple) else (item, row)


class ResumableLoader(DataLoader[Any]):
    """A ``DataLoader`` that can be saved and resumed in the middle of an epoch, with any number of workers.

    Workers draw batches ahead of training. The state of this loader counts the batches that it has handed out. A loop
    that saves the state after the step on a batch is therefore resumed at the next batch. The state is the same on all
    ranks.

    Parameters
    ----------
    dataset : Dataset
        The dataset, such as an :class:`Indexed`.
    batch_sampler : sampler
        One of the samplers of :mod:`fcco.data`.
    **options
        Other arguments of ``DataLoader``, such as ``num_workers``, ``persistent_workers`` and ``prefetch_factor``.

    Raises
    ------
    TypeError
        If ``batch_sampler`` is not a sampler of :mod:`fcco.data`.
    ValueError
        If ``in_order=False``, since the batches handed out are then not the first ones of the epoch.

    Examples
    --------
    >>> def make_loader():
    ...     sampler = OuterInnerSampler(8, outer_batch=2, inner_batch=1)
    ...     return ResumableLoader(Indexed("abcdefgh"), sampler, num_workers=1, prefetch_factor=4)
    >>> loader = make_loader()
    >>> for step, (letters, index) in enumerate(loader, start=1):
    ...     if step == 3:  # all 4 batches were sent to the worker
    ...         break
    >>> loader.state_dict()
    {'epoch': 0, 'drawn': 3, 'seed': 0, 'batches': 4, 'steps_per_pass': 4}
    >>> resumed = make_loader()
    >>> resumed.load_state_dict(loader.state_dict())
    >>> len(list(resumed)), len(list(resumed))  # the rest of this epoch, and the next epoch
    (1, 4)
    """

    batch_sampler: CoupledSampler

    def __init__(self, dataset: Dataset[Any], batch_sampler: CoupledSampler, **options: Any) -> None:
        if not isinstance(batch_sampler, CoupledSampler):
            raise TypeError(f"batch_sampler must be a sampler of fcco.data; got {type(batch_sampler).__name__}")
        if not options.get("in_order", True):
            raise ValueError("in_order must be True; got False: batches in another order cannot be resumed")
        super().__init__(dataset, batch_sampler=batch_sampler, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches that are left of the epoch."""
        iterator = None
        for batch in super().__iter__():
            iterator = iterator or self.batch_sampler._iterator
            assert iterator is not None  # it began when it drew this batch
            iterator.hand_out()
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the place in the epoch after the last batch handed out.

        Returns
        -------
        dict of str to int
            The place, and what must be the same when it is loaded.
        """
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration continue from a state.

        Parameters
        ----------
        state : mapping of str to int
            What :meth:`state_dict` returned.

        Raises
        ------
        ValueError
            If the batches would not be the same.
        """
        self.batch_sampler.load_state_dict(state)


class OuterInnerSampler(CoupledSampler):
    """The general case: ``outer_batch`` rows, then ``inner_batch`` further rows that are drawn uniformly.

    A pass visits every row once as an outer row. Its last batch may have fewer outer rows.

    Parameters
    ----------
    n : int
        Number of rows.
    outer_batch : int, default 32
        B1, the number of outer rows in a batch.
    inner_batch : int, optional
        B2, the number of inner rows in a batch. By default it equals ``outer_batch``.
    drop_last : bool, default False
        Leave out the last batch of a pass if it has fewer than ``outer_batch`` outer rows.
    **split
        ``steps``, ``seed``, ``num_replicas`` and ``rank``. See :mod:`fcco.data`.

    Raises
    ------
    ValueError
        If a size is less than 1, or if no batch is left.

    Examples
    --------
    >>> [len(batch) for batch in OuterInnerSampler(10, outer_batch=4)]  # 4 + 4, 4 + 4, 2 + 4
    [8, 8, 6]
    """

    _sizes = ("outer_batch", "inner_batch")

    def __init__(
        self,
        n: int,
        outer_batch: int = 32,
        inner_batch: int | None = None,
        *,
        drop_last: bool = False,
        **split: Unpack[Split],
    ) -> None:
        super().__init__(**split)
        rows = np.arange(whole_number("n", n))
        outer_size = whole_number("outer_batch", outer_batch)
        self._arrange_one_group(
            rows, outer_size, rows, whole_number("inner_batch", first_given(inner_batch, outer_batch)), drop_last
        )


class EventSampler(CoupledSampler):
    """For survival analysis: ``events`` rows with an event, then ``others`` rows of any kind.

    A pass visits every event once as an outer row. The other rows are drawn from *all* rows that are not in the batch
    yet, events and censored, since risk sets contain both. The last batch of a pass may have fewer outer rows.

    Parameters
    ----------
    event : array-like, [n]
        1 or True if the event was observed, 0 or False if it was censored.
    events : int, default 16
        B1, the number of events in a batch.
    others : int, optional
        B2, the number of other rows in a batch. By default it equals ``events``.
    drop_last : bool, default False
        Leave out the last batch of a pass if it has fewer than ``events`` outer rows.
    **split
        ``steps``, ``seed``, ``num_replicas`` and ``rank``. See :mod:`fcco.data`.

    Raises
    ------
    ValueError
        If ``event`` contains anything but 0 and 1, or no 1, if a size is less than 1, or if no batch is left.

    Examples
    --------
    >>> event = np.array([1, 0, 0, 1, 0, 1])
    >>> [event[batch[:2]].tolist() for batch in EventSampler(event, events=2, others=3, drop_last=True)]
    [[1, 1]]
    """

    _sizes = ("events", "others")

    def __init__(
        self,
        event: Any,
        events: int = 16,
        others: int | None = None,
        *,
        drop_last: bool = False,
        **split: Unpack[Split],
    ) -> None:
        super().__init__(**split)
        observed, censored = rows_by_class("event", event, needed=(1,))
        everyone = np.arange(len(observed) + len(censored))
        outer_size = whole_number("events", events)
        self._arrange_one_group(
            observed, outer_size, everyone, whole_number("others", first_given(others, events)), drop_last
        )


class PositiveNegativeSampler(CoupledSampler):
    """For binary tasks: ``positives`` rows of the positive class, then ``negatives`` rows of the negative class.

    A pass visits every row of the outer class once, and its last batch may have fewer of them. Within a pass, every row
    of the other class is drawn once before any is drawn again.

    By default an epoch is one pass, which has few steps if the outer class is rare. For as many steps as a loader takes
    that shuffles all ``n`` rows into batches of ``batch``, use ``steps=math.ceil(n / batch)``. On k ranks, use
    ``math.ceil(n / (batch * k))``, except with Accelerate, which divides the steps among the ranks.

    Parameters
    ----------
    target : array-like, [n]
        1 or True for the positive class, 0 or False for the negative class.
    positives : int, optional
        Number of positive rows in a batch. By default it equals ``negatives``, or 32.
    negatives : int, optional
        Number of negative rows in a batch. By default it equals ``positives``, or 32.
    outer : {"positive", "negative"}, default "positive"
        The class that a pass visits once. Use "positive" for average precision and "negative" for p-norm push. Use
        "negative" also for average precision if an epoch is to be a pass over the negatives.
    batch : int, optional
        The size of both halves together. It takes the place of ``positives`` and ``negatives``.
    drop_last : bool, default False
        Leave out the last batch of a pass if it has too few outer rows.
    **split
        ``steps``, ``seed``, ``num_replicas`` and ``rank``. See :mod:`fcco.data`.

    Raises
    ------
    ValueError
        If ``target`` contains anything but 0 and 1, or only one class, if a size is less than 1, or if no batch is
        left.

    Examples
    --------
    >>> target = np.array([1, 0, 0, 1, 0, 0, 0, 1])
    >>> [target[batch].tolist() for batch in PositiveNegativeSampler(target, positives=2)]
    [[1, 1, 0, 0], [1, 0, 0]]
    >>> import math
    >>> rare = np.arange(1000) < 50
    >>> PositiveNegativeSampler(rare, batch=64, steps=math.ceil(1000 / 64))
    PositiveNegativeSampler(16 steps an epoch; a pass over the 50 outer rows takes 2)
    """

    _sizes = ("positives", "negatives", "batch")

    def __init__(
        self,
        target: Any,
        positives: int | None = None,
        negatives: int | None = None,
        outer: Literal["positive", "negative"] = "positive",
        *,
        batch: int | None = None,
        drop_last: bool = False,
        **split: Unpack[Split],
    ) -> None:
        super().__init__(**split)
        if outer not in ("positive", "negative"):
            raise ValueError(f"outer must be 'positive' or 'negative'; got {outer!r}")
        if batch is not None:
            positives = negatives = half_batch(batch, positives, negatives)
        sizes = (
            whole_number("positives", first_given(positives, negatives, 32)),
            whole_number("negatives", first_given(negatives, positives, 32)),
        )
        rows = rows_by_class("target", target, needed=(1, 0))
        own, other = (0, 1) if outer == "positive" else (1, 0)
        self._inner_first = outer == "negative"
        self._arrange_one_group(rows[own], sizes[own], rows[other], sizes[other], drop_last)


class ClassSampler(CoupledSampler):
    """For neighbours and metric learning: batches of ``classes`` classes with ``per_class`` examples each.

    A pass visits every example once. A class of c examples is cut into ceil(c / per_class) parts, as even as
    possible, with at most one of them in a batch. An example is the only one of its class in a batch only if the class
    has one example, or if ``per_class=1``.

    The parts are spread evenly. The numbers of classes in two batches differ by at most one, and never exceed
    ``classes``. If a class has more parts than there would be batches, then every batch has a part of it, and the other
    classes are spread over these batches.

    Parameters
    ----------
    labels : array-like, [n]
        The class of each row, as numbers or strings.
    classes : int, default 8
        Largest number of classes in a batch.
    per_class : int, default 8
        Largest number of examples of each class in a batch.
    **split
        ``steps``, ``seed``, ``num_replicas`` and ``rank``. See :mod:`fcco.data`.

    Raises
    ------
    ValueError
        If ``labels`` is empty, is not 1-d or has missing values, or if a size is less than 1.

    Examples
    --------
    >>> labels = np.array(["cat", "dog", "cow", "cat", "dog", "cat"])
    >>> [sorted(labels[batch].tolist()) for batch in ClassSampler(labels, classes=3, per_class=3)]
    [['cat', 'cat', 'cat', 'cow', 'dog', 'dog']]
    """

    _sizes = ("classes", "per_class")

    def __init__(self, labels: Any, classes: int = 8, per_class: int = 8, **split: Unpack[Split]) -> None:
        super().__init__(**split)
        values, group = np.unique(as_vector("labels", labels), return_inverse=True)
        outer = GroupedRows(np.arange(len(group)), group, len(values))
        self._arrange(outer, whole_number("per_class", per_class), whole_number("classes", classes))


class QuerySampler(CoupledSampler):
    """For ranking: batches of ``queries`` queries with ``items`` items each, one query after the other.

    With ``relevance``, the outer rows are the relevant items. A pass visits each of them once. They come first in
    their query's part of the batch, and other items of the query fill it up to ``items``. Every other item is drawn
    once before any is drawn again. A query without a relevant item is never visited. Without ``relevance``, every item
    is an outer row.

    A query with more outer rows than ``items`` is cut into parts, as even as possible, with at most one of them in a
    batch. The numbers of queries in two batches differ by at most one, and never exceed ``queries``.

    Parameters
    ----------
    query : array-like, [n]
        The query of each item, as numbers or strings, in any order.
    relevance : array-like, [n], optional
        Relevance of each item. An item is relevant if it is above 0.
    queries : int, default 4
        Largest number of queries in a batch.
    items : int or None, default 32
        Largest number of items of each query in a batch. With ``None``, batches have whole lists.
    **split
        ``steps``, ``seed``, ``num_replicas`` and ``rank``. See :mod:`fcco.data`.

    Raises
    ------
    ValueError
        If values are missing, if the lengths differ, if no item is relevant, or if a size is less than 1.

    Examples
    --------
    >>> query, relevance = np.array([7, 7, 7, 7, 9, 9]), np.array([0, 2, 0, 0, 1, 0])
    >>> batches = list(QuerySampler(query, relevance, queries=1, items=3))
    >>> sorted(relevance[batch].tolist() for batch in batches)
    [[1, 0], [2, 0, 0]]
    """

    _sizes = ("queries", "items")

    def __init__(
        self, query: Any, relevance: Any = None, queries: int = 4, items: int | None = 32, **split: Unpack[Split]
    ) -> None:
        super().__init__(**split)
        values, group = np.unique(as_vector("query", query), return_inverse=True)
        self._items = whole_number("items", first_given(items, len(group)))
        is_outer = np.ones(len(group), bool) if relevance is None else relevant_rows(relevance, len(group))
        outer, inner = (GroupedRows(np.flatnonzero(rows), group[rows], len(values)) for rows in (is_outer, ~is_outer))
        self._arrange(outer, self._items, whole_number("queries", queries))
        self._inner = inner

    def _inner_count(self, outer_count: int) -> int:
        return self._items - outer_count
