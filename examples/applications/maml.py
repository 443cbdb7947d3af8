"""Few-shot regression of sine waves: MAML with four tasks a batch, with and without a table of adapted weights.

    python examples/applications/maml.py [--figure maml.png] [--quick]

MAML adapts to the five examples of a task that a visit draws; ``MAMLLoss`` averages the adapted weights over visits, so
that it trains for the step on all examples of the task.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import fcco
from fcco.functional import maml_loss

Data = tuple[Tensor, Tensor]
STEP, SHOTS, EXAMPLES = 0.01, 5, 50


def sines(n: int, seed: int) -> list[Data]:
    """To adapt to and to be judged by: inputs and targets [n, 50, 1] each."""
    generator = torch.Generator().manual_seed(seed)
    amplitude, phase = (torch.rand(n, 1, 1, generator=generator) for _ in range(2))
    inputs = [10 * torch.rand(n, EXAMPLES, 1, generator=generator) - 5 for _ in range(2)]
    return [(x, (0.1 + 4.9 * amplitude) * torch.sin(x - math.pi * phase)) for x in inputs]


def some(data: Data, rows: Tensor, generator: torch.Generator) -> Data:
    chosen = torch.rand(len(rows), EXAMPLES, generator=generator).topk(SHOTS, 1).indices
    return data[0][rows.unsqueeze(1), chosen], data[1][rows.unsqueeze(1), chosen]


def train(tasks: list[Data], new: list[Data], rule: fcco.Rule | None, lr: float, passes: int) -> list[float]:
    """The error on new tasks after one step on each, after each pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    n, generator = len(tasks[0][0]), torch.Generator().manual_seed(0)
    options: dict[str, Any] = {} if rule is None else {"rule": rule}
    loss_fn = fcco.losses.MAMLLoss.for_model(model, n, STEP, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n // 4 * passes)
    curve = []
    for _ in range(passes):
        for rows in torch.randperm(n, generator=generator).view(-1, 4):
            support, query = (some(data, rows, generator) for data in tasks)
            optimizer.zero_grad()
            loss_fn(model, support, query, rows).backward()
            optimizer.step()
            schedule.step()
        curve.append(maml_loss(model, *new, lr=STEP).item())
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description="Meta-learning with four tasks a batch.")
    parser.add_argument("--figure", type=Path, default=Path("maml.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    n, passes, rates = (40, 2, (0.004,)) if given.quick else (200, 10, (0.004, 0.008, 0.016))
    tasks, new = sines(n, 0), sines(n, 1)
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    print(f"{n} sine waves, 4 tasks a batch, {passes} passes")
    for name, rule in (("MAML", fcco.BSGD()), ("MAMLLoss", None)):
        curves = {}
        for lr in rates:
            curves[lr] = train(tasks, new, rule, lr, passes)
            print(f"{name:<9} lr {lr:<6} error on new tasks after one step {curves[lr][-1]:.4f}")
        ax.plot(range(1, passes + 1), min(curves.values(), key=lambda curve: curve[-1]), label=name, marker="o")
    ax.set(xlabel="passes", ylabel="mean squared error", title="new tasks, after one step on each")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
