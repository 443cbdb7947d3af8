"""Few-shot regression: MAML finds weights from which one gradient step fits a sine wave."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import fcco
from applications import DIVERGED, Application, Case, Method, Result, Table
from fcco.functional import maml_loss
from fcco.objectives.meta import Data, adapt, task_losses
from harness.tasks import shuffled
from harness.training import DivergedError, train

OURS, FULL, FIRST = "MAMLLoss", "MAML", "first-order MAML"
STEP, SHOTS, EXAMPLES = 0.01, 5, 50
STEPS = {OURS: 1.0, FULL: 1.0, FIRST: 1.3}
"""The number of steps of a method relative to ours, such that both take the same time."""


class Tasks(NamedTuple):
    """Examples to adapt to and to evaluate on, each with inputs and targets of shape [tasks, examples, 1]."""

    support: Data
    query: Data


@lru_cache
def load(n: int, seed: int) -> Tasks:
    """Simulate the sine waves of Finn et al.: amplitudes from .1 to 5, phases from 0 to π, inputs from -5 to 5."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    amplitude, phase = 0.1 + 4.9 * draw(n, 1, 1), math.pi * draw(n, 1, 1)
    inputs = [10 * draw(n, EXAMPLES, 1) - 5 for _ in range(2)]
    return Tasks(*((x, amplitude * torch.sin(x - phase)) for x in inputs))


def build(seed: int) -> nn.Module:
    """Return a network with two hidden layers of 40 units."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))


def some(data: Data, rows: Tensor, generator: torch.Generator) -> Data:
    """Draw five examples of each of some tasks."""
    chosen = torch.rand(len(rows), EXAMPLES, generator=generator).topk(SHOTS, 1).indices
    return tuple(part[rows.unsqueeze(1), chosen] for part in data)  # type: ignore[return-value]


def first_order(model: nn.Module, support: Data, query: Data, _: Tensor) -> Tensor:
    """Return the loss of first-order MAML, whose gradient is that at the adapted weights."""
    adapted = adapt(model, support, lr=STEP).detach()
    here = parameters_to_vector(model.parameters())
    return task_losses(model, adapted + here - here.detach(), query).mean()


def error(model: nn.Module, tasks: Tasks) -> float:
    """Return the objective: the mean squared error after a step on all examples of a task."""
    return float(maml_loss(model, tasks.support, tasks.query, lr=STEP).detach())


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once."""
    n = 20 if case.data == "few sines" else 200
    tasks, model = load(n, 0), build(seed)
    rule: dict[str, Any] = {} if method == OURS else {"rule": fcco.BSGD()}
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
    """Return the methods. The usual MAML adapts to the five examples of a visit only."""
    return Method(OURS, "ours"), Method(FULL, "in-batch"), Method(FIRST, "field")


def goal(table: Table) -> str:
    """Return the verdict on the objective with four tasks per batch."""
    case = next((case for case in table if case.batch == 4), None)
    if case is None:
        return ""
    mean = {name: float(np.mean(entry.objective)) for name, entry in table[case].items()}
    return (
        "Goal: a lower meta-loss than MAML and first-order MAML in the same CPU time, with 4 tasks per batch. Ours is "
        f"{mean[OURS]:.3f}, against {mean[FULL]:.3f} for MAML and {mean[FIRST]:.3f} for first-order MAML: "
        f"**{'reached' if mean[OURS] < min(mean[FULL], mean[FIRST]) else 'missed'}**."
    )


APPLICATION = Application(
    title="Meta-learning",
    text=(
        "The tasks are simulated sine waves (Finn et al., 2017): 200 for training, 200 others for validation and 200 "
        "for testing. Every task has 50 examples to adapt to, and 50 on which the adapted model is evaluated. The "
        "model has two hidden layers of 40 units, the inner step size is 0.01, and the optimizer is Adam. A visit to a "
        "task draws 5 examples of each kind.\n\n"
        "- *MAMLLoss* has its defaults, with a table of adapted weights.\n"
        "- *MAML* is the same loss without the table, computed with `torch.func.vmap`.\n"
        "- *first-order MAML* leaves out the second derivatives. It takes 1.3 times as many steps, in the same CPU "
        "time.\n\n"
        "The objective and the metric adapt to all 50 examples of a task. MAML without a table minimises the error "
        "after a step on 5 examples, which is a different objective."
    ),
    objective="mean squared error of the training tasks after one inner step",
    metric="negative mean squared error of new tasks after one inner step",
    cases=(Case("sines", 4, 8), Case("sines", 16, 16)),
    methods=methods,
    run=run,
    lr=lambda case: 0.004,
    quick=Case("few sines", 4, 1),
    goal=goal,
)
