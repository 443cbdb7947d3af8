"""What the comparisons with the paper share: blocks, the authors' rates in this library's terms, one grid for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fcco import METHODS
from fcco_reproduce._tables import Row

AS_PUBLISHED, OTHER_SEEDS, SAME_STEPS, TUNED, EXACT = (
    "as published",
    "other seeds",
    "same steps",
    "tuned alike",
    "exact",
)


@dataclass(frozen=True)
class Setting:
    """One way to run a method.

    Args:
        rule: of the table: "bsgd", "soap", "moap" or "sox".
        lr: step along the moving average of the gradient.
        gamma: rate of the table.
        beta: rate of the gradient's moving average.
        batch: rows of a batch, B1 = B2.
        decay: of the weights.
        as_coded: do as the authors' code does, where it departs from the paper; the study says how.
    """

    rule: str
    lr: float
    gamma: float
    beta: float
    batch: int
    decay: float
    as_coded: bool = False


def as_published(method: str, *, lr: float, gamma: float, beta: float, batch: int, decay: float) -> Setting:
    """The authors' run: their SOX is SOAP's table with momentum, and their lr that of torch's SGD.

    The buffer of ``torch.optim.SGD(momentum=1-beta)`` is v/beta, where v = (1-beta) v + beta G is the paper's: the same
    step along v is lr/beta.

    >>> as_published("SOX", lr=0.001, gamma=0.5, beta=0.1, batch=32, decay=0.001)
    Setting(rule='soap', lr=0.01, gamma=0.5, beta=0.1, batch=32, decay=0.001, as_coded=True)
    """
    rule = "soap" if method == "SOX" else method.lower()
    return Setting(rule, lr / beta, gamma, beta, batch, decay, as_coded=True)


def as_tuned(method: str, *, lr: float, gamma: float, batch: int, decay: float) -> Setting:
    """The library's own method, with its default beta of 0.1 where it has momentum.

    >>> as_tuned("BSGD", lr=0.1, gamma=1.0, batch=32, decay=0.001)
    Setting(rule='bsgd', lr=0.1, gamma=1.0, beta=1.0, batch=32, decay=0.001, as_coded=False)
    """
    return Setting(method.lower(), lr, gamma, METHODS[method].beta(), batch, decay)


def data_shown(name: str, data: str) -> str:
    """The name of the data behind an experiment, and if they stand in for those of the paper, of both.

    >>> data_shown("covtype", "covtype"), data_shown("covtype", "breast cancer")
    ('covtype', 'breast cancer in place of covtype')
    """
    return name if name == data else f"{data} in place of {name}"


def rates(published: dict[str, Any]) -> dict[str, Any]:
    """The rates among what a settings file has as published: lr, gamma and beta."""
    return {key: published[key] for key in ("lr", "gamma", "beta")}


def grid(method: str, *, lr: Sequence[float], gamma: Sequence[float]) -> list[tuple[float, float]]:
    """All pairs of lr and gamma; BSGD has no gamma.

    >>> len(grid("SOX", lr=[0.1, 1.0], gamma=[0.1, 0.5, 0.9])), grid("BSGD", lr=[0.1, 1.0], gamma=[0.1, 0.5])
    (6, [(0.1, 1.0), (1.0, 1.0)])
    """
    return [(step, rate) for step in lr for rate in ((1.0,) if method == "BSGD" else gamma)]


def ends_of_grid(rows: Iterable[Row], tuning: dict[str, Any]) -> str:
    """Choices at an end of the grid, beyond which there may be better ones, in a sentence.

    >>> row = {"block": TUNED, "method": "SOX", "lr": 0.1, "gamma": 0.5}
    >>> ends_of_grid([row], {"lr": [0.1, 1.0], "gamma": [0.1, 0.5, 0.9]})
    "At an end of the grid: SOX's lr = 0.1."
    """
    found = Counter(
        f"{row['method']}'s {name} = {row[name]:g}"
        for row in rows
        for name in ("lr", "gamma")
        if row["block"].startswith(TUNED) and row[name] in (tuning[name][0], tuning[name][-1])
    )
    listed = ", ".join(choice + (f" ({count} times)" if count > 1 else "") for choice, count in found.items())
    return f"At an end of the grid: {listed}." if found else "No choice is at an end of the grid."
