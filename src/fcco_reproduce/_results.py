"""The page ``RESULTS.md``: every number of the paper's tables, ours beside it, and what agrees and what does not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fcco_reproduce._methods import (
    AS_PUBLISHED,
    CODED,
    EXACT,
    FROM_VISIT,
    FROM_ZERO,
    OTHER_SEEDS,
    PRINTED,
    SAME_STEPS,
    TUNED,
)
from fcco_reproduce._paper import PAPER
from fcco_reproduce._stale import stale
from fcco_reproduce._tables import Row, as_markdown

Record = dict[str, Any]
Value = tuple[float | None, ...]  # and its deviation, if it has one; empty where there is none
STUDIES = ("ap", "push", "nca")
FINDING = (
    "**What is called SOX.** The authors' code differentiates f at the row after its update, Algorithm 1 of the paper "
    "at the row before it. Both were run, with the same rates and draws. 'SOX (code)' is the former, which is SOAP's "
    "table with momentum; 'SOX (Algorithm 1)' is the latter. In our own comparison of the two rows, on four objectives "
    "with every lr tuned, the row after the update, u^t, left less excess than the row before it, u^(t-1), in 15 of "
    "16 cases, and in 14 of 16 where SOX has the floor that this library gives it in log space "
    "([docs/what_decides.md](docs/what_decides.md), `PYTHONPATH=benchmarks python -m what_decides`). No loss of this "
    "library has SOX as its default rule."
)


def as_results(records: Sequence[Record], command: str) -> str:
    """The page, from the records of whatever has been run; the rest is said to have not.

    Parameters
    ----------
    records : sequence of Record
        Of any studies, in any order. Quick runs are no evidence, and are left out.
    command : str
        That writes the page.
    """
    known = [record for record in records if not record["run"]["quick"]]
    by = {name: [record for record in known if record["study"]["name"] == name] for name in STUDIES}
    parts = [
        "# Results",
        "Every number in tables 2, 3 and 4 of Wang and Yang, *Finite-Sum Coupled Compositional Stochastic "
        "Optimization* (ICML 2022), and what was read off its figure of NCA, with ours beside it. This page is "
        f"written from stored results by\n\n    {command}\n\n"
        "'Difference' is ours minus the paper's. How each number was made, and the figures, are in the pages of the "
        "studies: [p-norm push](docs/push.md), [NCA](docs/nca.md), [average precision](docs/ap.md). What the theorems "
        "promise is measured in [another](docs/theory.md). 'Sources' says whether the code that made the results is "
        "the code of today; `fcco report --stale` lists it for every experiment.",
        _runs(known),
        FINDING,
        "## Table 2: test AP",
        *_average_precision(by["ap"]),
        "## Tables 3 and 4: p-norm push",
        *_push(by["push"]),
        "## The figure of NCA",
        *_nca(by["nca"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _runs(records: Sequence[Record]) -> str:
    """Which runs the page is of."""
    rows: list[Row] = []
    for name in STUDIES:
        mine = [record for record in records if record["study"]["name"] == name]
        for command in dict.fromkeys(record["run"]["command"] for record in mine):
            some = [record for record in mine if record["run"]["command"] == command]
            run = some[0]["run"]
            found, asked = run["environment"], re.sub(r" --out \S+", "", command)
            rows.append(
                {"command": f"`{asked}`", "scale": run.get("scale") or "default", "seeds": run["seeds"]}
                | {"date": run["date"][:10], "commit": found.get("commit"), "PyTorch": found.get("torch")}
                | {"CPU": found.get("CPU"), "sources": _sources(some)}
            )
    return as_markdown(rows) if rows else ""


def _sources(records: Sequence[Record]) -> str:
    old = [f"({record['key']})" for record in records if stale(record)]
    if old:
        return f"changed since: {', '.join(old)}"
    again = records[0].get("confirmed")
    return "as today" if again is None else f"earlier; today's gives the same in {again['runs']} short runs"


def _not_run(study: str) -> str:
    return f"`fcco reproduce {study}` has not been run: there are no numbers of ours here yet."


def _beside(
    paper: dict[str, dict[str, list[float]]],
    ours: Callable[[str, str], Value],
    digits: int,
    *,
    difference: bool = True,
) -> str:
    """A table of the paper's values and ours, by data set and method; both forms of SOX stand beside the paper's."""
    rows: list[Row] = []
    for data, values in paper.items():
        for name, printed in values.items():
            for method in (CODED, PRINTED) if name == "SOX" else (name,):
                found = ours(data, method)
                row: Row = {"data": data, "method": method, "paper": _plus_minus(*printed, digits=digits - 1)}
                row["ours"] = _plus_minus(*found, digits=digits)
                rows.append(row | ({"difference": _off(found, printed, digits)} if difference else {}))
    return as_markdown(rows)


def _found(rows: dict[tuple[str, str], Row], *keys: str) -> Callable[[str, str], Value]:
    """What our rows, by data set and method, have under some keys."""
    return lambda data, method: tuple(rows[data, method][key] for key in keys) if (data, method) in rows else ()


def _plus_minus(value: float | None = None, std: float | None = None, *, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:,.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def _off(ours: Value, printed: list[float], digits: int) -> str:
    return "" if not ours or ours[0] is None else f"{ours[0] - printed[0]:+,.{digits}f}"


def _rows(records: Sequence[Record], name: str) -> list[Row]:
    """The table of an experiment, by the name of its files."""
    return next((record["rows"] for record in records if record["stem"].endswith(f"-{name}")), [])


def _block(rows: Iterable[Row], block: str) -> list[Row]:
    return [row for row in rows if row["block"] == block]


def _order(rows: Iterable[Row], key: str, *, best: str) -> str:
    """Methods and values, the best first; one that has no value is last."""
    sign = -1.0 if best == "largest" else 1.0
    rows = list(rows)
    finite = [row for row in rows if row[key] is not None and math.isfinite(row[key])]
    known = sorted(finite, key=lambda row: sign * row[key])
    lost = [f"{row['method']} (diverges with {_count(row)} seeds)" for row in rows if row not in finite]
    return ", ".join([*(f"{row['method']} {row[key]:.4f}" for row in known), *lost])


def _push(records: Sequence[Record]) -> list[str]:
    tables = {data: _rows(records, data) for data in PAPER["test_loss"]}
    own = {
        (data, row["method"]): row
        for data, rows in tables.items()
        for block in (AS_PUBLISHED, FROM_ZERO)
        for row in _block(rows, block)
    }
    parts = [] if records else [_not_run("push")]
    parts += ["Test loss:", _beside(PAPER["test_loss"], _found(own, "test loss", "std"), 4)]
    seconds = _beside(PAPER["seconds"], _found(own, "seconds"), 3, difference=False)
    parts += ["Seconds, which are of other machines and programs, so that no difference is shown:", seconds]
    known = {data: rows for data, rows in tables.items() if rows}
    return parts + (_push_words(known) if known else [])


def _push_words(tables: dict[str, list[Row]]) -> list[str]:
    return [_push_agreed(tables), _push_off(tables), _push_printed(tables), _push_tuned(tables)]


def _push_printed(tables: dict[str, list[Row]]) -> str:
    """Algorithm 1 beside the authors' code."""

    def end(row: Row) -> str:
        value = "no finite loss" if row["test loss"] is None else f"{row['test loss']:.4f}"
        return value + (f" ({row['diverged']} of {row['runs']} diverge)" if row["diverged"] else "")

    parts = []
    for data, rows in tables.items():
        coded = next(row for row in _block(rows, AS_PUBLISHED) if row["method"] == CODED)
        zero, visit = (_block(rows, block)[0] for block in (FROM_ZERO, FROM_VISIT))
        parts.append(
            f"{data}: {CODED} {end(coded)}, Algorithm 1 {end(zero)} from u = 0, {end(visit)} from first visits"
        )
    return (
        "**Algorithm 1 as printed**, with the authors' rates, starting weights and draws, test loss. "
        f"{'; '.join(parts)}. The table above has it from u = 0, as in the authors' code."
    )


