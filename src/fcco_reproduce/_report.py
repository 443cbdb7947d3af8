"""The command ``fcco report``, which writes one self-contained HTML page of the results in a folder."""

from __future__ import annotations

import argparse
import base64
import math
import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from fcco._extras import import_extra
from fcco_reproduce._figures import description
from fcco_reproduce._page import as_page, first_sentences, making
from fcco_reproduce._record import read_records
from fcco_reproduce._results import as_results
from fcco_reproduce._stale import state
from fcco_reproduce._study import answer
from fcco_reproduce._tables import Row, as_text, cell, columns

NAME = "report.html"
EXAMPLES = """examples:
  fcco report
  fcco report results/quick results/theory --out both.html
  fcco report docs/ap docs/push docs/nca --results RESULTS.md
  fcco report docs/nca --docs docs/nca.md
  fcco report docs/ap docs/push docs/nca docs/theory --stale
"""
Record = dict[str, Any]


def define(parser: argparse.ArgumentParser) -> None:
    """Give the parser of the command its description and options."""
    parser.description = "Rebuild the HTML page of what fcco reproduce left: findings, tables, figures, environment."
    parser.epilog = EXAMPLES
    parser.add_argument("folders", nargs="*", type=Path, help="folders of results (default: all in results/)")
    parser.add_argument("--out", type=Path, metavar="PAGE", help="the page (default: report.html in the folder)")
    parser.add_argument(
        "--results", type=Path, metavar="PAGE", help="write the paper's numbers and ours, in Markdown, and no HTML page"
    )
    parser.add_argument(
        "--docs", type=Path, metavar="PAGE", help="write a page in Markdown beside the folder, and no HTML page"
    )
    parser.add_argument("--stale", action="store_true", help="list which results were made by other code than today's")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """Run the command and return what it prints.

    Raises
    ------
    ValueError
        If there are no results in the folders.
    """
    folders: list[Path] = arguments.folders or _all_results(Path("results"))
    if arguments.stale:
        return as_text(_staleness(folders))
    if arguments.results is not None:
        records = [record for folder in folders for record in read_records(folder)]
        try:
            text = as_results(records, f"fcco report {' '.join(map(str, folders))} --results {arguments.results}")
        except (LookupError, TypeError, ValueError) as error:
            where = ", ".join(map(str, folders))
            raise ValueError(f"a table in {where} is not complete ({error!r}): run fcco reproduce again") from error
        arguments.results.write_text(text, encoding="utf-8")
        return f"results: {arguments.results}"
    if arguments.docs is not None:
        return f"page: {write_docs(folders, arguments.docs)}"
    page = arguments.out or (folders[0] if len(folders) == 1 else Path("results")) / NAME
    return f"report: {write_page(folders, page)}"


def _staleness(folders: Sequence[Path]) -> list[Row]:
    """Return a row for every record, with why it is stale, or that it is not."""
    records = [(folder, record) for folder in folders for record in read_records(folder)]
    return [
        {"results": str(folder / record["stem"]), "date": record["run"]["date"][:10]} | {"state": state(record)}
        for folder, record in records
    ]


def _all_results(parent: Path) -> list[Path]:
    found = sorted({path.parent for path in parent.glob("*/*.json")})
    if not found:
        raise ValueError(f"there are no results in {parent}: run fcco reproduce, or name a folder")
    return found


def write_docs(folders: Sequence[Path], page: Path) -> Path:
    """Write the Markdown page of a folder of results, which has to be beside it, and return its path.

    Raises
    ------
    ValueError
        If there are several folders, if the folder is elsewhere, or if it has no results.
    """
    if len(folders) != 1 or folders[0].resolve().parent != page.resolve().parent:
        named = ", ".join(map(str, folders))
        raise ValueError(f"--docs needs one folder of results, in the folder of the page {page}; got {named}")
    page.write_text(as_page(read_records(folders[0]), folders[0]), encoding="utf-8")
    return page


def write_page(folders: Sequence[Path], page: Path) -> Path:
    """Write the page of all results in ``folders`` and return its path.

    Raises
    ------
    ValueError
        If a folder has no results.
    """
    groups = [(folder, read_records(folder)) for folder in folders]
    text = as_html(groups)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return page


def as_html(groups: Sequence[tuple[Path, list[Record]]]) -> str:
    """Return the page for records and the folders that hold their figures."""
    records = [record for _, some in groups for record in some]
    titles = list(dict.fromkeys(record["study"]["title"] for record in records))
    trial = [record for record in records if record["holds"] is None]
    judged, holds = len(records) - len(trial), sum(record["holds"] is True for record in records)
    summary = f"{holds} of {judged} claims hold." if judged else "Small settings, to see that everything works."
    if judged and trial:
        summary += f" {len(trial)} more were only tried in small settings, which are no evidence."
    body = [_findings(groups), *(_study(folder, some, titled=len(groups) > 1) for folder, some in groups)]
    template = Template((Path(__file__).parent / NAME).read_text(encoding="utf-8"))
    title = titles[0] if len(titles) == 1 else "Results"
    return template.substitute(title=escape(title), summary=escape(summary), body="\n".join(body))


