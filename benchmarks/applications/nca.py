"""Metric learning: a linear map in which the nearest neighbours are of the same class, by NCA."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from torch import Tensor

import fcco
from applications import DIVERGED, Application, Case, Method, Result, Table
from fcco.functional import nca_loss
from fcco_reproduce.datasets import load_sensorless, load_usps
from harness.splits import Part, Parts
from harness.tasks import shuffled
from harness.timing import timed
from harness.training import DivergedError, train

OURS, IN_BATCH, BASELINE = "NCALoss", "in-batch NCA", "PCA"
WHOLE, SOME, ROWS = "scikit-learn", "scikit-learn, 2,000 rows", 2000
SHARE, LOGARITHM = "mean p", "mean log p"
DIMENSIONS = 16
LARGEST = 1e6  # of an embedding; where training diverges, squares overflow before long


@lru_cache
def load(name: str) -> Parts:
    """Digits and sensorless 60/20/20; usps with its own test set, and every second row of its training set."""
    if name == "digits":
        bunch = load_digits()
        x, y = bunch.data / 16, bunch.target
    elif name == "sensorless":
        data = load_sensorless("balanced")
        x, y = np.clip((data.x - data.x.mean(0)) / data.x.std(0), -5, 5), data.y
    else:
        data, test = (load_usps(part) for part in ("train", "test"))
        x, y = (data.x[::2] + 1) / 2, data.y[::2]
    order = np.random.default_rng(0).permutation(len(x))
    ends = (np.array([0.8, 1.0] if name == "usps" else [0.6, 0.8]) * len(x)).astype(int)
    parts = [(x[rows], y[rows]) for rows in np.split(order, ends)]
    if name == "usps":
        parts[2] = ((test.x + 1) / 2, test.y)
    mean = parts[0][0].mean(0)
    made = (Part(torch.tensor(x - mean, dtype=torch.float32), (torch.tensor(y),)) for x, y in parts)
    return Parts(*made)


def accuracy(a: Tensor, train: Part, part: Part) -> float:
    """Of the three nearest neighbours in the training set, by the map."""
    neighbours = KNeighborsClassifier(3, algorithm="brute").fit((train.x @ a).numpy(), train.y[0].numpy())
    return float(neighbours.score((part.x @ a).numpy(), part.y[0].numpy()))


def objective(a: Tensor, part: Part, kind: str) -> float:
    """1 - p or -log p, on average over all rows, where p is the share of the own class among soft neighbours."""
    (x, (y,)), log_likelihood = part, kind == LOGARITHM
    value = nca_loss(x.double() @ a.double(), y, log_likelihood=log_likelihood)
    return float(value if log_likelihood else 1 + value)


def start(part: Part) -> Tensor:
    """Principal components, at the scale of the data: where scikit-learn starts too."""
    return torch.tensor(PCA(DIMENSIONS).fit(part.x.numpy()).components_.T.copy(), dtype=torch.float32)


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once."""
    parts = load(case.data)
    if method in (WHOLE, SOME):
        a, seconds = by_scikit_learn(case.data, ROWS if method == SOME else 0, seed if method == SOME else 0)
    elif method == BASELINE:
        a, seconds = start(parts.train), math.nan
    else:
        try:
            a, seconds = fit(case, method, lr, seed, parts.train)
        except DivergedError:
            return DIVERGED
    reached = math.nan if method == BASELINE else objective(a, parts.train, case.model)
    if math.isinf(reached):
        return DIVERGED
    return Result(reached, accuracy(a, parts.train, parts.valid), accuracy(a, parts.train, parts.test), seconds)


def fit(case: Case, method: str, lr: float, seed: int, part: Part) -> tuple[Tensor, float]:
    """Return a map, and the seconds that it took."""
    x, (y,) = part
    a = torch.nn.Parameter(start(part))
    rule: dict[str, Any] = {} if method == OURS else {"rule": fcco.BSGD()}
    loss_fn = fcco.losses.NCALoss(len(x), log_likelihood=case.model == LOGARITHM, **rule)

    def step(rows: Tensor) -> Tensor:
        z = x[rows] @ a
        if not z.detach().abs().max() < LARGEST:
            raise DivergedError
        return loss_fn(z, y[rows], rows)

    optimizer = fcco.optim.MovingAverageSGD([a], lr=lr, beta=0.1)
    seconds = train(step, shuffled(len(x), case.batch, case.passes, seed), [optimizer])
    return a.detach(), seconds


