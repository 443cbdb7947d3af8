"""What the exact objectives that go through all pairs take of memory, on top of their input: value and gradient.

    python benchmarks/memory.py [--quick]

A million examples (of embeddings, a million rows of 32 numbers; of the contrastive losses, half a million pairs of
them), float32, the default chunk. All pairs would take hours, but each chunk takes what the one before it took: of
every pass the first three are gone through. Each objective has a process of its own, and its peak is what the kernel
says of it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import torch
from torch import Tensor

import fcco.functional as exact
from fcco.functional._chunks import Place, Places

Problem = tuple[Callable[..., Tensor], list[Tensor]]
"""An objective of some tensors, and the tensors."""


def first_chunks(places: Places) -> Iterator[Place]:
    return islice(map(places.at, range(places.count)), 3)


def embeddings(objective: Callable[..., Tensor], n: int, d: int = 32) -> Problem:
    labels = torch.randint(10, (n,))
    return lambda z: objective(z, labels), [torch.randn(n, d)]


def views(mode: str, n: int, d: int = 32) -> Problem:
    return partial(exact.contrastive_loss, mode=mode), [torch.randn(n // 2, d) for _ in range(2)]


def scores(objective: Callable[..., Tensor], n: int) -> Problem:
    target = torch.randint(2, (n,))
    return lambda h: objective(h, target, surrogate="sigmoid"), [torch.randn(n)]


def one_list(n: int) -> Problem:
    relevance, query = torch.randint(3, (n,)), torch.zeros(n, dtype=torch.int64)
    return lambda h: exact.ndcg_loss(h, relevance, query, surrogate="sigmoid"), [torch.randn(n)]


OBJECTIVES: dict[str, Callable[[int], Problem]] = {
    "nca": partial(embeddings, exact.nca_loss),
    "contrastive, two views": partial(views, "two_views"),
    "contrastive, cross-modal": partial(views, "cross_modal"),
    "average precision, sigmoid": partial(scores, exact.average_precision_loss),
    "p-norm push, sigmoid": partial(scores, exact.p_norm_push_loss),
    "partial AUC, sigmoid": partial(scores, exact.partial_auc_loss),
    "NDCG, sigmoid, one list": one_list,
}


def peak() -> float:
    """MB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measure(name: str, n: int) -> tuple[float, float]:
    """MB on top of the input: of the value, and of value and gradient."""
    torch.set_num_threads(1)
    setattr(Places, "__iter__", first_chunks)  # noqa: B010
    for size in (1000, n):  # what is loaded by the first call of all does not count
        objective, tensors = OBJECTIVES[name](size)
        inputs = [tensor.requires_grad_() for tensor in tensors]
        before = peak()
        loss = objective(*inputs)
        after_value = peak()
        loss.backward()
    return after_value - before, peak() - before


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of the exact objectives at a million examples.")
    parser.add_argument("--quick", action="store_true", help="ten thousand examples, to see that it runs")
    n = 10_000 if parser.parse_args().quick else 1_000_000
    print(f"{f'n = {n:,}':<30}{'value':>10}{'value and gradient':>22}")
    for name in OBJECTIVES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            value, both = pool.apply(measure, (name, n))
        print(f"{name:<30}{value:>7.0f} MB{both:>19.0f} MB", flush=True)


if __name__ == "__main__":
    main()
