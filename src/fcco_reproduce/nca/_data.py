"""The data of the NCA experiment: the paper's three sets, and a small one that needs no download."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fcco.functional import nca_loss
from fcco_reproduce.datasets import Classification, Split, load_mnist, load_sensorless, load_usps, split_nca
from fcco_reproduce.datasets._fetch import held

Array = NDArray[Any]
SMALL, SUBSET = "digits", "sensorless subset"


def at_hand(name: str) -> str:
    """Return ``name``, or the name of its subset if ``FCCO_DATA`` has only that."""
    full = "sensorless/Sensorless_drive_diagnosis.txt"
    part = "sensorless/sensorless_balanced2200.txt.gz"
    return SUBSET if name == "sensorless" and held(part) and not held(full) else name


@lru_cache(maxsize=2)
def load(data: str) -> Split:
    """Training and test part, scaled to [0, 1], of "usps", "mnist", "sensorless", "sensorless subset" or "digits".

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    if data == "usps":
        return split_nca(load_usps())
    if data == "mnist":
        return split_nca(load_mnist())
    if data in ("sensorless", SUBSET):
        return split_nca(load_sensorless("all" if data == "sensorless" else "balanced"))
    if data != SMALL:
        raise ValueError(f"data must be usps, mnist, sensorless, {SUBSET} or {SMALL}; got {data!r}")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return split_nca(Classification(x.astype(np.float32), y.astype(np.int64), tuple("0123456789")))


def hold_out(split: Split, share: float = 0.1) -> Split:
    """The training part alone, a ``share`` in the place of the test part. Its rows are in random order already."""
    cut = round((1 - share) * len(split.train.y))
    parts = [
        replace(split.train, x=split.train.x[rows], y=split.train.y[rows]) for rows in (slice(cut), slice(cut, None))
    ]
    return Split(*parts)


def loss(part: Classification, a: Array) -> float:
    """The NCA objective of the points A x, each other's neighbours, without weight decay; NaN where A has no value."""
    with np.errstate(all="ignore"):
        z = part.x @ a.T.astype(np.float32)
    if not np.isfinite(z).all():
        return float("nan")
    return nca_loss(torch.from_numpy(z), torch.from_numpy(part.y)).item()


def penalty(a: Array, decay: float) -> float:
    """Return what weight decay adds to the objective: decay/2 |A|²."""
    return 0.5 * decay * float(np.square(a).sum())


def start(width: int, features: int, seed: int) -> Array:
    """Return a as ``torch.nn.Linear`` would draw it, from U(-1/√d, 1/√d) (Kaiming-uniform), [width, d].

    Examples
    --------
    >>> bool(np.abs(start(10, 256, seed=0)).max() <= 1 / 16)
    True
    """
    bound = features**-0.5
    return np.random.default_rng(seed).uniform(-bound, bound, (width, features)).astype(np.float32)
