"""Batches that contradict what a loss was told of the training data are refused; where looking costs, never a NaN."""

import inspect
from functools import partial

import pytest
import torch

import fcco
from fcco import losses
from losses.cases import same, state

ITEMS = {"relevance": [2.0, 0.0, 1.0, 0.0, 0.0, 0.0], "query": [5, 5, 5, 8, 8, 8]}


def lists(loss, **options):
    return lambda: loss.from_targets(**ITEMS, **options)


def scores(*values):
    return torch.tensor(values, requires_grad=True)


def vectors(*values):
    return torch.tensor(values).unsqueeze(1).requires_grad_()


def whole(*values):
    return torch.tensor(values)


def items(relevance, query, index):
    return (
        torch.linspace(0.0, 1.0, len(index), requires_grad=True),
        torch.tensor(relevance),
        whole(*query),
        whole(*index),
    )


LISTWISE = [
    lists(losses.ListNetLoss),
    lists(losses.ListNetLoss, target="softmax"),
    lists(losses.ListMLELoss),
    lists(losses.NDCGLoss),
    lists(losses.NDCGLoss, surrogate="exp"),
]
OTHER_LISTS = [
    (items([2.0, 0.0, 1.0], [8, 8, 8], [3, 4, 5]), r"relevance must be 0.0 for row 3, .*; got 2.0 at position 0"),
    (items([3.0, 0.0, 1.0], [5, 5, 5], [0, 1, 2]), r"relevance must be 2.0 for row 0, .*; got 3.0 at position 0"),
    (items([2.0, 0.0, 0.0], [5, 5, 5], [0, 1, 2]), r"relevance must be 1.0 for row 2, .*; got 0.0 at position 2"),
    (
        items([2.0, 0.0, 0.0], [5, 5, 5], [0, 1, 3]),
        r"query must be different for rows 0 and 3, .*; got 5 at positions 0 and 2",
    ),
    (
        items([2.0, 0.0, 0.0], [5, 5, 8], [0, 3, 1]),
        r"query must be different for rows 0 and 3, .*; got 5 at positions 0 and 1",
    ),
    (
        items([2.0, 0.0], [5, 8], [0, 1]),
        r"query must be the same for rows 0 and 1, .*; got 5 at position 0 and 8 at position 1",
    ),
]
AT = whole(0, 1, 2)


def with_and_without_memory(cases):
    """Each case, and if its loss may remember, with the table and with a memory of either kind."""
    found = []
    for make, *rest in cases:
        memories = [{}]
        if "memory" in inspect.signature(make).parameters:
            memories = [{"memory": memory} for memory in (0, fcco.Memory(4), fcco.Memory(4, "estimate"))]
        found += [(partial(make, **memory), *rest) for memory in memories]
    return found


