"""Row indices and batch samplers: the rows of a pass, the content of a batch, and their reproducibility."""

import copy
import pickle
from collections import Counter
from itertools import islice
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from fcco.data import (
    ClassSampler,
    EventSampler,
    Indexed,
    OuterInnerSampler,
    PositiveNegativeSampler,
    QuerySampler,
    ResumableLoader,
)

N = 60
RNG = np.random.default_rng(0)
TARGET = np.isin(np.arange(N), RNG.permutation(N)[:14])
LABELS = RNG.integers(0, 9, N)
QUERY = RNG.integers(0, 11, N)
RELEVANCE = RNG.integers(0, 3, N)

ALL = list(range(N))
POSITIVE, NEGATIVE = np.flatnonzero(TARGET).tolist(), np.flatnonzero(~TARGET).tolist()
RELEVANT = np.flatnonzero(RELEVANCE > 0).tolist()


def first_rows(inner):
    return lambda batch: batch[: len(batch) - inner]


def rows_in(rows):
    return lambda batch: [row for row in batch if row in rows]


# For each name: the constructor, the outer rows, and a function that selects the outer rows of a batch.
SAMPLERS = {
    "outer_inner": (lambda **kw: OuterInnerSampler(N, 7, 5, **kw), ALL, first_rows(5)),
    "positive": (lambda **kw: PositiveNegativeSampler(TARGET, 3, 4, **kw), POSITIVE, rows_in(POSITIVE)),
    "negative": (lambda **kw: PositiveNegativeSampler(TARGET, 3, 4, "negative", **kw), NEGATIVE, rows_in(NEGATIVE)),
    "event": (lambda **kw: EventSampler(TARGET, 3, 4, **kw), POSITIVE, first_rows(4)),
    "class": (lambda **kw: ClassSampler(LABELS, 3, 4, **kw), ALL, list),
    "query": (lambda **kw: QuerySampler(QUERY, None, 2, 3, **kw), ALL, list),
    "query_relevant": (lambda **kw: QuerySampler(QUERY, RELEVANCE, 2, 3, **kw), RELEVANT, rows_in(RELEVANT)),
    "query_lists": (lambda **kw: QuerySampler(QUERY, RELEVANCE, 2, None, **kw), RELEVANT, rows_in(RELEVANT)),
}
every_sampler = pytest.mark.parametrize(("make", "outer", "outer_of"), SAMPLERS.values(), ids=SAMPLERS)
quick = settings(deadline=None, max_examples=60)
sizes = st.integers(1, 9)


def epochs(sampler, count):
    return [list(sampler) for _ in range(count)]


def stream(sampler, count):
    """Return the batches of several epochs, one after the other."""
    return [batch for batches in epochs(sampler, count) for batch in batches]


def visited(batches, outer_of=list):
    return sorted(row for batch in batches for row in outer_of(batch))


def assert_no_repeats(batches):
    for batch in batches:
        assert batch
        assert len(set(batch)) == len(batch)


class Pairs:
    """A map-style dataset that is not a torch Dataset, and that counts how it is read."""

    def __init__(self):
        self.bulk_reads = 0

    def __len__(self):
        return 5

    def __getitem__(self, row):
        return 10 * row, -row

    def __getitems__(self, rows):
        self.bulk_reads += 1
        return [self[row] for row in rows]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (("x", "y"), ("x", "y", 0)),
        (["x", "y"], ["x", "y", 0]),
        ({"x": 1}, {"x": 1, "index": 0}),
        ("x", ("x", 0)),
        (None, (None, 0)),
        ((), (0,)),
    ],
)
def test_indexed_adds_the_row_to_any_item(item, expected):
    assert Indexed([item])[0] == expected


def test_indexed_counts_negative_indices_from_the_end():
    data = Indexed(Pairs())
    assert data[-1] == (40, -4, 4)
    assert data[torch.tensor(2)] == (20, -2, 2)
    assert len(data) == 5
    assert [item[-1] for item in data] == [0, 1, 2, 3, 4]
    for index in (5, -6):
        with pytest.raises(IndexError, match=rf"index must be in \[-5, 5\); got {index}"):
            data[index]


def test_indexed_reads_in_bulk_where_the_dataset_can():
    data = Indexed(Pairs())
    assert data.__getitems__([3, -5]) == [(30, -3, 3), (0, 0, 0)]
    assert data.dataset.bulk_reads == 1
    assert Indexed("abc").__getitems__([2, 0]) == [("c", 2), ("a", 0)]


def test_indexed_and_subset_in_either_order():
    data = TensorDataset(torch.arange(10.0))
    kept, renumbered = Subset(Indexed(data), [7, 3]), Indexed(Subset(data, [7, 3]))
    assert [row for _, row in kept] == [7, 3]
    assert [row for _, row in renumbered] == [0, 1]
    assert [int(x) for x, _ in renumbered] == [7, 3]
    x, index = next(iter(DataLoader(kept, batch_size=2)))
    assert torch.equal(x, index.float())


def test_indexed_refuses_what_has_no_rows():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    for dataset in (Stream(), iter([1]), {1, 2}):
        with pytest.raises(TypeError, match=f"map-style dataset.* got {type(dataset).__name__}"):
            Indexed(dataset)
    with pytest.raises(TypeError, match=r"got a tuple of 2 tensors\. torch.utils.data.TensorDataset"):
        Indexed((torch.zeros(5, 2), torch.zeros(5)))
    with pytest.raises(ValueError, match="items must not have the key 'index'; got 5 under it in item 0"):
        Indexed([{"index": 5}])[0]


@every_sampler
def test_an_epoch_visits_every_outer_row_once(make, outer, outer_of):
    for drawn in epochs(make(), 3):
        assert visited(drawn, outer_of) == outer
        assert_no_repeats(drawn)
        assert len(drawn) == len(make())
        assert all(type(row) is int for batch in drawn for row in batch)


