"""torch.func: a training step as a pure function of weights and table, which changes neither module.

    python examples/stateless.py [--steps 200]

``functional_call`` runs a loss on a table that is passed to it. A step writes to that table in place, so pass a copy:
the copy is the new state, the old one is still there, to go back to or to branch from.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

import fcco
from fcco.data import PositiveNegativeSampler

State = dict[str, Tensor]
Step = Callable[..., tuple[State, State]]


def make_step(model: nn.Module, loss_fn: nn.Module, lr: float) -> Step:
    def step(weights: State, table: State, features: Tensor, labels: Tensor, index: Tensor) -> tuple[State, State]:
        table = {name: buffer.clone() for name, buffer in table.items()}
        loss = functional_call(loss_fn, table, (functional_call(model, weights, (features,)), labels, index))
        gradients = torch.autograd.grad(loss, list(weights.values()))
        stepped = {
            name: (weight - lr * gradient).detach().requires_grad_()
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
        return stepped, table

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description="Average precision, without any state but what is passed along.")
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    x = torch.randn(1000, 10)
    y = (x[:, 0] + 0.5 * torch.randn(1000) > 1).long()
    model = nn.Sequential(nn.Linear(10, 1), nn.Flatten(0))
    loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(y, memory=0)
    step = make_step(model, loss_fn, lr=1.0)

    weights: State = {name: weight.detach().requires_grad_() for name, weight in model.named_parameters()}
    table: State = dict(loss_fn.named_buffers())
    sampler, done = PositiveNegativeSampler(y, batch=32), 0
    while done < steps:
        for rows in sampler:
            index = torch.as_tensor(rows)
            weights, table = step(weights, table, x[index], y[index], index)
            done += 1
            if done % max(1, steps // 4) == 0:
                exact = fcco.functional.average_precision_loss(functional_call(model, weights, (x,)).detach(), y)
                print(f"step {done}: surrogate of average precision on all data {-exact:.4f}")
            if done == steps:
                break
    print(f"steps in the state passed along: {table['table.step']}, in the module: {loss_fn.table.step}")


if __name__ == "__main__":
    main()
