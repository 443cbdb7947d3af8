"""The batches of a fit of neighbourhood components."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fcco.estimators._nca_fit import draw_batches


@pytest.mark.parametrize("per_pass", [1, 3, 10])
@pytest.mark.parametrize("n_classes", [2, 40])
def test_every_pass_visits_every_row_once_in_even_batches(n_classes: int, per_pass: int) -> None:
    label = np.random.RandomState(0).permutation(np.arange(200) % n_classes)
    order, bounds = draw_batches(np.random.RandomState(0), label, per_pass, passes=2)
    for begin in (0, 200):
        assert sorted(order[begin : begin + 200]) == list(range(200))
    sizes = np.diff(bounds)
    assert len(sizes) == 2 * per_pass
    assert sizes.max() - sizes.min() <= 1


def test_with_many_classes_rows_have_mates_in_their_batch() -> None:
    label = np.random.RandomState(0).permutation(np.arange(400) % 80)  # 5 rows of each; at random, 72% would have none
    order, bounds = draw_batches(np.random.RandomState(0), label, per_pass=16, passes=1)
    alone = 0
    for begin, end in pairwise(bounds):
        own = label[order[begin:end]]
        alone += np.sum(np.bincount(own)[own] == 1)
    assert alone <= 16  # where a batch ends within a group
