"""Ways to train, and what all runs of a scale share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fcco_reproduce._methods import CODED, PRINTED, method_of

IN_BATCH, CROSS_ENTROPY, THEN_AP = "in-batch AP", "cross entropy", "cross entropy, then AP"
TABLES = ("BSGD", "SOAP", "MOAP", CODED, PRINTED)
OTHERS = (IN_BATCH, CROSS_ENTROPY, THEN_AP)


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of one run, which starts from the pre-trained network.

    Parameters
    ----------
    method : str
        Of :data:`TABLES` or :data:`OTHERS`.
    lr : float
        Step along the moving average of the gradient, at first; a tenth from half of the steps on, a hundredth
        from three quarters on.
    gamma : float
        Rate of the table at a row's visit. MOAP lets all rows decay at every step, of which a share visits a
        row: unless ``as_coded``, its rate is ``gamma`` times that share.
    beta : float
        Rate of the gradient's moving average.
    positives, negatives : int
        In a batch; the positives are the outer batch.
    as_coded : bool
        As in the authors' code, MOAP's gamma is that of a step.
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

    Examples
    --------
    >>> momentum("SOAP"), momentum("SOX (code)"), momentum("cross entropy")
    (1.0, 0.1, 0.1)
    """
    return method_of(method).beta() if method in TABLES else 0.1


def tuned_setting(method: str, lr: float, gamma: float) -> TrainingSettings:
    """Return the settings of the library's own method."""
    return TrainingSettings(method, lr, gamma, momentum(method))


def published_setting(method: str, lr: float, gamma: float) -> TrainingSettings:
    """Return the authors' settings; their lr is that of torch's SGD, whose buffer is v / beta.

    Examples
    --------
    >>> published_setting("SOX", 1e-4, 0.1)
    TrainingSettings(method='SOX (code)', lr=0.001, gamma=0.1, beta=0.1, positives=32, negatives=32, as_coded=True)
    """
    name = CODED if method == "SOX" else method
    return TrainingSettings(name, lr / momentum(name), gamma, momentum(name), as_coded=True)


@dataclass(frozen=True)
class Training:
    """What all runs of a scale share.

    Parameters
    ----------
    data : str
        Of :data:`fcco_reproduce.ap._data.LOADERS`, or "made".
    share : float
        Of the positives that are kept.
    widths, blocks, stride : tuple[int, ...], int
        Of the network.
    first_steps, first_lr : int, float
        Of the pre-training, with cross entropy on batches of 32 + 32.
    steps : int
        Of a run.
    every : int
        Steps between two measurements.
    measured : int
        Negatives that loss and AP on training and validation data are measured on, each standing for several;
        0 is all of them.
    decay : float
        Weight decay.
    margin : float
        Of the squared hinge.
    test_curve : bool
        Whether every measurement is of the test set too.
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
    test_curve: bool = False


def as_training(settings: dict[str, Any], data: str) -> Training:
    """Return the shared part of a settings file, for one data set: the blocks of the network depend on it."""
    shared = {**settings["training"], "data": data, "blocks": settings["training"]["blocks"][data]}
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in shared.items()}
    return Training(**plain)
