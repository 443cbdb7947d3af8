"""Contrastive objectives: equal to the exact ones and to the losses, right on average with a memory, finite."""

import itertools

import pytest
import torch
from torch import nn

import fcco
from fcco import functional
from fcco.core.outers import FromFunction
from fcco.core.step import Remembered, as_batch, estimate, take, take_step
from fcco.functional._contrastive_variants import on_sphere
from fcco.objectives.contrastive import Contrastive, RobustContrastive, Views
from fcco.objectives.neighbours import NCA, Embedded

from .stepping import Table, assert_equal, mean_error, of_each, paired, some, step_of, whole

MODES = pytest.mark.parametrize("mode", ["two_views", "cross_modal"])
TERMS = pytest.mark.parametrize("term", [None, "exact", "sampled"])
RULES = pytest.mark.parametrize("rule", [fcco.BSGD(), fcco.SOAP(gamma=0.6), fcco.SOX(gamma=0.3)], ids=str)
BATCHES = [[0, 5, 7, 2, 9], [1, 5, 2], [0, 1, 2, 3, 4, 5, 6, 9]]
REPEATS = [[0, 5, 7, 2, 9], [1, 5, 1, 2], [0, 1, 9, 3, 4, 0, 0, 9]]


def views(n=10, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(n, 3).double().requires_grad_() for _ in range(2)]


def learnt(tau=0.3):
    return nn.Parameter(torch.tensor(tau).double())


@MODES
@pytest.mark.parametrize("term", [None, "exact"])
@pytest.mark.parametrize("sizes", [None, torch.tensor([10.0]).double()], ids=["unknown", "known"])
def test_all_data_give_the_exact_objective(mode, term, sizes):
    first, second, tau = *views(), learnt()
    loss = step_of(Contrastive(sizes, tau, mode, term), (first, second), torch.arange(10))
    options = {"temperature": tau, "mode": mode, "include_positive": term is not None}
    assert_equal(loss, functional.contrastive_loss(first, second, **options), (first, second, tau))


def test_the_temperature_and_f_are_learnt_together():
    first, second, tau, scale = *views(), learnt(), learnt(1.7)
    objective = Contrastive(None, tau)
    objective.outer = FromFunction(lambda log_u: scale * log_u.mean(1))
    loss = step_of(objective, (first, second), torch.arange(10))
    wanted = scale * functional.contrastive_loss(first, second, temperature=tau)
    assert_equal(loss, wanted, (first, second, tau, scale))


def test_what_is_learnt_stays_the_same_tensor():
    objective = Contrastive(torch.tensor([20.0]), learnt().float())
    moved = objective.like(torch.zeros(1).double())
    assert moved.sizes.dtype == torch.float64
    assert moved.parameters[0] is objective.temperature


@MODES
@pytest.mark.parametrize("term", [None, "exact"])
@pytest.mark.parametrize(("n", "disjoint"), [(5, False), (6, True)])
def test_the_memory_is_right_on_average(mode, term, n, disjoint):
    objective = Contrastive(torch.tensor([float(n)]).double(), learnt(), mode, term)
    objective.refreshes = False
    x, u = Views(*(z.detach() for z in views(n))), torch.rand(n, 2).double()
    assert mean_error(objective, x, u, paired(some(n, 2), disjoint=disjoint)) < 1e-12


@MODES
@pytest.mark.parametrize("term", [None, "exact"])
def test_fresh_candidates_complete_what_remembered_anchors_have_met(mode, term):
    objective, (first, second) = Contrastive(torch.tensor([6.0]).double(), 0.3, mode, term), views(6)
    x, rows = Views(first.detach(), second.detach()), torch.arange(6)
    held, fresh = rows[:3], rows[3:]
    everyone, alone, batch = (as_batch(objective, take(x, part), part) for part in (rows, held, fresh))
    share, mean = torch.ones(3).double(), torch.tensor([3.0, 3.0]).double()
    u = estimate(objective, alone).inner
    memory = Remembered(alone.x, held, alone.pool, u, share, held, mean, 0.5, True)
    step = take_step(objective, fcco.BSGD(), Table(6, 2, fcco.BSGD()), batch, memory)
    torch.testing.assert_close(step.refreshed, estimate(objective, everyone).inner[:3])


