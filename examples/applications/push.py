"""Top ranking by p-norm push: how near to the exact optimum batches of 4 + 4, 16 + 16 and 64 + 64 end.

    python examples/applications/push.py [--figure push.png] [--quick]

On ijcnn1 (see ``fcco_reproduce.datasets``); ``--quick`` takes scikit-learn's breast cancer data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from torch import Tensor

import fcco
from fcco.data import PositiveNegativeSampler
from fcco.functional import p_norm_push_loss
from fcco_reproduce import datasets

PENALTY = 1e-3


def load(quick: bool) -> tuple[Tensor, Tensor]:
    if quick:
        bunch = load_breast_cancer()
        x = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
        return torch.tensor(x[:, :10], dtype=torch.float32), torch.tensor(bunch.target)
    train = datasets.split_ijcnn1(datasets.load_ijcnn1("tr")).train
    return torch.tensor(train.x), torch.tensor(train.y)


def objective(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return p_norm_push_loss(x.to(w) @ w, y) + PENALTY / 2 * w.square().sum()


def minimum(x: Tensor, y: Tensor) -> float:
    """Over all pairs, by L-BFGS."""
    w = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective(w, x, y)
        value.backward()
        return value

    optimizer.step(closure)
    return closure().item()


def train(x: Tensor, y: Tensor, half: int, passes: int, lr: float, *, table: bool) -> float:
    """The exact objective after training, with or without the table."""
    w = torch.zeros(x.shape[1], requires_grad=True)
    loss_fn = fcco.losses.PNormPushLoss.from_targets(y, rule=None if table else fcco.BSGD())
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=0.1, weight_decay=PENALTY)
    sampler = PositiveNegativeSampler(y, batch=2 * half, outer="negative", drop_last=True, seed=0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(sampler) * passes)
    for _ in range(passes):
        for batch in sampler:
            rows = torch.tensor(batch)
            optimizer.zero_grad()
            loss_fn(x[rows] @ w, y[rows], rows).backward()
            optimizer.step()
            schedule.step()
    return objective(w.detach().double(), x, y).item()


def main() -> None:
    parser = argparse.ArgumentParser(description="p-norm push from small batches.")
    parser.add_argument("--figure", type=Path, default=Path("push.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    x, y = load(given.quick)
    halves, passes = ((4, 16), 2) if given.quick else ((4, 16, 64), 10)
    rates = (0.002,) if given.quick else (0.015, 0.03, 0.06, 0.12)  # e to the 4th power of a score: small ones
    lowest = minimum(x, y)
    print(f"{len(x):,} rows, exact optimum {lowest:.5f}")
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    for name, table in (("in-batch", False), ("PNormPushLoss", True)):
        above = []
        for half in halves:
            found = min(train(x, y, half, passes, lr, table=table) for lr in rates)
            above.append(100 * (found / lowest - 1))
            print(f"{name:<14} {half} + {half}: {above[-1]:.2f}% above the optimum")
        ax.plot(halves, above, marker="o", label=name)
    ax.set(xscale="log", yscale="log", xlabel="positives = negatives in a batch", ylabel="% above the optimum")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
