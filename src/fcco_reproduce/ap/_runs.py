"""One run, as a job; and what runs of the same setting come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fcco_reproduce._config import Settings
from fcco_reproduce._figures import METHOD_STYLES, band, finish
from fcco_reproduce._runner import Job
from fcco_reproduce._study import Scale
from fcco_reproduce._tables import Row
from fcco_reproduce.ap._data import at_hand
from fcco_reproduce.ap._settings import TrainingSettings, as_training
from fcco_reproduce.ap._training import Place, train

Result = dict[str, Any]
MISSING = " CIFAR-100 is not shown, since its files could not be had where this was run."


def run_one(
    *, data: str, settings: Settings, setting: dict[str, Any], seed: int, device: str, folder: str | None = None
) -> Result:
    """Train one setting with one seed."""
    place = Place(device, None if folder is None else Path(folder))
    run = train(as_training(settings, data), TrainingSettings(**setting), seed, place)
    return {"data": data, "setting": setting, "seed": seed, **run}


def jobs_of(
    settings: Settings,
    scale: Scale,
    wanted: Mapping[str, Iterable[TrainingSettings]],
    seeds: Iterable[int] | None = None,
) -> list[Job]:
    """Return a job for every data set, setting and seed; seeds alternate, so that workers begin with different ones."""
    seeds = range(scale.seeds) if seeds is None else list(seeds)
    place = {"folder": None if scale.folder is None else str(scale.folder)}
    return [
        Job(
            run_one,
            {"data": data, "settings": {"training": settings["training"]}, "setting": asdict(setting), "seed": seed}
            | {"device": scale.device},
            cost=(setting.positives + setting.negatives) / 64,
            place=place,
        )
        for data, some in wanted.items()
        for setting in some
        for seed in seeds
    ]


def network_of(settings: Settings) -> str:
    """Return a short description of the network."""
    widths = settings["training"]["widths"]
    return f"ResNet of {widths[0]} to {widths[-1]} channels"


def data_at_hand(settings: Settings) -> list[str]:
    """Return the data sets of a study, without CIFAR-100 if it is not available."""
    return [name for name in settings["data"] if name != "cifar100" or at_hand(name)]


def skipped(settings: Settings, results: Sequence[Result]) -> str:
    """Return a sentence on what was left out."""
    return MISSING if "cifar100" in settings["data"] and not any(r["data"] == "cifar100" for r in results) else ""


def runs_of(results: Sequence[Result], data: str, setting: TrainingSettings) -> list[Result]:
    """Return the results of all seeds of a setting."""
    wanted = asdict(setting)
    return [result for result in results if result["data"] == data and result["setting"] == wanted]


def curves(runs: Sequence[Result], key: str) -> Any:
    """Return a measure [runs, points] of the runs that did not diverge."""
    return np.array([[point[key] for point in run["history"]] for run in runs if not run["diverged"]])


def steps(runs: Sequence[Result]) -> list[int]:
    """Return the steps at which runs were measured."""
    whole = next(run for run in runs if not run["diverged"])
    return [point["step"] for point in whole["history"]]


def mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Of the runs themselves, as in the paper; None if one is missing.

    Examples
    --------
    >>> mean_and_std([1.0, 3.0]), mean_and_std([1.0, None])
    ((2.0, 1.0), (None, None))
    """
    known = [value for value in values if value is not None]
    return (float(np.mean(known)), float(np.std(known))) if known and len(known) == len(values) else (None, None)


def summary(runs: Sequence[Result]) -> Row:
    """Return how fast the loss of a setting fell, and its final measures."""
    last: list[Any] = [None if run["diverged"] else run["history"][-1] for run in runs]
    row: Row = {}
    # The mean over the run, which is the lower the faster the loss falls.
    paths = [None if run["diverged"] else float(np.mean([p["train loss"] for p in run["history"]])) for run in runs]
    row["mean train loss"], row["its std"] = mean_and_std(paths)
    row["last train loss"], _ = mean_and_std([point and point["train loss"] for point in last])
    row["last train AP"], row["train AP std"] = mean_and_std([point and point["train AP"] for point in last])
    row["test AP"], row["test AP std"] = mean_and_std([run["test AP"] for run in runs])
    row["last test AP"], row["last test AP std"] = mean_and_std([run["last test AP"] for run in runs])
    row["stopped at"] = float(np.mean([run["stopped"] for run in runs]))
    return row | {"runs": len(runs), "diverged": sum(run["diverged"] for run in runs)}


def draw_curves(axes: Sequence[Any], labelled: dict[str, list[Result]], title: str) -> None:
    """Draw train loss, train AP and, on a third panel, test AP by iterations; the first panel has the legend of all."""
    for ax, key in zip(axes, ("train loss", "train AP", "test AP"), strict=False):
        for k, (label, runs) in enumerate(labelled.items()):
            line = label if label in METHOD_STYLES else k
            if any(not run["diverged"] for run in runs):
                # A name that begins with an underscore is in no legend.
                band(ax, steps(runs), curves(runs, key), label if ax is axes[0] else f"_{label}", line)
        finish(ax, "iterations", key, title)


def number(mean: float | None, std: float | None = None) -> str:
    """Return a mean and its deviation in words."""
    return "divergence" if mean is None else f"{mean:.4f}" + ("" if std is None else f" ± {std:.4f}")
