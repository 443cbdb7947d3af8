"""Fill the tables of hand-written pages with the figures of stored results.

    python benchmarks/measured.py            # write the tables
    python benchmarks/measured.py --check    # say which pages differ from their sources, and exit with 1 if one does

A table that was measured stands below a comment that names where its figures come from::

    <!-- measured: excess defaults.csv cox -->

    | data, batch, passes | in-batch | **SOAP .7 sampled** |
    |---|---|---|

The page decides what is shown: the head of the table names the settings, and bold print marks the default. This script
writes the lines below the head. Where a table has a line for each loss, the page also has the first cells of its lines,
and the script fills in the others. The text around the tables is written by hand, so read it again after a measurement.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from fcco_reproduce._tables import from_markdown
from harness.tables import brief, read_csv

DOCS = Path(__file__).parent.parent / "docs"
PAGES = (
    "applications/average_precision.md",
    "coming_from_libauc.md",
    "defaults.md",
    "index.md",
    "memory.md",
    "what_decides.md",
)
MARK = re.compile(r"<!-- measured: (\S+) ?(.*) -->")
IN_BATCH = "in-batch"
VERDICTS = {"better": " +", "worse": " !"}
OWN_TERMS = ("", " exact", " sampled")
SPANS = ((0, 0.9), (0, 1), (1, float("inf")), (1.1, float("inf")))  # of ratios: much better, better, worse, much worse


class Table(NamedTuple):
    """A table of a page: the names of its columns, and its lines as cells."""

    head: list[str]
    lines: list[list[str]]

    @property
    def settings(self) -> list[str]:
        """The columns but the first, without bold print."""
        return [name.strip("*") for name in self.head[1:]]

    @property
    def default(self) -> str:
        """The column in bold print."""
        return next(name.strip("*") for name in self.head if name.startswith("**"))


class Figure(NamedTuple):
    """What was measured of a setting in a row of data, batch and passes."""

    excess: float
    verdict: str


Figures = dict[str, dict[str, Figure]]  # by "data, batch, passes", and by setting
Fill = Callable[[Table, str, str], list[list[str]]]  # of the table, the words of its mark, and its page


def figures(path: Path, **chosen: str) -> Figures:
    """Return the figures of a CSV file, of the lines that have these values.

    Raises
    ------
    ValueError
        If there are none.
    """
    found: Figures = {}
    for line in read_csv(path):
        if all(line[key] == value for key, value in chosen.items()):
            row = f"{line['data']}, {line['batch']}, {line['passes']}"
            found.setdefault(row, {})[line["setting"]] = Figure(float(line["excess"]), line.get("verdict", ""))
    if not found:
        raise ValueError(f"{path} has no line with {chosen}")
    return found


def ratios(found: Figures, setting: str) -> list[float]:
    """Return the ratios of a setting's excesses to those of the in-batch loss, over the rows that have it."""
    return [row[setting].excess / row[IN_BATCH].excess for row in found.values() if setting in row]


def short(value: float, digits: int = 2) -> str:
    """Return a number with so many significant digits, and no 0 in front of the point.

    Examples
    --------
    >>> short(0.000057123), short(0.10345), short(1.234), short(12.34), short(0.0674123, 3)
    ('.000057', '.10', '1.2', '12', '.0674')
    """
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    return f"{value:.{max(digits - 1 - exponent, 0)}f}".removeprefix("0")


def by_excess(table: Table, words: str, page: str) -> list[list[str]]:
    """Fill a table of the defaults: excesses, and below them the mean and the largest ratio to the in-batch loss."""
    file, objective = words.split()
    found = figures(DOCS / file, objective=objective)
    lines = [[row, *(brief(entries[name].excess) for name in table.settings)] for row, entries in found.items()]
    all_ratios = [ratios(found, name) for name in table.settings]
    mean, largest = ([f"{of(some):.2f}" for some in all_ratios] for of in (geometric_mean, max))
    return [*lines, ["ratio to in-batch: geometric mean", *mean], ["largest", *largest]]


def by_excess_and_verdict(table: Table, words: str, page: str) -> list[list[str]]:
    """Fill a table of the memory: excesses with their verdicts, and the mean ratio to the in-batch loss."""
    file, half, objective = words.split()
    found = figures(DOCS / file, half=half, objective=objective)
    lines = [
        [row, *(short(entries[name].excess) + VERDICTS.get(entries[name].verdict, "") for name in table.settings)]
        for row, entries in found.items()
    ]
    means = [short(geometric_mean(ratios(found, name)), 3) if name != IN_BATCH else "1" for name in table.settings]
    return [*lines, ["ratio to in-batch: geometric mean", *means]]


LOSSES = {
    "`CoxLoss`": "cox",
    "`BaselineCoxLoss`": "baseline_cox",
    "`AveragePrecisionLoss`": "average_precision",
    "`PNormPushLoss`": "p_norm_push",
    "`PartialAUCLoss`": "partial_auc",
    "`NCALoss`": "nca",
    "`NCALoss`, `log_likelihood=True`": "nca_log",
    "`ListNetLoss`": "list_net",
    "`ListMLELoss`": "list_mle",
    "`NDCGLoss`": "ndcg",
    "`SoftmaxLoss`": "softmax",
    "`ContrastiveLoss`": "contrastive",
    "`InvariantLogisticLoss`": "invariant_logistic",
    "`LatentVariableLoss`": "latent_variable",
    "`MAMLLoss`": "maml",
    "`GroupDROLoss`": "group_dro",
    "Cox": "cox",
    "average precision": "average_precision",
    "p-norm push": "p_norm_push",
    "NCA": "nca",
    "partial AUC": "partial_auc",
    "AP": "average_precision",
    "push": "p_norm_push",
}


