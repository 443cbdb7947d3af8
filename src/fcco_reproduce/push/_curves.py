"""The paper's two other figures: SOX while B varies, and while gamma does."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fcco_reproduce._config import Settings
from fcco_reproduce._figures import band, finish, new_figure
from fcco_reproduce._methods import CODED, MethodSettings, as_published, data_shown
from fcco_reproduce._runner import Job
from fcco_reproduce._study import Experiment, Finding, Scale
from fcco_reproduce._tables import Row
from fcco_reproduce.push._data import load
from fcco_reproduce.push._descent import repeat
from fcco_reproduce.push._runs import curves, summary

STARTS = ("as published", "from w = 0")


def run_curve(
    *, name: str, data: str, start: str, setting: dict[str, Any], seeds: int, steps: int, every: int
) -> dict[str, Any]:
    """Return test losses of every seed, every so many iterations."""
    made = MethodSettings(**setting)
    runs = repeat(load(data), made, decay=made.decay, seeds=seeds, steps=steps, every=every)
    return {"name": name, "data": data, "start": start, "every": every, **setting, **runs}


def _job(settings: Settings, scale: Scale, name: str, start: str, **changed: Any) -> Job:
    """Return the published SOX, or the same from w = 0 and the first estimate of each row, with some rates changed."""
    sox = settings["sox"][name]
    batch: int = changed.get("batch") or settings["batch"]
    setting = as_published(
        CODED, batch=batch, decay=settings["decay"], **{key: sox[key] for key in ("lr", "gamma", "beta")}
    )
    made = replace(setting, as_coded=start == STARTS[0], **changed)
    size = {"seeds": scale.seeds, "steps": settings["steps"], "every": settings["every"]}
    what = {"name": name, "data": sox["data"], "start": start, "setting": asdict(made)}
    return Job(run_curve, {**what, **size}, cost=batch / 6)


def batch_jobs(scale: Scale, settings: Settings) -> list[Job]:
    """B1 = B2 by themselves."""
    return [
        _job(settings, scale, name, STARTS[0], batch=batch) for name in settings["sox"] for batch in settings["batches"]
    ]


def gamma_jobs(scale: Scale, settings: Settings) -> list[Job]:
    """Return the jobs: gamma by itself, from either start."""
    return [
        _job(settings, scale, name, start, gamma=gamma)
        for name in settings["sox"]
        for start in STARTS
        for gamma in settings["gammas"]
    ]


def _names(results: list[Any]) -> dict[str, str]:
    """Return what to call the data behind each of the paper's sets."""
    return {result["name"]: data_shown(result["name"], result["data"]) for result in results}


def _reached(result: dict[str, Any], level: float | None) -> int | None:
    """Return the first iteration at which the mean loss is at most ``level``; None if all runs diverged."""
    losses = curves(result)
    return int(result["every"] * np.flatnonzero(losses.mean(axis=0) <= level)[0]) if len(losses) else None


def _needed(row: Row) -> str:
    count = row["iterations to it"]
    return f"{'divergence' if count is None else f'{count:,}'} (B = {row['B']})"


def judge_batches(results: list[Any]) -> Finding:
    """Return iterations until the mean loss is the highest of those at the end."""
    rows, fewer, parts = [], True, []
    for name, shown in _names(results).items():
        mine = [result for result in results if result["name"] == name]
        level = max((summary(result)["test loss"] for result in mine if len(curves(result))), default=None)
        some = [
            {"data": result["data"], "B": 2 * result["batch"], **summary(result), "level": level}
            | {"iterations to it": _reached(result, level)}
            for result in mine
        ]
        needed = [row["iterations to it"] for row in some]
        fewer = fewer and None not in needed and all(a >= b for a, b in pairwise(needed))
        parts.append(f"{shown} " + ", ".join(_needed(row) for row in some))
        rows += some
    lost, runs = sum(row["diverged"] for row in rows), sum(len(result["losses"]) for result in results)
    text = (
        f"Iterations to the highest of the final losses: {'; '.join(parts)}. {lost} of {runs} runs diverge from the "
        "authors' weights, and means are over the others. Iterations are not work: with twice the batch each costs "
        "about twice as much."
    )
    return Finding(rows, fewer, text)


def judge_gammas(results: list[Any]) -> Finding:
    """Return the loss at the end by gamma."""
    rows = [{"data": r["data"], "start": r["start"], "gamma": r["gamma"], **summary(r)} for r in results]
    parts, holds = [], True
    for name, shown in _names(results).items():
        for start in STARTS:
            found = {r["gamma"]: summary(r) for r in results if (r["name"], r["start"]) == (name, start)}
            best = _best(found)
            holds = holds and (start == STARTS[1] or best != 1.0)
            parts.append(f"{shown}, {start}: {_sentence(found, best)}")
    return Finding(rows, holds, " ".join(parts))


