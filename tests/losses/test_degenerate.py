"""Batches in which something is missing: the terms that exist, or a zero with a graph; never NaN."""

import math

import pytest
import torch

import fcco
from fcco import losses
from losses.cases import (
    AP,
    AUC,
    CONTRASTIVE,
    COX,
    CVAR,
    INDEXED,
    INVARIANT,
    LATENT,
    LIST_NET,
    NCA,
    NCA_LIKELIHOOD,
    NDCG,
    OWN_TERMS,
    PARTIAL_AUC,
    PUSH,
    SOFTMAX,
    TWO_WAY,
    gradients,
    run,
    same,
    state,
)

RULES = [fcco.SOX(0.3), fcco.SOAP(0.3), fcco.MOAP(0.3), fcco.BSGD()]


def without_step(module):
    return {name: value for name, value in state(module).items() if "step" not in name and "decay" not in name}


def check_no_term(case, population, rows, **options):
    """A zero with a graph and zero gradients, before and after the table knows anything; which stays as it is."""
    for rule in RULES:
        loss_fn = case.make(population, rule, **options)
        for _ in range(2):
            before = without_step(loss_fn)
            loss = case.call(loss_fn, population, rows)
            assert loss.item() == 0.0
            assert loss.requires_grad
            assert not any(g.any() for g in gradients(loss, population))
            assert same(before, without_step(loss_fn))
            case.call(loss_fn, population)


def rows_where(mask, count=None):
    return mask.nonzero().flatten()[:count]


BIPARTITE = [
    *(AP.with_options(own_term=o, surrogate=s) for o in ("exact", "sampled") for s in ("ramp", "squared_hinge", "exp")),
    PUSH,
    PUSH.with_options(surrogate="squared_hinge"),
    PARTIAL_AUC,
    CVAR,
    TWO_WAY,
]


class TestBipartite:
    @pytest.mark.parametrize("case", BIPARTITE, ids=str)
    @pytest.mark.parametrize("label", [0, 1])
    @pytest.mark.parametrize("count", [1, 3])
    def test_one_class_only(self, case, label, count):
        population = case.population()
        check_no_term(case, population, rows_where(population[1][0] == label, count))

    @pytest.mark.parametrize("form", ["pairwise", "min_max"])
    @pytest.mark.parametrize("label", [0, 1])
    def test_one_class_only_of_auc(self, form, label):
        population = AUC.population()
        rows = rows_where(population[1][0] == label, 3)
        loss_fn = AUC.make(population, fcco.SOAP(0.3), form=form)
        for _ in range(2):
            before = without_step(loss_fn)
            loss = AUC.call(loss_fn, population, rows)
            assert loss.item() == 0.0
            assert not gradients(loss, population)[0].any()
            assert same(before, without_step(loss_fn))
            AUC.call(loss_fn, population)

    def test_a_positive_by_itself_cannot_stand_for_the_others(self):
        population = AP.population()
        target = population[1][0]
        rows = torch.cat([rows_where(target == 1, 1), rows_where(target == 0, 3)])
        check_no_term(AP, population, rows, own_term="exact")
        loss_fn = AP.make(population, own_term="sampled")
        assert AP.call(loss_fn, population, rows).item() < 0
        assert loss_fn.table.visits.nonzero().flatten().tolist() == rows[:1].tolist()

    def test_the_only_positive_there_is(self):
        """Of the population, that is: then there are no others to stand for."""
        scores = torch.tensor([0.0, 0.0], requires_grad=True)
        for surrogate, share in (("ramp", 1 / (1 + 2 / 2)), ("squared_hinge", 1 / 3)):
            loss_fn = losses.AveragePrecisionLoss(3, n_pos=1, surrogate=surrogate)
            assert loss_fn(scores, torch.tensor([1, 0]), torch.tensor([0, 1])).item() == pytest.approx(-share)

    def test_a_population_without_negatives(self):
        loss_fn = losses.AveragePrecisionLoss(3, n_pos=3)
        scores = torch.tensor([0.0, 0.5], requires_grad=True)
        loss = loss_fn(scores, torch.tensor([1, 1]), torch.tensor([0, 1]))
        loss.backward()
        assert loss.item() == pytest.approx(-1.0)
        assert scores.grad.abs().max() < 1e-6


