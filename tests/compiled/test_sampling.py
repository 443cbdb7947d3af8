"""Batches: how often each row and each item is drawn."""

import numpy as np
import pytest

from compiled.parts import fill, from_python
from fcco.compiled import WHOLE, ClassSampler, new_state
from fcco.compiled._pairs import new_batch
from fcco.compiled._sampling import draw
from fcco.estimators._listwise import ListwiseRanker


@pytest.mark.parametrize(("count", "outer"), [(12, 4), (12, 5), (3, 32)])
def test_passes_cover_the_rows(count, outer):
    """Each pass takes no row twice; where the batch divides the rows it takes them all."""
    ones = np.ones(count)
    sampler = ClassSampler(WHOLE, outer, 0, ones, 0 * ones, np.ones(2))
    state = new_state(np.zeros(1), count, 1, np.arange(count), np.zeros(0), seed=1)
    batch, taken = new_batch(sampler.size, 1), min(outer, count)
    for _ in range(3):
        rows = [fill(sampler, state, batch) for _ in range(count // taken)]
        assert all(len(r) == taken for r in rows)
        assert len(np.unique(np.concatenate(rows))) == taken * (count // taken)


def test_draws_are_uniform():
    """10⁵ draws below 7: each count within 5 deviations of its mean."""
    state, draw_one = np.array([9], np.uint64), from_python(draw)
    counts = np.bincount([draw_one(state, 7) for _ in range(100_000)], minlength=7)
    assert len(counts) == 7
    assert np.abs(counts - 1e5 / 7).max() < 5 * np.sqrt(1e5 * 6 / 49)


def test_items_of_a_long_list_are_drawn_equally_often():
    """5 of 20 items, 4,000 times: each 1,000 times, within 5 deviations."""
    ranker = ListwiseRanker("listnet", method="bsgd", inner_batch=5)
    relevance = (np.arange(20) % 4).astype(float)
    task = ranker._task(np.zeros((20, 1)), relevance, np.zeros(20, np.int64))
    state, sampler = new_state(np.zeros(1), 20, 1, task.plan.first, task.plan.second, seed=2), task.plan.sampler
    batch, counts = new_batch(sampler.size, 1), np.zeros(20)
    for _ in range(4000):
        counts[fill(sampler, state, batch)] += 1
    assert counts.sum() == 20_000
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000 * 0.75)
