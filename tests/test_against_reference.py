"""The engine and its optimizer follow the algorithm boxes, over 200 steps."""

import numpy as np
import pytest
import torch

import fcco
import reference
from fcco.optim import MovingAverageSGD
from problems import ExponentialProblem

STEPS, OUTER_BATCH, INNER_BATCH, ETA, BETA, GAMMA = 200, 4, 2, 0.05, 0.3, 0.2


def run_engine(problem, rule, beta, log, init=None, kappa=None):
    outer = problem.log_outer if log else problem.outer
    loss_fn = fcco.CoupledLoss(outer, problem.n, problem.dim, rule=rule, log=log, init=init)
    w = torch.tensor(problem.w0, requires_grad=True)
    w_old = w.detach().clone()
    optimizer = MovingAverageSGD([w], lr=ETA, beta=beta)
    for rows, batches in problem.draws(STEPS, OUTER_BATCH, INNER_BATCH):
        tracked = np.arange(problem.n) if rule.all_rows else rows
        inner = problem.torch_inner(w, tracked, batches[tracked], log)
        if kappa is not None:  # MSVR: SOAP, of estimates that are moved by the change of g
            before = problem.torch_inner(w_old, rows, batches[rows], log)
            change = kappa / rule.gamma * (inner - before).detach()
            inner = inner + change * loss_fn.table.visits[rows].reshape(-1, *[1] * (inner.dim() - 1))
        w_old = w.detach().clone()
        optimizer.zero_grad()
        loss_fn(inner, rows).backward()
        optimizer.step()
    u = loss_fn.table.read(None, cold=-np.inf if log else 0.0).reshape(problem.n, problem.dim)
    return w.detach().numpy(), (u.exp() if log else u).numpy()


def assert_same_path(problem, engine, expected):
    for mine, theirs in zip(engine, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)
    assert np.abs(engine[0] - problem.w0).max() > 0.1, "the path has to go somewhere"


@pytest.fixture(params=[1, 2], ids=["scalar", "vector"])
def problem(request):
    return ExponentialProblem(dim=request.param)


@pytest.fixture
def draws(problem):
    return list(problem.draws(STEPS, OUTER_BATCH, INNER_BATCH))


@pytest.mark.parametrize("log", [False, True], ids=["plain", "log"])
@pytest.mark.parametrize("u0", [None, 0.7], ids=["first-estimate", "constant"])
class TestMovingAverages:
    def test_sox(self, problem, draws, log, u0):
        engine = run_engine(problem, fcco.SOX(GAMMA, safeguard=False), BETA, log, init=u0)
        assert_same_path(problem, engine, reference.sox(problem, problem.w0, ETA, BETA, GAMMA, draws, u0))

    def test_sox_with_safeguard(self, problem, draws, log, u0):
        engine = run_engine(problem, fcco.SOX(GAMMA), BETA, log, init=u0)
        expected = reference.sox(problem, problem.w0, ETA, BETA, GAMMA, draws, u0, floor=log)
        assert_same_path(problem, engine, expected)

    def test_soap(self, problem, draws, log, u0):
        engine = run_engine(problem, fcco.SOAP(GAMMA), 1.0, log, init=u0)
        assert_same_path(problem, engine, reference.soap(problem, problem.w0, ETA, GAMMA, draws, u0))

    def test_scgd(self, problem, draws, log, u0):
        engine = run_engine(problem, fcco.SCGD(GAMMA), 1.0, log, init=u0)
        assert_same_path(problem, engine, reference.scgd(problem, problem.w0, ETA, GAMMA, draws, u0))

    def test_nasa(self, problem, draws, log, u0):
        engine = run_engine(problem, fcco.NASA(GAMMA), BETA, log, init=u0)
        assert_same_path(problem, engine, reference.nasa(problem, problem.w0, ETA, BETA, GAMMA, draws, u0))


@pytest.mark.parametrize("log", [False, True], ids=["plain", "log"])
def test_moap(problem, draws, log):
    engine = run_engine(problem, fcco.MOAP(GAMMA), BETA, log)
    assert_same_path(problem, engine, reference.moap(problem, problem.w0, ETA, BETA, GAMMA, draws))


@pytest.mark.parametrize("log", [False, True], ids=["plain", "log"])
def test_bsgd(problem, draws, log):
    engine = run_engine(problem, fcco.BSGD(), 1.0, log)
    assert_same_path(problem, engine, reference.bsgd(problem, problem.w0, ETA, draws))


def test_msvr(problem, draws):
    engine = run_engine(problem, fcco.SOAP(GAMMA), BETA, log=False, kappa=0.5)
    assert_same_path(problem, engine, reference.msvr(problem, problem.w0, ETA, BETA, GAMMA, 0.5, draws))


def test_methods_are_the_six_boxes(problem, draws):
    """METHODS, used as the docs say, runs each algorithm of the paper's figure."""
    expected = {
        "SCGD": reference.scgd(problem, problem.w0, ETA, GAMMA, draws),
        "NASA": reference.nasa(problem, problem.w0, ETA, BETA, GAMMA, draws),
        "SOAP": reference.soap(problem, problem.w0, ETA, GAMMA, draws),
        "MOAP": reference.moap(problem, problem.w0, ETA, BETA, GAMMA, draws),
        "BSGD": reference.bsgd(problem, problem.w0, ETA, draws),
        "SOX": reference.sox(problem, problem.w0, ETA, BETA, GAMMA, draws),
    }
    assert set(fcco.METHODS) == set(expected)
    for name, method in fcco.METHODS.items():
        assert_same_path(problem, run_engine(problem, method.rule(GAMMA), method.beta(BETA), log=False), expected[name])
