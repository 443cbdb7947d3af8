"""Finding the loss in a module, and listening to its steps."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fcco._table import InnerTable
from fcco.core.rules import BSGD
from fcco.losses.loss import ObjectiveLoss, Visit


def engine_of(loss: nn.Module) -> ObjectiveLoss:
    """Return the one loss in a module.

    Raises
    ------
    ValueError
        There is none, or there are several.
    """
    engines = [module for module in loss.modules() if isinstance(module, ObjectiveLoss)]
    if len(engines) != 1:
        raise ValueError(f"{type(loss).__name__} holds {len(engines)} tables, not one: pass the loss that is meant")
    return engines[0]


def table_of(engine: ObjectiveLoss) -> InnerTable:
    """Return the table of an engine, which must be all here.

    Raises
    ------
    ValueError
        It is sharded over ranks.
    """
    if not isinstance(engine.table, InnerTable):
        raise ValueError("diagnostics need all rows of a table, and this one is sharded over ranks")
    return engine.table


def keeps_table(engine: ObjectiveLoss) -> bool:
    """Return whether the rows of the table matter; a loss may have a memory instead."""
    return engine.memory is None or not isinstance(engine.rule, BSGD)


def what_is_kept(engine: ObjectiveLoss) -> str:
    """Return what a loss knows from earlier steps: a table, a memory, or both."""
    if engine.memory is None:
        return "table"
    return "table and memory" if keeps_table(engine) else "memory"


class Watch:
    """Calls ``on_visit`` after every step of an engine, until it is closed."""

    def __init__(self, engine: ObjectiveLoss, on_visit: Callable[[Visit], None]) -> None:
        table_of(engine)
        self._engine, self._on_visit = engine, on_visit
        engine.observers.append(on_visit)

    def close(self) -> None:
        """Stop; closing twice is harmless."""
        if self._on_visit in self._engine.observers:
            self._engine.observers.remove(self._on_visit)
