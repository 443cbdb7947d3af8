"""Methods that should converge do, on a problem with a known optimum; the biased one stops where it must."""

import pytest
import torch

import fcco
from fcco.optim import MovingAverageSGD
from problems import LeastSquaresProblem

STEPS, OUTER_BATCH, INNER_BATCH = 2000, 5, 2


def solve(problem, rule, beta, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loss_fn = fcco.CoupledLoss(problem.outer, problem.n, rule=rule)
    w = torch.zeros(problem.d, dtype=torch.float64, requires_grad=True)
    optimizer = MovingAverageSGD([w], lr=0.1, beta=beta)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        sampled = torch.randperm(problem.n, generator=generator)[:OUTER_BATCH]
        rows = torch.arange(problem.n) if rule.all_rows else sampled
        inner = problem.inner(w, rows, INNER_BATCH, generator)
        optimizer.zero_grad()
        loss_fn(inner, sampled).backward()
        optimizer.step()
        scheduler.step()
    return w.detach()


def excess(problem, w):
    return (problem.objective(w) - problem.objective(problem.optimum)).item()


@pytest.fixture(scope="module")
def problem():
    return LeastSquaresProblem()


@pytest.fixture(scope="module")
def biased(problem):
    """Where the gradient of the batch by itself leads."""
    return solve(problem, fcco.BSGD(), 1.0)


@pytest.mark.parametrize(
    ("rule", "beta", "share"),
    [
        (fcco.SOX(0.1), 0.1, 0.02),
        (fcco.SOX(0.1), 1.0, 0.02),
        (fcco.SOAP(0.05), 1.0, 0.05),
        (fcco.NASA(0.05), 0.1, 0.02),
        (fcco.SCGD(0.05), 1.0, 0.02),
        (fcco.MOAP(0.01), 0.1, 0.12),
    ],
    ids=str,
)
def test_reaches_the_optimum(problem, biased, rule, beta, share):
    """Excess over the optimum, as a share of what the biased gradient leaves (0.18 here), at equal steps.

    Rules that differentiate at u^t keep a bias of gamma times the mini-batch's, and MOAP's rows
    have a variance of n / B1 more, hence their larger shares. Each bound is twice what was measured or more, and a
    rule without memory has a share of 1.
    """
    assert excess(problem, solve(problem, rule, beta)) < share * excess(problem, biased)


def test_the_biased_gradient_stops_at_its_own_fixed_point(problem, biased):
    """BSGD minimises F + Var(g) / 2, which is ridge regression here; its excess over F does not vanish."""
    deviations = problem.a - problem.mean_a.unsqueeze(1)
    covariance = torch.einsum("ijd,ije->de", deviations, deviations) / problem.set_size / INNER_BATCH
    gram = problem.mean_a.T @ problem.mean_a
    fixed_point = torch.linalg.solve(gram + covariance, problem.mean_a.T @ problem.b)
    assert (biased - fixed_point).norm() < 0.1 * (biased - problem.optimum).norm()