CONTRADICTIONS = [
    *((make, *other) for make in LISTWISE for other in OTHER_LISTS),
    *(
        (
            lambda own_term=own_term: losses.ListNetLoss.from_targets(**ITEMS, own_term=own_term),
            *OTHER_LISTS[0],
        )
        for own_term in ("exact", "bounded")
    ),
    *(
        (lambda own_term=own_term: losses.NDCGLoss.from_targets(**ITEMS, own_term=own_term), *OTHER_LISTS[0])
        for own_term in ("exact", "sampled")
    ),
    (
        lambda **memory: losses.NCALoss(5, class_sizes=[1, 1, 1, 2], **memory),
        (vectors(0.0, 0.5, 1.0), whole(0, 0, 1), AT),
        r"the batch must have at most class_sizes\[0\] = 1 distinct examples of class 0; got 2",
    ),
    (
        lambda **memory: losses.NCALoss(5, class_sizes=[1, 1, 1, 2], log_likelihood=True, **memory),
        (vectors(0.0, 0.5, 1.0), whole(0, 0, 1), AT),
        r"the batch must have at most class_sizes\[0\] = 1 distinct examples of class 0; got 2",
    ),
    (
        lambda **memory: losses.NCALoss(5, class_sizes=[1, 1, 1, 2], **memory),
        (vectors(0.0, 0.5), whole(0, 0), whole(0, 1)),
        r"the batch must have at most class_sizes\[0\] = 1 distinct examples of class 0; got 2",
    ),
    (
        lambda **memory: losses.NCALoss(5, class_sizes=[1, 2, 2], **memory),
        (vectors(0.0, 0.5, 1.0), whole(1, 2, 2), whole(3, 0, 3)),
        "the batch has row 3 both in class 1 and in class 2",
    ),
    *(
        (make, (scores(0.0, 0.5, 1.0, 1.5), whole(1, 0, 0, 1), whole(3, 0, 3, 1)), message)
        for make, message in (
            (
                lambda **memory: losses.AveragePrecisionLoss(5, 2, **memory),
                "the batch has row 3 both as a positive and as a negative",
            ),
            (
                lambda **memory: losses.PNormPushLoss(5, **memory),
                "the batch has row 3 both as a positive and as a negative",
            ),
            (
                lambda **memory: losses.PartialAUCLoss(5, **memory),
                "the batch has row 3 both as a positive and as a negative",
            ),
        )
    ),
    (
        lambda **memory: losses.CoxLoss(5, 3, **memory),
        (scores(0.0, 0.5, 1.0), whole(1, 2, 3), whole(1, 1, 0), whole(3, 0, 3)),
        "the batch has row 3 both as an event and as a censored example",
    ),
    (
        lambda **memory: losses.NCALoss(5, class_sizes=[2, 0, 3], **memory),
        (vectors(0.0, 0.5, 1.0), whole(1, 1, 0), AT),
        r"the batch must have at most class_sizes\[1\] = 0 distinct examples of class 1; got 2",
    ),
    (
        lambda **memory: losses.NCALoss(5, class_sizes=[2, 0, 3], **memory),
        (vectors(0.0, 0.5, 1.0), whole(0, 0, 1), AT),
        r"the batch must have at most class_sizes\[1\] = 0 distinct examples of class 1; got 1",
    ),
    *(
        (
            lambda own_term=own_term, **memory: losses.CoxLoss(5, n_events=1, own_term=own_term, **memory),
            (scores(0.0, 0.5, 1.0), scores(1.0, 2.0, 3.0), whole(1, 1, 0), AT),
            r"the batch must have at most 1 distinct event \(n_events = 1\); got 2",
        )
        for own_term in ("exact", "sampled")
    ),
    *(
        (
            lambda own_term=own_term, **memory: losses.CoxLoss(5, n_events=5, own_term=own_term, **memory),
            (scores(0.0, 0.5, 1.0), scores(1.0, 2.0, 3.0), whole(1, 1, 0), AT),
            r"the batch must have at most 0 distinct censored examples \(n = 5, n_events = 5\); got 1",
        )
        for own_term in ("exact", "sampled")
    ),
    *(
        (
            lambda options=options, **memory: losses.AveragePrecisionLoss(5, **options, **memory),
            (scores(0.0, 0.5, 1.0), whole(1, 1, 0), AT),
            message,
        )
        for n_pos, message in (
            (1, r"the batch must have at most 1 distinct positive \(n_pos = 1\); got 2"),
            (5, r"the batch must have at most 0 distinct negatives \(n = 5, n_pos = 5\); got 1"),
        )
        for options in (
            {"n_pos": n_pos, "own_term": own_term, "surrogate": surrogate, "rule": rule}
            for own_term in ("exact", "sampled")
            for surrogate in ("ramp", "squared_hinge", "exp")
            for rule in (fcco.SOX(0.3), fcco.MOAP(0.3))
        )
    ),
    *(
        (
            lambda rule=rule, surrogate=surrogate: losses.PNormPushLoss.from_targets(
                [1, 1, 1, 1, 0], rule=rule, surrogate=surrogate
            ),
            (scores(0.0, 0.5, 1.0), whole(0, 1, 0), AT),
            "target must be 1 for row 0, as in from_targets; got 0 at position 0",
        )
        for rule in (fcco.SOX(0.3), fcco.MOAP(0.3))
        for surrogate in ("exp", "hinge")
    ),
    (
        lambda **memory: losses.PartialAUCLoss.from_targets([1, 0, 0, 0, 0], **memory),
        (scores(0.0, 0.5, 1.0), whole(1, 1, 0), AT),
        "target must be 0 for row 1, as in from_targets; got 1 at position 1",
    ),
    (
        lambda: losses.BaselineCoxLoss(5, [2.0, 3.0], [1, 1]),
        (scores(0.0, 0.5, 1.0), scores(1.0, 2.0, 3.0).detach(), whole(1, 1, 0)),
        "time must be at least 2.0, the first of times, for an event; got 1.0 at position 0",
    ),
    (
        lambda: losses.BaselineCoxLoss(3, [1.0, 2.0, 3.0], [1, 1, 1], stratified=True),
        (scores(0.0, 0.5, 1.0), scores(1.0, 2.0, 3.0).detach(), whole(1, 1, 0)),
        "event must be 1, since all n = 3 training examples have events; got 0 at position 2",
    ),
]
EACH = pytest.mark.parametrize(("make", "batch", "message"), with_and_without_memory(CONTRADICTIONS))


