"""The paper's comparison of methods: curves, and the table of test AP, with every method tuned alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fcco_reproduce._config import Settings
from fcco_reproduce._figures import finish, new_figure, style
from fcco_reproduce._methods import AS_PUBLISHED, TUNED
from fcco_reproduce._paper import paper_name, published
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
    runs_of,
    skipped,
    summary,
)
from fcco_reproduce.ap._settings import OTHERS, TABLES, TrainingSettings, published_setting, tuned_setting
from fcco_reproduce.ap._verdict import agrees, compare

METHOD = (
    "Every method starts from the same pre-trained network of its seed with the same new last layer, and sees the "
    "same batches of 32 positives and 32 negatives, for {steps:,} steps. BSGD, SOAP, MOAP and both forms of SOX are "
    "`AveragePrecisionLoss(n, n_pos, margin=0.6, rule=...)` of `fcco.losses` on sigmoids of the scores. Their "
    "objective is that of the whole training set, 2% positive, whatever the batch holds. As in the paper, BSGD and "
    "SOAP have no momentum; all others have beta = 0.1. 'SOX (code)' is what the authors' code runs, SOAP's table "
    "with momentum; 'SOX (Algorithm 1)' differentiates f at the row before its update, as the paper prints it. "
    "'in-batch AP' takes the batch for all there is: the surrogate of AP that one writes first. BSGD weighs the same "
    "terms by the make-up of the training set, so the two do not coincide. 'cross entropy' is the pre-training "
    "continued, on the same balanced batches. 'cross entropy, then AP' goes on with "
    '`AveragePrecisionLoss(n, n_pos, temperature="auto")` on the scores after half of the steps. Rates are '
    "tuned at this length, with seed 0. Every method begins with lr in {first}. Where the best lr is the last one "
    "tried on a side, the next one of {lr} follows, until the best lies between two others or the list ends; 'lr "
    "tried' says which were run. gamma is not tuned: it is the authors' for SOAP, MOAP and SOX on CIFAR-10. It is the "
    "rate of a row's visit; MOAP, under which all rows decay at every step, has gamma B1 over the number of "
    "positives. The lr with the highest validation AP at the stop is then run with the other seeds. Runs stop, as in "
    "the paper, where the validation loss is least, which is the surrogate of AP for all, cross entropy included. "
    "'test AP' is of those weights, 'last test AP' of the last ones. The test set is balanced, as in the paper, so "
    "0.5 is chance. 'epochs' are passes over the negatives until the stop. The paper's values are of a larger network "
    "and 25 times as many steps. They cannot be compared digit by digit; the order can. 'mean train loss' is the mean "
    "over all measurements of a run. 'Holds' says that one form of SOX has both the best test AP of the paper's "
    "methods and the lowest mean train loss of them. Seconds are processor time of a run, measurements included. "
    "Bands are two standard errors; ± and std are deviations over seeds."
)


TUNING_SEED = 0


def tuned_settings(settings: Settings, lr: Sequence[float]) -> dict[tuple[str, float], list[TrainingSettings]]:
    """Return the settings of every method and gamma, one for each lr."""
    gammas = settings["tuning"]["gamma"]
    pairs = [(method, rate) for method in (*TABLES, *OTHERS) for rate in gammas.get(method, [1.0])]
    return {(method, rate): [tuned_setting(method, step, rate) for step in lr] for method, rate in pairs}


def published_settings(settings: Settings, data: str) -> list[TrainingSettings]:
    """Return the authors' rates, where they are asked for."""
    known = settings["published"].get(data, {}) if settings["as_published"] else {}
    return [published_setting(method, rates["lr"], rates["gamma"]) for method, rates in known.items()]


def jobs(scale: Scale, settings: Settings) -> list[Job]:
    """Return the jobs that come first: the authors' rates, and the middle of the grid with the seed that tunes."""
    names, middle = data_at_hand(settings), settings["tuning"]["first"]
    columns = zip(*tuned_settings(settings, middle).values(), strict=True)
    first = [setting for column in columns for setting in column]
    some = jobs_of(settings, scale, dict.fromkeys(names, first), seeds=[TUNING_SEED])
    return some + jobs_of(settings, scale, {data: published_settings(settings, data) for data in names})


def more_jobs(scale: Scale, results: list[Result], settings: Settings) -> list[Job]:
    """Return the jobs that the results call for.

    Where the best lr of a method and gamma is the last one tried on a side, the grid's next one follows. When no such
    lr is left, the best setting of every method is run with the other seeds.
    """
    wider: dict[str, list[TrainingSettings]] = {}
    final: dict[str, list[TrainingSettings]] = {}
    for data in data_at_hand(settings):
        wider[data] = [
            one
            for some in tuned_settings(settings, settings["tuning"]["lr"]).values()
            for one in _next(results, data, some)
        ]
        final[data] = [
            setting for (block, _), (setting, _) in chosen(results, settings, data).items() if block == TUNED
        ]
    if any(wider.values()):
        return jobs_of(settings, scale, wider, seeds=[TUNING_SEED])
    done = [(result["data"], TrainingSettings(**result["setting"]), result["seed"]) for result in results]
    some = jobs_of(settings, scale, final, seeds=range(1, scale.seeds))
    return [
        job
        for job in some
        if (job.settings["data"], TrainingSettings(**job.settings["setting"]), job.settings["seed"]) not in done
    ]


