"""Charts of the tables of results: dots with bars for the seeds' deviation, and squares for verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import drawing
from tables import Table, number

LEFT, PLOT, RIGHT, ROW = 250.0, 360.0, 230.0, 24.0
STYLES = (("circle", "ours"), ("circle", "theirs"), ("triangle", "theirs"), ("square", "theirs"))
BARS = "Marks are means, bars standard deviations over seeds."
STANDARD_ERRORS = "Bars are standard errors over seeds."
ERRORS = "Marks are means, bars the column +- of the table."
# What ours is compared with, by the name of its column.
COMPARED = {"best competitor": "best competitor", "paper": "the paper"}


@dataclass(frozen=True)
class Line:
    """A row of a plot: its name, a value and a deviation of each method, and a remark on the right."""

    name: str
    values: list[tuple[float, float] | None]
    remark: str = ""


def compares(head: list[str]) -> bool:
    """Return whether a table has results of ours beside those of others."""
    return "ours" in head and any(name in head for name in COMPARED)


def measured(head: list[str]) -> int | None:
    """Return which column of a table with a row for each method has a value, next to its deviation; None if none."""
    if "method" not in head:
        return None
    return next((k for k, name in enumerate(head[:-1]) if head[k + 1] in ("std", "+-", f"{name} std")), None)


def method_plot(table: Table) -> str:
    """Return a figure of a table with a row for each method: the value that has a deviation, and the paper's."""
    k = measured(table.head)
    assert k is not None
    at = {name: place for place, name in enumerate(table.head)}
    lines = []
    for row in table.rows:
        value, spread = number(row[k]), number(row[k + 1])
        if value:
            values = [(value[0], spread[0] if spread else 0.0), number(row[at["paper"]]) if "paper" in at else None]
            lines.append(Line(row[at["method"]], values, _group(row, at)))
    methods = ["fcco", "the paper"] if any(line.values[1] for line in lines) else []
    return _plot(methods, lines, f"{table.head[k]}.", [BARS if table.head[k + 1] != "+-" else ERRORS])


def _group(row: list[str], at: dict[str, int]) -> str:
    return ", ".join(row[at[name]] for name in ("data", "problem", "block") if name in at)


def dot_plot(table: Table, what: str) -> str:
    """Return a figure of a table, either of ours and another's results or of one column for each method.

    ``what`` is the caption, to which a comparison adds how to read it.
    """
    pairs = compares(table.head)
    methods, lines = _of_pairs(table) if pairs else _of_columns(table)
    return _plot(methods, lines, what, _notes(table, what) if pairs else [STANDARD_ERRORS] if table.errors else [])


def _plot(methods: list[str], lines: list[Line], what: str, notes: list[str]) -> str:
    scale, ticks = _axis([value for line in lines for value in line.values if value])
    height = ROW * len(lines) + 70
    parts = [*_legend(methods), *_grid(scale, ticks, height)]
    for k, line in enumerate(lines):
        parts += _marks(line, 46 + ROW * k, scale)
    caption = " ".join([what, *notes])
    alt = f"Dot plot. {what} " + "; ".join(_in_words(line, methods) for line in lines)
    return drawing.figure(parts, LEFT + PLOT + RIGHT, height, alt=alt, caption=caption)


def _notes(table: Table, what: str) -> list[str]:
    notes = [BARS]
    if what.startswith(("Objective", "Metric")):
        notes.append("Lower is better." if what.startswith("Objective") else "Higher is better.")
    if "which" in table.head:
        notes.append("On the right: the best competitor, and whose result is better.")
    return notes


def _of_pairs(table: Table) -> tuple[list[str], list[Line]]:
    at = {name: k for k, name in enumerate(table.head)}
    other = next(name for name in COMPARED if name in at)
    lines = []
    for row in table.rows:
        values = [number(row[at["ours"]]), number(row[at[other]])]
        if values[0]:
            lines.append(Line(_name(row, at), values, _remark(row, at)))
    return ["fcco", COMPARED[other]], lines


def _name(row: list[str], at: dict[str, int]) -> str:
    return f"{row[0]}, batch {row[at['batch']]}" if "batch" in at else ", ".join(row[:2])


def _remark(row: list[str], at: dict[str, int]) -> str:
    if "which" not in at:
        return ""
    verdict = row[at.get("ratio", at.get("difference", -1))].split(", ")[-1].strip("*")
    return f"{row[at['which']]}: {verdict}"


def _of_columns(table: Table) -> tuple[list[str], list[Line]]:
    # The default stands in bold, and gets the mark of ours.
    order = sorted(range(1, len(table.head)), key=lambda k: not table.head[k].startswith("**"))
    rows = [row for row in table.rows if not row[0].startswith(("ratio", "largest"))]
    names = [table.head[k].strip("*") for k in order]
    lines = []
    for row in rows:
        values = [number(row[k]) for k in order]
        errors = [table.errors.get((row[0], name)) for name in names]
        both = zip(values, errors, strict=True)
        lines.append(Line(row[0].replace("`", ""), [(v[0], e) if v and e else v for v, e in both]))
    return names, lines


