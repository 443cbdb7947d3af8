"""Imbalanced classification: average precision on covtype's rarest kind of forest but one, by a small network."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from _task import sampled, shuffled
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import average_precision_score
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
    duel,
    three_parts,
    train,
)
from fcco.data import PositiveNegativeSampler
from fcco.datasets._fetch import locate
from fcco.functional import average_precision_loss

OURS, IN_BATCH, LIBAUC = "AveragePrecisionLoss", "in-batch AP", "LibAUC's APLoss"
PLAIN, BALANCED, FOCAL = "cross entropy", "balanced cross entropy", "focal loss"

LossFn = Callable[[Tensor, Tensor, Tensor], Tensor]  # of logits, targets and rows


@lru_cache
def covtype() -> np.ndarray:
    """Every tenth row: ten quantities, four areas and forty soils as 0 and 1, and the kind of forest, 1 to 7."""
    with gzip.open(locate("covtype/covtype.data.gz").path, "rt") as text:
        return np.loadtxt(islice(text, 0, None, 10), delimiter=",", dtype=np.float32)


@lru_cache
def load(name: str) -> Parts:
    """60/20/20; whether a row is of covtype's class 5, or a tumour malignant."""
    if name == "breast cancer":
        bunch = load_breast_cancer()
        return three_parts(bunch.data, ((bunch.target == 0).astype(int),))
    values = covtype()
    return clipped(three_parts(values[:, :-1], ((values[:, -1] == 5).astype(int),)))


def clipped(parts: Parts) -> Parts:
    """Features within five deviations: of the binary ones many are rare, and a few rows would have 100 and more."""
    return Parts(*(Part(part.x.clamp(-5, 5), part.y) for part in parts))


def build(features: int, seed: int) -> nn.Module:
    """A logit by 64 hidden units."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))


def batches(case: Case, method: str, y: Tensor, seed: int) -> Iterator[Tensor]:
    """Half positive, a pass being one over the positives; for losses without pairs as many random ones as well."""
    make = partial(PositiveNegativeSampler, y, outer="positive", drop_last=True)
    balanced = list(sampled(lambda size, seed: make(batch=size, seed=seed), case.batch, case.passes, seed))
    if method not in (PLAIN, FOCAL):
        return iter(balanced)
    passes = -(-len(balanced) // (len(y) // case.batch))
    return islice(shuffled(len(y), case.batch, passes, seed), len(balanced))


def bounded(loss_fn: Callable[..., Tensor]) -> LossFn:
    """On scores between 0 and 1, as a margin of 1 asks for."""
    return lambda logits, y, rows: loss_fn(logits.sigmoid(), y, rows)


def cross_entropy(logits: Tensor, y: Tensor, _: Tensor) -> Tensor:
    """The batch decides whether it is balanced."""
    return F.binary_cross_entropy_with_logits(logits, y.float())


def focal_loss(logits: Tensor, y: Tensor, _: Tensor) -> Tensor:
    """Lin et al., 2017, with their γ = 2 and α = .25."""
    each = F.binary_cross_entropy_with_logits(logits, y.float(), reduction="none")
    share = torch.where(y == 1, 0.25, 0.75)
    return (share * (-torch.expm1(-each)).square() * each).mean()


def loss_of(method: str, y: Tensor) -> LossFn:
    """The loss of that name."""
    if method in (PLAIN, BALANCED):
        return cross_entropy
    if method == FOCAL:
        return focal_loss
    if method == LIBAUC:
        from libauc.losses import APLoss

        theirs = APLoss(data_len=len(y), device="cpu")
        return bounded(lambda scores, y, rows: theirs(scores.unsqueeze(1), y.unsqueeze(1), rows))
    rule: dict[str, fcco.Rule] = {} if method == OURS else {"rule": fcco.BSGD()}
    return bounded(fcco.losses.AveragePrecisionLoss.from_targets(y, **rule))


def fit(model: nn.Module, loss_fn: LossFn, plan: Iterator[Tensor], part: Part, lr: float) -> float:
    """Train a model in place; the seconds that it took."""
    x, (y,) = part
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    return train(lambda rows: loss_fn(model(x[rows]), y[rows], rows), plan, [optimizer])


def logits_of(model: nn.Module, part: Part) -> Tensor:
    """[n], in double precision, in which no two logits have one sigmoid."""
    with torch.no_grad():
        return model(part.x).double()


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once."""
    parts = load(case.data)
    model, (y,) = build(parts.train.x.shape[1], seed), parts.train.y
    try:
        seconds = fit(model, loss_of(method, y), batches(case, method, y, seed), parts.train, lr)
    except DivergedError:
        return DIVERGED
    pairwise = method in (OURS, IN_BATCH, LIBAUC)
    scores = logits_of(model, parts.train).sigmoid()
    objective = 1 + float(average_precision_loss(scores, y)) if pairwise else math.nan
    held_out = lambda part: float(average_precision_score(part.y[0], logits_of(model, part)))  # noqa: E731
    return Result(objective, held_out(parts.valid), held_out(parts.test), seconds)


def methods(_: Case) -> tuple[Method, ...]:
    """All of them train on batches and have an lr."""
    usual = (Method(name, "field") for name in (PLAIN, BALANCED, FOCAL))
    return Method(OURS, "ours"), Method(IN_BATCH, "in-batch"), *usual, Method(LIBAUC, "field", needs="libauc")


def goal(table: Table) -> str:
    """Against the strongest of the usual losses, and two points against the in-batch loss."""
    sentences = ["Sought: test AP above the best cross entropy's beyond the spread, and .02 above in-batch AP's."]
    for case, entries in table.items():
        usual = {name: entry for name, entry in entries.items() if entry.method.name in (OURS, PLAIN, BALANCED, FOCAL)}
        found = duel(usual, "metric")
        if found is None:
            continue
        gain = float(np.mean(entries[OURS].metric) - np.mean(entries[IN_BATCH].metric))
        sentences.append(
            f"Batch {case.batch}: {found.difference:+.3f} against {found.rival}, the strongest of them, "
            f"**{'reached' if found.winner == 'ours' else 'missed'}**; {gain:+.3f} against in-batch, "
            f"**{'reached' if gain >= 0.02 else 'missed'}**."
        )
    return " ".join(sentences)


APPLICATION = Application(
    title="Imbalanced classification",
    text=(
        "covtype, class 5 against the rest: every tenth row, split 60/20/20, so that 34,861 rows with 560 "
        "positives (1.6%) train. A network of 64 hidden units by Adam, a cosine lr. A pass is one over the positives, "
        "in batches half of which are positive; the losses on pairs have the sigmoid of the score. "
        "*AveragePrecisionLoss* has its defaults; *in-batch AP* takes the batch for the population, but knows the "
        "share of positives in it. *balanced cross entropy* has the same batches, *cross entropy* and *focal loss* "
        "(gamma 2, alpha .25) have random ones, as many and as large. The losses that are not AP have no objective "
        "here. Photographs (CIFAR-10 with 2% positives) are measured by `fcco reproduce ap`."
    ),
    objective="1 + average_precision_loss, with the squared hinge",
    metric="average precision",
    cases=(Case("covtype", 16, 10), Case("covtype", 64, 20)),
    methods=methods,
    run=run,
    lr=lambda case: 0.004,
    quick=Case("breast cancer", 32, 1),
    goal=goal,
)
