"""An objective of one's own: exact on all data, unbiased with a memory, the same on several ranks."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch

import fcco
from core.populations import Given
from fcco.core.step import Remembered, as_batch, take, take_step

N = 7


class Points(NamedTuple):
    z: torch.Tensor
    label: torch.Tensor


class Near(fcco.Objective):
    """g_1 is the mean of e^-d² over all others, those of i's class alone, and g_2 over all."""

    Columns, dim = Points, 2

    def __init__(self, log=True, anchors=None):
        self.log, self.scale, self.anchors = log, torch.ones((), dtype=torch.float64, requires_grad=True), anchors

    def outer(self, u):
        return (u[:, 0] - u[:, 1]).exp() if self.log else u[:, 0] * u[:, 1] ** 2

    def is_anchor(self, x):
        return super().is_anchor(x) if self.anchors is None else x.label == self.anchors

    def estimate(self, anchors, candidates, weights):
        logits = -self.scale * (anchors.z[:, None] - candidates.z).square().sum(2)
        mates = weights * (anchors.label[:, None] == candidates.label)
        parts = [w * logits.exp() for w in (mates, weights)]
        if self.log:
            return torch.stack([fcco.functional.logsumexp(logits + w.log()) for w in (mates, weights)], 1)
        return torch.stack([part.sum(1) for part in parts], 1)


def everything():
    generator = torch.Generator().manual_seed(0)
    label = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    return Points(torch.randn(N, 2, generator=generator, dtype=torch.float64), label)


def exact(objective, x, u=None):
    """F and its gradient, in plain loops; with rows u, its gradient as a table has it."""
    z, scale = x.z.clone().requires_grad_(), objective.scale
    others = [[j for j in range(N) if j != i] for i in range(N)]
    e = (-scale * (z[:, None] - z).square().sum(2)).exp()
    g = torch.stack(
        [
            torch.stack([sum(e[i, j] * (x.label[i] == x.label[j]) for j in js), sum(e[i, j] for j in js)]) / (N - 1)
            for i, js in enumerate(others)
        ]
    )
    inner = g.log() if objective.log else g
    rows = objective.is_anchor(x)
    if u is None:
        value = Near.outer(objective, inner[rows]).mean()
        return value, torch.autograd.grad(value, (z, scale))
    at = u.clone().requires_grad_()
    (slope,) = torch.autograd.grad(Near.outer(objective, at[rows]).mean(), at)
    slope = slope / u.exp() if objective.log else slope
    return None, torch.autograd.grad((slope * g).sum(), z)


CASES = [(log, anchors) for log in (False, True) for anchors in (None, 0)]


@pytest.mark.parametrize(("log", "anchors"), CASES)
@pytest.mark.parametrize("mode", ["step", "eval", "memory"])
def test_a_full_batch_is_exact(log, anchors, mode):
    objective, x = Near(log, anchors), everything()
    loss_fn = fcco.ObjectiveLoss(objective, N, rule=fcco.BSGD(), memory=4 * (mode == "memory")).double()
    z = x.z.clone().requires_grad_()
    loss = loss_fn.train(mode != "eval")(z, x.label, index=torch.arange(N))
    value, gradients = exact(objective, x)
    torch.testing.assert_close(loss, value)
    found = torch.autograd.grad(loss, (z, objective.scale))
    torch.testing.assert_close(found, gradients, rtol=1e-12, atol=1e-14)
    assert all(gradient.abs().max() > 1e-5 for gradient in found)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("disjoint", [False, True])
def test_the_gradient_with_a_memory_is_unbiased(log, disjoint):
    """Over all pairs of a remembered and a fresh batch of 3, or those without an example in both."""
    x, batches = everything(), [np.array(b) for b in itertools.combinations(range(N), 3)]
    loss_fn = fcco.ObjectiveLoss(Near(log), N, rule=fcco.BSGD())
    objective = loss_fn.objective.like(x.z)
    objective.refreshes = False
    u = torch.rand(N, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
    u = u.log() if log else u
    given, found = Given(u), []
    for old, fresh in itertools.product(batches, batches):
        if disjoint and set(old) & set(fresh):
            continue
        rows = torch.from_numpy(fresh)
        kept = torch.from_numpy(np.setdiff1d(old, fresh))
        held, one = take(x, kept), torch.ones(len(kept), dtype=torch.float64)
        memory = Remembered(
            held, kept, objective.pool(held, one), u[kept], one, torch.arange(len(kept)), torch.zeros(2), 1.0, True
        )
        with torch.no_grad():
            made = take_step(objective, given, given, as_batch(objective, take(x, rows), rows), memory)
        gradient = torch.zeros_like(x.z)
        gradient[rows] = made.gradients[0]
        found.append(gradient)
    (expected,) = exact(objective, x, u)[1]
    torch.testing.assert_close(torch.stack(found).mean(0), expected, rtol=1e-12, atol=1e-14)
    assert expected.abs().max() > 1e-3


def test_inner_values_of_another_shape_are_refused():
    class Wide(Near):
        def estimate(self, anchors, candidates, weights):
            return super().estimate(anchors, candidates, weights)[:, :1]

    loss_fn, x = fcco.ObjectiveLoss(Wide(), N, rule=fcco.SOAP(0.5)), everything()
    with pytest.raises(ValueError, match=r"estimate must return the inner values of 7 anchors, \[7, 2\]; got \[7, 1\]"):
        loss_fn(x.z, x.label, index=torch.arange(N))
    assert not loss_fn.table.step
