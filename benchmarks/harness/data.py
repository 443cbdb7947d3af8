"""Real data for the benchmarks.

They come from the directory that FCCO_DATA names, are downloaded, or ship with scikit-learn and Python.
"""

from __future__ import annotations

import gzip
import io
import os
import re
from collections import Counter
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from scipy.io import arff
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_svmlight_file
from torch import Tensor

from fcco_reproduce.datasets._fetch import locate
from fcco_reproduce.datasets._open import open_content

TIMES_AND_EVENTS = {
    "whas500": ("lenfol", "fstat", b"1"),
    "veteran": ("Survival_in_days", "Status", b"dead"),
    "flchain": ("futime", "death", b"dead"),
}


def has(path: str) -> bool:
    """Return whether FCCO_DATA names a directory with this file or folder."""
    return "FCCO_DATA" in os.environ and (Path(os.environ["FCCO_DATA"]) / path).exists()


def standardised(x: np.ndarray) -> Tensor:
    """Return features with mean 0 and standard deviation 1; constant features are left out."""
    x = x[:, x.std(0) > 0]
    return torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)


@lru_cache
def survival(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Features, times and events. "diabetes": the progression of the disease as a time, all of it observed."""
    if name == "diabetes":
        bunch = load_diabetes()
        return standardised(bunch.data), torch.tensor(bunch.target), torch.ones(len(bunch.target), dtype=torch.bool)
    time_name, event_name, observed = TIMES_AND_EVENTS[name]
    rows, meta = arff.loadarff(str(locate(f"survival/sksurv/{name}.arff").path))
    columns = []
    for column in meta.names():
        if column in (time_name, event_name, "chapter"):  # chapter, the cause of death, tells the event
            continue
        values = rows[column]
        if meta[column][0] == "nominal":
            columns += [values == level.encode() for level in meta[column][1][1:]]
        else:
            columns.append(np.where(np.isnan(values), np.nanmean(values), values))
    x = np.stack(columns, 1).astype(float)
    return standardised(x), torch.tensor(rows[time_name].copy()), torch.tensor(rows[event_name] == observed)


@lru_cache
def binary(name: str) -> tuple[Tensor, Tensor]:
    """Features and targets of 0 and 1."""
    if name == "breast cancer":
        bunch = load_breast_cancer()
        return standardised(bunch.data), torch.tensor(bunch.target == 0).long()
    if name == "ijcnn1":
        with open_content(locate("ijcnn1/ijcnn1.tr.bz2").path) as file:
            x, y = load_svmlight_file(io.BytesIO(b"".join(islice(file, 0, None, 7))))
        return standardised(x.toarray()), torch.tensor(y > 0).long()
    values = covtype_rows(29)
    return _covtype_features(values), torch.tensor(values[:, -1] == 5).long()


@lru_cache
def covtype_rows(every: int) -> np.ndarray:
    """Return every so-manyth row of covtype, in float64.

    The columns are ten quantities, four areas and forty soils as 0 and 1, and the kind of forest, 1 to 7.
    """
    with gzip.open(locate("covtype/covtype.data.gz").path, "rt") as text:
        return np.loadtxt(islice(text, 0, None, every), delimiter=",")


def _covtype_features(values: np.ndarray) -> Tensor:
    # Many of the binary columns are rare. If they were standardised, a few rows would have features above 100, so they
    # stay as they are here; the applications standardise them and clip them (``splits.clipped``).
    return torch.cat([standardised(values[:, :10]), torch.tensor(values[:, 10:-1], dtype=torch.float32)], 1)


@lru_cache
def groups(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Features, targets of 0 and 1, and groups.

    "digits": whether a digit is odd, and which it is. "covtype": whether the cover is lodgepole pine; a group is an
    area and an answer, of which the rarest has 0.6% of the rows.
    """
    if name == "digits":
        x, digit = classes(name)
        return x - x.mean(0), digit % 2, digit
    values = covtype_rows(29)[::5]
    pine = torch.tensor(values[:, -1] == 2).long()
    group = 2 * torch.tensor(values[:, 10:14].argmax(1)) + pine
    return _covtype_features(values), pine, torch.unique(group, return_inverse=True)[1]


@lru_cache
def few_shot(name: str) -> tuple[Tensor, Tensor]:
    """Inputs [tasks, examples, d] and targets [tasks, examples] of many small regressions.

    "digit pairs": one digit (1) against another (-1), 80 images of each. "covtype": the elevation from nine other
    quantities, in 200 stretches of 100 rows, which are neighbouring land.
    """
    generator = torch.Generator().manual_seed(0)
    if name == "digit pairs":
        x, digit = classes("digits")
        images = torch.stack([(x - x.mean(0))[digit == k][:80] for k in range(10)])
        pairs = torch.cartesian_prod(torch.arange(10), torch.arange(10))
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        inputs, targets = images[pairs].flatten(1, 2), torch.tensor([1.0, -1.0]).repeat_interleave(80).repeat(90, 1)
    else:
        values = standardised(covtype_rows(29)[:20000, :10]).view(200, 100, 10)
        inputs, targets = values[..., 1:], values[..., 0]
    order = torch.randperm(inputs.shape[1], generator=generator)
    return inputs[:, order], targets[:, order]


@lru_cache
def retrieval(name: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], int]:
    """Features and labels of queries, those of a memory, and how many labels there are: either half of the data."""
    x, y = classes("digits") if name == "digits" else bigrams()
    x = x - x.mean(0)
    return (x[::2], y[::2]), (x[1::2], y[1::2]), 10 if name == "digits" else 1000


