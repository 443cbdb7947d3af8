"""Where the tasks come from: functions that return features and labels of 0 and 1."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from fcco_reproduce.datasets import Classification, load_covtype, load_ijcnn1, load_mnist, load_sensorless, load_usps

Array = NDArray[Any]
Loaded = tuple[Any, Array]  # features, an array or a CSR matrix, and labels


def some_rows(positive: Array, n: int, share: float | None = None) -> Array:
    """Return the numbers of ``n`` random rows, always the same, of which ``share`` are positive if it is given."""
    generator = np.random.default_rng(0)
    if share is None:
        return generator.permutation(len(positive))[:n]
    wanted = round(n * share)
    found = [np.flatnonzero(positive), np.flatnonzero(~positive)]
    rows = [generator.permutation(some)[:size] for some, size in zip(found, (wanted, n - wanted), strict=True)]
    if sum(map(len, rows)) < n:
        raise ValueError(
            f"{n} rows need {wanted} positives and {n - wanted} others; got {[len(some) for some in found]}"
        )
    return generator.permutation(np.concatenate(rows))


def _one_class(x: Array, y: Array, label: int, n: int | None, share: float | None) -> Loaded:
    positive = y == label
    rows = some_rows(positive, n or len(y), share)
    return x[rows].reshape(len(rows), -1).astype(np.float32), positive[rows].astype(np.int64)


def breast_cancer() -> Loaded:
    """Whether a tumour is malignant."""
    bunch = load_breast_cancer()
    return bunch.data.astype(np.float32), (bunch.target == 0).astype(np.int64)


def digits(digit: int, n: int | None = None, share: float | None = None) -> Loaded:
    """Return scikit-learn's digits of 8 x 8 pixels, one of them against the rest."""
    bunch = load_digits()
    return _one_class(bunch.data, bunch.target, digit, n, share)


def diabetes() -> Loaded:
    """Whether the progression of the disease is among the highest tenth."""
    bunch = load_diabetes()
    return bunch.data.astype(np.float32), (bunch.target >= np.quantile(bunch.target, 0.9)).astype(np.int64)


@lru_cache(maxsize=1)
def covtype_rows() -> Classification:
    """Return all of covtype; it is read once for all tasks."""
    return load_covtype()


def covtype(kind: int, n: int, share: float | None = None) -> Loaded:
    """Return one kind of forest, 1 to 7, against the rest."""
    data = covtype_rows()
    return _one_class(data.x, data.y, kind - 1, n, share)


def covtype_every(kind: int, every: int) -> Loaded:
    """Return one kind of forest against the rest in every so-manyth row."""
    data = covtype_rows()
    return data.x[::every].astype(np.float32), (data.y[::every] == kind - 1).astype(np.int64)


def ijcnn1(part: str, first: int, every: int) -> Loaded:
    """Return every so-manyth window of the time series, from row ``first`` of a part on."""
    data = load_ijcnn1(part)
    return data.x[first::every].astype(np.float32), data.y[first::every].astype(np.int64)


def sensorless(kind: int) -> Loaded:
    """Return one of the eleven faults against the rest."""
    data = load_sensorless("balanced")
    return _one_class(data.x, data.y, kind - 1, None, None)


def mnist(digit: int, n: int, share: float) -> Loaded:
    """Return raw pixels, one digit against the rest."""
    data = load_mnist("train")
    return _one_class(data.x, data.y, digit, n, share)


def usps(digit: int, n: int | None = None, share: float | None = None) -> Loaded:
    """Return the scans of both published parts, one digit against the rest."""
    parts = [load_usps(part, raw=True) for part in ("train", "test")]
    return _one_class(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]), digit, n, share)