@EACH
def test_is_refused_and_changes_nothing(make, batch, message):
    loss_fn = make()
    before = state(loss_fn)
    with pytest.raises(ValueError, match=message):
        loss_fn(*batch)
    assert same(before, state(loss_fn))


@EACH
def test_where_looking_costs_the_gradient_is_finite(make, batch, message, monkeypatch):
    """As on accelerators, and compiled. Also when rows are known from a first step."""
    monkeypatch.setattr("fcco._checks.is_compiling", lambda: True)
    loss_fn = make()
    for _ in range(2):
        loss = loss_fn(*batch)
        assert loss.isfinite()
        assert torch.autograd.grad(loss, batch[0])[0].isfinite().all()


@EACH
def test_validation_data_are_another_population(make, batch, message):
    loss = make().eval()(*batch)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, batch[0])[0].isfinite().all()


REPEATED = [
    (
        lambda **memory: losses.NCALoss(5, class_sizes=[1, 2, 2], **memory),
        (vectors(0.0, 0.0, 1.0, 2.0), whole(0, 0, 1, 1)),
    ),
    (
        lambda **memory: losses.CoxLoss(5, n_events=1, **memory),
        (scores(0.0, 0.0, 1.0, 2.0), whole(1, 1, 2, 3), whole(1, 1, 0, 0)),
    ),
    (lambda **memory: losses.AveragePrecisionLoss(5, 1, **memory), (scores(0.0, 0.0, 1.0, 2.0), whole(1, 1, 0, 0))),
    (lambda **memory: losses.AveragePrecisionLoss(5, 4, **memory), (scores(0.0, 0.0, 1.0, 2.0), whole(0, 0, 1, 1))),
    (
        lambda **memory: losses.PNormPushLoss.from_targets([0, 1, 1], **memory),
        (scores(0.0, 0.0, 1.0, 2.0), whole(0, 0, 1, 1)),
    ),
    (
        lambda **memory: losses.PartialAUCLoss.from_targets([1, 0, 0], **memory),
        (scores(0.0, 0.0, 1.0, 2.0), whole(1, 1, 0, 0)),
    ),
    *((make, (scores(0.0, 0.0, 1.0, 2.0), whole(2, 2, 0, 1), whole(5, 5, 5, 5))) for make in LISTWISE),
]


