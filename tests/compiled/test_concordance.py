"""Harrell's concordance index against scikit-survival, and pair by pair."""

import numpy as np
import pytest

from estimators.survival_data import golden
from fcco.compiled._concordance import count_pairs


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_concordance_counts_pairs_as_scikit_survival(name):
    _, y, case = golden(name)
    pairs = count_pairs(y[:, 0], y[:, 1] == 1, np.array(case["coarse"]["risk"]))
    index, concordant, discordant, tied, _ = case["coarse"]["concordance"]
    assert tied > 0
    assert tuple(pairs) == (concordant, discordant, tied)
    assert pairs.concordance == pytest.approx(index, rel=1e-14)


def test_concordance_over_all_pairs():
    rng = np.random.default_rng(3)
    time, event, risk = rng.integers(0, 9, 200), rng.random(200) < 0.6, rng.integers(0, 5, 200) / 4.0
    comparable = event[:, None] & ((time > time[:, None]) | ((time == time[:, None]) & ~event))
    higher, same = risk[:, None] > risk, risk[:, None] == risk
    expected = [(comparable & kind).sum() for kind in (higher, ~higher & ~same, same)]
    assert list(count_pairs(time.astype(float), event, risk)) == expected


def test_risks_are_tied_within_the_tolerance_of_scikit_survival():
    """1e-8: of the three pairs one differs by less, in either direction."""
    for sign in (1.0, -1.0):
        risk = sign * np.array([1.0, 1.0 + 0.9e-8, 1.0 + 3e-8])
        pairs = count_pairs(np.array([1.0, 2.0, 3.0]), np.ones(3, bool), risk)
        assert pairs == ((0, 2, 1) if sign > 0 else (2, 0, 1))
