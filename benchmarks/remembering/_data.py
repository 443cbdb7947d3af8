"""The data of both halves of the study: those of the harness, and others that no default was chosen on."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fcco_reproduce.datasets import load_mnist, load_sensorless, load_survival
from harness import data

CLIP = 3.0  # standard deviations that features of Sensorless are kept within: some rows are hundreds away


@lru_cache
def survival(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Features, times and events."""
    if name not in ("gbsg", "metabric", "support", "whas"):
        return data.survival(name)
    patients = load_survival(name, "train")
    return data.standardised(patients.x.astype(float)), torch.tensor(patients.time), torch.tensor(patients.event)


@lru_cache
def binary(name: str) -> tuple[Tensor, Tensor]:
    """Features and targets of 0 and 1; "usps 8" is the class 8 against all others."""
    source, _, positive = name.rpartition(" ")
    if not positive.isdigit():
        return data.binary(name)
    if source == "covtype":
        values = data.covtype_rows(29)[:: 1 if positive == "4" else 2]  # class 4 is rare
        return data._covtype_features(values), torch.tensor(values[:, -1] == int(positive)).long()
    x, y = classes(source)
    return x - x.mean(0), (y == int(positive)).long()


@lru_cache
def classes(name: str) -> tuple[Tensor, Tensor]:
    """Features in [0, 1] and classes, numbered from 0."""
    if name == "mnist":
        images = load_mnist("train")
        x = images.x[::30].reshape(len(images.x[::30]), -1) / 255.0
        return torch.tensor(x[:, x.std(0) > 0], dtype=torch.float32), torch.tensor(np.asarray(images.y[::30])).long()
    if name == "sensorless":
        drives = load_sensorless("balanced")
        scaled = data.standardised(drives.x.astype(float)).clamp(-CLIP, CLIP)
        return (scaled + CLIP) / (2 * CLIP), torch.tensor(np.asarray(drives.y)).long()
    return data.classes(name)
