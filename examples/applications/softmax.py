"""Softmax over many classes from a sample of them, with sparse gradients of the class table.

    python examples/applications/softmax.py [--figure softmax.png] [--quick]

A step of the dense softmax scores, and updates, every class; one of ``SoftmaxLoss`` those of the batch and 1,024 more,
drawn by frequency. The table of the classes has no momentum (``betas=(0, ...)``): ``SparseAdam`` moves a row only where
it is looked up, so that most of the momentum of a class that is seldom seen would never be used.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import fcco

FEATURES, SAMPLED, BATCH = 64, 1024, 128


def make(n: int, n_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features around the centre of a class; classes have frequencies q ∝ 1 / (k + 10)."""
    generator = torch.Generator().manual_seed(0)
    q = torch.softmax(-(torch.arange(n_classes) + 10.0).log(), 0)
    y = torch.multinomial(q, n, replacement=True, generator=generator)
    centres = torch.randn(n_classes, FEATURES, generator=generator)
    return centres[y] + 0.5 * torch.randn(n, FEATURES, generator=generator), y, q


def likelihood(table: nn.Embedding, x: Tensor, y: Tensor) -> float:
    """Mean negative log-likelihood over all classes, a few rows at a time."""
    with torch.no_grad():
        parts = zip(x.split(256), y.split(256), strict=True)
        return sum(float(F.cross_entropy(a @ table.weight.T, b, reduction="sum")) for a, b in parts) / len(x)


def train(x: Tensor, y: Tensor, q: Tensor, lr: float, steps: int, *, dense: bool) -> tuple[float, list[float]]:
    """Seconds of a step, and the likelihood at eight points of the run."""
    torch.manual_seed(0)
    table = nn.Embedding(len(q), FEATURES, sparse=not dense)
    nn.init.zeros_(table.weight)
    weights, betas = table.parameters(), (0.0, 0.999)
    if dense:
        optimizer: torch.optim.Optimizer = torch.optim.Adam(weights, lr=lr, betas=betas)
    else:
        optimizer = torch.optim.SparseAdam(weights, lr=lr, betas=betas, eps=1e-4)
    loss_fn, log_q = fcco.losses.SoftmaxLoss(len(x), len(q)), q.log()
    order = torch.randperm(len(x))
    curve, spent = [], 0.0
    for step in range(steps):
        began = time.perf_counter()
        rows = order[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        if dense:
            loss = F.cross_entropy(x[rows] @ table.weight.T, y[rows])
        else:
            drawn = torch.multinomial(q, SAMPLED, replacement=True)
            target_logit, others = (x[rows] * table(y[rows])).sum(1), x[rows] @ table(drawn).T
            loss = loss_fn(target_logit, others, rows, log_q[drawn], target=y[rows], candidates=drawn)
        loss.backward()
        optimizer.step()
        spent += time.perf_counter() - began
        if (step + 1) % (steps // 8) == 0:
            curve.append(likelihood(table, x[:1024], y[:1024]))
            print(f"  lr {lr}, step {step + 1:>3}: full negative log-likelihood {curve[-1]:.3f}")
    return spent / steps, curve


def main() -> None:
    parser = argparse.ArgumentParser(description="Softmax over many classes, sampled and dense.")
    parser.add_argument("--figure", type=Path, default=Path("softmax.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    n, n_classes, steps = (2_048, 2_000, 16) if given.quick else (8_192, 100_000, 64)
    x, y, q = make(n, n_classes)
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    for name, dense in (("dense softmax", True), ("SoftmaxLoss", False)):
        print(name)
        runs = {lr: train(x, y, q, lr, steps, dense=dense) for lr in (0.03, 0.06)}
        lr = min(runs, key=lambda lr: runs[lr][1][-1])
        seconds, curve = runs[lr]
        print(f"{name}: lr {lr}, {1000 * seconds:.1f} ms a step, full negative log-likelihood {curve[-1]:.3f}")
        ax.plot([seconds * steps * (k + 1) / 8 for k in range(8)], curve, marker="o", label=name)
    ax.set(
        xlabel="seconds", ylabel="negative log-likelihood, all classes", xscale="log", title=f"{n_classes:,} classes"
    )
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
