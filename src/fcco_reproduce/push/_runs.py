"""What a set of runs comes to, where some may have diverged."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcco.compiled._rules import Array
from fcco_reproduce._tables import Row


def curves(result: dict[str, Any]) -> Array:
    """Return test losses [runs, points] of the runs that did not diverge.

    Examples
    --------
    >>> curves({"losses": [[1.0, 0.5], [3.0, None]]})
    array([[1. , 0.5]])
    """
    losses = np.array(result["losses"], dtype=float)
    return losses[np.isfinite(losses[:, -1])]


def summary(result: dict[str, Any]) -> Row:
    """Mean and deviation of the last test loss over the runs that did not diverge, and the number of those that did.

    The deviation is that of the runs, not of a population they are drawn from, as in the paper.

    Examples
    --------
    >>> summary({"losses": [[1.0, 0.5], [1.0, 0.75], [3.0, None]]})
    {'test loss': 0.625, 'std': 0.125, 'diverged': 1}
    """
    last = curves(result)[:, -1:]
    found = bool(len(last))
    return {
        "test loss": float(last.mean()) if found else None,
        "std": float(last.std()) if found and len(result["losses"]) > 1 else None,
        "diverged": len(result["losses"]) - len(last),
    }
