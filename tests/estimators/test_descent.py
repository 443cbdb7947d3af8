"""Stochastic descent of linear models: the rate it looks for, what it takes back, and what it says."""

import runpy
import sys
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

import fcco.estimators
from fcco.estimators._base import telling_of_compilation
from fcco.estimators._kernels import RULES
from fcco.estimators._listwise import _sample_queries
from fcco.estimators._ranking import AveragePrecisionClassifier, PNormPushClassifier


@pytest.fixture(scope="module")
def data():
    x, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(x), y


@pytest.mark.parametrize("method", RULES)
def test_a_flat_place_is_no_end(method, data):
    """Large coefficients flatten average precision, where 16 is too short a step: it ends above .9998, not at .9987."""
    x, y = data
    ranker = AveragePrecisionClassifier(method=method, alpha=0.0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ranker.fit(x, y)
    assert ranker.loss_curve_[-1] < -0.9998
    assert all(np.diff(ranker.loss_curve_) <= 0)


def test_an_outlier_does_not_hold_it_up(data):
    """A row 10⁶ deviations out makes the others look alike, and steps scaled by the deviation far too short."""
    x, y = data[0][:, :8], data[1]
    x, y = np.vstack([x, np.full(8, 1e6)]), np.append(y, 0)
    exact = AveragePrecisionClassifier().fit(x, y).loss_curve_[-1]
    found = AveragePrecisionClassifier(method="soap", random_state=0).fit(x, y).loss_curve_[-1]
    assert exact < -0.99
    assert found == pytest.approx(exact, abs=1e-3)


def test_a_rate_that_was_given_is_kept(data):
    """At 1e-9 nothing moves, and no other rate is looked for."""
    x, y = data
    ranker = AveragePrecisionClassifier(method="soap", learning_rate=1e-9, random_state=0)
    assert np.abs(ranker.fit(x, y).coef_).max() < 1e-6


@pytest.mark.parametrize("offset", [1e8, -1e8])
@pytest.mark.parametrize("kind", [PNormPushClassifier, AveragePrecisionClassifier])
def test_an_offset_changes_nothing(kind, offset, data):
    x, y = data[0][:, :8], data[1]
    ranker = kind(method="soap", max_iter=5, tol=0, random_state=0)
    near = ranker.fit(x, y).coef_
    np.testing.assert_allclose(ranker.fit(x + offset, y).coef_, near, atol=1e-5)


def test_a_constant_feature_keeps_out(data):
    x, y = data[0][:, :8], data[1]
    ranker = PNormPushClassifier(method="soap", alpha=0.0, max_iter=5, tol=0, random_state=0)
    assert abs(ranker.fit(np.column_stack([x, np.full(len(x), 7.7)]), y).coef_[0, -1]) < 1e-10


@pytest.mark.parametrize(("p", "surrogate"), [(2000.0, "sigmoid"), (2000.0, "logistic")])
def test_a_power_out_of_range_is_refused(p, surrogate, data):
    ranker = PNormPushClassifier(p, surrogate=surrogate, method="sox")
    with pytest.raises(ValueError, match=r"at w = 0 is 0\.\d+\^2000, out of range: take method=\"exact\""):
        ranker.fit(*data)
    assert not hasattr(ranker, "coef_")


def test_a_small_objective_is_learnt_too(data):
    """2^-40 at w = 0, which falls to less than half: in rates that do not know its size, w would move by 10^-11."""
    x, y = data[0][:, :8], data[1]
    ranker = PNormPushClassifier(40.0, surrogate="sigmoid", method="sox", alpha=0.0, max_iter=30, tol=0, random_state=0)
    assert ranker.fit(x, y).loss_curve_[-1] < 0.5 * 0.5**40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iter": 2}, "reached max_iter=2"),
        ({"max_iter": 2, "method": "exact"}, "reached max_iter=2"),
        ({"learning_rate": 1e12, "max_iter": 3}, "no pass improved on the start"),
    ],
)
def test_warnings_point_at_the_line_of_the_fit(options, message, data):
    ranker = PNormPushClassifier(**{"method": "soap", "random_state": 0, **options})
    with pytest.warns(ConvergenceWarning, match=message) as caught:
        ranker.fit(*data)
    assert [warning.filename for warning in caught] == [__file__]


def test_compilation_is_told_of(capsys):
    """Nested functions are part of the one that calls them; without ``verbose`` nothing is printed."""
    from numba import njit

    @njit
    def inner(x):
        return x + 1

    @njit
    def outer(x):
        return inner(x) * 2

    with telling_of_compilation("Ranker", 1):
        outer(1)
        outer(1)
    assert capsys.readouterr().out.count("[Ranker] compiling ... ") == 1
    with telling_of_compilation("Ranker", 0):
        outer(1.0)
    assert capsys.readouterr().out == ""


class Broken:
    """Finds Numba, and fails to import it."""

    def __init__(self, error):
        self.error = error

    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            raise self.error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ImportError("libsvml is broken"), r"needs Numba and scikit-learn \(libsvml is broken\): pip install"),
        (ModuleNotFoundError("No module named 'numba'", name="numba"), "needs numba: pip install"),
    ],
)
def test_an_import_that_fails_says_why(error, message, monkeypatch):
    """An installed package that breaks has no name to give, but a message; one that is missing has a name."""
    monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.setattr(sys, "meta_path", [Broken(error), *sys.meta_path])
    with pytest.raises(ImportError, match=message) as raised:
        runpy.run_path(fcco.estimators.__file__)
    assert raised.value.name == error.name
    assert raised.value.__cause__ is error


def test_queries_are_tracked_whole():
    """Until there are enough rows; those without a relevant item not at all; of a long one, a part with one."""
    rng = np.random.default_rng(0)
    lists = np.sort(rng.integers(0, 50, 1000))
    relevance = np.where(lists % 2 == 0, rng.integers(0, 2, 1000), 0)
    rows = _sample_queries(relevance, lists, 100, np.random.RandomState(0))
    sizes, found = np.bincount(lists), np.bincount(lists[rows], minlength=50)
    assert set(found) - {0} <= set(sizes)
    np.testing.assert_array_equal(found[found > 0], sizes[found > 0])
    assert 100 <= len(rows) < 100 + sizes.max()
    assert not found[1::2].any()
    one = _sample_queries((np.arange(1000) == 999).astype(int), np.zeros(1000, int), 100, np.random.RandomState(0))
    assert len(one) == len(set(one)) == 100
    assert 999 in one
