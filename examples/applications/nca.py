"""Metric learning: a map of digits in which neighbours are of one class, from batches of 32, by three losses.

    python examples/applications/nca.py [--figure nca.png] [--quick]

In-batch NCA asks for neighbours among the 31 others of a batch; ``NCALoss`` keeps an estimate of every image's whole
neighbourhood. Both are next to scikit-learn's NCA, which takes all pairs at every step.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from torch import Tensor

import fcco
from fcco.functional import nca_loss

DIMENSIONS, BATCH = 16, 32


def train(x: Tensor, y: Tensor, rule: fcco.Rule | None, lr: float, passes: int) -> tuple[Tensor, list[float]]:
    """A map from principal components, and 1 - mean p over all pairs after each pass."""
    a = torch.tensor(PCA(DIMENSIONS).fit(x.numpy()).components_.T.copy(), requires_grad=True)
    loss_fn = fcco.losses.NCALoss(len(x)) if rule is None else fcco.losses.NCALoss(len(x), rule=rule)
    optimizer = fcco.optim.MovingAverageSGD([a], lr=lr, beta=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(x) // BATCH * passes)
    generator = torch.Generator().manual_seed(0)
    curve = []
    for _ in range(passes):
        for rows in torch.randperm(len(x), generator=generator)[: len(x) // BATCH * BATCH].view(-1, BATCH):
            optimizer.zero_grad()
            loss_fn(x[rows] @ a, y[rows], rows).backward()
            optimizer.step()
            schedule.step()
        curve.append(1 + nca_loss((x @ a).detach().double(), y).item())
    return a.detach(), curve


def accuracy(a: Tensor, x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> float:
    """Of the three nearest neighbours, on new images."""
    return float(KNeighborsClassifier(3).fit((x @ a).numpy(), y.numpy()).score((test_x @ a).numpy(), test_y.numpy()))


def by_scikit_learn(x: Tensor, y: Tensor, iterations: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = NeighborhoodComponentsAnalysis(DIMENSIONS, init="pca", max_iter=iterations).fit(x.numpy(), y.numpy())
    return torch.tensor(model.components_.T.copy(), dtype=torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Neighbourhood components analysis from small batches.")
    parser.add_argument("--figure", type=Path, default=Path("nca.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    n, passes, rates = (600, 2, (1.0,)) if given.quick else (1797, 20, (1.0, 2.0, 4.0))
    bunch = load_digits()
    parts = train_test_split(bunch.data[:n] / 16, bunch.target[:n], test_size=0.3, random_state=0)
    x, test_x = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
    y, test_y = (torch.tensor(part) for part in parts[2:])
    print(f"{len(x)} images to train on, batches of {BATCH}, {passes} passes")
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    for name, rule in (("in-batch", fcco.BSGD()), ("NCALoss", None)):
        runs = {}
        for lr in rates:
            runs[lr] = train(x, y, rule, lr, passes)
            print(f"{name:<12} lr {lr:<4} 1 - mean p {runs[lr][1][-1]:.4f}")
        a, curve = min(runs.values(), key=lambda run: run[1][-1])
        print(f"{name:<12} accuracy of 3 neighbours {accuracy(a, x, y, test_x, test_y):.4f}")
        ax.plot(range(1, passes + 1), curve, label=name, marker=".")
    a = by_scikit_learn(x, y, 3 if given.quick else 50)
    reached = 1 + nca_loss((x @ a).double(), y).item()
    print(f"scikit-learn 1 - mean p {reached:.4f}, accuracy {accuracy(a, x, y, test_x, test_y):.4f}")
    ax.axhline(reached, color="gray", linestyle=":", label="scikit-learn, all pairs")
    ax.set(xlabel="passes", ylabel="1 - mean p", yscale="log", title="digits, 16 dimensions, batches of 32")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
