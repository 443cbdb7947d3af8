"""Scores of any size."""

import math

import pytest
import torch

import fcco
from fcco import losses
from losses.cases import (
    AP,
    CASES,
    CONTRASTIVE,
    COX,
    LATENT,
    LIST_MLE,
    LIST_NET,
    NDCG,
    PARTIAL_AUC,
    PUSH,
    SOFTMAX,
    gradients,
    run,
    same,
    state,
)


def overflows(case):
    """Where the value itself does: (e^t)^p, and τ log e^(e^t / τ)."""
    surrogate = case.options.get("surrogate", "exp" if case.loss is losses.PNormPushLoss else None)
    return surrogate == "exp" and case.loss in (losses.PNormPushLoss, losses.PartialAUCLoss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", [case for case in CASES if not overflows(case)], ids=str)
class TestHugeScores:
    def test_finite(self, case, dtype):
        """From +-1e4 to tiny and back again: no row is poisoned by what it held."""
        big, small = case.population(scale=1e4, dtype=dtype), case.population(scale=1e-4, dtype=dtype)
        loss_fn = case.make(big)
        for population in (small, big, small, big):
            others = (population[0], big[1])
            assert all(value.isfinite().all() for value in run(case, loss_fn, others))
            assert not loss_fn.table.u.isnan().any()

    def test_value_is_the_exact_one(self, case, dtype):
        population = case.population(scale=1e4, dtype=dtype)
        loss, wanted = case.call(case.make(population), population), case.objective(population)
        rtol = 1e-8 if dtype == torch.float64 else 1e-3
        torch.testing.assert_close(loss, wanted, rtol=rtol, atol=rtol)


SHIFTED = [
    (case, shift)
    for shift in (-1e4, 1e4)
    for case in (
        COX.with_options(own_term="exact"),
        COX,
        LIST_NET,
        LIST_MLE,
        NDCG,
        NDCG.with_options(surrogate="squared_hinge"),
        NDCG.with_options(surrogate="exp"),
        AP,
        AP.with_options(temperature=0.3),
        AP.with_options(surrogate="squared_hinge"),
        AP.with_options(surrogate="exp"),
        PUSH,
        SOFTMAX,
        LATENT,
    )
]


@pytest.mark.parametrize(("case", "shift"), SHIFTED, ids=str)
def test_a_common_shift_of_the_scores_changes_nothing(case, shift):
    near = case.population()
    floats = [x.detach() + (0.0 if case is LATENT and i == 0 else shift) for i, x in enumerate(near[0])]
    far = ([x.requires_grad_() for x in floats], near[1])
    expected = run(case, case.make(near), near)
    torch.testing.assert_close(run(case, case.make(far), far), expected, rtol=1e-8, atol=1e-8)


FAR = [
    AP,
    AP.with_options(temperature=0.1),
    AP.with_options(temperature=0.1, own_term="exact", surrogate="sigmoid"),
    NDCG.with_options(temperature=0.1),
    AP.with_options(surrogate="exp", own_term="exact"),
    AP.with_options(surrogate="exp", own_term="sampled"),
    NDCG.with_options(surrogate="exp"),
    NDCG.with_options(surrogate="squared_hinge"),
    PUSH,
    PUSH.with_options(rule=fcco.MOAP(0.3)),
    PUSH.with_options(surrogate="squared_hinge"),
    PARTIAL_AUC,
    LIST_NET,
    LIST_MLE,
    COX,
    SOFTMAX,
]


@pytest.mark.parametrize("case", FAR, ids=str)
def test_a_common_shift_costs_no_digits_in_single_precision(case):
    """Scores are multiples of 1 / 64, which are numbers in float32 beside 1e5 too."""
    near = case.population(dtype=torch.float32)
    floats = [(x.detach() * 64).round() / 64 for x in near[0]]
    expected, observed = (
        run(case, case.make(near), ([(x + shift).requires_grad_() for x in floats], near[1])) for shift in (0.0, 1e5)
    )
    torch.testing.assert_close(observed, expected, rtol=1e-5, atol=1e-6)


def test_scaling_vectors_changes_nothing():
    near = CONTRASTIVE.population()
    far = ([(x.detach() * 1e200).requires_grad_() for x in near[0]], [])
    values = [CONTRASTIVE.call(CONTRASTIVE.make(p), p).detach() for p in (near, far)]
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("rule", [fcco.SOX(0.5), fcco.SOAP(0.5), fcco.BSGD()], ids=str)
@pytest.mark.parametrize("memory", [0, 2, fcco.Memory(2, "estimate")], ids=["table", "memory", "estimate"])
def test_push_is_refused_where_its_value_or_its_gradient_overflows(rule, memory):
    """The row would not, as a logarithm, but what follows from it would spoil all weights."""
    edge = math.log(torch.finfo(torch.float32).max) / 4
    loss_fn = losses.PNormPushLoss(6, rule=rule, memory=memory)
    target, index, refused = torch.tensor([1, 1, 0, 0]), torch.tensor([0, 1, 2, 3]), []
    for shift in (-40.0, -1.0, -0.7, -0.35, 0.0, 0.35, 1.0):
        scores = torch.tensor([0.0, 0.0, 0.0, edge + shift], requires_grad=True)
        before = state(loss_fn)
        try:
            loss = loss_fn(scores, target, torch.where(index == 3, index + (shift > -1), index))
        except fcco.NotFiniteError as error:
            assert same(before, state(loss_fn))
            assert error.name == "scores"  # noqa: PT017
            refused.append((shift, str(error)))
        else:
            assert loss.isfinite()
            loss.backward()
            assert scores.grad.isfinite().all()
    assert refused[-1][0] == 1.0
    assert "at position 3, in row 4: start from small outputs, standardise the features" in refused[-1][1]


def test_push_does_not_overflow_where_its_value_does_not():
    loss_fn = losses.PNormPushLoss(2, rule=fcco.SOX(0.5))
    scores = torch.tensor([0.0, 170.0], dtype=torch.float64, requires_grad=True)
    target, index = torch.tensor([1, 0]), torch.tensor([0, 1])
    assert loss_fn(scores, target, index).isfinite()
    assert loss_fn.table.u[1] == 170.0
    sane = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        loss = loss_fn(sane, target, index)
    loss.backward()
    assert loss.item() == pytest.approx(1.0)
    assert sane.grad.tolist() == pytest.approx([-4.0, 4.0])


def test_partial_auc_is_not_hurt_by_pairs_that_do_not_count():
    """Positives far above negatives: e^(h_j - h_i) overflows for pairs the wrong way round only."""
    loss_fn = losses.PartialAUCLoss(2, surrogate="exp")
    scores = torch.tensor([2000.0, 0.0], requires_grad=True)
    loss = loss_fn(scores, torch.tensor([1, 0]), torch.tensor([0, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-7)
    assert scores.grad.isfinite().all()


def test_neighbours_far_from_the_origin():
    """A common offset of the embeddings, as large as 1e4, costs no digits in float32."""
    z, labels = (torch.randn(8, 2) + 1e4).requires_grad_(), torch.arange(8) % 2
    loss = losses.NCALoss(8)(z, labels, torch.arange(8))
    exact = fcco.functional.nca_loss(z.detach().double(), labels)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize("surrogate", ["exp", "squared_hinge"])
def test_push_of_a_table_that_has_more_digits_than_the_scores(surrogate):
    """A value of e^400 is a number in float64 and infinite in float32: the loss then has the precision of the table."""
    loss_fn = losses.PNormPushLoss(2, surrogate=surrogate, rule=fcco.SOAP(0.5))
    target, index = torch.tensor([1, 0]), torch.tensor([0, 1])
    far = 100.0 if surrogate == "exp" else 1e20
    loss = loss_fn(torch.tensor([0.0, far], dtype=torch.float64, requires_grad=True), target, index)
    assert loss.isfinite()
    loss = loss_fn(torch.zeros(2, requires_grad=True), target, index)
    assert loss.isfinite()
    loss.backward()


@pytest.mark.parametrize(
    ("loss_fn", "others"),
    [
        (losses.GroupDROLoss(2), (torch.tensor([0, 1]),)),
        (losses.BaselineCoxLoss(2, [1.0, 2.0], [1, 1]), (torch.tensor([1.0, 2.0]), torch.tensor([1, 1]))),
    ],
)
def test_rows_that_single_precision_has_no_number_for(loss_fn, others):
    """They were written from float64, and stay as they are for a batch of float32."""
    loss_fn(torch.full((2,), 1e200, dtype=torch.float64, requires_grad=True), *others)
    x = torch.zeros(1, requires_grad=True)
    loss = loss_fn(x, *(part[:1] for part in others))
    assert loss.isfinite()
    assert torch.autograd.grad(loss, x)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normal", [2.0**-60, 1.0])
def test_vectors_too_short_to_have_a_direction(dtype, normal):
    """The slope of a direction is 1 over the length, which overflows; a length of 1e-18 is long enough."""
    first, second = torch.eye(3, dtype=dtype) * normal, torch.eye(3, dtype=dtype)
    first.requires_grad_()
    loss_fn = losses.ContrastiveLoss(3)
    loss_fn(first, second, torch.arange(3)).backward()
    assert first.grad.isfinite().all()
    tiny = torch.finfo(dtype).tiny
    with pytest.raises(ValueError, match=r"the length of each vector in first must .*; got .* at position 0"):
        loss_fn(torch.eye(3, dtype=dtype) * tiny, second, torch.arange(3))
    with pytest.raises(ValueError, match=r"the length of each vector in first must .*; got .* at position 0"):
        fcco.functional.contrastive_loss(torch.eye(3, dtype=dtype) * tiny, second)


def test_a_mean_of_numbers_is_a_number():
    """Their sum is none."""
    loss = losses.SoftmaxLoss(4)(torch.zeros(4), torch.full((4, 2), 3e38), torch.arange(4))
    assert loss.item() == pytest.approx(3e38)
    scores = torch.full((4, 2), -1e38, requires_grad=True)
    assert losses.InvariantLogisticLoss(4)(scores, torch.ones(4), torch.arange(4)).item() == pytest.approx(1e38)


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge"])
def test_margins_survive_scores_of_any_size(surrogate):
    """By hand, sorted and pair by pair: 300 ties of 1e16, at which a score less 1 is the same score."""
    target, index = torch.arange(600) % 2, torch.arange(600)
    scores = torch.where(index < 300, 1e16, -1e16).double().requires_grad_()
    loss_fn = losses.AveragePrecisionLoss(600, 300, surrogate=surrogate, rule=fcco.BSGD())
    loss = loss_fn(scores, target, index)
    exact = fcco.functional.average_precision_loss(scores, target, surrogate=surrogate)
    few = losses.AveragePrecisionLoss(600, 300, surrogate=surrogate, rule=fcco.BSGD())
    rows = torch.cat([index[:20], index[300:320]])
    assert loss.item() == pytest.approx(exact.item())
    assert few(scores[rows], target[rows], rows).item() == pytest.approx(exact.item())
    assert torch.autograd.grad(loss, scores)[0].isfinite().all()


LARGEST = [case for case in CASES if case.loss is not losses.NCALoss and case.loss is not losses.ContrastiveLoss]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", LARGEST, ids=str)
def test_the_largest_numbers_have_a_gradient_or_are_refused(case, dtype):
    population = case.population(dtype=dtype)
    largest = torch.finfo(dtype).max
    far = ([(x.detach().sign() * largest).requires_grad_() for x in population[0]], population[1])
    loss_fn = case.make(far)
    before = state(loss_fn)
    try:
        loss = case.call(loss_fn, far)
    except ValueError as error:
        assert any(name in str(error) for name in ("scores", "risk", "log", "losses"))  # noqa: PT017
        assert same(before, state(loss_fn))
    else:
        assert loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients(loss, far))
