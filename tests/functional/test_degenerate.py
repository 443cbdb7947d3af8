"""Data without positives, events, neighbours ...: a defined value with a graph, and the terms that exist."""

import math

import pytest
import torch

import fcco.functional as F

SURROGATES = ["ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp"]
ONES, ZEROS = torch.ones(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)


def scores():
    return torch.tensor([0.3, -0.2, 1.5], requires_grad=True)


def value_with_a_graph(loss, *arguments):
    gradients = torch.autograd.grad(loss, arguments)
    assert loss.shape == ()
    assert loss.dtype == arguments[0].dtype
    assert all(gradient.isfinite().all() for gradient in gradients)
    return loss.item(), gradients


def zero_with_a_graph(loss, *arguments):
    value, gradients = value_with_a_graph(loss, *arguments)
    assert value == 0
    assert all((gradient.abs() < 1e-15).all() for gradient in gradients)


@pytest.mark.parametrize("surrogate", SURROGATES)
class TestBipartite:
    @pytest.mark.parametrize("function", [F.average_precision_loss, F.p_norm_push_loss, F.partial_auc_loss])
    def test_no_positive(self, function, surrogate):
        h = scores()
        zero_with_a_graph(function(h, ZEROS, surrogate=surrogate), h)
        zero_with_a_graph(function(h, -ONES, surrogate=surrogate), h)

    @pytest.mark.parametrize("function", [F.p_norm_push_loss, F.partial_auc_loss])
    def test_no_negative(self, function, surrogate):
        h = scores()
        zero_with_a_graph(function(h, ONES, surrogate=surrogate), h)

    def test_average_precision_without_negatives_is_one(self, surrogate):
        h = scores()
        value, (gradient,) = value_with_a_graph(F.average_precision_loss(h, ONES, surrogate=surrogate), h)
        assert value == pytest.approx(-1, rel=1e-6)
        torch.testing.assert_close(gradient, torch.zeros(3), rtol=0, atol=1e-6)

    def test_one_of_each(self, surrogate):
        h = torch.tensor([0.0, 0.0], requires_grad=True)
        for function in (F.average_precision_loss, F.p_norm_push_loss, F.partial_auc_loss):
            value_with_a_graph(function(h, torch.tensor([1, 0]), surrogate=surrogate), h)

    def test_equal_scores(self, surrogate):
        """Every ratio is that of the counts: the surrogate cancels, unless the own term is 1 and the others are 1/2."""
        h = torch.full((5,), 0.7, requires_grad=True)
        loss = F.average_precision_loss(h, torch.tensor([1, 1, 0, 0, 0]), surrogate=surrogate)
        share = (1 + 1 / 2) / (1 + 4 / 2) if surrogate in ("ramp", "sigmoid") else 2 / 5
        assert value_with_a_graph(loss, h)[0] == pytest.approx(-share, rel=1e-6)


def test_no_violated_pair_is_a_zero_of_hinges():
    h = torch.tensor([5.0, 0.0], requires_grad=True)
    for p in (1, 4):
        zero_with_a_graph(F.p_norm_push_loss(h, torch.tensor([1, 0]), p=p, surrogate="hinge"), h)
    zero_with_a_graph(F.partial_auc_loss(h, torch.tensor([1, 0])), h)


class TestNCA:
    def test_alone(self):
        z = torch.randn(1, 2, requires_grad=True)
        for log_likelihood in (False, True):
            zero_with_a_graph(F.nca_loss(z, torch.tensor([3]), log_likelihood=log_likelihood), z)

    @pytest.mark.parametrize("log_likelihood", [False, True])
    def test_every_class_has_one_member(self, log_likelihood):
        z = torch.randn(4, 2, requires_grad=True)
        zero_with_a_graph(F.nca_loss(z, torch.arange(4), log_likelihood=log_likelihood), z)

    def test_likelihood_of_those_that_have_a_mate(self):
        """|z_0 - z_1|² = 1, |z_0 - z_2|² = 9, |z_1 - z_2|² = 4; the third is alone in its class."""
        z = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64, requires_grad=True)
        loss = F.nca_loss(z, torch.tensor([0, 0, 1]), log_likelihood=True)
        wanted = (math.log1p(math.exp(-8)) + math.log1p(math.exp(-3))) / 2
        assert value_with_a_graph(loss, z)[0] == pytest.approx(wanted, rel=1e-12)

    def test_one_class(self):
        z = torch.randn(4, 2, requires_grad=True)
        value, (gradient,) = value_with_a_graph(F.nca_loss(z, torch.zeros(4, dtype=torch.int64)), z)
        assert value == pytest.approx(-1)
        torch.testing.assert_close(gradient, torch.zeros(4, 2), rtol=0, atol=1e-6)

    def test_equal_embeddings(self):
        z = torch.zeros(4, 2, requires_grad=True)
        loss = F.nca_loss(z, torch.tensor([0, 0, 0, 1]))
        assert value_with_a_graph(loss, z)[0] == pytest.approx(-(3 * 2 / 3) / 4)

    @pytest.mark.parametrize("size", [1e4, 1e6])
    def test_neighbours_are_all_of_another_class_by_far(self, size):
        z = torch.tensor([[0.0], [1.0], [size], [size + 1]], requires_grad=True)
        zero_with_a_graph(F.nca_loss(z, torch.tensor([0, 1, 0, 1]), chunk=1), z)
        loss = F.nca_loss(z, torch.tensor([0, 1, 0, 1]), log_likelihood=True, chunk=1)
        assert value_with_a_graph(loss, z)[0] == pytest.approx(size**2 - 1, rel=1e-6)


