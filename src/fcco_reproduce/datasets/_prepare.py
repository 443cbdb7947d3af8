"""The splits of the paper's experiments, as its authors made them. They are pure functions of the loaded data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco_reproduce.datasets._types import Classification, Split

_SEED = 42


def split_ijcnn1(data: Classification) -> Split:
    """Split ijcnn1 for p-norm push: a tenth for testing, features scaled to [0, 1] by the training part.

    The rarer label 1 becomes class 0, so that it is the outer set of p-norm push, and -1 becomes class 1.

    Parameters
    ----------
    data : Classification
        ``load_ijcnn1("tr")``.

    Returns
    -------
    Split
        31,500 of 35,000 rows to train on, and 3,500 to test on.

    Raises
    ------
    ValueError
        If there are not two classes, or class 1 is not the rarer one.

    Examples
    --------
    >>> data = Classification(np.arange(40.0).reshape(20, 2), np.repeat([0, 1], [15, 5]), ("-1", "1"))
    >>> split = split_ijcnn1(data)
    >>> len(split.train.y), len(split.test.y), split.train.classes
    (18, 2, ('1', '-1'))
    """
    counts = np.bincount(data.y, minlength=2)
    if len(counts) != 2 or not 0 < counts[1] < counts[0]:
        raise ValueError(f"y must have two classes, of which 1 is the rarer; got {counts.tolist()} rows of each")
    flipped = replace(data, y=1 - data.y, classes=data.classes[::-1])
    return _scaled(flipped, *_shuffled(len(data.y), test=_tenth(len(data.y))))


def split_covtype(data: Classification, train: int = 100_000, test: int = 10_000) -> Split:
    """Split covtype for p-norm push: class 2 against a tenth of the rest, scaled to [0, 1] by the training part.

    LIBSVM's binary covtype labels UCI's class 2 with 2 and the rest with 1. Of the rest, the first tenth of the rows is
    kept, as class 0 (the outer set); all of class 2 follows, as class 1.

    Parameters
    ----------
    data : Classification
        ``load_covtype()``.
    train, test : int
        The number of rows of each part.

    Returns
    -------
    Split
        ``train`` rows to train on, and ``test`` rows to test on.

    Raises
    ------
    ValueError
        If there are fewer than ``train + test`` rows.

    Examples
    --------
    >>> data = Classification(np.arange(80.0).reshape(40, 2), np.repeat([0, 1], 20), ("1", "2"))
    >>> split = split_covtype(data, train=10, test=6)
    >>> split.train.x.shape, split.test.x.shape, split.train.classes
    ((10, 2), (6, 2), ('rest', '2'))
    """
    pine = data.y == 1
    rest = np.flatnonzero(~pine)
    rows = np.concatenate([rest[: len(rest) // 10], np.flatnonzero(pine)])
    if train + test > len(rows):
        raise ValueError(f"train and test need {train + test:,} rows, there are {len(rows):,}")
    kept = replace(_take(data, rows), y=pine[rows].astype(np.int64), classes=("rest", "2"))
    return _scaled(kept, *_shuffled(len(rows), test=test, train=train))


def split_nca(data: Classification) -> Split:
    """Split MNIST, USPS or Sensorless for NCA: a tenth for testing, features scaled to [0, 1] by the training part.

    Parameters
    ----------
    data : Classification
        The training part of the set; images are flattened. The authors took the rows of Sensorless in the order
        of LIBSVM's ``Sensorless.scale``, which may not be UCI's.

    Returns
    -------
    Split
        A tenth of the rows, rounded up, to test on, and the others to train on.

    Examples
    --------
    >>> data = Classification(np.arange(80).reshape(20, 2, 2), np.arange(20) % 2, ("a", "b"))
    >>> split = split_nca(data)
    >>> split.train.x.shape, split.test.x.shape
    ((18, 4), (2, 4))
    """
    flat = replace(data, x=data.x.reshape(len(data.x), -1))
    return _scaled(flat, *_shuffled(len(data.y), test=_tenth(len(data.y))))


def split_imbalanced(train: Classification, test: Classification, share: float = 0.02, seed: int = 0) -> Split:
    """Split CIFAR for AP: the lower half of the classes is negative, the upper half positive and cut to ``share``.

    Of every class, a fifth of what is kept is for validation: of either CIFAR, 20,000 negatives and 400 positives are
    to train on, 5,000 and 100 to validate. The test set is whole and balanced. Which rows the authors kept was not
    published: here they are drawn with ``seed``, and kept in the order of the file.

    Parameters
    ----------
    train, test : Classification
        The parts of the set.
    share : float
        Of the positives that are kept.
    seed : int
        Of the draw.

    Returns
    -------
    Split
        Images as they are, and y: 1 for positive.

    Raises
    ------
    ValueError
        If ``share`` leaves a class with nothing to train or validate on.

    Examples
    --------
    >>> images = Classification(np.zeros((40, 3)), np.arange(40) % 2, ("cat", "dog"))
    >>> split = split_imbalanced(images, images, share=0.5)
    >>> np.bincount(split.train.y).tolist(), np.bincount(split.validation.y).tolist()
    ([16, 8], [4, 2])
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1]; got {share}")
    generator = np.random.default_rng(seed)
    positive = len(train.classes) // 2
    fitted, validated = [], []
    for label, name in enumerate(train.classes):
        rows = generator.permutation(np.flatnonzero(train.y == label))
        kept = rows[: round(len(rows) * (share if label >= positive else 1))]
        if len(kept) < 5:
            raise ValueError(f"share={share} leaves {len(kept)} rows of {name}, which is less than 5")
        validated.append(kept[: len(kept) // 5])
        fitted.append(kept[len(kept) // 5 :])
    parts = [_take(train, np.sort(np.concatenate(rows))) for rows in (fitted, validated)]
    return Split(_binary(parts[0], positive), _binary(test, positive), _binary(parts[1], positive))


def _binary(data: Classification, positive: int) -> Classification:
    return replace(data, y=(data.y >= positive).astype(np.int64), classes=("negative", "positive"))


def _tenth(n: int) -> int:
    return -(-n // 10)


def _shuffled(n: int, test: int, train: int | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the training and test rows of scikit-learn's ``train_test_split(random_state=42)``."""
    order = np.random.RandomState(_SEED).permutation(n)
    return order[test : None if train is None else test + train], order[:test]


def _take(data: Classification, rows: NDArray[Any]) -> Classification:
    return replace(data, x=data.x[rows], y=data.y[rows])


def _scaled(data: Classification, train: NDArray[Any], test: NDArray[Any]) -> Split:
    """Return both parts in float32, scaled to [0, 1] by the training part; constant features are only shifted."""
    x = data.x[train].astype(np.float32)
    low, high = x.min(0), x.max(0)
    span = np.where(high > low, high - low, 1)
    parts = [replace(_take(data, rows), x=(data.x[rows].astype(np.float32) - low) / span) for rows in (train, test)]
    return Split(*parts)
