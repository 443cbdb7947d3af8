"""The training loop that all methods of an application share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer


class DivergedError(Exception):
    """The lr was too large."""


def train(step: Callable[[Tensor], Tensor], batches: Iterable[Tensor], optimizers: Iterable[Optimizer]) -> float:
    """Take a step for every batch, with a cosine lr down to 0; the seconds of CPU time that it took.

    Args:
        step: the loss of a batch, from its rows.
        batches: rows, drawn beforehand so that drawing is not part of the time.
        optimizers: with their lr at the start; usually one.

    Raises:
        DivergedError: a weight, or an estimate of the library's, is no longer finite.
    """
    plan, optimizers = list(batches), list(optimizers)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    first = [group["lr"] for group in groups]
    began = time.process_time()
    for t, rows in enumerate(plan):
        for group, lr in zip(groups, first, strict=True):
            group["lr"] = lr * (1 + math.cos(math.pi * t / len(plan))) / 2
        for optimizer in optimizers:
            optimizer.zero_grad()
        try:
            step(rows).backward()
        except ValueError as error:  # the engine refuses estimates that are not finite
            if "finite" not in str(error):
                raise
            raise DivergedError from error
        for optimizer in optimizers:
            optimizer.step()
    seconds = time.process_time() - began
    for group in groups:
        if not all(bool(w.isfinite().all()) for w in group["params"]):
            raise DivergedError
    return seconds


def minimise(objective: Callable[[], Tensor], weights: list[Tensor], iterations: int = 500) -> float:
    """Minimise on all data by L-BFGS, to the end; the seconds that it took."""
    optimizer = torch.optim.LBFGS(
        weights,
        max_iter=iterations,
        tolerance_grad=1e-9,
        tolerance_change=1e-13,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective()
        value.backward()
        return value

    began = time.perf_counter()
    optimizer.step(closure)
    return time.perf_counter() - began
