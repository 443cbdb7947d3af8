"""Kinds of forest, by map data: a tenth of covtype."""

from __future__ import annotations

import gzip
from functools import lru_cache
from itertools import islice

import numpy as np

from applications._splits import Part, Parts
from fcco_reproduce.datasets._fetch import locate


@lru_cache
def covtype() -> np.ndarray:
    """Every tenth row: ten quantities, four areas and forty soils as 0 and 1, and the kind of forest, 1 to 7."""
    with gzip.open(locate("covtype/covtype.data.gz").path, "rt") as text:
        return np.loadtxt(islice(text, 0, None, 10), delimiter=",", dtype=np.float32)


def clipped(parts: Parts) -> Parts:
    """Features within five deviations: of the binary ones many are rare, and a few rows would have 100 and more."""
    return Parts(*(Part(part.x.clamp(-5, 5), part.y) for part in parts))
