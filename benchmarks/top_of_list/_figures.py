"""A figure for each kind: the AP of every method, and what optimising it gains over the best usual method."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import stdev
from typing import Any

from fcco._extras import import_extra
from fcco_reproduce._figures import COLOURS, MARKERS, new_figure
from top_of_list._compare import Results, differences, names
from top_of_list._methods import BEST, DERIVED, Kind


def draw(results: Results, kind: Kind, path: Path) -> None:
    """Write an SVG file with two panels, a line for every task; bars are two standard errors over splits."""
    tasks = results.tasks(kind)
    if not tasks:
        return
    figure, axes = new_figure(2, width=4.6, height=1.6 + 0.32 * len(tasks))
    methods = [name for name in results.methods(kind) if name not in DERIVED]
    looks = {name: {"color": COLOURS[k % 7], "marker": MARKERS[k % 7]} for k, name in enumerate(methods)}
    for k, name in enumerate(methods):
        _draw_levels(axes[0], results, kind, name, looks[name], shift=_shift(k, len(methods)))
    ours = [name for name in names(kind, "ours") if name in methods]
    for k, name in enumerate(ours):
        _draw_gains(axes[1], results, kind, name, looks[name], shift=_shift(k, len(ours)))
    axes[0].set_yticks(range(len(tasks)), tasks, fontsize=7)
    axes[1].set_yticks(range(len(tasks)), [""] * len(tasks))
    axes[1].axvline(0.0, color="0.4", linewidth=0.8)
    titles = ("average precision on test data", f"difference to the {BEST[kind]} by validation")
    for ax, title in zip(axes, titles, strict=True):
        ax.set_ylim(len(tasks) - 0.4, -0.6)
        ax.set_xlabel(title, fontsize=8)
        ax.tick_params(axis="x", labelsize=7)
        ax.grid(True, alpha=0.25, linewidth=0.5)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, frameon=False, loc="outside upper center", ncols=3)
    _save(figure, path)


def _shift(k: int, count: int) -> float:
    """Return where the k-th of several methods lies around the line of a task."""
    return 0.6 * ((k + 0.5) / count - 0.5)


def _draw_levels(ax: Any, results: Results, kind: Kind, method: str, look: dict[str, Any], shift: float) -> None:
    places, means, bars = [], [], []
    for place, task in enumerate(results.tasks(kind)):
        found = list(results.values(kind, task, method).values())
        if found:
            places.append(place + shift)
            means.append(results.mean(kind, task, method))
            bars.append(2 * stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0)
    ax.errorbar(means, places, xerr=bars, label=method, linestyle="none", markersize=3, elinewidth=0.8, **look)


def _draw_gains(ax: Any, results: Results, kind: Kind, method: str, look: dict[str, Any], shift: float) -> None:
    tasks, found = results.tasks(kind), differences(results, kind, method)
    places = [tasks.index(one.task) + shift for one in found]
    bars = [one.margin if math.isfinite(one.margin) else 0.0 for one in found]
    means = [one.mean for one in found]
    ax.errorbar(means, places, xerr=bars, linestyle="none", markersize=3, elinewidth=0.8, capsize=2, **look)


def _save(figure: Any, path: Path) -> None:
    """Write a file that has no date and no random names, so that equal figures give equal files."""
    settings = {"svg.hashsalt": "top_of_list", "svg.fonttype": "none"}
    with import_extra("matplotlib", "a figure").rc_context(settings):
        figure.savefig(path, format="svg", metadata={"Date": None})
