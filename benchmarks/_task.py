"""What ``benchmarks/defaults.py`` compares, and on what: settings of a loss, and tasks to train it on."""

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
class Setting:
    """A column: a rule, and how the own term is estimated; "in-batch" is the loss that practitioners use."""

    name: str

    @property
    def own_term(self) -> dict[str, str]:
        """As an option of the losses that have one."""
        last = self.name.split()[-1]
        return {"own_term": "sampled" if last == "in-batch" else last}

    def rule(self, steps: int) -> fcco.Rule:
        """Cosine: from 1 to the final gamma over the first half of the run; power and mean: by the visits of a row."""
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
    """What it takes to train a model on an objective, and to say how far it is from the minimum."""

    start: Tensor
    batches: Callable[[int, int, int], Batches]  # size, passes, seed
    loss: Callable[[Setting, int], Callable[..., Tensor]]  # setting, steps
    step: Callable[..., Tensor]  # loss, weights, rows, generator
    exact: Callable[[Tensor], Tensor]  # of weights in float64
    penalty: float = 0.0

    def objective(self, w: Tensor) -> Tensor:
        """The exact objective, with the penalty on w."""
        return self.exact(w) + self.penalty / 2 * w.square().sum()


def shuffled(n: int, size: int, passes: int, seed: int) -> Batches:
    """Batches as everybody draws them: a permutation a pass, without its short end."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(passes):
        rows = torch.randperm(n, generator=generator)
        yield from rows[: n // size * size].view(-1, size)


def sampled(make: Callable[..., Any], size: int, passes: int, seed: int) -> Batches:
    """Batches of a sampler of :mod:`fcco.data`; a pass is one over the outer rows."""
    sampler = make(size, seed=seed)
    return (torch.tensor(rows) for rows in chain.from_iterable(sampler for _ in range(passes)))
