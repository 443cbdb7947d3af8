"""The soft nearest neighbour loss by an objective of one's own, with a table and with a memory.

    python examples/soft_nearest_neighbours.py [--epochs 20]

The loss of an example is -log of the share of its own class among its neighbours, at a temperature: g has two values,
the means over all others of e^{-distance / T}, of its class alone and of all. An example without a mate in the batch
has no term.
"""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

import fcco

TEMPERATURE, BATCH = 1.0, 16


class Labelled(NamedTuple):
    """What a call of the loss takes."""

    z: Tensor
    label: Tensor


class SoftNearestNeighbours(fcco.Objective):
    """F = -mean of log(g_i1 / g_i2)."""

    Columns, dim, log = Labelled, 2, True

    def outer(self, log_u: Tensor) -> Tensor:
        """Return f."""
        return log_u[:, 1] - log_u[:, 0]

    def is_anchor(self, x: Labelled) -> Tensor:
        """Return who has a term."""
        return (x.label[:, None] == x.label).sum(1) > 1

    def estimate(self, anchors: Labelled, candidates: Labelled, weights: Tensor) -> Tensor:
        """Return log g."""
        logits = weights.log() - torch.cdist(anchors.z, candidates.z).square() / TEMPERATURE
        mates = logits.masked_fill(anchors.label[:, None] != candidates.label, -math.inf)
        return torch.stack([fcco.functional.logsumexp(mates), fcco.functional.logsumexp(logits)], 1)


def train(x: Tensor, y: Tensor, loss_fn: fcco.ObjectiveLoss, epochs: int) -> nn.Module:
    """Train a small network on batches of 16."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss_fn(net(x[index]), y[index], index=index).backward()
            optimizer.step()
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description="Soft nearest neighbours of scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)
    seen, new = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split([900, len(x) - 900])
    for name, rule, memory in (
        ("in-batch", fcco.BSGD(), 0),
        ("table", fcco.SOAP(gamma=0.7), 0),
        ("memory", fcco.BSGD(), 256),
    ):
        loss_fn = fcco.ObjectiveLoss(SoftNearestNeighbours(), len(seen), rule=rule, memory=memory)
        net = train(x[seen], y[seen], loss_fn, epochs)
        with torch.no_grad():
            z, z_new = net(x[seen]), net(x[new])
            exact = loss_fn.eval()(z, y[seen])  # on all data, the objective itself
        accuracy = KNeighborsClassifier(5).fit(z, y[seen]).score(z_new, y[new])
        print(f"{name:<8} objective {exact:.4f}, accuracy of 5 nearest neighbours {accuracy:.4f}")


if __name__ == "__main__":
    main()
