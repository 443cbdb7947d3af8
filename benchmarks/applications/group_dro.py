"""The worst group: lodgepole pine or not on covtype, where a group is an area and an answer."""

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
    """30/30/40, with answers and groups, of which the rarest are small; digits (odd or even) are for the tests."""
    if name == "digits":
        x, odd, digit = data.groups(name)
        return three_parts(x.numpy(), (odd.numpy(), digit.numpy()))
    values = covtype_rows(10).astype(np.float32)
    pine = (values[:, -1] == 2).astype(int)
    group = np.unique(2 * values[:, 10:14].argmax(1) + pine, return_inverse=True)[1]
    return clipped(three_parts(values[:, :-1], (pine, group), shares=(0.3, 0.3)))


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """[n], the logistic losses."""
    logits = model(x).squeeze(1)
    return F.binary_cross_entropy_with_logits(logits, y.to(logits), reduction="none")


def worst_accuracy(model: nn.Module, part: Part) -> float:
    """Of the group that fares worst."""
    y, group = part.y
    with torch.no_grad():
        right = ((model(part.x).squeeze(1) > 0) == (y == 1)).double()
    return min(float(right[group == k].mean()) for k in group.unique())


class Online:
    """Sagawa et al.: weights of the groups by exponentiated gradient, with their step of .01."""

    def __init__(self, n_groups: int) -> None:
        self.weight = torch.full((n_groups,), 1 / n_groups)

    def __call__(self, losses: Tensor, group: Tensor) -> Tensor:
        """The groups' mean losses in the batch, weighed."""
        counts = group.bincount(minlength=len(self.weight))
        means = torch.zeros_like(self.weight).index_add(0, group, losses) / counts.clamp(min=1)
        weight = self.weight * (0.01 * means.detach()).exp()
        self.weight = weight / weight.sum()
        return self.weight @ means


def loss_of(method: str, group: Tensor) -> LossFn:
    """The loss of that name."""
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
    """Train once: a linear score from 0."""
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
    """All but the optimum train on the same batches."""
    others = (Method(name, "field") for name in (ERM, WEIGHTED, ONLINE))
    best = Method(EXACT, "exact", tuned=False, batched=False)
    return Method(OURS, "ours"), Method(IN_BATCH, "in-batch"), *others, best


def goal(table: Table) -> str:
    """Against ERM."""
    sentences = ["Sought: the worst group above ERM's."]
    for case, entries in table.items():
        found = duel({name: entry for name, entry in entries.items() if name in (OURS, ERM)}, "metric")
        if found is not None:
            sentences.append(
                f"Batch {case.batch}: {np.mean(found.ours):.3f} to {np.mean(found.theirs):.3f}, "
                f"**{'reached' if found.winner == 'ours' else 'missed'}**."
            )
    return " ".join(sentences)


APPLICATION = Application(
    title="Group DRO",
    text=(
        "covtype, every tenth row, split 30/30/40 (17,431 rows to train on): whether the forest is lodgepole pine. A "
        "group is an area and an answer; the rarest of the 8 has 0.4% of the rows. A linear score from 0 by "
        "`MovingAverageSGD(beta=0.1)`, a cosine lr, random batches. *GroupDROLoss* is `from_targets(group, "
        "temperature=0.1)` with its default rule, *in-batch group DRO* the soft maximum over the groups of the batch. "
        "*online group DRO* is that of Sagawa et al., 2020, with their step of .01 for the groups' weights. *ERM* is "
        "the mean loss over examples, or *weighing alike* over groups; these two have no objective here."
    ),
    objective="soft maximum of the groups' losses",
    metric="accuracy of the worst group",
    cases=(Case("covtype", 16, 1), Case("covtype", 64, 2)),
    methods=methods,
    run=run,
    lr=lambda case: 0.25,
    quick=Case("digits", 32, 2),
    goal=goal,
)
