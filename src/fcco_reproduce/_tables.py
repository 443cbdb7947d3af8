"""Rows of numbers as CSV, as text and as Markdown."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def cell(value: Any) -> str:
    """Return a value as text, with four significant digits; None is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def columns(rows: Sequence[Row]) -> list[str]:
    """Return all keys of the rows, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows to a CSV file with a header, in full precision; None is an empty cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def as_text(rows: Sequence[Row]) -> str:
    """Return aligned columns, with numbers to four significant digits.

    Examples
    --------
    >>> print(as_text([{"n": 10, "error": 0.25}, {"n": 2000, "error": 1 / 3}]))
    n      error
    10     0.25
    2,000  0.3333
    """
    lines = [columns(rows), *([cell(row.get(column)) for column in columns(rows)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def as_markdown(rows: Sequence[Row], *, markup: bool = False) -> str:
    """Return a Markdown table, with numbers to four digits.

    Parameters
    ----------
    rows : sequence of dict
        The rows, by column.
    markup : bool
        Whether cells are Markdown already; otherwise they are escaped.

    Examples
    --------
    >>> print(as_markdown([{"n": 10, "error": 0.25}]))
    | n | error |
    |---|---|
    | 10 | 0.25 |
    """
    lines = [columns(rows), *([cell(row.get(column)) for column in columns(rows)] for row in rows)]
    shown = [
        [" ".join((text if markup else escaped(text)).split()).replace("|", "\\|") for text in line] for line in lines
    ]
    joined = ["| " + " | ".join(line) + " |" for line in shown]
    return "\n".join([joined[0], "|" + "---|" * len(columns(rows)), *joined[1:]])


def escaped(text: str) -> str:
    """Return text in which Markdown sees no emphasis between two w*, no link and no HTML; code stays code.

    Examples
    --------
    >>> print(escaped("<b> w* `w*` [x](y)"))
    \\<b> w\\* `w*` [x\\](y)
    """
    return re.sub(
        r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)|[\\*]|<(?=[A-Za-z/!?])|\](?=\()",
        lambda m: m[0] if m[1] else f"\\{m[0]}",
        text,
    )


def from_markdown(lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the cells, row by row, of a Markdown table.

    Examples
    --------
    >>> from_markdown(["| n | error |", "|---|---|", "| 10 | 0.25 |"])
    (['n', 'error'], [['10', '0.25']])
    """
    head, _, *rows = ([text.strip() for text in re.split(r"(?<!\\)\|", line.strip())[1:-1]] for line in lines)
    return head, rows
