"""A figure for every question, and its numbers as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fcco_reproduce._figures import finish, new_figure, save, style
from harness.tables import as_markdown, brief
from what_decides._cells import Line, Problem, Question
from what_decides._measure import Outcome, Outcomes


def draw(question: Question, problems: Sequence[Problem], outcomes: Outcomes, path: Path) -> None:
    """Draw a panel for every problem; bars are two standard errors over seeds."""
    panels = [(problem, lines) for problem in problems if (lines := question.lines(problem))]
    figure, axes = new_figure(len(panels), width=3.1, height=3.6)
    for ax, (problem, lines) in zip(axes, panels, strict=True):
        for k, line in enumerate(line for line in lines if not line.reference):
            _draw_line(ax, line, [outcomes[cell] for cell in line.cells], k)
        for line, shade in zip((line for line in lines if line.reference), ("0.6", "0.0"), strict=False):
            ax.axhline(outcomes[line.cells[0]].mean, color=shade, linestyle=":", linewidth=1.3, label=line.label)
        finish(ax, question.axis, "excess over the minimum", problem.title, log="xy" if question.log_x else "y")
        _name_ticks(ax, lines[0], question)
        ax.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2, columnspacing=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def _draw_line(ax: Any, line: Line, found: list[Outcome], k: int) -> None:
    # Names have no order to be joined along, and points above the same one stand side by side.
    named = isinstance(line.x[0], str)
    x = [place + 0.12 * k for place in range(len(line.x))] if named else line.x
    levels = [outcome.mean if math.isfinite(outcome.mean) else math.nan for outcome in found]
    # A log axis has no place for bars that reach below 0.
    below = [min(2 * outcome.error, 0.9 * level) for outcome, level in zip(found, levels, strict=True)]
    above = [2 * outcome.error for outcome in found]
    look = style(k)
    if named:
        look["linestyle"] = "none"
    ax.errorbar(x, levels, yerr=[below, above], capsize=2, elinewidth=0.8, label=line.label, **look)


def _name_ticks(ax: Any, line: Line, question: Question) -> None:
    names = [_name(x) for x in line.x]
    places = line.x if question.log_x else range(len(names))
    ax.set_xticks(places, names, fontsize=7, rotation=0 if question.log_x or "\n" in names[0] else 30)
    ax.set_xticks([], minor=True)


def _name(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:g}".replace("0.", ".")


def tables(question: Question, problems: Sequence[Problem], outcomes: Outcomes) -> str:
    """Return the numbers of a figure, in Markdown: the mean over seeds, and its standard error."""
    parts = [f"## {question.title}"]
    for problem in problems:
        lines = question.lines(problem)
        if not lines:
            continue
        first, x = f"{problem.title}, batch {problem.batch}", [_name(x).replace("\n", ", ") for x in lines[0].x]
        rows = []
        for line in lines:
            found = [outcomes[cell] for cell in line.cells]
            cells = [f"{brief(outcome.mean)} ± {brief(outcome.error)}" for outcome in found]
            rows.append({first: line.label} | dict(zip(x, cells + [""] * (len(x) - len(cells)), strict=True)))
        parts.append(as_markdown(rows))
        ends = [
            f"{line.label} at {x}"
            for line in lines
            for x, cell in zip(line.x, line.cells, strict=False)
            if outcomes[cell].at_end
        ]
        if ends:
            parts.append(f"Best learning rate at the end of the grid: {'; '.join(ends)}.")
    return "\n\n".join(parts) + "\n"
