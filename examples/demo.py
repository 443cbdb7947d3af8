"""An embedding of handwritten digits, trained with eight images a step: the loss of the batch, and fcco's.

    python examples/demo.py [--quick]

NCA draws each digit's neighbour with a probability that falls with the distance, and maximises the probability that the
neighbour is of the same class. The neighbours of an image are all other images, of which a small batch has few. Both
losses see the same batches. Each has the learning rate that is best for its training objective on the first seed. The
picture is saved as results/demo.png. All methods on three objectives, with a report: fcco reproduce quick.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import mean

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import fcco
from fcco.estimators import NeighborhoodComponentsAnalysis

DIMENSIONS, PASSES = 8, 10
LOSSES = {"loss of the batch": {"rule": fcco.BSGD()}, "fcco.losses.NCALoss": {}}


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training and test images with their digits: every other image."""
    bunch = load_digits()
    x = torch.tensor(bunch.data / 16, dtype=torch.float32)
    y = torch.tensor(bunch.target)
    return x[::2], y[::2], x[1::2], y[1::2]


def train(x: Tensor, y: Tensor, options: dict, batch: int, passes: int, lr: float, seed: int) -> list[Tensor]:
    """Return the map at the start and after every pass."""
    n, steps = len(x), max(len(x) // batch, 1)
    weight = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:DIMENSIONS].clone().requires_grad_()  # PCA
    loss_fn = fcco.losses.NCALoss(n, **options)
    optimizer = fcco.optim.MovingAverageSGD([weight], lr=lr, beta=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, passes * steps)
    draws = torch.Generator().manual_seed(seed)
    kept = [weight.detach().clone()]
    for step in range(passes * steps):
        rows = torch.randint(n, (batch,), generator=draws)
        optimizer.zero_grad()
        loss_fn(x[rows] @ weight.T, y[rows], rows).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % steps == 0:
            kept.append(weight.detach().clone())
    return kept


def objective(x: Tensor, y: Tensor, weight: Tensor) -> float:
    """Return the mean probability of a neighbour of the same class, over all training images."""
    found = -float(fcco.functional.nca_loss(x @ weight.T, y))
    return found if math.isfinite(found) else 0.0


def accuracy(data: tuple[Tensor, Tensor, Tensor, Tensor], weight: Tensor) -> float:
    """Return the share of test images whose three nearest training images vote for the right digit."""
    x, y, x_test, y_test = data
    nearest = torch.cdist(x_test @ weight.T, x @ weight.T).topk(3, largest=False).indices
    return float((torch.mode(y[nearest], 1).values == y_test).float().mean())


def compare(data: tuple[Tensor, Tensor, Tensor, Tensor], batches: list[int], seeds: int, passes: int) -> dict:
    """Return the runs of both losses at all batch sizes, each at its best learning rate."""
    x, y = data[:2]
    found = {}
    for batch in batches:
        for name, options in LOSSES.items():
            rates = {lr: train(x, y, options, batch, passes, lr, seed=0) for lr in (0.125, 0.5, 2.0, 8.0)}
            lr = max(rates, key=lambda lr: objective(x, y, rates[lr][-1]))
            others = [train(x, y, options, batch, passes, lr, seed) for seed in range(1, seeds)]
            found[batch, name] = [rates[lr], *others]
            ends = [run[-1] for run in found[batch, name]]
            p, right = mean(objective(x, y, end) for end in ends), mean(accuracy(data, end) for end in ends)
            print(f"{batch:5}  {name:20} {p:22.3f} {right:20.3f}   {lr:g}", flush=True)
    return found


def draw(data: tuple[Tensor, Tensor, Tensor, Tensor], found: dict, exact: Tensor, path: Path) -> None:
    """Draw the training objective over passes at the smallest batch, and its end at every batch size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    batches = sorted({batch for batch, _ in found})
    for name in LOSSES:
        runs = found[batches[0], name]
        left.plot([mean(objective(*data[:2], run[k]) for run in runs) for k in range(len(runs[0]))], label=name)
        right.plot(batches, [mean(objective(*data[:2], run[-1]) for run in found[b, name]) for b in batches], "o-")
    left.axhline(objective(*data[:2], exact), color="0.4", linestyle="--", label="all images in every step")
    right.axhline(objective(*data[:2], exact), color="0.4", linestyle="--")
    left.set(title=f"training, {batches[0]} images a step", xlabel="passes", ylabel="mean p of the right class")
    right.set(title=f"after {len(runs[0]) - 1} passes", xlabel="images a step", xscale="log")
    right.set_xticks(batches, map(str, batches))
    right.minorticks_off()
    left.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="NCA of digits with small batches.")
    parser.add_argument("--quick", action="store_true", help="one batch size, one seed and one pass")
    quick = parser.parse_args().quick
    data = load()
    print(f"NCA of {len(data[0])} digits in {DIMENSIONS} dimensions\n")
    print("batch  loss                  mean p, training images  3-NN, test images   lr")
    found = compare(data, [8] if quick else [8, 16, 32], 1 if quick else 3, 1 if quick else PASSES)
    estimator = NeighborhoodComponentsAnalysis(DIMENSIONS, init="pca", max_iter=1000, random_state=0)
    exact = torch.tensor(estimator.fit(data[0].numpy(), data[1].numpy()).components_, dtype=torch.float32)
    print(f"  all  exact, L-BFGS        {objective(*data[:2], exact):22.3f} {accuracy(data, exact):20.3f}")
    path = Path("results/demo.png")
    draw(data, found, exact, path)
    print(f"\npicture: {path}")


if __name__ == "__main__":
    main()