def _push_agreed(tables: dict[str, list[Row]]) -> str:
    known = [row for rows in tables.values() for row in _block(rows, AS_PUBLISHED) if row["agrees"] is not None]
    met = [row for row in known if row["agrees"]]
    farthest = max(abs(row["difference"] or 0.0) / row["paper std"] for row in known if row["paper std"])
    return (
        f"**What agreed.** {len(met)} of {len(known)} test losses are those of the paper: within two of its standard "
        f"deviations, or for BS-PnP, which no chance enters, to the digits printed. The farthest is {farthest:.1f} "
        "deviations off. They were made with the authors' rates, start and draws."
    )


def _push_off(tables: dict[str, list[Row]]) -> str:
    published = {data: _block(rows, AS_PUBLISHED) for data, rows in tables.items()}
    off = [f"{row['method']} on {data}" for data, rows in published.items() for row in rows if row["agrees"] is False]
    lost = {data: _block(rows, OTHER_SEEDS) for data, rows in tables.items()}
    counts = "; ".join(
        f"{data} " + ", ".join(f"{row['method']} {row['diverged']} of {row['runs']}" for row in rows)
        for data, rows in lost.items()
    )
    explained = ", ".join(f"{_explained(rows)} on {data}" for data, rows in tables.items())
    return (
        f"**What did not.** Losses that are not met: {', '.join(off) or 'none'}. With seeds that the paper does not "
        f"have, runs from its start diverge: {counts}. BSGD was given a tenth of SOAP's step; with all of it, and from "
        f"w = 0, it ends at {explained}. Seconds are not comparable: ours are of "
        "the processor, for a compiled loop, the paper's of PyTorch on 12 cores; and BS-PnP's weights of all pairs are "
        "a product, so that it needs no matrix of them."
    )


