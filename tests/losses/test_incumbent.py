"""What users of other libraries live with, and must not meet here: one test for each defect."""

import io

import pytest
import torch
from sklearn.metrics import average_precision_score

import fcco
from fcco import functional, losses
from losses.cases import AP, CONTRASTIVE, DEFAULTS, gradients, run, same, state


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_the_table_is_in_the_checkpoint(case):
    population = case.population()
    loss_fn = case.make(population)
    run(case, loss_fn, population)
    file = io.BytesIO()
    torch.save(loss_fn.state_dict(), file)
    file.seek(0)
    restored = case.make(population)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert restored.table.visits.any()
    assert same(state(restored), state(loss_fn))


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_eval_does_not_change_u(case):
    population = case.population()
    loss_fn = case.make(population)
    run(case, loss_fn, population)
    before = state(loss_fn)
    case.call(loss_fn.eval(), population).backward()
    assert same(state(loss_fn), before)


@pytest.mark.parametrize("rule", [fcco.SOX(0.1), fcco.SOAP(0.1)], ids=str)
def test_the_printed_loss_is_the_objective_also_on_a_repeated_batch(rule):
    population = AP.population()
    loss_fn = AP.make(population, rule)
    values = [AP.call(loss_fn, population).item() for _ in range(3)]
    assert values == pytest.approx([AP.objective(population).item()] * 3)
    assert abs(values[0]) > 0.1


def ten_percent_positive(n=1000):
    target = (torch.arange(n) % 10 == 0).long()
    return torch.randn(n, dtype=torch.float64) * 0.3 + 0.3 * target, target


@pytest.mark.parametrize("surrogate", ["squared_hinge", "ramp", "sigmoid"])
def test_average_precision_under_a_stratified_sampler_is_that_of_the_population(surrogate):
    """With half of the batch positive, its own average precision is .6 to .8; that of the population, a third of it."""
    scores, target = ten_percent_positive()
    loss_fn = losses.AveragePrecisionLoss.from_targets(
        target, surrogate=surrogate, rule=fcco.SOX(0.1), own_term="exact"
    )
    sampler = fcco.data.PositiveNegativeSampler(target, positives=16, negatives=16)
    for _ in range(20):
        values, of_batches = [], []
        for rows in map(torch.tensor, sampler):
            values.append(loss_fn(scores[rows].requires_grad_(), target[rows], rows).item())
            of_batches.append(functional.average_precision_loss(scores[rows], target[rows], surrogate=surrogate))
    exact = functional.average_precision_loss(scores, target, surrogate=surrogate).item()
    assert sum(values) / len(values) == pytest.approx(exact, rel=0.03)
    assert sum(of_batches).item() / len(of_batches) < 2.5 * exact


@pytest.mark.parametrize(
    "options",
    [
        {"surrogate": lambda t: (t >= 0).to(t.dtype)},
        {"temperature": 1e-9},
        {"surrogate": "sigmoid", "temperature": 1e-9},
    ],
    ids=["indicator", "ramp", "sigmoid"],
)
@pytest.mark.parametrize("own_term", ["exact", "sampled"])
def test_average_precision_is_scikit_learns_in_the_limit_of_a_sharp_surrogate(options, own_term):
    scores, target = ten_percent_positive()
    loss_fn = losses.AveragePrecisionLoss.from_targets(target, own_term=own_term, **options)
    loss = loss_fn(scores, target, torch.arange(1000))
    assert -loss.item() == pytest.approx(average_precision_score(target, scores))


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
@pytest.mark.parametrize("rule", [fcco.SOX(0.1), fcco.SOAP(0.1)], ids=str)
def test_first_visit_gradients_are_not_inflated(case, rule):
    """By 1 / gamma, as a table of zeros would have it."""
    population = case.population()
    loss = case.call(case.make(population, rule), population)
    torch.testing.assert_close(gradients(loss, population), gradients(case.objective(population), population))


def test_an_overflow_of_exp_does_not_poison_a_row():
    """At a temperature of .005, e^(2 / τ) is far beyond float32; afterwards the row is as good as new."""
    case = CONTRASTIVE.with_options(temperature=5e-3)
    population = case.population(dtype=torch.float32)
    loss_fn = case.make(population, fcco.SOX(0.5))
    assert all(value.isfinite().all() for value in run(case, loss_fn, population))
    loss_fn.temperature = 1.0
    for _ in range(1500):
        if case.call(loss_fn, population).item() == pytest.approx(
            functional.contrastive_loss(*population[0], temperature=1.0).item(), rel=1e-4
        ):
            return
    pytest.fail("the rows never came back")


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_float64_scores_work(case):
    population = case.population(dtype=torch.float64)
    loss = case.call(case.make(population), population)
    assert loss.dtype == torch.float64
    assert all(g.dtype == torch.float64 for g in gradients(loss, population))


@pytest.mark.parametrize("loss", [losses.AveragePrecisionLoss, losses.PNormPushLoss, losses.PartialAUCLoss])
def test_a_batch_without_negatives_is_not_nan(loss):
    target = torch.tensor([1, 1, 0, 0])
    loss_fn = loss.from_targets(target)
    scores = torch.tensor([0.5, 0.1], requires_grad=True)
    value = loss_fn(scores, target[:2], torch.tensor([0, 1]))
    value.backward()
    assert value.item() == 0.0
    assert scores.grad.tolist() == [0.0, 0.0]
    assert not loss_fn.table.visits.any()