def _next(results: list[Result], data: str, some: list[TrainingSettings]) -> list[TrainingSettings]:
    """Return the settings next to those tried, on a side where the best one has no neighbour."""
    scores = [_tuning_score(runs_of(results, data, setting)) for setting in some]
    tried = {k: score for k, score in enumerate(scores) if score is not None}
    best = max(tried, key=lambda k: tried[k])
    return [some[k] for k in (best - 1, best + 1) if 0 <= k < len(some) and k not in tried]


def _tuning_score(runs: list[Result]) -> float | None:
    """Return validation AP at the stop, with the seed that tunes; -inf if it diverged, None if it was not run."""
    one = next((run for run in runs if run["seed"] == TUNING_SEED), None)
    if one is None:
        return None
    return -math.inf if one["diverged"] else at_stop([one])


Chosen = dict[tuple[str, str], tuple[TrainingSettings, list[Result]]]


def at_stop(runs: list[Result], measure: str = "validation AP") -> float:
    """Return a measure where the validation loss was least, in the mean over seeds."""
    return float(np.mean([p[measure] for run in runs for p in run["history"] if p["step"] == run["stopped"]]))


def chosen(results: list[Result], settings: Settings, data: str) -> Chosen:
    """Return the setting of every method with the highest score, and its runs, by block and method."""
    found: Chosen = {}
    best: dict[str, float] = {}
    for (method, _), some in tuned_settings(settings, settings["tuning"]["lr"]).items():
        for setting in some:
            runs = runs_of(results, data, setting)
            score = _tuning_score(runs)
            if score is not None and ((TUNED, method) not in found or score > best[method]):
                found[TUNED, method], best[method] = (setting, runs), score
    for setting in published_settings(settings, data):
        found[AS_PUBLISHED, setting.method] = (setting, runs_of(results, data, setting))
    return found


def tried(results: list[Result], data: str, method: str) -> str:
    """Return the lr that a method was tuned over, in words."""
    seen = {r["setting"]["lr"] for r in results if r["data"] == data and r["setting"]["method"] == method}
    return ", ".join(f"{lr:g}" for lr in sorted(seen))


def judge(results: list[Any], settings: Settings) -> Finding:
    """Return the finding: the table and its verdict."""
    rows: list[Row] = []
    for data in dict.fromkeys(result["data"] for result in results):
        rows += [
            _row(data, block, setting, runs, tried(results, data, method) if block == TUNED else None)
            for (block, method), (setting, runs) in chosen(results, settings, data).items()
        ]
    return Finding(rows, agrees(rows), f"{compare(rows)}{skipped(settings, results)}")


def _row(data: str, block: str, setting: TrainingSettings, runs: list[Result], tried: str | None) -> Row:
    found, method = summary(runs), setting.method
    name = paper_name(method)
    row: Row = {"data": data, "block": block, "method": method, "lr": setting.lr, "lr tried": tried}
    row |= {"gamma": setting.gamma if method in TABLES[1:] else None, "beta": setting.beta}
    row |= {key: found[key] for key in ("test AP", "test AP std")}
    row |= dict(zip(("paper", "paper std"), published("test_ap", data, name) or (None, None), strict=True))
    row |= {key: found[key] for key in ("last test AP", "last test AP std")}
    row |= {"validation AP": at_stop(runs)}
    row |= {key: found[key] for key in ("mean train loss", "its std", "last train loss", "last train AP")}
    row |= {"epochs": mean_and_std([run["epochs"] for run in runs])[0]}
    row |= {"paper epochs": (published("epochs", data, name) or (None,))[0]}
    row |= {"seconds": mean_and_std([run["seconds"] for run in runs])[0]}
    return row | {key: found[key] for key in ("runs", "diverged")}


def draw(results: list[Any], settings: Settings) -> Any:
    """Draw train loss, train AP and test AP of every method as it is shown, and test AP at the stop."""
    names = list(dict.fromkeys(result["data"] for result in results))
    figure, axes = new_figure(4 * len(names), width=3.8)
    for k, data in enumerate(names):
        shown = {
            method: runs for (block, method), (_, runs) in chosen(results, settings, data).items() if block == TUNED
        }
        *curves, last = axes[4 * k : 4 * k + 4]
        draw_curves(curves, shown, f"{data}, {TUNED}, {network_of(settings)}")
        _draw_tests(last, shown, data)
    return figure


def _draw_tests(ax: Any, shown: dict[str, list[Result]], data: str) -> None:
    """Draw a mark for every seed, and a line at the mean."""
    for k, (method, runs) in enumerate(shown.items()):
        values, look = [run["test AP"] for run in runs], style(method)
        ax.plot(values, [k] * len(values), **{**look, "linestyle": "", "markersize": 5, "alpha": 0.7})
        ax.plot([np.mean(values)] * 2, [k - 0.3, k + 0.3], color=look["color"], linewidth=2)
        ax.text(np.mean(values), k + 0.34, f"{np.mean(values):.3f}", ha="center", va="bottom", fontsize=7)
    ax.set_yticks(range(len(shown)), list(shown), fontsize=8)
    ax.set_ylim(-0.6, len(shown) - 0.2)
    finish(ax, "test AP", "method", f"{data}, at the least validation loss")


def experiment(settings: Settings) -> Experiment:
    """Return the experiment that compares all methods."""
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim="SOX is the fastest of the four methods, and has the best test AP",
        method=METHOD.format(steps=settings["training"]["steps"], **settings["tuning"]),
        jobs=partial(jobs, settings=settings),
        more=partial(more_jobs, settings=settings),
        judge=partial(judge, settings=settings),
        draw=partial(draw, settings=settings),
        settings=settings,
    )
