"""Several classes: every class is as it would be by itself, and one step is taken for all."""

import copy
import math

import numpy as np
import pytest
import torch

import fcco
from fcco import functional, losses
from losses.cases import same, state

N, C = 13, 4
RULES = [fcco.SOAP(1.0), fcco.BSGD(), fcco.SOX(0.3)]
KINDS = {
    "AveragePrecisionLoss": (losses.AveragePrecisionLoss, functional.average_precision_loss, {"memory": 0}),
    "sigmoid": (
        losses.AveragePrecisionLoss,
        functional.average_precision_loss,
        {"surrogate": "sigmoid", "own_term": "exact"},
    ),
    "PartialAUCLoss": (losses.PartialAUCLoss, functional.partial_auc_loss, {"temperature": 0.5}),
    "AUCLoss": (losses.AUCLoss, functional.auc_loss, {}),
    "min_max": (losses.AUCLoss, functional.auc_loss, {"form": "min_max"}),
}
IN_TABLE = ["AveragePrecisionLoss", "sigmoid", "PartialAUCLoss"]


def data(seed=0, missing=True):
    """Scores and targets: the third class has no positive, and some labels are missing."""
    rng = np.random.default_rng(seed)
    scores = torch.tensor(rng.normal(size=(N, C)), requires_grad=True)
    target = torch.tensor(rng.permuted(np.tile(np.arange(N)[:, None] % 3 == 0, C), axis=0)).double()
    target[:, 2] = 0
    if missing:
        target[torch.tensor(rng.random((N, C)) < 0.15)] = math.nan
    return scores, target


def make(kind, target, rule=None):
    loss, exact, options = KINDS[kind]
    loss_fn = loss.from_targets(target, **options, **({} if rule is None else {"rule": rule}))
    keys = ("surrogate", "temperature", "form")
    return loss_fn, lambda *arguments: exact(*arguments, **{key: options[key] for key in keys if key in options})


def grad(loss, scores):
    return torch.autograd.grad(loss, scores)[0]


