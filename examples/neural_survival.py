"""A small network for survival from batches of 16, with survival curves, Brier scores and concordance on test data.

    python examples/neural_survival.py [--figure neural_survival.png] [--data metabric] [--quick]

``CoxLoss`` with its default memory is compared with the in-batch loss, both with a learning rate chosen on validation
data, and with a linear model, ``CoxRegressor``. On metabric and gbsg both losses end even: batches of 16 with many
events have enough of a risk set. Where events are rare, they do not; see docs/memory.md. The data are one of DeepSurv's
sets if FCCO_DATA names a folder that has them, and made up otherwise.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import fcco
from fcco import functional
from fcco.estimators import CoxRegressor
from fcco_reproduce.datasets import load_survival

BATCH = 16


class Patients(NamedTuple):
    """Features, times and events."""

    x: Tensor
    time: Tensor
    event: Tensor

    def rows(self, which: Any) -> Patients:
        """Return some of them."""
        return Patients(*(part[which] for part in self))


def simulate(n: int, seed: int) -> Patients:
    """Make up patients whose risk is highest in the middle of a feature, which no linear model sees."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    hazard = torch.exp(1.5 * torch.exp(-2 * x[:, 0].square()) + 0.5 * x[:, 1])
    life, watched = (-torch.rand(n, generator=generator).log() / rate for rate in (hazard, 0.5))
    return Patients(x, torch.minimum(life, watched), life <= watched)


def load(name: str) -> tuple[str, Patients, Patients]:
    """Return a name of the data, and patients to train on and to test on, with standardised features."""
    try:
        if "FCCO_DATA" not in os.environ:
            raise FileNotFoundError
        sets = [load_survival(name, part) for part in ("train", "test")]
        parts = [Patients(*(torch.as_tensor(v) for v in (part.x, part.time, part.event))) for part in sets]
    except FileNotFoundError:
        name, parts = "made-up data", [simulate(1500, 0), simulate(1000, 1)]
    mean, spread = parts[0].x.mean(0), parts[0].x.std(0)
    train, test = (part._replace(x=(part.x - mean) / spread) for part in parts)
    return name, train, test


def fit(train: Patients, make_loss: Callable[[int], Any], lr: float, epochs: int) -> nn.Module:
    """Train a network by Adam, whose rate falls to 0."""
    torch.manual_seed(0)
    width = train.x.shape[1]
    net = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    loss_fn = make_loss(len(train.time))
    for _ in range(epochs):
        for index in torch.randperm(len(train.time)).split(BATCH):
            batch = train.rows(index)
            optimizer.zero_grad()
            loss_fn(net(batch.x), batch.time, batch.event, index).backward()
            optimizer.step()
        schedule.step()
    return net.eval()


def best_fit(train: Patients, make_loss: Callable[[int], Any], epochs: int, rates: list[float]) -> nn.Module:
    """Return the network of the rate with the best partial likelihood on a fifth of the data."""
    rows = torch.randperm(len(train.time), generator=torch.Generator().manual_seed(0))
    held_out, rest = (train.rows(part) for part in rows.split([len(rows) // 5, len(rows) - len(rows) // 5]))
    fits = [fit(rest, make_loss, lr, epochs) for lr in rates]
    with torch.no_grad():
        values = [float(functional.cox_loss(net(held_out.x), held_out.time, held_out.event)) for net in fits]
    return fit(train, make_loss, rates[int(np.argmin(values))], epochs)


def draw(path: Path, name: str, times: Tensor, curves: dict[str, Tensor], scores: dict[str, Tensor]) -> None:
    """Draw survival curves of patients of low, middle and high risk, and the Brier scores of all methods."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    survival = curves["CoxLoss"]
    by_risk = survival.mean(1).argsort()
    for quantile in (0.1, 0.5, 0.9):
        left.step(times, survival[by_risk[int(quantile * len(by_risk))]], where="post", label=f"{1 - quantile:.0%}")
    left.set(xlabel="time", ylabel="survival", ylim=(0, 1), title=f"{name}, CoxLoss: patients by quantile of risk")
    for method, score in scores.items():
        right.plot(times, score, label=method)
    right.set(xlabel="time", ylabel="Brier score (test)")
    left.legend()
    right.legend()
    figure.savefig(path)
    print(f"figure: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A network for survival, from small batches.")
    parser.add_argument("--figure", type=Path, default=Path("neural_survival.png"))
    parser.add_argument("--data", default="metabric", help="metabric, support, gbsg or whas")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    name, train, test = load(given.data)
    epochs, rates = (2, [3e-3]) if given.quick else (20, [3e-4, 1e-3, 3e-3, 1e-2])
    # Where the Brier score has enough patients left, both observed and not yet censored.
    times = torch.quantile(test.time[test.event].double(), torch.linspace(0.05, 0.9, 60, dtype=torch.float64)).unique()
    risks: dict[str, tuple[Tensor, Tensor]] = {}
    losses: dict[str, Callable[[int], Any]] = {
        "in-batch": lambda n: lambda risk, time, event, _: functional.cox_loss(risk, time, event),
        "CoxLoss": lambda n: fcco.losses.CoxLoss(n),
    }
    for method, make_loss in losses.items():
        net = best_fit(train, make_loss, epochs, rates)
        with torch.no_grad():
            risks[method] = net(train.x), net(test.x)
    linear = CoxRegressor().fit(train.x.numpy(), np.column_stack([train.time, train.event]))
    risks["CoxRegressor"] = torch.as_tensor(linear.predict(train.x.numpy())), torch.as_tensor(linear.predict(test.x))
    censoring = {"train_time": train.time, "train_event": train.event}
    curves, scores = {}, {}
    print(f"{name}: {len(train.time)} patients, {int(train.event.sum())} events; {len(test.time)} to test on")
    for method, (known, new) in risks.items():
        baseline = functional.baseline_hazard(known, train.time, train.event)
        curves[method] = functional.survival_function(new, baseline, times)
        scores[method] = functional.brier_score(curves[method], test.time, test.event, times, **censoring)
        integrated = functional.integrated_brier_score(curves[method], test.time, test.event, times, **censoring)
        concordance = functional.concordance_index(new, test.time, test.event)
        print(f"{method:<13} concordance {concordance:.4f}, integrated Brier score {integrated:.4f}")
    draw(given.figure, name, times, curves, scores)


if __name__ == "__main__":
    main()
