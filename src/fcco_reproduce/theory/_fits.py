"""Power laws, fitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line through (log x, log y).

    Examples
    --------
    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return round(float(np.polyfit(np.log(x), np.log(y), 1)[0]), 12) + 0.0


def exponent_error(x: Sequence[float], runs: Any) -> float:
    """Return two standard errors of the exponent of the mean of ``runs`` [seeds, points], by the jackknife over seeds.

    Examples
    --------
    >>> exponent_error([1, 2], [[1.0, 2.0], [1.0, 2.0]])
    0.0
    """
    values = np.asarray(runs, dtype=float)
    count = len(values)
    without = np.array([exponent(x, np.delete(values, k, axis=0).mean(axis=0)) for k in range(count)])
    return float(2 * np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2)))
