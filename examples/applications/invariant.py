"""Logistic regression of the mean score over perturbed observations, of which one is drawn at a time.

    python examples/applications/invariant.py [--figure invariant.png] [--quick]

Without a table (BSGD) the noise of the draws is part of the score that the loss sees, and more draws a visit, at
equally many in all, mean fewer visits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from torch import Tensor

import fcco

PENALTY = 1e-3


def load() -> tuple[Tensor, Tensor]:
    bunch = load_breast_cancer()
    x = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(1 - bunch.target)


def objective(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """A linear score's mean over the noise is the score of the mean."""
    return F.softplus(torch.where(y == 1, -1.0, 1.0) * (x.to(w) @ w)).mean() + PENALTY / 2 * w.square().sum()


def minimum(x: Tensor, y: Tensor) -> float:
    w = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective(w, x, y)
        value.backward()
        return value

    optimizer.step(closure)
    return closure().item()


def train(x: Tensor, y: Tensor, rule: fcco.Rule, draws: int, passes: int, lr: float, batch: int = 16) -> float:
    """The exact objective after ``passes`` draws for every example."""
    generator = torch.Generator().manual_seed(0)
    w = torch.zeros(x.shape[1], requires_grad=True)
    loss_fn = fcco.losses.InvariantLogisticLoss(len(x), rule=rule)
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=0.1, weight_decay=PENALTY)
    steps = len(x) // batch * max(passes // draws, 1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randperm(len(x), generator=generator)[:batch]
        observed = x[rows].unsqueeze(1) + torch.randn(batch, draws, x.shape[1], generator=generator)
        optimizer.zero_grad()
        loss_fn(observed @ w, y[rows], rows).backward()
        optimizer.step()
        schedule.step()
    return objective(w.detach().double(), x, y).item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Invariant logistic regression against BSGD with more draws.")
    parser.add_argument("--figure", type=Path, default=Path("invariant.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    x, y = load()
    passes, rates = (4, (0.25,)) if given.quick else (96, (0.03, 0.06, 0.125, 0.25, 0.5))
    lowest = minimum(x, y)
    default = fcco.losses.InvariantLogisticLoss(1).rule
    methods: list[tuple[str, fcco.Rule, int]] = [
        ("BSGD", fcco.BSGD(), 1),
        ("BSGD", fcco.BSGD(), 4),
        ("BSGD", fcco.BSGD(), 16),
    ]
    methods += [(f"default, {default}", default, 1), ("SOX(gamma=0.1)", fcco.SOX(0.1), 1)]
    names, gaps = [], []
    for name, rule, draws in methods:
        names.append(f"{name}, {draws} a visit")
        gaps.append(min(train(x, y, rule, draws, passes, lr) for lr in rates) - lowest)
        print(f"{names[-1]:<34} gap {gaps[-1]:.5f}")
    figure = Figure(figsize=(6, 2.8), layout="constrained")
    ax = figure.subplots()
    ax.barh(names, gaps)
    ax.set(xlabel=f"gap to the optimum after {passes} draws for each example", xscale="log")
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
