"""Few-shot regression: a start from which one step of gradient descent fits a sine wave, by MAML."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import fcco
from applications import DIVERGED, Application, Case, Method, Result, Table
from fcco.functional import maml_loss
from fcco.functional._meta import Data, adapt, task_losses
from harness.tasks import shuffled
from harness.training import DivergedError, train

OURS, FULL, FIRST = "MAMLLoss", "MAML", "first-order MAML"
STEP, SHOTS, EXAMPLES = 0.01, 5, 50
STEPS = {OURS: 1.0, FULL: 1.0, FIRST: 1.3}
"""How many steps a method has of those of ours: as many as take the same time."""


class Tasks(NamedTuple):
    """Examples to adapt to and to be judged by, each of inputs and targets [tasks, examples, 1]."""

    support: Data
    query: Data


@lru_cache
def load(n: int, seed: int) -> Tasks:
    """Sine waves as Finn et al. have them: amplitudes from .1 to 5, phases from 0 to π, inputs from -5 to 5."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    amplitude, phase = 0.1 + 4.9 * draw(n, 1, 1), math.pi * draw(n, 1, 1)
    inputs = [10 * draw(n, EXAMPLES, 1) - 5 for _ in range(2)]
    return Tasks(*((x, amplitude * torch.sin(x - phase)) for x in inputs))


def build(seed: int) -> nn.Module:
    """Two hidden layers of 40 units."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))


def some(data: Data, rows: Tensor, generator: torch.Generator) -> Data:
    """Five examples of each of some tasks."""
    chosen = torch.rand(len(rows), EXAMPLES, generator=generator).topk(SHOTS, 1).indices
    return tuple(part[rows.unsqueeze(1), chosen] for part in data)  # type: ignore[return-value]


def first_order(model: nn.Module, support: Data, query: Data, _: Tensor) -> Tensor:
    """MAML whose gradient is that at the adapted weights, second derivatives left out."""
    adapted = adapt(model, support, lr=STEP).detach()
    here = parameters_to_vector(model.parameters())
    return task_losses(model, adapted + here - here.detach(), query).mean()


def error(model: nn.Module, tasks: Tasks) -> float:
    """The objective: the mean squared error after a step on all examples of a task."""
    return float(maml_loss(model, tasks.support, tasks.query, lr=STEP).detach())


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once."""
    n = 20 if case.data == "few sines" else 200
    tasks, model = load(n, 0), build(seed)
    rule: dict[str, fcco.Rule] = {} if method == OURS else {"rule": fcco.BSGD()}
    loss_fn = first_order if method == FIRST else fcco.losses.MAMLLoss.for_model(model, n, STEP, **rule)
    generator = torch.Generator().manual_seed(seed)

    def step(rows: Tensor) -> Tensor:
        support, query = (some(part, rows, generator) for part in tasks)
        return loss_fn(model, support, query, rows)

    plan = list(shuffled(n, case.batch, math.ceil(case.passes * STEPS[method]), seed))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    try:
        seconds = train(step, plan[: int(n // case.batch * case.passes * STEPS[method])], [optimizer])
    except DivergedError:
        return DIVERGED
    return Result(error(model, tasks), -error(model, load(200, 1)), -error(model, load(200, 2)), seconds)


def methods(_: Case) -> tuple[Method, ...]:
    """MAML as usual takes five examples for the task."""
    return Method(OURS, "ours"), Method(FULL, "in-batch"), Method(FIRST, "field")


def goal(table: Table) -> str:
    """With four tasks a batch."""
    case = next((case for case in table if case.batch == 4), None)
    if case is None:
        return ""
    mean = {name: float(np.mean(entry.objective)) for name, entry in table[case].items()}
    return (
        "Sought: a lower meta-loss than MAML's and first-order MAML's at equal CPU time, with 4 tasks a batch. "
        f"**{'Reached' if mean[OURS] < min(mean[FULL], mean[FIRST]) else 'Missed'}**: {mean[OURS]:.3f} to "
        f"{mean[FULL]:.3f} and {mean[FIRST]:.3f}."
    )


APPLICATION = Application(
    title="Meta-learning",
    text=(
        "Sine waves (Finn et al., 2017): 200 tasks to train on, 200 others to validate and 200 to test, of 50 examples "
        "to adapt to and 50 to be judged by. Two hidden layers of 40 units, an inner step of .01, Adam, a cosine lr. A "
        "visit to a task draws 5 examples of either kind. *MAMLLoss* has its defaults, a table of adapted weights; "
        "*MAML* is the same without the table, by `torch.func.vmap`; *first-order MAML* leaves the second derivatives "
        "out, and has 1.3 times as many steps in the same CPU time. The objective and the metric adapt to all 50 "
        "examples of a task. (MAML without a table minimises the error after a step on 5, which is another objective.)"
    ),
    objective="mean squared error after one step",
    metric="minus the mean squared error of new tasks after one step",
    cases=(Case("sines", 4, 8), Case("sines", 16, 16)),
    methods=methods,
    run=run,
    lr=lambda case: 0.004,
    quick=Case("few sines", 4, 1),
    goal=goal,
)