def _axis(values: list[tuple[float, float]]) -> tuple[Callable[[float], float], list[float]]:
    """Return a scale from values to places, and the values of its ticks; logarithmic where values differ a lot."""
    centres = [value for value, _ in values]
    if min(centres) > 0 and max(centres) / min(centres) > 20:
        low, high = math.floor(math.log10(min(centres))), math.ceil(math.log10(max(centres)))
        floor, ceiling = 10.0**low, 10.0**high
        ticks = [10.0**k for k in range(low, high + 1)]
        return lambda v: LEFT + PLOT * (math.log10(min(max(v, floor), ceiling)) - low) / (high - low), ticks
    least, most = min(v - s for v, s in values), max(v + s for v, s in values)
    step = _nice((most - least) / 4 or abs(most) or 1.0)
    low, high = math.floor(least / step), math.ceil(most / step)
    ticks = [k * step for k in range(low, high + 1)]
    return lambda v: LEFT + PLOT * (v - ticks[0]) / (ticks[-1] - ticks[0]), ticks


def _nice(step: float) -> float:
    unit = 10.0 ** math.floor(math.log10(step))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= step)


def _legend(methods: list[str]) -> list[str]:
    parts, x = [], LEFT
    for name, (shape, kind) in zip(methods, STYLES, strict=False):
        parts += [drawing.marker(x, 14, shape, kind), drawing.text(x + 9, 18, name)]
        x += 24 + 6.6 * len(name)
    return parts


def _grid(scale: Callable[[float], float], ticks: list[float], height: float) -> list[str]:
    parts = []
    for tick in ticks:
        x = scale(tick)
        parts += [
            drawing.line(x, 30, x, height - 32),
            drawing.text(x, height - 16, f"{tick:.6g}", anchor="middle", size=11, kind="faint"),
        ]
    return parts


def _marks(line: Line, y: float, scale: Callable[[float], float]) -> list[str]:
    parts = [drawing.text(LEFT - 12, y + 4, line.name, anchor="end")]
    if line.remark:
        parts.append(drawing.text(LEFT + PLOT + 14, y + 4, line.remark, size=11, kind="faint"))
    # Ours is drawn last, on top; where both have bars, these lie beside each other.
    for k, (value, (shape, kind)) in reversed(list(enumerate(zip(line.values, STYLES, strict=False)))):
        if value is None:
            continue
        centre, spread = value
        at = y + (k - 0.5) * 6 if spread else y
        if spread:
            parts.append(drawing.line(scale(centre - spread), at, scale(centre + spread), at, f"bar-{kind}"))
        parts.append(drawing.marker(scale(centre), at, shape, kind))
    return parts


def _in_words(line: Line, methods: list[str]) -> str:
    named = zip(methods or [""], line.values, strict=False)
    values = [f"{name} {value[0]:g}".strip() for name, value in named if value]
    return f"{line.name}: {', '.join(values)}" + (f" ({line.remark})" if line.remark else "")


VERDICTS = ("better", "even", "worse")


def verdicts(table: Table) -> str:
    """Return a figure of the columns "better / even / worse": a square for each data set."""
    columns = [k for k, name in enumerate(table.head) if name.endswith("better / even / worse")]
    names = [table.head[k].split(":")[0] for k in columns]
    parts, places = [], [LEFT + 20 + 260 * k for k in range(len(columns))]
    for k, verdict in enumerate(VERDICTS):
        parts += [_square(LEFT + 20 + 90 * k, 14, verdict), drawing.text(LEFT + 34 + 90 * k, 18, verdict)]
    parts += [drawing.text(x - 6, 42, name, kind="faint") for x, name in zip(places, names, strict=True)]
    words = []
    for y, row in enumerate(table.rows):
        label = f"{row[0]}, batch {row[1]}"
        parts.append(drawing.text(LEFT - 12, 64 + 18 * y, label, anchor="end"))
        for x, k in zip(places, columns, strict=True):
            counts = [int(count) for count in row[k].split("/")]
            cases = [verdict for verdict, count in zip(VERDICTS, counts, strict=True) for _ in range(count)]
            parts += [_square(x + 15 * place, 60 + 18 * y, verdict) for place, verdict in enumerate(cases)]
        words.append(f"{label}: {', '.join(f'{name} {row[k]}' for name, k in zip(names, columns, strict=True))}")
    alt = f"Verdicts, better / even / worse. {'; '.join(words)}"
    caption = "A square is a data set: fcco against the best competitor, by training objective and by test metric."
    return drawing.figure(parts, LEFT + 540, 64 + 18 * len(table.rows), alt=alt, caption=caption)


def _square(x: float, y: float, verdict: str) -> str:
    return drawing.rectangle(x - 6, y - 6, 12, 12, f"verdict-{verdict}", radius=2)
