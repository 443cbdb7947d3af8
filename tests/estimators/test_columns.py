"""Moments of columns, and features that are centred without a copy."""

import numpy as np
import pytest
from scipy import sparse

from fcco.estimators._columns import Centred, column_moments


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csc_array])
def test_centred_is_the_map_of_the_centred_matrix(kind):
    rng = np.random.default_rng(0)
    x, w, g = (
        np.where(rng.random((30, 4)) < 0.5, 0.0, rng.normal(size=(30, 4))),
        rng.normal(size=4),
        rng.normal(size=30),
    )
    x[:, 2] = 7.7
    mean, variance = column_moments(kind(x))
    np.testing.assert_allclose(mean, x.mean(0))
    np.testing.assert_allclose(variance, [*x[:, :2].var(0), 0.0, x[:, 3].var()])
    centred = x - x.mean(0)
    centred[:, 2] = 0.0
    features = Centred(kind(x), mean, variance)
    np.testing.assert_allclose(features.scores(w), centred @ w, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(features.gradient(g), centred.T @ g, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csc_array])
def test_a_constant_column_is_one_however_many_rows(kind):
    """The mean of 300,000 times 0.1, added up one by one, is off by 1e-12 and more of it."""
    x = np.full((300_000, 2), 0.1)
    x[::2, 1] = 0.0
    variance = column_moments(kind(x))[1]
    assert variance[0] == 0.0
    assert variance[1] == pytest.approx(0.05**2)
