"""The soft nearest neighbour loss by an objective of one's own: f and g on a page, with inner sets made of batches.

    python examples/soft_nearest_neighbours.py [--epochs 20]

The loss of an example is -log of the share of its own class among its neighbours, at a temperature: g has two values,
the mean of e^{-distance / T} over the examples of the class, and over all. ``CoupledLoss.pooled`` makes estimates from
a pool, which has the batch, the batches of other ranks, and what the memory holds. The table lowers the objective of
the training data, from .096 to .060; the accuracy of nearest neighbours on test data is even, .963 and .958.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

import fcco

TEMPERATURE, BATCH = 1.0, 16
NOTHING = -1e9  # the logarithm of 0, but with a gradient


def estimate(pool: fcco.Pool) -> fcco.Estimate:
    """Estimate log g of the batch's own examples, of shape (B, 2); one without a mate in the pool has no term."""
    (z, labels), own = pool.joined(), len(pool.own[0])
    rows = torch.arange(len(z)) if pool.rows is None else pool.rows
    other = rows[:own, None] != rows
    logits = -torch.cdist(z[:own], z).square() / TEMPERATURE
    mates = other & (labels[:own, None] == labels)
    sums = [logits.masked_fill(~where, NOTHING).logsumexp(1) for where in (mates, other)]
    known = mates.any(1)
    inner = torch.stack(sums, 1) - other.sum(1, keepdim=True).log()
    share = known.to(z.dtype)
    return fcco.Estimate(torch.where(known.unsqueeze(1), inner, 0.0), share, share.sum())


def outer(log_u: Tensor) -> Tensor:
    """-log(u_1 / u_2)."""
    return log_u[:, 1] - log_u[:, 0]


def exact(z: Tensor, labels: Tensor) -> float:
    """The objective on all data: one pool."""
    made = estimate(fcco.Pool((z, labels)))
    return float((outer(made.inner) * made.weight).sum())


def train(x: Tensor, y: Tensor, rule: fcco.Rule, epochs: int) -> nn.Module:
    """Train a small network on batches of 16."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    loss_fn = fcco.CoupledLoss(outer, len(x), dim=2, rule=rule, log=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss_fn.pooled(estimate, (net(x[index]), y[index]), index).backward()
            optimizer.step()
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description="Soft nearest neighbours of scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)
    seen, new = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split([900, len(x) - 900])
    rules: dict[str, fcco.Rule] = {"in-batch": fcco.BSGD(), "SOAP": fcco.SOAP(gamma=0.7)}
    for name, rule in rules.items():
        net = train(x[seen], y[seen], rule, epochs)
        with torch.no_grad():
            z, z_new = net(x[seen]), net(x[new])
        accuracy = KNeighborsClassifier(5).fit(z, y[seen]).score(z_new, y[new])
        print(f"{name:<8} objective {exact(z, y[seen]):.4f}, accuracy of 5 nearest neighbours {accuracy:.4f}")


if __name__ == "__main__":
    main()
