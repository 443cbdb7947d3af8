"""Ways to train, and what all runs of a scale share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fcco import METHODS

IN_BATCH, CROSS_ENTROPY = "in-batch AP", "cross entropy"
TABLES = ("BSGD", "SOAP", "MOAP", "SOX")
OTHERS = (IN_BATCH, CROSS_ENTROPY)


@dataclass(frozen=True)
class Setting:
    """One way to train, from the pre-trained network on.

    Args:
        method: of :data:`TABLES` or :data:`OTHERS`.
        lr: step along the moving average of the gradient, at first; a tenth from half of the steps on, a hundredth
            from three quarters on.
        gamma: rate of the table at a row's visit. MOAP lets all rows decay at every step, of which a share visits a
            row: unless ``as_coded``, its rate is ``gamma`` times that share.
        beta: rate of the gradient's moving average.
        positives, negatives: in a batch; the positives are the outer batch.
        as_coded: as in the authors' code, f is differentiated at the updated row under SOX too, and MOAP's gamma is
            that of a step.
    """

    method: str
    lr: float
    gamma: float = 1.0
    beta: float = 0.1
    positives: int = 32
    negatives: int = 32
    as_coded: bool = False


def momentum(method: str) -> float:
    """beta: 1 for the methods that the paper runs without momentum.

    >>> momentum("SOAP"), momentum("SOX"), momentum("cross entropy")
    (1.0, 0.1, 0.1)
    """
    return METHODS[method].beta() if method in METHODS else 0.1


def tuned_setting(method: str, lr: float, gamma: float) -> Setting:
    """The library's own method."""
    return Setting(method, lr, gamma, momentum(method))


def published_setting(method: str, lr: float, gamma: float) -> Setting:
    """The authors' run; their lr is that of torch's SGD, whose buffer is v / beta.

    >>> published_setting("SOX", 1e-4, 0.1)
    Setting(method='SOX', lr=0.001, gamma=0.1, beta=0.1, positives=32, negatives=32, as_coded=True)
    """
    beta = momentum(method)
    return Setting(method, lr / beta, gamma, beta, as_coded=True)


@dataclass(frozen=True)
class Training:
    """What all runs of a scale share.

    Args:
        data: of :data:`fcco_reproduce.ap._data.LOADERS`, or "made".
        share: of the positives that are kept.
        widths, blocks, stride: of the network.
        first_steps, first_lr: of the pre-training, with cross entropy on batches of 32 + 32.
        steps: of a run.
        every: steps between two measurements.
        measured: negatives that loss and AP on training and validation data are measured on, each standing for several;
            0 is all of them.
        decay: weight decay.
        margin: of the squared hinge.
    """

    data: str
    share: float
    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    stride: int
    first_steps: int
    first_lr: float
    steps: int
    every: int
    measured: int
    decay: float
    margin: float


def as_training(settings: dict[str, Any], data: str) -> Training:
    """The shared part of a settings file, for one data set: the blocks of the network depend on it."""
    shared = {**settings["training"], "data": data, "blocks": settings["training"]["blocks"][data]}
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in shared.items()}
    return Training(**plain)
