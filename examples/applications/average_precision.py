"""Rare positives: cross entropy, and average precision after cross entropy, on shuffled and on balanced batches.

    python examples/applications/average_precision.py [--figure average_precision.png] [--quick]

On covtype (see ``fcco_reproduce.datasets``), class 5 against the rest, 1.6% of the rows; ``--quick`` takes made data.
benchmarks/after_cross_entropy.py compares the same on several data sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import make_classification
from sklearn.metrics import average_precision_score, precision_recall_curve
from torch import Tensor, nn

import fcco
from fcco.data import PositiveNegativeSampler
from fcco_reproduce import datasets

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def load(quick: bool) -> tuple[Tensor, Tensor]:
    if quick:
        x, y = make_classification(4000, 20, n_informative=6, weights=[0.97], random_state=0)
    else:
        data = datasets.load_covtype()
        x, y = data.x[::10], data.y[::10] == 4
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x, dtype=torch.float32)[order].clamp(-5, 5), torch.tensor(y).long()[order]


def cross_entropy(logits: Tensor, y: Tensor, _: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, y.float())


def after_cross_entropy(y: Tensor, switch: int) -> Loss:
    precision, steps = fcco.losses.AveragePrecisionLoss.from_targets(y, temperature="auto"), count()
    return lambda logits, target, rows: (cross_entropy if next(steps) < switch else precision)(logits, target, rows)


def train(x: Tensor, y: Tensor, loss_fn: Loss, batches: Iterable[Tensor], steps: int, lr: float) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for rows in batches:
        optimizer.zero_grad()
        loss_fn(model(x[rows]), y[rows], rows).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description="Average precision from batches of 64.")
    parser.add_argument("--figure", type=Path, default=Path("average_precision.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    passes, rates = (3, (0.008,)) if given.quick else (20, (0.008, 0.016, 0.032, 0.064))
    x, y = load(given.quick)
    cuts = [len(x) * 3 // 5, len(x) // 5, len(x) - len(x) * 3 // 5 - len(x) // 5]
    (x, valid_x, test_x), (y, valid_y, test_y) = x.split(cuts), y.split(cuts)
    print(f"{len(x):,} rows to train on, {int(y.sum())} of them positive, batches of 32 + 32")
    sampler = PositiveNegativeSampler(y, batch=64, outer="positive", drop_last=True, seed=0)
    balanced = [torch.tensor(rows) for _ in range(passes) for rows in sampler]
    generator = torch.Generator().manual_seed(0)
    random = [torch.randint(len(x), (64,), generator=generator) for _ in balanced]
    methods = {
        "cross entropy": (len(balanced), random),
        "balanced cross entropy": (len(balanced), balanced),
        "AP after cross entropy": (len(balanced) // 2, random),
        "AP after balanced cross entropy": (len(balanced) // 2, balanced),
    }
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    ax = figure.subplots()
    for name, (switch, batches) in methods.items():
        models = {}
        for lr in rates:
            model = train(x, y, after_cross_entropy(y, switch), batches, len(batches), lr)
            models[average_precision_score(valid_y, model(valid_x).detach())] = model
        best = models[max(models)]
        scores = best(test_x).detach()
        print(f"{name:<32} validation AP {max(models):.4f}, test AP {average_precision_score(test_y, scores):.4f}")
        precision, recall, _ = precision_recall_curve(test_y, scores)
        ax.plot(recall, precision, label=name)
    ax.set(xlabel="recall", ylabel="precision", title="test data, at the lr that is best on validation data")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
