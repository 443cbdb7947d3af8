"""What the numbers say, in words."""

from __future__ import annotations

from typing import Any

from fcco_reproduce._methods import AS_PUBLISHED, CODED, EXACT, FROM_VISIT, SAME_STEPS, TUNED, ends_of_grid
from fcco_reproduce._tables import Row
from fcco_reproduce.nca._data import SUBSET

SCORE = "-(test loss)"


def agrees(rows: list[Row]) -> bool:
    """Return whether all published runs end in the range of the paper's figure, and the authors' SOX is the best."""
    published = _block(rows, AS_PUBLISHED)
    return all(row["in its range"] is not False for row in published) and published[0]["method"] == CODED


def compare(rows: list[Row], tuning: dict[str, Any]) -> str:
    """Return paragraphs on agreement with the paper, on what the steps explain, and on what tuning changes."""
    tuned = f"{_tuning(rows)} {ends_of_grid(rows, tuning)}"
    return "\n\n".join([_agreement(rows), _printed(rows), _steps(rows), tuned, *_full_batch(rows)])


def _block(rows: list[Row], block: str) -> list[Row]:
    """Return the rows of a block, best first; a run that diverged has no score and comes last."""
    return sorted((row for row in rows if row["block"] == block), key=lambda row: (row["diverged"], -row[SCORE]))


def _lead(rows: list[Row]) -> str:
    """Return a sentence on the lead of the first over the second, next to the deviation over seeds."""
    first, second = rows[:2]
    return (
        f"{first['method']} is ahead of {second['method']} by {first[SCORE] - second[SCORE]:.4f}, where seeds deviate "
        f"by {max(first['std'], second['std']):.4f}"
    )


def _agreement(rows: list[Row]) -> str:
    published = _block(rows, AS_PUBLISHED)
    known = [row for row in published if row["in its range"] is not None]
    off = [row for row in known if not row["in its range"]]
    text = f"As published, {_lead(published)}; the paper has SOX first."
    if known:
        text += f" {len(known) - len(off)} of {len(known)} end in the range of the paper's figure"
        text += "".join(f"; {row['method']} does not" for row in off) + "."
    if published[0]["data"] == SUBSET:
        text += " These are a subset's losses, which the figure does not show: only the order was tested."
    theirs = [row for row in published if row["their code, seed 0"] is not None]
    if theirs:
        farthest = max(theirs, key=lambda row: abs(row[SCORE] - row["their code, seed 0"]))
        text += (
            f" The authors' code, seed 0, differs from our means by at most "
            f"{abs(farthest['their code, seed 0'] - farthest[SCORE]):.4f} ({farthest['method']})."
        )
    return text


def _printed(rows: list[Row]) -> str:
    """Return a sentence on Algorithm 1 beside the code that is published under its name."""
    coded = next(row for row in _block(rows, AS_PUBLISHED) if row["method"] == CODED)
    printed = _block(rows, FROM_VISIT)[0]
    end = f"ends at {printed[SCORE]:.4f} ± {printed['std']:.4f}"
    if printed["diverged"]:
        end = f"diverges with {printed['diverged']} of {printed['runs']} seeds"
    return f"With the rates and batches of {CODED}, which ends at {coded[SCORE]:.4f}, Algorithm 1 as printed {end}."


def _steps(rows: list[Row]) -> str:
    published = {row["method"]: row for row in _block(rows, AS_PUBLISHED)}
    bsgd, sox, faster = published["BSGD"], published[CODED], _block(rows, SAME_STEPS)[0]
    return (
        f"BSGD with the lr and beta of SOX ends at {faster[SCORE]:.4f} ± {faster['std']:.4f}, with its own at "
        f"{bsgd[SCORE]:.4f}: of the {sox[SCORE] - bsgd[SCORE]:.4f} between it and SOX, the step makes up "
        f"{faster[SCORE] - bsgd[SCORE]:.4f} and the table {sox[SCORE] - faster[SCORE]:.4f}."
    )


def _tuning(rows: list[Row]) -> str:
    tuned, published = ([row for row in _block(rows, block) if not row["diverged"]] for block in (TUNED, AS_PUBLISHED))
    now, before = (some[0][SCORE] - some[-1][SCORE] for some in (tuned, published))
    return (
        f"Tuned alike, {_lead(tuned)}. All lie within {now:.4f} (as published, {before:.4f}), and the best is "
        f"{tuned[0][SCORE] - published[0][SCORE]:+.4f} from the best as published."
    )


def _full_batch(rows: list[Row]) -> list[str]:
    best = _block(rows, TUNED)[0]
    return [
        f"L-BFGS reaches a training objective of {row['train objective']:.4f} (the best tuned method, "
        f"{best['method']}, {best['train objective']:.4f}) and tests at {row[SCORE]:.4f}, in "
        f"{row['seconds']:.0f} s instead of {best['seconds']:.0f} s."
        for row in rows
        if row["block"] == EXACT
    ]