@lru_cache
def by_scikit_learn(name: str, rows: int, seed: int) -> tuple[Tensor, float]:
    """Its own NCA with its defaults, for the mean of p; on random rows, or on all where ``rows`` is 0."""
    x, (y,) = load(name).train
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: rows or len(x)]
    model = NeighborhoodComponentsAnalysis(DIMENSIONS, init="pca")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        seconds, _ = timed(lambda: model.fit(x[chosen].numpy(), y[chosen].numpy()))
    return torch.tensor(model.components_.T.copy(), dtype=torch.float32), seconds


def methods(case: Case) -> tuple[Method, ...]:
    """scikit-learn on 2,000 rows only where there are more."""
    found = [Method(OURS, "ours"), Method(IN_BATCH, "in-batch"), Method(WHOLE, "full", tuned=False, batched=False)]
    if case.data == "usps":
        found.append(Method(SOME, "field", tuned=False, batched=False))
    return *found, Method(BASELINE, "field", tuned=False, batched=False)


def goal(table: Table) -> str:
    """Return the verdict on what small batches reach on digits."""
    small = {case: entries for case, entries in table.items() if (case.data, case.batch) == ("digits", 32)}
    rows = {(case.model, case.passes): entries for case, entries in small.items()}
    few, many = (rows.get((LOGARITHM, passes)) for passes in (20, LONG))
    if not few or not many:
        return ""
    ours, theirs = (float(np.mean(few[name].objective)) for name in (OURS, IN_BATCH))
    p = math.exp(-float(np.mean(many[OURS].objective)))
    return (
        f"Sought: digits at batch 32, a mean of -log p far below the in-batch loss's: {ours:.3f} to {theirs:.3f} after "
        f"20 passes, **{'reached' if ours < theirs / 2 else 'missed'}**; and a mean of p of .999, which scikit-learn "
        f"reaches on all rows: at least {p:.5f} (the geometric mean) after {LONG} passes for log p, "
        f"**{'reached' if p >= 0.999 else 'missed'}**."
    )


LONG = 200
CASES = (
    *(Case("digits", batch, 20, model) for model in (SHARE, LOGARITHM) for batch in (32, 256)),
    Case("digits", 32, LONG, LOGARITHM),
    *(Case("usps", batch, 5, model) for model, batch in ((SHARE, 32), (SHARE, 256), (LOGARITHM, 32))),
    Case("sensorless", 32, 10, SHARE),
)

APPLICATION = Application(
    title="Metric learning",
    text=(
        "A linear map to 16 dimensions by neighbourhood components analysis: digits (1,078 rows to train on), every "
        "second row of usps (2,916), sensorless (200 rows of each class, of which 1,320 train; features within five "
        "deviations). The start are principal components; `MovingAverageSGD(beta=0.1)`, a cosine lr, random batches. "
        "Two objectives: *mean p* is `NCALoss` with its table (`memory=0`); *mean log p* has `log_likelihood=True`, "
        "with its table too, whose rate was chosen on these rows. *in-batch NCA* "
        "takes the batch for the population. *scikit-learn* is its NCA on all rows, 50 "
        "iterations of L-BFGS for the mean of p, each of them on all pairs, so that its memory grows with the square "
        "of the rows. *scikit-learn, 2,000 rows* has a random part of the training rows, where there "
        "are more. *PCA* is where all start."
    ),
    objective="1 - p (mean p) or -log p (mean log p), on average over the training rows",
    metric="accuracy of the 3 nearest neighbours",
    cases=CASES,
    methods=methods,
    run=run,
    lr=lambda case: 0.5 if case.model == LOGARITHM else 2.0,
    quick=Case("digits", 64, 1, LOGARITHM),
    goal=goal,
)
