"""What the authors ran, what they reported, and the same in the terms of this library."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from fcco import METHODS

DECAY = 1e-3
BATCH = 64
STEPS = 10_000
EVERY = 1_000


@dataclass(frozen=True)
class Setting:
    """One way to run a method.

    Args:
        rule: of the table: "bsgd", "soap", "moap" or "sox".
        lr: step along the moving average of the gradient.
        gamma: rate of the table, at a row's visit. MOAP lets all rows decay at every step, of which B/n visit a row:
            unless ``as_coded``, its rate is ``gamma`` B/n.
        beta: rate of the gradient's moving average.
        as_coded: do as the authors' code: batches are drawn with replacement, copies of a row are neighbours, rows
            start at 0, and the gradient is that *through* the moving average, which has a factor gamma. Otherwise
            batches are of shuffled passes, rows start at their first estimate (MOAP's at 0), and the gradient has no
            such factor: the table of :class:`fcco.losses.NCALoss`.
    """

    rule: str
    lr: float
    gamma: float
    beta: float
    as_coded: bool = False


def published(method: str, lr: float, gamma: float, beta: float) -> Setting:
    """The authors' run: their SOX is SOAP's table with momentum, and their lr that of torch's SGD, whose buffer is v/β.

    >>> published("SOX", 0.5, gamma=0.9, beta=0.5)
    Setting(rule='soap', lr=1.0, gamma=0.9, beta=0.5, as_coded=True)
    """
    return Setting("soap" if method == "SOX" else method.lower(), lr / beta, gamma, beta, as_coded=True)


def tuned_setting(method: str, lr: float, gamma: float) -> Setting:
    """The library's own method, with its default β of 0.1 where it has momentum.

    >>> tuned_setting("BSGD", 0.1, 1.0)
    Setting(rule='bsgd', lr=0.1, gamma=1.0, beta=1.0, as_coded=False)
    """
    return Setting(method.lower(), lr, gamma, METHODS[method].beta())


@dataclass(frozen=True)
class Report:
    """What the paper has on a data set.

    Args:
        width: rows of A.
        settings: by method, in the order of the figure.
        accuracy: the range of -(test loss) in which the curves lie, read off its figure.
    """

    width: int
    settings: dict[str, Setting]
    accuracy: tuple[float, float]


def _report(width: int, accuracy: tuple[float, float], **rates: tuple[float, float, float]) -> Report:
    return Report(width, {method: published(method, *some) for method, some in rates.items()}, accuracy)


PAPER = MappingProxyType(
    {
        "usps": _report(
            10, (0.93, 0.953), BSGD=(0.5, 1, 1), SOAP=(0.5, 0.7, 1), MOAP=(0.5, 0.9, 0.9), SOX=(0.5, 0.9, 0.9)
        ),
        "mnist": _report(
            32, (0.85, 0.957), BSGD=(0.01, 1, 1), SOAP=(0.1, 0.9, 1), MOAP=(0.01, 0.9, 0.5), SOX=(0.1, 0.9, 0.7)
        ),
        "sensorless": _report(
            4, (0.30, 0.71), BSGD=(0.1, 1, 1), SOAP=(2, 0.9, 1), MOAP=(0.1, 0.9, 0.7), SOX=(2, 0.9, 0.9)
        ),
    }
)
# The authors' code with seed 0, run again.
THEIR_CODE = MappingProxyType({"usps": {"BSGD": 0.946, "SOAP": 0.949, "SOX": 0.951}})
