"""Sparse features, thousands of columns of 0 and 1, made from data that are at hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from top_of_list._sources import Loaded, covtype_rows, some_rows

Array = NDArray[Any]
QUANTITIES, AREAS = 10, 4  # covtype's first columns; forty soils follow


def one_hot(codes: Sequence[Array]) -> csr_matrix:
    """Return a column for every value of every code, except for values that occur fewer than five times."""
    columns, first = [], 0
    for code in codes:
        _, position, counts = np.unique(code, return_inverse=True, return_counts=True)
        frequent = counts >= 5
        number = first + np.cumsum(frequent) - 1
        columns.append(np.where(frequent, number, -1)[position])
        first += int(frequent.sum())
    table = np.stack(columns, 1)
    rows = np.repeat(np.arange(len(table)), (table >= 0).sum(1))
    found = table[table >= 0]
    return csr_matrix((np.ones(len(found), np.float32), (rows, found)), shape=(len(table), first))


def covtype_crosses(kind: int, n: int, bins: int) -> Loaded:
    """Return one kind of forest against the rest, by bins of the ten quantities, the area, the soil, and all pairs."""
    data = covtype_rows()
    edges = np.quantile(data.x[:, :QUANTITIES], np.linspace(0, 1, bins + 1)[1:-1], axis=0)
    rows = some_rows(data.y == kind - 1, n)
    x = data.x[rows]
    codes = [np.searchsorted(edges[:, k], x[:, k]) for k in range(QUANTITIES)]
    codes += [x[:, QUANTITIES : QUANTITIES + AREAS].argmax(1), x[:, QUANTITIES + AREAS :].argmax(1)]
    crosses = [100 * a + b for a, b in combinations(codes, 2)]  # no code has a hundred values
    return one_hot([*codes, *crosses]), (data.y[rows] == kind - 1).astype(np.int64)


def next_word(word: str, n: int) -> Loaded:
    """Return whether a place in Python's help texts has a certain word, by the two words before and the one after."""
    from pydoc_data.topics import topics

    words = re.findall(r"[a-z_]+", " ".join(topics[key] for key in sorted(topics)).lower())
    number = {known: k for k, (known, _) in enumerate(Counter(words).most_common())}
    coded = np.array([number[one] for one in words])
    rows = some_rows(coded[2:-1] == number[word], n)
    before, previous, after = coded[rows], coded[rows + 1], coded[rows + 3]
    return one_hot([before, previous, after]), (coded[rows + 2] == number[word]).astype(np.int64)
