"""Every dtype, mixed precision, compiled, and on a device that must not be waited for."""

import pytest
import torch

import fcco
from losses.cases import (
    BATCHES,
    CASES,
    INDEXED,
    gradients,
    run,
    same,
    state,
)


@pytest.mark.parametrize("case", CASES, ids=str)
class TestPrecision:
    def test_float32_agrees_with_float64(self, case):
        wide = case.population()
        narrow = ([x.detach().float().requires_grad_() for x in wide[0]], wide[1])
        expected, observed = run(case, case.make(wide), wide), run(case, case.make(narrow), narrow)
        assert {value.dtype for value in observed} == {torch.float32}
        torch.testing.assert_close([x.double() for x in observed], expected, rtol=2e-3, atol=2e-4)

    def test_float64_is_kept(self, case):
        population = case.population()
        loss_fn = case.make(population)
        assert {value.dtype for value in run(case, loss_fn, population)} == {torch.float64}
        assert loss_fn.table.u.dtype == torch.float64

    def test_bfloat16_scores(self, case):
        """Estimates are made in float32, so the only error is the scores' own."""
        half = case.population(dtype=torch.bfloat16)
        full = ([x.detach().float().requires_grad_() for x in half[0]], half[1])
        expected, observed = run(case, case.make(full), full), run(case, case.make(half), half)
        for ours, theirs in zip(observed, expected, strict=True):
            torch.testing.assert_close(ours.float(), theirs, rtol=1e-2, atol=1e-5)
        assert observed[0].dtype == torch.float32
        torch.testing.assert_close(observed[0], expected[0], rtol=1e-6, atol=1e-6)

    def test_autocast(self, case):
        """Under autocast no product is rounded to bfloat16: values and gradients are those without."""
        population = case.population(dtype=torch.float32)
        expected = run(case, case.make(population), population)
        loss_fn, observed = case.make(population), []
        for rows in BATCHES:
            with torch.autocast("cpu", torch.bfloat16):
                loss = case.call(loss_fn, population, rows)
            observed += [loss.detach(), *gradients(loss, population)]
        torch.testing.assert_close(observed, expected)

    def test_casting_the_loss_to_half_keeps_what_it_knows(self, case):
        population = case.population()
        expected = run(case, case.make(population), population)
        observed = run(case, case.make(population).bfloat16(), population)
        torch.testing.assert_close(observed, expected, rtol=1e-5, atol=1e-5)

    def test_never_waits_for_the_device(self, case):
        """On the meta device there is no data, so any attempt to look at a value raises."""
        population = case.population(dtype=torch.float32)
        loss_fn = case.make(population).to("meta")
        floats = [x.detach().to("meta").requires_grad_() for x in population[0]]
        others = [x.to("meta") for x in population[1]]
        for rows in ([0, 1, 2, 3], [3, 3, 4, 5]):
            rows = torch.tensor(rows, device="meta")
            arguments = [x[rows] for x in (*floats, *others)]
            loss = loss_fn(*arguments, *([rows] if case.indexed else []))
            assert [g.shape for g in gradients(loss, (floats, others))] == [x.shape for x in floats]
        loss_fn.eval()(*arguments, *([rows] if case.indexed else []))


@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batch_elsewhere_is_refused(case, place):
    """In words that say what to move, and before anything has changed."""
    population = case.population(dtype=torch.float32)
    loss_fn = case.make(population)
    run(case, loss_fn, population, BATCHES[:1])
    loss_fn, before = loss_fn.to(place), state(loss_fn)
    there = "meta" if place == "cpu" else "cpu"
    batch = [x.detach().to(there).requires_grad_() for x in population[0]], [x.to(there) for x in population[1]]
    message = rf"the batch is on {there}, and what the loss keeps on {place}: move the loss with \.to\('{there}'\)"
    with pytest.raises(ValueError, match=message):
        case.call(loss_fn, batch, BATCHES[1])
    if place == "cpu":
        assert same(state(loss_fn), before)
        run(case, loss_fn, population, BATCHES[1:2])


@pytest.mark.parametrize("case", INDEXED[:1], ids=str)
def test_schedules_and_moap(case):
    """Any rule and schedule of the engine goes with any loss."""
    population = case.population()
    for rule in (fcco.SOX(fcco.schedules.Cosine(0.1, 10)), fcco.MOAP(0.5), fcco.SOAP(fcco.schedules.RunningMean())):
        assert all(value.isfinite().all() for value in run(case, case.make(population, rule), population))
