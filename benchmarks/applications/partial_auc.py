"""Few false alarms: the part of the area under the ROC curve with FPR <= .3, on covtype's class 5."""

from __future__ import annotations

import math

import numpy as np
from sklearn.metrics import roc_auc_score
from torch import Tensor

import fcco
from applications import DIVERGED, Application, Case, DivergedError, Method, Result, Table, duel
from applications.average_precision import (
    BALANCED,
    PLAIN,
    LossFn,
    batches,
    bounded,
    build,
    cross_entropy,
    fit,
    load,
    logits_of,
)
from fcco.functional import partial_auc_loss

OURS, IN_BATCH = "PartialAUCLoss", "in-batch pAUC"
LARGEST_RATE = 0.3


def loss_of(method: str, y: Tensor) -> LossFn:
    """The loss of that name."""
    if method in (PLAIN, BALANCED):
        return cross_entropy
    rule: dict[str, fcco.Rule] = {} if method == OURS else {"rule": fcco.BSGD()}
    return bounded(fcco.losses.PartialAUCLoss.from_targets(y, **rule))


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once."""
    parts = load(case.data)
    model, (y,) = build(parts.train.x.shape[1], seed), parts.train.y
    try:
        seconds = fit(model, loss_of(method, y), batches(case, method, y, seed), parts.train, lr)
    except DivergedError:
        return DIVERGED
    pairwise = method in (OURS, IN_BATCH)
    objective = float(partial_auc_loss(logits_of(model, parts.train).sigmoid(), y)) if pairwise else math.nan
    area = lambda part: float(roc_auc_score(part.y[0], logits_of(model, part), max_fpr=LARGEST_RATE))  # noqa: E731
    return Result(objective, area(parts.valid), area(parts.test), seconds)


def methods(_: Case) -> tuple[Method, ...]:
    """All of them train on batches and have an lr."""
    return Method(OURS, "ours"), Method(IN_BATCH, "in-batch"), Method(PLAIN, "field"), Method(BALANCED, "field")


def goal(table: Table) -> str:
    """Against both forms of cross entropy."""
    sentences = ["Sought: a partial area above cross entropy's."]
    for case, entries in table.items():
        found = duel({name: entry for name, entry in entries.items() if name != IN_BATCH}, "metric")
        if found is not None:
            sentences.append(
                f"Batch {case.batch}: {np.mean(found.ours):.4f} to {np.mean(found.theirs):.4f} of {found.rival}, "
                f"**{ {'ours': 'reached', 'even': 'even', 'theirs': 'missed'}[found.winner] }**."
            )
    return " ".join(sentences)


APPLICATION = Application(
    title="Partial AUC",
    text=(
        "Data, network, optimizer and batches as for imbalanced classification. *PartialAUCLoss* has its defaults, a "
        "temperature of 1 among them, on the sigmoid of the score; *in-batch pAUC* is the same without the table. "
        "*balanced cross entropy* has the same batches, *cross entropy* random ones, as many and as large."
    ),
    objective="partial_auc_loss",
    metric="area under the ROC curve with FPR <= .3, scaled so that chance has .5 (McClish)",
    cases=(Case("covtype", 16, 10), Case("covtype", 64, 20)),
    methods=methods,
    run=run,
    lr=lambda case: 0.004,
    quick=Case("breast cancer", 32, 1),
    goal=goal,
)
