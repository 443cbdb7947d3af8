"""(iii) At a fixed B1 + B2, the best B1 is half of it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from fcco_reproduce._config import Settings
from fcco_reproduce._figures import finish, new_figure, style
from fcco_reproduce._runner import Job
from fcco_reproduce._study import Experiment, Finding, Scale
from fcco_reproduce.theory._speedup import described
from fcco_reproduce.theory._tuned import BETA, best, is_control, jobs_of

ROWS = 64
MARGIN = 1.1


def jobs(scale: Scale, settings: Settings) -> list[Job]:
    """Return the jobs of every split on every problem, and of gradient descent."""
    budget = settings["batch"]
    sizes = [{"n": ROWS, "outer_batch": b, "inner_batch": budget - b} for b in settings["outer_batch"]]
    return [job for name in settings["problems"] for job in jobs_of(settings, name, sizes, scale.seeds)]


def _found(results: list[Any], own: Settings, settings: Settings) -> tuple[dict[int, dict[str, Any]], int | None]:
    """Return the fewest steps by B1, and those of gradient descent."""
    mine = [result for result in results if result["problem"] == own["problem"]]
    sox, epsilon = [result for result in mine if not is_control(result)], own["epsilon"][-1]
    control = best([result for result in mine if is_control(result)], epsilon)["steps"]
    return {b: best(sox, epsilon, outer_batch=b) for b in settings["outer_batch"]}, control


def judge(results: list[Any], settings: Settings) -> Finding:
    """Return where the best split is on every problem."""
    budget, rows, near, parts = settings["batch"], [], [], []
    for name, own in settings["problems"].items():
        found, control = _found(results, own, settings)
        rows += [
            {"problem": name, "B1": b, "B2": budget - b, "n / (B1 B2)": ROWS / (b * (budget - b))}
            | {"steps of SOX": one["steps"], "at lr": one["lr"], "at gamma": one["gamma"]}
            | {"steps of gradient descent": control}
            for b, one in found.items()
        ]
        arrived = {b: one["steps"] for b, one in found.items() if one["steps"] is not None}
        if not arrived:
            near.append(False)
            parts.append(f"{name}: no split arrives")
            continue
        fastest, even = min(arrived, key=lambda b: arrived[b]), arrived.get(budget // 2, math.inf)
        near.append(even <= MARGIN * arrived[fastest])
        parts.append(
            f"{name}: B1 = {fastest} is the fastest, with {arrived[fastest]:,} steps, and B1 = {budget // 2} takes "
            f"{even:,}; gradient descent takes {control}"
        )
    text = (
        f"{'; '.join(parts)}. 'Holds' says that no split takes less than 1 / {MARGIN:g} of the steps of B1 = "
        f"{budget // 2}, on any problem. A step costs B1 B2 inner samples: where these are what is paid for rather "
        "than B1 + B2, n / (B1 B2) prefers no split."
    )
    return Finding(rows, all(near), text)


def draw(results: list[Any], settings: Settings) -> Any:
    """Draw steps to epsilon by B1, a panel for every problem."""
    figure, axes = new_figure(len(settings["problems"]))
    budget = settings["batch"]
    for ax, (name, own) in zip(np.atleast_1d(axes), settings["problems"].items(), strict=True):
        found, control = _found(results, own, settings)
        steps = [math.nan if one["steps"] is None else one["steps"] for one in found.values()]
        ax.plot(list(found), steps, label="SOX, tuned for each split", **style(0))
        even = found.get(budget // 2, {"steps": None})["steps"]
        if even is not None:
            fine = np.linspace(min(found), max(found), 100)
            bound = even * (budget / 2) ** 2 / (fine * (budget - fine))
            ax.plot(fine, bound, color="0.45", linestyle=":", label="n / (B1 B2), scaled")
        if control is not None:
            ax.axhline(control, color="0.2", linestyle="--", linewidth=1.2, label="gradient descent")
        finish(ax, f"B1, of B1 + B2 = {budget}", "steps to epsilon", name, log="y")
    return figure


METHOD = (
    "B1 + B2 = {batch}, n = {rows}, with splits on both sides of the middle. The steps to epsilon are those of (ii), "
    f"with lr in {{lr}} and gamma in {{gamma}} chosen for every split and beta = {BETA:g}, on {{problems}}. Gradient "
    "descent has no split to depend on."
)


def experiment(settings: Settings) -> Experiment:
    """Return the experiment on where to split a batch."""
    shown = {key: settings[key] for key in ("batch", "lr", "gamma")}
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim="At a fixed B1 + B2, with tuned rates, half and half is best",
        method=METHOD.format(rows=ROWS, problems=described(settings), **shown),
        jobs=partial(jobs, settings=settings),
        judge=partial(judge, settings=settings),
        draw=partial(draw, settings=settings),
        settings=settings,
    )
