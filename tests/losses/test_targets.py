"""``from_targets`` counts what the plain arguments say."""

import math

import numpy as np
import pytest
import torch

import fcco
from fcco import losses
from fcco.functional._inner_listwise import Lists
from losses.cases import AP, COX, LIST_MLE, LIST_NET, NCA, NDCG, PARTIAL_AUC, PUSH, run

FORMS = [torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.clone, lambda x: tuple(x.tolist())]


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def plain(case, others):
    """The loss by hand."""
    if case.loss is losses.AveragePrecisionLoss:
        return case.loss(13, int(others[0].sum()))
    if case.loss is losses.CoxLoss:
        return case.loss(13, int(others[1].sum()))
    if case.loss is losses.NCALoss:
        return case.loss(13, others[0].bincount().tolist())
    return case.loss(13)


@pytest.mark.parametrize("case", [AP, PUSH, PARTIAL_AUC, COX, NCA], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=["list", "numpy", "tensor", "tuple"])
def test_counts(case, form):
    population = case.population()
    made = case.loss.from_targets(form(population[1][case.known[0]]))
    assert equal(run(case, made, population), run(case, plain(case, population[1]), population))


@pytest.mark.parametrize(
    "case", [LIST_NET, LIST_NET.with_options(target="softmax"), LIST_MLE, NDCG, NDCG.with_options(k=2)], ids=str
)
@pytest.mark.parametrize("form", FORMS, ids=["list", "numpy", "tensor", "tuple"])
def test_lists(case, form):
    """Sizes, relevant items and shares of totals or ideal gains, each worked out here query by query."""
    kind = "gain" if case.loss is losses.NDCGLoss else case.options.get("target", "proportional")
    population = case.population()
    relevance, query = population[1]
    rows = []
    for q in query:
        y = relevance[query == q].double()
        gains = np.sort((2**y - 1).numpy())[::-1][: case.options.get("k")]
        total = {
            "proportional": y.sum(),
            "softmax": y.exp().sum(),
            "gain": torch.tensor((gains / np.log2(np.arange(len(gains)) + 2)).sum()),
        }[kind]
        rows.append((len(y), int((y > 0).sum()), total.item()))
    size, relevant, total = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    y = relevance.double()
    weight = {"proportional": y, "softmax": y.exp(), "gain": 2**y - 1}[kind]
    share = weight / total.where(total > 0, 1.0)
    by_hand = Lists(size.long(), relevant.long(), share, query.unique(return_inverse=True)[1], relevance)
    made = case.loss.from_targets(form(relevance), form(query), **case.options)
    torch.testing.assert_close(
        run(case, made, population), run(case, case.loss(13, lists=by_hand, **case.options), population)
    )


def test_bool_targets():
    target = np.array([True, False, False, True])
    assert losses.AveragePrecisionLoss.from_targets(target).n_pos == 2
    assert losses.CoxLoss.from_targets(target).n_events == 2


def test_options_are_passed_on():
    loss_fn = losses.NDCGLoss.from_targets([1, 0], [0, 0], k=1, surrogate="exp", own_term="sampled")
    assert (loss_fn.k, loss_fn.surrogate.name, loss_fn.own_term) == (1, "exp", "sampled")
    assert losses.PNormPushLoss.from_targets([1, 0, 0], p=2).n == 3


def test_moap_scales_by_the_outer_examples():
    """Its rows are unbiased where only some examples are outer ones: the mean of u is gamma * g after one step."""
    scores = torch.tensor([0.3, -0.2, 0.5, 0.1, 0.8, -0.4], dtype=torch.float64)
    target = torch.tensor([1, 1, 0, 0, 0, 0])
    tables = []
    for i in range(2, 6):
        for j in range(i + 1, 6):
            loss_fn = losses.PNormPushLoss.from_targets(target, rule=fcco.MOAP(0.3), surrogate="logistic")
            rows = torch.tensor([0, 1, i, j])
            loss_fn(scores[rows].requires_grad_(), target[rows], rows)
            tables.append(loss_fn.table.read(None, cold=0.0))
    exact = torch.nn.functional.softplus(scores[2:, None] - scores[None, :2]).mean(1)
    torch.testing.assert_close(torch.stack(tables).mean(0)[2:], 0.3 * exact, rtol=1e-12, atol=0)


