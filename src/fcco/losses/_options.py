"""The keyword arguments that ``from_targets`` and ``for_model`` pass on to the constructors, for type checkers."""

from __future__ import annotations

from typing import TypedDict

from fcco.core.rules import Rule
from fcco.objectives.meta import TaskLoss


class MAMLOptions(TypedDict, total=False):
    """Options of :class:`fcco.losses.MAMLLoss`."""

    loss: TaskLoss
    rule: Rule
