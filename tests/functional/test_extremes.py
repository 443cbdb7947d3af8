"""Scores of ±1e4, and what single precision must not lose."""

import math
import re

import numpy as np
import pytest
import torch

import fcco.functional as F
from fcco.functional._hinges import hinge_sums
from functional.objectives import CASES, Case, binary, ranking, survival, value_and_gradients

# e^t itself overflows in these, and their value with it.
UNBOUNDED = ("p_norm_push_loss", "partial_auc_loss", "auc_loss", "cvar_partial_auc_loss")
OVERFLOWING = [c for c in CASES if c.name in UNBOUNDED and c.options.get("surrogate") == "exp"]
FINITE = [case for case in CASES if case not in OVERFLOWING]
DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("case", FINITE, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_value_and_gradient_are_finite(case, dtype):
    floats, others = case.make(n=30, scale=1e4, dtype=dtype)
    loss, gradients = value_and_gradients(case, floats, others)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("case", [case for case in FINITE if case.options.get("surrogate") != "exp"], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_value_is_the_formula_still(case, dtype):
    floats, others = case.make(n=30, scale=1e4, dtype=dtype)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-6
    np.testing.assert_allclose(case(*floats, *others).item(), case.naive(*floats, *others), rtol=tolerance, atol=1e-30)


@pytest.mark.parametrize("case", [Case("list_mle_loss", ranking), Case("cox_loss", survival)], ids=str)
def test_gradient_is_that_of_the_formula_still(case):
    (scores,), others = case.make(n=60, scale=1e4)
    _, (gradient,) = value_and_gradients(case, [scores], others)
    if case.name == "cox_loss":
        time, event = others
        inside, outer = time >= time.unsqueeze(1), event
    else:
        relevance, query = others
        inside = (query == query.unsqueeze(1)) & (relevance <= relevance.unsqueeze(1))
        outer = torch.ones_like(query, dtype=torch.bool)
    share = (scores - scores.unsqueeze(1)).masked_fill(~inside, -math.inf).softmax(1)
    expected = (share - torch.eye(60))[outer].mean(0)
    torch.testing.assert_close(gradient, expected.detach(), rtol=1e-10, atol=1e-14)


def test_low_list_behind_a_high_one_keeps_its_digits():
    scores = torch.tensor([1e4, 1e4, -1e4, -1e4 + 1], dtype=torch.float64)
    loss = F.list_mle_loss(scores, torch.tensor([1, 0, 1, 0]), torch.tensor([0, 0, 1, 1]))
    np.testing.assert_allclose(loss.item(), (math.log(2) + math.log1p(math.e)) / 4, rtol=1e-11)


def test_embeddings_of_two_distant_clusters_keep_their_digits():
    """The distances within a cluster are of order 1, its distance to the origin 1e4."""
    rng = np.random.default_rng(0)
    labels = np.arange(12) % 3
    z = rng.normal(size=(12, 2)) * 0.5 + np.where(np.arange(12) < 6, 1e4, -1e4)[:, None]
    case = next(case for case in CASES if case.name == "nca_loss")
    arguments = torch.tensor(z), torch.tensor(labels)
    np.testing.assert_allclose(case(*arguments).item(), case.naive(*arguments), rtol=1e-12)


class TestMarginsOfHugeScores:
    """Where a score less 1 is the same score, ties and the example itself still have their margin."""

    TARGET = torch.tensor([1, 0, 1, 0, 0])

    def exact(self, scores, power):
        """[5, 5] of (1 + h_j - h_i)₊^k, in whole numbers."""
        h = [int(x) for x in scores.tolist()]
        return [[max(0, 1 + b - a) ** power for b in h] for a in h]

    @pytest.mark.parametrize("size", [1e10, 1e16, 1e17, 1e30])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(("surrogate", "power"), [("hinge", 1), ("squared_hinge", 2)])
    def test_average_precision(self, size, dtype, surrogate, power):
        scores = torch.tensor([size, size, -size, 0.0, size], dtype=dtype, requires_grad=True)
        terms, positive = self.exact(scores, power), self.TARGET.tolist()
        shares = [
            sum(t for t, y in zip(row, positive, strict=True) if y) / sum(row)
            for row, y in zip(terms, positive, strict=True)
            if y
        ]
        loss = F.average_precision_loss(scores, self.TARGET, surrogate=surrogate)
        assert loss.item() == pytest.approx(-sum(shares) / 2, rel=1e-6)
        assert torch.autograd.grad(loss, scores)[0].isfinite().all()

    @pytest.mark.parametrize("size", [1e10, 1e16, 1e17, 1e30])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(("surrogate", "power"), [("hinge", 1), ("squared_hinge", 2)])
    def test_ndcg(self, size, dtype, surrogate, power):
        scores = torch.tensor([size, size, -size, 0.0, size], dtype=dtype, requires_grad=True)
        ranks = [sum(row) for row in self.exact(scores, power)]
        wanted = -sum(1 / math.log2(1 + ranks[i]) for i in (0, 2)) / (1 + 1 / math.log2(3))
        loss = F.ndcg_loss(scores, self.TARGET, torch.zeros(5, dtype=torch.int64), surrogate=surrogate)
        assert loss.item() == pytest.approx(wanted, rel=1e-6)
        assert torch.autograd.grad(loss, scores)[0].isfinite().all()

    @pytest.mark.parametrize("power", [0, 1, 2])
    def test_sums(self, power):
        thresholds = torch.tensor([1e16, 2.0, -1e17, 1e16 + 2], dtype=torch.float64)
        points = torch.tensor([1e16, 1.0, 1e16 + 2, -1e17], dtype=torch.float64)
        sums = hinge_sums(thresholds, points, torch.ones(4, dtype=torch.float64), power, margin=3.0)
        above = [[3 + int(x) - int(t) for x in points.tolist()] for t in thresholds.tolist()]
        wanted = [sum(a**power for a in row if a > 0) for row in above]
        np.testing.assert_allclose(sums.tolist(), [float(x) for x in wanted], rtol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("log_likelihood", [False, True])
def test_neighbours_whose_squared_distances_are_numbers(dtype, log_likelihood):
    """Of 1e15, that is; 1e20 in float32 has squares in float64, but a likelihood that float32 has no number for."""
    z, labels = torch.tensor([[0.0], [1.0], [5.0], [7.0]], dtype=dtype), torch.tensor([0, 1, 0, 1])
    for size in (1e15, 1e20):
        far = (z * size).requires_grad_()
        if log_likelihood and size == 1e20 and dtype == torch.float32:
            with pytest.raises(
                ValueError,
                match=r"embeddings must be so small that the loss is finite in torch.float32; got a loss of .*e\+41",
            ):
                F.nca_loss(far, labels, log_likelihood=True)
        else:
            loss = F.nca_loss(far, labels, log_likelihood=log_likelihood)
            assert loss.isfinite()
            assert torch.autograd.grad(loss, far)[0].isfinite().all()


@pytest.mark.parametrize("log_likelihood", [False, True])
def test_neighbours_whose_squared_distances_overflow(log_likelihood):
    z = torch.tensor([[0.0], [1e160], [-1e160]], dtype=torch.float64)
    with pytest.raises(
        ValueError,
        match=r"the squared length of each vector in embeddings must be so small .*; got inf at position \(1, 0\)",
    ):
        F.nca_loss(z, torch.tensor([0, 0, 1]), log_likelihood=log_likelihood)


BEYOND = [
    (F.list_net_loss, (torch.tensor([-6e4, 6e4]), torch.tensor([1, 0]), torch.tensor([0, 0]))),
    (F.list_mle_loss, (torch.tensor([-6e4, -6e4, 6e4]), torch.tensor([2, 1, 0]), torch.tensor([0, 0, 0]))),
    (F.cox_loss, (torch.tensor([-6e4, 6e4]), torch.tensor([1.0, 2.0]), torch.tensor([1, 0]))),
    (F.softmax_loss, (torch.tensor([-6e4]), torch.tensor([[-6e4, 6e4]]))),
    (F.partial_auc_loss, (torch.tensor([-6e4, 6e4]), torch.tensor([1, 0]))),
]


@pytest.mark.parametrize(("function", "arguments"), BEYOND)
def test_a_value_that_half_precision_has_no_number_for(function, arguments):
    half = [x.half() if x.is_floating_point() else x for x in arguments]
    assert function(*arguments).isfinite()
    with pytest.raises(ValueError, match=r"must be so small that the loss is finite in torch.float16; got a loss of"):
        function(*half)


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in ("nca_loss", "contrastive_loss")], ids=str)
def test_the_largest_numbers_are_refused_by_name(case):
    """Or have a value: no NaN, and no infinity but for powers."""
    floats, others = case.make(n=12, dtype=torch.float64)
    floats = [(x.detach().sign() * torch.finfo(x.dtype).max).requires_grad_() for x in floats]
    names = "scores|risk|log_likelihood|log_weight|target_logit|logits|losses"
    try:
        loss, gradients = value_and_gradients(case, floats, others)
    except ValueError as error:
        assert re.search(rf"\b({names})\b", str(error))  # noqa: PT017
    else:
        assert case.name == "p_norm_push_loss" or loss.isfinite()
        assert loss.isinf() or all(gradient.isfinite().all() for gradient in gradients)


class TestPNormPush:
    @pytest.mark.parametrize("size", [1e4, 1e200, 4e307])
    def test_scores_of_any_size(self, size):
        scores = torch.tensor([size, -size, -size], dtype=torch.float64, requires_grad=True)
        for target, wanted in (([1, 0, 0], 0.0), ([1, 1, 0], 0.5**4), ([0, 1, 1], math.inf)):
            loss = F.p_norm_push_loss(scores, torch.tensor(target))
            assert loss == wanted
            assert loss.isinf() or torch.autograd.grad(loss, scores)[0].isfinite().all()

    def test_huge_scores_with_small_differences(self):
        (scores,), (target,) = Case("p_norm_push_loss", binary).make(n=20)
        loss, gradient = value_and_gradients(Case("p_norm_push_loss", binary), [scores], [target])
        shifted = (scores.detach() + 1e4).requires_grad_()
        shifted_loss, shifted_gradient = value_and_gradients(Case("p_norm_push_loss", binary), [shifted], [target])
        torch.testing.assert_close(shifted_loss, loss, rtol=1e-10, atol=0)
        torch.testing.assert_close(shifted_gradient, gradient, rtol=1e-10, atol=0)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_perfect_ranking_by_far_is_zero(self, dtype):
        scores = torch.tensor([1e4, -1e4, -1e4], dtype=dtype, requires_grad=True)
        loss = F.p_norm_push_loss(scores, torch.tensor([1, 0, 0]))
        loss.backward()
        assert loss == 0
        assert torch.equal(scores.grad, torch.zeros(3, dtype=dtype))

    def test_terms_that_overflow_may_cancel(self):
        """e^100 twice over: e^{p h_i} alone is beyond float32, and its product with e^{-p h_j} is not."""
        scores = torch.tensor([100.0, 99.0], requires_grad=True)
        loss = F.p_norm_push_loss(scores, torch.tensor([1, 0]))
        loss.backward()
        torch.testing.assert_close(loss, torch.tensor(math.exp(-4)))
        torch.testing.assert_close(scores.grad, torch.tensor([-4.0, 4.0]) * math.exp(-4))

    def test_overflow_is_infinite(self):
        assert F.p_norm_push_loss(torch.tensor([0.0, 1e4]), torch.tensor([1, 0])) == math.inf


def test_ndcg_of_tiny_discounts():
    """With exp the rank of the only relevant item is e^20000, and its discount 1 / log2 of that."""
    scores = torch.tensor([-1e4, 1e4], requires_grad=True)
    loss = F.ndcg_loss(scores, torch.tensor([1, 0]), torch.tensor([0, 0]), surrogate="exp")
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(-math.log(2) / 2e4))
    torch.testing.assert_close(scores.grad, torch.tensor([-1.0, 1.0]) * math.log(2) / 2e4**2)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.options.get("surrogate") in ("ramp", "hinge", "squared_hinge")], ids=str
)
def test_offset_scores_in_single_precision(case):
    (scores,), others = case.make(n=200, dtype=torch.float32)
    scores = (scores.detach() + 1e3).requires_grad_()
    loss, (gradient,) = value_and_gradients(case, [scores], others)
    exact, (exact_gradient,) = value_and_gradients(case, [scores.detach().double().requires_grad_()], others)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_contrast_of_vectors_whose_square_is_not_a_float32(scale):
    case = Case("contrastive_loss", None)
    first, second = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(case(first * scale, second), case(first, second))