def _anchor(folder: Path, record: Record) -> str:
    return escape(re.sub(r"[^\w-]+", "-", f"{folder.name}-{record['stem']}"))


def _badge(record: Record) -> str:
    kind = {None: "trial", True: "yes", False: "no"}[record["holds"]]
    return f'<span class="verdict {kind}">{answer(record["holds"])}</span>'


def _findings(groups: Sequence[tuple[Path, list[Record]]]) -> str:
    """Return the list of all claims, each with its verdict and the first sentences of the reason."""
    items = [
        f'<li>{_badge(record)} <a href="#{_anchor(folder, record)}">{escape(record["claim"])}</a>'
        f"<p>{_inline(first_sentences(record['verdict']))}</p></li>"
        for folder, some in groups
        for record in some
    ]
    return '<ul class="findings">\n' + "\n".join(items) + "\n</ul>"


def _study(folder: Path, records: list[Record], *, titled: bool) -> str:
    """Return the section of a study: its introduction, its experiments and its environment, titled or not."""
    study = records[0]["study"]
    heading = [f"<h2>{escape(study['title'])}</h2>"] if titled else []
    parts = [*heading, _paragraphs(study["introduction"])]
    parts += [_experiment(folder, record) for record in records]
    parts += ["<h3>How this page was made</h3>", _paragraphs(making(records))]
    return "\n".join([*parts, *_runs(records)])


def _experiment(folder: Path, record: Record) -> str:
    picture = folder / f"{record['stem']}.svg"
    parts = [
        f'<section id="{_anchor(folder, record)}">',
        f"<h3>({escape(record['key'])}) {escape(record['claim'])}</h3>",
    ]
    first, *rest = record["verdict"].split("\n\n")
    parts += [f"<p>{_badge(record)} {_inline(first)}</p>", *(f"<p>{_inline(text)}</p>" for text in rest)]
    if picture.exists():
        data = base64.b64encode(picture.read_bytes()).decode()
        parts.append(
            f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escape(description(picture))}"></figure>'
        )
    parts += [_table(record["rows"]), "<details><summary>How it was run</summary>", _paragraphs(record["method"])]
    return "\n".join([*parts, "</details>", "</section>"])


def _table(rows: Sequence[Row]) -> str:
    names = columns(rows)
    numeric = {name: _is_numeric(rows, name) for name in names}
    heads = [
        f'<th scope="col"{_number_class(numeric[name])}><button type="button">{escape(name)}</button></th>'
        for name in names
    ]
    lines = ["<tr>" + "".join(_cell(row.get(name), numeric=numeric[name]) for name in names) + "</tr>" for row in rows]
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    return '<div class="scroll"><table>' + head + "<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_numeric(rows: Sequence[Row], name: str) -> bool:
    """Return whether most values of a column are numbers; the others may be words such as 'diverged'."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(map(_is_number, values)) * 2 > len(values)


def _number_class(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _cell(value: Any, *, numeric: bool) -> str:
    exact = f' data-value="{value!r}"' if _is_number(value) and math.isfinite(value) else ""
    return f"<td{_number_class(numeric)}{exact}>{escape(cell(value))}</td>"


def _runs(records: list[Record]) -> list[str]:
    """Return the commands, seeds and environments; experiments that share them share an entry."""
    parts = ["<h3>Commands and environment</h3>"]
    for run, some in groupby(records, key=lambda record: record["run"]):
        keys = ", ".join(f"({record['key']})" for record in some)
        entries = {"experiments": keys, "date": run["date"], "seeds": str(run["seeds"]), **run["environment"]}
        listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in entries.items())
        parts += [f"<pre>{escape(run['command'])}</pre>", f"<dl>{listed}</dl>"]
    return parts


def _markdown() -> Any:
    """Return a CommonMark renderer that escapes HTML and makes no links or images: the page needs no other file."""
    made = import_extra("markdown_it", "a report").MarkdownIt("commonmark", {"html": False})
    return made.disable(["link", "image", "autolink", "reference"])


def _paragraphs(text: str) -> str:
    """Return Markdown as HTML."""
    rendered: str = _markdown().render(text)
    return rendered.strip()


def _inline(text: str) -> str:
    """Return one paragraph of Markdown as HTML, without an element around it."""
    rendered: str = _markdown().renderInline(text.strip())
    return rendered
