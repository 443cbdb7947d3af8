"""The paper's figure of one data set, with the methods tuned alike and, on usps, full batches beside it."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from fcco_reproduce._config import Settings
from fcco_reproduce._figures import band, finish, new_figure
from fcco_reproduce._methods import (
    AS_PUBLISHED,
    CODED,
    EXACT,
    FROM_VISIT,
    PRINTED,
    SAME_STEPS,
    TUNED,
    MethodSettings,
    as_published,
    as_tuned,
    data_shown,
    published_rates,
)
from fcco_reproduce._paper import paper_name
from fcco_reproduce._runner import Job
from fcco_reproduce._study import Experiment, Finding, Scale
from fcco_reproduce._tables import Row
from fcco_reproduce.nca import _verdict
from fcco_reproduce.nca._data import Array, at_hand, load, loss, penalty
from fcco_reproduce.nca._descent import descend
from fcco_reproduce.nca._exact import minimise
from fcco_reproduce.nca._tuning import tune

READING = 0.005  # what a value read off a figure may be off
_MOST_PAIRS = 10**8  # above, the objective of the training part takes longer than a run


def run_setting(*, data: str, block: str, method: str, setting: dict[str, Any], **size: Any) -> dict[str, Any]:
    """Run a method with the given rates; ``size`` is width, seeds, steps and every."""
    runs = _repeat(data, MethodSettings(**setting), **size)
    return {"data": data, "block": block, "method": method, **setting, **runs}


def run_tuned(*, data: str, method: str, tuning: dict[str, Any], fixed: dict[str, Any], **size: Any) -> dict[str, Any]:
    """Run a method with the best rates of the grid; ``fixed`` is batch and decay."""
    best = tune(load(data), method, **tuning, **fixed, width=size["width"], steps=size["steps"])
    setting = as_tuned(method, lr=best["lr"], gamma=best["gamma"], **fixed)
    return {**run_setting(data=data, block=TUNED, method=method, setting=asdict(setting), **size), **best}


def run_exact(*, data: str, width: int, iterations: int, decay: float) -> dict[str, Any]:
    """Run L-BFGS on the full objective from the start of seed 0."""
    split = load(data)
    begun = time.process_time()
    run = minimise(split, width=width, seed=0, iterations=iterations, decay=decay)
    seconds = time.process_time() - begun
    method = f"L-BFGS, {len(run.losses) - 1} iterations"
    measured = {"losses": [run.losses], "objectives": [_objective(data, run.a, decay)], "seconds": [seconds]}
    return {"data": data, "block": EXACT, "method": method, **measured}


def _repeat(data: str, setting: MethodSettings, *, width: int, seeds: int, steps: int, every: int) -> dict[str, Any]:
    """Return test losses, training objectives and seconds, tests included, of the seeds 0, 1, ..."""
    split, losses, objectives, seconds = load(data), [], [], []
    for seed in range(seeds):
        begun = time.process_time()
        run = descend(split, setting, width=width, seed=seed, steps=steps, every=every)
        seconds.append(time.process_time() - begun)
        losses.append(run.losses)
        objectives.append(_objective(data, run.a, setting.decay))
    at = list(range(0, steps + 1, every))
    return {"losses": losses, "objectives": objectives, "seconds": seconds, "at": at}


def _objective(data: str, a: Array, decay: float) -> float | None:
    """Return what is minimised: the loss of the training part and the weight decay."""
    train = load(data).train
    return None if len(train.y) ** 2 > _MOST_PAIRS else loss(train, a) + penalty(a, decay)


def jobs(scale: Scale, settings: Settings) -> list[Job]:
    """Return the jobs: the authors' settings, Algorithm 1, BSGD with SOX's step, all tuned, and full batches."""
    data, tuning = at_hand(settings["data"]), settings["tuning"]
    fixed: dict[str, Any] = {key: settings[key] for key in ("batch", "decay")}
    size = {"data": data, "seeds": scale.seeds, **{key: settings[key] for key in ("width", "steps", "every")}}
    coded = {method: as_published(method, **some, **fixed) for method, some in published_rates(settings).items()}
    made = [(AS_PUBLISHED, method, setting) for method, setting in coded.items()]
    made.append((FROM_VISIT, PRINTED, replace(coded[CODED], rule="sox", first_visit=True)))
    made.append((SAME_STEPS, "BSGD", replace(coded[CODED], rule="bsgd", gamma=1.0)))
    unit = settings["width"] / 10
    some = [
        Job(run_setting, {**size, "block": block, "method": method, "setting": asdict(setting)}, scale.seeds * unit)
        for block, method, setting in made
    ]
    some += [
        Job(
            run_tuned,
            {**size, "method": method, "tuning": tuning, "fixed": fixed},
            cost=unit * len(tuning["lr"]) * (1 if method == "BSGD" else len(tuning["gamma"])),
        )
        for method in (*coded, PRINTED)
    ]
    if settings["lbfgs"]:
        exact = {"data": data, "width": settings["width"], "decay": settings["decay"]}
        some.append(Job(run_exact, {**exact, "iterations": settings["lbfgs"]}, cost=30))
    return some


def judge(results: list[Any], settings: Settings) -> Finding:
    """Return the table, and how far it is from the paper's figure."""
    rows = [_row(result, settings) for result in results]
    return Finding(rows, _verdict.agrees(rows), _verdict.compare(rows, settings["tuning"]))


