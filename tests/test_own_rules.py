"""Rules of one's own: what the engine asks of ``update``, and that a mistake changes nothing."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import fcco


@dataclass(frozen=True)
class Returning(fcco.Rule):
    """A rule that returns whatever it was given a function for."""

    make: Any
    rate = 0.5

    def update(self, old, batch):
        return self.make(old, batch)


BAD = {
    "one": (lambda old, batch: old, TypeError, "update of Returning must return two tensors"),
    "list": (lambda old, batch: [old, old], TypeError, r"got \[tensor"),
    "number": (lambda old, batch: (old, 1.0), ValueError, r"got 1\.0"),
    "shape": (lambda old, batch: (old, old.sum()), ValueError, r"tensors of shape \[2\] of torch.float32; got \[\]"),
    "dtype": (lambda old, batch: (old, old.double()), ValueError, r"got \[2\] of torch.float64"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_update_returns_is_checked(name):
    make, error, message = BAD[name]
    loss_fn = fcco.CoupledLoss(torch.log, 3, rule=Returning(make))
    with pytest.raises(error, match=message):
        loss_fn(torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([0, 2]))
    assert not loss_fn.table.visits.any()
    assert loss_fn.table.step == 0


def test_no_gradient_flows_into_a_rule():
    """Rows are numbers: a rule that computes with parameters does not train them through the table."""
    scale = torch.ones((), requires_grad=True)

    def make(old, batch):
        new = scale * (old + batch.estimate) / 2
        return new, new

    loss_fn = fcco.CoupledLoss(torch.log, 3, rule=Returning(make))
    inner = torch.tensor([1.0, 2.0], requires_grad=True)
    loss_fn(inner, torch.tensor([0, 2])).backward()
    assert scale.grad is None
    assert inner.grad.tolist() == [0.5, 0.25]
    assert not loss_fn.table.u.requires_grad


@pytest.mark.parametrize(
    ("rate", "error"), [*((bad, ValueError) for bad in (5.0, 0, -1.0, math.nan)), (None, TypeError)]
)
def test_the_rate_of_a_rule_is_checked(rate, error):
    """A rule of one's own need not check it."""

    @dataclass(frozen=True)
    class Mine(Returning):
        rate = None

    Mine.rate = rate
    with pytest.raises(error, match=f"gamma of Mine must be .*; got {rate!r}"):
        fcco.CoupledLoss(torch.log, 3, rule=Mine(lambda old, batch: (old, old)))
