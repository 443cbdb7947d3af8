"""Problems in the parameters of a module."""

from functools import partial

import pytest
import torch
from torch import nn

import fcco
from fcco.projections import SquaredL2, project_ball
from fcco.solvers import Problem, SOXBoost, Stage

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X[:, 0] - X[:, 1]


def inner(model, rows, generator, inner_batch):
    noise = torch.randn(len(rows), inner_batch, 3, generator=generator, dtype=torch.float64).mean(1)
    return model(X[rows] + 0.1 * noise).squeeze(1)


def outer(u, index):
    return (u - Y[index]) ** 2 / 2


def make(module, **fields):
    def exact_inner(model):
        return model(X).squeeze(1)

    return Problem.from_module(module, n=30, inner=inner, outer=outer, exact_inner=exact_inner, **fields)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def test_it_is_the_problem_of_the_vector():
    """A linear module without an intercept is w itself, so the run must be that of a problem written in w."""
    net = nn.Linear(3, 1, bias=False).double()
    by_hand = Problem(
        n=30, inner=lambda w, *rest: inner(lambda x: (x @ w)[:, None], *rest), outer=outer, start=net.weight.detach()[0]
    )
    options = {"outer_batch": 4, "inner_batch": 2, "steps": 50, "lr": 0.1, "beta": 0.3, "gamma": 0.3}
    mine = fcco.solve(make(net), **options)
    torch.testing.assert_close(mine.weights, fcco.solve(by_hand, **options).weights, rtol=1e-12, atol=1e-12)


def test_the_gradient_is_that_of_the_module():
    net = network()
    problem = make(net)
    w = problem.start.clone().requires_grad_()
    problem.value(w).backward()
    ((net(X).squeeze(1) - Y) ** 2 / 2).mean().backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
    torch.testing.assert_close(w.grad, expected)


@pytest.mark.parametrize(
    "call",
    [
        {"method": SOXBoost([Stage(0.2, 0.5, 0.5, 100), Stage(0.1, 0.3, 0.3, 100)])},
        {
            "method": "projected",
            "projection": partial(project_ball, radius=2.5),
            "lr": 0.2,
            "gamma": 0.5,
            "steps": 200,
        },
        {"method": "strongly-convex", "regulariser": SquaredL2(0.01), "lr": 0.2, "steps": 200},
    ],
    ids=["boost", "projected", "strongly-convex"],
)
def test_algorithms_train_a_module_whole(call):
    net = network()
    problem = make(net)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    solution = fcco.solve(problem, **call, outer_batch=8, inner_batch=4)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert solution.history["objective"][-1] < 0.3 * solution.history["objective"][0]
    assert problem.assign(solution.weights) is net
    torch.testing.assert_close(((net(X).squeeze(1) - Y) ** 2 / 2).mean(), problem.value(solution.weights))


def test_shared_parameters_are_one():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)).double()
    net[1].weight = net[0].weight
    problem = make(net)
    assert len(problem.start) == 9 + 3 + 3 + 4
    moved = problem.start + 1
    expected = problem.value(moved)
    problem.assign(moved)
    torch.testing.assert_close(((net(X).squeeze(1) - Y) ** 2 / 2).mean(), expected)


def test_errors():
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module; got 3"):
        make(3)
    with pytest.raises(ValueError, match="got no parameters"):
        make(nn.ReLU())
    with pytest.raises(ValueError, match=r"got torch\.float32 on cpu, torch\.float64 on cpu"):
        make(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1).double()))
    net = network()
    net[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"0\.weight does not require a gradient"):
        make(net)
    with pytest.raises(ValueError, match=r"weights must have the shape \[21\]; got \[2\]"):
        make(network()).assign(torch.zeros(2))
