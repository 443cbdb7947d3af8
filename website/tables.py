"""Tables of the repository's Markdown pages, so that no figure is copied by hand."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from fcco_reproduce._tables import from_markdown

ROOT = Path(__file__).parent.parent
# A comment above a table that names its source: a CSV file, perhaps a half of it, and an objective.
SOURCE = re.compile(r"<!-- measured: (?:excess|verdicts) (\S+\.csv) (?:(\S+) )?(\S+) -->")


@dataclass(frozen=True)
class Table:
    """A table: its columns, its cells row by row, and the line above it that says what it has.

    ``errors`` has the standard errors of its cells, where they are known, by the first cell of their row and the name
    of their column.
    """

    head: list[str]
    rows: list[list[str]]
    title: str = ""
    errors: dict[tuple[str, str], float] = field(default_factory=dict)

    def where(self, words: str) -> Table:
        """Return the rows whose first cell has these words.

        Raises
        ------
        ValueError
            If there are none.
        """
        rows = [row for row in self.rows if words in row[0]]
        if not rows:
            raise ValueError(f"no row with {words!r} in a table of {', '.join(row[0] for row in self.rows)}")
        return replace(self, rows=rows)

    def only(self, columns: list[str]) -> Table:
        """Return the table with its first column and these.

        Raises
        ------
        ValueError
            If there is no such column.
        """
        kept = [0, *(self.head.index(name) for name in columns)]
        return replace(self, head=[self.head[k] for k in kept], rows=[[row[k] for k in kept] for row in self.rows])

    def as_markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def read_table(page: str, heading: str, before: str = "") -> Table:
    """Return the first table of a section of a page, or the first after a line that begins with ``before``.

    Raises
    ------
    ValueError
        If there is no such section, line or table.
    """
    lines = iter((ROOT / page).read_text().splitlines())
    where = f"{page} > {heading}" + (f" > {before}" if before else "")
    if not any(re.fullmatch(rf"#+ {re.escape(heading)}", line) for line in lines):
        raise ValueError(f"{where}: no such heading")
    table: list[str] = []
    found, title, errors = not before, "", {}
    for line in lines:
        if line.startswith("#"):
            break
        found = found or line.replace("*", "").startswith(before)
        if found and line.startswith("|"):
            table.append(line)
        elif table:
            break
        elif source := SOURCE.fullmatch(line):
            errors = standard_errors(*source.groups())
        elif line and not line.startswith("<!--"):
            title = line.replace("*", "")
    if not table:
        raise ValueError(f"{where}: no table there")
    return replace(as_table(table, title), errors=errors)


def standard_errors(file: str, half: str | None, objective: str) -> dict[tuple[str, str], float]:
    """Return the standard errors in a CSV file of docs/, by "data, batch, passes" and setting."""
    with (ROOT / "docs" / file).open(newline="", encoding="utf-8") as lines:
        return {
            (f"{line['data']}, {line['batch']}, {line['passes']}", line["setting"]): float(line["standard_error"])
            for line in csv.DictReader(lines)
            if line["objective"] == objective and line.get("half") == half
        }


def as_table(lines: list[str], title: str = "") -> Table:
    """Return the table that lines of Markdown stand for."""
    return Table(*from_markdown(lines), title)


def number(cell: str) -> tuple[float, float] | None:
    """Return the value of a cell and what follows after ±, which is 0 if there is nothing; None if it has no number."""
    found = re.match(r"\**(-?[\d,]*\.?\d+(?:e-?\d+)?)(?: ± ([\d.]+(?:e-?\d+)?))?", cell)
    if not found:
        return None
    return float(found.group(1).replace(",", "")), float(found.group(2) or 0)
