"""Large softmax: up to a million classes, of which a sample is scored, with sparse gradients of their table."""

from __future__ import annotations

from functools import lru_cache, partial
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fcco
from applications import DIVERGED, Application, Case, Entry, Method, Result, Table, tune
from harness.splits import Part, Parts
from harness.tasks import shuffled
from harness.training import DivergedError, train

OURS, LOG_Q, ADAPTIVE = "SoftmaxLoss", "sampled softmax with log q", "AdaptiveLogSoftmax"
DENSE, NO_MOMENTUM = "dense softmax", "dense softmax, no momentum"
FEATURES, SAMPLED, TRAINED, SEEDS = 64, 1024, 8_192, 3
START = 0.0625
CASES = tuple(Case(f"{n:,} classes", 128, 1) for n in (10_000, 100_000, 1_000_000))


def classes_of(case: Case) -> int:
    """Return the number at the beginning of the data's name."""
    return int(case.data.split()[0].replace(",", ""))


def log_frequency(n_classes: int) -> Tensor:
    """Return log q of the classes, numbered from the most frequent one: q ∝ 1 / (k + 10)."""
    return torch.log_softmax(-(torch.arange(n_classes) + 10.0).log(), 0)


@lru_cache(1)
def load(n_classes: int) -> Parts:
    """Simulate features around the centres of classes that are drawn by frequency. Centres are drawn once."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(n_classes, FEATURES, generator=generator)
    parts = []
    for n in (min(TRAINED, 10 * n_classes), 512, 1_024):
        y = torch.multinomial(log_frequency(n_classes).exp(), n, replacement=True, generator=generator)
        parts.append(Part(centres[y] + 0.5 * torch.randn(n, FEATURES, generator=generator), (y,)))
    return Parts(*parts)


class Model(nn.Module):
    """A model with logits W_c · A x. The gradient of W, the table of the classes, is sparse with ``sparse``."""

    def __init__(self, n_classes: int, *, sparse: bool) -> None:
        super().__init__()
        self.map = nn.Linear(FEATURES, FEATURES)
        self.table = nn.Embedding(n_classes, FEATURES, sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.1)

    def likelihood(self, hidden: Tensor, y: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood and the most likely class of a few rows; ``logits`` is scratch space."""
        torch.mm(hidden, self.table.weight.T, out=logits)
        own = logits.gather(1, y.unsqueeze(1)).squeeze(1)
        highest, guess = logits.max(1)
        total = logits.sub_(highest.unsqueeze(1)).exp_().sum(1)
        return total.log() + highest - own, guess


class Adaptive(nn.Module):
    """A model with torch's adaptive softmax: clusters of classes, frequent ones first."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.map = nn.Linear(FEATURES, FEATURES)
        self.head = nn.AdaptiveLogSoftmaxWithLoss(FEATURES, n_classes, [n_classes // 50, n_classes // 5])

    def likelihood(self, hidden: Tensor, y: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same as :class:`Model`, for this model's own distribution."""
        return -self.head(hidden, y).output, self.head.predict(hidden)


def evaluate(model: Any, part: Part, n_classes: int, chunk: int = 128) -> tuple[float, float]:
    """Return the mean negative log-likelihood over all classes and the accuracy, a few rows at a time."""
    value, right, logits = 0.0, 0, torch.empty(chunk, n_classes)
    with torch.no_grad():
        for x, y in zip(part.x.split(chunk), part.y[0].split(chunk), strict=True):
            losses, guess = model.likelihood(model.map(x), y, logits[: len(y)])
            value, right = value + float(losses.sum()), right + int((guess == y).sum())
    return value / len(part.x), right / len(part.x)


def step_of(method: str, model: Any, part: Part, n_classes: int, seed: int) -> Any:
    """Return a function that maps the rows of a batch to its loss."""
    (x, (y,)), log_q = part, log_frequency(n_classes)
    q, generator = log_q.exp(), torch.Generator().manual_seed(seed)
    loss_fn = fcco.losses.SoftmaxLoss(len(x), n_classes)

    def sampled(rows: Tensor) -> Tensor:
        drawn = torch.multinomial(q, SAMPLED, replacement=True, generator=generator)
        hidden, target = model.map(x[rows]), y[rows]
        weights = model.table(torch.cat([target, drawn]))
        own = (hidden * weights[: len(rows)]).sum(1)
        # A drawn class that is the target is no other class.
        others = (hidden @ weights[len(rows) :].T).masked_fill(drawn == target.unsqueeze(1), -1e9)
        if method == OURS:
            return loss_fn(own, others, rows, log_q[drawn])
        corrected = torch.cat([(own - log_q[target]).unsqueeze(1), others - log_q[drawn]], 1)
        return F.cross_entropy(corrected, torch.zeros_like(target))

    if method == ADAPTIVE:
        return lambda rows: model.head(model.map(x[rows]), y[rows]).loss
    if method in (DENSE, NO_MOMENTUM):
        return lambda rows: F.cross_entropy(model.map(x[rows]) @ model.table.weight.T, y[rows])
    return sampled


