"""The keyword arguments that ``from_targets`` and ``for_model`` pass on to the constructors, for type checkers."""

from __future__ import annotations

from typing import TypedDict

from fcco.core.rules import Rule
from fcco.functional._inner import OwnTerm
from fcco.functional._surrogates import SurrogateLike
from fcco.losses._temperature import AutoTemperature
from fcco.losses.memory import Memory
from fcco.objectives.meta import TaskLoss


class AveragePrecisionOptions(TypedDict, total=False):
    """Options of :class:`fcco.losses.AveragePrecisionLoss`."""

    margin: float
    surrogate: SurrogateLike
    temperature: AutoTemperature
    rule: Rule | None
    own_term: OwnTerm
    memory: Memory | int | None


class PNormPushOptions(TypedDict, total=False):
    """Options of :class:`fcco.losses.PNormPushLoss`."""

    p: float
    surrogate: SurrogateLike
    margin: float
    rule: Rule | None
    memory: Memory | int | None


class MAMLOptions(TypedDict, total=False):
    """Options of :class:`fcco.losses.MAMLLoss`."""

    loss: TaskLoss
    rule: Rule