def test_a_short_index_names_what_it_belongs_to():
    scores = torch.randn(6, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"index must have the shape \[6\], like target_logit; got \[2\]"):
        losses.SoftmaxLoss(9)(scores[:, 0], scores, torch.arange(2))
    with pytest.raises(ValueError, match=r"index must have the shape \[6\], like scores; got \[2\]"):
        losses.InvariantLogisticLoss(9)(scores, torch.arange(6) % 2, torch.arange(2))


def test_a_relevance_beyond_the_gain_is_refused_at_once():
    with pytest.raises(
        ValueError, match=r"relevance must be so small that 2\*\*relevance is finite; got 2000.0 at position 0"
    ):
        losses.NDCGLoss.from_targets([2000.0, 1.0], [0, 0])


HUGE = [[1.7e308, 1.7e308, 0.0], [1e300, 1.0, 0.0], [3e38, 3e38, 3e38], [1e17, 1e17, 1.0]]


@pytest.mark.parametrize("relevance", HUGE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("target", ["proportional", "softmax"])
def test_relevances_near_the_largest_float(relevance, dtype, target):
    """P(y) adds up to 1 in a list, so that equal scores give log 3, however many digits the scores have."""
    relevance, query = torch.tensor(relevance, dtype=torch.float64), torch.tensor([4, 4, 4])
    scores, index = torch.zeros(3, dtype=dtype, requires_grad=True), torch.arange(3)
    known, unknown = losses.ListNetLoss.from_targets(relevance, query, target=target), losses.ListNetLoss(3, target)
    found = [loss_fn(scores, relevance, query, index) for loss_fn in (known, unknown)]
    found.append(fcco.functional.list_net_loss(scores, relevance, query, target=target))
    torch.testing.assert_close(torch.stack(found), torch.full((3,), 3.0, dtype=dtype).log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gains_that_only_double_precision_has_numbers_for(dtype):
    relevance, query = torch.tensor([1000.0, 1.0, 0.0], dtype=torch.float64), torch.tensor([4, 4, 4])
    scores, index = torch.zeros(3, dtype=dtype, requires_grad=True), torch.arange(3)
    for loss_fn in (losses.NDCGLoss.from_targets(relevance, query), losses.NDCGLoss(3)):
        assert loss_fn(scores, relevance, query, index).item() == pytest.approx(-1 / math.log2(1 + 2))  # of rank 2


def test_gains_whose_sum_overflows():
    scores, query = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    relevance = torch.full((3,), 1023.9, dtype=torch.float64)
    message = (
        r"relevance must be so small that the sum of 2\*\*relevance over a query is finite; got 1023.9 at position 0"
    )
    with pytest.raises(ValueError, match=message):
        losses.NDCGLoss.from_targets(relevance, query)
    with pytest.raises(ValueError, match=message):
        losses.NDCGLoss(3)(scores, relevance, query, torch.arange(3))
    with pytest.raises(ValueError, match=message):
        fcco.functional.ndcg_loss(scores, relevance, query)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize(
    "name", ["AveragePrecisionLoss", "PNormPushLoss", "PartialAUCLoss", "TwoWayPartialAUCLoss", "AUCLoss"]
)
def test_targets_of_one_class_are_refused(name, value):
    """A loss of pairs would be constant, and train nothing."""
    with pytest.raises(ValueError, match=f"positives and negatives; got {9 * value:.0f} positives among 9 examples"):
        getattr(losses, name).from_targets(torch.full((9,), value))
