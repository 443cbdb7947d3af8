"""The paper's comparison of methods: curves, and the table of test AP, with every method tuned alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fcco_reproduce._config import Settings
from fcco_reproduce._figures import finish, new_figure, style
from fcco_reproduce._methods import AS_PUBLISHED, TUNED, grid
from fcco_reproduce._runner import Job
from fcco_reproduce._study import Experiment, Finding, Scale
from fcco_reproduce._tables import Row
from fcco_reproduce.ap._runs import (
    Result,
    data_at_hand,
    draw_curves,
    jobs_of,
    mean_and_std,
    network_of,
    number,
    runs_of,
    skipped,
    summary,
)
from fcco_reproduce.ap._settings import OTHERS, TABLES, Setting, published_setting, tuned_setting
from fcco_reproduce.ap._verdict import agrees, compare

METHOD = (
    "Every method starts from the same pre-trained network of its seed with the same new last layer, and sees the "
    "same batches of 32 positives and 32 negatives. BSGD, SOAP, MOAP and SOX are `AveragePrecisionLoss(n, n_pos, "
    "margin=0.6, rule=...)` of `fcco.losses` on sigmoids of the scores: their objective is that of the whole training "
    "set, 2% positive, whatever the batch holds. As in the paper BSGD and SOAP have no momentum, MOAP and SOX have "
    "beta = 0.1; so have the two others. 'in-batch AP' takes the batch as all there is, as a half of positives: the "
    "surrogate of AP that one writes first. BSGD weighs the same terms by the make-up of the training set, so that "
    "the two do not coincide. 'cross entropy' is the pre-training continued, on the same balanced batches. Tuned "
    "alike: lr in {lr}, and for the methods with a table gamma in {gamma}, all pairs, with all seeds; of the pairs "
    "the one is shown that has the highest validation AP at the stop, in the mean over seeds. Methods with a table so "
    "have more tries than the others. gamma is the rate of a row's visit: MOAP, under which all rows decay at every "
    "step, has gamma B1 over the number of positives. Runs stop, as in the paper, where the validation loss is least, "
    "which is the surrogate of AP for all, cross entropy included: 'test AP' is of those weights, 'last test AP' of "
    "the last ones. The test set is balanced, as in the paper, so that 0.5 is chance. 'epochs' are passes over the "
    "negatives until the stop. The paper's values are of another network and of far more steps, and are not to be "
    "compared digit by digit; what can be compared is the order. 'mean train loss' is the mean over all measurements "
    "of a run. 'Holds' says that SOX has the best test AP of the paper's four methods, and the fastest falling train "
    "loss of them. Seconds are processor time of a run, measurements included. Bands are two standard errors; ± and "
    "std are deviations of the seeds."
)


def settings_of(settings: Settings, data: str) -> list[Setting]:
    """The whole grid of every method, and the authors' rates where they are asked for."""
    tuning = settings["tuning"]
    some = [tuned_setting(method, *pair) for method in TABLES for pair in grid(method, **tuning)]
    some += [tuned_setting(method, lr, 1.0) for method in OTHERS for lr in tuning["lr"]]
    if settings["as_published"]:
        some += [
            published_setting(method, paper["lr"], paper["gamma"])
            for method, paper in settings["published"].get(data, {}).items()
        ]
    return some


def jobs(scale: Scale, settings: Settings) -> list[Job]:
    """All of them, on all data sets."""
    return jobs_of(settings, scale, {data: settings_of(settings, data) for data in data_at_hand(settings)})


Chosen = dict[tuple[str, str], tuple[Setting, list[Result]]]


def at_stop(runs: list[Result], measure: str = "validation AP") -> float:
    """A measure where the validation loss was least, in the mean over seeds."""
    return float(np.mean([p[measure] for run in runs for p in run["history"] if p["step"] == run["stopped"]]))


def chosen(
    results: list[Result], settings: Settings, data: str, score: Callable[[list[Result]], float] = at_stop
) -> Chosen:
    """By block and method, the setting that has the highest score, and its runs; one that diverged is out."""
    found: Chosen = {}
    best: dict[tuple[str, str], float] = {}
    for setting in settings_of(settings, data):
        runs = runs_of(results, data, setting)
        place = (AS_PUBLISHED if setting.as_coded else TUNED, setting.method)
        value = -math.inf if any(run["diverged"] for run in runs) else score(runs)
        if place not in found or value > best[place]:
            found[place], best[place] = (setting, runs), value
    return found


def _by_loss(runs: list[Result]) -> float:
    return -at_stop(runs, "validation loss")


