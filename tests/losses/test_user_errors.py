"""Input of new users that must raise, or must mean what it says."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco import functional, losses

SCORES, LABELS = torch.zeros(64, 8), (torch.arange(512).reshape(64, 8) % 3 == 0).long()


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_rows_of_classes_do_not_wrap_around(dtype):
    loss_fn = losses.PartialAUCLoss(20_000, n_classes=8, rule=fcco.SOAP(gamma=0.5))
    loss_fn(SCORES, LABELS, torch.arange(9000, 9064, dtype=dtype))
    assert loss_fn.table.visits.nonzero().min() >= 72_000


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (torch.arange(5), ValueError, r"index must have the shape \[64\], like scores; got \[5\]"),
        (torch.zeros(64, dtype=torch.bool), TypeError, r"index must be of an integer dtype; got torch\.bool"),
        (torch.arange(64).reshape(64, 1), ValueError, r"index must have the shape \[B1\]; got \[64, 1\]"),
    ],
)
def test_the_index_of_several_classes(index, error, message):
    with pytest.raises(error, match=message):
        losses.PartialAUCLoss(100, n_classes=8)(SCORES, LABELS, index)


def test_missing_labels_must_be_counted():
    target = torch.tensor([[1, 0], [0, 1], [-1, 0], [1, 1]])
    loss_fn = losses.AveragePrecisionLoss(4, np.array([2, 2]))
    with pytest.raises(ValueError, match=r"no missing labels.* got one at position \[2, 0\]\. Use from_targets"):
        loss_fn(torch.zeros(4, 2), target, torch.arange(4))
    losses.AveragePrecisionLoss.from_targets(target)(torch.zeros(4, 2), target, torch.arange(4))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("first", [-3, 10**12])
def test_strata_may_be_any_integers(first, training):
    """So many that they are not compared pair by pair."""
    risk, strata = torch.randn(300, requires_grad=True), torch.arange(300) % 4
    time, event, rows = torch.rand(300), torch.ones(300), torch.arange(300)
    values = []
    for ids in (strata, strata + first):
        loss_fn = losses.CoxLoss(300, rule=fcco.SOAP(0.5)).train(training)
        values.append(loss_fn(risk, time, event, rows, strata=ids))
    assert values[0] == values[1]
    if not training:
        loss_fn = losses.BaselineCoxLoss.from_targets(time, event, strata=strata).eval()
        assert loss_fn(risk, time, event, strata=strata + first) == values[0]


def test_strata_are_needed_in_evaluation_too():
    time, event, strata = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4), torch.tensor([0, 0, 1, 1])
    loss_fn = losses.BaselineCoxLoss.from_targets(time, event, strata=strata).eval()
    with pytest.raises(ValueError, match="strata must be given"):
        loss_fn(torch.zeros(4), time, event)
    loss_fn(torch.zeros(4), time, event, strata=strata)


def test_times_of_survival_curves():
    time, event = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 1, 0])
    baseline = functional.baseline_hazard(torch.zeros(3), time, event)
    for times in (torch.tensor([1.0, torch.nan]), torch.ones(2, 3), [1.0]):
        with pytest.raises(ValueError, match="times must be"):
            functional.survival_function(torch.zeros(2), baseline, times)
    with pytest.raises(ValueError, match="times must be numbers; got nan at position 1"):
        functional.brier_score(torch.full((3, 2), 0.5), time, event, torch.tensor([1.5, torch.nan]))


def test_a_huge_risk_lives_until_the_first_event():
    baseline = functional.baseline_hazard(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 1, 0]))
    assert functional.survival_function(torch.tensor([1e4]), baseline, torch.tensor([0.5, 1.5])).tolist() == [
        [1.0, 0.0]
    ]


def test_temperatures_out_of_range():
    loss_fn = losses.SupervisedContrastiveLoss(5, temperature=nn.Parameter(torch.tensor(0.1)))
    with torch.no_grad():
        loss_fn.temperature.fill_(-0.1)
    with pytest.raises(ValueError, match="temperature must be finite and above 0"):
        loss_fn(torch.eye(3), torch.tensor([0, 0, 1]), torch.arange(3))
    with pytest.raises(ValueError, match=r"temperature must be within bounds = \(0\.01, 1\.0\); got 2\.0"):
        losses.RobustContrastiveLoss(5, rho=0.5, temperature=2.0)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (lambda: fcco.CoupledLoss(torch.log, 3, rule=fcco.SOX(gamma=0.1)), (torch.ones(2),)),
        (lambda: fcco.CoupledLoss(torch.log, 3, rule=fcco.SOX(gamma=0.1)), (torch.ones(2), None)),
        (lambda: losses.AveragePrecisionLoss(3, 1), (torch.zeros(2), torch.tensor([0, 1]))),
        (lambda: losses.NCALoss(3), (torch.zeros(2, 1), torch.tensor([0, 1]))),
    ],
)
def test_a_forgotten_index_is_added_by_indexed(make, arguments):
    with pytest.raises(TypeError, match=r"index must be given, because .*; got None\. fcco\.data\.Indexed adds it"):
        make()(*arguments)


CLASSES = torch.arange(12) % 3
ONE_HOT = nn.functional.one_hot(CLASSES)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (losses.AveragePrecisionLoss, TypeError),
        (lambda: losses.AveragePrecisionLoss(12), TypeError),
        (lambda: losses.AveragePrecisionLoss(CLASSES == 0), TypeError),
        (lambda: losses.AveragePrecisionLoss(12, CLASSES), ValueError),
        (lambda: losses.AveragePrecisionLoss(12, (CLASSES == 0).long().tolist()), ValueError),
        (lambda: losses.AveragePrecisionLoss(12, ONE_HOT), ValueError),
    ],
)
def test_labels_belong_in_from_targets(make, error):
    with pytest.raises(error, match=r"AveragePrecisionLoss\.from_targets\(target\)"):
        make()


@pytest.mark.parametrize("memory", [None, 0])
def test_several_classes_are_columns(memory):
    """A loss of one class says how to make one of several."""
    with pytest.raises(ValueError, match=r"got 2 at .*pass target == k .* scores of the shape \[B, C\] .*one_hot"):
        losses.AveragePrecisionLoss.from_targets(CLASSES)
    loss_fn, rows = losses.AveragePrecisionLoss.from_targets(CLASSES == 0, memory=memory), torch.arange(6)
    with pytest.raises(ValueError, match=r"got 2 at position 2\. If these are classes, pass target == k"):
        loss_fn(torch.zeros(6), CLASSES[:6], rows)
    for scores, target in ((6,), ONE_HOT[:6]), ((6, 3), ONE_HOT[:6]), ((6, 3), CLASSES[:6]):
        with pytest.raises(ValueError, match=r"got \[6, 3\]\. .* by from_targets\(target\) with target"):
            loss_fn(torch.zeros(scores), target, rows)
    assert loss_fn.table.step == 0
    losses.AveragePrecisionLoss.from_targets(ONE_HOT)(torch.zeros(6, 3), CLASSES[:6], rows)


def steps_in_range(loss_fn, steps, *, low=0.0, high=1.0):
    for step in range(steps):
        scores = torch.linspace(low, high, 12, requires_grad=True)
        loss_fn(scores, torch.where(step % 2 == CLASSES, 1, 0), torch.arange(12)).backward()


@pytest.mark.parametrize("options", [{}, {"temperature": "auto"}, {"surrogate": "sigmoid", "memory": 0}], ids=str)
def test_probabilities_get_one_warning(options):
    loss_fn = losses.AveragePrecisionLoss(16, 8, **options)
    steps_in_range(loss_fn, 99)
    with pytest.warns(UserWarning, match="all scores of 100 steps were in .*: pass logits rather than prob") as said:
        steps_in_range(loss_fn, 200)
    assert len(said) == 1
    assert said[0].filename == __file__
    assert ("beside the temperature" in str(said[0].message)) == ("temperature" not in options)


def test_a_misspelt_temperature():
    with pytest.raises(TypeError, match="temperature must be a number, a function or 'auto'; got 'Auto'"):
        losses.AveragePrecisionLoss(16, 8, temperature="Auto")


def test_other_scores_get_none():
    """Warnings are errors here: logits, a fine temperature, a surrogate that is not bounded, evaluation."""
    logits = losses.AveragePrecisionLoss(16, 8)
    steps_in_range(logits, 98)
    steps_in_range(logits, 1, low=-0.01)
    steps_in_range(logits, 101)
    for options in ({"temperature": 0.1}, {"surrogate": "squared_hinge"}):
        steps_in_range(losses.AveragePrecisionLoss(16, 8, **options), 101)
    steps_in_range(losses.AveragePrecisionLoss(16, 8).eval(), 9)


def test_cox_needs_no_times_in_advance():
    with pytest.raises(TypeError, match=r"takes one argument; got 2\. CoxLoss needs only event; BaselineCoxLoss"):
        losses.CoxLoss.from_targets(torch.ones(3), torch.ones(3))


def test_names_of_classes_must_be_numbers():
    with pytest.raises(TypeError, match=r"labels must be numbers; got <U3\. .* numpy\.unique\(values, return_inverse"):
        losses.NCALoss.from_targets(["cat", "dog"])


def test_an_outer_function_must_be_differentiable():
    loss_fn = fcco.CoupledLoss(lambda u: u.detach().square(), 3, rule=fcco.SOX(gamma=0.1))
    with pytest.raises(ValueError, match="outer must return a differentiable function of u"):
        loss_fn(torch.ones(2, requires_grad=True), torch.tensor([0, 1]))
    assert not loss_fn.table.visits.any()


ONE_ROW = r"index must be different for two views of an example; got 1 at positions 1 and 4, whose embeddings differ"


@pytest.mark.parametrize(
    "make",
    [
        losses.NCALoss,
        lambda n: losses.NCALoss(n, memory=0),
        lambda n: losses.NCALoss(n, log_likelihood=True, rule=fcco.BSGD()),
        lambda n: losses.NCALoss(n, [n // 3] * 3, memory=8),
        losses.SupervisedContrastiveLoss,
    ],
)
def test_two_views_need_two_rows(make):
    views, labels = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.arange(3).repeat(2)
    views[3] = views[0]  # an example that was drawn twice
    rows, warned, right = torch.arange(3).repeat(2), make(3), make(6)
    with pytest.warns(UserWarning, match=ONE_ROW):
        warned(views.requires_grad_(), labels, rows)
    warned(views, labels, rows)  # once is enough
    right(views, labels, torch.arange(6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_example_drawn_twice_is_no_second_view(dtype):
    z = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    drawn = z[[0, 1, 2, 0]] * torch.tensor([1, 1, 1, 1 + torch.finfo(dtype).eps], dtype=dtype).unsqueeze(1)
    loss_fn = losses.NCALoss(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_fn(drawn.requires_grad_(), torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 2, 0]))
        loss_fn.eval()(z, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (lambda: losses.AveragePrecisionLoss(9, 3), "a table and a memory of 256 outputs of each stratum"),
        (lambda: losses.CoxLoss(9), "a memory of 256 outputs"),
        (lambda: losses.CoxLoss(9, memory=0), "a table"),
        (lambda: losses.CoxLoss(9, rule=fcco.BSGD()), "nothing"),
    ],
)
def test_a_loss_shows_what_it_keeps(make, kept):
    assert f", kept: {kept}\n" in repr(make())
