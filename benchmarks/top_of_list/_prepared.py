"""Tasks as files, so that jobs read them quickly, and their split into standardised parts."""

from __future__ import annotations

import hashlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from harness.cache import sources
from top_of_list._tasks import Task

Array = NDArray[Any]


class Prepared(NamedTuple):
    """A task in a file; ``data`` is a hash of its content."""

    path: str
    data: str
    n: int
    features: int
    share: float
    sparse: bool


class Part(NamedTuple):
    """Features, an array or a CSR matrix of float32, and labels of 0 and 1."""

    x: Any
    y: Array


class Parts(NamedTuple):
    """The parts of a split."""

    train: Part
    valid: Part
    test: Part


def prepare(task: Task, folder: Path) -> Prepared:
    """Write the task into a file of the folder, unless the same code has done so before, and describe it."""
    made_by = json.dumps([sources(task.load), task.arguments, task.noise], sort_keys=True)
    name = re.sub(r"\W+", "-", task.name)
    path = folder / f"{name}-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}.npz"
    if not path.exists():
        x, y = task.load(**task.arguments)
        arrays = {"data": x.data, "indices": x.indices, "indptr": x.indptr} if issparse(x) else {"x": x}
        _write(path, {**arrays, "y": y, "shape": np.array(x.shape), "noise": np.array(task.noise)})
    with np.load(path) as held:
        n, features = map(int, held["shape"])
        return Prepared(str(path), str(held["hash"]), n, features, float(held["y"].mean()), "x" not in held)


def _write(path: Path, arrays: dict[str, Array]) -> None:
    """Write the file whole or not at all, with a hash of what is in it."""
    content = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        content.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{os.getpid()}-{path.name}")
    np.savez(part, allow_pickle=False, hash=np.array(content.hexdigest()[:16]), **arrays)
    part.replace(path)


@lru_cache(maxsize=2)
def split(path: str, seed: int) -> Parts:
    """Return a random split into 60, 20 and 20 percent with equal shares of positives, standardised.

    A noisy task has wrong labels in the training and validation parts only.
    """
    with np.load(path) as held:
        arrays = {name: held[name] for name in held.files}
    y, shape = arrays["y"], tuple(arrays["shape"])
    x = arrays["x"] if "x" in arrays else csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), shape)
    rest, test = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=seed)
    seen = _mislabelled(y, rest, float(arrays["noise"]), seed)
    train, valid = train_test_split(rest, test_size=0.25, stratify=seen[rest], random_state=seed)
    scaled = _scaled(x, train)
    return Parts(Part(scaled[train], seen[train]), Part(scaled[valid], seen[valid]), Part(scaled[test], y[test]))


def _mislabelled(y: Array, rows: Array, noise: float, seed: int) -> Array:
    """Return labels of which a share of the positives among ``rows`` has become 0."""
    positives = rows[y[rows] == 1]
    wrong = np.random.default_rng(seed).permutation(positives)[: round(noise * len(positives))]
    seen = y.copy()
    seen[wrong] = 0
    return seen


def _scaled(x: Any, train: Array) -> Any:
    """Return features in units of their spread in the training part; those of a CSR matrix keep their zeros."""
    if issparse(x):
        return MaxAbsScaler().fit(x[train]).transform(x).tocsr()
    varying = x[train].std(0) > 0
    return np.clip(StandardScaler().fit(x[train][:, varying]).transform(x[:, varying]), -5, 5)