class TestSurvival:
    @pytest.mark.parametrize("own_term", ["exact", "sampled"])
    def test_no_event(self, own_term):
        population = COX.population()
        check_no_term(COX, population, rows_where(~population[1][1], 3), own_term=own_term)

    def test_nobody_else(self):
        """Alone in the batch, an event says nothing of the others; with the own term sampled it stands for them."""
        population = COX.population()
        rows = rows_where(population[1][1], 1)
        check_no_term(COX, population, rows, own_term="exact")
        loss = COX.call(COX.make(population), population, rows)
        assert loss.item() == pytest.approx(math.log(13))
        assert not any(g.any() for g in gradients(loss, population))

    @pytest.mark.parametrize("known", [True, False])
    @pytest.mark.parametrize("own_term", ["exact", "sampled"])
    def test_risk_set_of_one(self, own_term, known):
        """Who is last has nobody else at risk: log 1, or log of all that it stands for."""
        time, event = torch.tensor([1.0, 2.0, 3.0, 9.0]), torch.tensor([1, 1, 0, 1])
        loss_fn = losses.CoxLoss(4, 3 if known else None, rule=fcco.BSGD(), own_term=own_term)
        risk = torch.tensor([0.3, 0.2, 0.1, 0.0], requires_grad=True)
        loss = loss_fn(risk, time, event, torch.arange(4))
        loss.backward()
        assert loss.isfinite()
        assert risk.grad.isfinite().all()
        assert loss_fn.table.u[3] == 0.0

    def test_no_censored_in_the_batch(self):
        """With the own term exact their sum is unknown; with it sampled the events stand for everybody."""
        population = COX.population()
        rows = rows_where(population[1][1], 4)
        check_no_term(COX, population, rows, own_term="exact")
        stratified = COX.call(COX.make(population), population, rows)
        at_random = COX.call(losses.CoxLoss(13), population, rows)
        torch.testing.assert_close(stratified, at_random)

    def test_everybody_has_an_event(self):
        loss_fn = losses.CoxLoss.from_targets([1, 1, 1], own_term="exact")
        risk = torch.zeros(2, requires_grad=True)
        loss = loss_fn(risk, torch.tensor([1.0, 2.0]), torch.tensor([1, 1]), torch.tensor([0, 1]))
        assert loss.item() == pytest.approx((math.log(3) + math.log(1)) / 2)


class TestNeighbours:
    @pytest.mark.parametrize("likelihood", [False, True])
    def test_one_example_by_itself(self, likelihood):
        z = torch.ones(1, 2, requires_grad=True)
        for loss_fn in (losses.NCALoss(13, log_likelihood=likelihood).eval(), losses.NCALoss(1, memory=0)):
            loss = loss_fn(z, torch.tensor([4]), torch.tensor([0]))
            assert (loss, torch.autograd.grad(loss, z)[0].abs().sum()) == (0, 0)

    def test_lone_example(self):
        population = NCA.population()
        check_no_term(NCA, population, [4])
        assert NCA.call(losses.NCALoss(13), population, [4]).item() == 0.0

    def test_lone_class(self):
        """All of one class: nothing is known of strangers. Taken as drawn at random, they are all there is."""
        population = NCA.population()
        rows = rows_where(population[1][0] == 0)
        check_no_term(NCA, population, rows)
        assert NCA.call(losses.NCALoss(13), population, rows).item() == pytest.approx(-1.0)

    def test_alone_in_its_class(self):
        """In the population: p = 0 with a zero gradient. In the batch only: no term."""
        population = NCA.population()
        labels = population[1][0]
        lone, others = rows_where(labels == 3), rows_where(labels == 0, 2)
        loss_fn = NCA.make(population)
        loss = NCA.call(loss_fn, population, torch.cat([lone, others]))
        assert all(g.isfinite().all() for g in gradients(loss, population))
        assert loss_fn.table.visits[lone].all()
        rows = torch.cat([rows_where(labels == 1, 1), others])
        NCA.call(loss_fn, population, rows)
        assert not loss_fn.table.visits[rows[0]]

    def test_no_two_of_a_class_drawn_at_random(self):
        """g_1 = 0 is then an estimate like any other, and never a NaN."""
        population = NCA.population()
        labels = population[1][0]
        rows = torch.cat([rows_where(labels == label, 1) for label in range(4)])
        loss_fn = losses.NCALoss(13)
        for _ in range(3):
            loss = NCA.call(loss_fn, population, rows)
            assert loss.item() == 0.0
            assert all(g.isfinite().all() for g in gradients(loss, population))

    @pytest.mark.parametrize("known", [False, True])
    def test_likelihood_needs_a_mate(self, known):
        """-log 0 is no number: without a mate in the batch there is no term, whether the class has others or not."""
        population = NCA_LIKELIHOOD.population()
        labels = population[1][0]
        alone = torch.cat([rows_where(labels == label, 1) for label in range(1, 4)])
        rows = torch.cat([rows_where(labels == 0, 2), alone])
        loss_fn = NCA_LIKELIHOOD.make(population) if known else losses.NCALoss(13, log_likelihood=True)
        loss = NCA_LIKELIHOOD.call(loss_fn, population, rows)
        assert all(g.isfinite().all() for g in gradients(loss, population))
        assert loss.item() > 0
        assert loss_fn.table.visits[rows].tolist() == [1, 1, 0, 0, 0]


LISTS = [case for case in OWN_TERMS if case.data is LIST_NET.data]


