"""Two objectives on scikit-learn's breast-cancer data, by every method of the paper, next to the exact optimum.

    python examples/demo.py [--steps 1000] [--seeds 3]

A linear scorer of ten features ranks the malignant cases first. p-norm push punishes benign cases at the top of the
list, average precision rewards malignant ones. Every method sees 4 + 4 cases a step and has the same grid of step
sizes, of which the best is shown. Objectives are exact, over all pairs of the data, with the penalty that bounds w.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, pstdev

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor

import fcco

BATCH, GAMMA, BETA, PENALTY, P = 4, 0.1, 0.1, 1e-3, 4
LEARNING_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Data:
    """The features of both classes."""

    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Task:
    """An objective 1/n Σ f(g_i(w)): f, and an estimate of g for outer rows from sampled rows of both classes."""

    name: str
    outer_class: str
    dim: int
    log: bool
    outer: Callable[[Tensor], Tensor]
    inner: Callable[[Data, Tensor, Tensor, Tensor, Tensor], Tensor]  # data, w, outer rows, positives, negatives

    def n(self, data: Data) -> int:
        """How many outer rows there are."""
        return len(getattr(data, self.outer_class))

    def objective(self, data: Data, w: Tensor) -> Tensor:
        """The exact objective, with the penalty: every row is sampled."""
        rows = torch.arange(self.n(data)), torch.arange(len(data.positive)), torch.arange(len(data.negative))
        return self.outer(self.inner(data, w, *rows)).mean() + PENALTY / 2 * w.square().sum()


def push_inner(data: Data, w: Tensor, rows: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Log of the mean over positives j of exp(h_i - h_j), for negatives i."""
    margins = (data.negative[rows] @ w)[:, None] - (data.positive[positives] @ w)[None, :]
    return margins.logsumexp(1) - math.log(len(positives))


def precision_inner(data: Data, w: Tensor, rows: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Smooth counts of the positives and of all cases ranked above positive i."""

    def above(rivals: Tensor) -> Tensor:
        return (1 + (rivals @ w)[None, :] - (data.positive[rows] @ w)[:, None]).relu().square()

    # i itself counts once; the other positives of the batch stand for all the others.
    others = rows[:, None] != positives[None, :]
    mean_above = (above(data.positive[positives]) * others).sum(1) / others.sum(1).clamp(min=1)
    among_positives = 1 + (len(data.positive) - 1) * mean_above
    among_negatives = len(data.negative) * above(data.negative[negatives]).mean(1)
    return torch.stack([among_positives, among_positives + among_negatives], 1)


TASKS = (
    Task("p-norm push", "negative", 1, True, lambda log_u: torch.exp(P * log_u), push_inner),
    Task("average precision", "positive", 2, False, lambda u: -u[:, 0] / u[:, 1], precision_inner),
)


def load() -> Data:
    """The ten features of the mean cell, standardised."""
    bunch = load_breast_cancer()
    x = bunch.data[:, :10]
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    malignant = torch.tensor(bunch.target == 0)
    return Data(x[malignant], x[~malignant])


def train(task: Task, data: Data, method: fcco.Method, lr: float, steps: int, seed: int) -> float:
    """The exact objective after training; infinite where the method diverged."""
    generator = torch.Generator().manual_seed(seed)
    n = task.n(data)
    loss_fn = fcco.CoupledLoss(task.outer, n, task.dim, rule=method.rule(GAMMA), log=task.log)
    w = torch.zeros(data.positive.shape[1], requires_grad=True)
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=method.beta(BETA), weight_decay=PENALTY)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        positives, negatives = (
            torch.randperm(len(x), generator=generator)[:BATCH] for x in (data.positive, data.negative)
        )
        sampled = negatives if task.outer_class == "negative" else positives
        rows = torch.arange(n) if loss_fn.rule.all_rows else sampled
        estimate = task.inner(data, w, rows, positives, negatives)
        if not estimate.isfinite().all():
            return math.inf
        optimizer.zero_grad()
        loss_fn(estimate, sampled).backward()
        optimizer.step()
        scheduler.step()
    value = task.objective(data, w.detach()).item()
    return value if math.isfinite(value) else math.inf


def optimum(task: Task, data: Data) -> float:
    """By L-BFGS on the exact objective in float64 (average precision is not convex: the minimum it finds from 0)."""
    exact = Data(data.positive.double(), data.negative.double())
    w = torch.zeros(data.positive.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=5000, tolerance_change=1e-14, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = task.objective(exact, w)
        value.backward()
        return value

    optimizer.step(closure)
    return task.objective(exact, w.detach()).item()


def compare(task: Task, data: Data, steps: int, seeds: int) -> list[str]:
    """The table of one task: a row a method, at its best learning rate."""
    start, best = task.objective(data, torch.zeros(data.positive.shape[1])).item(), optimum(task, data)
    rows = [
        task.name,
        f"{'method':<15}{'objective':>11}{'excess':>11}{'± over seeds':>14}{'lr':>7}{'g a step':>11}{'s a run':>10}",
        f"{'at the start':<15}{start:>11.4f}{start - best:>11.4f}",
        f"{'exact optimum':<15}{best:>11.4f}{0.0:>11.4f}",
    ]
    for name, method in fcco.METHODS.items():
        print(f"  {task.name}: {name} ...", flush=True)
        began = time.perf_counter()
        finals = {lr: [train(task, data, method, lr, steps, seed) for seed in range(seeds)] for lr in LEARNING_RATES}
        seconds = (time.perf_counter() - began) / (len(LEARNING_RATES) * seeds)
        lr, values = min(finals.items(), key=lambda item: mean(item[1]))
        evaluated = task.n(data) if method.rule().all_rows else BATCH
        value, spread = mean(values), pstdev(values) if math.isfinite(max(values)) else math.inf
        result = (
            f"{value:>11.4f}{value - best:>11.4f}{spread:>14.4f}{lr:>7}"
            if value < math.inf
            else f"{'diverged':>11}{'':>32}"
        )
        rows.append(f"{name:<15}{result}{evaluated:>11}{seconds:>10.2f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Every method of the paper on scikit-learn's breast-cancer data.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    data = load()
    print(f"breast cancer: {len(data.positive)} malignant (positive), {len(data.negative)} benign, 10 features")
    print(f"{arguments.steps} steps of {BATCH} + {BATCH}, gamma {GAMMA}, beta {BETA}, {arguments.seeds} seeds")
    tables = [compare(task, data, arguments.steps, arguments.seeds) for task in TASKS]
    for rows in tables:
        print("\n" + "\n".join(rows))


if __name__ == "__main__":
    main()