def optimizers_of(method: str, model: Any, lr: float) -> list[Any]:
    """Return the optimizers: Adam, but without momentum for a table whose rows are rarely looked up."""
    if method in (DENSE, ADAPTIVE):
        return [torch.optim.Adam(model.parameters(), lr=lr, fused=True)]
    table: Any = model.table.parameters()
    options: Any = {"lr": lr, "betas": (0.0, 0.999)}
    of_map = torch.optim.Adam(model.map.parameters(), lr=lr)
    if method == NO_MOMENTUM:
        return [of_map, torch.optim.Adam(table, fused=True, **options)]
    return [of_map, torch.optim.SparseAdam(table, eps=1e-4, **options)]


@lru_cache
def rate(method: str) -> float:
    """Return the lr that is best for the objective with the fewest classes."""
    by_objective, _ = tune(partial(run, CASES[0], method), START, SEEDS)
    return by_objective.lr


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once."""
    lr, n_classes = lr or rate(method), classes_of(case)
    parts = load(n_classes)
    torch.manual_seed(seed)
    sparse = method in (OURS, LOG_Q)
    model: Any = Adaptive(n_classes) if method == ADAPTIVE else Model(n_classes, sparse=sparse)
    step = step_of(method, model, parts.train, n_classes, seed)
    batches = shuffled(len(parts.train.x), case.batch, case.passes, seed)
    try:
        seconds = train(step, batches, optimizers_of(method, model, lr))
    except DivergedError:
        return DIVERGED
    seen = Part(parts.train.x[:1_024], (parts.train.y[0][:1_024],))
    (objective, _), (_, valid), (_, test) = (
        evaluate(model, part, n_classes) for part in (seen, parts.valid, parts.test)
    )
    return Result(objective, valid, test, seconds)


def methods(case: Case) -> tuple[Method, ...]:
    """Return the methods. The lr is tuned with the fewest classes only, where that is affordable."""
    few = classes_of(case) <= classes_of(CASES[0])
    found = [
        Method(OURS, "ours", tuned=few),
        Method(LOG_Q, "in-batch", tuned=few),
        Method(ADAPTIVE, "field", tuned=few),
    ]
    if case != CASES[-1]:
        found.append(Method(NO_MOMENTUM, "field", tuned=few))
    return *found, Method(DENSE, "full", tuned=few)


def goal(table: Table) -> str:
    """Return the verdict on the likelihood and the time of a step beside those of the dense softmax."""
    lines = [_compared(case, entries) for case, entries in table.items() if case in CASES[1:]]
    aim = (
        "Goal: the negative log-likelihood of the dense softmax (trained by Adam), to within 1%, at no more than a "
        "tenth of the time per step."
    )
    return "\n\n".join([aim, *lines])


def _compared(case: Case, entries: dict[str, Entry]) -> str:
    steps = case.passes * (TRAINED // case.batch)
    ours, dense = entries[OURS], entries[DENSE]
    likelihood = fmean(ours.objective) / fmean(dense.objective)
    share = ours.typical("seconds") / dense.typical("seconds")
    reached = share <= 0.1 and likelihood <= 1.01
    each = [
        f"{name} {fmean(entry.objective):.3f} at {1000 * entry.typical('seconds') / steps:.3g} ms per step"
        for name, entry in entries.items()
    ]
    return (
        f"With {case.data}, our negative log-likelihood is {likelihood:.2f} times that of the dense softmax, and our "
        f"step takes {share:.3f} of its time: **{'reached' if reached else 'missed'}**. All methods: {'; '.join(each)}."
    )


APPLICATION = Application(
    title="Large softmax",
    text=(
        "The data are simulated. The classes have frequencies proportional to 1 / (k + 10), and the 64 features of an "
        "example lie around the centre of its class. There are 8,192 examples for training, 512 for validation and "
        "1,024 for testing. Training makes a single pass in batches of 128. The logits are W·Ax, where W has a row for "
        "each class. The objective is computed over all classes, on 1,024 of the training examples. The lr is tuned "
        "with 10,000 classes and kept for more classes, where a dense step is too slow for tuning.\n\n"
        "- *SoftmaxLoss*, with its defaults, and *sampled softmax with log q* draw the same 1,024 classes for a batch, "
        "by frequency. The gradient of W is sparse. *SoftmaxLoss* subtracts log (1,024 q) from the sampled logits and "
        "leaves that of the target as it is. The usual correction subtracts log q from all of them.\n"
        "- *AdaptiveLogSoftmax* is that of torch, with clusters that end at 2% and 20% of the classes.\n"
        "- *dense softmax* scores and updates all classes at every step.\n"
        "- *dense softmax, no momentum* has the betas of the sampled methods for W, with the usual eps. It was not run "
        "with a million classes, because it would take too long.\n\n"
        "The optimizer is Adam. It has its default betas and eps in the dense and the adaptive softmax. The sampled "
        "methods train W by `SparseAdam(betas=(0, 0.999), eps=1e-4)`. `SparseAdam` updates a row only when it is "
        "looked up. With momentum 0.9, a class that is seen once would make a tenth of its step, and the rest would be "
        "lost. These betas, the eps (among 1e-8, 1e-4 and 1e-3) and the number of sampled classes (64 to 4,096) were "
        "chosen by the objective of *SoftmaxLoss* on one seed. The dense softmax had no such choice."
    ),
    objective="negative log-likelihood over all classes",
    metric="accuracy",
    cases=CASES,
    methods=methods,
    run=run,
    lr=lambda case: START,
    quick=Case("200 classes", 128, 1),
    seeds=SEEDS,
    goal=goal,
)