@every_sampler
def test_seed_and_epoch_decide_everything(make, outer, outer_of):
    first, second = epochs(make(seed=3), 2)
    assert first != second
    assert epochs(make(seed=3), 2) == [first, second]
    assert list(make(seed=4)) != first
    sampler = make(seed=3)
    sampler.set_epoch(1)
    assert list(sampler) == second
    sampler.set_epoch(1)
    assert list(sampler) == second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert sampler.epoch == 0


@every_sampler
def test_a_new_iteration_is_a_new_epoch_even_if_the_last_was_left(make, outer, outer_of):
    reference, sampler = epochs(make(), 3), make()
    assert next(iter(sampler)) == reference[0][0]
    iter(sampler)  # DataLoader also makes an iterator that it does not use
    assert list(sampler) == reference[1]
    assert list(sampler) == reference[2]


@every_sampler
def test_global_random_state_is_neither_used_nor_changed(make, outer, outer_of):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = list(make())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert list(make()) == first


@every_sampler
@pytest.mark.parametrize("replicas", [2, 3, 50])
def test_ranks_divide_the_outer_rows(make, outer, outer_of, replicas):
    ranks = [make(num_replicas=replicas, rank=rank) for rank in range(replicas)]
    drawn = [list(sampler) for sampler in ranks]
    assert {len(batches) for batches in drawn} == {len(ranks[0])}
    for batches in drawn:
        assert_no_repeats(batches)
    times = Counter(row for batches in drawn for row in visited(batches, outer_of))
    assert sorted(times) == outer
    if replicas < 10:  # every rank then has a share of the last round
        assert max(times.values()) == 1
    assert drawn[0] != drawn[1]


@every_sampler
@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader_draws_the_same_batches(make, outer, outer_of, workers):
    x = torch.arange(N, dtype=torch.float64)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(Indexed(TensorDataset(x, 2 * x)), batch_sampler=make(), **options)
    assert len(loader) == len(make())
    for expected in epochs(make(), 2):
        loaded = list(loader)
        assert [index.tolist() for _, _, index in loaded] == expected
        assert all(torch.equal(x, index.double()) and torch.equal(y, 2 * x) for x, y, index in loaded)


