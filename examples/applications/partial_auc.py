"""Few false alarms: a network trained for the part of the ROC curve with a false positive rate of at most .3.

    python examples/applications/partial_auc.py [--figure partial_auc.png] [--quick]

On covtype (see ``fcco_reproduce.datasets``), class 5 against the rest, 1.6% of the rows; ``--quick`` takes made data.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor, nn

import fcco
from fcco.data import PositiveNegativeSampler
from fcco_reproduce import datasets

RATE = 0.3
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


def partial_auc(y: Tensor, rule: fcco.Rule | None = None) -> Loss:
    """With cross entropy, which brings up positives that stand far below."""
    loss_fn = fcco.losses.PartialAUCLoss.from_targets(y, surrogate="sigmoid", temperature=0.3, rule=rule)
    return lambda logits, y, rows: loss_fn(logits, y, rows) + cross_entropy(logits, y, rows)


def train(x: Tensor, y: Tensor, loss_fn: Loss, batches: list[Tensor], lr: float) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    for rows in batches:
        optimizer.zero_grad()
        loss_fn(model(x[rows]), y[rows], rows).backward()
        optimizer.step()
        schedule.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="One-way partial AUC from batches of 64.")
    parser.add_argument("--figure", type=Path, default=Path("partial_auc.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    passes, rates = (3, (0.008,)) if given.quick else (20, (0.008, 0.016, 0.032, 0.064))
    x, y = load(given.quick)
    cuts = [len(x) * 3 // 5, len(x) // 5, len(x) - len(x) * 3 // 5 - len(x) // 5]
    (x, valid_x, test_x), (y, valid_y, test_y) = x.split(cuts), y.split(cuts)
    print(f"{len(x):,} rows to train on, {int(y.sum())} of them positive, batches of 32 + 32")
    sampler = PositiveNegativeSampler(y, batch=64, outer="positive", drop_last=True, seed=0)
    batches = [torch.tensor(rows) for _ in range(passes) for rows in sampler]
    methods: dict[str, Callable[[], Loss]] = {
        "balanced cross entropy": lambda: cross_entropy,
        "in-batch pAUC": lambda: partial_auc(y, rule=fcco.BSGD()),
        "PartialAUCLoss": lambda: partial_auc(y),
    }
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    ax = figure.subplots()
    for name, make in methods.items():
        models = {}
        for lr in rates:
            model = train(x, y, make(), batches, lr)
            models[roc_auc_score(valid_y, model(valid_x).detach(), max_fpr=RATE)] = model
        scores = models[max(models)](test_x).detach()
        area = roc_auc_score(test_y, scores, max_fpr=RATE)
        print(f"{name:<23} pAUC({RATE}) on validation data {max(models):.4f}, on test data {area:.4f}")
        false_rate, true_rate, _ = roc_curve(test_y, scores)
        ax.plot(false_rate, true_rate, label=name)
    ax.set(xlim=(0, RATE), xlabel="false positive rate", ylabel="true positive rate", title="test data")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
