"""Train a variant on a task, and measure its excess: the exact objective after training less its exact minimum.

Seeds draw the same batches for all variants. The optimizer is ``MovingAverageSGD`` with beta 0.1, and its learning rate
falls to 0 along a cosine.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import import_module
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fcco
from fcco_reproduce import Job
from harness.cache import make_job, sources
from harness.exact import minimise
from harness.search import Found, search_lr
from harness.tasks import Task, Variant

BETA = 0.1


class Row(NamedTuple):
    """A row of the table of an objective."""

    objective: str
    data: str
    batch: int
    passes: int

    def __str__(self) -> str:
        return f"{self.data}, {self.batch}, {self.passes}"


class Excess(NamedTuple):
    """The excess of a variant in a row at its best learning rate, and its standard error over seeds."""

    excess: float
    error: float
    lr: float
    at_end: bool = False


def objectives() -> Any:
    """Return all objectives by name.

    They are looked up at run time, so that the key of a result covers the code of its own objective
    (:func:`task_job`) and not that of all others.
    """
    return import_module("harness.objectives").OBJECTIVES


@lru_cache
def task(objective: str, data: str) -> Task:
    """Return the task of an objective on a data set."""
    found: Task = objectives()[objective].build(data)
    return found


@lru_cache(maxsize=64)
def batches(row: Row, seed: int) -> list[Tensor]:
    """Return the batches of a run."""
    return list(task(row.objective, row.data).batches(row.batch, row.passes, seed))


def train(row: Row, variant: Variant, lr: float, seed: int) -> float:
    """Train once and return the exact objective, or ``inf`` if training diverged."""
    problem, plan = task(row.objective, row.data), batches(row, seed)
    generator = torch.Generator().manual_seed(seed)
    loss_fn = problem.loss(variant, len(plan))
    w = nn.Parameter(problem.start.clone())
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=BETA, weight_decay=problem.penalty)
    for t, rows in enumerate(plan):
        optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * t / len(plan))) / 2
        optimizer.zero_grad()
        try:
            problem.step(loss_fn, w, rows, generator).backward()
        except fcco.NotFiniteError:
            return math.inf
        optimizer.step()
        if not w.detach().abs().max() < 1e9:
            return math.inf
    value = problem.objective(w.detach().double()).item()
    return value if math.isfinite(value) else math.inf


def minimum(objective: str, data: str, iterations: int, sources: str = "") -> float:
    """Return the minimum that L-BFGS finds on all data, from the same start as training.

    ``sources`` only distinguishes results of different code.
    """
    problem = task(objective, data)
    w = nn.Parameter(problem.start.double())
    minimise(lambda: problem.objective(w), [w], iterations)
    return problem.objective(w.detach()).item()


def tune(row: list[Any], variant: str, grid: dict[str, Any], seeds: int, sources: str) -> Found:
    """Search the learning rate of a variant in a row; ``grid`` holds the arguments of :func:`search_lr`."""
    place, chosen = Row(*row), Variant(variant)
    return search_lr(lambda lr, seed: train(place, chosen, lr, seed), seeds=seeds, **grid)


def minimum_job(objective: str, data: str, iterations: int) -> Job:
    """Return the job that computes the minimum of an objective."""
    of = sources(objectives()[objective].build)
    return make_job(minimum, {"objective": objective, "data": data, "iterations": iterations, "sources": of})


def tune_job(row: Row, variant: str, grid: dict[str, Any], seeds: int) -> Job:
    """Return the job that tunes a variant in a row; its cost is the number of steps of a run."""
    settings = {"row": list(row), "variant": variant, "grid": grid, "seeds": seeds}
    settings["sources"] = sources(objectives()[row.objective].build)
    return make_job(tune, settings, cost=len(batches(row._replace(passes=1), 0)) * row.passes)


def as_excess(found: Found, lowest: float) -> Excess:
    """Return the mean excess over seeds and its standard error, which is NaN for one seed or a run that diverged."""
    scores = found.scores
    known = len(scores) > 1 and max(scores) < math.inf
    error = stdev(scores) / math.sqrt(len(scores)) if known else math.nan
    return Excess(fmean(scores) - lowest, error, found.lr, found.at_end)
