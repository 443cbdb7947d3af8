"""The Markdown page of a study, from the records of its experiments: first what came out, last how it was made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fcco_reproduce._figures import description
from fcco_reproduce._study import answer
from fcco_reproduce._tables import as_markdown, escaped

Record = dict[str, Any]


def as_page(records: Sequence[Record], folder: Path) -> str:
    """Return the page; ``folder``, which is beside it, holds the figures and the CSV files of the records."""
    study = records[0]["study"]
    parts = [f"# {escaped(study['title'])}", f"**What was compared.** {study['introduction']}", _findings(records)]
    if any(record["run"]["quick"] for record in records):
        parts.append("This is the quick form, which shows that everything works. It is no evidence.")
    told: dict[str, str] = {}
    for record in records:
        parts += _experiment(record, folder, told.get(record["method"]))
        told.setdefault(record["method"], record["key"])
    parts += ["## How this page was made", making(records)]
    return "\n\n".join(parts) + "\n"


def making(records: Sequence[Record]) -> str:
    """Return how the results of a study were made, with the number of seeds."""
    text: str = records[0]["study"]["making"]
    text = text.replace("{seeds}", " or ".join(map(str, sorted({record["run"]["seeds"] for record in records}))))
    again = next((record["confirmed"] for record in records if "confirmed" in record), None)
    if again is None:
        return text
    return (
        f"{text}\n\nThe code has changed since these runs, in ways that should not change them. `python "
        f"benchmarks/confirm.py` ran {again['runs']} short runs, one of each kind, with the code of these runs and "
        f"with the later code on one machine ({again['date'][:10]}). Their results were equal to the last digit."
    )


def first_sentences(text: str, enough: int = 140) -> str:
    """Return the first sentences of a text, as many as it takes to reach ``enough`` characters.

    Examples
    --------
    >>> first_sentences("Best first. SOX 0.1, BSGD 0.2. That is all.", enough=20)
    'Best first. SOX 0.1, BSGD 0.2.'
    """
    sentences, shown = re.split(r"(?<=[.!?])\s+(?=[A-Z0-9'(])", text.strip()), ""
    for sentence in sentences:
        shown = f"{shown} {sentence}".strip()
        if len(shown) >= enough:
            break
    return shown


def _findings(records: Sequence[Record]) -> str:
    """Return the list of claims, each with its verdict and the first sentences of the reason."""
    items = [
        f"- ({record['key']}) {escaped(record['claim'])}: **{answer(record['holds'])}.** "
        f"{escaped(first_sentences(record['verdict'], enough=60))}"
        for record in records
    ]
    return "\n".join(["**What came out.**", "", *items])


def _experiment(record: Record, folder: Path, told: str | None) -> list[str]:
    """Return the section of an experiment; ``told`` is the key of an earlier one that was run in the same way."""
    figure, link = folder / f"{record['stem']}.svg", quote(f"{folder.name}/{record['stem']}")
    parts = [
        f"## ({record['key']}) {escaped(record['claim'])}",
        f"**{answer(record['holds']).capitalize()}.** {escaped(record['verdict'])}",
    ]
    if figure.exists():
        parts.append(f"![{_alternative(figure)}]({link}.svg)")
    how = f"As in ({told})." if told else escaped(record["method"])
    return [*parts, as_markdown(record["rows"]), f"*How it was run* ([CSV]({link}.csv)). {how}"]


def _alternative(figure: Path) -> str:
    """Return the description of a figure, as the text of an image in Markdown."""
    return re.sub(r"([\\\[\]*_`<])", r"\\\1", description(figure))