def _explained(rows: list[Row]) -> str:
    own = {row["method"]: row["test loss"] for row in _block(rows, AS_PUBLISHED)}
    faster = _block(rows, SAME_STEPS)[0]["test loss"]
    if None in (own["BSGD"], own["SOAP"], faster):
        return "no finite loss"
    return f"{faster:.4f}, which is {(own['BSGD'] - faster) / (own['BSGD'] - own['SOAP']):.0%} of the way to SOAP,"


def _push_tuned(tables: dict[str, list[Row]]) -> str:
    block = f"{TUNED} (objective)"
    orders = "; ".join(
        f"{data}: {_order(_block(rows, block), 'test loss', best='least')}" for data, rows in tables.items()
    )
    exact = ", ".join(f"{_block(rows, EXACT)[0]['test loss']:.4f} on {data}" for data, rows in tables.items())
    return (
        "**What tuning changes.** All methods with one grid of rates, chosen by the objective they minimise, test "
        f"loss, best first. {orders}. The exact minimum of that objective tests at {exact}."
    )


def _nca(records: Sequence[Record]) -> list[str]:
    if not records:
        return [_not_run("nca")]
    rows = [row for record in records for row in record["rows"]]
    columns = ("data", "method", "paper's figure", "their code, seed 0", "-(test loss)", "std", "in its range")
    printed = [
        {**row, "method": f"{row['method']}, rows from first visits"} | _divergence(row)
        for row in _block(rows, FROM_VISIT)
    ]
    shown = [{key: row[key] for key in columns} for row in [*_block(rows, AS_PUBLISHED), *printed]]
    shown.sort(key=lambda row: [record["rows"][0]["data"] for record in records].index(row["data"]))
    introduction = (
        "The paper prints no number of NCA: what stands here as its figure is the range in which its curves lie, read "
        "off. The value is -(test loss) after 10,000 iterations with the authors' rates. Algorithm 1 begins at first "
        "visits, since its f has no gradient at u = 0."
    )
    tables = {record["rows"][0]["data"]: record["rows"] for record in records}
    return [introduction, as_markdown(shown), _nca_agreed(tables), _nca_off(tables), _nca_tuned(tables)]


def _divergence(row: Row) -> Row:
    """What a row shows in the place of a mean that is no number."""
    if math.isfinite(row["-(test loss)"]):
        return {}
    return {"-(test loss)": f"diverges with {_count(row)} seeds", "std": None}


def _count(row: Row) -> str:
    """How many of the runs of a row diverged."""
    return f"{row['diverged']} of {row['runs']}"


def _first(rows: Iterable[Row]) -> str:
    return str(max(rows, key=lambda row: row["-(test loss)"])["method"])


def _nca_agreed(tables: dict[str, list[Row]]) -> str:
    known = [row for rows in tables.values() for row in rows if row["in its range"] is not None]
    first = [data for data, rows in tables.items() if _first(_block(rows, AS_PUBLISHED)) == CODED]
    return (
        f"**What agreed.** {sum(row['in its range'] for row in known)} of {len(known)} runs that the figure shows end "
        f"in its range, and SOX (code) is first, as the paper has SOX, on {', '.join(first) or 'none'}."
    )


