"""Values and gradients by code that nobody here wrote."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score
from sklearn.neighbors import NeighborhoodComponentsAnalysis

import fcco.functional as F

GOLDEN = json.loads((Path(__file__).parent / "golden" / "cox.json").read_text())
N = 60


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def untied(rng, n=N):
    """Scores that differ by at least 1/n."""
    return rng.permutation(n) / n


class TestAveragePrecision:
    @pytest.fixture
    def target(self, rng):
        return rng.permutation(np.arange(N) % 4 == 0)

    @pytest.mark.parametrize("surrogate", ["ramp", "sigmoid"])
    @pytest.mark.parametrize("seed", range(20))
    def test_sharp_surrogate(self, surrogate, seed):
        """For data of all sizes and balances, also weighted. With an own term of 1/2 most values miss by percents."""
        rng = np.random.default_rng(seed)
        n = rng.integers(2, 60)
        scores, target = untied(rng, n), rng.uniform(size=n) < rng.uniform(0.05, 0.95)
        target[0] = True
        # The scores are 1 / n apart or more, which is at least 50 temperatures.
        sharp = {"surrogate": surrogate, "temperature": 1 / 3000}
        loss = F.average_precision_loss(torch.tensor(scores), torch.tensor(target), **sharp)
        np.testing.assert_allclose(-loss.item(), average_precision_score(target, scores), rtol=1e-12)
        weight = rng.exponential(size=n) * (rng.uniform(size=n) < 0.8)
        weight[0] = 1.0
        loss = F.average_precision_loss(
            torch.tensor(scores), torch.tensor(target), weight=torch.tensor(weight), **sharp
        )
        expected = average_precision_score(target, scores, sample_weight=weight)
        np.testing.assert_allclose(-loss.item(), expected, rtol=1e-12)

    @pytest.mark.parametrize("surrogate", ["ramp", "sigmoid"])
    def test_from_blunt_to_sharp(self, rng, target, surrogate):
        """The error falls with the temperature, to nothing; with the ramp, as soon as no pair is within its width."""
        scores = untied(rng)
        wanted = average_precision_score(target, scores)
        losses = [
            F.average_precision_loss(
                torch.tensor(scores), torch.tensor(target), surrogate=surrogate, temperature=tau
            ).item()
            for tau in (1.0, 0.1, 0.01, 0.25 / N)
        ]
        errors = np.abs(-np.array(losses) - wanted)
        assert (np.diff(errors) < 0).all()
        assert errors[-1] < (1e-12 if surrogate == "ramp" else 0.01)

    @pytest.mark.parametrize("surrogate", ["ramp", "sigmoid"])
    def test_broken_ties(self, rng, target, surrogate):
        """Scores of few levels and a little noise, sharp at the scale of the noise: that of the noisy scores."""
        scores = rng.integers(0, 8, size=N) + 1e-4 * untied(rng)
        loss = F.average_precision_loss(
            torch.tensor(scores), torch.tensor(target), surrogate=surrogate, temperature=1e-8
        )
        np.testing.assert_allclose(-loss.item(), average_precision_score(target, scores), rtol=1e-12)

    def test_sharp_sigmoid_that_counts_the_own_term_fully(self, rng, target):
        scores = untied(rng)
        loss = F.average_precision_loss(
            torch.tensor(1e4 * scores), torch.tensor(target), surrogate=lambda t: torch.sigmoid(t + 50)
        )
        np.testing.assert_allclose(-loss.item(), average_precision_score(target, scores), rtol=1e-12)

    def test_indicator_with_ties(self, rng, target):
        scores = rng.integers(0, 8, size=N).astype(float)
        loss = F.average_precision_loss(
            torch.tensor(scores), torch.tensor(target), surrogate=lambda t: (t >= 0).double(), chunk=7
        )
        np.testing.assert_allclose(-loss.item(), average_precision_score(target, scores), rtol=1e-12)


class TestNDCG:
    @pytest.mark.parametrize("k", [None, 1, 3, 10])
    @pytest.mark.parametrize(
        "surrogate", ["ramp", "sigmoid", lambda t: (t > 0).double()], ids=["ramp", "sigmoid", "indicator"]
    )
    @pytest.mark.parametrize("temperature", [1.0, 1e-3])
    def test_sharp_surrogate(self, rng, k, surrogate, temperature):
        """scikit-learn's gain is the number it is given, so that it is given 2^y - 1."""
        queries = [(untied(rng, n), rng.integers(0, 4, size=n)) for n in (5, 12, 30)]
        expected = np.mean([ndcg_score([2.0**y - 1], [h], k=k) for h, y in queries])
        scores, relevance = (torch.tensor(np.concatenate(part)) for part in zip(*queries, strict=True))
        query = torch.tensor([9] * 5 + [-4] * 12 + [2] * 30)
        options = {"surrogate": surrogate, "temperature": temperature, "k": k, "sharpness": 1e3}
        loss = F.ndcg_loss(1e4 * temperature * scores, relevance, query, **options)
        np.testing.assert_allclose(-loss.item(), expected, rtol=1e-12)