def labelled(labels, seed=0):
    torch.manual_seed(seed)
    return torch.randn(len(labels), 3).double().requires_grad_(), torch.tensor(labels)


def supervised(sizes=None, **options):
    """Return the objective of unit vectors divided by sqrt(2 tau), which is the supervised contrastive one."""
    return NCA(sizes, likelihood=True, **options)


LABELS = [0, 0, 0, 1, 1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("sizes", [None, torch.tensor([3.0, 4.0, 2.0, 1.0]).double()], ids=["unknown", "known"])
def test_supervised_all_data_give_the_exact_objective(sizes):
    (z, y), tau = labelled(LABELS), learnt()
    loss = step_of(supervised(sizes), (on_sphere(z, tau), y), torch.arange(10))
    assert_equal(loss, functional.supervised_contrastive_loss(z, y, temperature=tau), (z, tau))


PAIRS = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
HALVES = [0, 0, 0, 0, 1, 1, 1, 1]
ALONE = [0, 0, 0, 1, 1, 1, 2]
SAMPLERS = {
    "random": (ALONE[:6], paired(some(6, 3), disjoint=False)),
    "random, disjoint": (HALVES, paired(some(8, 4), disjoint=True)),
    "balanced": (ALONE[:6], paired(of_each(ALONE[:6], 2), disjoint=False)),
    "balanced, disjoint": (HALVES, paired(of_each(HALVES, 2), disjoint=True)),
    "pairs": (PAIRS, paired(whole(PAIRS, 2), disjoint=False)),
    "pairs, disjoint": (PAIRS, paired(whole(PAIRS, 2), disjoint=True)),
    "one alone": (ALONE, list(itertools.permutations(some(7, 6), 2))),  # all are in the pool
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("by_class", [False, True])
def test_supervised_memory_is_right_on_average(sampler, by_class):
    labels, pairs = SAMPLERS[sampler]
    z, y = labelled(labels)
    objective = supervised(y.bincount().double(), by_class=by_class)
    objective.refreshes = objective.conserves = False
    assert mean_error(objective, Embedded(on_sphere(z, 0.3).detach(), y), torch.rand(len(y), 2).double(), pairs) < 1e-12


def test_robust_all_data_give_the_exact_objective():
    (first, second), tau = views(), torch.rand(10, 2).double().add(0.1)
    loss = step_of(RobustContrastive(0.7).tempered(tau), (first, second, tau), torch.arange(10))
    assert_equal(loss, functional.robust_contrastive_loss(first, second, tau, rho=0.7), (first, second))


@pytest.mark.parametrize("tau", [1e-3, 1e3])
@pytest.mark.parametrize("scale", [1e-200, 1e150])
def test_extreme_values_are_finite(tau, scale):
    first, second = views()
    a, b = (first.detach() * scale).requires_grad_(), (second.detach() * scale).requires_grad_()
    loss = step_of(Contrastive(None, tau), (a, b), torch.arange(10))
    wanted = functional.contrastive_loss(a, b, temperature=tau)
    assert_equal(loss, wanted, (a, b), 1e-9)
    y = torch.tensor(LABELS)
    loss = step_of(supervised(), (on_sphere(a, tau), y), torch.arange(10))
    assert_equal(loss, functional.supervised_contrastive_loss(a, y, temperature=tau), (a,), 1e-9)


@pytest.mark.parametrize("term", [None, "exact"])
def test_an_example_alone_has_the_value_zero(term):
    first, second = views(1)
    loss = step_of(Contrastive(None, term=term), (first, second), torch.arange(1))
    assert loss.item() == 0
    assert all((g == 0).all() for g in torch.autograd.grad(loss, (first, second)))
