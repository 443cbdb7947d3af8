"""The outer batch is a uniformly drawn set of rows."""

from collections import Counter
from itertools import combinations

import pytest
import torch

from fcco.solvers._solver import draw_rows


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_every_set_is_equally_likely(size):
    """6,000 draws of ``size`` rows of 6: every count within 5 standard deviations of its mean."""
    generator = torch.Generator().manual_seed(0)
    counts = Counter(tuple(sorted(draw_rows(6, size, generator).tolist())) for _ in range(6000))
    sets = list(combinations(range(6), size))
    assert set(counts) <= set(sets)
    mean = 6000 / len(sets)
    for rows in sets:
        assert abs(counts[rows] - mean) <= 5 * (mean * (1 - 1 / len(sets))) ** 0.5


@pytest.mark.parametrize("size", [1, 17, 999])
def test_does_not_depend_on_n(size):
    """A permutation of 10^15 rows would not fit in memory."""
    rows = draw_rows(10**15, size, torch.Generator().manual_seed(0))
    assert rows.dtype == torch.int64
    assert len(rows.unique()) == size
    assert 0 <= rows.min() <= rows.max() < 10**15


def test_goes_by_its_generator():
    first, second = (draw_rows(1000, 50, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, draw_rows(1000, 50, torch.Generator().manual_seed(2)))
