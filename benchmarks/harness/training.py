"""The training loop that all methods of an application share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from torch import Tensor
from torch.optim import Optimizer


class DivergedError(Exception):
    """Training diverged: the learning rate was too large."""


def train(step: Callable[[Tensor], Tensor], batches: Iterable[Tensor], optimizers: Iterable[Optimizer]) -> float:
    """Take one step for every batch, while the learning rate falls to 0 along a cosine.

    Parameters
    ----------
    step : callable
        Maps the rows of a batch to its loss.
    batches : iterable of Tensor
        The rows of every batch. They are drawn before the clock starts.
    optimizers : iterable of Optimizer
        The optimizers, usually one, with their initial learning rates.

    Returns
    -------
    float
        The seconds of CPU time that training took.

    Raises
    ------
    DivergedError
        If a weight, or an estimate of the library, is no longer finite.
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
