"""The page: which method is better in which case, by how much, and up to which batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, geometric_mean, stdev
from typing import Any, NamedTuple

from applications._application import Application, Case, Entry, Table
from harness.tables import Row, as_markdown, spread

Entries = dict[str, Entry]

INTRODUCTION = """\
# Applications

**What was compared.** This page compares losses of the library with the strongest alternatives that were at hand, one
application at a time. Most of the data are real; where data are simulated, the section says so. In every row, all
methods that train on mini-batches have the same model, the same optimizer and the same batches, unless the section says
otherwise. Every method has its own best learning rate (lr).

    FCCO_DATA=... make bench-applications

**What came out.** {outcome}
"""

MEASURED = """\
## How it was measured

Only the lr is tuned, on the same grid for all methods of a row. The search tries factors of four on the first seed, and
then five factors of two around the best of them on all seeds. {search}In training, the lr falls to 0 along a cosine.
Our losses have their default settings, unless the section says otherwise.

The page reports two numbers. They are kept apart, and each has an lr of its own:

- The **objective** is computed exactly on all training data, unless the section says otherwise. The lr is the one that
  is best for the objective. If the minimum is known, the tables show the *excess* over it, and the *ratio* of our
  excess to that of the best competitor: a ratio below 1 is a gain. Otherwise they show the *difference*, and a negative
  one is a gain.
- The **metric** is computed on test data. The lr is the one that is best on validation data. The best competitor is the
  one with the best metric on the test data, and a positive *difference* is a gain. A lower objective does not always
  lead to a better metric.

Methods that find the exact optimum, or that use all data, classes or documents at every step, have columns of their
own. They do not count as competitors.

