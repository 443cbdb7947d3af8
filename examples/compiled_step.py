"""torch.compile of the whole training step: forward, loss, backward and optimizer as one function.

    python examples/compiled_step.py [--steps 200] [--backend inductor]

torch cuts the function where gradients are asked for; the loss, with its table, is in one piece with the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

import fcco
from fcco.data import PositiveNegativeSampler


def make(y: Tensor) -> tuple[nn.Module, fcco.losses.AveragePrecisionLoss, Callable[..., Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(y, memory=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(features: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = loss_fn(model(features), labels, index)
        value = loss.detach()
        loss.backward()
        optimizer.step()
        return value

    return model, loss_fn, step


def main() -> None:
    parser = argparse.ArgumentParser(description="A compiled training step next to an eager one.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--backend", default="inductor")
    options = parser.parse_args()
    torch.manual_seed(1)
    x = torch.randn(1000, 10)
    y = (x[:, 0] + 0.5 * torch.randn(1000) > 1).long()
    # Equal sizes, so that nothing is compiled twice; index tensors, since a list would be a constant of the graph.
    sampler = PositiveNegativeSampler(y, batch=32, drop_last=True)
    eager_model, eager_loss, eager_step = make(y)
    model, loss_fn, step = make(y)
    compiled_step = torch.compile(step, backend=options.backend)
    done = 0
    while done < options.steps:
        for rows in sampler:
            index = torch.as_tensor(rows)
            value = compiled_step(x[index], y[index], index)
            eager_step(x[index], y[index], index)
            done += 1
            if done % 50 == 0:
                print(f"step {done}: loss {value:.4f}")
            if done == options.steps:
                break
    weights = max((a - b).abs().max().item() for a, b in zip(model.parameters(), eager_model.parameters(), strict=True))
    largest = eager_loss.table.u.abs().max()
    rows_apart = ((loss_fn.table.u - eager_loss.table.u).abs().max() / largest).item()
    print(f"compiled and eager differ by {weights:.1e} in the weights and {rows_apart:.1e} in the largest row")


if __name__ == "__main__":
    main()