@pytest.mark.parametrize("kind", KINDS)
class TestExact:
    @pytest.mark.parametrize("rule", RULES, ids=str)
    def test_full_batch(self, kind, rule):
        scores, target = data()
        loss_fn, exact = make(kind, target, rule)
        loss, wanted = loss_fn.double()(scores, target, torch.arange(N)), exact(scores, target)
        torch.testing.assert_close(loss.detach(), wanted.detach(), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(grad(loss, scores), grad(wanted, scores), rtol=1e-8, atol=1e-10)

    def test_is_the_mean_over_classes(self, kind):
        scores, target = data()
        _, exact = make(kind, target)
        single = []
        for k in (0, 1, 3):
            known = ~target[:, k].isnan()
            single.append(exact(scores[known, k], target[known, k]))
        torch.testing.assert_close(exact(scores, target), torch.stack(single).mean())

    def test_eval(self, kind):
        training, (scores, target) = data()[1], data(seed=1)
        loss_fn, exact = make(kind, training)
        before = state(loss_fn)
        loss = loss_fn.eval()(scores, target, torch.full((N,), -5))
        torch.testing.assert_close(loss, exact(scores, target), rtol=1e-8, atol=1e-10)
        assert same(before, state(loss_fn))

    def test_missing_labels_are_nan_or_minus_one(self, kind):
        scores, target = data()
        values = []
        for labels in (target, target.nan_to_num(-1), target.nan_to_num(-1).to(torch.int8)):
            loss_fn, _ = make(kind, labels)
            values.append(loss_fn(scores, labels, torch.arange(N)).detach())
        assert values[0] == values[1] == values[2]

    def test_classes_by_number(self, kind):
        scores, _ = data()
        labels = torch.arange(N) % C
        one_hot = functional.as_one_vs_rest(labels, C)
        first, second = (make(kind, one_hot)[0] for _ in range(2))
        torch.testing.assert_close(first(scores, labels, torch.arange(N)), second(scores, one_hot, torch.arange(N)))

    def test_no_label_at_all(self, kind):
        scores, target = data()
        loss_fn, exact = make(kind, target)
        nothing = torch.full((3, C), math.nan)
        for loss in (loss_fn(scores[:3], nothing, torch.arange(3)), exact(scores[:3], nothing)):
            assert loss.item() == 0.0
            assert not grad(loss, scores).any()

    def test_a_checkpoint_continues_bit_for_bit(self, kind):
        scores, target = data()
        first, second = (make(kind, target, fcco.SOAP(0.5))[0] for _ in range(2))
        batches = [torch.tensor(rows) for rows in ([0, 1, 2, 3, 4, 5], [6, 3, 7, 8, 1], [9, 10, 11, 4])]
        first(scores[batches[0]], target[batches[0]], batches[0])
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for rows in batches[1:]:
            values = [loss_fn(scores[rows], target[rows], rows) for loss_fn in (first, second)]
            assert torch.equal(*values)
            assert torch.equal(*(grad(value, scores) for value in values))


@pytest.mark.parametrize(("kind", "backend"), [("AveragePrecisionLoss", "aot_eager"), ("PartialAUCLoss", "eager")])
def test_compiled(kind, backend):
    scores, target = data()
    rows = torch.tensor([0, 5, 7, 2, 9, 12])
    plain, compiled = (make(kind, target)[0] for _ in range(2))
    graph = torch.compile(compiled, fullgraph=True, backend=backend)
    made = []
    for loss_fn in (plain, graph):
        leaf = scores.detach()[rows].requires_grad_()
        loss = loss_fn(leaf, target[rows], rows)
        made.append([loss.detach(), grad(loss, leaf)])
    torch.testing.assert_close(*made)


@pytest.mark.parametrize("kind", IN_TABLE)
def test_rows_are_those_of_each_class_by_itself(kind):
    """Also of repeated rows, and with labels that are missing: the rest of the class is what there is."""
    scores, target = data()
    loss_fn, _ = make(kind, target, fcco.SOAP(0.5))
    loss, _, options = KINDS[kind]
    single = []
    for k in (0, 1, 3):
        known = ~target[:, k].isnan()
        place = known.cumsum(0) - 1
        single.append((k, known, place, loss.from_targets(target[known, k], rule=fcco.SOAP(0.5), **options)))
    for rows in map(torch.tensor, ([0, 1, 2, 3, 4, 5], [12, 3, 7, 8, 3, 6], [9, 10, 11, 4, 2, 5])):
        loss_fn(scores[rows], target[rows], rows)
        for k, known, place, alone in single:
            own = rows[known[rows]]
            alone(scores[own, k], target[own, k], place[own])
    table = loss_fn.table.u.reshape(N, C, -1)
    for k, known, _, alone in single:
        torch.testing.assert_close(table[known, k], alone.table.u.reshape(int(known.sum()), -1))


def test_classes_count_alike():
    """One positive of the first class and two of the second: each class has half of the weight."""
    target = torch.tensor([[1, 0], [0, 1], [0, 1], [0, 0]])
    scores = torch.tensor([[0.3, 0.1], [0.2, 0.2], [0.1, 0.5], [0.7, 0.3]], requires_grad=True)
    loss_fn = losses.PartialAUCLoss.from_targets(target, rule=fcco.BSGD())
    wanted = sum(functional.partial_auc_loss(scores[:, k], target[:, k]) for k in range(2)) / 2
    torch.testing.assert_close(loss_fn(scores, target), wanted)


TARGET = torch.tensor([[1, 0], [0, 0], [1, 0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.AUCLoss(3, [1, 4]), r"n_pos must be in \[0, 3\] for each class; got 4 at position 1"),
        (lambda: losses.AveragePrecisionLoss(3, [1.5]), "n_pos must be an integer or one for each class"),
        (lambda: losses.PartialAUCLoss(3, n_classes=2, memory=4), "memory must be 0 or None with n_classes"),
        (
            lambda: losses.AveragePrecisionLoss.from_targets(TARGET)(torch.zeros(3, 3), TARGET, torch.arange(3)),
            r"scores must have the shape \[B, 2\], with a column for each class; got \[3, 3\]",
        ),
        (
            lambda: losses.PartialAUCLoss(3, n_classes=2)(torch.zeros(3), TARGET[:, 0], torch.arange(3)),
            r"scores must have the shape \[B, 2\], with a column for each class; got \[3\]",
        ),
        (
            lambda: losses.AUCLoss.from_targets(TARGET)(torch.zeros(3, 2), 1 - TARGET),
            "the batch must have no positive of class 1, which has 0 positives among n = 3 training examples; got 3",
        ),
        (
            lambda: losses.AUCLoss.from_targets(TARGET)(torch.zeros(3, 2), 2 * TARGET),
            "target must be 0 or 1; got 2",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_index_out_of_range_names_the_example():
    loss_fn = losses.AveragePrecisionLoss.from_targets(TARGET)
    with pytest.raises(IndexError, match=r"index must be in \[0, 3\); got 3 at position 1"):
        loss_fn(torch.zeros(2, 2, requires_grad=True), TARGET[:2], torch.tensor([0, 3]))


def test_labels_of_minus_one_and_one_are_not_taken_for_missing_ones():
    """-1 stands for a missing label, so that no negative would be left, and any scores would be perfect."""
    scores, target = torch.randn(20, 3), torch.arange(60).reshape(20, 3) % 4 == 0
    signs = 2 * target.long() - 1
    for measure in (fcco.functional.average_precision, fcco.functional.roc_auc, fcco.functional.average_precision_loss):
        with pytest.raises(ValueError, match=r"got only -1 and 1.*pass \(target > 0\)"):
            measure(scores, signs)
    for loss in (losses.AveragePrecisionLoss, losses.AUCLoss, losses.PartialAUCLoss):
        with pytest.raises(ValueError, match="got only -1 and 1"):
            loss.from_targets(signs)
    fcco.functional.average_precision(scores, torch.where(target, 1, 0).masked_fill(torch.eye(20, 3).bool(), -1))


def test_missing_labels_need_no_place_in_a_memory(monkeypatch):
    """Steps in fixed shapes, which keep pairs without a label, remember what others do."""
    scores, target = data()
    eager, fixed = (losses.PartialAUCLoss.from_targets(target, rule=fcco.SOAP(0.5), memory=2) for _ in range(2))
    for rows in map(torch.tensor, ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 3], [10, 11, 12, 1, 2])):
        made = []
        for loss_fn in (eager, fixed):
            if loss_fn is fixed:
                monkeypatch.setattr("fcco.losses.classes.reads_are_free", lambda values: False)
            loss = loss_fn(scores[rows], target[rows], rows)
            made.append([loss.detach(), grad(loss, scores)])
            monkeypatch.undo()
        torch.testing.assert_close(*made)
    assert all(map(torch.equal, (eager.memory.row[:-1], eager.memory.born), (fixed.memory.row[:-1], fixed.memory.born)))


def test_what_is_not_finite_has_a_row_and_a_class():
    loss_fn = losses.AveragePrecisionLoss.from_targets(torch.eye(4), surrogate="squared_hinge")
    scores = torch.eye(4)[:3]
    scores[1, 3] = 1e37
    with pytest.raises(fcco.NotFiniteError, match=r"got 1e\+37 in row 2 and class 3: start from small"):
        loss_fn(scores.requires_grad_(), torch.eye(4)[[3, 2, 0]], torch.tensor([3, 2, 0]))
