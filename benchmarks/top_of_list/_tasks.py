"""The tasks, and which of them served to choose the library's defaults."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from top_of_list import _sources as sources
from top_of_list._cifar import cifar
from top_of_list._sparse import covtype_crosses, next_word

Group = Literal["choosing", "reporting"]


@dataclass(frozen=True, eq=False)
class Task:
    """A binary classification.

    Parameters
    ----------
    name : str
        As the tables have it.
    group : {"choosing", "reporting"}
        Whether the library's defaults were chosen on it, or claims are made about it.
    load : callable
        Returns features, an array of float32 or a CSR matrix, and labels of 0 and 1.
    arguments : dict
        Of ``load``.
    about : str
        What is positive, and what the features are.
    noise : float
        The share of the positives outside of the test part whose label is changed to 0.
    ships : bool
        Whether the data come with scikit-learn or Python, and not from FCCO_DATA.
    """

    name: str
    group: Group
    load: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    noise: float = 0.0
    ships: bool = False


def _choosing(name: str, load: Callable[..., Any], about: str, ships: bool = False, **arguments: Any) -> Task:
    return Task(name, "choosing", load, arguments, about, ships=ships)


def _reporting(
    name: str, load: Callable[..., Any], about: str, noise: float = 0.0, ships: bool = False, **arguments: Any
) -> Task:
    return Task(name, "reporting", load, arguments, about, noise, ships)


TASKS = (
    _choosing("breast cancer", sources.breast_cancer, "malignant tumours", ships=True),
    _choosing("digits 8", sources.digits, "the digit 8, 8 x 8 pixels", ships=True, digit=8),
    _choosing("covtype 5", sources.covtype_every, "forest of kind 5, every 25th row", kind=5, every=25),
    _choosing("ijcnn1", sources.ijcnn1, "every third of the first 35,000 windows", part="tr", first=0, every=3),
    _reporting("diabetes", sources.diabetes, "the tenth with the fastest progression", ships=True),
    _reporting("digits 9 at 5%", sources.digits, "the digit 9, thinned out", ships=True, digit=9, n=1600, share=0.05),
    _choosing("text", next_word, 'the word "a" in Python\'s help texts', ships=True, word="a", n=12_000),
    _reporting("covtype 4", sources.covtype, "forest of kind 4", kind=4, n=20_000, share=0.015),
    _reporting("covtype 6", sources.covtype, "forest of kind 6", kind=6, n=12_000),
    _reporting("covtype 7", sources.covtype, "forest of kind 7", kind=7, n=12_000),
    _reporting("covtype 7 noisy", sources.covtype, "a tenth of the positives mislabelled", 0.1, kind=7, n=12_000),
    _choosing("covtype 3 crosses", covtype_crosses, "forest of kind 3, by pairs of bins", kind=3, n=12_000, bins=5),
    _reporting("ijcnn1 later", sources.ijcnn1, "every fourth of later windows", part="test", first=45_000, every=4),
    _reporting("sensorless 2", sources.sensorless, "fault 2 of 11", kind=2),
    _reporting("mnist 8 at 2%", sources.mnist, "the digit 8, thinned out, raw pixels", digit=8, n=10_000, share=0.02),
    _reporting("mnist 9 at 10%", sources.mnist, "the digit 9, raw pixels", digit=9, n=8_000, share=0.1),
    _reporting("usps 8", sources.usps, "the digit 8, 16 x 16 pixels", digit=8),
    _reporting("usps 3 at 2%", sources.usps, "the digit 3, thinned out", digit=3, n=8_000, share=0.02),
    _reporting("cifar10 features", cifar, "photographs of birds, by a ResNet's features", kind=2, n=12_000, share=0.02),
)


def available() -> list[Task]:
    """Return the tasks whose data are at hand."""
    return [task for task in TASKS if task.ships or os.environ.get("FCCO_DATA")]
