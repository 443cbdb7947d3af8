"""Parts of figures: colours that everybody can tell apart, means with error bands, and predicted slopes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np

from fcco._extras import import_extra

# Okabe and Ito's palette, without its yellow, which white paper swallows; and a marker and dashes for each.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 1)), (0, (1, 1)), "-", "--")
# A method looks the same in every figure, whichever others are in it.
METHOD_STYLES = {"BSGD": 0, "SOAP": 1, "MOAP": 2, "SOX": 3, "SCGD": 4, "NASA": 5, "in-batch AP": 4, "cross entropy": 5}
METHOD_STYLES |= {"SOX (code)": 3, "SOX (Algorithm 1)": 6, "cross entropy, then AP": 7}


def style(line: int | str, *, marker: bool = True) -> dict[str, Any]:
    """Return the style of a line, by its number in the figure or by the name of the method that it shows."""
    k = (METHOD_STYLES[line] if isinstance(line, str) else line) % len(COLOURS)
    look: dict[str, Any] = {"color": COLOURS[k], "linestyle": DASHES[k], "linewidth": 1.4}
    return {**look, "marker": MARKERS[k], "markersize": 4} if marker else look


def new_figure(panels: int = 1, *, width: float = 3.6, height: float = 3.0) -> tuple[Any, list[Any]]:
    """Return a new figure and its panels, which are in a row.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    # Without pyplot: no window system, and no state that outlives the figure.
    new = import_extra("matplotlib.figure", "a figure").Figure
    figure = new(figsize=(width * panels + 0.4, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def band(
    ax: Any,
    x: Sequence[float],
    runs: Any,
    label: str,
    line: int | str,
    *,
    marker: bool = False,
    above_zero: bool = False,
) -> None:
    """Draw the mean of ``runs`` [seeds, points] over seeds, with a band of two standard errors.

    ``line`` is as in :func:`style`. ``above_zero`` is for log axes, which have no place for a band that reaches below
    0: it ends at a tenth of the mean.
    """
    values = np.asarray(runs, dtype=float)
    mean = values.mean(axis=0)
    error = 2 * values.std(axis=0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.zeros_like(mean)
    look = style(line, marker=marker)
    ax.plot(x, mean, label=label, **look)
    low = np.maximum(mean - error, mean / 10) if above_zero else mean - error
    ax.fill_between(x, low, mean + error, color=look["color"], alpha=0.2, linewidth=0)


def note_divergence(ax: Any, method: str) -> None:
    """Add a legend entry for a method that diverged and has no line."""
    ax.plot([], [], label=f"{method}: diverged", **style(method, marker=False))


def slope(ax: Any, x: Sequence[float], anchor: float, exponent: float, label: str) -> None:
    """Draw a power law on log axes, through ``anchor`` at the first x."""
    ends = np.array([x[0], x[-1]], dtype=float)
    ax.plot(ends, anchor * (ends / ends[0]) ** exponent, color="0.45", linestyle=":", linewidth=1.6, label=label)


def finish(ax: Any, x: str, y: str, title: str = "", *, log: str = "") -> None:
    """Set the labels, the title, log axes and a small legend."""
    if "x" in log:
        ax.set_xscale("log")
    if "y" in log:
        ax.set_yscale("log")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if title:
        ax.set_title(title, fontsize=9)
    ax.grid(True, alpha=0.25, linewidth=0.5)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=7, frameon=False)


def describe(figure: Any) -> str:
    """Return what a figure shows, for readers who do not see it: what is drawn by what in each panel, and the lines.

    Examples
    --------
    >>> figure, (ax,) = new_figure()
    >>> _ = ax.plot([1, 2], [3, 1], label="SOX")
    >>> finish(ax, "iterations", "test loss", "usps", log="y")
    >>> describe(figure)
    'Chart of test loss (log scale) by iterations. usps: SOX.'
    """
    panels: dict[str, list[str]] = {}
    y, before = "", ""
    for ax in figure.axes:
        # Panels in a row share the label of the first of them, and often the lines.
        y = _quantity(ax.get_ylabel(), ax.get_yscale()) or y
        names = "; ".join(dict.fromkeys(ax.get_legend_handles_labels()[1]))
        lines = "the same lines" if names and names == before else names
        x = _quantity(ax.get_xlabel(), ax.get_xscale())
        shown = panels.setdefault(" by ".join(filter(None, (y, x))), [])
        shown.append(": ".join(filter(None, (ax.get_title(), lines))))
        before = names
    return " ".join(f"Chart of {'. '.join(filter(None, (what, *shown)))}." for what, shown in panels.items())


def _quantity(label: str, scale: str) -> str:
    return f"{label} (log scale)" if label and scale == "log" else label


def save(figure: Any, path: Path) -> None:
    """Write an SVG file with its description as the title, without a date: equal figures give equal files."""
    matplotlib = import_extra("matplotlib", "a figure")
    # Verdana is as wide as the font that the layout is made for.
    fonts = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"]}
    with matplotlib.rc_context({"svg.hashsalt": "fcco", **fonts}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Title": describe(figure)})


def description(path: Path) -> str:
    """Return the title of an SVG file that :func:`save` wrote."""
    found = re.search(r"<title>(.*?)</title>", path.read_text(encoding="utf-8"), re.DOTALL)
    return unescape(found[1]) if found else ""
