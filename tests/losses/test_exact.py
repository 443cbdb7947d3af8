"""With the whole population as a batch, and in eval mode, a loss is the exact objective."""

import pytest
import torch

import fcco
from losses.cases import BATCHES, CASES, DEFAULTS, RULES, gradients, run, same, state


def check_equal(case, loss, population, rows=None, rtol=1e-8):
    wanted = case.objective(population, rows)
    torch.testing.assert_close(loss.detach(), wanted.detach(), rtol=rtol, atol=1e-10)
    torch.testing.assert_close(gradients(loss, population), gradients(wanted, population), rtol=rtol, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=str)
class TestFullBatch:
    @pytest.mark.parametrize("rule", RULES, ids=str)
    def test_is_the_exact_objective(self, case, rule):
        population = case.population()
        check_equal(case, case.call(case.make(population, rule), population), population)

    @pytest.mark.parametrize("rule", [fcco.SOAP(1.0), fcco.BSGD()], ids=str)
    def test_whatever_came_before(self, case, rule):
        population = case.population()
        loss_fn = case.make(population, rule)
        # A virtual batch divides by the size that batches have on average, which is then to be that of this one.
        batches = [range(13)] * 3 if case.memory_mode == "gradient" else BATCHES
        run(case, loss_fn, case.population(seed=1)[:1] + population[1:], batches)
        check_equal(case, case.call(loss_fn, population), population)

    def test_with_a_full_table_of_exact_values(self, case):
        """Where the table is right, SOX's value and gradient are, however small gamma."""
        population = case.population()
        loss_fn = case.make(population, fcco.SOX(0.1))
        case.call(loss_fn, population)
        check_equal(case, case.call(loss_fn, population), population)

    def test_any_order(self, case):
        population = case.population()
        check_equal(case, case.call(case.make(population), population, torch.randperm(13)), population)


@pytest.mark.parametrize("case", CASES, ids=str)
class TestEval:
    def test_is_the_exact_objective_of_the_batch(self, case):
        population = case.population()
        rows = torch.tensor([0, 3, 4, 7, 8, 11, 12])
        check_equal(case, case.call(case.make(population).eval(), population, rows), population, rows)

    def test_on_data_whose_rows_mean_nothing(self, case):
        """A larger set than the training set, with indices out of range and all alike; the table stays as it is."""
        training, validation = case.population(), case.population(n=17, seed=5)
        loss_fn = case.make(training)
        run(case, loss_fn, training)
        before = state(loss_fn)
        loss_fn.eval()
        for index in (torch.arange(17) + 10**6, torch.full((17,), -3)):
            check_equal(case, case.call(loss_fn, validation, index=index), validation)
        assert same(before, state(loss_fn))
        assert not any(parameter.requires_grad for parameter in loss_fn.parameters())

    def test_does_not_change_what_training_does(self, case):
        population = case.population()
        plain, disturbed = case.make(population), case.make(population)
        expected = run(case, plain, population)
        observed = []
        for rows in BATCHES:
            observed += run(case, disturbed, population, [rows])
            case.call(disturbed.eval(), case.population(seed=7))
            disturbed.train()
            with torch.no_grad():
                case.call(disturbed, population)
        assert all(torch.equal(a, b) for a, b in zip(expected, observed, strict=True))

    @pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
    def test_without_gradients_the_table_is_untouched(self, case, mode):
        population = case.population()
        loss_fn = case.make(population)
        run(case, loss_fn, population)
        before = state(loss_fn)
        with getattr(torch, mode)():
            assert case.call(loss_fn, population).isfinite()
        assert same(before, state(loss_fn))


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_gradcheck(case):
    population = case.population(n=6)
    loss_fn = case.make(population).eval()
    assert torch.autograd.gradcheck(lambda *floats: case.call(loss_fn, (floats, population[1])), population[0])