def _nca_off(tables: dict[str, list[Row]]) -> str:
    others = [
        f"on {data} the order is {_order(_block(rows, AS_PUBLISHED), '-(test loss)', best='largest')}"
        for data, rows in tables.items()
        if _first(_block(rows, AS_PUBLISHED)) != CODED
    ]
    apart = [data for data, rows in tables.items() if all(row["in its range"] is None for row in rows)]
    diverged = [data for data, rows in tables.items() if any(map(_divergence, _block(rows, FROM_VISIT)))]
    text = "**What did not.** "
    if diverged:
        text += f"Algorithm 1 as printed diverges with the authors' rates on {', '.join(diverged)}. "
    if others:
        text += f"The paper has SOX first; {'; '.join(others)}. "
    text += "Rounding alone changes who is first on usps: see the study's page."
    if apart:
        text += f" Of {', '.join(apart)} the figure shows nothing: only the order can be compared."
    return text


def _nca_tuned(tables: dict[str, list[Row]]) -> str:
    orders = "; ".join(
        f"{data}: {_order(_block(rows, TUNED), '-(test loss)', best='largest')}" for data, rows in tables.items()
    )
    spans = []
    for data, rows in tables.items():
        before, after = (
            [row["-(test loss)"] for row in _block(rows, block) if math.isfinite(row["-(test loss)"])]
            for block in (AS_PUBLISHED, TUNED)
        )
        spans.append(f"{data} {max(before) - min(before):.4f} and {max(after) - min(after):.4f}")
    return (
        f"**What tuning changes.** All methods with one grid of rates, best first. {orders}. The best method and "
        "the worst that does not diverge are this far apart, with the authors' rates and with one grid: "
        f"{'; '.join(spans)}."
    )


def _average_precision(records: Sequence[Record]) -> list[str]:
    rows = _rows(records, "methods")
    # The authors' rates are for 200 epochs, and have been run at the paper's scale only.
    block = AS_PUBLISHED if _block(rows, AS_PUBLISHED) else TUNED
    own = {(row["data"], row["method"]): row for row in _block(rows, block)}
    parts = [] if rows else [_not_run("ap")]
    label = f", ours {block}" if rows else ""
    parts += [f"Test AP{label}:", _beside(PAPER["test_ap"], _found(own, "test AP", "test AP std"), 4)]
    epochs = _beside(PAPER["epochs"], _found(own, "epochs"), 2, difference=False)
    parts += [f"Epochs until the stop{label}; lengths of runs differ, so that no difference is shown:", epochs]
    absent = [data for data in PAPER["test_ap"] if rows and data not in {row["data"] for row in rows}]
    parts += [f"{', '.join(absent)}: has not been run."] if absent else []
    return parts + (_ap_words(records, rows) if rows else [])


def _ap_words(records: Sequence[Record], rows: list[Row]) -> list[str]:
    record = next(record for record in records if record["stem"].endswith("-methods"))
    note = (
        "The runs are at the scale of the paper."
        if record["run"].get("scale") == "paper"
        else "The network and the number of steps are far smaller than the paper's, so that the values are not to be "
        "compared digit by digit; the order of the methods is."
    )
    orders = [_ap_order(data, rows) for data in dict.fromkeys(row["data"] for row in rows)]
    return [
        note,
        f"**What agreed.** Of the paper's statements: {_claims(records, True)}.",
        f"**What did not.** {_claims(records, False)}. Test AP, best first: {'; '.join(orders)}.",
        f"**What tuning changes.** {record['verdict']}",
    ]


def _claims(records: Sequence[Record], holds: bool) -> str:
    return "; ".join(f"({record['key']}) {record['claim']}" for record in records if record["holds"] is holds) or "none"


def _ap_order(data: str, rows: list[Row]) -> str:
    mine = [row for row in rows if row["data"] == data and row["block"] == TUNED]
    four = [row for row in mine if row["method"] in (*PAPER["test_ap"][data], CODED, PRINTED)]
    rest = [row for row in mine if row not in four]
    beside = f" (not of the paper: {_order(rest, 'test AP', best='largest')})" if rest else ""
    return f"{data}: {_order(four, 'test AP', best='largest')}{beside}"
