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
        made its results, by the name of the function, and its ``confirmed`` that of later code which gave the same
        results in a comparison of short runs (``benchmarks/confirm.py``).

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
    again = record.get("confirmed", {}).get("sources", {})
    return [found for name, codes in record["sources"].items() if (found := _changed(name, codes, again.get(name)))]


def state(record: dict[str, Any]) -> str:
    """Return whether the results of a record are those of today's code, and how that is known.

    Examples
    --------
    >>> of_today = {"fcco_reproduce._stale.stale": [digest(stale)]}
    >>> state({"sources": of_today})
    "made by today's code"
    >>> again = {"sources": {"fcco_reproduce._stale.stale": digest(stale)}, "runs": 8}
    >>> state({"sources": {"fcco_reproduce._stale.stale": ["0123"]}, "confirmed": again})
    "made by earlier code, which gives the same as today's in 8 short runs"
    """
    reasons = stale(record)
    if reasons:
        return "; ".join(reasons)
    again = record.get("confirmed")
    if not stale({**record, "confirmed": {}}) or again is None:
        return "made by today's code"
    return f"made by earlier code, which gives the same as today's in {again['runs']} short runs"


def _changed(name: str, codes: list[str], confirmed: str | None) -> str:
    module, _, function = name.rpartition(".")
    try:
        now = digest(getattr(import_module(module), function))
    except (ImportError, AttributeError):
        return f"{name} is gone"
    return "" if codes == [now] or confirmed == now else f"the code behind {name} has changed"
