"""The paper's figures of SOX alone: while B1, B and gamma vary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from fcco_reproduce._config import Settings
from fcco_reproduce._figures import new_figure
from fcco_reproduce._methods import PRINTED
from fcco_reproduce._runner import Job
from fcco_reproduce._study import Experiment, Finding, Scale
from fcco_reproduce._tables import Row
from fcco_reproduce.ap._runs import data_at_hand, draw_curves, jobs_of, network_of, number, runs_of, skipped, summary
from fcco_reproduce.ap._settings import TrainingSettings, tuned_setting

MEASURES = (
    " Loss and AP are of the training set, by the network as it is used (`eval()`, no crops). 'mean train loss' is the "
    "mean over all measurements of a run: the lower, the faster the loss falls, and by it settings are compared. "
    "'test AP' is that of the weights with the least validation loss. Bands are two standard errors, ± and std are "
    "deviations of the seeds. At the small scale SOX's lr of 1 was taken from single trial runs of seed 0, by train "
    "and validation loss: 0.3 and 1 with this network, 1 and 3 with one of twice the width."
)
MOMENTUM = "1, at the updated row"


@dataclass(frozen=True)
class Sweep:
    """What varies, and what the paper says of it.

    Parameters
    ----------
    settings : Settings
        Of the file.
    column : str
        What the varied number is called.
    vary : callable
        The settings by the varied number, from SOX's on a data set.
    holds : callable
        Whether the claim was observed, given the mean train losses by the varied number.
    claim, method : str
        See :class:`~fcco_reproduce.Experiment`.
    """

    settings: Settings
    column: str
    vary: Callable[[TrainingSettings], dict[Any, TrainingSettings]]
    holds: Callable[[dict[Any, float]], bool]
    claim: str
    method: str

    def settings_of(self, data: str) -> dict[Any, TrainingSettings]:
        """By the number that varies."""
        return self.vary(tuned_setting(PRINTED, **self.settings["sox"][data]))

    def jobs(self, scale: Scale) -> list[Job]:
        """Return the jobs for all values of the varied number on all data sets."""
        names = data_at_hand(self.settings)
        return jobs_of(self.settings, scale, {data: self.settings_of(data).values() for data in names})

    def judge(self, results: list[Any]) -> Finding:
        """Return the finding: how fast the loss falls, by the varied number."""
        rows: list[Row] = []
        parts, holds = [], True
        for data in dict.fromkeys(result["data"] for result in results):
            found = {
                value: summary(runs_of(results, data, setting)) for value, setting in self.settings_of(data).items()
            }
            rows += [{"data": data, self.column: value, **row} for value, row in found.items()]
            whole = {
                value: row["mean train loss"] for value, row in found.items() if row["mean train loss"] is not None
            }
            holds = holds and len(whole) == len(found) and self.holds(whole)
            parts.append(_sentence(data, self.column, found))
        return Finding(rows, holds, "\n\n".join(parts) + skipped(self.settings, results))

    def draw(self, results: list[Any]) -> Any:
        """Two panels for every data set."""
        names = list(dict.fromkeys(result["data"] for result in results))
        figure, axes = new_figure(2 * len(names), width=4.2)
        for k, data in enumerate(names):
            some = self.settings_of(data).items()
            labelled = {f"{self.column} = {value}": runs_of(results, data, setting) for value, setting in some}
            draw_curves(axes[2 * k : 2 * k + 2], labelled, f"SOX on {data}, {network_of(self.settings)}")
        return figure

    def experiment(self) -> Experiment:
        """Return the experiment."""
        key, name = self.settings["key"], self.settings["name"]
        text = self.method + MEASURES
        return Experiment(key, name, self.claim, text, self.jobs, self.judge, self.draw, self.settings)


def _sentence(data: str, column: str, found: dict[Any, Row]) -> str:
    """Return a sentence on the values that are first by the train loss and by test AP."""
    by_loss = sorted(found, key=lambda value: found[value]["mean train loss"] or 0.0)  # losses are negative
    by_test = sorted(found, key=lambda value: -found[value]["test AP"])
    loss, test = found[by_loss[0]], found[by_test[0]]
    return (
        f"{data}: {column} = {by_loss[0]} has the lowest mean train loss, "
        f"{number(loss['mean train loss'], loss['its std'])}, before {by_loss[1]} with "
        f"{number(found[by_loss[1]]['mean train loss'])}; {column} = {by_test[0]} has the best test AP, "
        f"{number(test['test AP'], test['test AP std'])}."
    )


def outer_batch(settings: Settings) -> Experiment:
    """Return the experiment that varies B1 at the same B."""

    def vary(sox: TrainingSettings) -> dict[Any, TrainingSettings]:
        total = settings["batch"]
        return {count: replace(sox, positives=count, negatives=total - count) for count in settings["positives"]}

    return Sweep(
        settings,
        "B1",
        vary,
        lambda losses: min(losses, key=lambda value: losses[value]) == settings["batch"] // 2,
        "Of all splits of a batch, B1 = B/2 is the fastest at the same rates",
        f"SOX with B1 positives, which are the outer batch, and {settings['batch']} - B1 negatives, on both sides of "
        "B/2 (the paper's figure ends there); lr and gamma stay the same, and suit B1 = B/2.",
    ).experiment()


def batch(settings: Settings) -> Experiment:
    """Return the experiment that varies B, split in halves."""

    def vary(sox: TrainingSettings) -> dict[Any, TrainingSettings]:
        return {total: replace(sox, positives=total // 2, negatives=total // 2) for total in settings["batches"]}

    return Sweep(
        settings,
        "B",
        vary,
        lambda losses: all(losses[a] >= losses[b] for a, b in pairwise(sorted(losses))),
        "SOX needs fewer iterations as B grows",
        "SOX with B/2 positives and B/2 negatives; the other rates stay the same. Iterations are not work: with twice "
        "the batch each costs about twice as much. 'Holds' says that the mean train loss falls with every step of B.",
    ).experiment()


def gamma(settings: Settings) -> Experiment:
    """Return the experiment that varies gamma."""

    def vary(sox: TrainingSettings) -> dict[Any, TrainingSettings]:
        some: dict[Any, TrainingSettings] = {rate: replace(sox, gamma=rate) for rate in settings["gammas"]}
        return some | {MOMENTUM: TrainingSettings("BSGD", sox.lr, 1.0, sox.beta)}

    return Sweep(
        settings,
        "gamma",
        vary,
        lambda losses: min(losses, key=lambda value: losses[value]) not in (1.0, MOMENTUM),
        "gamma = 1 is not the best choice",
        "SOX differentiates f at the row before its update: with gamma = 1 that is the estimate of the row's last "
        f"visit. '{MOMENTUM}' is what the authors' code does at gamma = 1, the plain mini-batch estimate with "
        "momentum. The paper does not say which gamma its figure has; it names 0.1 (CIFAR-10) and 0.5 (CIFAR-100) as "
        "the fastest. The lr is one that suits gamma = 0.1; estimates with a larger gamma are noisier and may want a "
        "smaller lr, so that the methods, each with its own lr, are compared more fairly in the table of (iv). 'Holds' "
        "says that neither form of gamma = 1 has the lowest mean train loss.",
    ).experiment()