@lru_cache
def classes(name: str) -> tuple[Tensor, Tensor]:
    """Features in [0, 1] and classes, numbered from 0."""
    if name == "digits":
        bunch = load_digits()
        return torch.tensor(bunch.data / 16, dtype=torch.float32), torch.tensor(bunch.target)
    with gzip.open(locate("usps/zip.train.gz").path, "rt") as text:
        values = np.loadtxt(islice(text, 0, None, 4))
    return torch.tensor((values[:, 1:] + 1) / 2, dtype=torch.float32), torch.tensor(values[:, 0]).long()


@lru_cache
def ranking(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Features, relevances and queries. "diabetes": patients of like age as a query, the progression's quartile."""
    if name == "diabetes":
        bunch = load_diabetes()
        query = torch.tensor(bunch.data[:, 0]).argsort().argsort() // 20
        quartile = np.searchsorted(np.quantile(bunch.target, [0.25, 0.5, 0.75]), bunch.target)
        return standardised(bunch.data[:, 1:]), torch.tensor(quartile).double(), query
    folder = "ltr/lightgbm-lambdarank"
    with open_content(locate(f"{folder}/rank.train").path) as file:
        x, y = load_svmlight_file(io.BytesIO(file.read()))
    sizes = np.loadtxt(locate(f"{folder}/rank.train.query").path, dtype=int)
    query = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return standardised(x.toarray()), torch.tensor(y), query


@lru_cache
def bigrams(n: int = 3000, n_words: int = 1000, dim: int = 32) -> tuple[Tensor, Tensor]:
    """Features of a word, and the word that follows it, in the help texts that ship with Python.

    Words are the ``n_words`` most frequent ones; a word's features are what a singular value decomposition of the
    logarithms of its successors' counts has on it, scaled to deviation 1. The pairs are spread over the whole text.
    """
    from pydoc_data.topics import topics

    text = " ".join(topics[key] for key in sorted(topics))
    words = re.findall(r"[a-z_]+", text.lower())
    number = {word: i for i, (word, _) in enumerate(Counter(words).most_common(n_words))}
    pairs = [(number[a], number[b]) for a, b in pairwise(words) if a in number and b in number]
    counts = np.zeros((n_words, n_words))
    np.add.at(counts, tuple(np.array(pairs).T), 1)
    u, s, _ = np.linalg.svd(np.log1p(counts))
    features = u[:, :dim] * s[:dim]
    chosen = np.array(pairs)[:: len(pairs) // n][:n]
    x = features[chosen[:, 0]]
    return torch.tensor(x / x.std(), dtype=torch.float32), torch.tensor(chosen[:, 1])