def _row(result: dict[str, Any], settings: Settings) -> Row:
    accuracy = -np.array([run[-1] for run in result["losses"]], dtype=float)
    published = result["block"] == AS_PUBLISHED and result["data"] in (settings["name"], at_hand(settings["name"]))
    low, high = settings["range"]
    row: Row = {"data": result["data"], "block": result["block"], "method": result["method"]}
    row |= {key: result.get(key) for key in ("lr", "gamma", "beta")}
    row |= {
        "-(test loss)": float(accuracy.mean()),
        "std": float(accuracy.std()) if len(accuracy) > 1 else None,
        "best on the way": float(-np.mean(np.array(result["losses"], dtype=float), axis=0).min()),
        "paper's figure": f"{low:g} to {high:g}" if published else None,
        "their code, seed 0": settings["their_code"].get(paper_name(result["method"])) if published else None,
        "in its range": bool(low - READING <= accuracy.mean() <= high + READING)
        if published and result["data"] == settings["name"]
        else None,
    }
    objectives = np.array(result["objectives"], dtype=float)
    row["train objective"] = None if np.isnan(objectives).all() else float(objectives.mean())
    row |= {"seconds": float(np.mean(result["seconds"]))}
    return row | {"runs": len(accuracy), "diverged": int(np.isnan(accuracy).sum())}


def draw(results: list[Any]) -> Any:
    """Draw -(test loss) by iterations, as published and tuned alike."""
    figure, axes = new_figure(2, width=4.2)
    exact = [-result["losses"][0][-1] for result in results if result["block"] == EXACT]
    ends = []
    for ax, block in zip(axes, (AS_PUBLISHED, TUNED), strict=True):
        blocks = (block, FROM_VISIT) if block == AS_PUBLISHED else (block,)
        for result in (r for r in results if r["block"] in blocks):
            runs = -np.array(result["losses"], dtype=float)[:, 1:]
            band(ax, result["at"][1:], runs, result["method"], result["method"])
            ends.append(runs.mean(axis=0))
        for level in exact:
            ax.axhline(level, color="0.2", linestyle=":", linewidth=1.6, label="full batch, L-BFGS")
        finish(ax, "iterations", "-(test loss)" if ax is axes[0] else "", f"{results[0]['data']}, {block}")
    levels = np.concatenate([*ends, exact])
    margin = 0.05 * float(np.nanmax(levels) - np.nanmin(levels))
    for ax in axes:
        ax.set_ylim(np.nanmin(levels) - margin, np.nanmax(levels) + margin)
    return figure


def experiment(settings: Settings) -> Experiment:
    """Return the experiment on one data set."""
    tuning = settings["tuning"]
    method = METHOD.format(lr=tuning["lr"], gamma=tuning["gamma"], reading=READING)
    if settings["lbfgs"]:
        method += EXACT_METHOD.format(iterations=settings["lbfgs"])
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim=f"{data_shown(settings['name'], settings['data'])}: the paper's figure",
        method=method + (SUBSET_METHOD if settings["data"] == "sensorless" else ""),
        jobs=partial(jobs, settings=settings),
        judge=partial(judge, settings=settings),
        draw=draw,
        settings=settings,
    )


METHOD = (
    "As published: the authors' rates, and what their code does where it departs from the paper: the gradient goes "
    "through the moving average, which gives it a factor gamma; f is differentiated at the updated row, so that 'SOX "
    "(code)' is SOAP's table with momentum; lr is that of torch's SGD with momentum, and stands here divided by beta; "
    "rows of u start at 0; batches are drawn with replacement, and two copies of a row are each other's neighbours, "
    "with equal estimates. f does not change when u is multiplied by a number, so that MOAP's n/B cancels in a "
    "gradient that goes through u. As printed: 'SOX (Algorithm 1)', which differentiates f at the row before its "
    "update and has no factor gamma, with the rates and batches of 'SOX (code)'; rows begin at their first estimate, "
    "since f = -u_1 / u_2 has no gradient at u = 0. Same steps: BSGD with the lr and beta of SOX. Tuned alike: this "
    "library's methods, as `fcco.losses.NCALoss(n, rule=...)` has them, on batches of shuffled passes; beta = 0.1 for "
    "MOAP and both forms of SOX (Algorithm 1 without the floor of `fcco.SOX`), lr in {lr} and gamma in {gamma}, all "
    "pairs, by the loss of one run with another seed on a tenth of the training part held out, for the same number of "
    "steps. gamma is the rate of a row's visit: MOAP, under which all rows decay at every step, has gamma B/n. BSGD "
    "is the loss of the batch alone. 'train objective' is what is minimised, weight decay included, where all pairs "
    "of training rows are not too many. 'In its range' allows {reading:g} for reading the figure. 'Best on the way' "
    "is the best of the mean curve. Seconds are processor time of one run, tests included. Bands are two standard "
    "errors; ± and std are deviations of the seeds. One run decides the tuning, so that between pairs closer than the "
    "seeds' deviation chance does. 'Holds' says that the published runs all end in the range of the paper's curves, "
    "and that SOX (code) has the best mean of them, by however little."
)
EXACT_METHOD = " Exact: L-BFGS on the objective over all pairs, {iterations} iterations, from the start of seed 0."
SUBSET_METHOD = (
    " On a machine that has only the subset of 200 rows a class (1,980 to train on, 220 to test), it stands in for the "
    "58,509 rows, and the table says so. Test points are each other's neighbours, so that fewer of them lie farther "
    "apart: its losses are not the paper's, and only their order can be compared."
)
