"""What the loaders return: NumPy arrays, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

State = Literal["published", "same content", "rebuilt", "subset", "unverified"]


class DamagedFileError(ValueError):
    """A file is not the published one: its checksum is wrong, it is incomplete, or its format is wrong."""


@dataclass(frozen=True)
class Source:
    """A file that was read, and how far it is known to be the published one.

    - ``"published"``: its checksum is that of the published file;
    - ``"same content"``: compressed differently, its content has the checksum of the published content;
    - ``"rebuilt"``: a known copy that was made from other files, and is not the published one;
    - ``"subset"``: a known copy of some of the published rows;
    - ``"unverified"``: a user put it there, and no checksum of the published file is known; its size, shape and classes
      are as published.

    Attributes
    ----------
    path : Path
        The file.
    state : str
        One of the five words above.
    """

    path: Path
    state: State


@dataclass(frozen=True, eq=False)
class Classification:
    """Examples and their classes.

    Attributes
    ----------
    x : ndarray
        Features [n, d] of float32, or images of uint8, [n, height, width] or [n, channel, height, width].
    y : ndarray
        Classes [n], of int64 and numbered from 0.
    classes : tuple of str
        The published name of each class.
    sources : tuple of Source
        The files read.
    feature_names : tuple of str
        The names of the d features, or none if none were published.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...]
    sources: tuple[Source, ...] = ()
    feature_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Ranking:
    """Documents with their relevances and the queries that they belong to.

    Attributes
    ----------
    x : ndarray
        Features [n, d] of float32.
    y : ndarray
        Relevances [n] of float32.
    query : ndarray
        Queries [n], of int64 and numbered from 0 in the order of the file.
    sources : tuple of Source
        The files read.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    query: NDArray[Any]
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, eq=False)
class Survival:
    """Patients with the time that each was observed and whether the event occurred.

    Attributes
    ----------
    x : ndarray
        Features [n, d] of float32; NaN where the file has no value.
    time : ndarray
        Times [n] of float64.
    event : ndarray
        Whether the event occurred, [n] of bool; False means censored.
    feature_names : tuple of str
        The names of the d features, or none if none were published.
    entry : ndarray or None
        Where the file has them, the times [n] from which each was watched.
    sources : tuple of Source
        The files read.
    """

    x: NDArray[Any]
    time: NDArray[Any]
    event: NDArray[Any]
    feature_names: tuple[str, ...] = ()
    entry: NDArray[Any] | None = None
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test data of an experiment, and validation data where it has some.

    Attributes
    ----------
    train : Classification
        The rows to train on.
    test : Classification
        The rows to test on.
    validation : Classification or None
        The rows to validate on, if there are any.
    """

    train: Classification
    test: Classification
    validation: Classification | None = None