The figures are means over at least {seeds} seeds, ± the standard deviation over seeds. *Even* means that the difference
is within twice its standard error, or that it is below 5% of the competitor's excess, 0.1% of the competitor's
objective (if the minimum is not known), or 0.001 of a metric.
"""

SEARCH = "[Some of the best values](#learning-rates-at-the-end-of-the-grid) lie at an end of the second grid. "

ENDS = """\
For these methods the best of the five factors of two is the first or the last one, by the objective or by the metric. A
better lr may lie beyond it.
"""


class Duel(NamedTuple):
    """The comparison of ours with the best competitor in one number."""

    ours: list[float]
    theirs: list[float]
    rival: str
    winner: str  # "ours", "even" or "theirs"
    floor: float  # the minimum of the objective, or 0 if it is not known

    @property
    def difference(self) -> float:
        """The mean of ours minus the mean of theirs."""
        return fmean(self.ours) - fmean(self.theirs)


def _of_kind(entries: Entries, *kinds: str) -> list[Entry]:
    return [entry for entry in entries.values() if entry.method.kind in kinds]


def floor(entries: Entries) -> float | None:
    """Return the minimum of the objective, or None if it is not known."""
    found = [fmean(entry.objective) for entry in _of_kind(entries, "exact")]
    return found[0] if found else None


def duel(entries: Entries, number: str) -> Duel | None:
    """Compare ours with the best competitor in "objective" or "metric"; None if no competitor has that number."""
    sign = 1 if number == "objective" else -1
    values: Callable[[Entry], list[float]] = lambda entry: getattr(entry, number)  # noqa: E731
    rivals = [entry for entry in _of_kind(entries, "in-batch", "field") if not math.isnan(fmean(values(entry)))]
    ours = _of_kind(entries, "ours")
    if not rivals or not ours:
        return None
    rival = min(rivals, key=lambda entry: sign * fmean(values(entry)))
    a, b = values(ours[0]), values(rival)
    lowest = floor(entries) if number == "objective" else None
    if number == "metric":
        tolerance = 0.001
    else:
        tolerance = 0.001 * abs(fmean(b)) if lowest is None else 0.05 * abs(fmean(b) - lowest)
    return Duel(a, b, rival.method.name, _winner(a, b, sign, tolerance), lowest or 0.0)


def _winner(a: list[float], b: list[float], sign: int, tolerance: float) -> str:
    difference = sign * (fmean(a) - fmean(b))
    if math.isnan(difference):
        return "even"
    noise = 2 * math.sqrt(sum(stdev(v) ** 2 / len(v) for v in (a, b) if len(v) > 1 and math.isfinite(sum(v))))
    if abs(difference) <= max(noise, tolerance):
        return "even"
    return "ours" if difference < 0 else "theirs"


def ratio(entries: Entries) -> float:
    """Return our excess divided by that of the best competitor, or NaN if the minimum is not known."""
    found = duel(entries, "objective")
    if found is None or floor(entries) is None:
        return math.nan
    return (fmean(found.ours) - found.floor) / (fmean(found.theirs) - found.floor)


def _bold_if_ours(text: str, winner: str) -> str:
    return {"ours": f"{text}, **ours**", "theirs": f"{text}, theirs", "even": f"{text}, even"}[winner]


def objective_row(case: Case, entries: Entries) -> Row:
    """Return a row of the table of the objective."""
    row: Row = {"data": case.where, "batch": case.batch, "passes": case.passes}
    found = duel(entries, "objective")
    if found is None:
        return row
    known = floor(entries) is not None
    by = f"{ratio(entries):.2f}" if known else f"{found.difference:+.4f}"
    row |= {"ours": spread(found.ours, found.floor), "best competitor": spread(found.theirs, found.floor)}
    row |= {"which": found.rival, "ratio" if known else "difference": _bold_if_ours(by, found.winner)}
    for entry in _of_kind(entries, "full"):
        row[entry.method.name] = spread(entry.objective, found.floor)
    return row


def metric_row(case: Case, entries: Entries, *, seconds: bool = False) -> Row:
    """Return a row of the table of the metric, with ``seconds`` also the time relative to that of the in-batch loss."""
    row: Row = {"data": case.where, "batch": case.batch, "passes": case.passes}
    found = duel(entries, "metric")
    if found is None:
        return row
    row |= {"ours": spread(found.ours), "best competitor": spread(found.theirs), "which": found.rival}
    row["difference"] = _bold_if_ours(f"{found.difference:+.4f}", found.winner)
    for entry in _of_kind(entries, "exact", "full"):
        row[entry.method.name] = spread(entry.metric)
    ours = _of_kind(entries, "ours")[0].typical("seconds")
    theirs = [entry.typical("seconds") for entry in _of_kind(entries, "in-batch")]
    if seconds and theirs and theirs[0] > 0:
        row["seconds, ours / in-batch"] = f"{ours / theirs[0]:.2f}"
    return row


def _tally(winners: Iterable[str]) -> str:
    found = list(winners)
    return " / ".join(str(found.count(name)) for name in ("ours", "even", "theirs"))


def summary(tables: dict[str, tuple[Application, Table]]) -> list[Row]:
    """Return a row for every application and batch size."""
    rows = []
    for application, table in tables.values():
        for batch in sorted({case.batch for case in table}):
            some = [entries for case, entries in table.items() if case.batch == batch]
            objectives = [found for found in (duel(entries, "objective") for entries in some) if found]
            metrics = [found for found in (duel(entries, "metric") for entries in some) if found]
            ratios = [r for r in map(ratio, some) if r > 0 and math.isfinite(r)]
            row: Row = {"application": application.title, "batch": batch}
            row["ratio of excesses"] = f"{geometric_mean(ratios):.2f}" if ratios else ""
            row["objective: better / even / worse"] = _tally(found.winner for found in objectives)
            finite = [found.difference for found in metrics if math.isfinite(found.difference)]
            row["metric: difference"] = f"{fmean(finite):+.4f}" if finite else ""
            row["metric: better / even / worse"] = _tally(found.winner for found in metrics)
            row["best competitors"] = ", ".join(sorted({found.rival for found in (*objectives, *metrics)}))
            rows.append(row)
    return rows


def outcome(rows: list[Row]) -> str:
    """Return sentences that count how often ours is better, even and worse in the whole summary."""
    counts = {}
    for number in ("objective", "metric"):
        tallies = [str(row[f"{number}: better / even / worse"]).split(" / ") for row in rows]
        better, even, worse = (sum(map(int, column)) for column in zip(*tallies, strict=True)) if rows else (0, 0, 0)
        found = f"{better}, even in {even} and worse in {worse} of {better + even + worse} cases"
        counts[number] = f"better than the best competitor in {found}"
    return (
        f"By the training objective, fcco is {counts['objective']}. By the test metric, it is {counts['metric']}. "
        "A case is a combination of a data set, a model, a batch size and a number of passes."
    )


def helps_up_to(table: Table) -> str:
    """Return a sentence on the batch sizes at which our objective is better in at least half of the cases."""
    winners: dict[int, list[str]] = {}
    for case, entries in table.items():
        found = duel(entries, "objective")
        if found is not None:
            winners.setdefault(case.batch, []).append(found.winner)
    helped = [batch for batch, some in sorted(winners.items()) if 2 * some.count("ours") >= len(some)]
    if not winners:
        return ""
    if not helped:
        return "At no batch size is our objective clearly better in at least half of the cases."
    if len(helped) == len(winners):
        return "At every batch size, our objective is clearly better in at least half of the cases."
    if helped[-1] == max(winners):
        return f"At the largest batch, {helped[-1]}, our objective is clearly better in at least half of the cases."
    return f"Beyond batch {helped[-1]}, our objective is no longer clearly better in at least half of the cases."


def section(application: Application, table: Table, *, seconds: bool = False) -> str:
    """Return the section of the page on one application."""
    verdict = application.goal(table) if application.goal else ""
    parts = [f"## {application.title}", application.text, verdict, helps_up_to(table)]
    for known, name in ((True, "excess over the minimum of the "), (False, "")):
        rows = [objective_row(*item) for item in table.items() if (floor(item[1]) is not None) == known]
        if rows:
            parts += [f"*Objective*: {name}{application.objective}.", as_markdown(rows, markup=True)]
    parts += [
        f"*Metric*: {application.metric}.",
        as_markdown([metric_row(*item, seconds=seconds) for item in table.items()], markup=True),
    ]
    return "\n\n".join(part for part in parts if part)


def ends(tables: dict[str, tuple[Application, Table]]) -> list[Row]:
    """Return the cases in which the best lr of some methods lies at the end of the grid, with these methods."""
    found = {
        (application.title, case): [
            entry.method.name for entry in entries.values() if entry.by_objective.at_end or entry.by_metric.at_end
        ]
        for application, table in tables.values()
        for case, entries in table.items()
    }
    return [
        {"application": title, "data": case.where, "batch": case.batch, "methods": ", ".join(methods)}
        for (title, case), methods in found.items()
        if methods
    ]


def as_page(
    tables: dict[str, tuple[Application, Table]],
    absent: dict[str, set[str]],
    about: dict[str, Any],
    missing: Sequence[str] = (),
    *,
    seconds: bool = False,
    earlier: bool = False,
) -> str:
    """Return the whole page in Markdown, including a list of the rows that are not measured yet.

    With ``earlier``, the page says that some results may come from an earlier search for the lr, which was not a grid.
    """
    seeds = min((application.seeds for application, _ in tables.values()), default=0)
    rows, at_end = summary(tables), ends(tables)
    parts = [INTRODUCTION.format(outcome=outcome(rows)).rstrip()]
    if missing:
        parts.append("These rows are not measured yet: " + "; ".join(missing) + ".")
    parts += ["## Summary", as_markdown(rows), MEASURED.format(seeds=seeds, search=SEARCH if at_end else "").rstrip()]
    if earlier:
        parts.append(
            "Some results may come from an earlier version of the code, which searched for the lr by a walk and not on "
            "a grid."
        )
    if absent:
        lines = [f"{', '.join(sorted(methods))} (`pip install {need}`)" for need, methods in absent.items()]
        parts.append("These methods were left out, because their packages are not installed: " + "; ".join(lines) + ".")
    parts.append("The results were measured with " + ", ".join(f"{key} {value}" for key, value in about.items()) + ".")
    parts += [section(application, table, seconds=seconds) for application, table in tables.values() if table]
    if at_end:
        parts += ["## Learning rates at the end of the grid", ENDS.strip(), as_markdown(at_end)]
    return "\n\n".join(parts) + "\n"
