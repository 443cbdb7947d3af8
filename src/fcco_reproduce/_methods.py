"""What the comparisons with the paper share: blocks, the authors' rates in this library's terms, one grid for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fcco import METHODS, SOAP, Method
from fcco_reproduce._tables import Row

AS_PUBLISHED, OTHER_SEEDS, SAME_STEPS, TUNED, EXACT = (
    "as published",
    "other seeds",
    "same steps",
    "tuned alike",
    "exact",
)
FROM_ZERO, FROM_VISIT = "as printed, u from 0", "as printed, u from its first estimate"

# What the paper calls SOX is two methods: its code differentiates f at the updated row, Algorithm 1 at the row before.
CODED, PRINTED = "SOX (code)", "SOX (Algorithm 1)"


def method_of(name: str) -> Method:
    """Return the rule and the momentum of a method by the name that the studies give it.

    Examples
    --------
    >>> method_of("SOX (code)").rule(0.1), method_of("SOX (Algorithm 1)").rule(0.1)
    (SOAP(gamma=0.1), SOX(gamma=0.1, safeguard=True))
    """
    return {CODED: Method(SOAP, momentum=True), PRINTED: METHODS["SOX"]}.get(name) or METHODS[name]


@dataclass(frozen=True)
class MethodSettings:
    """The settings of one run of a method.

    Parameters
    ----------
    rule : str
        Of the table: "bsgd", "soap", "moap" or "sox", which is Algorithm 1 to the letter, ``SOX(safeguard=False)``.
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
    first_visit : bool
        Let rows begin at their first estimate, also with ``as_coded``.
    """

    rule: str
    lr: float
    gamma: float
    beta: float
    batch: int
    decay: float
    as_coded: bool = False
    first_visit: bool = False


def as_published(method: str, *, lr: float, gamma: float, beta: float, batch: int, decay: float) -> MethodSettings:
    """Return the authors' settings; their lr is that of torch's SGD.

    The buffer of ``torch.optim.SGD(momentum=1-beta)`` is v/beta, where v = (1-beta) v + beta G is the paper's: the same
    step along v is lr/beta.

    Examples
    --------
    >>> made = as_published("SOX (code)", lr=0.001, gamma=0.5, beta=0.1, batch=32, decay=0.001)
    >>> made.rule, made.lr, made.as_coded
    ('soap', 0.01, True)
    """
    return MethodSettings(_rule(method), lr / beta, gamma, beta, batch, decay, as_coded=True)


def published_rates(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return lr, gamma and beta of the authors' code by method, from a settings file; their SOX is that of the code."""
    return {
        CODED if name == "SOX" else name: {key: some[key] for key in ("lr", "gamma", "beta")}
        for name, some in settings["published"].items()
    }


def _rule(method: str) -> str:
    return {CODED: "soap", PRINTED: "sox"}.get(method, method.lower())


def as_tuned(method: str, *, lr: float, gamma: float, batch: int, decay: float) -> MethodSettings:
    """Return the settings of the library's own method, with beta 0.1 where it has momentum.

    Examples
    --------
    >>> made = as_tuned("SOX (Algorithm 1)", lr=0.1, gamma=0.5, batch=32, decay=0.001)
    >>> made.rule, made.beta
    ('sox', 0.1)
    """
    return MethodSettings(_rule(method), lr, gamma, method_of(method).beta(), batch, decay)


def data_shown(name: str, data: str) -> str:
    """Return the name of the data of an experiment, and also of the paper's data if they are replaced.

    Examples
    --------
    >>> data_shown("covtype", "covtype"), data_shown("covtype", "breast cancer")
    ('covtype', 'breast cancer in place of covtype')
    """
    return name if name == data else f"{data} in place of {name}"


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
