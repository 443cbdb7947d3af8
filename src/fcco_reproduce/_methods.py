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
class MethodSettings:
    """The settings of one run of a method.

    Parameters
    ----------
    rule : str
        Of the table: "bsgd", "soap", "moap" or "sox".
    lr : float
        Step along the moving average of the gradient.
    gamma : float
        Rate of the table.
    beta : float
        Rate of the gradient's moving average.
    batch : int
        Rows of a batch, B1 = B2.
    decay : float
        Of the weights.
    as_coded : bool
        Do as the authors' code does, where it departs from the paper; the study says how.
    """

    rule: str
    lr: float
    gamma: float
    beta: float
    batch: int
    decay: float
    as_coded: bool = False


def as_published(method: str, *, lr: float, gamma: float, beta: float, batch: int, decay: float) -> MethodSettings:
    """Return the authors' settings: their SOX is SOAP's table with momentum, and their lr is that of torch's SGD.

    The buffer of ``torch.optim.SGD(momentum=1-beta)`` is v/beta, where v = (1-beta) v + beta G is the paper's: the same
    step along v is lr/beta.

    Examples
    --------
    >>> as_published("SOX", lr=0.001, gamma=0.5, beta=0.1, batch=32, decay=0.001)
    MethodSettings(rule='soap', lr=0.01, gamma=0.5, beta=0.1, batch=32, decay=0.001, as_coded=True)
    """
    rule = "soap" if method == "SOX" else method.lower()
    return MethodSettings(rule, lr / beta, gamma, beta, batch, decay, as_coded=True)


def as_tuned(method: str, *, lr: float, gamma: float, batch: int, decay: float) -> MethodSettings:
    """Return the settings of the library's own method, with beta 0.1 where it has momentum.

    Examples
    --------
    >>> as_tuned("BSGD", lr=0.1, gamma=1.0, batch=32, decay=0.001)
    MethodSettings(rule='bsgd', lr=0.1, gamma=1.0, beta=1.0, batch=32, decay=0.001, as_coded=False)
    """
    return MethodSettings(method.lower(), lr, gamma, METHODS[method].beta(), batch, decay)


def data_shown(name: str, data: str) -> str:
    """Return the name of the data of an experiment, and also of the paper's data if they are replaced.

    Examples
    --------
    >>> data_shown("covtype", "covtype"), data_shown("covtype", "breast cancer")
    ('covtype', 'breast cancer in place of covtype')
    """
    return name if name == data else f"{data} in place of {name}"


def rates(published: dict[str, Any]) -> dict[str, Any]:
    """Return lr, gamma and beta from the published part of a settings file."""
    return {key: published[key] for key in ("lr", "gamma", "beta")}


def grid(method: str, *, lr: Sequence[float], gamma: Sequence[float]) -> list[tuple[float, float]]:
    """Return all pairs of lr and gamma; BSGD has no gamma.

    Examples
    --------
    >>> len(grid("SOX", lr=[0.1, 1.0], gamma=[0.1, 0.5, 0.9])), grid("BSGD", lr=[0.1, 1.0], gamma=[0.1, 0.5])
    (6, [(0.1, 1.0), (1.0, 1.0)])
    """
    return [(step, rate) for step in lr for rate in ((1.0,) if method == "BSGD" else gamma)]


def ends_of_grid(rows: Iterable[Row], tuning: dict[str, Any]) -> str:
    """Return a sentence on the choices at an end of the grid, beyond which there may be better ones.

    Examples
    --------
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
