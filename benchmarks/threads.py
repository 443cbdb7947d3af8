"""Exact gradients on one thread and on several: seconds, their ratio, and whether they are the same to the last bit.

    python benchmarks/threads.py [--threads 2] [--rounds 5] [--quick]

Seconds are the least of some rounds, which alternate between the numbers of threads. The last column is the share of
the CPU time that the calling thread spends while others work: what limits the ratio, also on a busy machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fcco.functional import average_precision_loss, ndcg_loss, p_norm_push_loss
from harness.timing import timed

Objective = Callable[[Tensor], Tensor]


def objectives(rows: int, pairs_of: int) -> dict[str, tuple[Objective, Tensor]]:
    """Return objectives by sorting on ``rows`` rows, and by all pairs on ``pairs_of``, with their scores."""
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(rows, generator=random, dtype=torch.float64)
    target, relevance = torch.rand(rows, generator=random) < 0.1, torch.randint(0, 4, (rows,), generator=random)
    few, positive, query = scores[:pairs_of], target[:pairs_of], torch.arange(rows) // 100
    precision, ndcg = partial(average_precision_loss, temperature=0.0625), partial(ndcg_loss, relevance=relevance)
    return {
        f"average precision, ramp, {rows:,} rows": (partial(precision, target=target), scores),
        f"average precision, sigmoid, {pairs_of:,} rows": (
            partial(precision, target=positive, surrogate="sigmoid"),
            few,
        ),
        f"p-norm push, logistic, {pairs_of:,} rows": (
            partial(p_norm_push_loss, target=positive, surrogate="logistic"),
            few,
        ),
        f"NDCG, ramp, {rows:,} rows, lists of 100": (partial(ndcg, query=query), scores),
        f"NDCG, sigmoid, {rows:,} rows, lists of 100": (partial(ndcg, query=query, surrogate="sigmoid"), scores),
        f"NDCG, ramp, {rows:,} rows, one list": (partial(ndcg, query=torch.zeros_like(query)), scores),
    }


def gradient(objective: Objective, scores: Tensor) -> Tensor:
    leaf = scores.clone().requires_grad_()
    return torch.autograd.grad(objective(leaf), leaf)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Exact gradients on one thread and on several.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    given = parser.parse_args()
    heads = "milliseconds of a gradient", "1 thread", f"{given.threads} threads", "ratio", "same", "alone"
    print("{:<48}{:>10}{:>12}{:>7}{:>7}{:>7}".format(*heads))
    for name, (objective, scores) in objectives(*((20_000, 4000) if given.quick else (300_000, 20_000))).items():
        least, found, alone = {1: float("inf"), given.threads: float("inf")}, {}, 1.0
        for _ in range(given.rounds):
            for threads in least:
                torch.set_num_threads(threads)
                own, everyone = time.thread_time(), time.process_time()
                seconds, found[threads] = timed(partial(gradient, objective, scores))
                own, everyone = time.thread_time() - own, time.process_time() - everyone
                least[threads], alone = min(least[threads], seconds), own / everyone
        one, several = least.values()
        same = torch.equal(*found.values())
        line = f"{name:<48}{one * 1e3:>10.1f}{several * 1e3:>12.1f}{one / several:>7.2f}{same!s:>7}{alone:>7.0%}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
