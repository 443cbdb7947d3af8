"""What the table of methods says, in words."""

from __future__ import annotations

from typing import Any

from fcco_reproduce._methods import AS_PUBLISHED, TUNED, ends_of_grid
from fcco_reproduce._tables import Row
from fcco_reproduce.ap._runs import number
from fcco_reproduce.ap._settings import CROSS_ENTROPY, TABLES


def _groups(rows: list[Row]) -> list[list[Row]]:
    """Rows of a data set and a block."""
    places = dict.fromkeys((row["data"], row["block"]) for row in rows)
    return [[row for row in rows if (row["data"], row["block"]) == place] for place in places]


def _by_test(rows: list[Row]) -> list[Row]:
    """Best first."""
    return sorted(rows, key=lambda row: -row["test AP"])


def _by_speed(rows: list[Row]) -> list[Row]:
    """Fastest first; one that diverged is last."""
    return sorted(rows, key=lambda row: 1.0 if row["mean train loss"] is None else row["mean train loss"])


def agrees(rows: list[Row]) -> bool:
    """In every block SOX has the best test AP of the paper's methods, and the fastest falling train loss."""
    four = [[row for row in some if row["method"] in TABLES] for some in _groups(rows)]
    return all(first(some)[0]["method"] == "SOX" for some in four for first in (_by_test, _by_speed))


def compare(rows: list[Row], tuning: dict[str, Any]) -> str:
    """On the order of the methods, on what is not of the paper, and on the grid."""
    parts = [" ".join(filter(None, (_tests(some), _speed(some), _others(some)))) for some in _groups(rows)]
    return "\n\n".join([*parts, f"{_paper(rows)} {_edges(rows, tuning)}"])


def _tests(rows: list[Row]) -> str:
    ordered = _by_test(rows)
    ends = ", ".join(f"{row['method']} {number(row['test AP'], row['test AP std'])}" for row in ordered)
    four = [row for row in ordered if row["method"] in TABLES]
    lead = four[0]["test AP"] - four[1]["test AP"]
    return (
        f"{rows[0]['data']}, {rows[0]['block']}, test AP, best first: {ends}. Of the paper's four, {four[0]['method']} "
        f"is ahead of {four[1]['method']} by {lead:.4f}, where seeds deviate by "
        f"{max(four[0]['test AP std'], four[1]['test AP std']):.4f}."
    )


def _speed(rows: list[Row]) -> str:
    four = _by_speed([row for row in rows if row["method"] in TABLES])
    order = ", ".join(f"{row['method']} {number(row['mean train loss'], row['its std'])}" for row in four)
    return f"Mean train loss, fastest first: {order}; the paper has SOX, MOAP, then SOAP and BSGD."


def _others(rows: list[Row]) -> str:
    """Whether the paper's methods beat cross entropy."""
    entropy = next((row for row in rows if row["method"] == CROSS_ENTROPY), None)
    if entropy is None:
        return ""
    above = [row["method"] for row in _by_test(rows) if row["test AP"] > entropy["test AP"]]
    text = f"Above cross entropy in test AP: {', '.join(above) or 'none'}"
    last = [row for row in rows if row["last test AP"] is not None]
    best = max(last, key=lambda row: row["last test AP"])
    text += f". Of the last weights the best test AP is that of {best['method']}, "
    text += number(best["last test AP"], best["last test AP std"])
    return text + ("." if best is entropy else f"; cross entropy has {number(entropy['last test AP'])}.")


def _paper(rows: list[Row]) -> str:
    known = [row for row in rows if row["paper"] is not None]
    if not known:
        return "The paper has no values of this data."
    parts = []
    for data in dict.fromkeys(row["data"] for row in known):
        some = {row["method"]: row for row in known if row["data"] == data}
        ordered = sorted(some.values(), key=lambda row: -row["paper"])
        parts.append(
            f"{data} " + ", ".join(f"{row['method']} {row['paper']:.3f} ± {row['paper std']}" for row in ordered)
        )
    scale = "" if any(row["block"] == AS_PUBLISHED for row in known) else ", with another network and far more steps"
    return f"The paper's test AP{scale}: {'; '.join(parts)}."


def _edges(rows: list[Row], tuning: dict[str, Any]) -> str:
    with_tables = [row for row in rows if row["block"] == TUNED]
    return ends_of_grid(with_tables, tuning)
