"""A Cox model from batches of 16 patients, where 2% of them have the event.

    python examples/applications/survival.py [--figure survival.png] [--quick]

The in-batch loss compares an event with the few others of its batch; ``BaselineCoxLoss`` keeps an estimate of every
event's whole risk set, to which every batch adds. Both end at an excess over the exact minimum of the partial
likelihood, which the figure shows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import fcco
from fcco.functional import cox_loss


def simulate(n: int, features: int = 10, share: float = 0.02) -> tuple[Tensor, Tensor, Tensor]:
    """Lives with hazards e^{x·w}, of which a share is seen to end."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, features, generator=generator)
    hazard = torch.exp(x @ torch.full((features,), features**-0.5))
    life = -torch.rand(n, generator=generator).log() / hazard
    watched = -torch.rand(n, generator=generator).log() * share / (1 - share) / hazard.mean()
    return x, torch.minimum(life, watched), life <= watched


def minimum(x: Tensor, time: Tensor, event: Tensor) -> float:
    """Of the partial likelihood, by L-BFGS on all data."""
    w = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = cox_loss(x.double() @ w, time, event)
        value.backward()
        return value

    optimizer.step(closure)
    return closure().item()


def train(data: tuple[Tensor, ...], loss_fn: Any, lr: float, passes: int, batch: int = 16) -> list[float]:
    """The objective on all data after each pass."""
    x, time, event = data
    w = torch.zeros(x.shape[1], requires_grad=True)
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=0.1)
    steps = len(x) // batch * passes
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(0)
    curve = []
    for _ in range(passes):
        for rows in torch.randperm(len(x), generator=generator)[: len(x) // batch * batch].view(-1, batch):
            optimizer.zero_grad()
            loss_fn(x[rows] @ w, time[rows], event[rows]).backward()
            optimizer.step()
            schedule.step()
        curve.append(cox_loss(x.double() @ w.detach().double(), time, event).item())
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description="Cox's partial likelihood from small batches with few events.")
    parser.add_argument("--figure", type=Path, default=Path("survival.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    n, passes = (2_000, 2) if given.quick else (12_000, 5)
    data = simulate(n)
    lowest = minimum(*data)
    print(f"{n:,} patients, {int(data[2].sum())} events, minimum of the objective {lowest:.4f}")
    losses: dict[str, Callable[[], Any]] = {
        "in-batch": lambda: cox_loss,
        "BaselineCoxLoss": lambda: fcco.losses.BaselineCoxLoss.from_targets(data[1], data[2]),
    }
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    for name, make in losses.items():
        curves = {}
        for lr in (0.008,) if given.quick else (0.002, 0.008, 0.03, 0.125):
            curves[lr] = [value - lowest for value in train(data, make(), lr, passes)]
            print(f"{name:<15} lr {lr:<6} excess {curves[lr][-1]:.5f}")
        ax.plot(range(1, passes + 1), min(curves.values(), key=lambda curve: curve[-1]), label=name, marker="o")
    ax.set(xlabel="passes", ylabel="excess over the minimum", yscale="log", title="batches of 16, 2% events")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
