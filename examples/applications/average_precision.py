"""Rare positives: cross entropy, its last layer refitted for average precision, and AP after cross entropy.

    python examples/applications/average_precision.py [--figure average_precision.png] [--quick]

On covtype (see ``fcco_reproduce.datasets``), class 5 against the rest, 1.6% of the rows; ``--quick`` takes made data.
docs/top_of_list.md compares the same on many data sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import make_classification
from sklearn.metrics import average_precision_score, precision_recall_curve
from torch import Tensor, nn

import fcco
from fcco.data import PositiveNegativeSampler
from fcco.estimators import refit_head
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
    after_half = partial(fcco.losses.PretrainedAveragePrecisionLoss.from_targets, y, switch=len(balanced) // 2)
    methods: dict[str, tuple[Callable[[], Loss], list[Tensor]]] = {
        "cross entropy": (lambda: cross_entropy, random),
        "balanced cross entropy": (lambda: cross_entropy, balanced),
        "AP after cross entropy": (after_half, random),
        "AP after balanced cross entropy": (after_half, balanced),
    }
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    ax = figure.subplots()
    for name, (make, batches) in methods.items():
        models = {}
        for lr in rates:
            model = train(x, y, make(), batches, len(batches), lr)
            models[average_precision_score(valid_y, model(valid_x).detach())] = model
        best = models[max(models)]
        scores = best(test_x).detach()
        print(f"{name:<32} validation AP {max(models):.4f}, test AP {average_precision_score(test_y, scores):.4f}")
        if make() is cross_entropy:
            body, head = best[:-2], best[-2]
            assert isinstance(head, nn.Linear)
            found = refit_head(head, body(x), y, valid=(body(valid_x), valid_y))
            what, refitted = "refitted" if found.changed else "left as it is", best(test_x).detach()
            print(f"    its last layer {what}: test AP {average_precision_score(test_y, refitted):.4f}")
        precision, recall, _ = precision_recall_curve(test_y, scores)
        ax.plot(recall, precision, label=name)
    ax.set(xlabel="recall", ylabel="precision", title="test data, at the lr that is best on validation data")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
