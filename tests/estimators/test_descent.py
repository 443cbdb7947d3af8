"""Stochastic descent of linear models: the rate it looks for, what it takes back, and what it says."""

import math
import runpy
import sys
import warnings
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numba.core import event
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

import fcco.estimators
from fcco.compiled import RULES, compiling
from fcco.estimators._descent import Descent
from fcco.estimators._listwise import ListwiseRanker, _sample_queries
from fcco.estimators._precision import AveragePrecisionClassifier
from fcco.estimators._progress import Progress
from fcco.estimators._push import PNormPushClassifier
from fcco.estimators._sharpen import Ranking


@pytest.fixture(scope="module")
def data():
    x, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(x), 1 - y


def precision_task(ranker, x, positive):
    """The objective of average precision of scores that begin at 0."""
    ranking = Ranking(SimpleNamespace(data=x, scores=lambda z: x @ z), positive, np.ones(len(x)))
    return replace(ranker._task(ranking, np.zeros(x.shape[1])), base=None)


def descend_from_zero(x, y, **options):
    """The objective after each pass."""
    ranker = AveragePrecisionClassifier("squared_hinge", temperature=1.0, random_state=0, **options)
    progress = Progress(max_iter=1000, tol=1e-5, n_iter_no_change=5, verbose=0, name="Ranker")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ranker._minimise(precision_task(ranker, x, y == 1), np.zeros(x.shape[1]), progress)
    return progress.curve


@pytest.mark.parametrize("method", RULES)
def test_a_flat_place_is_no_end(method, data):
    """Large coefficients flatten average precision, where 16 is too short a step: it ends above .9998, not at .9987."""
    curve = descend_from_zero(*data, method=method, alpha=0.0)
    assert curve[-1] < -0.9998
    assert all(np.diff(curve) <= 0)


def test_an_outlier_does_not_hold_it_up(data):
    """A row 10⁶ deviations out makes the others look alike, and steps scaled by the deviation far too short."""
    x, y = data[0][:, :8], 1 - data[1]
    x, y = np.vstack([x, np.full(8, 1e6)]), np.append(y, 0)
    exact = descend_from_zero(x, y, alpha=1e-3)[-1]
    found = descend_from_zero(x, y, alpha=1e-3, method="soap")[-1]
    assert exact < -0.99
    assert found == pytest.approx(exact, abs=1e-3)


def test_a_rate_that_was_given_is_kept(data):
    """At 1e-9 nothing moves, and no other rate is looked for."""
    x, y = data
    ranker = PNormPushClassifier(method="soap", learning_rate=1e-9, random_state=0)
    with pytest.warns(ConvergenceWarning, match="have hardly moved from the start.*; raise learning_rate=1e-09"):
        assert np.abs(ranker.fit(x, y).coef_).max() < 1e-6


def test_a_fit_that_begins_at_a_minimum_is_not_warned_of(data):
    """Nothing moves at 1e-9, but no other rate would gain anything either."""
    x, y = data[0][:, :3], data[1]
    ranker = PNormPushClassifier(warm_start=True, learning_rate=1e-9, random_state=0).fit(x, y)
    before = ranker.coef_
    np.testing.assert_allclose(ranker.set_params(method="sox").fit(x, y).coef_, before, rtol=1e-5)


class Trials:
    """Steps of which only the objective after a trial is known, by rate."""

    size = 1.0

    def __init__(self, values):
        self.values, self.tried = values, []

    def value(self, w):
        return 1.0

    def start(self, w, seed):
        return None

    def take(self, run, count, rate):
        self.tried.append(rate)
        return self.values.get(rate, math.inf)


def test_rates_are_tried_until_they_get_worse_but_not_before_one_gains():
    """The start is at 1: from 16 to 4 it gets worse, but neither is an improvement; after 1/4 there is no need."""
    steps = Trials({16.0: 2.0, 4.0: 3.0, 1.0: 0.9, 1 / 4: 0.5, 1 / 16: 0.6, 1 / 64: 0.1})
    progress = Progress(max_iter=3, tol=0.0, n_iter_no_change=2, verbose=0, name="Ranker")
    assert Descent(steps, np.zeros(1), None, progress, np.random.RandomState(0)).rate == 1 / 4
    assert steps.tried == [16.0, 4.0, 1.0, 1 / 4, 1 / 16]