def tables_by_objective(page: str) -> dict[str, Table]:
    """Return the tables of a page that mark a default by bold print, by their objectives."""
    tables = {mark.group(2).split()[-1]: table for mark, table in marked(page) if mark.group(2)}
    return {name: table for name, table in tables.items() if any("**" in column for column in table.head)}


def defaults_of(page: str) -> dict[str, str]:
    """Return the setting in bold print in the table of each objective of a page."""
    return {name: table.default for name, table in tables_by_objective(page).items()}


def memories_of(page: str) -> dict[str, str]:
    """Return the default of each objective, or the first memory of its table if the default is none."""
    return {
        name: next(setting for setting in (table.default, *table.settings) if setting.startswith("virtual"))
        for name, table in tables_by_objective(page).items()
    }


def by_loss(table: Table, file: str, page: str) -> list[list[str]]:
    """Fill a table of the losses' defaults: the mean and the largest ratio, after the cells that the page has."""
    chosen = defaults_of(page)
    lines = []
    for loss, rule, *_ in table.lines:
        some = ratios(figures(DOCS / file, objective=LOSSES[loss]), chosen[LOSSES[loss]])
        lines.append([loss, rule, f"{geometric_mean(some):.2f}", f"{max(some):.2f}"])
    return lines


def by_count(table: Table, file: str, page: str) -> list[list[str]]:
    """Fill a table of pairs of settings: in how many rows the first is better, by how much, with the same own term."""
    objectives = dict.fromkeys(line["objective"] for line in read_csv(DOCS / file))
    rows = [row for name in objectives for row in figures(DOCS / file, objective=name).values()]
    lines = []
    for setting, other, *_ in table.lines:
        pairs = [(setting + term, other if other == IN_BATCH else other + term) for term in OWN_TERMS]
        some = [row[one].excess / row[two].excess for row in rows for one, two in pairs if {one, two} <= row.keys()]
        counts = (len(some), *(sum(low < q < high for q in some) for low, high in SPANS))
        lines.append([setting, other, *map(str, counts)])
    return lines


def by_half(table: Table, file: str, page: str) -> list[list[str]]:
    """Fill a table of memories: where they were chosen, on other data, and the table instead."""
    chosen = defaults_of(page)
    lines = []
    for loss, words, *_ in table.lines:
        objective = LOSSES[loss]
        there, other = (figures(DOCS / file, half=half, objective=objective) for half in ("choosing", "reporting"))
        verdicts = [row[chosen[objective]].verdict for row in other.values()]
        counts = ", ".join(str(verdicts.count(verdict)) for verdict in ("better", "even", "worse"))
        mean = lambda found, name: short(geometric_mean(ratios(found, name)))  # noqa: E731
        setting = chosen[objective]
        lines.append([loss, words, mean(there, setting), mean(other, setting), counts, mean(other, "table")])
    return lines


def by_row(table: Table, file: str, page: str) -> list[list[str]]:
    """Fill a table with a line for each objective, data set, batch and number of visits: the table and the memory."""
    chosen = memories_of("memory.md")
    lines = []
    for where, at, *_, size in table.lines:
        loss, data = where.split(", ")
        objective = LOSSES[loss]
        entries = figures(DOCS / file, half="choosing", objective=objective)[f"{data}, {at}"]
        parts = [short(entries[n].excess / entries[IN_BATCH].excess) for n in ("table", chosen[objective])]
        lines.append([where, at, *parts, size])
    return lines


def copied(table: Table, words: str, page: str) -> list[list[str]]:
    """Copy the table of a section of a page that a benchmark writes: the file, and which table of the section."""
    file, number, heading = words.split(maxsplit=2)
    section = (DOCS / file).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return list(tables_of(section))[int(number) - 1].lines


def by_column(table: Table, file: str, page: str) -> list[list[str]]:
    """Fill a table from the columns of a CSV file that have the names in its head."""
    return [[line[name] for name in table.head] for line in read_csv(DOCS / file)]


FILLS: dict[str, Fill] = {
    "columns": by_column,
    "excess": by_excess,
    "verdicts": by_excess_and_verdict,
    "losses": by_loss,
    "counts": by_count,
    "halves": by_half,
    "rows": by_row,
    "copy": copied,
}


def tables_of(text: str) -> Iterator[Table]:
    """Yield the tables of a text in Markdown."""
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        yield Table(*from_markdown(block.splitlines()))


def marked(page: str) -> Iterator[tuple[re.Match[str], Table]]:
    """Yield the marks of a page, each with the table that follows it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for mark in MARK.finditer(text):
        yield mark, next(tables_of(text[mark.end() :]))


def filled(page: str) -> str:
    """Return a page with the figures of today's results in its tables."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for mark, table in marked(page):
        lines = FILLS[mark.group(1)](table, mark.group(2), page)
        before, comment, after = text.partition(mark.group(0))
        body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        after = re.sub(r"(^\|.*\n\|[-| ]*\n)(?:\|.*\n)*", lambda old: old.group(1) + body, after, count=1, flags=re.M)  # noqa: B023
        text = before + comment + after
    return text


def main() -> int:
    """Write the pages, or say which of them differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if a page differs")
    given = parser.parse_args()
    texts = {DOCS / page: filled(page) for page in PAGES}
    differing = {path: text for path, text in texts.items() if text != path.read_text(encoding="utf-8")}
    for path, text in differing.items():
        print(f"docs/{path.name} differs from its sources" if given.check else f"docs/{path.name} is written")
        if not given.check:
            path.write_text(text, encoding="utf-8")
    return int(given.check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
