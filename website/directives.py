"""Comments in a page that ask for a table, a chart or a diagram. On GitHub they are not seen.

<!-- table: BENCHMARKS.md > Summary | Survival -->     the rows of a table whose first cell has this word
<!-- dots: BENCHMARKS.md > Survival > Metric -->       a dot plot of the table below the line "*Metric*: ..."
<!-- diagram: choose -->                               a drawing of diagrams.py
"""

from __future__ import annotations

import re
from collections.abc import Callable

import charts
import diagrams
from tables import Table, read_table

DIRECTIVE = re.compile(r"^<!-- (table|dots|diagram): (.+?) -->$", flags=re.MULTILINE)


def carried_out(text: str) -> str:
    """Return the text with what its comments ask for in their place."""
    return DIRECTIVE.sub(lambda found: KINDS[found.group(1)](found.group(2)), text)


def _read(words: str) -> tuple[Table, list[str]]:
    path, _, rows = words.partition(" | ")
    place = path.split(" > ")
    table = read_table(*place)
    return (table.where(rows) if rows else table), place


def _dots(words: str) -> str:
    table, place = _read(words)
    return charts.dot_plot(table, table.title or place[1])


KINDS: dict[str, Callable[[str], str]] = {
    "table": lambda words: _read(words)[0].as_markdown(),
    "dots": _dots,
    "diagram": lambda name: diagrams.DIAGRAMS[name](),
}
