"""The data of p-norm push: the paper's two sets, and a small one that needs no download."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from fcco.compiled._rules import Array
from fcco.functional import p_norm_push_loss
from fcco_reproduce.datasets import (
    Classification,
    Split,
    load_covtype,
    load_ijcnn1,
    split_covtype,
    split_ijcnn1,
    split_nca,
)

P = 4.0
SMALL = "breast cancer"


@lru_cache(maxsize=2)
def load(data: str) -> Split:
    """Training and test part of "covtype", "ijcnn1" or "breast cancer", scaled to [0, 1]; class 0 is the outer set.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    if data == "covtype":
        return split_covtype(load_covtype())
    if data == "ijcnn1":
        return split_ijcnn1(load_ijcnn1("tr"))
    if data != SMALL:
        raise ValueError(f"data must be covtype, ijcnn1 or {SMALL}; got {data!r}")
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return split_nca(Classification(x.astype(np.float32), y.astype(np.int64), ("malignant", "benign")))


def hold_out(split: Split, share: float = 0.2) -> Split:
    """Return the training part alone, a random ``share`` of it in the place of the test part."""
    order = np.random.default_rng(0).permutation(len(split.train.y))
    held = round(share * len(order))
    parts = [
        replace(split.train, x=split.train.x[rows], y=split.train.y[rows]) for rows in (order[held:], order[:held])
    ]
    return Split(*parts)


def push_loss(data: Classification, w: Array) -> float:
    """Return the objective of the scores X w over all pairs, without weight decay; inf where it is no number."""
    with np.errstate(all="ignore"):
        scores = data.x @ w
    if not np.isfinite(scores).all():
        return float("inf")
    return p_norm_push_loss(torch.from_numpy(scores), torch.from_numpy(data.y), p=P).item()


def penalty(w: Array, decay: float) -> float:
    """Return what weight decay adds to the objective: decay/2 |w|²."""
    with np.errstate(all="ignore"):
        return 0.5 * decay * float(w @ w)