class TestCrossEntropy:
    def test_softmax(self, rng):
        logits, target = torch.tensor(rng.normal(size=(N, 7))), torch.tensor(rng.integers(0, 7, size=N))
        own = logits.gather(1, target.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(
            F.softmax_loss(own, logits), torch.nn.functional.cross_entropy(logits, target), rtol=1e-12, atol=0
        )

    @pytest.mark.parametrize("target", ["proportional", "softmax"])
    def test_list_net_with_lists_of_one_size(self, rng, target):
        scores = torch.tensor(rng.normal(size=(N, 6)), requires_grad=True)
        relevance = torch.tensor(rng.integers(0, 4, size=(N, 6)).astype(float))
        relevance[:, 0] += 1
        shares = relevance.softmax(1) if target == "softmax" else relevance / relevance.sum(1, keepdim=True)
        query = torch.arange(N).repeat_interleave(6)
        loss = F.list_net_loss(scores.flatten(), relevance.flatten(), query, target=target)
        expected = torch.nn.functional.cross_entropy(scores, shares)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(
            torch.autograd.grad(loss, scores), torch.autograd.grad(expected, scores), rtol=1e-10, atol=1e-15
        )

    def test_clip(self, rng):
        first, second = (torch.nn.functional.normalize(torch.tensor(rng.normal(size=(N, 5)))) for _ in range(2))
        logits, diagonal = first @ second.T / 0.07, torch.arange(N)
        clip = sum(torch.nn.functional.cross_entropy(x, diagonal) for x in (logits, logits.T)) / 2
        loss = F.contrastive_loss(first, second, temperature=0.07, mode="cross_modal", include_positive=True)
        torch.testing.assert_close(loss, clip - math.log(N), rtol=1e-12, atol=0)

    def test_simclr(self, rng):
        views = torch.nn.functional.normalize(torch.tensor(rng.normal(size=(2 * N, 5))))
        logits = (views @ views.T / 0.2).fill_diagonal_(-math.inf)
        simclr = torch.nn.functional.cross_entropy(logits, torch.arange(2 * N).roll(N))
        loss = F.contrastive_loss(views[:N], views[N:], temperature=0.2, mode="two_views", include_positive=True)
        torch.testing.assert_close(loss, simclr - math.log(2 * N - 1), rtol=1e-12, atol=0)

    def test_latent_variables_of_a_mixture(self, rng):
        """torch's mixture of normals, with z the component."""
        weight, means, y = (torch.tensor(rng.normal(size=shape)) for shape in [(N, 3), (N, 3), (N, 1)])
        components = torch.distributions.Normal(means, 0.5)
        mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=weight), components)
        loss = F.latent_variable_loss(components.log_prob(y), weight)
        torch.testing.assert_close(loss, -mixture.log_prob(y.squeeze(1)).mean(), rtol=1e-12, atol=0)


@pytest.mark.skipif(not hasattr(NeighborhoodComponentsAnalysis, "_loss_grad_lbfgs"), reason="scikit-learn moved it")
def test_nca_and_its_gradient(rng):
    x, labels = rng.normal(size=(N, 4)), rng.integers(0, 3, size=N)
    matrix = torch.tensor(rng.normal(size=(2, 4)), requires_grad=True)
    loss = F.nca_loss(torch.tensor(x) @ matrix.T, torch.tensor(labels), chunk=13)
    (gradient,) = torch.autograd.grad(loss, matrix)
    estimator = NeighborhoodComponentsAnalysis()
    estimator.n_iter_ = 1
    value, slope = estimator._loss_grad_lbfgs(matrix.detach().numpy().ravel(), x, labels[:, None] == labels, sign=-1.0)
    np.testing.assert_allclose(N * loss.item(), value, rtol=1e-10)
    np.testing.assert_allclose(N * gradient.numpy().ravel(), slope, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("data", GOLDEN["cases"])
@pytest.mark.parametrize("oracle", ["sksurv_breslow", "sksurv_efron", "lifelines_efron"])
class TestCox:
    """scikit-survival and lifelines give the log-likelihood, a sum over the events."""

    @pytest.fixture
    def case(self, data):
        return GOLDEN["cases"][data]

    def log_likelihood(self, case, beta, oracle):
        x, time = (torch.tensor(case[key], dtype=torch.float64) for key in ("x", "time"))
        event = torch.tensor(case["event"])
        loss = F.cox_loss(x @ beta, time, event, ties=oracle.split("_")[1])
        return -loss * event.sum()

    def test_value(self, case, oracle):
        for row in case["values"]:
            beta = torch.tensor(row["beta"], dtype=torch.float64)
            np.testing.assert_allclose(self.log_likelihood(case, beta, oracle).item(), row[oracle], rtol=1e-12)

    def test_optimum(self, case, oracle):
        optimum = case["optima"][oracle]
        beta = torch.tensor(optimum["beta"], dtype=torch.float64, requires_grad=True)
        value = self.log_likelihood(case, beta, oracle)
        (gradient,) = torch.autograd.grad(value, beta)
        np.testing.assert_allclose(value.item(), optimum["log_likelihood"], rtol=1e-12)
        np.testing.assert_allclose(gradient.numpy(), 0.0, atol=1e-6)


def test_partial_auc_between_its_limits(rng):
    """Cold it is the hardest negative, hot the mean over all pairs."""
    scores, target = torch.tensor(rng.normal(size=N)), torch.tensor(np.arange(N) % 3 == 0)
    pairs = (1 + scores[~target] - scores[target].unsqueeze(1)).clamp(min=0).square()
    cold = F.partial_auc_loss(scores, target, temperature=1e-4)
    hot = F.partial_auc_loss(scores, target, temperature=1e6)
    torch.testing.assert_close(cold, pairs.amax(1).mean(), rtol=1e-3, atol=0)
    torch.testing.assert_close(hot, pairs.mean(), rtol=1e-4, atol=0)


def test_group_dro_between_its_limits(rng):
    losses, group = torch.tensor(rng.exponential(size=N)), torch.arange(N) % 4
    means = torch.stack([losses[group == k].mean() for k in range(4)])
    torch.testing.assert_close(F.group_dro_loss(losses, group, temperature=1e-5), means.max(), rtol=1e-4, atol=0)
    torch.testing.assert_close(F.group_dro_loss(losses, group, temperature=1e6), means.mean(), rtol=1e-6, atol=0)
