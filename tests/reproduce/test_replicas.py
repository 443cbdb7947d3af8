import dataclasses

import pytest
import torch

import fcco
from fcco.projections import SquaredL2
from fcco.solvers import problems
from fcco_reproduce.theory._replicas import Replicas

RATES = {"lr": 0.1, "beta": 0.3, "gamma": 0.2}
MAKERS = {
    "pseudo_huber": lambda: problems.pseudo_huber(n=6, sigma=0.0, zeta=0.0),
    "invariant_logistic": lambda: problems.invariant_logistic(n=12, d=2, noise=0.0, l2=0.1),
}


@pytest.mark.parametrize("method", fcco.METHODS)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_without_noise_every_run_is_that_of_solve(make, method):
    """All rows in every batch and no inner noise: nothing is random but the order of the rows."""
    problem = make()
    sizes = {"outer_batch": problem.n, "inner_batch": 2}
    runs = Replicas(problem, method, count=3, seed=0, **sizes)
    for _ in range(20):
        runs.step(**RATES)
    solution = fcco.solve(problem, method, steps=20, **RATES, **sizes)
    torch.testing.assert_close(runs.weights, solution.weights.expand(3, -1))
    torch.testing.assert_close(runs.objective(), torch.full_like(runs.objective(), solution.history["objective"][-1]))
    gradient = torch.full_like(runs.objective(), solution.history["gradient_norm"][-1])
    torch.testing.assert_close(runs.squared_gradient().sqrt(), gradient)
    if method != "BSGD":
        error = torch.full_like(runs.objective(), solution.history["tracking_error"][-1])
        torch.testing.assert_close(runs.tracking_error(), error)
    assert runs.inner_evaluations == solution.inner_evaluations


def test_a_regulariser():
    problem = MAKERS["pseudo_huber"]()
    runs = Replicas(problem, "SOX", count=2, outer_batch=6, inner_batch=1, seed=0, regulariser=SquaredL2(0.5))
    for _ in range(10):
        runs.step(**RATES)
    options = {"outer_batch": 6, "steps": 10, "regulariser": SquaredL2(0.5)}
    torch.testing.assert_close(runs.weights[1], fcco.solve(problem, "sox", **options, **RATES).weights)


@pytest.mark.parametrize("method", ["SOX", "NASA"])
def test_every_run_draws_its_own_rows(method):
    """B1 different rows a run change (all of them, by NASA), and no two runs are alike."""
    problem = problems.invariant_logistic(n=10, l2=0.1)
    start = problem.optimum + 1
    runs = Replicas(
        dataclasses.replace(problem, start=start),
        method,
        count=50,
        outer_batch=3,
        inner_batch=2,
        seed=0,
        every_row=True,
    )
    before = runs.table.clone()
    runs.step(**RATES)
    changed = (runs.table != before)[:, :, 0]
    assert (changed.sum(dim=1) == (10 if method == "NASA" else 3)).all()
    assert len(runs.weights.unique(dim=0)) == 50
    if method == "SOX":
        assert changed.any(dim=0).all()


def test_every_row_begins_with_an_estimate():
    """Xi is then sigma^2 / B2 on average: 0.5, give or take 0.02 (the standard error is 0.005)."""
    problem = problems.pseudo_huber(n=20, sigma=1.0)
    runs = Replicas(problem, "SOX", count=1000, outer_batch=1, inner_batch=2, seed=0, every_row=True)
    assert runs.tracking_error().mean().item() == pytest.approx(1.0 / 2, abs=0.02)


def test_every_run_may_have_its_own_lr():
    """A factor before the moving average of gradients is one before the step."""
    problem = MAKERS["pseudo_huber"]()
    sizes = {"count": 2, "outer_batch": problem.n, "inner_batch": 1, "seed": 0}
    both = Replicas(problem, "SOX", factors=torch.tensor([1.0, 3.0], dtype=torch.float64), **sizes)
    alone = Replicas(problem, "SOX", **sizes)
    for _ in range(10):
        both.step(**RATES)
        alone.step(**{**RATES, "lr": 3 * RATES["lr"]})
    torch.testing.assert_close(both.weights[1], alone.weights[1])
