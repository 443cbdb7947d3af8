"""Objectives whose anchors bring their candidates, or inner values; and what an f of the caller's has of its own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fcco
from fcco import functional
from fcco.core.outers import FromFunction, Power
from fcco.core.step import Ranks, as_batch, take_step
from fcco.objectives.given import Given, GivenInner, OwnCandidates
from fcco.objectives.likelihood import Latent, LatentVariable, Logits, Softmax
from fcco.objectives.meta import MAML, adapt
from fcco.objectives.robust import InvariantLogistic, Observed

from .stepping import Table, assert_equal, gradients_of, step_of

RULES = pytest.mark.parametrize("rule", [fcco.BSGD(), fcco.SOAP(gamma=0.6), fcco.SOX(gamma=0.3)], ids=str)
BATCHES = [[0, 5, 7, 2, 9], [1, 5, 1, 2], [0, 1, 2, 3, 4, 0, 6, 9]]
N = 10


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def steps(rule, objective):
    """Yield the rows of a few steps, as many as there are in each, and the table."""
    table = Table(N, objective.dim, rule)
    for seed, rows in enumerate(BATCHES):
        torch.manual_seed(seed)
        yield torch.tensor(rows), len(rows), table


def leaf(*shape):
    return torch.randn(*shape).double().requires_grad_()


def test_latent_variables_of_all_data_are_exact():
    likelihood, weight = leaf(N, 4), leaf(N, 4)
    loss = step_of(LatentVariable(), Latent(likelihood, weight), torch.arange(N))
    assert_equal(loss, functional.latent_variable_loss(likelihood, weight), (likelihood, weight))


@pytest.mark.parametrize("term", ["exact", "sampled"])
def test_equal_logits_give_the_logarithm_of_the_number_of_classes(term):
    candidates = torch.tensor([[0, 1, 1, 2], [1, 1, 1, 4], [5, 6, 7, 8]])
    columns = Logits(torch.zeros(3), torch.zeros(3, 4), None, torch.tensor([1, 4, 0]), candidates)
    loss = step_of(Softmax(30, term), Logits(*(c if c is None else c.double() for c in columns)), torch.arange(3))
    torch.testing.assert_close(loss, torch.tensor(30.0).double().log())


def test_softmax_of_all_classes_is_exact():
    logits, target = leaf(N, 7), torch.arange(N) % 7
    of_target = logits[torch.arange(N), target]
    candidates = torch.arange(7).expand(N, 7)
    loss = step_of(Softmax(7), Logits(of_target, logits, None, target, candidates), torch.arange(N))
    assert_equal(loss, functional.softmax_loss(of_target, logits), (logits,))


def test_invariance_to_all_observations_is_exact():
    scores, label = leaf(N, 4), torch.arange(N) % 2
    wanted = functional.invariant_logistic_loss(scores, label)
    assert_equal(step_of(InvariantLogistic(), Observed(scores, label), torch.arange(N)), wanted, (scores,))


@pytest.mark.parametrize("size", [1e4, 1e300])
def test_extreme_values_are_finite(size):
    scores = (size * torch.tensor([[1.0, 1], [-1, -1], [1, 1]]).double()).requires_grad_()
    label, rows = torch.tensor([1, 1, 0]), torch.arange(3)
    loss = step_of(InvariantLogistic(), Observed(scores, label), rows)
    assert_equal(loss, functional.invariant_logistic_loss(scores, label), (scores,))
    logits = (size * torch.tensor([[1.0, -1], [-1, 1], [-1, -1]]).double()).requires_grad_()
    target = torch.zeros(3).double().requires_grad_()
    loss = step_of(Softmax(), Logits(target, logits), rows)
    wanted = functional.softmax_loss(target, torch.cat([target[:, None], logits], 1))
    assert_equal(loss, wanted, (logits,))


def tasks(m):
    x, y = torch.randn(m, 5, 2).double(), torch.randn(m, 5, 1).double()
    return x, y.requires_grad_()


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def test_maml_of_all_tasks_is_exact():
    model, support, query = network(), tasks(N), tasks(N)
    loss = step_of(MAML(F.mse_loss, 13), (adapt(model, support, lr=0.1),), torch.arange(N), sample=(model, query))
    wanted = functional.maml_loss(model, support, query, lr=0.1)
    assert_equal(loss, wanted, (*model.parameters(), support[1], query[1]))


class Scaled(nn.Module):
    """f with a parameter of its own, and data of the call."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.3).double())

    def forward(self, u, index, sample=2.0):
        return sample * (self.scale * u).square() + index


