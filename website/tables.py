"""Tables of the repository's Markdown pages, so that no figure is copied by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Table:
    """A table: what its columns are called, its cells row by row, and the line above it that says what it has."""

    head: list[str]
    rows: list[list[str]]
    title: str = ""

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
        return Table(self.head, rows, self.title)

    def only(self, columns: list[str]) -> Table:
        """Return the table with its first column and these.

        Raises
        ------
        ValueError
            If there is no such column.
        """
        kept = [0, *(self.head.index(name) for name in columns)]
        return Table([self.head[k] for k in kept], [[row[k] for k in kept] for row in self.rows], self.title)

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
    found, title = not before, ""
    for line in lines:
        if line.startswith("#"):
            break
        found = found or line.replace("*", "").startswith(before)
        if found and line.startswith("|"):
            table.append(line)
        elif table:
            break
        elif line and not line.startswith("<!--"):
            title = line.replace("*", "")
    if not table:
        raise ValueError(f"{where}: no table there")
    return as_table(table, title)


def as_table(lines: list[str], title: str = "") -> Table:
    """Return the table that lines of Markdown stand for."""
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return Table(cells[0], cells[2:], title)


def number(cell: str) -> tuple[float, float] | None:
    """Return the value of a cell and what follows after ±, which is 0 if there is nothing; None if it has no number."""
    found = re.match(r"\**(-?[\d,]*\.?\d+(?:e-?\d+)?)(?: ± ([\d.]+(?:e-?\d+)?))?", cell)
    if not found:
        return None
    return float(found.group(1).replace(",", "")), float(found.group(2) or 0)
