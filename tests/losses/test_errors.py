"""Input that cannot be meant raises, names the culprit, and changes nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import fcco
from fcco import losses
from fcco.functional._inner_listwise import Lists
from losses.cases import CASES, DEFAULTS, INDEXED, StratifiedBaselineCox, StratifiedCox, run, same, state

ROWS = torch.tensor([0, 3, 5, 8, 9, 12])
NAMES = {
    losses.CoxLoss: ["risk", "time", "event"],
    losses.BaselineCoxLoss: ["risk", "time", "event"],
    StratifiedCox: ["risk", "time", "event", "strata"],
    StratifiedBaselineCox: ["risk", "time", "event", "strata"],
    losses.NCALoss: ["embeddings", "labels"],
    losses.LatentVariableLoss: ["log_likelihood", "log_weight"],
    losses.SoftmaxLoss: ["target_logit", "sampled_logits"],
    losses.ContrastiveLoss: ["first", "second"],
    losses.RobustContrastiveLoss: ["first", "second"],
    losses.SupervisedContrastiveLoss: ["embeddings", "labels"],
    losses.GroupDROLoss: ["losses", "group"],
    losses.ListNetLoss: ["scores", "relevance", "query"],
    losses.ListMLELoss: ["scores", "relevance", "query"],
    losses.NDCGLoss: ["scores", "relevance", "query"],
}


def arguments(case, population):
    return [x.detach()[ROWS].clone() for x in (*population[0], *population[1])]


def check_raises(case, change, error, match):
    """Also when the table has been used, which keeps what it had, to the step count."""
    population = case.population()
    loss_fn = case.make(population)
    run(case, loss_fn, population)
    before = state(loss_fn)
    values = [*arguments(case, population), ROWS.clone()][: None if case.indexed else -1]
    with pytest.raises(error, match=match):
        loss_fn(*change(values))
    assert same(before, state(loss_fn))


def put(place, at, value):
    def change(values):
        values[place][at] = value
        return values

    return change


def swap(place, function):
    return lambda values: [function(x) if i == place else x for i, x in enumerate(values)]


@pytest.mark.parametrize("case", CASES, ids=str)
class TestScores:
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_not_finite(self, case, value):
        for place, name in enumerate(NAMES.get(case.loss, ["scores"])[: len(case.population()[0])]):
            at = (2,) if case.population()[0][place].dim() == 1 else (2, 1)
            message = rf"{name} must be finite.*; got {value} at position \(?{', '.join(map(str, at))}\)?$"
            check_raises(case, put(place, at, value), ValueError, message)

    def test_wrong_dtype(self, case):
        name = NAMES.get(case.loss, ["scores"])[0]
        check_raises(case, swap(0, torch.Tensor.long), TypeError, f"{name} must have a floating dtype; got torch.int64")

    def test_wrong_number_of_dimensions(self, case):
        name = NAMES.get(case.loss, ["scores"])[0]
        check_raises(case, swap(0, lambda x: x.unsqueeze(-1)), ValueError, f"{name} must have the shape")

    def test_not_a_tensor(self, case):
        name = NAMES.get(case.loss, ["scores"])[0]
        check_raises(case, swap(0, torch.Tensor.tolist), TypeError, f"{name} must be a tensor; got list")

    def test_lengths_differ(self, case):
        for place in range(1, len(arguments(case, case.population()))):
            check_raises(case, swap(place, lambda x: x[1:]), ValueError, "must have the shape")

    def test_empty(self, case):
        check_raises(case, lambda values: [x[:0] for x in values], ValueError, "empty")


@pytest.mark.parametrize("case", INDEXED, ids=str)
class TestIndex:
    @pytest.mark.parametrize("row", [13, -1])
    def test_out_of_range(self, case, row):
        message = rf"index must be in \[0, 13\); got {row} at position 2"
        check_raises(case, put(-1, 2, row), IndexError, message)

    def test_length(self, case):
        check_raises(case, lambda values: [*values[:-1], values[-1][1:]], ValueError, "index")

    def test_dtype(self, case):
        change = lambda values: [*values[:-1], values[-1].double()]  # noqa: E731
        check_raises(case, change, TypeError, "index must be of an integer dtype; got torch.float64")


BINARY = [
    case for case in DEFAULTS if case.loss.__name__ in ("AveragePrecisionLoss", "PNormPushLoss", "PartialAUCLoss")
]
LISTS = [case for case in DEFAULTS if case.loss.__name__ in ("ListNetLoss", "ListMLELoss", "NDCGLoss")]
BY_LOSS = {case.loss: case for case in DEFAULTS}


class TestTargets:
    @pytest.mark.parametrize("case", [*BINARY, BY_LOSS[losses.InvariantLogisticLoss]], ids=str)
    @pytest.mark.parametrize("label", [2, -1])
    def test_labels(self, case, label):
        check_raises(case, put(1, 4, label), ValueError, f"target must be 0 or 1; got {label} at position 4")

    def test_events(self):
        case = BY_LOSS[losses.CoxLoss]
        check_raises(case, swap(2, lambda x: x.long() * 2), ValueError, r"event must be 0 or 1; got 2 at position \d")

    @pytest.mark.parametrize("time", [-1.0, math.nan])
    def test_times(self, time):
        check_raises(
            BY_LOSS[losses.CoxLoss], put(1, 0, time), ValueError, f"time must be at least 0; got {time} at position 0"
        )

    @pytest.mark.parametrize("case", LISTS, ids=str)
    def test_queries(self, case):
        check_raises(case, swap(2, torch.Tensor.double), TypeError, "query must have an integer dtype")

    @pytest.mark.parametrize("case", [c for c in LISTS if c.loss is not losses.ListMLELoss], ids=str)
    def test_negative_relevance(self, case):
        check_raises(case, put(1, 1, -2), ValueError, "relevance must be at least 0; got -2 at position 1")

    def test_relevance_whose_gain_overflows(self):
        case = replace(BY_LOSS[losses.NDCGLoss], known=None)
        check_raises(case, put(1, 1, 2000), ValueError, "relevance must be so small .*; got 2000 at position 1")

    def test_class_labels(self):
        case = BY_LOSS[losses.NCALoss]
        check_raises(case, put(1, 3, 4), ValueError, r"labels must be in \[0, 4\); got 4 at position 3")
        check_raises(case, put(1, 3, -1), ValueError, r"labels must be in \[0, 4\); got -1 at position 3")
        check_raises(case, swap(1, torch.Tensor.double), TypeError, "labels must have an integer dtype")

    def test_groups(self):
        case = BY_LOSS[losses.GroupDROLoss]
        check_raises(case, put(1, 3, 3), ValueError, r"group must be in \[0, 3\); got 3 at position 3")
        check_raises(case, swap(1, torch.Tensor.double), TypeError, "group must have an integer dtype")

    def test_pairs_of_different_dtypes(self):
        for loss in (losses.LatentVariableLoss, losses.SoftmaxLoss, losses.ContrastiveLoss):
            check_raises(BY_LOSS[loss], swap(1, torch.Tensor.float), TypeError, "must have the same dtype")

    def test_vectors_without_direction(self):
        case = BY_LOSS[losses.ContrastiveLoss]
        check_raises(case, put(1, 3, 0.0), ValueError, r"the length of each vector in second .*; got 0.0 at position 3")

    @pytest.mark.parametrize("log_q", [torch.zeros(3), torch.zeros(6, 3), torch.full((4,), math.nan)])
    @pytest.mark.parametrize("loss", [losses.SoftmaxLoss, losses.LatentVariableLoss])
    def test_probabilities_of_candidates(self, loss, log_q):
        case = BY_LOSS[loss]
        check_raises(case, lambda values: [*values, log_q.double()], ValueError, "log_q")


OVERFLOWS = {
    losses.AveragePrecisionLoss: r"scores must be such that the gradient is finite; got .* at position \d",
    losses.PartialAUCLoss: r"scores must be such that the gradient is finite; got .* at position \d",
    losses.NDCGLoss: r"scores must be such that the gradient is finite; got .*e\+30 at position \d",
    losses.NCALoss: r"the squared length of each vector in embeddings must .*; got inf at position \d",
}


@pytest.mark.parametrize("loss", OVERFLOWS, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("training", [True, False])
def test_what_overflows_is_called_by_its_name(loss, training):
    """Finite themselves, their squares are not. The table keeps what it holds."""
    case = BY_LOSS[loss]
    if loss in (losses.AveragePrecisionLoss, losses.NDCGLoss):
        case = case.with_options(surrogate="squared_hinge")
    population = case.population(scale=1e30, dtype=torch.float32)
    loss_fn = case.make(population).train(training)
    with pytest.raises(ValueError, match=OVERFLOWS[loss]):
        case.call(loss_fn, population)
    assert not loss_fn.table.visits.any()


def test_a_difference_that_overflows_is_refused():
    message = r"target_logit must be such that the gradient is finite; got 3e\+38 at position 0"
    with pytest.raises(ValueError, match=message):
        losses.SoftmaxLoss(1)(torch.tensor([-3e38]), torch.tensor([[3e38]]), torch.tensor([0]))


class TestConstructors:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: losses.AveragePrecisionLoss(5, 6), "n_pos must be at most n = 5; got 6"),
            (lambda: losses.AveragePrecisionLoss(5, 0), "n_pos must be at least 1"),
            (
                lambda: losses.AveragePrecisionLoss(5, 2, margin=0.0, surrogate="hinge"),
                "surrogate must be positive at 0 for average precision; got hinge, which is 0.0 there",
            ),
            (lambda: losses.AveragePrecisionLoss(5, 2, margin=-1.0, surrogate="squared_hinge"), "margin"),
            (lambda: losses.AveragePrecisionLoss(5, 2, surrogate="hingy"), "surrogate must be callable or one of"),
            (lambda: losses.AveragePrecisionLoss(5, 2, own_term="no"), "own_term must be one of 'exact', 'sampled'"),
            (lambda: losses.PNormPushLoss(5, p=0.5), "p must be finite and at least 1"),
            (lambda: losses.PartialAUCLoss(5, temperature=0.0), "temperature must be finite and above 0"),
            (lambda: losses.CoxLoss(5, 6), "n_events must be at most n = 5; got 6"),
            (lambda: losses.CoxLoss.from_targets([0, 0]), "n_events must be at least 1"),
            (lambda: losses.CoxLoss.from_targets([0, 2]), "event must be 0 or 1; got 2 at position 1"),
            (lambda: losses.NCALoss(5, [2, 2]), "class_sizes must be integers >= 0 that add up to n = 5"),
            (lambda: losses.NCALoss(5, [2.5, 2.5]), "class_sizes must be integers"),
            (lambda: losses.NCALoss.from_targets([-1, 0]), "labels must be"),
            (lambda: losses.GroupDROLoss.from_targets([0.5, 1]), "group must be"),
            (
                lambda: losses.GroupDROLoss.from_targets([0, 2]),
                r"group_sizes must be 3 positive integers; got \[1, 0, 1\]",
            ),
            (
                lambda: losses.GroupDROLoss(3, group_sizes=[1, 2]),
                r"group_sizes must be 3 positive integers; got \[1, 2\]",
            ),
            (lambda: losses.ContrastiveLoss(5, mode="both"), "mode must be one of"),
            (lambda: losses.ContrastiveLoss(5, temperature=-1.0), "temperature must be finite and above 0"),
            (lambda: losses.SoftmaxLoss(5, n_classes=1), "n_classes must be at least 2"),
            (lambda: losses.ListNetLoss(5, target="other"), "target must be one of"),
            (
                lambda: losses.ListNetLoss.from_targets([1.0, -1.0], [0, 0]),
                "relevance must be at least 0; got -1.0 at position 1",
            ),
            (
                lambda: losses.NDCGLoss.from_targets([1.0, -1.0], [0, 0]),
                "relevance must be at least 0; got -1.0 at position 1",
            ),
            (lambda: losses.NDCGLoss(5, k=0), "k must be at least 1"),
            (lambda: losses.GroupDROLoss(3, temperature=0.0), "temperature must be finite and above 0"),
            (lambda: losses.GroupDROLoss(3, rule=fcco.MOAP(0.1)), "rule of GroupDROLoss must be SOX, SOAP or BSGD"),
            (lambda: losses.PNormPushLoss(5, surrogate="hinge", rule=fcco.NASA(0.1)), "NASA needs estimates of all"),
            (lambda: losses.PNormPushLoss.from_targets([[1, 0]]), "target must have the shape"),
            (
                lambda: losses.AveragePrecisionLoss.from_targets(np.array([1, 3])),
                "target must be 0 or 1; got 3 at position 1",
            ),
        ],
    )
    def test_values(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()

    def test_lists_of_another_population(self):
        lists = losses.ListNetLoss.from_targets([1.0, 0.0], [0, 0])
        described = Lists(*(getattr(lists, f"list_{name}") for name in Lists._fields))
        with pytest.raises(ValueError, match=r"lists.size must have the shape \[3\]; got \[2\]"):
            losses.ListNetLoss(3, lists=described)


@pytest.mark.parametrize("kind", [losses.NCALoss, losses.SupervisedContrastiveLoss])
def test_an_example_is_not_compared_with_its_own_remembered_output(kind):
    """Without rows, a memory cannot tell an older output of the same example from that of another one."""
    embeddings, labels = torch.randn(6, 2, requires_grad=True), torch.arange(6) % 2
    loss_fn = kind(n=6)
    with pytest.raises(TypeError, match=r"index must be given.*own output in the memory"):
        loss_fn(embeddings, labels)
    with torch.no_grad():
        loss_fn(embeddings, labels)
    loss_fn.eval()(embeddings, labels)
    kind(n=6, rule=fcco.BSGD())(embeddings, labels)
