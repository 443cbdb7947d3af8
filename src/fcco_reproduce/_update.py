"""The table's update in the compiled loops that p-norm push and NCA run."""

from __future__ import annotations

from typing import Any

from fcco.compiled import TableUpdate, new_update
from fcco.compiled._rules import UNGUARDED_SOX
from fcco_reproduce._methods import MethodSettings


def table_update(setting: MethodSettings, gamma: float, n_outer: float, **options: Any) -> TableUpdate:
    """Return the update that a setting asks for, with a rate of its own; SOX is without its floor."""
    update = new_update(setting.rule, gamma, n_outer, **options)
    return update._replace(rule=UNGUARDED_SOX) if setting.rule == "sox" else update
