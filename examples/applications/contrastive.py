"""Contrastive learning from batches of 16: InfoNCE among the images of a batch, and ``ContrastiveLoss`` among all.

    python examples/applications/contrastive.py [--figure contrastive.png] [--quick]

On 4,000 images of CIFAR-10 (see ``fcco_reproduce.datasets``) at 16 x 16 pixels; ``--quick`` takes
scikit-learn's digits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import fcco
from fcco.functional import contrastive_loss
from fcco_reproduce import datasets

BATCH = 16


def load(quick: bool) -> tuple[Tensor, Tensor]:
    if quick:
        bunch = load_digits()
        images = torch.tensor(bunch.images[:180] / 16, dtype=torch.float32).unsqueeze(1)
        return F.interpolate(images, 16).repeat(1, 3, 1, 1), torch.tensor(bunch.target[:180])
    data = datasets.load_cifar10()
    return F.avg_pool2d(torch.tensor(data.x[:6000]).float() / 255, 2), torch.tensor(data.y[:6000])


def view(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each image cropped to 12 x 12 somewhere, mirrored or not, and brighter or darker."""
    draw = lambda high: torch.randint(high, (len(x), 1, 1, 1), generator=generator)  # noqa: E731
    across = torch.arange(12)
    columns = torch.where(draw(2) == 1, across.flip(0), across) + draw(5)
    rows = across.view(1, 1, 12, 1) + draw(5)
    cropped = x[torch.arange(len(x)).view(-1, 1, 1, 1), torch.arange(3).view(1, 3, 1, 1), rows, columns]
    return cropped + 0.4 * torch.rand(len(x), 1, 1, 1, generator=generator) - 0.2


def encoder() -> tuple[nn.Module, nn.Module]:
    """Images to 64 features, and those to the 32 dimensions that the loss sees."""
    sizes = ((3, 16), (16, 32), (32, 64))
    layers = [layer for a, b in sizes for layer in (nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(4, b), nn.ReLU())]
    features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return features, nn.Sequential(features, nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))


def train(x: Tensor, loss_fn: nn.Module, lr: float, passes: int) -> tuple[nn.Module, list[float]]:
    """An encoder, and the loss of a pair of views of every image, among all images, after each pass."""
    torch.manual_seed(0)
    features, model = encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(x) // BATCH * passes)
    generator, fixed = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    pair = [view(x, fixed) for _ in range(2)]
    curve = []
    for _ in range(passes):
        for rows in torch.randperm(len(x), generator=generator)[: len(x) // BATCH * BATCH].view(-1, BATCH):
            first, second = model(torch.cat([view(x[rows], generator) for _ in range(2)])).chunk(2)
            optimizer.zero_grad()
            loss_fn(first, second, rows).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            curve.append(float(contrastive_loss(*map(model, pair))))
    return features, curve


def main() -> None:
    parser = argparse.ArgumentParser(description="Contrastive learning from batches of 16.")
    parser.add_argument("--figure", type=Path, default=Path("contrastive.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    passes = 1 if given.quick else 5
    x, test_x, y, test_y = train_test_split(*load(given.quick), test_size=1 / 3, random_state=0)
    n = len(x)
    print(f"{n:,} images without labels, batches of {BATCH}")
    losses: dict[str, nn.Module] = {
        "InfoNCE": fcco.losses.ContrastiveLoss(n, include_positive=True, own_term="sampled", rule=fcco.BSGD()),
        "ContrastiveLoss": fcco.losses.ContrastiveLoss(n),
    }
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    for name, loss_fn in losses.items():
        features, curve = train(x, loss_fn, 0.002, passes)
        with torch.no_grad():
            inputs = [features(part[..., 2:14, 2:14]).numpy() for part in (x, test_x)]
        probe = LogisticRegression(max_iter=1000).fit(inputs[0], y.numpy())
        accuracy = probe.score(inputs[1], test_y.numpy())
        print(f"{name:<16} loss among all {curve[-1]:.4f}, accuracy of a linear probe {accuracy:.4f}")
        ax.plot(range(1, passes + 1), curve, label=name, marker="o")
    ax.set(xlabel="passes", ylabel="loss among all images", title="batches of 16")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
