"""One experiment of the study: every method on one objective, tuned alike, next to the exact minimum."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fcco_reproduce._config import Settings
from fcco_reproduce._figures import band, finish, new_figure, note_divergence
from fcco_reproduce._runner import Job
from fcco_reproduce._study import Experiment, Finding, Scale
from fcco_reproduce._tables import Row
from fcco_reproduce.quick._objectives import DIGITS, Objective, P, make
from fcco_reproduce.quick._runs import RunsByRate, optimum

POINTS = 20
TUNING, TEST = 101, 0  # the draws of the one are not those of the other
ORDER = ("BSGD", "SOAP", "MOAP", "SOX", "SCGD", "NASA")


def jobs(scale: Scale, settings: Settings) -> list[Job]:
    """Return the jobs: the exact minimum, and every method at every batch size."""
    objective, steps, gammas = settings["objective"], settings["steps"], settings["gamma"]
    one = Job(minimum, {"objective": objective, "iterations": settings["lbfgs"]}, cost=steps)
    size = {"steps": steps, "rates": settings["lr"], "seeds": scale.seeds, "tuning_seeds": settings["tuning_seeds"]}
    return [one] + [
        Job(
            compare,
            {"objective": objective, "method": method, "batch": batch, **size}
            | {"gammas": [1.0] if method == "BSGD" else gammas},
            cost=steps * (2 if method == "BSGD" else 1 + len(gammas)),
        )
        for batch in settings["batches"]
        for method in settings["methods"]
    ]


def _starts(objective: Objective, seeds: int, seed: int) -> Tensor:
    """Return the starting points: zeros for scores, and U(-1, 1) / sqrt(d) for an embedding.

    For an embedding, all zeros would be a saddle point.
    """
    if objective.shape[0] == 1:
        return torch.zeros(seeds, *objective.shape)
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(seeds, *objective.shape, generator=generator) - 1) / objective.shape[1] ** 0.5


def minimum(*, objective: str, iterations: int) -> dict[str, float]:
    """Return what L-BFGS reaches on the exact objective, from where the first run starts."""
    # Scores are cheap, and their minima flat: twice the digits.
    dtype = torch.float64 if make(objective).shape[0] == 1 else torch.float32
    made, start = make(objective, dtype), _starts(make(objective), 1, TEST)[0].to(dtype)
    return {"start": float(made.value(start[None])), "minimum": optimum(made, start, iterations)}


def _exact(objective: Objective, weights: Tensor, diverged: Tensor) -> list[float]:
    """Return F of every run, one at a time, since all pairs take memory; infinite where it diverged."""
    with torch.no_grad():
        values = [float(objective.value(w[None])) for w in weights]
    return [v if math.isfinite(v) and not out else math.inf for v, out in zip(values, diverged.tolist(), strict=True)]


def compare(
    *,
    objective: str,
    method: str,
    batch: int,
    steps: int,
    rates: Sequence[float],
    gammas: Sequence[float],
    seeds: int,
    tuning_seeds: int,
) -> dict[str, Any]:
    """Return the best lr and gamma by the mean exact objective at the end on tuning seeds, run again on others."""
    made = make(objective)
    scores: dict[tuple[float, float], float] = {}
    for gamma in gammas:
        starts = _starts(made, tuning_seeds, TUNING)
        runs = RunsByRate(made, method, tuple(rates), starts, steps=steps, batch=batch, gamma=gamma, seed=TUNING)
        for _ in range(steps):
            runs.step()
        ends = _exact(made, runs.weights, runs.diverged)
        for k, lr in enumerate(rates):
            scores[lr, gamma] = statistics.fmean(ends[k * tuning_seeds : (k + 1) * tuning_seeds])
    lr, gamma = min(scores, key=lambda pair: scores[pair])
    setting = {"objective": objective, "method": method, "batch": batch, "lr": lr, "gamma": gamma, "steps": steps}
    setting |= {"tried": len(scores), "diverged": sum(score == math.inf for score in scores.values())}
    setting |= {"edge": lr in (rates[0], rates[-1])}
    runs = RunsByRate(made, method, (lr,), _starts(made, seeds, TEST), steps=steps, batch=batch, gamma=gamma, seed=TEST)
    return {**setting, "per step": runs.per_step, **_curve(made, runs, steps)}


def _curve(objective: Objective, runs: RunsByRate, steps: int) -> dict[str, Any]:
    """Return the exact objective of every seed at evenly spaced steps; None where a run has diverged."""
    at = sorted({round(k * steps / POINTS) for k in range(POINTS + 1)})
    values = []
    for step in range(steps + 1):
        if step in at:
            values.append(_exact(objective, runs.weights, runs.diverged))
        if step < steps:
            runs.step()
    return {"at": at, "values": [[v if math.isfinite(v) else None for v in point] for point in values]}


def row(result: dict[str, Any], least: float) -> Row:
    """Return a row of the table."""
    ends = [math.inf if value is None else value for value in result["values"][-1]]
    some = {"batch": f"{result['batch']} + {result['batch']}", "method": result["method"]}
    rest = {"lr": result["lr"], "gamma": None if result["method"] == "BSGD" else result["gamma"]}
    rest |= {"inner evaluations a step": result["per step"], "steps": result["steps"]}
    rest |= {"settings tried": result["tried"], "settings diverged": result["diverged"]}
    if math.inf in ends:
        return {**some, "objective": "diverged", "excess": None, "+-": None, **rest}
    error = 2 * statistics.stdev(ends) / math.sqrt(len(ends))
    mean = statistics.fmean(ends)
    return {**some, "objective": mean, "excess": mean - least, "+-": error, **rest}


def judge(results: list[Any], closing: str) -> Finding:
    """Return whether SOX ends below BSGD, by more than both errors, at every batch size."""
    exact, *runs = results
    rows = [row(result, exact["minimum"]) for result in runs]
    batches = dict.fromkeys(line["batch"] for line in rows)
    parts, ahead = [], True
    for batch in batches:
        found = {line["method"]: line for line in rows if line["batch"] == batch}
        ahead = ahead and _is_ahead(found["SOX"], found["BSGD"])
        known = sorted((line for line in found.values() if line["excess"] is not None), key=lambda line: line["excess"])
        parts.append(f"{batch}: " + ", ".join(f"{line['method']} {line['excess']:.2g}" for line in known))
        for name, line in found.items():
            if line["excess"] is None:
                everywhere = line["settings diverged"] == line["settings tried"]
                parts[-1] += f"; {name} diverged" + (
                    " in all settings" if everywhere else " on a seed that did not tune it"
                )
    edge = [
        f"{r['method']} at {r['batch']} + {r['batch']}" for r in runs if r["edge"] and r["values"][-1][0] is not None
    ]
    ends = f" The best lr is at an end of the grid for {', '.join(edge)}." if edge else ""
    if any(line["excess"] is not None and line["excess"] < 0 for line in rows):
        ends += " Below 0 means below the point that L-BFGS reached in its few iterations from one start."
    text = f"Excess over the exact minimum, best first. {'. '.join(parts)}.{ends} {closing}".rstrip()
    first = [{"batch": None, "method": "at the start", "objective": exact["start"]}]
    first[0]["excess"] = exact["start"] - exact["minimum"]
    first.append({"batch": None, "method": "L-BFGS, all pairs", "objective": exact["minimum"], "excess": 0.0})
    return Finding([*first, *rows], ahead, text)


def _is_ahead(one: Row, other: Row) -> bool:
    if one["excess"] is None or other["excess"] is None:
        return one["excess"] is not None
    return bool(other["excess"] - one["excess"] > math.hypot(one["+-"], other["+-"]))


def draw(results: list[Any]) -> Any:
    """Draw the excess by steps, with one panel per batch size."""
    exact, *runs = results
    batches = list(dict.fromkeys(result["batch"] for result in runs))
    figure, axes = new_figure(len(batches), width=4.4, height=3.4)
    for ax, batch in zip(axes, batches, strict=True):
        for result in (r for r in runs if r["batch"] == batch):
            if any(value is None for point in result["values"] for value in point):
                note_divergence(ax, result["method"])
                continue
            # A log axis ends above 0; what is below the minimum that L-BFGS found is drawn at its lower end.
            excess = [[max(v - exact["minimum"], 1e-6) for v in point] for point in result["values"]]
            by_seed = [list(seed) for seed in zip(*excess, strict=True)]
            band(ax, result["at"], by_seed, result["method"], result["method"], above_zero=True)
        finish(ax, "steps", "F(w) - minimum" if ax is axes[0] else "", f"{batch} + {batch} rows a step", log="y")
    return figure


ABOUT = {
    "p-norm push": (
        f"A linear scorer of ten features of the breast-cancer data, p = {P}, exponential loss, from w = 0: benign "
        "cases outside, malignant ones inside."
    ),
    "NCA": (
        f"A linear embedding of the first {DIGITS:,} digits into ten dimensions, from U(-1, 1) / 8; the rows of a "
        "batch are outer and inner. SCGD and NASA, which would evaluate all rows, are left out. The objective is not "
        "convex, and the minimum that of one start."
    ),
    "average precision": (
        "A linear scorer of ten features of the breast-cancer data, squared hinge with margin 1, from w = 0: malignant "
        "cases outside, all cases inside."
    ),
}
CLOSING = {
    "p-norm push": (
        "MOAP's n/B1 multiplies a row's first estimates, and their p-th power with it: it needs far smaller steps."
    ),
    "average precision": (
        "The problem is easy: the in-batch loss all but reaches the minimum, and there is little for a table to win. "
        "SOX does not bear the large steps of the others here; it alone differentiates f at the row before its update, "
        "and outside log space without a floor."
    ),
}
METHOD = (
    "lr in {lr}, and gamma in {gamma} where a method has one, by the mean exact objective after {steps:,} steps on "
    "{tuning_seeds} seeds that are not used again; lr falls to 0 along a cosine, beta is 0.1 where a method has one. A "
    "setting in which a seed diverges is out. Bands and +- are two standard errors. 'Holds' says that SOX ends below "
    "BSGD by more than both errors, at every batch size, and no more."
)


def experiment(settings: Settings) -> Experiment:
    """Return the experiment that compares every method on one objective.

    Raises
    ------
    ValueError
        If an objective or a method is unknown, or BSGD or SOX is missing from the comparison.
    """
    objective, methods = settings["objective"], settings["methods"]
    if objective not in ABOUT or not {"BSGD", "SOX"} <= set(methods) <= set(ORDER):
        raise ValueError(
            f"{settings['name']} has an objective of {', '.join(ABOUT)} and methods of {', '.join(ORDER)}, BSGD and "
            f"SOX among them; got {objective!r} and {', '.join(methods)}"
        )
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim=settings["claim"],
        method=f"{ABOUT[objective]} {METHOD.format(**settings)}",
        jobs=partial(jobs, settings=settings),
        judge=partial(judge, closing=CLOSING.get(objective, "")),
        draw=draw,
        settings=settings,
    )
