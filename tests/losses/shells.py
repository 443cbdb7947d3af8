"""Losses of the new shell on one small problem, for tests in one process and on several ranks."""

import numpy as np
import torch

import fcco
from fcco.core.outers import FromFunction
from fcco.core.surrogates import as_surrogate
from fcco.losses.loss import ObjectiveLoss
from fcco.objectives.bipartite import AveragePrecision, PNormPush
from fcco.objectives.contrastive import Contrastive
from fcco.objectives.given import GivenInner
from fcco.objectives.neighbours import NCA
from fcco.objectives.survival import Cox

N = 100
SIZES, CLASSES = torch.tensor([75.0, 25.0]).double(), torch.full((4,), 25.0).double()
OBJECTIVES = {
    "ap": lambda: AveragePrecision(as_surrogate("ramp"), 1.0, SIZES),
    "ap exact": lambda: AveragePrecision(as_surrogate("exp"), 1.0, SIZES, "exact"),
    "cox": lambda: Cox(SIZES),
    "push": lambda: PNormPush(as_surrogate("exp"), 2),
    "nca": lambda: NCA(CLASSES),
    "nca by class": lambda: NCA(CLASSES, by_class=True),
}
CASES = [(name, memory) for name in OBJECTIVES for memory in (0, 12)]
OBJECTIVES["contrastive"] = Contrastive
OBJECTIVES["given"] = lambda: GivenInner(FromFunction(torch.log))


def make(name, memory=0, rule=None):
    return ObjectiveLoss(OBJECTIVES[name](), N, rule=rule or fcco.SOAP(0.7), memory=memory)


def columns(name, outputs, rows):
    """The columns of a batch, given the outputs [B, 2] of a model."""
    if name == "given":
        return (outputs[:, 0].square() + 0.5,)
    if name == "contrastive":
        return outputs, outputs.flip(1) + 1
    label, time = (torch.arange(N) % 4 == 0).long(), (torch.arange(N) * 37 % 53).double()
    if name.startswith("nca"):
        return outputs, torch.arange(N)[rows] % 4
    return (outputs[:, 0], time[rows], label[rows]) if name == "cox" else (outputs[:, 0], label[rows])


def weights(seed=3, dtype=torch.float64):
    return (0.1 * torch.randn(5, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def train(loss, name, weight, seed=1, steps=6, part=lambda rows, step: rows, average=lambda gradient: gradient):
    """Descend; return the weights, and all values and gradients."""
    features = torch.randn(N, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(weight.dtype)
    generator, seen = torch.Generator().manual_seed(seed), []
    for step in range(steps):
        rows = torch.randint(N, (17,), generator=generator)
        rows = part(torch.cat([rows, rows[:3]]) if step % 3 == 1 else rows, step)  # some rows appear twice
        weight = weight.detach().requires_grad_()
        value = loss(*columns(name, features[rows] @ weight, rows), index=rows)
        (gradient,) = torch.autograd.grad(value, weight)
        gradient = average(gradient)
        weight = (weight - 0.02 * gradient).detach()
        seen += [value.item(), *gradient.double().flatten().tolist()]
    assert np.isfinite(seen).all()
    assert np.any(seen)
    return weight, np.array(seen)
