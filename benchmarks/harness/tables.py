"""Numbers as people read them, and tables of them as text, Markdown and CSV.

The writers are those of ``fcco reproduce``; what a table looks like is decided in one place.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from fcco_reproduce._tables import Row, as_markdown, as_text, write_csv

__all__ = ["Row", "as_markdown", "as_text", "brief", "read_csv", "spread", "write_csv"]


def brief(value: float) -> str:
    """Return at most three significant digits and five decimal places.

    Examples
    --------
    >>> brief(0.123456), brief(0.0123456), brief(12.3456), brief(math.inf)
    ('.123', '.0123', '12.35', 'diverged')
    """
    if not value < 1e3:
        return "diverged"
    digits = 5 if value < 0.001 else 4 if value < 0.1 else 3 if value < 1 else 2
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def spread(values: Sequence[float], less: float = 0.0) -> str:
    """Return the mean of the values, less a constant, ± their standard deviation.

    Examples
    --------
    >>> spread([0.5, 0.7]), spread([1.0, math.inf])
    ('0.6000 ± 0.1414', 'diverged')
    """
    if not math.isfinite(sum(values)):
        return "diverged"
    mean = fmean(values) - less
    digits = max(0, 3 - math.floor(math.log10(abs(mean)))) if mean else 3
    digits = min(digits if abs(mean) < 0.1 else 4, 6)
    return f"{mean:.{digits}f} ± {stdev(values):.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header, by column."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