@pytest.mark.parametrize("with_sample", [False, True])
@RULES
def test_f_gets_its_gradient_at_the_new_rows(rule, with_sample):
    f = Scaled()
    objective, loss_fn = GivenInner(FromFunction(f)), fcco.CoupledLoss(f, N, rule=rule).double()
    for rows, m, table in steps(rule, objective):
        inner = leaf(m)
        sample = torch.rand(m).double().requires_grad_() if with_sample else None
        loss = step_of(objective, (inner,), rows, table, rule, sample=sample)
        assert_equal(loss, loss_fn(inner, rows, sample=sample), (inner,))
        of_f = () if sample is None else (sample,)
        assert_equal(loss, f(table.u[rows], rows, *of_f).mean(), (f.scale, *of_f))


def test_a_step_without_parameters_has_nothing_extra():
    objective = GivenInner(FromFunction(torch.square))
    batch = as_batch(objective, objective.Columns(leaf(3).detach()), torch.arange(3))
    assert take_step(objective, fcco.BSGD(), Table(3, 1, fcco.BSGD()), batch).extra is None


class Tilted(OwnCandidates):
    """F = mean of (scale * x)², whose scale is learnt."""

    Columns, outer = Given, Power(2.0)

    def __init__(self):
        self.scale = nn.Parameter(torch.tensor(0.7).double())

    @property
    def parameters(self):
        return (self.scale,)

    def estimate_own(self, x):
        return self.scale * x.inner


def test_parameters_of_an_objective_without_a_pool():
    objective, inner = Tilted(), leaf(4)
    loss = step_of(objective, (inner,), torch.arange(4))
    assert_equal(loss, (objective.scale * inner).square().mean(), (inner, objective.scale))


class Two(Ranks):
    """This process and one more, whose parts are known. A sum is this process's part."""

    def __init__(self, others, place):
        self.others, self.place = others, place

    def exchange(self, *parts):
        pairs = [pair[:: 1 - 2 * self.place] for pair in zip(parts, self.others, strict=True)]
        size = len(parts[0])
        start = self.place * len(self.others[0])
        return tuple(map(torch.cat, pairs)), slice(start, start + size)

    def sum(self, values):
        return values


@pytest.mark.parametrize("with_sample", [False, True])
def test_several_processes_are_one(with_sample):
    f, rows = Scaled(), torch.tensor([4, 0, 2, 4, 1])
    objective, inner, sample = GivenInner(FromFunction(f)), leaf(5), torch.rand(5).double() if with_sample else None
    rule, steps = fcco.SOAP(gamma=0.5), []
    whole = step_of(objective, (inner,), rows, Table(5, 1, rule), rule, sample=sample)
    for place, (mine, rest) in enumerate([(slice(0, 2), slice(2, 5)), (slice(2, 5), slice(0, 2))]):
        values, ones = inner.detach()[rest], torch.ones(5).double()[rest]
        batch = as_batch(objective, objective.Columns(inner.detach()[mine]), rows, mine=mine)
        batch = batch._replace(sample=sample[mine] if with_sample else None)
        steps.append(take_step(objective, rule, Table(5, 1, rule), batch, None, Two((values, ones, ones), place)))
    one, other = steps
    torch.testing.assert_close(one.value + other.value if with_sample else one.value, whole.detach())
    of_inner, of_scale = gradients_of(whole, inner, f.scale)
    torch.testing.assert_close(torch.cat([one.gradients[0], other.gradients[0]]), of_inner)
    torch.testing.assert_close(torch.autograd.grad(one.extra + other.extra, f.scale)[0], of_scale)