def _by_speed(runs: list[Result]) -> float:
    return -float(summary(runs)["mean train loss"])


def other_choices(results: list[Result], settings: Settings, data: str) -> str:
    """What comes of choosing the pair by something else."""

    def ends(score: Callable[[list[Result]], float], key: str, std: str, sign: int) -> str:
        shown = chosen(results, settings, data, score)
        rows = {place[1]: summary(runs) for place, (_, runs) in shown.items() if place[0] == TUNED}
        ordered = sorted(rows.items(), key=lambda item: math.inf if item[1][key] is None else sign * item[1][key])
        return ", ".join(f"{method} {number(row[key], row[std])}" for method, row in ordered)

    return (
        f"{data}, with the pair chosen by validation loss instead of validation AP, test AP: "
        f"{ends(_by_loss, 'test AP', 'test AP std', -1)}. With the pair that is fastest on the training set, mean "
        f"train loss: {ends(_by_speed, 'mean train loss', 'its std', 1)}; test AP with that pair: "
        f"{ends(_by_speed, 'test AP', 'test AP std', -1)}."
    )


def judge(results: list[Any], settings: Settings) -> Finding:
    """The table, and what it says."""
    rows: list[Row] = []
    for data in dict.fromkeys(result["data"] for result in results):
        rows += [
            _row(data, block, setting, runs, settings["published"].get(data, {}).get(setting.method, {}))
            for (block, _), (setting, runs) in chosen(results, settings, data).items()
        ]
    other = " ".join(other_choices(results, settings, data) for data in dict.fromkeys(row["data"] for row in rows))
    verdict = f"{compare(rows, settings['tuning'])} {other}{skipped(settings, results)}"
    return Finding(rows, agrees(rows), verdict)


def _row(data: str, block: str, setting: Setting, runs: list[Result], paper: dict[str, Any]) -> Row:
    found = summary(runs)
    row: Row = {"data": data, "block": block, "method": setting.method, "lr": setting.lr}
    row |= {"gamma": setting.gamma if setting.method in TABLES[1:] else None, "beta": setting.beta}
    row |= {key: found[key] for key in ("test AP", "test AP std")}
    row |= {"paper": paper.get("ap"), "paper std": paper.get("std")}
    row |= {key: found[key] for key in ("last test AP", "last test AP std")}
    row |= {"validation AP": at_stop(runs)}
    row |= {key: found[key] for key in ("mean train loss", "its std", "last train loss", "last train AP")}
    row |= {"epochs": mean_and_std([run["epochs"] for run in runs])[0], "paper epochs": paper.get("epochs")}
    row |= {"seconds": mean_and_std([run["seconds"] for run in runs])[0]}
    return row | {key: found[key] for key in ("runs", "diverged")}


def draw(results: list[Any], settings: Settings) -> Any:
    """Train loss, train AP and test AP of every method as it is shown."""
    names = list(dict.fromkeys(result["data"] for result in results))
    figure, axes = new_figure(3 * len(names), width=3.8)
    for k, data in enumerate(names):
        shown = {
            method: runs for (block, method), (_, runs) in chosen(results, settings, data).items() if block == TUNED
        }
        draw_curves(axes[3 * k : 3 * k + 2], shown, f"{data}, {TUNED}, {network_of(settings)}")
        _draw_tests(axes[3 * k + 2], shown, data)
    return figure


def _draw_tests(ax: Any, shown: dict[str, list[Result]], data: str) -> None:
    """A mark for every seed, and a line at the mean."""
    for k, (method, runs) in enumerate(shown.items()):
        values, look = [run["test AP"] for run in runs], style(method)
        ax.plot(values, [k] * len(values), **{**look, "linestyle": "", "markersize": 5, "alpha": 0.7})
        ax.plot([np.mean(values)] * 2, [k - 0.3, k + 0.3], color=look["color"], linewidth=2)
        ax.text(np.mean(values), k + 0.34, f"{np.mean(values):.3f}", ha="center", va="bottom", fontsize=7)
    ax.set_yticks(range(len(shown)), list(shown), fontsize=8)
    ax.set_ylim(-0.6, len(shown) - 0.2)
    finish(ax, "test AP", "", f"{data}, at the least validation loss")


def experiment(settings: Settings) -> Experiment:
    """The table and the curves."""
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim="SOX is the fastest of the four methods, and has the best test AP",
        method=METHOD.format(**settings["tuning"]),
        jobs=partial(jobs, settings=settings),
        judge=partial(judge, settings=settings),
        draw=partial(draw, settings=settings),
        settings=settings,
    )
