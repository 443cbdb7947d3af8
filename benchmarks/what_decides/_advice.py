"""What :func:`fcco.diagnostics.advise` says early in a run, against what whole runs showed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any, TextIO

import torch
from torch import nn

import fcco
from fcco.diagnostics import Monitor, advise
from fcco_reproduce import run_jobs
from harness.cache import make_job, sources
from harness.excess import BETA, Row, batches, objectives, task
from harness.tables import as_markdown, brief
from what_decides._cells import IN_BATCH, Choice, Problem, advised, tried
from what_decides._measure import Outcome, Outcomes

SEEDS = 3
# Where advise draws the line, and so what counts as a gain.
WORTH_IT = 0.9


def ask(
    objective: str, data: str, batch: int, visits: int, variant: str, lr: float, seed: int, draws: int, sources: str
) -> dict[str, Any]:
    """Train for a quarter of the run, but for at least two passes, with a monitor, and ask how to go on."""
    row = Row(objective, data, batch, visits)
    problem, plan = task(objective, data), batches(row, seed)
    generator = torch.Generator().manual_seed(seed)
    loss_fn: Any = problem.loss(Choice(variant), len(plan))
    w = nn.Parameter(problem.start.clone())
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=BETA, weight_decay=problem.penalty)
    steps = min(max(len(plan) // 4, 2 * len(plan) // visits + 1), len(plan))
    with Monitor(loss_fn) as monitor:
        for t, rows in enumerate(plan[:steps]):
            optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * t / len(plan))) / 2
            optimizer.zero_grad()
            problem.step(loss_fn, w, rows, generator).backward()
            optimizer.step()
    found = advise(
        loss_fn,
        lambda probe, rows: problem.step(probe, w, rows, generator),
        batches(row, seed + 1000),
        [w],
        visits=visits,
        monitor=monitor,
        draws=draws,
    )
    return {
        "use_table": found.use_table,
        "gamma": found.gamma,
        "gain": found.gain,
        "drift": found.drift,
        "noise": found.noise,
    }


@dataclass(frozen=True)
class Verdict:
    """Advice in a situation, over seeds, beside what the runs showed."""

    title: str
    batch: int
    visits: int
    advice: list[dict[str, Any]]
    runs: dict[str, Outcome]  # by variant, the in-batch loss among them
    default: str  # the variant of the loss

    @property
    def use_table(self) -> bool:
        """What most seeds were told."""
        return sum(one["use_table"] for one in self.advice) * 2 > len(self.advice)

    @property
    def gamma(self) -> float:
        return float(median(one["gamma"] for one in self.advice))

    @property
    def ratios(self) -> dict[str, float]:
        """Excess of every γ, as a share of the in-batch loss's."""
        whole = self.runs[IN_BATCH].mean
        return {name: run.mean / whole for name, run in self.runs.items() if name != IN_BATCH}

    @property
    def best(self) -> str:
        return min(self.ratios, key=self.ratios.__getitem__)

    @property
    def nearest(self) -> str:
        """Of the rates that were run, the nearest to the one advised."""
        return min(self.ratios, key=lambda name: abs(float(name.split()[1]) - self.gamma))

    @property
    def followed(self) -> float:
        """The ratio of whoever does as told."""
        return self.ratios[self.nearest] if self.use_table else 1.0

    @property
    def right(self) -> bool:
        """A table that was advised is ahead at its γ; where none was advised, none is ahead by a tenth."""
        return self.ratios[self.nearest] < 1 if self.use_table else self.ratios[self.best] > WORTH_IT


def verdicts(
    problems: Sequence[Problem],
    outcomes: Outcomes,
    *,
    cache: Path | None,
    quick: bool = False,
    progress: TextIO | None = None,
) -> list[Verdict]:
    """The advice in every situation; every seed asks for itself."""
    seeds, draws = (1, 8) if quick else (SEEDS, 400)
    places, jobs = [], []
    for problem in problems:
        for batch, visits in advised(problem):
            cells = tried(problem, batch, visits)
            lr = next(outcomes[cell].lr for cell in cells if cell.variant == problem.default)
            settings = {"objective": problem.objective, "data": problem.data, "batch": batch, "visits": visits}
            settings |= {"variant": problem.default, "lr": lr, "draws": draws}
            settings["sources"] = sources(objectives()[problem.objective].build)
            runs = {cell.variant: outcomes[cell] for cell in cells}
            places.append((problem.title, batch, visits, runs, problem.default))
            jobs += [make_job(ask, {**settings, "seed": seed}) for seed in range(seeds)]
    answers = run_jobs(jobs, cache=cache, progress=progress)
    return [
        Verdict(title, batch, visits, answers[k * seeds : (k + 1) * seeds], runs, default)
        for k, (title, batch, visits, runs, default) in enumerate(places)
    ]


def as_table(found: Sequence[Verdict]) -> str:
    """The verdicts in Markdown, and how many were right."""
    rows = []
    for one in found:
        told = f"{sum(a['use_table'] for a in one.advice)} of {len(one.advice)}"
        rows.append(
            {
                "objective, data": one.title,
                "batch, visits": f"{one.batch}, {one.visits}",
                "seeds told to use a table": told,
                "square error left": f"{mean(a['gain'] for a in one.advice):.2f}",
                "gamma advised": f"{one.gamma:g}",
                "excess / in-batch at that gamma": brief(one.ratios[one.nearest]),
                "best gamma": one.best.split()[1],
                "excess / in-batch at the best": brief(one.ratios[one.best]),
                "right": "yes" if one.right else "**no**",
            }
        )
    followed, default = (
        geometric_mean(ratios)
        for ratios in zip(*((one.followed, one.ratios[one.default]) for one in found), strict=True)
    )
    return (
        f"{as_markdown(rows, markup=True)}\n\nRight: {sum(one.right for one in found)} of {len(found)}. "
        f"Excess / in-batch, geometric mean: {followed:.2f} by following the advice, {default:.2f} with the default of "
        "the loss.\n"
    )
