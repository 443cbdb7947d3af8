"""What came out of a table, in sentences."""

from __future__ import annotations

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
    ends_of_grid,
)
from fcco_reproduce._tables import Row

TUNED = ("tuned alike (loss)", "tuned alike (held-out objective)", "tuned alike (objective)")


def compare(rows: list[Row], tuning: dict[str, Any]) -> str:
    """Return paragraphs on agreement with the paper, on what the steps explain, on what tuning changes, and on time."""
    by = {(row["block"], row["method"]): row for row in rows}
    tuned = [_tuned(rows, block) for block in TUNED]
    if any(row["block"] in TUNED for row in rows):
        tuned.append(ends_of_grid(rows, tuning))
    paragraphs = [f"{_agreement(rows)} {_others(rows)}", _printed(by), _steps(by), " ".join(tuned)]
    return "\n\n".join([*paragraphs, _optimum(rows), _boosting(by)])


def _not_run(by: dict[tuple[str, str], Row], *places: tuple[str, str]) -> str:
    """Return a sentence on those of some methods that have no results, if there are any."""
    missing = [f"{method} ({block})" for block, method in places if (block, method) not in by]
    return f"Not run: {', '.join(missing)}." if missing else ""


def _number(value: float | None) -> str:
    return "divergence" if value is None else f"{value:.4f}" if value < 1000 else f"{value:.1e}"


def _printed(by: dict[tuple[str, str], Row]) -> str:
    """Return a sentence on Algorithm 1 beside the code that is published under its name."""

    def end(row: Row) -> str:
        if row["std"] is None:
            return f"diverges in all {row['runs']} runs"
        lost = f", in the runs that do not diverge ({row['diverged']} of {row['runs']} do)" if row["diverged"] else ""
        return f"ends at {row['test loss']:.4f} ± {row['std']:.4f}{lost}"

    return _not_run(by, (AS_PUBLISHED, CODED), (FROM_ZERO, PRINTED), (FROM_VISIT, PRINTED)) or (
        f"With the same rates, starting weights and batches, {CODED} {end(by[AS_PUBLISHED, CODED])}; {PRINTED} "
        f"{end(by[FROM_ZERO, PRINTED])} with u from 0, and {end(by[FROM_VISIT, PRINTED])} with u from its first "
        "estimate."
    )


def _agreement(rows: list[Row]) -> str:
    published = [row for row in rows if row["block"] == AS_PUBLISHED]
    known = [row for row in published if row["agrees"] is not None]
    if not published:
        return "As published: not run."
    if not known:
        return "The paper has no table of this data set."
    off = [row for row in known if not row["agrees"]]
    away = [abs(row["difference"] or 0.0) / row["paper std"] for row in known if row["paper std"]]
    sentence = f"{len(known) - len(off)} of {len(known)} published losses are met"
    if away:
        sentence += f"; the farthest of the stochastic ones is {max(away):.1f} of the paper's standard deviations off"
    sentence += "."
    return sentence + "".join(f" {r['method']} is not: {_number(r['test loss'])}, paper {r['paper']:.3f}." for r in off)


def _others(rows: list[Row]) -> str:
    some = [row for row in rows if row["block"] == OTHER_SEEDS]
    if not some:
        return "With other seeds: not run."
    ends = ", ".join(f"{row['method']} {_number(row['test loss'])} ({row['diverged']} diverge)" for row in some)
    return f"With other seeds: {ends}, of {some[0]['runs']} runs each."


def _steps(by: dict[tuple[str, str], Row]) -> str:
    places = [(AS_PUBLISHED, method) for method in ("BSGD", "SOAP", "MOAP")]
    same = [row["test loss"] for (block, _), row in by.items() if block == SAME_STEPS]
    if missing := _not_run(by, *places):
        return missing
    if len(same) < 2:
        return "BSGD with the steps of SOAP and of MOAP: not run."
    bsgd, soap, moap = (by[place]["test loss"] for place in places)
    like_soap, like_moap = same
    sentence = f"With SOAP's step, ten times its own, and from w = 0, BSGD ends at {_number(like_soap)} instead of "
    sentence += f"{_number(bsgd)} (SOAP: {_number(soap)})"
    if None not in (bsgd, soap, like_soap) and bsgd > soap:
        sentence += f": that makes up {(bsgd - like_soap) / (bsgd - soap):.0%} of its published distance from SOAP"
    return (
        f"{sentence}. MOAP as coded ends at {_number(moap)}, and BSGD with the rates that this comes to at "
        f"{_number(like_moap)}."
    )


def _tuned(rows: list[Row], block: str) -> str:
    """Return a sentence on who is ahead in a block, by the test loss and by the train objective."""
    some = [row for row in rows if row["block"] == block]
    if len(some) < 2:
        return f"{block.capitalize()}: {'only ' + some[0]['method'] + ' has run' if some else 'not run'}."
    known = [row for row in some if row["test loss"] is not None]
    if len(known) < 2:
        return f"{block.capitalize()}: all but {len(known)} diverge."
    first, second, *_ = sorted(known, key=lambda row: row["test loss"])
    lead, deviation = second["test loss"] - first["test loss"], max(first["std"], second["std"])
    lowest = min(known, key=lambda row: row["train objective"])
    return (
        f"{block.capitalize()}: {first['method']} has the lowest test loss, {lead:.4f} below {second['method']}, where "
        f"seeds deviate by {deviation:.4f}, and {lowest['method']} the lowest train objective."
    )


def _optimum(rows: list[Row]) -> str:
    exact = next((row for row in rows if row["block"] == EXACT), None)
    if exact is None:
        return "The exact optimum: not run."
    sentence = (
        f"The exact optimum has the train objective {exact['train objective']:.4f} and tests at "
        f"{exact['test loss']:.4f}, after {exact['seconds']:.1f} s of L-BFGS."
    )
    below = [row for row in rows if row["block"] in TUNED and (row["test loss"] or 1.0) < exact["test loss"]]
    if below:
        sentence += (
            " A lower test loss than that is no better minimum, as the train objective shows. It looks like less "
            "regularisation: with a small gamma, rows of u still hold the larger g of earlier weights, and the loss "
            "counts for more against the weight decay."
            if all(row["train objective"] > exact["train objective"] for row in below)
            else ""
        )
    return sentence


def _boosting(by: dict[tuple[str, str], Row]) -> str:
    boosting = by.get((AS_PUBLISHED, "BS-PnP"))
    if boosting is None:
        return "BS-PnP: not run."
    paper = "" if boosting["paper seconds"] is None else f", in the paper {boosting['paper seconds']:,.0f} s"
    return (
        f"BS-PnP takes {boosting['seconds']:.1f} s{paper}, since its weights of pairs are a product; its loss is that "
        "of ten rounds, of which each can only raise the weight of one feature."
    )