@every_sampler
@pytest.mark.parametrize("steps", [1, 4, 40])
def test_epochs_with_steps_are_parts_of_the_stream_of_passes(make, outer, outer_of, steps):
    sampler = make(steps=steps, seed=3)
    length = len(make())
    assert (len(sampler), sampler.steps, sampler.steps_per_pass) == (steps, steps, length)
    expected = stream(make(seed=3), 3 * steps // length + 1)
    for epoch, batches in enumerate(epochs(sampler, 3)):
        assert batches == expected[epoch * steps : (epoch + 1) * steps]
    assert sampler.epoch == 2


@every_sampler
def test_without_steps_an_epoch_is_a_pass(make, outer, outer_of):
    sampler = make(steps=None)
    assert len(sampler) == sampler.steps_per_pass
    assert epochs(sampler, 2) == epochs(make(), 2) == epochs(make(steps=len(make())), 2)


@every_sampler
@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("steps", [2, 7])
def test_steps_favour_no_row_and_ranks_divide_every_pass(make, outer, outer_of, replicas, steps):
    ranks = [make(steps=steps, num_replicas=replicas, rank=rank) for rank in range(replicas)]
    length = ranks[0].steps_per_pass
    drawn = [epochs(sampler, length) for sampler in ranks]
    assert {len(batches) for of_rank in drawn for batches in of_rank} == {steps}
    flat = [[batch for batches in of_rank for batch in batches] for of_rank in drawn]
    for start in range(0, length * steps, length):
        one_pass = [batch for batches in flat for batch in batches[start : start + length]]
        assert visited(one_pass, outer_of) == outer
        assert_no_repeats(one_pass)


@every_sampler
def test_set_epoch_with_steps(make, outer, outer_of):
    reference, sampler = epochs(make(steps=5), 4), make(steps=5)
    for epoch in (2, 2, 0, 3, 1):
        sampler.set_epoch(epoch)
        assert list(sampler) == reference[epoch]
    assert list(sampler) == reference[2]


def test_a_late_epoch_begins_at_once():
    """Epoch 9 million begins after 180 million batches. Drawing all of them first would take half an hour."""
    sampler, passes = OuterInnerSampler(N, 7, 5, steps=20), OuterInnerSampler(N, 7, 5)
    sampler.set_epoch(9_000_000)
    passes.set_epoch(20_000_000)
    expected = stream(passes, 3)
    assert list(sampler) == expected[:20]
    sampler.load_state_dict({**sampler.state_dict(drawn=17), "epoch": 9_000_000})
    assert list(sampler) == expected[17:20]


@every_sampler
def test_the_group_is_that_of_the_moment(make, outer, outer_of, monkeypatch):
    """A sampler made before there is a group has the rank's part of every later epoch."""
    sampler, alone, explicit = make(), make(), make(num_replicas=2, rank=1)
    assert list(sampler) == list(alone)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    list(explicit)
    assert (repr(sampler), len(sampler)) == (repr(explicit), len(explicit))
    assert (sampler.steps_per_pass, sampler.num_replicas, sampler.rank) == (explicit.steps_per_pass, 2, 1)
    assert [list(islice(sampler, 2)), sampler.state_dict()] == [list(islice(explicit, 2)), explicit.state_dict()]
    resumed = make()
    resumed.load_state_dict(explicit.state_dict())
    assert list(resumed) == epochs(make(num_replicas=2, rank=1), 2)[1][2:]
    for each in (sampler, explicit):
        each.set_epoch(7)
    assert list(sampler) == list(explicit)
    assert make(num_replicas=1, rank=0).num_replicas == 1


@every_sampler
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("steps", [None, 2, 12])
def test_a_run_resumes_in_mid_epoch(make, outer, outer_of, replicas, steps):
    options = {"num_replicas": replicas, "rank": replicas - 1, "seed": 5, "steps": steps}
    reference = epochs(make(**options), 3)
    for drawn in range(len(reference[1]) + 1):
        sampler = make(**options)
        list(sampler)
        if drawn:
            list(islice(sampler, drawn))
        # Before epoch 1 has begun, the state is the end of epoch 0.
        state = sampler.state_dict()
        assert (state["epoch"], state["drawn"]) == ((1, drawn) if drawn else (0, len(sampler)))
        resumed = make(**options)
        list(islice(resumed, 2))
        resumed.load_state_dict(state)
        left = reference[1][drawn:] if drawn < len(sampler) else []
        assert (list(resumed) if left else []) == left
        assert list(resumed) == reference[2]


def test_a_sampler_does_not_mistake_what_workers_drew_for_what_was_trained_on():
    make = SAMPLERS["outer_inner"][0]
    reference, sampler = epochs(make(), 2), make()
    loader = DataLoader(Indexed(range(N)), batch_sampler=sampler, num_workers=2)
    for trained, (_, index) in enumerate(loader, start=1):
        assert index.tolist() == reference[0][trained - 1]
        if trained == 3:
            break
    with pytest.raises(RuntimeError, match=r"draws batches ahead of training.*ResumableLoader.*as drawn"):
        sampler.state_dict()
    resumed = make()
    resumed.load_state_dict(sampler.state_dict(drawn=3))
    assert list(resumed) == reference[0][3:]
    # The next batch is drawn in this process, so it counts.
    assert next(iter(sampler)) == reference[1][0]
    assert sampler.state_dict()["drawn"] == 1


def torchdata_loader(dataset, sampler, **options):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    return stateful.StatefulDataLoader(dataset, batch_sampler=sampler, **options)


def train(loader, sampler, start=0, stop=None, set_epoch=False):
    """Return the rows of two epochs of training, and the state saved after ``stop`` batches."""
    seen = []
    for epoch in range(start, 2):
        if set_epoch:
            sampler.set_epoch(epoch)
        for _, index in loader:
            seen.append(index.tolist())
            if len(seen) == stop:
                return seen, pickle.dumps((epoch, loader.state_dict()))
    return seen, None


ignore_set_vital = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
every_loader = pytest.mark.parametrize("make_loader", [ResumableLoader, torchdata_loader])
KINDS_OF_WORKERS = {
    "none": {},
    "prefetching": {"num_workers": 1, "prefetch_factor": 5},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
every_kind_of_workers = pytest.mark.parametrize("workers", KINDS_OF_WORKERS.values(), ids=KINDS_OF_WORKERS)


@ignore_set_vital
@every_loader
@every_kind_of_workers
def test_a_loader_resumes_between_epochs(make_loader, workers):
    reference = epochs(OuterInnerSampler(N, 9, 5), 3)
    for done in range(2):
        loader, resumed = (make_loader(Indexed(range(N)), OuterInnerSampler(N, 9, 5), **workers) for _ in "12")
        for _ in range(done):
            list(loader)
        resumed.load_state_dict(loader.state_dict())
        for expected in reference[done:]:
            assert [index.tolist() for _, index in resumed] == expected


WAYS_TO_TRAIN = [(1, False, None), (1, True, None), (2, True, None), (1, False, 10), (2, True, 3)]


# Where a loader has workers, it starts 17 of them in a test: every way to train meets one of the two kinds.
@ignore_set_vital
@every_loader
@pytest.mark.parametrize(
    ("workers", "replicas", "set_epoch", "steps"),
    [
        pytest.param(KINDS_OF_WORKERS[kind], *way, id=f"{kind}-{'-'.join(map(str, way))}")
        for k, way in enumerate(WAYS_TO_TRAIN)
        for kind in ("none", ("prefetching", "persistent")[k % 2])
    ],
)
def test_a_loader_resumes_after_the_last_batch_trained_on(make_loader, workers, replicas, set_epoch, steps):
    def begin():
        sampler = OuterInnerSampler(N, 9, 5, num_replicas=replicas, rank=replicas - 1, seed=5, steps=steps)
        return make_loader(Indexed(range(N)), sampler, **workers), sampler

    expected = stream(begin()[1], 2)
    length = len(expected) // 2
    assert train(*begin(), set_epoch=set_epoch) == (expected, None)
    for stop in (1, length - 1, length, length + 2):
        seen, saved = train(*begin(), stop=stop, set_epoch=set_epoch)
        epoch, state = pickle.loads(saved)
        loader, sampler = begin()
        loader.load_state_dict(state)
        left, _ = train(loader, sampler, start=epoch, set_epoch=set_epoch)
        # If nothing is left of the epoch, a loop without set_epoch continues with the next one.
        assert seen + left[: None if set_epoch else len(expected) - stop] == expected


@every_sampler
@pytest.mark.parametrize("steps", [None, 11])
def test_a_loader_resumes_time_and_again(make, outer, outer_of, steps):
    expected = stream(make(steps=steps), 2)
    seen, state = [], ResumableLoader(Indexed(range(N)), make(steps=steps)).state_dict()
    while len(seen) < len(expected):
        loader = ResumableLoader(Indexed(range(N)), make(steps=steps))
        assert len(loader) == len(expected) // 2
        loader.load_state_dict(state)
        seen += [index.tolist() for _, index in islice(loader, 2)]
        state = loader.state_dict()
        assert state == loader.batch_sampler.state_dict()
    assert seen[: len(expected)] == expected


def test_a_loader_counts_for_the_iteration_that_is_trained_on():
    loader = ResumableLoader(Indexed(range(N)), OuterInnerSampler(N, 7, 5))
    first, second = iter(loader), iter(loader)
    for batches in (first, first, second, first):
        next(batches)
    same = {"seed": 0, "batches": 9, "steps_per_pass": 9}
    assert loader.state_dict() == {"epoch": 1, "drawn": 1, **same}
    loader.batch_sampler.set_epoch(5)
    next(second)
    assert loader.state_dict() == {"epoch": 5, "drawn": 0, **same}


def test_a_loader_refuses_what_it_cannot_resume():
    with pytest.raises(TypeError, match=r"batch_sampler must be a sampler of fcco\.data; got list"):
        ResumableLoader(Indexed(range(4)), [[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="in_order must be True"):
        ResumableLoader(Indexed(range(4)), OuterInnerSampler(4), num_workers=2, in_order=False)


@pytest.mark.parametrize("steps", [None, 4, 20])
def test_nothing_is_left_of_an_epoch_that_was_over(steps):
    sampler = OuterInnerSampler(N, 7, 5, steps=steps)
    reference = epochs(OuterInnerSampler(N, 7, 5, steps=steps), 3)
    over = sampler.state_dict(drawn=len(sampler))
    for epoch, expected in [(0, []), (1, reference[1])]:
        sampler.load_state_dict(over)
        sampler.set_epoch(epoch)
        assert list(sampler) == expected
        assert list(sampler) == reference[epoch + 1]


@every_sampler
def test_a_batch_sampler_given_as_sampler_is_told_so(make, outer, outer_of):
    with pytest.raises(TypeError, match=r"got a list of \d+\. .* as batch_sampler=, not as sampler="):
        next(iter(DataLoader(Indexed(range(N)), sampler=make(), batch_size=2)))


def test_an_iteration_left_behind_does_not_count():
    sampler = OuterInnerSampler(N, 4)
    left = iter(sampler)
    next(left)
    sampler.set_epoch(7)
    next(left)
    assert (sampler.epoch, sampler.state_dict()["drawn"]) == (7, 0)


def test_a_state_of_another_sampler_is_refused():
    sampler = OuterInnerSampler(N, 4)
    for other, what in [
        (OuterInnerSampler(N, 4, seed=1), "seed .* got 1"),
        (OuterInnerSampler(N, 5), "batches .* got 12"),
    ]:
        with pytest.raises(ValueError, match=what):
            sampler.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="drawn must be at least 0; got -1"):
        sampler.load_state_dict({**sampler.state_dict(), "drawn": -1})
    too_many = "drawn must be at most 15, the number of batches in an epoch; got 16"
    with pytest.raises(ValueError, match=too_many):
        sampler.load_state_dict({**sampler.state_dict(), "drawn": 16})
    with pytest.raises(ValueError, match=too_many):
        sampler.state_dict(drawn=16)
    assert sampler.state_dict()["drawn"] == 0


@pytest.mark.parametrize(
    ("options", "other_options", "what"),
    [
        ({"steps": 20}, {"steps": 21}, "batches of the state must be 20, .* got 21"),
        ({"steps": 20}, {}, "batches of the state must be 20, .* got 15"),
        ({}, {"steps": 20}, "batches of the state must be 15, .* got 20"),
        ({"steps": 20}, {"steps": 20, "outer_batch": 5}, "steps_per_pass of the state must be 15, .* got 12"),
        (
            {"steps": 20},
            {"steps": 20, "num_replicas": 3, "rank": 0},
            "steps_per_pass of the state must be 15, .* got 5",
        ),
        ({"steps": 12}, {"outer_batch": 5}, "steps_per_pass of the state must be 15, .* got 12"),
    ],
)
def test_a_state_with_other_steps_or_passes_is_refused(options, other_options, what):
    sampler, other = (OuterInnerSampler(N, **{"outer_batch": 4, **given}) for given in (options, other_options))
    with pytest.raises(ValueError, match=what):
        sampler.load_state_dict(other.state_dict())
    assert list(sampler) == list(OuterInnerSampler(N, 4, **options))


def test_a_state_that_does_not_name_the_pass_is_of_epochs_that_are_passes():
    reference = OuterInnerSampler(N, 4)
    state = {"epoch": 1, "drawn": 9, "seed": 0, "batches": 15}
    for steps in (None, 15):
        sampler = OuterInnerSampler(N, 4, steps=steps)
        sampler.load_state_dict(state)
        reference.set_epoch(1)
        assert list(sampler) == list(reference)[9:]
    with pytest.raises(ValueError, match=r"steps_per_pass of the state must be 12, .* got 15"):
        OuterInnerSampler(N, 5, steps=15).load_state_dict(state)


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (OuterInnerSampler(N, 7), "OuterInnerSampler(9 steps an epoch; a pass over the 60 outer rows takes 9)"),
        (
            PositiveNegativeSampler(TARGET, 3, steps=20),
            "PositiveNegativeSampler(20 steps an epoch; a pass over the 14 outer rows takes 5)",
        ),
        (
            EventSampler(TARGET, 3, steps=1, num_replicas=2, rank=0),
            "EventSampler(1 step an epoch; a pass over the 14 outer rows takes 3 on each of 2 ranks)",
        ),
        (
            ClassSampler(np.arange(30) // 3, 5, 3),
            "ClassSampler(2 steps an epoch; a pass over the 30 outer rows takes 2)",
        ),
        (
            QuerySampler([0, 0, 1, 1], [1, 0, 1, 0], 1, steps=3),
            "QuerySampler(3 steps an epoch; a pass over the 2 outer rows takes 2)",
        ),
    ],
)
def test_a_sampler_says_how_many_steps_an_epoch_has(sampler, expected):
    assert repr(sampler) == expected
    assert len(list(sampler)) == len(sampler)
    with pytest.raises(AttributeError):
        sampler.steps_per_pass = 3


@every_sampler
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
@pytest.mark.parametrize("steps", [None, 2, 30])
def test_copies_go_on_alike(make, outer, outer_of, clone, steps):
    sampler = make(steps=steps)
    iteration = iter(sampler)
    next(iteration)
    assert clone(sampler).state_dict() == sampler.state_dict()
    assert list(clone(iteration)) == list(iteration)
    assert list(clone(sampler)) == list(sampler)


def test_a_loader_that_keeps_states_of_iterations_may_send_batches_to_workers():
    """Like torchdata's loader, it asks the sampler and its iterator for the state before it sends a batch."""
    make = SAMPLERS["outer_inner"][0]
    reference, sampler = epochs(make(), 2), make()
    iteration, kept = iter(sampler), []
    for _ in range(4):
        kept.append((iteration.state_dict(), sampler.state_dict()))
        ForkingPickler.dumps(next(iteration))
    for drawn, (of_iteration, of_sampler) in enumerate(kept):
        resumed = make()
        resumed.load_state_dict(of_sampler)
        again = iter(resumed)
        again.load_state_dict(of_iteration)
        assert list(again) == reference[0][drawn:]
        assert list(resumed) == reference[1]


@pytest.mark.parametrize(
    ("make", "outer_size"),
    [
        (lambda **kw: OuterInnerSampler(N, 7, 5, **kw), 7),
        (lambda **kw: PositiveNegativeSampler(TARGET, 3, 5, **kw), 3),
        (lambda **kw: EventSampler(TARGET, 3, 5, **kw), 3),
    ],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_only_the_last_batch_is_short_and_can_be_dropped(make, outer_size, replicas):
    for rank in range(replicas):
        lengths = [len(batch) for batch in make(num_replicas=replicas, rank=rank)]
        assert set(lengths[:-1]) == {outer_size + 5}
        assert 5 < lengths[-1] < outer_size + 5
        full = make(num_replicas=replicas, rank=rank, drop_last=True)
        assert [len(batch) for batch in full] == lengths[:-1]
        assert len(full) == len(lengths) - 1


@quick
@given(st.data(), sizes, sizes, st.integers(1, 5), st.integers(0, 2**40))
def test_outer_inner_epochs(data, outer_batch, inner_batch, replicas, seed):
    n = data.draw(st.integers(outer_batch + inner_batch, 40))
    split = [
        OuterInnerSampler(n, outer_batch, inner_batch, seed=seed, num_replicas=replicas, rank=r)
        for r in range(replicas)
    ]
    drawn = [list(sampler) for sampler in split]
    assert {len(batches) for batches in drawn} == {-(-n // (outer_batch * replicas))}
    outer = Counter()
    for batches in drawn:
        assert_no_repeats(batches)
        assert all(inner_batch < len(batch) <= outer_batch + inner_batch for batch in batches)
        outer.update(visited(batches, first_rows(inner_batch)))
    assert set(outer) == set(range(n))
    assert outer.total() < n + replicas  # rows visited again are fewer than the ranks ...
    if n % (outer_batch * replicas) == 0 or n % (outer_batch * replicas) >= replicas:
        assert outer.total() == n  # ... and none where every rank has a share of the last round


@quick
@given(st.lists(st.booleans(), min_size=2, max_size=40), sizes, sizes, st.booleans(), st.integers(1, 4))
def test_positive_negative_epochs(target, positives, negatives, positive_is_outer, replicas):
    target = np.array([True, False, *target])
    outer = "positive" if positive_is_outer else "negative"
    times = Counter()
    for rank in range(replicas):
        sampler = PositiveNegativeSampler(target, positives, negatives, outer, num_replicas=replicas, rank=rank)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert_no_repeats(batches)
        for batch in batches:
            labels = target[batch]
            assert (np.diff(labels.astype(int)) <= 0).all()  # positives first
            inner_size, inner_count = (negatives, ~target) if positive_is_outer else (positives, target)
            assert (labels != positive_is_outer).sum() == min(inner_size, inner_count.sum())
            assert 1 <= (labels == positive_is_outer).sum() <= (positives if positive_is_outer else negatives)
        times.update(visited(batches, rows_in(np.flatnonzero(target == positive_is_outer))))
    assert set(times) == set(np.flatnonzero(target == positive_is_outer))
    assert times.total() < (target == positive_is_outer).sum() + replicas


@pytest.mark.parametrize(("negatives", "size"), [(10, 4), (7, 7), (9, 5), (31, 3)])
def test_the_other_class_is_dealt_evenly(negatives, size):
    target = np.arange(40 + negatives) < 40
    times = Counter()
    for batch in PositiveNegativeSampler(target, 1, size):
        times.update(batch[1:])
        assert max(times.values()) - min(times[row] for row in range(40, 40 + negatives)) <= 1


def test_the_deck_is_reshuffled_after_every_pass():
    target = np.arange(60) < 30
    dealt = [row for batch in PositiveNegativeSampler(target, 1, 2) for row in batch[1:]]
    assert sorted(dealt[:30]) == sorted(dealt[30:]) == list(range(30, 60))
    assert dealt[:30] != dealt[30:]


def test_ranks_deal_inner_rows_independently():
    target = np.arange(1000) < 8
    inner = [
        [row for batch in PositiveNegativeSampler(target, 2, 20, num_replicas=2, rank=rank) for row in batch[2:]]
        for rank in range(2)
    ]
    assert len(set(inner[0]) & set(inner[1])) < 20  # 1.6 of 40 are expected


def test_an_epoch_over_the_negatives_for_average_precision():
    sampler = PositiveNegativeSampler(TARGET, 4, 4, outer="negative")
    batches = list(sampler)
    assert len(batches) == -(-len(NEGATIVE) // 4)
    times = Counter(row for batch in batches for row in batch[:4])
    assert sorted(times) == POSITIVE
    assert max(times.values()) - min(times.values()) <= 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (32, 32)),
        ({"batch": 64}, (32, 32)),
        ({"batch": 10}, (5, 5)),
        ({"positives": 6}, (6, 6)),
        ({"negatives": 6}, (6, 6)),
        ({"positives": 6, "negatives": 2}, (6, 2)),
    ],
)
def test_sizes_are_halves_by_default(options, expected):
    target = np.arange(200) % 2
    labels = target[next(iter(PositiveNegativeSampler(target, **options)))]
    assert (labels.sum(), (1 - labels).sum()) == expected


def test_inner_sizes_follow_outer_sizes():
    event = np.arange(200) % 2
    assert len(next(iter(OuterInnerSampler(200)))) == 64
    assert len(next(iter(OuterInnerSampler(200, 5)))) == 10
    assert len(next(iter(EventSampler(event)))) == 32
    assert len(next(iter(EventSampler(event, 5)))) == 10


def test_pools_smaller_than_asked_for_give_what_they_have():
    assert sorted(map(len, OuterInnerSampler(5, 4, 4))) == [5, 5]
    assert list(OuterInnerSampler(1)) == [[0]]
    assert [len(batch) for batch in PositiveNegativeSampler([1, 1, 1, 0, 0], 2, 9)] == [4, 3]
    assert [sorted(batch) for batch in EventSampler([0, 1, 0], 2, 9)] == [[0, 1, 2]]


@quick
@given(st.lists(st.booleans(), max_size=30), sizes, sizes, st.integers(0, 9))
def test_event_epochs(event, events, others, seed):
    event = np.array([True, *event])
    sampler = EventSampler(event, events, others, seed=seed)
    batches, left = list(sampler), int(event.sum())
    seen = []
    for batch in batches:
        count = min(events, left)
        left -= count
        seen += batch[:count]
        assert len(batch) == count + min(others, len(event) - count)
    assert sorted(seen) == np.flatnonzero(event).tolist()
    assert_no_repeats(batches)


def test_others_are_events_and_censored_alike():
    others = Counter(row for _ in range(40) for batch in EventSampler(TARGET, 3, 20, seed=_) for row in batch[3:])
    assert set(others) == set(ALL)


def test_inner_rows_are_uniform_over_the_others():
    """Every (outer, inner) pair of 4 rows is equally likely at every place of the epoch, seams of the deck included.

    4,000 epochs expect 333 of each; 5 standard deviations are 87. A deck that is not shuffled at first never gives some
    pairs: it misses by 333.
    """
    sampler = OuterInnerSampler(4, 1, 1)
    pairs = [Counter() for _ in range(4)]
    for _ in range(4000):
        for place, batch in zip(pairs, sampler, strict=True):
            place[tuple(batch)] += 1
    for place in pairs:
        assert len(place) == 12
        assert all(abs(count - 4000 / 12) < 87 for count in place.values())


def parts_of(batches, group):
    """Return for every group the number of its rows in each batch that has any."""
    parts = {}
    for batch in batches:
        for value, count in Counter(group[row] for row in batch).items():
            parts.setdefault(value, []).append(count)
    return parts


def assert_even_parts(parts, counts, size):
    assert set(parts) == set(counts)
    for value, count in counts.items():
        assert len(parts[value]) == -(-count // size)
        assert max(parts[value]) - min(parts[value]) <= 1


@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), sizes, sizes, st.integers(0, 9), st.integers(1, 3))
def test_class_epochs(labels, classes, per_class, seed, replicas):
    split = [
        ClassSampler(labels, classes, per_class, seed=seed, num_replicas=replicas, rank=r) for r in range(replicas)
    ]
    drawn = [list(sampler) for sampler in split]
    batches = [batch for batches in drawn for batch in batches]
    assert_no_repeats(batches)
    assert {len(batches) for batches in drawn} == {len(split[0])}

    counts = Counter(labels)
    visits = {value: -(-count // per_class) for value, count in counts.items()}
    steps = max(-(-sum(visits.values()) // classes), max(visits.values()))
    assert len(split[0]) == -(-steps // replicas)
    kinds = [len({labels[row] for row in batch}) for batch in batches]
    assert max(kinds) <= classes
    assert max(kinds) - min(kinds) <= 1
    assert set(visited(batches)) == set(range(len(labels)))
    if sum(visits.values()) >= len(batches):  # otherwise some are repeated, so that no batch is empty
        assert visited(batches) == list(range(len(labels)))
        assert_even_parts(parts_of(batches, labels), counts, per_class)


def test_full_batches_of_classes_where_the_counts_allow():
    labels = np.repeat(np.arange(10), 80)
    drawn = epochs(ClassSampler(labels, classes=5, per_class=8), 20)
    for batch in drawn[0]:
        assert sorted(Counter(labels[batch].tolist()).values()) == [8] * 5
    # Batches combine many different classes, from the start of an epoch.
    assert len({tuple(np.unique(labels[batch])) for batch in drawn[0]}) > 8
    assert all(len({row // 80 for batch in batches[:10] for row in batch}) == 10 for batches in drawn)
    meetings = {(a, b) for batches in drawn for batch in batches for a in labels[batch] for b in labels[batch]}
    assert len(meetings) == 100


def test_a_class_with_more_parts_than_batches_is_in_every_batch():
    labels = np.array([0] * 90 + [1] * 5 + [2] * 5)
    batches = list(ClassSampler(labels, classes=3, per_class=5))
    assert len(batches) == 18
    assert all((labels[batch] == 0).sum() == 5 for batch in batches)
    assert visited(batches) == list(range(100))


@quick
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 2)), max_size=60),
    sizes,
    st.none() | sizes,
    st.booleans(),
    st.integers(0, 9),
)
def test_query_epochs(rows, queries, items, with_relevance, seed):
    query, relevance = (np.array(column) for column in zip((0, 1), *rows, strict=True))
    sampler = QuerySampler(query, relevance if with_relevance else None, queries, items, seed=seed)
    is_outer = relevance > 0 if with_relevance else np.ones(len(query), bool)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert_no_repeats(batches)
    outer = set(np.flatnonzero(is_outer))
    assert visited(batches, rows_in(outer)) == sorted(outer)
    items = items or len(query)
    counts = Counter(query[is_outer].tolist())
    assert_even_parts(parts_of([rows_in(outer)(batch) for batch in batches], query.tolist()), counts, items)
    for batch in batches:
        order = list(dict.fromkeys(query[batch].tolist()))
        assert len(order) <= queries
        for value in order:
            part = [row for row in batch if query[row] == value]
            assert batch[batch.index(part[0]) :][: len(part)] == part  # one query after the other
            first = is_outer[part].astype(int)
            assert (np.diff(first) <= 0).all()  # relevant ones first
            if with_relevance:  # other items fill up the part, as far as there are any
                assert len(part) == min(items, first.sum() + ((query == value) & ~is_outer).sum())


def test_whole_lists():
    batches = list(QuerySampler(QUERY, queries=1, items=None))
    assert sorted(sorted(batch) for batch in batches) == sorted(
        [row for row in ALL if QUERY[row] == query] for query in set(QUERY)
    )
    for batch in QuerySampler(QUERY, RELEVANCE, queries=3, items=None):
        assert sorted(batch) == np.flatnonzero(np.isin(QUERY, QUERY[batch])).tolist()


def test_other_items_of_a_query_are_dealt_evenly():
    batches = list(QuerySampler([0] * 30, np.arange(30) < 25, 1, 10))
    times = Counter(row for batch in batches for row in batch if row >= 25)
    assert set(times) == set(range(25, 30))
    assert max(times.values()) - min(times.values()) <= 1


class Series:
    """The interface by which NumPy reads a pandas Series."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        np.array,
        Series,
        torch.tensor,
        lambda values: torch.tensor(values, dtype=torch.bfloat16, requires_grad=True),
        lambda values: np.array(values, dtype=object),
        lambda values: np.array(values, dtype=np.uint8),
        lambda values: np.array(values, dtype=bool),
        lambda values: [float(value) for value in values],
        lambda values: [bool(value) for value in values],
    ],
)
def test_any_kind_of_vector_will_do(convert):
    values = TARGET.astype(int).tolist()
    for make in (PositiveNegativeSampler, EventSampler, ClassSampler, QuerySampler):
        assert list(make(convert(values))) == list(make(TARGET))
    assert list(QuerySampler(QUERY, convert(values))) == list(QuerySampler(QUERY, TARGET))


def test_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"y": TARGET.astype(int)}, index=np.arange(N)[::-1])
    assert list(PositiveNegativeSampler(frame["y"])) == list(PositiveNegativeSampler(TARGET))
    assert list(ClassSampler(frame["y"].astype("Int64"))) == list(ClassSampler(TARGET))
    with pytest.raises(ValueError, match=r"got (<NA>|nan) at position 1"):
        ClassSampler(pandas.Series([1, None], dtype="Int64"))


def test_names_of_classes_and_queries_do_not_matter():
    names = np.array([f"{value:02d}" for value in LABELS])
    for labels in (names, names.astype(object), 10.5 * LABELS, LABELS - 100):
        assert list(ClassSampler(labels)) == list(ClassSampler(LABELS))
        assert list(QuerySampler(labels)) == list(QuerySampler(LABELS))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PositiveNegativeSampler([0, 1, 2]), "target must contain only 0 and 1; got 2 at position 2"),
        (lambda: PositiveNegativeSampler([1, -1]), "only 0 and 1; got -1 at position 1. If .* pass target > 0"),
        (lambda: PositiveNegativeSampler([0, 0.5]), "target must contain only 0 and 1; got 0.5 at position 1"),
        (
            lambda: PositiveNegativeSampler([0, float("nan"), 1]),
            r"target must contain finite numbers or strings; got nan at position 1",
        ),
        (lambda: PositiveNegativeSampler([0, 0, 0]), "target must contain a 1; got 3 values without one"),
        (lambda: PositiveNegativeSampler([1, 1]), "target must contain a 0; got 2 values without one"),
        (lambda: PositiveNegativeSampler([]), "target must have at least one value; got none"),
        (lambda: PositiveNegativeSampler([[0], [1]]), r"target must have the shape \[n\]; got \[2, 1\]"),
        (lambda: PositiveNegativeSampler(1), r"target must have the shape \[n\]; got \[\]"),
        (lambda: PositiveNegativeSampler([0, 1], positives=0), "positives must be at least 1; got 0"),
        (lambda: PositiveNegativeSampler([0, 1], negatives=-1), "positives must be at least 1; got -1"),
        (lambda: PositiveNegativeSampler([0, 1], 1, negatives=0), "negatives must be at least 1; got 0"),
        (lambda: PositiveNegativeSampler([0, 1], batch=7), "batch must be even, since each class gets one half; got 7"),
        (lambda: PositiveNegativeSampler([0, 1], batch=0), "batch must be at least 2; got 0"),
        (lambda: PositiveNegativeSampler([0, 1], 4, batch=8), "batch=8 sets both sizes"),
        (lambda: PositiveNegativeSampler([0, 1], outer="both"), "outer must be 'positive' or 'negative'; got 'both'"),
        (
            lambda: PositiveNegativeSampler([0, 1], drop_last=True),
            "drop_last=True needs at least 1 x 32 outer rows; got 1",
        ),
        (lambda: EventSampler([0, 0]), "event must contain a 1; got 2 values without one"),
        (lambda: EventSampler([0, 3]), "event must contain only 0 and 1; got 3 at position 1"),
        (lambda: EventSampler([0, 1], events=0), "events must be at least 1; got 0"),
        (lambda: EventSampler([0, 1], others=0), "others must be at least 1; got 0"),
        (
            lambda: ClassSampler([0, float("inf")]),
            "labels must contain finite numbers or strings; got inf at position 1",
        ),
        (lambda: ClassSampler(["a", None]), "labels must contain finite numbers or strings; got None at position 1"),
        (
            lambda: ClassSampler(np.array(["a", float("nan")], dtype=object)),
            "labels must contain .*; got nan at position 1",
        ),
        (lambda: ClassSampler([0, 1], classes=0), "classes must be at least 1; got 0"),
        (lambda: ClassSampler([0, 1], per_class=0), "per_class must be at least 1; got 0"),
        (lambda: QuerySampler([0, 1], [1]), "relevance must have the length 2 of query; got 1"),
        (lambda: QuerySampler([0, 1], [0, -1]), "relevance must contain a value above 0; got 2 values without one"),
        (lambda: QuerySampler([0, 1], [1, float("nan")]), "relevance must contain .*; got nan at position 1"),
        (lambda: QuerySampler([0, 1], queries=0), "queries must be at least 1; got 0"),
        (lambda: QuerySampler([0, 1], items=0), "items must be at least 1; got 0"),
        (lambda: OuterInnerSampler(0), "n must be at least 1; got 0"),
        (lambda: OuterInnerSampler(4, 0), "outer_batch must be at least 1; got 0"),
        (lambda: OuterInnerSampler(4, 1, 0), "inner_batch must be at least 1; got 0"),
        (lambda: OuterInnerSampler(4, rank=2, num_replicas=2), "rank must be less than num_replicas = 2; got 2"),
        (lambda: OuterInnerSampler(4, num_replicas=2), "num_replicas and rank must be given together; got 2 and None"),
        (lambda: OuterInnerSampler(4, rank=-1), "rank must be at least 0; got -1"),
        (lambda: OuterInnerSampler(4, num_replicas=0), "num_replicas must be at least 1; got 0"),
        (lambda: OuterInnerSampler(4, seed=-1), "seed must be at least 0; got -1"),
        (lambda: OuterInnerSampler(4, steps=0), "steps must be at least 1; got 0"),
        (lambda: QuerySampler([0, 1], steps=-1), "steps must be at least 1; got -1"),
        (lambda: OuterInnerSampler(4).set_epoch(-1), "epoch must be at least 0; got -1"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PositiveNegativeSampler(["no", "yes"]), "target must contain numbers; got the dtype <U3"),
        (lambda: OuterInnerSampler(4, 1.5), "outer_batch must be an integer; got 1.5"),
        (lambda: OuterInnerSampler(True), "n must be an integer; got True"),
        (lambda: PositiveNegativeSampler([0, 1], steps=2.5), "steps must be an integer; got 2.5"),
        (lambda: ClassSampler([0, 1], steps=True), "steps must be an integer; got True"),
        (lambda: EventSampler([0, 1], steps="pass"), "steps must be an integer; got 'pass'"),
        (lambda: OuterInnerSampler(4, epoch=3), "epoch"),
    ],
)
def test_bad_types_are_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize(("convert", "noun"), [(lambda x: x, "tensors"), (lambda x: x.numpy(), "arrays")])
def test_columns_are_no_dataset(kind, convert, noun):
    columns = kind([convert(torch.zeros(5, 2)), convert(torch.zeros(5, dtype=torch.int64))])
    with pytest.raises(TypeError, match=rf"got a {kind.__name__} of 2 {noun}\. torch\.utils\.data\.TensorDataset"):
        Indexed(columns)


def test_a_list_of_rows_is_a_dataset():
    assert len(Indexed([torch.zeros(5), torch.ones(5)])) == 2
    assert len(Indexed([np.zeros((2, 3)), np.ones((4, 3))])) == 2


def test_a_data_frame_is_no_dataset():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="got a DataFrame, which is indexed by the names of columns"):
        Indexed(pandas.DataFrame({"x": [1.0, 2.0]}))


def test_two_tensors_are_told_of_a_dataset():
    with pytest.raises(TypeError, match=r"one dataset; got 2 arguments\. Pass Indexed\(TensorDataset\(x, y\)\)"):
        Indexed(torch.zeros(5, 2), torch.zeros(5))


@pytest.mark.parametrize(
    ("sampler", "arguments", "sizes"),
    [
        (ClassSampler, (LABELS,), "classes=, per_class="),
        (PositiveNegativeSampler, (TARGET,), "positives=, negatives=, batch="),
        (QuerySampler, (QUERY,), "queries=, items="),
        (EventSampler, (TARGET,), "events=, others="),
        (OuterInnerSampler, (N,), "outer_batch=, inner_batch="),
    ],
)
def test_another_size_is_told_of_the_sizes(sampler, arguments, sizes):
    message = f"{sampler.__name__} takes no argument 'batch_size'. The size of its batches is set by {sizes}"
    with pytest.raises(TypeError, match=message):
        sampler(*arguments, batch_size=32)


@pytest.mark.parametrize(
    "items",
    [
        [torch.zeros(3, 8, 8), torch.zeros(3, 9, 9)],
        [torch.zeros(3), torch.zeros(3, dtype=torch.double)],
        tuple(np.zeros((4, 3))),
    ],
    ids=["images of two sizes", "two dtypes", "a tuple of rows"],
)
def test_short_lists_of_items_are_no_columns(items):
    assert len(Indexed(items)) == len(items)
