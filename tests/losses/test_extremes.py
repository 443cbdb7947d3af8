"""Scores of any size."""

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
    PUSH,
    SOFTMAX,
    run,
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
        NDCG.with_options(surrogate="exp"),
        AP,
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


def test_scaling_vectors_changes_nothing():
    near = CONTRASTIVE.population()
    far = ([(x.detach() * 1e200).requires_grad_() for x in near[0]], [])
    values = [CONTRASTIVE.call(CONTRASTIVE.make(p), p).detach() for p in (near, far)]
    torch.testing.assert_close(*values)


def test_push_overflows_only_where_its_value_does():
    """e^(4 * 200) does in float64; the row itself, a logarithm, does not, and goes on from there."""
    loss_fn = losses.PNormPushLoss(2, rule=fcco.SOX(0.5))
    scores = torch.tensor([0.0, 200.0], dtype=torch.float64, requires_grad=True)
    target, index = torch.tensor([1, 0]), torch.tensor([0, 1])
    assert loss_fn(scores, target, index).isinf()
    assert loss_fn.table.u[1] == 200.0
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