@pytest.mark.parametrize(
    ("max_iter", "message"),
    [(1000, "still falls as the coefficients grow"), (3, "reached max_iter=3 .* there may be no finite optimum")],
)
def test_separable_classes_without_a_penalty_are_warned_of(max_iter, message):
    x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 1, 1]
    ranker = PNormPushClassifier(method="soap", alpha=0.0, learning_rate=1.0, max_iter=max_iter, random_state=0)
    with pytest.warns(ConvergenceWarning, match=message):
        ranker.fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranker.set_params(alpha=0.1, max_iter=1000).fit(x, y)


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


@pytest.mark.parametrize("ranker", [PNormPushClassifier(), AveragePrecisionClassifier()])
def test_the_exact_method_compiles_nothing(ranker, data):
    with event.install_listener("numba:compile", event.RecordingListener()) as listener:
        ranker.fit(*data)
    assert not listener.buffer


def test_compilation_is_told_of(capsys):
    """Nested functions are part of the one that calls them; without ``verbose`` nothing is printed."""
    from numba import njit

    @njit
    def inner(x):
        return x + 1

    @njit
    def outer(x):
        return inner(x) * 2

    with compiling("Ranker", 1):
        outer(1)
        outer(1)
    assert capsys.readouterr().out.count("[Ranker] compiling ... ") == 1
    with compiling("Ranker", 0):
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


@pytest.mark.parametrize(
    ("ranker", "targets", "rows"),
    [
        (PNormPushClassifier(), (np.arange(9000) % 3 == 0,), 1000),
        (AveragePrecisionClassifier(), (np.arange(9000) % 3 == 0,), 1000),
        (ListwiseRanker("ndcg"), (np.arange(9000) % 2, np.arange(9000) // 10), 4000),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else "",
)
def test_the_objective_is_tracked_on_all_rows_unless_that_costs_too_much(ranker, targets, rows):
    def watched(**options):
        model = clone(ranker).set_params(random_state=0, **options)
        make = partial(precision_task, model) if isinstance(model, AveragePrecisionClassifier) else model._task
        return make(np.zeros((9000, 1)), *targets).watched

    listwise = isinstance(ranker, ListwiseRanker)  # whose steps are so cheap that any tracking of all rows costs more
    assert (watched(surrogate="squared_hinge", method="sox") is None) != listwise
    assert watched(surrogate="sigmoid", method="exact") is None
    some = watched(surrogate="sigmoid", method="sox")
    assert len(some) == len(set(some)) == rows


def test_pairs_that_track_the_objective_are_a_fixed_share_of_those_of_a_pass():
    ranker, positive = (
        PNormPushClassifier(surrogate="logistic", method="sox", random_state=0),
        np.arange(400_000) < 9000,
    )
    task = ranker._task(np.zeros((400_000, 1)), positive)
    each = len(task.watched) / 2
    assert each**2 == pytest.approx(0.3 * task.plan.count * 32 * 32, rel=0.01)
    assert positive[task.watched].sum() == each
    again = ranker._task(np.zeros((400_000, 1)), positive)
    np.testing.assert_array_equal(task.watched, again.watched)


@pytest.mark.parametrize(
    ("queries", "steps"),
    [(np.zeros(1000, int), 32), (np.arange(500) // 5, 13), (np.append(np.zeros(700, int), 1), 11)],
    ids=["one long list", "short lists", "both"],
)
def test_a_pass_over_lists_takes_as_many_rows_as_there_are(queries, steps):
    """In steps of 8 lists, or as many as there are, and 32 rows of each at most."""
    n = len(queries)
    assert ListwiseRanker(method="sox")._task(np.zeros((n, 1)), np.arange(n) % 2, queries).plan.count == steps


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
