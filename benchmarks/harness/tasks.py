"""Variants of a loss that are compared, and tasks to train them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

import fcco

Batches = Iterator[Tensor]


@dataclass(frozen=True)
class Variant:
    """A loss with a rule and an own term, by a short name such as "SOAP .7 exact" or "SOX .1".

    "in-batch" is the loss that practitioners use, which takes the batch for the population.
    """

    name: str

    @property
    def own_term(self) -> dict[str, str]:
        """The keyword argument for losses that have an own term."""
        last = self.name.split()[-1]
        return {"own_term": "sampled" if last == "in-batch" else last}

    def rule(self, steps: int) -> fcco.Rule:
        """Return the rule of the table for a run of ``steps`` steps.

        "cos" decreases gamma from 1 to its final value over the first half of the run; "power" and "mean" make it a
        function of the visits of a row.
        """
        kind, *rest = self.name.split()
        if kind in ("in-batch", "BSGD"):
            return fcco.BSGD()
        gamma: Any = float(rest[1] if rest[0] in ("cos", "mean", "power") else rest[0])
        if rest[0] == "cos":
            gamma = fcco.schedules.Cosine(gamma, max(steps // 2, 1))
        if rest[0] == "power":
            gamma = fcco.schedules.Power(gamma)
        if rest[0] == "mean":
            gamma = fcco.schedules.RunningMean(gamma)
        return fcco.SOX(gamma) if kind == "SOX" else fcco.SOAP(gamma)


@dataclass(frozen=True)
class Task:
    """A small model on one objective and one data set, with what is needed to train it and to measure its excess."""

    start: Tensor
    batches: Callable[[int, int, int], Batches]  # size, passes, seed
    loss: Callable[[Variant, int], Callable[..., Tensor]]  # variant, steps
    step: Callable[..., Tensor]  # loss, weights, rows, generator
    exact: Callable[[Tensor], Tensor]  # of weights in float64
    penalty: float = 0.0

    def objective(self, w: Tensor) -> Tensor:
        """Return the exact objective with the penalty on ``w``."""
        return self.exact(w) + self.penalty / 2 * w.square().sum()


def shuffled(n: int, size: int, passes: int, seed: int) -> Batches:
    """Yield the batches of a fresh permutation in every pass; the incomplete last batch is left out."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(passes):
        rows = torch.randperm(n, generator=generator)
        yield from rows[: n // size * size].view(-1, size)


def sampled(make: Callable[..., Any], size: int, passes: int, seed: int) -> Batches:
    """Return the batches of a sampler of :mod:`fcco.data`; a pass goes once over the outer rows."""
    sampler = make(size, seed=seed)
    return (torch.tensor(rows) for rows in chain.from_iterable(sampler for _ in range(passes)))
