"""The array vocabulary of both libraries against plain loops."""

import numpy as np
import pytest

from core.compare import LIBRARIES
from fcco.core import arrays

NUMBERS, PLACES = np.array([5, 2, 5, -3, 9, 2, 2]), np.array([2, 0, 2, 4, 0, 0, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("to", LIBRARIES.values(), ids=LIBRARIES)
def test_arrays(to, dtype):
    values = np.arange(14, dtype=dtype).reshape(7, 2) ** 2
    totals, largest = np.zeros((5, 2), dtype), np.full((5, 2), -np.inf, dtype)
    for place, row in zip(PLACES, values, strict=True):
        totals[place] += row
        largest[place] = np.maximum(largest[place], row)
    numbers, places, x = to(NUMBERS), to(PLACES), to(values.copy())
    for got, expected in (
        (arrays.slots_of(numbers), np.array([2, 1, 2, 0, 3, 1, 1])),
        (arrays.slots_of(numbers[:1]), np.array([0])),
        (arrays.ascending(numbers), np.sort(NUMBERS)),
        (arrays.order_of(numbers), np.array([3, 1, 5, 6, 0, 2, 4])),
        (arrays.places_of(numbers == 2), np.array([1, 5, 6])),
        (arrays.repeated(numbers, places), np.array([5, 5, 5, 5, -3, -3, -3, -3, 2])),
        (
            arrays.contains(to(np.array([-3, 2, 7])), to(np.array([-9, -3, 0, 2, 7, 8, 7 + 2**20, 2 - 2**20]))),
            np.array([0, 1, 0, 1, 1, 0, 0, 0]) > 0,
        ),
        (arrays.counted(places, 5, x.T), totals.T),
        (arrays.counted(places, 5, x[:, 1]), totals[:, 1]),
        (arrays.peaks(places, 5, x), largest),
        (arrays.peaks(places, 5, x[:, 0]), largest[:, 0]),
        (arrays.taken(x, places), values[PLACES]),
        (arrays.taken(x, places[1:2], 1), values[:, :1]),
        (arrays.row_sums(x), values.sum(1)),
        (arrays.ones(x), np.ones(7, dtype)),
        (arrays.filled(x, 3.0), np.full((7, 2), 3.0, dtype)),
        (arrays.at_least(x, 5.0), np.maximum(values, 5.0)),
        (arrays.at_most(x, 5.0), np.minimum(values, 5.0)),
        (arrays.where_true(x > 5.0, x), np.where(values > 5.0, values, 0)),
        (arrays.where_true(x >= 0.0, x), values),
        (arrays.is_true(numbers), NUMBERS == 1),
        (arrays.as_numbers(arrays.is_true(numbers > 2)), (NUMBERS > 2).astype(int)),
        (arrays.searched(to(np.sort(NUMBERS)), to(np.array([2, 10])), "right"), np.array([4, 7])),
        (arrays.located(to(np.sort(NUMBERS)), numbers), np.array([4, 1, 4, 0, 6, 1, 1])),
        (arrays.located(to(np.arange(200)), to(np.arange(99)[::-1].copy())), np.arange(99)[::-1]),
        (arrays.scattered(x.T, to(np.arange(7)[::-1].copy())), values[::-1].T),
        (arrays.row_peaks(x), values.max(1)),
        (arrays.row_peaks(x.T), values.T.max(1)),
        (arrays.running(x.T), np.concatenate([np.zeros((2, 1), dtype), values.T.cumsum(1)], 1)),
        (arrays.extremes(x)[0], values.min()),
        (arrays.extremes(x)[1], values.max()),
        (arrays.placed(x[:2], to(np.array([3, 1])), 4), np.array([[0, 0], [4, 9], [0, 0], [0, 1]], dtype)),
        (arrays.column(x[:, 0], x), values[:, :1]),
        (arrays.column(x[:, 0], x[:, 0]), values[:, 0]),
        (x, values),  # nothing has changed it
    ):
        assert np.array_equal(got, expected)
        assert np.asarray(got).dtype == (dtype if expected.dtype.kind == "f" else expected.dtype)