class TestLists:
    @pytest.mark.parametrize("case", [LIST_NET, NDCG], ids=str)
    def test_no_relevant_item(self, case):
        population = case.population()
        check_no_term(case, population, rows_where(population[1][1] == -7))

    @pytest.mark.parametrize("case", LISTS, ids=str)
    def test_query_of_one_item(self, case):
        """Ranked as well as can be."""
        population = case.population()
        loss = case.call(case.make(population), population, rows_where(population[1][1] == 40))
        first_place = -1 / (1 + math.exp(-2 * 1.5)) if "k" in case.options else -1.0
        assert loss.item() == pytest.approx(first_place if case.loss is losses.NDCGLoss else 0.0, abs=1e-12)
        assert not any(g.any() for g in gradients(loss, population))

    @pytest.mark.parametrize("case", LISTS, ids=str)
    def test_one_item_of_a_longer_list(self, case):
        population = case.population()
        rows = rows_where((population[1][1] == 3) & (population[1][0] > 0), 1)
        if case.options["own_term"] == "exact":
            check_no_term(case, population, rows)
        else:
            loss = case.call(case.make(population), population, rows)
            assert loss.isfinite()
            assert not any(g.any() for g in gradients(loss, population))

    @pytest.mark.parametrize("case", LISTS, ids=str)
    def test_queries_without_terms_do_not_count(self, case):
        """The value is that of the others."""
        if case.loss is losses.ListMLELoss or case.options.get("target") == "softmax":
            pytest.skip("every query has terms")
        population = case.population()
        query = population[1][1]
        some, more = (rows_where(mask) for mask in (query == 3, (query == 3) | (query == -7)))
        alone, beside = (case.call(case.make(population), population, rows) for rows in (some, more))
        torch.testing.assert_close(alone, beside)
        torch.testing.assert_close(gradients(alone, population), gradients(beside, population))


class TestOthers:
    @pytest.mark.parametrize("mode", ["two_views", "cross_modal"])
    @pytest.mark.parametrize("include_positive", [False, True])
    @pytest.mark.parametrize("own_term", ["exact", "sampled"])
    def test_a_pair_by_itself(self, mode, include_positive, own_term):
        case = CONTRASTIVE.with_options(mode=mode, include_positive=include_positive, own_term=own_term)
        population = case.population()
        if not include_positive or own_term == "exact":
            check_no_term(case, population, [3])
        else:  # its own term stands for all: g = 1
            loss = case.call(case.make(population), population, [3])
            assert loss.item() == pytest.approx(0.0, abs=1e-15)
            assert not any(g.any() for g in gradients(loss, population))

    def test_latent_variables_that_explain_nothing(self):
        floats, _ = LATENT.population()
        floats = [torch.full_like(floats[0], -math.inf).requires_grad_(), floats[1]]
        loss_fn = LATENT.make((floats, []))
        loss = LATENT.call(loss_fn, (floats, []), [0, 1])
        assert loss.item() == 0.0
        assert not any(g.any() for g in gradients(loss, (floats, [])))
        assert not loss_fn.table.visits.any()

    def test_latent_variables_that_explain_something(self):
        """The other examples have their terms, and -inf no gradient."""
        (likelihood, weight), _ = LATENT.population()
        likelihood, weight = likelihood.detach(), weight.detach()
        likelihood[1], likelihood[2, 0], weight[3, 1] = -math.inf, -math.inf, -math.inf
        floats = [likelihood.requires_grad_(), weight.requires_grad_()]
        loss_fn = LATENT.make((floats, []))
        rows = torch.tensor([0, 1, 2, 3])
        for _ in range(3):
            loss = LATENT.call(loss_fn, (floats, []), rows)
            wanted = LATENT.objective((floats, []), rows[[0, 2, 3]])
            torch.testing.assert_close(loss, wanted)
            torch.testing.assert_close(gradients(loss, (floats, [])), gradients(wanted, (floats, [])))
        assert loss_fn.table.visits.nonzero().flatten().tolist() == [0, 2, 3]

    @pytest.mark.parametrize("case", [SOFTMAX, INVARIANT, LATENT], ids=str)
    def test_batch_of_one(self, case):
        population = case.population()
        loss = case.call(case.make(population), population, [4])
        torch.testing.assert_close(loss, case.objective(population, [4]))


@pytest.mark.parametrize("case", INDEXED, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
class TestAnyBatch:
    def test_is_finite_and_writes_its_own_rows_only(self, case, rule):
        """Batches of one to three, of which many lack something."""
        population = case.population()
        loss_fn = case.make(population, rule)
        seen = set()
        for rows in [[0], [1, 2], [3, 4, 5], [6], [7, 8], [9, 10, 11], [12, 0], [5, 6, 7]]:
            loss = case.call(loss_fn, population, rows)
            seen |= set(rows)
            assert loss.isfinite()
            assert loss.requires_grad
            assert all(g.isfinite().all() for g in gradients(loss, population))
            assert set(loss_fn.table.visits.nonzero().flatten().tolist()) <= seen
            assert not loss_fn.table.u.isnan().any()
        assert all(value.isfinite().all() for value in run(case, loss_fn, population))

    def test_eval_of_any_batch(self, case, rule):
        population = case.population()
        loss_fn = case.make(population, rule).eval()
        for rows in [[0], [1, 2], [3, 4, 5], [6], [9, 10, 11]]:
            loss, wanted = case.call(loss_fn, population, rows), case.objective(population, rows)
            torch.testing.assert_close(loss, wanted)
            assert all(g.isfinite().all() for g in gradients(loss, population))