def _best(found: dict[float, Row]) -> float | None:
    """Return the gamma with the lowest loss, among those with which no run diverges."""
    whole = {gamma: row["test loss"] for gamma, row in found.items() if not row["diverged"]}
    return min(whole, key=lambda gamma: whole[gamma], default=None)


def _sentence(found: dict[float, Row], best: float | None) -> str:
    if not found:
        return "not run."
    lost = ", ".join(f"{row['diverged']} at {gamma}" for gamma, row in found.items() if row["diverged"])
    tail = f" Runs that diverge: {lost}." if lost else " No run diverges."
    if best is None:
        return "with every gamma a run diverges." + tail
    losses = [row["test loss"] for row in found.values() if not row["diverged"]]
    one, least = found.get(1.0), found[best]
    text = f"gamma = {best} is best, with {least['test loss']:.4f} ± {least['std']:.4f}, and the worst is at "
    text += f"{max(losses):.4f}"
    if one is None:
        return text + "." + tail
    if not one["diverged"] and best != 1.0:
        away = (one["test loss"] - least["test loss"]) / max(one["std"], least["std"])
        text += f"; gamma = 1 ends at {one['test loss']:.4f}, {away:.1f} standard deviations of a run above"
    if one["diverged"] and one["test loss"] is not None:
        text += f"; the runs with gamma = 1 that do not diverge end at {one['test loss']:.4f}"
    return text + "." + tail


def draw_batches(results: list[Any]) -> Any:
    """Draw a panel for every data set."""
    figure, axes = new_figure(len(_names(results)), width=4.2)
    for ax, (name, shown) in zip(axes, _names(results).items(), strict=True):
        _lines(ax, {f"B = {2 * r['batch']}": r for r in results if r["name"] == name})
        finish(ax, "iterations", "test loss" if ax is axes[0] else "", f"SOX (code) on {shown}")
    return figure


def draw_gammas(results: list[Any]) -> Any:
    """Draw a panel for every data set and start."""
    panels = [(*names, start) for names in _names(results).items() for start in STARTS]
    figure, axes = new_figure(len(panels), width=3.2)
    for ax, (name, shown, start) in zip(axes, panels, strict=True):
        _lines(ax, {f"gamma = {r['gamma']}": r for r in results if (r["name"], r["start"]) == (name, start)})
        finish(ax, "iterations", "test loss" if ax is axes[0] else "", f"SOX (code) on {shown}, {start}")
    return figure


def _lines(ax: Any, labelled: dict[str, dict[str, Any]]) -> None:
    """Draw curves, on an axis for all but their first tenth: random weights begin up to hundreds of times higher."""
    shown: list[float] = []
    for k, (label, result) in enumerate(labelled.items()):
        losses, lost = curves(result), summary(result)["diverged"]
        if len(losses):
            points = losses.shape[1]
            x, name = [result["every"] * i for i in range(points)], label + (f" ({lost} diverge)" if lost else "")
            band(ax, x, losses, name, k, above_zero=True)
            shown += losses[:, points // 10 :].mean(axis=0).tolist()
    if shown:
        ax.set_ylim(0.97 * min(shown), 1.05 * max(shown))


def batches(settings: Settings) -> Experiment:
    """Return the experiment that varies B."""
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim="SOX needs fewer iterations as B grows",
        method=(
            f"SOX (code) as published but for B1 = B2 in {settings['batches']}, that is B = B1 + B2; rates stay the "
            f"same. The test loss every {settings['every']} iterations. The paper does not say which B its figure has. "
            "Bands are two standard errors."
        ),
        jobs=partial(batch_jobs, settings=settings),
        judge=judge_batches,
        draw=draw_batches,
        settings=settings,
    )


def gammas(settings: Settings) -> Experiment:
    """Return the experiment that varies gamma."""
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim="gamma = 1 is not the best choice",
        method=(
            f"SOX (code) as published but for gamma in {settings['gammas']}. The authors' start, weights from U(-1, 1) "
            "and u = 0, multiplies the first gradients by powers of gamma, a warm-up that is the longer the smaller "
            "gamma is. So the same once more from w = 0, with rows that begin at their first estimate: here gamma "
            "averages and does nothing else, and gamma = 1 is BSGD with momentum. 'Holds' is about the authors' start, "
            "and of the gamma with which no run diverges. The paper does not say which gamma its figure has. Bands are "
            "two standard errors."
        ),
        jobs=partial(gamma_jobs, settings=settings),
        judge=judge_gammas,
        draw=draw_gammas,
        settings=settings,
    )
