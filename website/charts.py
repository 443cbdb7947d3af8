"""Dot plots of the tables of results: a line for each row, a mark for each method, bars for the seeds' deviation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import drawing
from tables import Table, number

LEFT, PLOT, RIGHT, ROW = 250.0, 360.0, 230.0, 24.0
STYLES = (("circle", "ours"), ("circle", "theirs"), ("triangle", "theirs"), ("square", "theirs"))


@dataclass(frozen=True)
class Line:
    """A row of a plot: its name, a value and a deviation of each method, and a remark on the right."""

    name: str
    values: list[tuple[float, float] | None]
    remark: str = ""


def dot_plot(table: Table, what: str) -> str:
    """Return a figure of a table, either of ours and the best competitor or of one column for each method."""
    methods, lines = _of_pairs(table) if "ours" in table.head else _of_columns(table)
    scale, ticks = _axis([value for line in lines for value in line.values if value])
    height = ROW * len(lines) + 70
    parts = [*_legend(methods), *_grid(scale, ticks, height)]
    for k, line in enumerate(lines):
        parts += _marks(line, 46 + ROW * k, scale)
    alt = f"Dot plot. {what} " + "; ".join(_in_words(line, methods) for line in lines)
    return drawing.figure(parts, LEFT + PLOT + RIGHT, height, alt=alt, caption=f"{what} {_note(table)}")


def _note(table: Table) -> str:
    if "ours" in table.head:
        return (
            "Marks are means, bars standard deviations over seeds. On the right: the best competitor, and the verdict."
        )
    return "Each row is a data set, a batch size and a number of passes; the filled mark is the default."


def _of_pairs(table: Table) -> tuple[list[str], list[Line]]:
    at = {name: k for k, name in enumerate(table.head)}
    lines = [
        Line(
            f"{row[at['data']]}, batch {row[at['batch']]}",
            [number(row[at["ours"]]), number(row[at["best competitor"]])],
            f"{row[at['which']]}: {row[_verdict(table)].split(', ')[-1].strip('*')}",
        )
        for row in table.rows
    ]
    return ["fcco", "best competitor"], lines


def _verdict(table: Table) -> int:
    return next(k for k, name in enumerate(table.head) if name in ("ratio", "difference"))


def _of_columns(table: Table) -> tuple[list[str], list[Line]]:
    # The default stands in bold, and gets the mark of ours.
    order = sorted(range(1, len(table.head)), key=lambda k: not table.head[k].startswith("**"))
    rows = [row for row in table.rows if not row[0].startswith(("ratio", "largest"))]
    lines = [Line(row[0], [number(row[k]) for k in order]) for row in rows]
    return [table.head[k].strip("*") for k in order], lines


def _axis(values: list[tuple[float, float]]) -> tuple[Callable[[float], float], list[float]]:
    """Return a scale from values to places, and the values of its ticks; logarithmic where values differ a lot."""
    centres = [value for value, _ in values]
    if min(centres) > 0 and max(centres) / min(centres) > 20:
        low, high = math.floor(math.log10(min(centres))), math.ceil(math.log10(max(centres)))
        floor = 10.0**low
        ticks = [10.0**k for k in range(low, high + 1)]
        return lambda v: LEFT + PLOT * (math.log10(max(v, floor)) - low) / (high - low), ticks
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
    both = list(zip(line.values, STYLES, strict=False))
    # Ours is drawn last, on top; where both have bars, these lie beside each other.
    for k, (value, (shape, kind)) in reversed(list(enumerate(both))):
        if value is None:
            continue
        centre, spread = value
        at = y + (k - 0.5) * 6 if spread else y
        if spread:
            parts.append(drawing.line(scale(centre - spread), at, scale(centre + spread), at, f"bar-{kind}"))
        parts.append(drawing.marker(scale(centre), at, shape, kind))
    return parts


def _in_words(line: Line, methods: list[str]) -> str:
    values = [f"{name} {value[0]:g}" for name, value in zip(methods, line.values, strict=False) if value]
    return f"{line.name}: {', '.join(values)}" + (f" ({line.remark})" if line.remark else "")
