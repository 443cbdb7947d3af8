"""Softmax over a hundred thousand classes: sampled, with sparse gradients of the class table."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from _task import shuffled
from torch import Tensor, nn

import fcco
from applications import (
    DIVERGED,
    Application,
    Case,
    DivergedError,
    Method,
    Part,
    Parts,
    Result,
    Table,
    train,
)
from fcco.functional import softmax_loss

OURS, ADAPTIVE, DENSE = "SoftmaxLoss", "AdaptiveLogSoftmax", "dense softmax"
LOG_Q, EXACT_TARGET = "sampled softmax with log q", "sampled softmax, target exact"
FEATURES, SAMPLED = 32, 256


def classes_of(case: Case) -> int:
    """The number at the beginning of the data's name."""
    return int(case.data.split()[0].replace(",", ""))


def log_uniform(n_classes: int) -> Tensor:
    """log q of classes that are numbered from the most frequent on: q ∝ 1 / (k + 10)."""
    return torch.log_softmax(-(torch.arange(n_classes) + 10.0).log(), 0)


@lru_cache
def load(n_classes: int) -> Parts:
    """Features around the centre of a class, which is drawn by its frequency; centres are drawn once."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(n_classes, FEATURES, generator=generator)
    parts = []
    for n in (min(12_800, 10 * n_classes), 2_000, 2_000):
        y = torch.multinomial(log_uniform(n_classes).exp(), n, replacement=True, generator=generator)
        parts.append(Part(centres[y] + 0.5 * torch.randn(n, FEATURES, generator=generator), (y,)))
    return Parts(*parts)


class Model(nn.Module):
    """Logits W_c · A x; W is a table of the classes, whose gradient is sparse where few classes are looked up."""

    def __init__(self, n_classes: int, *, sparse: bool) -> None:
        super().__init__()
        self.map = nn.Linear(FEATURES, FEATURES)
        self.table = nn.Embedding(n_classes, FEATURES, sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.1)

    def log_likelihood(self, part: Part, chunk: int = 256) -> tuple[float, float]:
        """Mean negative log-likelihood over all classes, and the share that is right, a few rows at a time."""
        value, right = 0.0, 0
        with torch.no_grad():
            for x, y in zip(part.x.split(chunk), part.y[0].split(chunk), strict=True):
                logits = self.map(x) @ self.table.weight.T
                value += float(softmax_loss(logits.gather(1, y.unsqueeze(1)).squeeze(1), logits)) * len(y)
                right += int((logits.argmax(1) == y).sum())
        return value / len(part.x), right / len(part.x)


class Adaptive(nn.Module):
    """torch's clusters of classes, frequent ones first."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.map = nn.Linear(FEATURES, FEATURES)
        self.head = nn.AdaptiveLogSoftmaxWithLoss(FEATURES, n_classes, [n_classes // 50, n_classes // 5])

    def log_likelihood(self, part: Part, chunk: int = 256) -> tuple[float, float]:
        """As :class:`Model` has it, of this model's own distribution."""
        value, right = 0.0, 0
        with torch.no_grad():
            for x, y in zip(part.x.split(chunk), part.y[0].split(chunk), strict=True):
                hidden = self.map(x)
                value += float(self.head(hidden, y).loss) * len(y)
                right += int((self.head.predict(hidden) == y).sum())
        return value / len(part.x), right / len(part.x)


def step_of(method: str, model: Any, part: Part, n_classes: int, seed: int) -> Any:
    """The loss of a batch, from its rows."""
    (x, (y,)), log_q = part, log_uniform(n_classes)
    q, generator = log_q.exp(), torch.Generator().manual_seed(seed)
    loss_fn = fcco.losses.SoftmaxLoss(len(x), n_classes)

    def sampled(rows: Tensor) -> Tensor:
        drawn = torch.multinomial(q, SAMPLED, replacement=True, generator=generator)
        hidden, target = model.map(x[rows]), y[rows]
        own = (hidden * model.table(target)).sum(1)
        others = hidden @ model.table(drawn).T
        # A drawn class that is the target is no other class.
        others = others.masked_fill(drawn == target.unsqueeze(1), -1e9)
        if method == OURS:
            return loss_fn(own, others, rows, log_q[drawn])
        if method == EXACT_TARGET:
            corrected = torch.cat([own.unsqueeze(1), others - log_q[drawn] - math.log(SAMPLED)], 1)
        else:
            corrected = torch.cat([(own - log_q[target]).unsqueeze(1), others - log_q[drawn]], 1)
        return F.cross_entropy(corrected, torch.zeros_like(target))

    if method == ADAPTIVE:
        return lambda rows: model.head(model.map(x[rows]), y[rows]).loss
    if method == DENSE:
        return lambda rows: F.cross_entropy(model.map(x[rows]) @ model.table.weight.T, y[rows])
    return sampled


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once."""
    n_classes = classes_of(case)
    parts = load(n_classes)
    torch.manual_seed(seed)
    model: Any = Adaptive(n_classes) if method == ADAPTIVE else Model(n_classes, sparse=method != DENSE)
    if method in (OURS, LOG_Q, EXACT_TARGET):
        optimizers: list[Any] = [
            torch.optim.SparseAdam(model.table.parameters(), lr=lr),
            torch.optim.Adam(model.map.parameters(), lr=lr),
        ]
    else:
        optimizers = [torch.optim.Adam(model.parameters(), lr=lr)]
    step = step_of(method, model, parts.train, n_classes, seed)
    try:
        seconds = train(step, shuffled(len(parts.train.x), case.batch, case.passes, seed), optimizers)
    except DivergedError:
        return DIVERGED
    (objective, _), (_, valid), (_, test) = (model.log_likelihood(part) for part in parts)
    return Result(objective, valid, test, seconds)


def goal(table: Table) -> str:
    """Likelihood and seconds beside those of the dense softmax."""
    lines = []
    for case, entries in table.items():
        ours, dense = entries[OURS], entries[DENSE]
        share = ours.typical("seconds") / dense.typical("seconds")
        reached = share <= 0.1 and fmean(ours.objective) <= fmean(dense.objective)
        lines.append(
            f"**{'reached' if reached else 'missed'}** at {case.data}, batch {case.batch}: {fmean(ours.objective):.3f} "
            f"against {fmean(dense.objective):.3f} in {share:.2f} of the time"
        )
    return "Sought: the dense softmax's likelihood at a tenth of its time. " + "; ".join(lines) + "."


APPLICATION = Application(
    title="Large softmax",
    text=(
        "Made data: 12,800 examples of 100,000 classes with frequencies ∝ 1 / (k + 10), 32 features around the centre "
        "of the class, 2,000 more to validate and to test. Logits W·Ax; Adam, cosine lr. *SoftmaxLoss*, with its "
        "defaults, and *sampled softmax with log q* draw 256 classes for a batch by frequency, and the gradient of W "
        "is sparse (SparseAdam). The usual correction takes log q off all logits, that of the target too; with the "
        "*target exact*, log (256 q) off the sampled ones alone. *AdaptiveLogSoftmax* is torch's, with clusters that "
        "end at 2% and 20% of the classes. *dense softmax* scores all classes at every step. 10^6 classes were not "
        "measured."
    ),
    objective="negative log-likelihood over all classes",
    metric="accuracy",
    cases=(Case("100,000 classes", 128, 3),),
    methods=lambda case: (
        Method(OURS, "ours"),
        Method(LOG_Q, "in-batch"),
        Method(EXACT_TARGET, "in-batch"),
        Method(ADAPTIVE, "field"),
        Method(DENSE, "full"),
    ),
    run=run,
    lr=lambda case: 0.016,
    quick=Case("200 classes", 128, 1),
    goal=goal,
)