@pytest.mark.parametrize(("make", "batch"), with_and_without_memory(REPEATED))
def test_an_example_that_stands_twice_counts_once(make, batch):
    loss = make()(*batch, whole(0, 0, 1, 2))
    loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize("known", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_relevances_of_fewer_digits_are_the_same_relevances(known, given):
    relevance = torch.tensor([0.1, 0.3, 0.7, 2.0], dtype=torch.float64)
    if torch.int64 in (known, given):
        relevance = (10 * relevance).round()
    loss_fn = losses.NDCGLoss.from_targets(relevance.to(known), [0, 0, 1, 1]).double()
    h = torch.zeros(4, requires_grad=True)
    assert loss_fn(h, relevance.to(given), whole(3, 3, 9, 9), torch.arange(4)).isfinite()


LABELS = [1, 0, 0, 1, 0, 0]
LABELLED = [
    (losses.AveragePrecisionLoss, "target"),
    (partial(losses.AveragePrecisionLoss.from_targets, surrogate="exp"), "target"),
    (losses.PNormPushLoss, "target"),
    (losses.PartialAUCLoss, "target"),
    (losses.CVaRPartialAUCLoss, "target"),
    (losses.TwoWayPartialAUCLoss, "target"),
    (losses.NCALoss, "labels"),
    (losses.SupervisedContrastiveLoss, "labels"),
    (losses.CoxLoss, "event"),
]


@pytest.mark.parametrize(("make", "name"), with_and_without_memory(LABELLED))
@pytest.mark.parametrize("used", [False, True])
class TestLabels:
    """A loss made from the training labels knows that of every row."""

    @staticmethod
    def batch(name, labels, index):
        index, labels = whole(*index), whole(*labels)
        values = torch.linspace(0.0, 1.0, 3 * len(index)).reshape(-1, 3)
        values = values if name == "labels" else values[:, 0]
        time = [index + 1.0] if name == "event" else []
        return values.clone().requires_grad_(), *time, labels, index

    def make(self, make, name, used):
        made = make if isinstance(make, partial) and not isinstance(make.func, type) else None
        if made is None:
            loss, options = (make.func, make.keywords) if isinstance(make, partial) else (make, {})
            made = partial(loss.from_targets, **options)
        loss_fn = made(LABELS)
        if used:
            loss_fn(*self.batch(name, [1, 0, 0, 1], [0, 1, 2, 3])).backward()
        return loss_fn

    def test_of_other_rows_are_refused(self, make, name, used):
        loss_fn = self.make(make, name, used)
        before = state(loss_fn)
        message = rf"{name} must be 0 for row 4, as in from_targets; got 1 at position 2: the dataset, the sampler"
        with pytest.raises(ValueError, match=message):
            loss_fn(*self.batch(name, [1, 0, 1, 0], [0, 1, 4, 5]))
        assert same(before, state(loss_fn))

    def test_do_not_matter_in_evaluation(self, make, name, used):
        loss_fn = self.make(make, name, used)
        batch = self.batch(name, [1, 0, 1, 0], [0, 1, 4, 5])
        with torch.no_grad():
            loss_fn(*batch)
        loss_fn.eval()(*batch)


def test_labels_of_several_classes():
    target = torch.tensor([LABELS, [0, 1, -1, 1, 0, 1]]).T
    loss_fn = losses.PartialAUCLoss.from_targets(target)
    rows = whole(0, 1, 2, 3)
    values = torch.zeros(4, 2, requires_grad=True)
    loss_fn(values, torch.where(rows[:, None] == 1, -1, target[rows]), rows)  # labels may be left out
    with pytest.raises(
        ValueError, match="target must be 0 for row 1 and class 0, as in from_targets; got 1: the dataset"
    ):
        loss_fn(values, target[rows].index_fill(0, whole(1), 1), rows)


@pytest.mark.parametrize("classes", [1, 2])
def test_labels_of_classes_may_be_missing_there_or_here(classes):
    target = torch.tensor([LABELS, [0, 1, -1, 1, 0, 1]]).T[:, :classes].clone()
    target[3] = -1
    batch = target[:4].clone()
    batch[3], batch[1] = 1, -1
    loss_fn = losses.PartialAUCLoss.from_targets(target)
    loss_fn(torch.zeros(4, classes, requires_grad=True), batch, whole(0, 1, 2, 3))


@pytest.mark.parametrize("make", [losses.NCALoss, losses.SupervisedContrastiveLoss])
@pytest.mark.parametrize("offset", [300, 70_000])
def test_many_classes(make, offset):
    label = torch.arange(40) % 20 + offset
    loss_fn = make.from_targets(label)
    values, rows = torch.randn(8, 3, requires_grad=True), torch.arange(8)
    loss_fn(values, label[:8], rows)
    with pytest.raises(ValueError, match=f"labels must be {offset} for row 0"):
        loss_fn(values, label[1:9], rows)


def test_a_target_that_requires_a_gradient():
    loss_fn = losses.AveragePrecisionLoss.from_targets(LABELS)
    target = torch.as_tensor(LABELS, dtype=torch.float32)[:4].requires_grad_()
    loss_fn(torch.zeros(4, requires_grad=True), target, torch.arange(4)).backward()
