"""What the table of methods says, in words."""

from __future__ import annotations

from fcco_reproduce._methods import AS_PUBLISHED, CODED, PRINTED, TUNED
from fcco_reproduce._paper import paper_name
from fcco_reproduce._tables import Row
from fcco_reproduce.ap._runs import number
from fcco_reproduce.ap._settings import CROSS_ENTROPY, TABLES


def _groups(rows: list[Row]) -> list[list[Row]]:
    """Return the rows of every data set and block."""
    places = dict.fromkeys((row["data"], row["block"]) for row in rows)
    return [[row for row in rows if (row["data"], row["block"]) == place] for place in places]


def _by_test(rows: list[Row]) -> list[Row]:
    """Return the rows, best test AP first."""
    return sorted(rows, key=lambda row: -row["test AP"])


def _by_speed(rows: list[Row]) -> list[Row]:
    """Return the rows, fastest first; those that diverged come last."""
    return sorted(rows, key=lambda row: 1.0 if row["mean train loss"] is None else row["mean train loss"])


def agrees(rows: list[Row]) -> bool:
    """Return whether one form of SOX has the best test AP of the paper's methods and the fastest falling train loss."""
    ours = [[row for row in some if row["method"] in TABLES] for some in _groups(rows)]
    return all({_by_test(some)[0]["method"], _by_speed(some)[0]["method"]} in ({CODED}, {PRINTED}) for some in ours)


def compare(rows: list[Row]) -> str:
    """Return paragraphs on the order of the methods, on what is not of the paper, and on the grid."""
    parts = [
        " ".join(filter(None, (_reason(some), _tests(some), _speed(some), _others(some)))) for some in _groups(rows)
    ]
    return "\n\n".join([*parts, f"{_paper(rows)} {_edges(rows)}"])


def _reason(rows: list[Row]) -> str:
    """Return why the claim does not hold, if it does not."""
    ours = [row for row in rows if row["method"] in TABLES]
    best, fastest = _by_test(ours)[0]["method"], _by_speed(ours)[0]["method"]
    if best == fastest:
        return "" if best in (CODED, PRINTED) else f"{best} is first in both."
    return f"No method is first in both: {best} has the best test AP of the paper's methods, {fastest} is the fastest."


def _tests(rows: list[Row]) -> str:
    ordered = _by_test(rows)
    best, (first, second, *_) = ordered[0], [row for row in ordered if row["method"] in TABLES]
    return (
        f"{rows[0]['data']}, {rows[0]['block']}: {best['method']} has the best test AP, "
        f"{number(best['test AP'], best['test AP std'])}. Of the paper's methods, {first['method']} is ahead of "
        f"{second['method']} by {first['test AP'] - second['test AP']:.4f}, where seeds deviate by "
        f"{max(first['test AP std'], second['test AP std']):.4f}."
    )


def _speed(rows: list[Row]) -> str:
    ours = _by_speed([row for row in rows if row["method"] in TABLES])
    order = ", ".join(row["method"] for row in ours)
    return f"By the mean train loss the order is {order}; the paper has SOX, MOAP, then SOAP and BSGD."


def _others(rows: list[Row]) -> str:
    """Return whether the paper's methods beat cross entropy."""
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
        some = {paper_name(row["method"]): row for row in known if row["data"] == data}
        ordered = sorted(some.items(), key=lambda item: -item[1]["paper"])
        parts.append(f"{data} " + ", ".join(f"{name} {row['paper']:.3f} ± {row['paper std']}" for name, row in ordered))
    scale = "" if any(row["block"] == AS_PUBLISHED for row in known) else ", with another network and far more steps"
    return f"The paper's test AP{scale}: {'; '.join(parts)}."


def _edges(rows: list[Row]) -> str:
    """Return a sentence on the lr that are the last ones tried on a side, beyond which there may be better ones."""
    tuned = [(row, row["lr tried"].split(", ")) for row in rows if row["block"] == TUNED]
    ends = [f"{row['method']} {row['lr']:g}" for row, lr in tuned if f"{row['lr']:g}" in (lr[0], lr[-1])]
    return (
        f"The last lr tried on a side: {', '.join(ends)}." if ends else "Every lr lies between others that were tried."
    )
