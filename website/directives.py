"""Comments in a page that ask for a table, a chart or a diagram. On GitHub they are not seen.

    <!-- table: BENCHMARKS.md > Summary | Survival -->     the rows of a table whose first cell has this word
    <!-- dots: BENCHMARKS.md > Survival > Metric -->       a dot plot of the table below the line "*Metric*: ..."
    <!-- dots: docs/memory.md > Cox :: Excess, ... -->     the same, with a caption of the page's own
    <!-- dots: docs/memory.md > Cox @ table; baseline -->  the same, of these columns alone
    <!-- verdicts: BENCHMARKS.md > Summary -->             squares for the columns "better / even / worse"
    <!-- diagram: choose -->                               a drawing of diagrams.py
    <!-- off the site -->...<!-- on the site -->           text that is meant for readers of the file itself

Tables with results of ours beside others', which benchmarks write, and tables with a row for each method, which studies
write, get a dot plot without being asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import charts
import diagrams
from tables import Table, as_table, read_table

DIRECTIVE = re.compile(r"^<!-- (table|dots|verdicts|diagram): (.+?) -->$", flags=re.MULTILINE)
HIDDEN = re.compile(r"^<!--python\n.*?^-->\n", flags=re.MULTILINE | re.DOTALL)
OFF = re.compile(r"<!-- off the site -->.*?<!-- on the site -->", flags=re.DOTALL)
TABLE = re.compile(r"(?:^(?P<title>[^|\n]+)\n\n)?(?P<table>(?:^\|.*\n)+)", flags=re.MULTILINE)


def carried_out(text: str) -> str:
    """Return the text with what its comments ask for in their place, and without the code that only tests run."""
    text = OFF.sub("", HIDDEN.sub("", text))
    return DIRECTIVE.sub(lambda found: KINDS[found.group(1)](found.group(2)), text)


def with_charts(text: str) -> str:
    """Return the text with a dot plot in the place of each table that compares; the table unfolds below it."""

    def drawn(found: re.Match[str]) -> str:
        table = as_table(found["table"].splitlines())
        folded = f'<details markdown="1"><summary>The numbers</summary>\n\n{found["table"]}\n</details>\n'
        if charts.compares(table.head):
            title = re.sub(":$", ".", (found["title"] or "").replace("*", ""))
            return f"{charts.dot_plot(table, title)}\n\n{folded}"
        if charts.measured(table.head) is not None:
            return f"{found['title'] or ''}\n\n{charts.method_plot(table)}\n\n{folded}"
        return found.group(0)

    return TABLE.sub(drawn, text)


def _read(words: str) -> tuple[Table, str]:
    words, _, columns = words.partition(" @ ")
    path, _, rows = words.partition(" | ")
    place = path.split(" > ")
    table = read_table(*place)
    if columns:
        table = table.only(columns.split("; "))
    return (table.where(rows) if rows else table), place[1]


def _dots(words: str) -> str:
    path, _, caption = words.partition(" :: ")
    table, heading = _read(path)
    return charts.dot_plot(table, caption or table.title or heading)


KINDS: dict[str, Callable[[str], str]] = {
    "table": lambda words: _read(words)[0].as_markdown(),
    "dots": _dots,
    "verdicts": lambda words: charts.verdicts(_read(words)[0]),
    "diagram": lambda name: diagrams.DIAGRAMS[name](),
}
