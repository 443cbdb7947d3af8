"""Invariant logistic regression: the score of an example is a mean over perturbations, and a few are drawn."""

from __future__ import annotations

from functools import lru_cache
from statistics import fmean

import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import fcco
from applications import DIVERGED, Application, Case, Method, Result, Table, floor
from harness.exact import minimise
from harness.splits import Part, Parts, three_parts
from harness.tasks import shuffled
from harness.timing import timed
from harness.training import DivergedError, train

OURS = "InvariantLogisticLoss, 1 draw"
DRAWS = {OURS: 1, "BSGD, 1 draw": 1, "BSGD, 4 draws": 4, "BSGD, 16 draws": 16}
PENALTY = 1e-3


@lru_cache
def load(name: str) -> Parts:
    """Load the data: whether a tumour is malignant, or whether a digit is odd."""
    if name.startswith("digits"):
        bunch = load_digits()
        return three_parts(bunch.data, (bunch.target % 2,))
    bunch = load_breast_cancer()
    return three_parts(bunch.data, (1 - bunch.target,))


def area(w: Tensor, part: Part) -> float:
    """Return the area under the ROC curve without noise, because the mean score over the noise is that score."""
    return float(roc_auc_score(part.y[0].numpy(), (part.x.to(w) @ w).numpy()))


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once, starting at 0. With k draws per visit, there are a k-th of the visits."""
    parts = load(case.data)
    x, (y,) = parts.train
    wide, deviation = x.double(), float(case.data.split("noise ")[1]) ** 0.5

    def objective(w: Tensor) -> Tensor:
        signs = torch.where(y == 1, 1.0, -1.0).to(w)
        return F.softplus(-signs * (wide @ w)).mean() + PENALTY / 2 * w.square().sum()

    if method == "exact optimum":
        w = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
        seconds = timed(lambda: minimise(lambda: objective(w), [w]))[0]
    else:
        draws = DRAWS[method]
        generator = torch.Generator().manual_seed(seed)
        w = nn.Parameter(torch.zeros(x.shape[1]))
        rule = {} if method == OURS else {"rule": fcco.BSGD()}
        loss_fn = fcco.losses.InvariantLogisticLoss(len(x), **rule)

        def step(rows: Tensor) -> Tensor:
            noise = deviation * torch.randn(len(rows), draws, x.shape[1], generator=generator)
            return loss_fn((x[rows].unsqueeze(1) + noise) @ w, y[rows], rows)

        optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=0.1, weight_decay=PENALTY)
        try:
            seconds = train(step, shuffled(len(x), case.batch, max(case.passes // draws, 1), seed), [optimizer])
        except DivergedError:
            return DIVERGED
    found = w.detach()
    return Result(objective(found.double()).item(), area(found, parts.valid), area(found, parts.test), seconds)


def goal(table: Table) -> str:
    """Return the verdict on the excess where the variance of the noise over the number of draws is 1."""
    sentences = ["Goal: at most a tenth of the excess of BSGD with 1 draw, where the noise has variance 1."]
    for case, entries in table.items():
        lowest = floor(entries)
        if lowest is not None and case.data.endswith("noise 1"):
            ours, plain = (fmean(entries[name].objective) - lowest for name in (OURS, "BSGD, 1 draw"))
            sentences.append(
                f"On {case.data.split(',')[0]} at batch {case.batch}, the ratio is {ours / plain:.2f}: "
                f"**{'reached' if ours <= 0.1 * plain else 'missed'}**."
            )
    return " ".join(sentences) if len(sentences) > 1 else ""


CASES = tuple(
    Case(f"{name}, noise {noise}", batch, passes)
    for name, passes in (("breast cancer", 96), ("digits", 32))
    for noise in (1, 10)
    for batch in (16, 64)
)

APPLICATION = Application(
    title="Invariant logistic regression",
    text=(
        "The data are breast cancer (malignant or not) and digits (odd or even) from scikit-learn, standardised and "
        "split 60/20/20. Every observation of an example adds Gaussian noise, and the rows of the tables state its "
        "variance in each feature. The model is linear and starts at 0, with an L2 penalty of 1e-3. The optimizer is "
        "`MovingAverageSGD(beta=0.1)`.\n\n"
        "- *InvariantLogisticLoss, 1 draw* has its default rule and draws one observation per visit.\n"
        "- *BSGD* is the same loss without a table. It draws 1, 4 or 16 observations per visit and makes "
        "correspondingly fewer visits.\n"
        "- *exact optimum* is the result of L-BFGS. The mean score of an example is its score without noise.\n\n"
        "The passes count draws per training row, so that all methods make the same number of draws. The default rule "
        "was chosen on the rows shown here."
    ),
    objective="logistic loss of the mean score, including the penalty",
    metric="area under the ROC curve",
    cases=CASES,
    methods=lambda case: (
        Method(OURS, "ours"),
        *(Method(each, "in-batch") for each in DRAWS if each != OURS),
        Method("exact optimum", "exact", tuned=False, batched=False),
    ),
    run=run,
    lr=lambda case: 0.5,
    quick=Case("breast cancer, noise 1", 64, 16),
    goal=goal,
)
