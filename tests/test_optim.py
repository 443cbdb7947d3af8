"""MovingAverageSGD, and the use of torch's own optimizers in its place."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco.optim import MovingAverageSGD
from problems import LeastSquaresProblem


def quadratic_steps(optimizer, w, steps=5):
    for _ in range(steps):
        optimizer.zero_grad()
        (w * torch.tensor([1.0, -2.0, 3.0], dtype=w.dtype) + w.square()).sum().backward()
        optimizer.step()


def make_parameter():
    return nn.Parameter(torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64))


def test_follows_its_formula():
    w = make_parameter()
    expected, v = w.detach().numpy().copy(), np.zeros(3)
    quadratic_steps(MovingAverageSGD([w], lr=0.1, beta=0.3, weight_decay=0.01), w)
    for _ in range(5):
        gradient = np.array([1.0, -2.0, 3.0]) + 2 * expected + 0.01 * expected
        v = 0.7 * v + 0.3 * gradient
        expected = expected - 0.1 * v
    np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-14)


def test_weight_decay_leaves_the_gradient_as_it_is():
    w = make_parameter()
    w.grad = torch.ones_like(w)
    MovingAverageSGD([w], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(w.grad, torch.ones_like(w))


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_is_sgd_with_momentum_at_lr_times_beta(beta):
    """v is beta times torch's buffer, so lr_ours = lr_torch / beta."""
    ours, theirs = make_parameter(), make_parameter()
    quadratic_steps(MovingAverageSGD([ours], lr=0.02 / beta, beta=beta, weight_decay=0.1), ours)
    quadratic_steps(torch.optim.SGD([theirs], lr=0.02, momentum=1 - beta, weight_decay=0.1), theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_projection_holds_after_every_step():
    w = make_parameter()
    optimizer = MovingAverageSGD([w], lr=0.5, beta=1.0, projection=lambda w: w.clamp(-1, 1))
    for _ in range(5):
        quadratic_steps(optimizer, w, steps=1)
        assert w.abs().max() <= 1
    torch.testing.assert_close(w.detach(), torch.tensor([-0.5, 1.0, -1.0], dtype=torch.float64))


@pytest.mark.parametrize("projection", [torch.Tensor.norm, lambda w: None])
def test_projection_keeps_the_shape(projection):
    w = make_parameter()
    with pytest.raises(ValueError, match=r"projection must map \[3\] to the same shape; got"):
        quadratic_steps(MovingAverageSGD([w], lr=0.1, projection=projection), w)


def test_groups_have_options_of_their_own():
    a, b, c = make_parameter(), make_parameter(), make_parameter()
    optimizer = MovingAverageSGD([{"params": [a]}, {"params": [b], "lr": 0.0}], lr=0.1, beta=1.0)
    optimizer.add_param_group({"params": [c], "projection": torch.zeros_like})
    for w in (a, b, c):
        w.grad = torch.ones_like(w)
    optimizer.step()
    assert torch.equal(a, make_parameter() - 0.1)
    assert torch.equal(b, make_parameter())
    assert torch.equal(c, torch.zeros_like(c))


def test_lr_schedulers_apply():
    w = make_parameter()
    optimizer = MovingAverageSGD([w], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    quadratic_steps(optimizer, w, steps=1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_checkpoint_continues_bit_for_bit():
    w = make_parameter()
    optimizer = MovingAverageSGD([w], lr=0.1, projection=torch.Tensor.tanh)
    quadratic_steps(optimizer, w)
    file = io.BytesIO()
    torch.save([w.detach(), optimizer.state_dict()], file)
    quadratic_steps(optimizer, w)

    weights, saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    resumed = nn.Parameter(weights)
    other = MovingAverageSGD([resumed], lr=99.0, projection=torch.Tensor.tanh)
    other.load_state_dict(saved)
    quadratic_steps(other, resumed)
    assert torch.equal(resumed, w)


def test_deepcopy_and_closure():
    w = make_parameter()
    optimizer = MovingAverageSGD([w], lr=0.1)
    copy.deepcopy(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = w.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 6.0


def test_parameters_without_gradient_stay():
    w = make_parameter()
    MovingAverageSGD([w], lr=0.1, weight_decay=1.0).step()
    assert torch.equal(w, make_parameter())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be >= 0; got -1.0"),
        ({"lr": float("nan")}, "lr must be >= 0; got nan"),
        ({"lr": 0.1, "beta": 0.0}, r"beta must be in \(0, 1\]; got 0.0"),
        ({"lr": 0.1, "beta": 1.1}, r"beta must be in \(0, 1\]; got 1.1"),
        ({"lr": 0.1, "weight_decay": -0.1}, "weight_decay must be >= 0; got -0.1"),
        ({"lr": 0.1, "projection": 3}, "projection must be callable; got 3"),
    ],
)
def test_refuses_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        MovingAverageSGD([make_parameter()], **options)
    with pytest.raises(ValueError, match=message):
        MovingAverageSGD([{"params": [make_parameter()], **options}], lr=0.1)


def test_refuses_sparse_gradients():
    embedding = nn.Embedding(3, 2, sparse=True)
    optimizer = MovingAverageSGD(embedding.parameters(), lr=0.1)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=r"gradients must be dense, .* got a sparse gradient"):
        optimizer.step()


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda params: MovingAverageSGD(params, lr=0.05, beta=0.1),
        lambda params: torch.optim.SGD(params, lr=0.05),
        lambda params: torch.optim.SGD(params, lr=0.005, momentum=0.9, nesterov=True),
        lambda params: torch.optim.Adam(params, lr=0.02),
    ],
    ids=["MovingAverageSGD", "SGD", "SGD-momentum", "Adam"],
)
def test_any_optimizer_reaches_the_optimum(make_optimizer):
    """Within 0.06 of the optimum in w after 1,500 steps of 5 rows x 2 draws; the start is 1.7 away."""
    problem = LeastSquaresProblem(noise=0.5)
    loss_fn = fcco.CoupledLoss(problem.outer, problem.n, rule=fcco.SOX(gamma=0.1))
    w = torch.zeros(problem.d, dtype=torch.float64, requires_grad=True)
    optimizer = make_optimizer([w])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    generator = torch.Generator().manual_seed(0)
    for _ in range(1500):
        rows = torch.randperm(problem.n, generator=generator)[:5]
        optimizer.zero_grad()
        loss_fn(problem.inner(w, rows, 2, generator), rows).backward()
        optimizer.step()
        scheduler.step()
    assert problem.optimum.norm() > 1.7
    assert (w.detach() - problem.optimum).norm() < 0.06
