"""Small networks that losses train from scratch: their data, their losses by name, and a run of one of them.

The optimizer is Adam, whose learning rate falls to 0 along a cosine. A seed draws the same start, batches and views for
all settings of a problem that have the same batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

import fcco
from fcco import functional, losses
from fcco.compiled._concordance import count_pairs
from fcco_reproduce.datasets import load_ijcnn1, load_survival
from harness.data import classes

IN_BATCH = "in-batch"
N_IMAGES = 1400
WARM_START = 4  # passes of cross entropy, after which the scores spread over more than the temperature


class Setting(NamedTuple):
    """A loss, given the batch of the row, and by what factor its own batch is larger."""

    make: Callable[[int], nn.Module]
    times: int = 1


class Outcome(NamedTuple):
    """The exact objective on the training data and a metric on held-out data."""

    objective: float
    metric: float


DIVERGED = Outcome(math.inf, math.nan)


@dataclass(frozen=True)
class Problem:
    """What to train: a network with its start, and the losses that train it."""

    n: int
    metric: str
    start: Callable[[int], nn.Module]
    """Return the network, given the seed."""
    settings: dict[str, Setting]
    """The first is the in-batch loss."""
    step: Callable[[nn.Module, nn.Module, Tensor, torch.Generator], Tensor]
    """Return the loss of a batch, given the network, the loss, the rows and a source of random numbers."""
    evaluate: Callable[[nn.Module, int], Outcome]
    """Return the outcome, given the network and the seed."""
    target: Tensor | None = None
    """If given, half of every batch are positives."""


def run(problem: str, setting: str, batch: int, passes: int, log_lr: int, seed: int) -> Outcome:
    """Train a network at the learning rate 10^(log_lr / 2)."""
    task = PROBLEMS[problem]()
    chosen = task.settings[setting]
    network = task.start(seed)
    trained = train(task, chosen.make(batch), network, batch * chosen.times, passes, 10 ** (log_lr / 2), seed)
    with torch.no_grad():
        found = task.evaluate(network, seed) if trained else DIVERGED
    return found if math.isfinite(found.objective) else DIVERGED


def train(
    problem: Problem, loss_fn: nn.Module, network: nn.Module, batch: int, passes: int, lr: float, seed: int
) -> bool:
    """Train in place and return whether all weights stayed finite."""
    generator = torch.Generator().manual_seed(seed)
    plan = batches(problem, batch, passes, seed)
    optimizer = torch.optim.Adam(network.parameters(), lr, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(plan))
    for rows in plan:
        optimizer.zero_grad()
        try:
            problem.step(network, loss_fn, rows, generator).backward()
        except ValueError:  # the engine refuses estimates that are not finite
            if _is_finite(network):
                raise
            return False
        optimizer.step()
        schedule.step()
    return _is_finite(network)


def _is_finite(network: nn.Module) -> bool:
    return all(bool(weight.detach().abs().max() < 1e6) for weight in network.parameters())


def batches(problem: Problem, batch: int, passes: int, seed: int) -> list[Tensor]:
    """Return the rows of every batch; with a target, half of them are positives and the number of steps is the same."""
    generator = torch.Generator().manual_seed(1000 + seed)
    per_pass = problem.n // batch
    if problem.target is None:
        orders = (torch.randperm(problem.n, generator=generator)[: per_pass * batch] for _ in range(passes))
        return [rows for order in orders for rows in order.view(-1, batch)]
    positive, negative = problem.target.nonzero().squeeze(1), (problem.target == 0).nonzero().squeeze(1)
    steps, half = per_pass * passes, batch // 2
    halves = [_stream(part, steps * half, generator).view(-1, half) for part in (positive, negative)]
    return list(torch.cat(halves, 1))


def _stream(members: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return so many members, in a new order in each pass over them."""
    passes = -(-count // len(members))
    orders = [members[torch.randperm(len(members), generator=generator)] for _ in range(passes)]
    return torch.cat(orders)[:count]


def mlp(*widths: int, seed: int) -> nn.Sequential:
    """Return a network with these numbers of inputs, hidden units and outputs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Images(NamedTuple):
    """Digits and their classes, those to train on and those held out."""

    x: Tensor
    y: Tensor
    held_out_x: Tensor
    held_out_y: Tensor


@lru_cache
def digits() -> Images:
    x, y = classes("digits")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    seen, held_out = order[:N_IMAGES], order[N_IMAGES:]
    return Images(x[seen], y[seen], x[held_out], y[held_out])


def view(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift every image by up to a pixel, scale it, and add noise."""
    n, places = len(x), torch.arange(8)
    shift = torch.randint(0, 3, (n, 2), generator=generator)
    padded = F.pad(x.view(n, 8, 8), (1, 1, 1, 1))
    rows, columns = (shift[:, :1] + places)[:, :, None], (shift[:, 1:] + places)[:, None, :]
    moved = padded[torch.arange(n)[:, None, None], rows, columns]
    moved = moved * (0.7 + 0.6 * torch.rand(n, 1, 1, generator=generator))
    return moved.reshape(n, 64) - 0.3 + 0.15 * torch.randn(n, 64, generator=generator)


@lru_cache
def contrastive() -> Problem:
    """Two views of digits; the metric is the accuracy of a linear classifier of the embeddings."""
    images = digits()
    as_info_nce = {"include_positive": True, "own_term": "sampled"}

    def make(**options: object) -> nn.Module:
        return losses.ContrastiveLoss(N_IMAGES, **options)  # type: ignore[arg-type]

    def step(network: nn.Module, loss_fn: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
        views = view(images.x[rows].repeat(2, 1), generator)
        loss: Tensor = loss_fn(*network(views).chunk(2), rows)
        return loss

    def evaluate(network: nn.Module, seed: int) -> Outcome:
        generator = torch.Generator().manual_seed(2000 + seed)
        pair = [network(view(images.x, generator)) for _ in range(2)]
        return Outcome(functional.contrastive_loss(*pair).item(), probe(network, images))

    return Problem(
        n=N_IMAGES,
        metric="linear probe",
        start=lambda seed: mlp(64, 128, 128, 32, seed=seed),
        settings={
            "InfoNCE": Setting(lambda batch: make(rule=fcco.BSGD(), **as_info_nce)),
            "InfoNCE, 4 times the batch": Setting(lambda batch: make(rule=fcco.BSGD(), **as_info_nce), times=4),
            "default (no table, without the positive)": Setting(lambda batch: make()),
            "table": Setting(lambda batch: make(rule=fcco.SOAP(gamma=0.7))),
            "memory": Setting(lambda batch: make(memory=4 * batch)),
            "memory, as InfoNCE": Setting(lambda batch: make(memory=4 * batch, **as_info_nce)),
        },
        step=step,
        evaluate=evaluate,
    )


def probe(network: nn.Module, images: Images) -> float:
    """Return the accuracy, on held-out images, of logistic regression from embeddings."""
    seen, held_out = (F.normalize(network(x - 0.3)).numpy() for x in (images.x, images.held_out_x))
    classifier = LogisticRegression(C=10.0, max_iter=1000).fit(seen, images.y.numpy())
    return float(classifier.score(held_out, images.held_out_y.numpy()))


@lru_cache
def cox() -> Problem:
    """Patients of METABRIC; the metric is the concordance on the test patients."""
    parts = [load_survival("metabric", part) for part in ("train", "test")]
    mean, scale = parts[0].x.mean(0), parts[0].x.std(0)
    (x, time, event), held_out = (
        (torch.tensor((p.x - mean) / scale), torch.tensor(p.time), torch.tensor(p.event)) for p in parts
    )
    n = len(x)

    def step(network: nn.Module, loss_fn: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
        loss: Tensor = loss_fn(network(x[rows]).squeeze(1), time[rows], event[rows], rows)
        return loss

    def evaluate(network: nn.Module, seed: int) -> Outcome:
        risk, their_risk = (network(features).squeeze(1).double() for features in (x, held_out[0]))
        pairs = count_pairs(held_out[1].numpy(), held_out[2].numpy(), their_risk.numpy())
        return Outcome(functional.cox_loss(risk, time, event).item(), pairs.concordance)

    return Problem(
        n=n,
        metric="concordance",
        start=lambda seed: mlp(x.shape[1], 32, 32, 1, seed=seed),
        settings={
            IN_BATCH: Setting(lambda batch: losses.CoxLoss(n, rule=fcco.BSGD())),
            "default (memory)": Setting(lambda batch: losses.CoxLoss.from_targets(event)),
            "table": Setting(lambda batch: losses.CoxLoss.from_targets(event, memory=0)),
            "BaselineCoxLoss": Setting(lambda batch: losses.BaselineCoxLoss.from_targets(time, event)),
        },
        step=step,
        evaluate=evaluate,
    )


@lru_cache
def nca() -> Problem:
    """Digits in 16 dimensions; the metric is the accuracy of the nearest training image."""
    images = digits()

    def step(network: nn.Module, loss_fn: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
        loss: Tensor = loss_fn(network(images.x[rows] - 0.3), images.y[rows], rows)
        return loss

    def evaluate(network: nn.Module, seed: int) -> Outcome:
        seen, held_out = (network(x - 0.3) for x in (images.x, images.held_out_x))
        nearest = images.y[torch.cdist(held_out, seen).argmin(1)]
        accuracy = (nearest == images.held_out_y).double().mean().item()
        return Outcome(functional.nca_loss(seen, images.y).item(), accuracy)

    return Problem(
        n=N_IMAGES,
        metric="nearest neighbour",
        start=lambda seed: mlp(64, 64, 16, seed=seed),
        settings={
            IN_BATCH: Setting(lambda batch: losses.NCALoss(N_IMAGES, rule=fcco.BSGD())),
            "default (memory)": Setting(lambda batch: losses.NCALoss.from_targets(images.y)),
            "table": Setting(lambda batch: losses.NCALoss.from_targets(images.y, memory=0)),
        },
        step=step,
        evaluate=evaluate,
    )


def average_precision() -> Problem:
    """Rows of ijcnn1 in random batches; the metric is average precision on other rows."""
    return _average_precision(balanced=False)


def balanced_average_precision() -> Problem:
    """As above, but half of every batch are positives."""
    return _average_precision(balanced=True)


@lru_cache
def _average_precision(*, balanced: bool) -> Problem:
    data = load_ijcnn1("tr")
    mean, scale = data.x[::7].mean(0), data.x[::7].std(0)
    (x, y), (other_x, other_y) = (
        (torch.tensor((data.x[first::7] - mean) / scale), torch.tensor(data.y[first::7])) for first in (0, 3)
    )

    def step(network: nn.Module, loss_fn: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
        loss: Tensor = loss_fn(network(x[rows]).squeeze(1), y[rows], rows)
        return loss

    @lru_cache
    def warm(seed: int) -> nn.Module:
        network = mlp(x.shape[1], 32, 32, 1, seed=seed)
        optimizer = torch.optim.Adam(network.parameters(), 3e-3)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(WARM_START):
            for rows in torch.randperm(len(x), generator=generator).split(64):
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(network(x[rows]).squeeze(1), y[rows].float()).backward()
                optimizer.step()
        return network

    def evaluate(network: nn.Module, seed: int) -> Outcome:
        scores, others = (network(features).squeeze(1) for features in (x, other_x))
        metric = average_precision_score(other_y.numpy(), others.numpy())
        return Outcome(functional.average_precision_loss(scores, y).item(), float(metric))

    make = losses.AveragePrecisionLoss.from_targets
    return Problem(
        n=len(x),
        metric="average precision",
        start=lambda seed: deepcopy(warm(seed)),
        settings={
            IN_BATCH: Setting(lambda batch: make(y, rule=fcco.BSGD())),
            "default (memory and table)": Setting(lambda batch: make(y)),
            "table": Setting(lambda batch: make(y, memory=0)),
        },
        step=step,
        evaluate=evaluate,
        target=y if balanced else None,
    )


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "contrastive": contrastive,
    "cox": cox,
    "nca": nca,
    "average precision": average_precision,
    "average precision, balanced": balanced_average_precision,
}
