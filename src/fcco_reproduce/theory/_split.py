"""(iii) At a fixed B1 + B2, the best B1 is half of it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from fcco.solvers.problems import pseudo_huber
from fcco_reproduce._config import Settings
from fcco_reproduce._figures import COLOURS, finish, new_figure, style
from fcco_reproduce._runner import Job
from fcco_reproduce._study import Experiment, Finding, Scale
from fcco_reproduce._tables import cell
from fcco_reproduce.theory._iterations import STEP_FACTOR, iterations, spread
from fcco_reproduce.theory._replicas import Replicas

BUDGET = 32
ROWS = 64
STEPS = 300


def by_theorem(*, outer_batch: int, seeds: int) -> dict[str, Any]:
    """Steps to epsilon = 0.25 with rates proportional to Theorem 1's for this split."""
    sizes: dict[str, Any] = {
        "epsilon": 0.25,
        "n": ROWS,
        "outer_batch": outer_batch,
        "inner_batch": BUDGET - outer_batch,
    }
    return {"outer_batch": outer_batch, **iterations(**sizes, step_factor=STEP_FACTOR, seeds=seeds)}


def by_tuning(*, outer_batch: int, lr: float, gamma: float, steps: int, seeds: int) -> dict[str, Any]:
    """|grad F|^2 of every seed, the mean of the second half of the steps, on a noisier problem."""
    problem = pseudo_huber(n=ROWS, sigma=3.0, zeta=5.0)
    sizes: dict[str, Any] = {"outer_batch": outer_batch, "inner_batch": BUDGET - outer_batch}
    runs = Replicas(problem, "SOX", count=seeds, seed=2, every_row=True, **sizes)
    found = []
    for step in range(steps):
        runs.step(lr=lr, beta=0.5, gamma=gamma)
        if step >= steps // 2 and step % 5 == 0:
            found.append(runs.squared_gradient())
    return {"outer_batch": outer_batch, "lr": lr, "gamma": gamma, "gradients": torch.stack(found).mean(dim=0).tolist()}


def jobs(scale: Scale, settings: Settings) -> list[Job]:
    """Every split, by the theorem and on a grid of lr and gamma."""
    splits, steps = settings["outer_batch"], {"steps": STEPS, "seeds": scale.seeds}
    some = [Job(by_theorem, {"outer_batch": b, "seeds": scale.seeds}, cost=40_000 / (b * (BUDGET - b))) for b in splits]
    some += [
        Job(by_tuning, {"outer_batch": b, "lr": lr, "gamma": gamma, **steps}, cost=STEPS)
        for b in splits
        for lr in settings["lr"]
        for gamma in settings["gamma"]
    ]
    return some


def _parts(results: list[Any]) -> tuple[list[Any], list[Any]]:
    """Results by the theorem, and the best of the grid for every split."""
    by_rates = [r for r in results if "mean" in r]
    tuned = []
    for split in (r["outer_batch"] for r in by_rates):
        same = [r for r in results if "gradients" in r and r["outer_batch"] == split]
        tuned.append(min(same, key=lambda r: float(np.mean(r["gradients"]))))
    return by_rates, tuned


def judge(results: list[Any]) -> Finding:
    """Where the best split is, by both measures."""
    by_rates, tuned = _parts(results)
    rows = []
    for rates, best in zip(by_rates, tuned, strict=True):
        outer = rates["outer_batch"]
        gradients = np.array(best["gradients"])
        rows.append(
            {"B1": outer, "B2": BUDGET - outer, "n / (B1 B2)": ROWS / (outer * (BUDGET - outer))}
            | {"steps to epsilon": rates["mean"], "tuned: |grad F|^2": float(gradients.mean())}
            | {"+-": 2 * float(gradients.std(ddof=1)) / math.sqrt(len(gradients))}
            | {"at lr": best["lr"], "at gamma": best["gamma"]}
        )
    fastest = min(rows, key=lambda row: row["steps to epsilon"] or math.inf)
    steepest = min(rows, key=lambda row: row["tuned: |grad F|^2"])
    arrived = fastest["steps to epsilon"] is not None
    near = arrived and abs(fastest["B1"] - BUDGET / 2) <= BUDGET / 4
    even = min(rows, key=lambda row: abs(row["B1"] - BUDGET / 2))
    loss = even["tuned: |grad F|^2"] / steepest["tuned: |grad F|^2"]
    compared = "" if even is steepest else f", and that of B1 = {even['B1']} is {loss:.1f} times as large"
    counts = [cell(row["steps to epsilon"]) or "too many" for row in (fastest, even)]
    first = f"B1 = {fastest['B1']} of {BUDGET} is fastest ({counts[0]} steps; {counts[1]} at B1 = {even['B1']})"
    predicted = "as n / (B1 B2) says" if near else f"where n / (B1 B2) is least at B1 = {BUDGET // 2}"
    text = (
        f"With rates proportional to the theorem's, {first if arrived else 'no split arrives'}, {predicted}. With lr "
        f"and gamma tuned for every split instead, the smallest gradient after {STEPS} steps is at B1 = "
        f"{steepest['B1']}{compared}; the grid is coarse and the curve rough. A step costs B1 B2 inner samples: where "
        "these are what is paid for rather than B1 + B2, n / (B1 B2) prefers no split."
    )
    return Finding(rows, near, text)


def draw(results: list[Any]) -> Any:
    """Steps to epsilon, and tuned gradients, by B1."""
    by_rates, tuned = _parts(results)
    figure, (left, right) = new_figure(2)
    splits = [r["outer_batch"] for r in by_rates]
    steps = [r["mean"] for r in by_rates]
    low, high = zip(*map(spread, by_rates), strict=True)
    left.plot(splits, steps, label="Theorem 1's rates x factors", **style(0))
    left.fill_between(splits, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    middle = len(splits) // 2
    scale = steps[middle] * splits[middle] * (BUDGET - splits[middle])
    fine = np.linspace(splits[0], splits[-1], 100)
    left.plot(fine, scale / (fine * (BUDGET - fine)), color="0.45", linestyle=":", label="n / (B1 B2), scaled")
    finish(left, "B1, of B1 + B2 = 32", "steps to epsilon", log="y")
    values = np.array([r["gradients"] for r in tuned])
    error = 2 * values.std(axis=1, ddof=1) / math.sqrt(values.shape[1])
    right.errorbar(splits, values.mean(axis=1), error, capsize=2, label="lr and gamma tuned for each split", **style(1))
    finish(right, "B1, of B1 + B2 = 32", f"$|\\nabla F|^2$ after {STEPS} steps", log="y")
    return figure


METHOD = (
    f"B1 + B2 = {BUDGET}, n = {ROWS}. Left: steps to epsilon = 0.25 as in (ii), with the rates that Theorem 1 "
    "gives for the split, times the same factors. Right: no theorem; on the noisier `pseudo_huber(sigma=3.0, "
    f"zeta=5.0)`, |grad F|^2 in the second half of {STEPS} steps, with lr in {{lr}} and gamma in {{gamma}} "
    "chosen for every split and beta = 0.5. Bands: from the fastest to the slowest seed (left), two standard "
    "errors (right)."
)


def experiment(settings: Settings) -> Experiment:
    """Where to split a batch."""
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim="At a fixed B1 + B2, half and half is best",
        method=METHOD.format(lr=settings["lr"], gamma=settings["gamma"]),
        jobs=partial(jobs, settings=settings),
        judge=judge,
        draw=draw,
        settings=settings,
    )
