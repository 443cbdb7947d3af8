"""What remembering four batches costs: a step of a loss with a memory as a ratio to the same loss without one.

    python benchmarks/memory_overhead.py [--quick]

Forward and backward on outputs alone, at a batch of 64, on one thread: lower deciles over single calls, in runs that
alternate between the two sides. *In-batch* is the loss without table and memory (``rule=fcco.BSGD()``); *table* is the
loss with ``memory=0``.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fcco
from fcco import losses
from harness.timing import Step, compare_calls

N, BATCH, BATCHES = 100_000, 64, 4


def columns(kind: str, generator: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs of a batch, which are differentiable, and what belongs to them."""
    label = torch.arange(BATCH) % 2
    if kind == "contrastive":
        return [torch.randn(BATCH, 16, generator=generator) for _ in range(2)], []
    if kind == "nca":
        return [0.1 * torch.randn(BATCH, 16, generator=generator)], [label]
    scores = 0.1 * torch.randn(BATCH, generator=generator)
    return [scores], [torch.rand(BATCH, generator=generator), label] if kind == "cox" else [label]


def make_step(loss: Callable[..., Tensor], kind: str) -> Step:
    """Return a step on batches of ever new rows."""
    generator = torch.Generator().manual_seed(0)
    outputs, others = columns(kind, generator)
    outputs = [part.requires_grad_() for part in outputs]
    rows = torch.randperm(N, generator=generator)[: N // BATCH * BATCH].view(-1, BATCH)
    batches = itertools.cycle(rows)

    def step() -> None:
        batch = next(batches)
        for part in outputs:
            part.grad = None
        loss(*outputs, *others, batch).backward()

    return step


CANDIDATES: dict[str, tuple[str, Callable[..., Any], int]] = {
    "average precision": ("ap", lambda **options: losses.AveragePrecisionLoss(N, N // 10, **options), 2),
    "p-norm push": ("push", lambda **options: losses.PNormPushLoss(N, **options), 2),
    "partial AUC": ("auc", lambda **options: losses.PartialAUCLoss(N, **options), 2),
    "Cox": ("cox", lambda **options: losses.CoxLoss(N, N // 2, **options), 2),
    "NCA": ("nca", lambda **options: losses.NCALoss(N, **options), 1),
    "contrastive": ("contrastive", lambda **options: losses.ContrastiveLoss(N, **options), 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a memory of four batches, as a ratio, in one run.")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it runs")
    calls = 10 if parser.parse_args().quick else 300
    torch.set_num_threads(1)
    print(f"{'loss, batch of 64':<22}{'memory':>10}{'with it':>12}{'/ in-batch':>12}{'/ table':>10}")
    for name, (kind, make, strata) in CANDIDATES.items():
        for mode in ("gradient", "estimate"):
            if (kind, mode) == ("contrastive", "gradient"):
                continue  # its memory only estimates
            memory = fcco.Memory(BATCHES * BATCH // strata, mode)
            remembering = make_step(make(memory=memory), kind)
            one = compare_calls(remembering, make_step(make(rule=fcco.BSGD()), kind), calls)
            other = compare_calls(remembering, make_step(make(memory=0), kind), calls)
            print(f"{name:<22}{mode:>10}{one.first * 1e6:>9.0f} µs{one.ratio:>12.2f}{other.ratio:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
