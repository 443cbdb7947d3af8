"""A ranker trained with small batches, by the in-batch loss and by SOX, next to the objective on all pairs.

    python examples/demo.py [--steps 1000]

Every method on three objectives, tuned alike, with figures and a report: fcco reproduce quick.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor

import fcco
from fcco.data import PositiveNegativeSampler


def load() -> tuple[Tensor, Tensor]:
    bunch = load_breast_cancer()
    x = bunch.data[:, :10]
    return torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32), torch.tensor(bunch.target == 0).long()


def train(x: Tensor, malignant: Tensor, rule: fcco.Rule, beta: float, steps: int) -> float:
    """p-norm push, benign cases at the top of the list costing most, from 4 + 4 cases a step."""
    w = torch.zeros(x.shape[1], requires_grad=True)
    loss_fn = fcco.losses.PNormPushLoss.from_targets(malignant, p=4, rule=rule)
    optimizer = fcco.optim.MovingAverageSGD([w], lr=0.003, beta=beta)
    sampler = PositiveNegativeSampler(malignant, positives=4, negatives=4, seed=0)
    step = 0
    while step < steps:
        for rows in sampler:
            index = torch.as_tensor(rows)
            optimizer.zero_grad()
            loss_fn(x[index] @ w, malignant[index], index).backward()
            optimizer.step()
            step += 1
            if step == steps:
                break
    return float(fcco.functional.p_norm_push_loss(x @ w.detach(), malignant, p=4))


def main() -> None:
    parser = argparse.ArgumentParser(description="p-norm push on scikit-learn's breast-cancer data.")
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    x, malignant = load()
    print(f"p-norm push of {len(x)} cases, exact, after {steps} steps of 4 + 4 (at the start: 1)")
    print(f"in-batch loss  {train(x, malignant, fcco.BSGD(), 1.0, steps):.4f}")
    print(f"SOX            {train(x, malignant, fcco.SOX(gamma=0.1), 0.1, steps):.4f}")


if __name__ == "__main__":
    main()