class TestListwise:
    QUERY = torch.tensor([2, 2, 5])

    def test_nothing_relevant(self):
        for function in (F.list_net_loss, F.ndcg_loss):
            h = scores()
            zero_with_a_graph(function(h, ZEROS, self.QUERY), h)

    def test_query_without_relevant_items_is_not_counted(self):
        for function in (F.list_net_loss, F.ndcg_loss):
            h = scores()
            loss = function(h, torch.tensor([1, 0, 0]), self.QUERY)
            alone = function(h[:2], torch.tensor([1, 0]), self.QUERY[:2])
            assert value_with_a_graph(loss, h)[0] == pytest.approx(alone.item(), rel=1e-6)

    def test_queries_of_one_item(self):
        h = scores()
        zero_with_a_graph(F.list_net_loss(h, ONES, torch.arange(3)), h)
        zero_with_a_graph(F.list_net_loss(h, ZEROS, torch.arange(3), target="softmax"), h)
        zero_with_a_graph(F.list_mle_loss(h, ONES, torch.arange(3)), h)
        for surrogate in SURROGATES:
            loss = F.ndcg_loss(h, ONES, torch.arange(3), surrogate=surrogate)
            assert value_with_a_graph(loss, h)[0] == pytest.approx(-1)

    def test_equal_relevances(self):
        h = torch.zeros(3, requires_grad=True)
        loss = F.list_mle_loss(h, ONES, ZEROS)
        assert value_with_a_graph(loss, h)[0] == pytest.approx(math.log(3))

    @pytest.mark.parametrize("k", [1, 3, 100])
    def test_top_longer_than_the_list(self, k):
        h = scores()
        value_with_a_graph(F.ndcg_loss(h, torch.tensor([2, 1, 0]), ZEROS, k=k), h)


class TestCox:
    @pytest.mark.parametrize("ties", ["breslow", "efron"])
    def test_no_event(self, ties):
        h = scores()
        zero_with_a_graph(F.cox_loss(h, torch.arange(3), ZEROS, ties=ties), h)

    @pytest.mark.parametrize("ties", ["breslow", "efron"])
    def test_risk_set_of_one(self, ties):
        h = scores()
        zero_with_a_graph(F.cox_loss(h, torch.tensor([1, 2, 3]), torch.tensor([0, 0, 1]), ties=ties), h)

    def test_all_at_once(self):
        h = torch.zeros(3, requires_grad=True)
        loss = F.cox_loss(h, ONES, ONES)
        assert value_with_a_graph(loss, h)[0] == pytest.approx(math.log(3))
        loss = F.cox_loss(h, ONES, ONES, ties="efron")
        assert value_with_a_graph(loss, h)[0] == pytest.approx((math.log(3) + math.log(2)) / 3)


class TestLikelihood:
    def test_zero_probabilities(self):
        log_likelihood = torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]], requires_grad=True)
        log_weight = torch.tensor([[0.0, 0.0], [1.0, -math.inf]], requires_grad=True)
        value, _ = value_with_a_graph(F.latent_variable_loss(log_likelihood, log_weight), log_likelihood, log_weight)
        assert value == pytest.approx(math.log(2) / 2)

    def test_one_latent_value(self):
        log_likelihood = torch.tensor([[-0.5], [-1.5]], requires_grad=True)
        log_weight = torch.tensor([[1e4], [-1e4]], requires_grad=True)
        value, _ = value_with_a_graph(F.latent_variable_loss(log_likelihood, log_weight), log_likelihood, log_weight)
        assert value == 1

    def test_class_that_is_not_to_be_had(self):
        logits = torch.tensor([[1.0, 1.0, -math.inf]], requires_grad=True)
        assert value_with_a_graph(F.softmax_loss(logits[:, 0], logits), logits)[0] == pytest.approx(math.log(2))


@pytest.mark.parametrize("mode", ["two_views", "cross_modal"])
@pytest.mark.parametrize("include_positive", [False, True])
def test_contrast_of_a_single_pair(mode, include_positive):
    first, second = torch.randn(2, 1, 3).unbind()
    first, second = first.requires_grad_(), second.requires_grad_()
    loss = F.contrastive_loss(first, second, mode=mode, include_positive=include_positive)
    zero_with_a_graph(loss, first, second)


def test_one_group_is_its_mean():
    losses = scores()
    value, (gradient,) = value_with_a_graph(F.group_dro_loss(losses, ONES), losses)
    assert value == pytest.approx(losses.mean().item(), rel=1e-6)
    torch.testing.assert_close(gradient, torch.full((3,), 1 / 3))


def test_one_observation_is_logistic_regression():
    h, target = scores(), torch.tensor([1.0, 0.0, 0.0])
    loss = F.invariant_logistic_loss(h.unsqueeze(1), target)
    torch.testing.assert_close(loss, torch.nn.functional.binary_cross_entropy_with_logits(h, target))
