"""Group DRO: lodgepole pine or not on covtype, where a group is a combination of an area and an answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fcco
from applications import DIVERGED, Application, Case, Method, Result, Table, duel
from fcco.functional import group_dro_loss
from harness import data
from harness.data import covtype_rows
from harness.exact import minimise
from harness.splits import Part, Parts, clipped, three_parts
from harness.tasks import shuffled
from harness.timing import timed
from harness.training import DivergedError, train

OURS, IN_BATCH, EXACT = "GroupDROLoss", "in-batch group DRO", "exact optimum"
ERM, WEIGHTED, ONLINE = "ERM", "ERM, groups weighing alike", "online group DRO"
TEMPERATURE = 0.1

LossFn = Callable[[Tensor, Tensor], Tensor]  # of the examples' losses, and groups


@lru_cache
def load(name: str) -> Parts:
    """Load answers and groups of covtype, split 30/30/40. Digits (odd or even) are for the tests."""
    if name == "digits":
        x, odd, digit = data.groups(name)
        return three_parts(x.numpy(), (odd.numpy(), digit.numpy()))
    values = covtype_rows(10).astype(np.float32)
    pine = (values[:, -1] == 2).astype(int)
    group = np.unique(2 * values[:, 10:14].argmax(1) + pine, return_inverse=True)[1]
    return clipped(three_parts(values[:, :-1], (pine, group), shares=(0.3, 0.3)))


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the logistic losses, of shape [n]."""
    logits = model(x).squeeze(1)
    return F.binary_cross_entropy_with_logits(logits, y.to(logits), reduction="none")


def worst_accuracy(model: nn.Module, part: Part) -> float:
    """Return the accuracy on the worst group."""
    y, group = part.y
    with torch.no_grad():
        right = ((model(part.x).squeeze(1) > 0) == (y == 1)).double()
    return min(float(right[group == k].mean()) for k in group.unique())


class Online:
    """Online group DRO of Sagawa et al.: an exponentiated gradient with their step size of .01 sets the weights."""

    def __init__(self, n_groups: int) -> None:
        self.weight = torch.full((n_groups,), 1 / n_groups)

    def __call__(self, losses: Tensor, group: Tensor) -> Tensor:
        """Return the weighted mean of the groups' mean losses in the batch."""
        counts = group.bincount(minlength=len(self.weight))
        means = torch.zeros_like(self.weight).index_add(0, group, losses) / counts.clamp(min=1)
        weight = self.weight * (0.01 * means.detach()).exp()
        self.weight = weight / weight.sum()
        return self.weight @ means


def loss_of(method: str, group: Tensor) -> LossFn:
    """Return the loss of that name."""
    if method == ERM:
        return lambda losses, _: losses.mean()
    if method == WEIGHTED:
        weight = len(group) / group.bincount() / len(group.unique())
        return lambda losses, group: (weight[group] * losses).mean()
    if method == ONLINE:
        return Online(int(group.max()) + 1)
    rule: dict[str, fcco.Rule] = {} if method == OURS else {"rule": fcco.BSGD()}
    return fcco.losses.GroupDROLoss.from_targets(group, temperature=TEMPERATURE, **rule)


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train a linear score once, starting at 0."""
    parts = load(case.data)
    x, (y, group) = parts.train
    model = nn.Linear(x.shape[1], 1)
    for weight in model.parameters():
        nn.init.zeros_(weight)
    exact = lambda wide: group_dro_loss(losses_of(model, wide, y), group, temperature=TEMPERATURE)  # noqa: E731
    try:
        if method == EXACT:
            wide = x.double()
            model.double()
            seconds = timed(lambda: minimise(lambda: exact(wide), list(model.parameters()), 200))[0]
        else:
            loss_fn = loss_of(method, group)
            optimizer = fcco.optim.MovingAverageSGD(model.parameters(), lr=lr, beta=0.1)
            step = lambda rows: loss_fn(losses_of(model, x[rows], y[rows]), group[rows])  # noqa: E731
            seconds = train(step, shuffled(len(x), case.batch, case.passes, seed), [optimizer])
    except DivergedError:
        return DIVERGED
    with torch.no_grad():
        objective = math.nan if method in (ERM, WEIGHTED) else float(exact(x.to(model.weight)))
    model.float()
    return Result(objective, worst_accuracy(model, parts.valid), worst_accuracy(model, parts.test), seconds)


def methods(_: Case) -> tuple[Method, ...]:
    """Return the methods; all but the optimum train on the same batches."""
    others = (Method(name, "field") for name in (ERM, WEIGHTED, ONLINE))
    best = Method(EXACT, "exact", tuned=False, batched=False)
    return Method(OURS, "ours"), Method(IN_BATCH, "in-batch"), *others, best


def goal(table: Table) -> str:
    """Return the verdict on the metric beside that of ERM."""
    sentences = ["Goal: accuracy on the worst group above that of ERM."]
    for case, entries in table.items():
        found = duel({name: entry for name, entry in entries.items() if name in (OURS, ERM)}, "metric")
        if found is not None:
            sentences.append(
                f"At batch {case.batch}, ours is {np.mean(found.ours):.3f}, against {np.mean(found.theirs):.3f} for "
                f"ERM: **{'reached' if found.winner == 'ours' else 'missed'}**."
            )
    return " ".join(sentences)


APPLICATION = Application(
    title="Group DRO",
    text=(
        "The task is to tell from covtype whether a forest is lodgepole pine. We use every tenth row, split 30/30/40 "
        "(17,431 training rows). A group is a combination of a wilderness area and an answer, and the rarest of the 8 "
        "groups has 0.4% of the rows. The model is a linear score that starts at 0. `MovingAverageSGD(beta=0.1)` "
        "trains it on random batches.\n\n"
        "- *GroupDROLoss* is `GroupDROLoss.from_targets(group, temperature=0.1)` with its default rule.\n"
        "- *in-batch group DRO* takes the soft maximum over the groups in the batch.\n"
        "- *online group DRO* is the method of Sagawa et al. (2020), with their step size of 0.01 for the weights of "
        "the groups.\n"
        "- *ERM* minimises the mean loss over examples, and *ERM, groups weighing alike* the mean loss over groups. "
        "Only the metric of these two is compared.\n"
        "- *exact optimum* is the result of L-BFGS on all data.\n\n"
        "A sample of the same task (every 145th row) was among the data on which the default rule was chosen; see "
        "[docs/defaults.md](docs/defaults.md)."
    ),
    objective="soft maximum of the groups' mean losses",
    metric="accuracy on the worst group",
    cases=(Case("covtype", 16, 1), Case("covtype", 64, 2)),
    methods=methods,
    run=run,
    lr=lambda case: 0.25,
    quick=Case("digits", 32, 2),
    goal=goal,
)
