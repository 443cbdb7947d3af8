"""What the loaders return: NumPy arrays, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

State = Literal["published", "same content", "rebuilt", "subset", "unverified"]


class DamagedFileError(ValueError):
    """A file that is not what was published: wrong checksum, cut short, or not of its format. The message names it."""


@dataclass(frozen=True)
class Source:
    """A file that was read, and how far it is known to be the published one.

    - ``"published"``: its checksum is that of the published file;
    - ``"same content"``: compressed differently, its content has the checksum of the published content;
    - ``"rebuilt"``: a known copy that was made from other files, and is not the published one;
    - ``"subset"``: a known copy of some of the published rows;
    - ``"unverified"``: a user put it there, and no checksum of the published file is known; its size, shape and classes
      are as published.
    """

    path: Path
    state: State


@dataclass(frozen=True, eq=False)
class Classification:
    """Examples and their classes.

    Attributes:
        x: features [n, d] of float32, or images of uint8, [n, height, width] or [n, channel, height, width].
        y: classes [n], of int64 and numbered from 0.
        classes: the published name of each class.
        sources: the files read.
        feature_names: d names, or none where none were published.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...]
    sources: tuple[Source, ...] = ()
    feature_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Ranking:
    """Documents, how relevant each is, and the query that it answers.

    Attributes:
        x: features [n, d] of float32.
        y: relevances [n] of float32.
        query: queries [n], of int64 and numbered from 0 in the order of the file.
        sources: the files read.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    query: NDArray[Any]
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, eq=False)
class Survival:
    """Patients, how long each was watched, and whether that ended with the event.

    Attributes:
        x: features [n, d] of float32; NaN where the file has no value.
        time: times [n] of float64.
        event: [n] of bool; False is censored.
        feature_names: d names, or none where none were published.
        entry: where the file has them, the times [n] from which each was watched.
        sources: the files read.
    """

    x: NDArray[Any]
    time: NDArray[Any]
    event: NDArray[Any]
    feature_names: tuple[str, ...] = ()
    entry: NDArray[Any] | None = None
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test data of an experiment, and validation data where it has some."""

    train: Classification
    test: Classification
    validation: Classification | None = None