class TestLarge:
    """Far too many pairs to go through: what runs here runs by sorting."""

    N = 100_000

    @pytest.fixture
    def rng(self):
        return torch.Generator().manual_seed(0)

    def finite(self, loss, scores):
        (gradient,) = torch.autograd.grad(loss, scores)
        assert loss.isfinite()
        assert gradient.isfinite().all()

    @pytest.mark.parametrize("function", [F.average_precision_loss, F.p_norm_push_loss])
    @pytest.mark.parametrize("surrogate", ["ramp", "squared_hinge", "hinge", "exp"])
    def test_bipartite(self, rng, function, surrogate):
        scores = torch.randn(self.N, generator=rng, requires_grad=True)
        self.finite(function(scores, torch.arange(self.N) % 2, surrogate=surrogate), scores)

    @pytest.mark.parametrize("ties", ["breslow", "efron"])
    def test_cox(self, rng, ties):
        risk = torch.randn(self.N, generator=rng, requires_grad=True)
        time = torch.randint(1000, (self.N,), generator=rng)
        self.finite(F.cox_loss(risk, time, torch.arange(self.N) % 2, ties=ties), risk)

    @pytest.mark.parametrize("queries", [1, 1000, 100_000])
    def test_listwise(self, rng, queries):
        scores = torch.randn(self.N, generator=rng, requires_grad=True)
        query = torch.randint(queries, (self.N,), generator=rng)
        relevance = torch.randint(5, (self.N,), generator=rng)
        for function in (F.list_mle_loss, F.list_net_loss, F.ndcg_loss):
            self.finite(function(scores, relevance, query), scores)
