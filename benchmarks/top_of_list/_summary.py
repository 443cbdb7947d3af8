"""What came out, in sentences that are made from the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from harness.tables import Row
from top_of_list._compare import Difference, Results, differences, names, tally
from top_of_list._measure import Prepareds
from top_of_list._methods import BEST, KINDS, START, Kind

REPORTING = "reporting"
TRAINED = 0.6  # the share of the rows that are in the training part


def reporting(found: Sequence[Difference]) -> list[Difference]:
    """Return the differences on tasks that had no part in choosing defaults, or all if there are no such tasks."""
    return [one for one in found if one.group == REPORTING] or list(found)


def rivals(kind: Kind) -> dict[str, dict[str, Any]]:
    """Return what ours is compared with, and the arguments of :func:`differences` for it."""
    found: dict[str, dict[str, Any]] = {f"{BEST[kind]}, by validation": {}}
    found[f"{BEST[kind]}, by the test parts"] = {"harsh": True}
    if kind == "linear":
        found["best of logistic regression and p-norm push, by validation"] = {"rival": START}
    return found


def score_rows(results: Results) -> list[Row]:
    """Return how often each of our methods is above, even and below, on the tasks that are reported."""
    rows: list[Row] = []
    for kind in KINDS:
        for name in measured_names(results, kind):
            for title, how in rivals(kind).items():
                found = reporting(differences(results, kind, name, **how))
                mean = f"{fmean(one.mean for one in found):+.4f}" if found else ""
                rows.append({"ours": name, "against the": title, **tally(found), "mean difference of AP": mean})
    return rows


def measured_names(results: Results, kind: Kind) -> list[str]:
    """Return our methods that have results."""
    return [name for name in names(kind, "ours") if name in results.methods(kind)]


def counted(found: Sequence[Difference]) -> str:
    """Return how often ours is above, even and below."""
    counts = tally(found)
    return f"above on {counts['above']}, even on {counts['even']} and below on {counts['below']} of {len(found)} tasks"


def compared(results: Results, tasks: Prepareds) -> str:
    """Return what the page compares, and on what."""
    fresh = sum(task.group == REPORTING for task in tasks)
    seeds = len({row.seed for row in results.rows})
    where = f"the {fresh} tasks that had no part in choosing the library's defaults" if fresh else "all of them"
    return (
        "**What was compared.** Ways to a high average precision (AP) on rare positives: losses and estimators that "
        "optimise it, cross entropy in its usual forms, and boosted trees. *Linear models* and *Networks* say what "
        f"each method is. There are {len(tasks)} binary tasks with {seeds} random splits each. The AP is that of the "
        f"test part, and verdicts are counted on {where}."
    )


def findings(results: Results, tasks: Prepareds) -> list[str]:
    """Return what came out, a finding or two in each text."""
    found = [_on_linear(results), _on_start(results), _on_networks(results), _on_trees(results)]
    return [text for text in (*found, _on_when(results, tasks)) if text]


def _on_linear(results: Results) -> str:
    parts = []
    for name in measured_names(results, "linear"):
        parts.append(f"`{name}` is {counted(reporting(differences(results, 'linear', name)))}")
    return f"**Linear models.** Against the {BEST['linear']} by validation, {'; '.join(parts)}." if parts else ""


def _on_start(results: Results) -> str:
    """Return what optimising AP adds to the methods that ours starts from."""
    known = measured_names(results, "linear")
    found = reporting(differences(results, "linear", known[0], START)) if known else []
    if not found:
        return ""
    rows = [row for row in results.rows if row.method == known[0]]
    moved = sum("temperature" in row.setting for row in rows)
    return (
        f"**Its start.** `{known[0]}` starts from logistic regression or from p-norm push, and left its start in "
        f"{moved} of {len(rows)} fits. Against the better start by validation, it is {counted(found)}."
    )


def _on_networks(results: Results) -> str:
    """Return a sentence on each of our recipes."""
    found = {name: reporting(differences(results, "network", name)) for name in measured_names(results, "network")}
    told = [f"*{name}* is {counted(some)}" for name, some in found.items() if some]
    return f"**Networks.** Against the {BEST['network']} by validation, {', and '.join(told)}." if told else ""


def _on_trees(results: Results) -> str:
    tasks = [task for task in results.tasks("linear") if results.values("linear", task, "LightGBM")]
    if not tasks:
        return ""
    linear = [name for name in results.methods("linear") if name != "LightGBM"]
    ahead = 0
    for task in tasks:
        best = max(results.mean("linear", task, name) for name in linear if results.values("linear", task, name))
        ahead += results.mean("linear", task, "LightGBM") > best
    return (
        f"**Trees.** LightGBM, which is not linear, has a higher mean AP than every linear model on {ahead} of all "
        f"{len(tasks)} tasks."
    )


Halves = tuple[float, list[Difference], list[Difference]]  # the median, and the differences up to it and above it


def halves(results: Results, tasks: Prepareds, kind: Kind, ours: str) -> dict[str, Halves]:
    """Return the differences on tasks with small and with large values of several properties."""
    found, at = differences(results, kind, ours), {task.name: prepared for task, prepared in tasks.items()}
    usual = {one.task: results.mean(kind, one.task, BEST[kind]) for one in found}
    gap = {one.task: results.mean("linear", one.task, "LightGBM") - usual[one.task] for one in found}
    properties = {
        "number of training positives": {name: TRAINED * one.n * one.share for name, one in at.items()},
        "share of positives": {name: one.share for name, one in at.items()},
        "number of features": {name: float(one.features) for name, one in at.items()},
        f"AP of the {BEST[kind]}": usual,
        f"AP of LightGBM less the {BEST[kind]}": gap,
    }
    split: dict[str, Halves] = {}
    for title, values in properties.items():
        known = [one for one in found if not math.isnan(values[one.task])]
        if known:
            middle = median(values[one.task] for one in known)
            few, many = ([one for one in known if (values[one.task] > middle) == high] for high in (False, True))
            split[title] = (middle, few, many)
    return split


def _on_when(results: Results, tasks: Prepareds) -> str:
    """Return a sentence on the property of the linear tasks that tells most about the gain."""
    ours = names("linear", "ours")[0]
    usable = {title: cut for title, cut in halves(results, tasks, "linear", ours).items() if cut[1] and cut[2]}
    if not usable:
        return ""
    gains = {title: tuple(fmean(one.mean for one in half) for half in cut[1:]) for title, cut in usable.items()}
    title = max(gains, key=lambda name: abs(gains[name][1] - gains[name][0]))
    few, many = gains[title]
    return (
        f"**When it pays.** The {title} tells most about the gain of `{ours}`. The mean gain is {few:+.3f} on the half "
        f"of all tasks up to the median of {usable[title][0]:.3g}, and {many:+.3f} above it."
    )
