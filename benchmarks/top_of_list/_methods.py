"""The methods that are compared, and how much of them is run."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from top_of_list import _linear, _linear_ours, _network, _network_libauc, _network_ours
from top_of_list._metrics import Result

Kind = Literal["linear", "network"]
Role = Literal["usual", "start", "ours", "other"]
KINDS: tuple[Kind, ...] = ("linear", "network")
BEST: dict[Kind, str] = {"linear": "best logistic regression", "network": "best usual loss"}
START = "best start"
DERIVED = (*BEST.values(), START)  # chosen by validation among other methods


@dataclass(frozen=True)
class Scale:
    """How much is run: the seeds, each a split of its own, those that choose the lr, the steps, and the grids."""

    seeds: int = 5
    tuning: int = 1
    steps: int = 2000
    lrs: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    cs: tuple[float, ...] = _linear.CS
    alphas: tuple[float, ...] = _linear_ours.ALPHAS
    leaves: tuple[int, ...] = _linear.LEAVES
    trees: tuple[int, ...] = _linear.TREES


FULL = Scale()
QUICK = Scale(2, 1, 100, (1e-3, 1e-2), (0.01, 1.0, 100.0), (1e-3, 1e-1), (4,), (10, 20))


@dataclass(frozen=True, eq=False)
class Method:
    """A column of the tables.

    Parameters
    ----------
    name : str
        As the tables have it.
    kind : {"linear", "network"}
        In which tables.
    role : {"usual", "start", "ours", "other"}
        "usual" is what people would take, and the best of it by validation is what "ours" is compared with. "start" is
        another method that ours may start from, so the best of both is a control for what optimising AP adds.
    function : callable
        The job.
    settings : dict
        Arguments of the job, besides the task, the seed and, for networks, the lr and the steps.
    needs : str
        A package, or a module and a name in it, as "package.module:name", without which the method cannot run.
    """

    name: str
    kind: Kind
    role: Role
    function: Callable[..., Result]
    settings: dict[str, Any] = field(default_factory=dict)
    needs: str = ""

    @property
    def available(self) -> bool:
        """Whether what the method needs is there."""
        module, _, name = self.needs.partition(":")
        if name:
            return hasattr(importlib.import_module(module), name)
        return not module or importlib.util.find_spec(module) is not None


def linear_methods(scale: Scale) -> list[Method]:
    """Return the linear methods, and trees."""
    logistic, cs = _linear.logistic_regression, list(scale.cs)
    trees = {"leaves": list(scale.leaves), "trees": list(scale.trees)}
    ours = "fcco.estimators:AveragePrecisionClassifierCV"
    return [
        Method("logistic regression", "linear", "usual", logistic, {"balanced": False, "cs": cs}),
        Method("balanced logistic regression", "linear", "usual", logistic, {"balanced": True, "cs": cs}),
        Method("p-norm push", "linear", "start", _linear_ours.push, {"alphas": list(scale.alphas)}),
        Method("AveragePrecisionClassifierCV", "linear", "ours", _linear_ours.average_precision, needs=ours),
        Method("LightGBM", "linear", "other", _linear.boosted_trees, trees, needs="lightgbm"),
    ]


def network_methods() -> list[Method]:
    """Return the methods that train a network; what is made from their results is not among them."""
    usual = [Method(name, "network", "usual", _network.usual_loss, {"loss": name}) for name in _network.USUAL]
    return [
        *usual,
        Method("LibAUC", "network", "other", _network_libauc.libauc, needs="libauc"),
        Method("AP after balanced BCE", "network", "ours", _network_ours.average_precision, {"balanced": True}),
    ]


def methods_of(kind: Kind, scale: Scale = FULL) -> list[Method]:
    """Return all methods of a kind that are run."""
    return linear_methods(scale) if kind == "linear" else network_methods()
