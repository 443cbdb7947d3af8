"""Ranking one long list by NDCG, from batches of 64 of its items.

    python examples/applications/ranking.py [--figure ranking.png] [--quick]

A smooth NDCG of a list compares all pairs of its items. ``NDCGLoss`` keeps an estimate of the rank of every relevant
item instead, so that a batch is enough; the in-batch loss takes the batch for the list.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import fcco
from fcco.data import PositiveNegativeSampler
from fcco.functional import ndcg_loss


def make_list(n: int, seed: int, features: int = 20) -> tuple[Tensor, Tensor]:
    """Items of which the best 3% are relevant, by 1 to 4, in the order of a linear score with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator)
    score = x.mean(1) * features**0.5 + 0.5 * torch.randn(n, generator=generator)
    place = score.argsort(descending=True).argsort() / n
    return x, torch.stack([(place < share).float() for share in (0.03, 0.01, 0.004, 0.001)]).sum(0)


def ndcg(scores: Tensor, relevance: Tensor, k: int = 10) -> float:
    """NDCG@k with gains 2^y - 1."""
    gain, discount = relevance.exp2() - 1, 1 / torch.arange(2, k + 2).log2()
    best = gain.sort(descending=True).values[:k] @ discount
    return float(gain[scores.argsort(descending=True)[:k]] @ discount / best)


def train(x: Tensor, y: Tensor, loss_fn: Any, lr: float, passes: int, held_out: tuple[Tensor, Tensor]) -> list[float]:
    """NDCG@10 of a list that was not seen, after each pass over the relevant items."""
    w = torch.zeros(x.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=lr)
    sampler = PositiveNegativeSampler(y > 0, batch=64, seed=0)
    query, curve = torch.zeros(len(x), dtype=torch.long), []
    for _ in range(passes):
        for batch in sampler:
            rows = torch.tensor(batch)
            optimizer.zero_grad()
            loss_fn(x[rows] @ w, y[rows], query[rows], rows).backward()
            optimizer.step()
        curve.append(ndcg(held_out[0] @ w.detach(), held_out[1]))
    print(f"    exact objective {ndcg_loss(x @ w.detach(), y, query).item():.4f}, NDCG@10 {curve[-1]:.3f}")
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description="NDCG of a long list from small batches.")
    parser.add_argument("--figure", type=Path, default=Path("ranking.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    n, passes = (1_000, 5) if given.quick else (20_000, 40)
    (x, y), held_out = make_list(n, 0), make_list(n, 1)
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    losses = {
        "in-batch NDCG": lambda: fcco.losses.NDCGLoss(n, rule=fcco.BSGD()),
        "NDCGLoss": lambda: fcco.losses.NDCGLoss.from_targets(y, torch.zeros(n, dtype=torch.long)),
    }
    for name, make in losses.items():
        curves = []
        for lr in (0.004, 0.016):
            print(f"{name}, lr {lr}")
            curves.append(train(x, y, make(), lr, passes, held_out))
        ax.plot(range(1, passes + 1), max(curves, key=lambda curve: curve[-1]), label=name)
    ax.set(xlabel="passes over the relevant items", ylabel="NDCG@10, another list", title=f"one list of {n:,} items")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
