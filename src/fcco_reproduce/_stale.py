"""Which stored results were made by other code than today's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fcco_reproduce._digest import digest


def stale(record: dict[str, Any]) -> list[str]:
    """Return why the results of a record may differ from those that today's code would give; nothing if they may not.

    Parameters
    ----------
    record : dict
        A record of ``fcco reproduce`` (:mod:`fcco_reproduce._record`). Its ``sources`` has the digests of the code that
        made its results, by the name of the function.

    Examples
    --------
    >>> stale({"sources": {"fcco_reproduce._stale.stale": [digest(stale)]}})
    []
    >>> stale({"sources": {"fcco_reproduce._stale.stale": ["0123"]}})
    ['the code behind fcco_reproduce._stale.stale has changed']
    >>> stale({})
    ['it does not say which code made it']
    """
    if not record.get("sources"):
        return ["it does not say which code made it"]
    return [found for name, codes in record["sources"].items() if (found := _changed(name, codes))]


def _changed(name: str, codes: list[str]) -> str:
    module, _, function = name.rpartition(".")
    try:
        now = digest(getattr(import_module(module), function))
    except (ImportError, AttributeError):
        return f"{name} is gone"
    return "" if codes == [now] else f"the code behind {name} has changed"
