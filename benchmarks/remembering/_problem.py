"""An objective on a data set: the arrays that the kernels need, its batches, and its exact value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fcco.data import PositiveNegativeSampler
from fcco.functional import average_precision_loss, cox_loss, nca_loss, p_norm_push_loss, partial_auc_loss
from harness.exact import minimise
from harness.tasks import sampled, shuffled
from remembering import _data
from remembering._kernels import Array

BIPARTITE: dict[str, Callable[..., Tensor]] = {
    "average_precision": average_precision_loss,
    "p_norm_push": p_norm_push_loss,
    "partial_auc": partial_auc_loss,
}
OBJECTIVES = ("cox", *BIPARTITE, "nca")
PENALTIES = {"cox": 0.0, "nca": 1e-4}  # as in harness.objectives; 1e-3 for the others


@dataclass(frozen=True)
class Problem:
    """A linear model on one objective and one data set."""

    objective: str
    x: Array  # [n, d]
    key: Array  # [n]: times, or classes
    flag: Array  # [n]: events, or positives
    start: Array  # [d], or [d, k] for NCA
    exact: Callable[[Tensor], Tensor]  # of the outputs in float64

    @property
    def penalty(self) -> float:
        return PENALTIES.get(self.objective, 1e-3)

    def value(self, w: Tensor) -> Tensor:
        """Return the exact objective with its penalty."""
        return self.exact(torch.from_numpy(self.x) @ w) + self.penalty / 2 * w.square().sum()

    def at(self, w: Array) -> float:
        """Return the exact objective of weights, infinite if it is not a number."""
        value = self.value(torch.from_numpy(np.ascontiguousarray(w))).item()
        return value if math.isfinite(value) else math.inf

    def minimum(self, iterations: int) -> float:
        """Return the minimum that L-BFGS finds from the start."""
        w = nn.Parameter(torch.from_numpy(self.start.copy()))
        minimise(lambda: self.value(w), [w], iterations)
        return self.value(w.detach()).item()

    def batches(self, size: int, passes: int, seed: int, *, natural: bool = False) -> Array:
        """Return the rows of all batches [steps, size]: those of the harness, or random ones if ``natural``."""
        n = len(self.x)
        if self.objective not in BIPARTITE:
            return _stack(shuffled(n, size, passes, seed))
        outer: Any = "negative" if self.objective == "p_norm_push" else "positive"
        make = partial(_sampler, self.flag, outer)
        balanced = _stack(sampled(make, size, passes, seed))
        if not natural:
            return balanced
        needed = math.ceil(len(balanced) / (n // size))
        return _stack(islice(shuffled(n, size, needed, seed), len(balanced)))


def _sampler(flag: Array, outer: Any, size: int, seed: int) -> PositiveNegativeSampler:
    return PositiveNegativeSampler(flag, batch=size, outer=outer, drop_last=True, seed=seed)


def _stack(batches: Iterator[Tensor]) -> Array:
    return torch.stack(list(batches)).numpy()


@lru_cache
def problem(objective: str, name: str) -> Problem:
    """Return the problem of an objective on a data set, as in :mod:`harness.objectives`."""
    if objective == "cox":
        x, time, event = _data.survival(name)
        flag = event.bool()
        exact: Callable[[Tensor], Tensor] = partial(cox_loss, time=time, event=flag)
        return _make(objective, x, time, flag, exact)
    if objective == "nca":
        x, label = _data.classes(name)
        exact = partial(nca_loss, labels=label)
        return _make(objective, x, label, torch.zeros_like(label), exact, columns=8 if name == "digits" else 16)
    x, target = _data.binary(name)
    return _make(objective, x, torch.zeros(len(x)), target, partial(BIPARTITE[objective], target=target))


def _make(
    objective: str, x: Tensor, key: Tensor, flag: Tensor, exact: Callable[[Tensor], Tensor], columns: int = 0
) -> Problem:
    d = x.shape[1]
    start = torch.zeros(d)
    if columns:
        start = torch.randn(d, columns, generator=torch.Generator().manual_seed(0)) / math.sqrt(d)
    return Problem(
        objective,
        np.ascontiguousarray(x.double().numpy()),
        key.double().numpy(),
        flag.bool().numpy().copy(),
        start.double().numpy(),
        exact,
    )
