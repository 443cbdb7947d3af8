"""Logarithms of sums of exponentials within groups: without comparing all pairs as with it."""

import numpy as np
import pytest
import torch

from fcco.core import kernels
from fcco.core.kernels import Pairs, Same, log_sums_from, score_log_sums
from fcco.core.sorting import WIDEST


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):  # as the shell does
        yield


def sums(array, many, monkeypatch, *, grouped=True, keyed=False, offset=0.0, tau=1.0, same=True, weight=True):
    """Return the value and the gradients of random sums, in which a group has anchors alone, and another none."""
    monkeypatch.setattr(kernels, "GROUPED", many)
    rng = np.random.RandomState(0)
    group, groups = rng.randint(0, 5, 40), rng.randint(1, 6, 30)
    scores = 3 * rng.randn(30) + offset * groups
    keys, mask = np.round(3 * rng.randn(30)), rng.rand(30) < 0.6
    groups[3], scores[3], keys[3] = groups[2], scores[2], keys[2] - 1  # a copy, below its example
    group[:30] = groups
    anchors = np.where(np.arange(40) < 30, np.resize(scores, 40), rng.randn(40) + offset * group)
    columns = [
        array(c) for c in (anchors, scores, group, groups, mask, np.resize(keys, 40), keys, rng.randint(0, 3, 30) * 0.5)
    ]
    a, c, g, h, mask, key, keys, w = columns
    pairs = Pairs(
        (mask, ~mask),
        w if weight else None,
        Same(array(np.array([0, 1, 2, 2])), array(np.array([0, 1, 2, 3]))) if same else None,
        (g, h) if grouped else None,
    )
    value, back = log_sums_from(a, c, key, keys, pairs) if keyed else score_log_sums(a, c, pairs, tau)
    assert np.isfinite(np.asarray(value)).any()
    slope, scale = array(rng.randn(2, 40)), array(rng.rand(2, 30))
    (to_anchors,), (to_candidates,) = back(slope)
    (none,), (scaled,) = back(slope, "candidates", scale)
    assert none is None
    return [np.asarray(x) for x in (value, to_anchors, to_candidates, scaled)]


@pytest.mark.parametrize("array", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"grouped": False},
        {"tau": 0.3},
        {"keyed": True},
        {"keyed": True, "same": False},
        {"keyed": True, "weight": False},
        {"same": False, "weight": False, "grouped": False},
        {"offset": 1e5},
        {"offset": 1e5, "keyed": True},
    ],
    ids=str,
)
def test_the_same_as_of_all_pairs(options, array, monkeypatch):
    made = sums(array, 0, monkeypatch, **options)
    monkeypatch.setattr(kernels, "grouped_log_sums", None)  # not called
    for one, other in zip(made, sums(array, 10**9, monkeypatch, **options), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_scores_too_far_apart_are_compared_one_by_one(monkeypatch):
    scores, group = np.array([0.0, -2.0 * WIDEST, -2.1 * WIDEST]), np.array([0, 0, 0])
    monkeypatch.setattr(kernels, "GROUPED", 0)
    pairs = Pairs((np.array([True, False, False]), np.array([False, True, True])), group=(group, group))
    value, _ = score_log_sums(scores, scores, pairs)
    np.testing.assert_allclose(value[1], -2.0 * WIDEST - scores, rtol=1e-12)
