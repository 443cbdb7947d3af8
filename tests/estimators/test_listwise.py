"""ListwiseRanker: what it minimises, its score, scikit-learn's contract, degenerate data."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import ndcg_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from fcco.compiled import RULES
from fcco.estimators import _listwise
from fcco.estimators._listwise import OBJECTIVES, ListwiseRanker
from fcco.estimators._validation import METHODS
from fcco.functional import list_mle_loss, list_net_loss, ndcg_loss

pytestmark = pytest.mark.filterwarnings("ignore:.* was given neither qid nor group:UserWarning")


@pytest.fixture(scope="module")
def data():
    """Patients in lists of 17 or 34; the relevance is the quartile of the disease's progression."""
    x, target = load_diabetes(return_X_y=True)
    relevance = np.searchsorted(np.quantile(target, [0.25, 0.5, 0.75]), target).astype(float)
    query = np.arange(442) // 17
    query[query == 25] = 24
    return x / x.std(0), relevance, query


@parametrize_with_checks(
    [
        ListwiseRanker(),
        ListwiseRanker("ndcg", method="soap", random_state=0),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learns_contract(estimator, check):
    check(estimator)


def objective(ranker, x, y, query, w):
    """What the class says that it minimises, by fcco.functional."""
    scores, known = torch.tensor(x) @ w, (torch.tensor(y), torch.tensor(query))
    if ranker.objective == "ndcg":
        value = ndcg_loss(scores, *known, surrogate=ranker.surrogate, margin=ranker.margin)
    else:
        value = (list_net_loss if ranker.objective == "listnet" else list_mle_loss)(scores, *known)
    return value + ranker.alpha / 2 * w.square().sum()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_exact_is_at_a_minimum(name, data):
    """The gradient of the stated objective, with its penalty, is near 0; at w = 0 it is above 0.04."""
    x, y, query = data
    ranker = ListwiseRanker(name, alpha=0.01, tol=1e-12).fit(x, y, qid=query)
    w = torch.tensor(ranker.coef_, requires_grad=True)
    value = objective(ranker, x, y, query, w)
    value.backward()
    assert ranker.loss_curve_[-1] == pytest.approx(value.item(), rel=1e-9)
    assert w.grad.norm() < 1e-5
    zero = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    objective(ranker, x, y, query, zero).backward()
    assert zero.grad.norm() > 0.04


@pytest.mark.parametrize("inner_batch", [8, 40])
@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_stochastic_methods_come_near_the_exact_one(name, method, inner_batch, data):
    """They close 90% of the gap between w = 0 and the exact minimum (MOAP half), from parts of lists or whole ones.

    NDCG is not convex: there they may find a better minimum.
    """
    x, y, query = data
    exact = ListwiseRanker(name, alpha=0.01, tol=1e-9).fit(x, y, qid=query)
    start = objective(exact, x, y, query, torch.zeros(10, dtype=torch.float64)).item()
    gamma = 0.1 if method == "moap" else 0.9
    ranker = ListwiseRanker(name, alpha=0.01, method=method, gamma=gamma, inner_batch=inner_batch, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ranker.fit(x, y, qid=query)
    left = (ranker.loss_curve_[-1] - exact.loss_curve_[-1]) / (start - exact.loss_curve_[-1])
    assert left < (0.5 if method == "moap" else 0.1)
    assert left >= 0 or name == "ndcg"
    w = torch.tensor(ranker.coef_)
    assert ranker.loss_curve_[-1] == pytest.approx(objective(ranker, x, y, query, w).item(), rel=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_objective_of_many_rows_is_tracked_on_whole_queries(name, monkeypatch):
    """Of 30 lists of 5, a limit of 50 rows leaves 10; a list that is longer than the limit is not cut."""
    monkeypatch.setattr(_listwise, "_WATCHED", 50)
    x, lists = np.random.default_rng(0).normal(size=(150, 2)), np.arange(150) // 5
    relevance, w = np.arange(150) % 3.0, np.array([1.0, -2.0])
    ranker = ListwiseRanker(name, method="sox", random_state=0)
    task = ranker._task(x, relevance, lists)
    chosen = np.isin(lists, lists[task.watched])
    assert len(task.watched) == chosen.sum() == 50
    expected = objective(ranker, x[chosen], relevance[chosen], lists[chosen], torch.tensor(w)).item()
    assert task.value(w, ranker.alpha) == pytest.approx(expected, rel=1e-12)
    assert ranker._task(x, relevance, np.zeros(150, int)).watched is None
    assert ranker.set_params(method="exact")._task(x, relevance, lists).watched is None


@pytest.mark.parametrize("k", [None, 1, 5])
def test_score_is_scikit_learns_ndcg(k, data):
    """Mean over queries of ndcg_score with gains 2^y - 1, also where scores are tied."""
    x, y, query = data
    ranker = ListwiseRanker(k=k).fit(x, y, qid=query)
    for digits in (8, 0):
        ranker.coef_ = ranker.coef_.round(digits)
        ranker.coef_[0] = 0 if digits == 0 else ranker.coef_[0]
        features = x.round(digits)
        scores = ranker.predict(features)
        parts = [query == q for q in np.unique(query)]
        expected = np.mean([ndcg_score([2 ** y[part] - 1], [scores[part]], k=k) for part in parts])
        assert ranker.score(features, y, qid=query) == pytest.approx(expected)


def test_ties_end_with_the_query():
    """The last item of a query and the first of the next have equal scores, and share no places for that."""
    ranker = ListwiseRanker().fit([[0.0], [1.0]], [0, 1])
    x, y, query = [[0.0], [0.0], [0.0]], [0, 1, 1], [0, 0, 1]
    first = (1 + 1 / np.log2(3)) / 2
    assert ranker.score(x, y, qid=query) == pytest.approx((first + 1) / 2)


def test_queries_without_relevant_items_are_not_counted():
    ranker = ListwiseRanker().fit([[0.0], [1.0]], [0, 1])
    x, y, query = [[1.0], [0.0], [5.0], [6.0]], [0, 1, 0, 0], [0, 0, 1, 1]
    assert ranker.score(x, y, qid=query) == pytest.approx(1 / np.log2(3))
    with pytest.raises(ValueError, match="NDCG needs a query with a relevant item"):
        ranker.score(x, [0, 0, 0, 0])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_queries_are_names(name, data):
    """Numbers of any size, strings, rows in any order: the same fit."""
    x, y, query = data
    order = np.random.default_rng(0).permutation(len(x))
    plain = ListwiseRanker(name).fit(x, y, qid=query).coef_
    named = ListwiseRanker(name).fit(x[order], y[order], qid=[f"query {q}" for q in query[order]]).coef_
    np.testing.assert_allclose(named, plain, rtol=1e-3, atol=1e-3)
    one_list = ListwiseRanker(name).fit(x, y).coef_
    np.testing.assert_array_equal(one_list, ListwiseRanker(name).fit(x, y, qid=np.full(len(x), 7)).coef_)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_random_state_reproduces_bit_for_bit(name, method, data):
    x, y, query = data
    ranker = ListwiseRanker(name, method=method, inner_batch=6, max_iter=4, tol=0, random_state=3)
    first, second = clone(ranker).fit(x, y, qid=query), clone(ranker).fit(x, y, qid=query)
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert first.loss_curve_ == second.loss_curve_


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_small_data(name, method):
    """Two queries, one of a single item: fewer than a batch of either kind."""
    x, y, query = np.array([[0.0], [1.0], [0.3]]), [0, 2, 1], [4, 4, 9]
    ranker = ListwiseRanker(name, method=method, max_iter=20, tol=0, random_state=0).fit(x, y, qid=query)
    assert ranker.coef_[0] > 0
    assert ranker.score(x, y, qid=query) == 1.0


@pytest.mark.parametrize("surrogate", ["hinge", "logistic", "sigmoid"])
@pytest.mark.parametrize("method", ["exact", "soap"])
def test_surrogates(surrogate, method, data):
    x, y, query = data
    ranker = ListwiseRanker("ndcg", surrogate=surrogate, method=method, max_iter=20, tol=0, random_state=0)
    chance = ListwiseRanker("ndcg").fit(x, y, qid=query)
    chance.coef_ = np.zeros(10)
    assert ranker.fit(x, y, qid=query).score(x, y, qid=query) > chance.score(x, y, qid=query) + 0.1


def test_frames_pickles_and_float32(data):
    x, y, query = data
    frame = pd.DataFrame(x, columns=[f"f{i}" for i in range(10)]).astype(np.float32)
    ranker = ListwiseRanker().fit(frame, pd.Series(y), qid=pd.Series(query))
    assert ranker.coef_.dtype == ranker.predict(frame).dtype == np.float32
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ranker)).predict(frame), ranker.predict(frame))
    assert list(ranker.feature_names_in_) == list(frame.columns)


def test_queries_are_routed(data):
    x, y, query = data
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = ListwiseRanker(k=5).set_fit_request(qid=True).set_score_request(qid=True)
        search = GridSearchCV(ranker, {"alpha": [1e-3, 1e3]}, cv=GroupKFold(3))
        search.fit(x, y, qid=query, groups=query)
    train, test = next(GroupKFold(3).split(x, y, query))
    expected = ListwiseRanker(k=5).fit(x[train], y[train], qid=query[train]).score(x[test], y[test], qid=query[test])
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(expected)


ROUTES = (
    "sklearn.set_config(enable_metadata_routing=True)",
    "estimator.set_fit_request(qid=True).set_score_request(qid=True)",
)


class OwnRanker(ListwiseRanker):
    pass


def test_a_fit_to_queries_is_not_scored_as_one_list(data):
    """A fit without queries is; and what counts is the last fit."""
    x, y, query = data
    ranker = OwnRanker().fit(x, y, qid=query)
    with pytest.raises(ValueError, match="OwnRanker was fitted with qid or group, and must be scored") as raised:
        ranker.score(x, y)
    assert all(line in str(raised.value) for line in ROUTES)
    assert ranker.fit(x, y).score(x, y) == ranker.score(x, y, qid=np.zeros(len(x)))


@pytest.mark.parametrize("search", [True, False])
def test_a_search_that_does_not_route_queries_says_how_to(search, data):
    """scikit-learn turns what is raised in a score into NaN, and a warning that shows it."""
    x, y, query = data
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if search:
            grid = GridSearchCV(ListwiseRanker(), {"alpha": [1e-3, 0.1]}, cv=GroupKFold(3))
            scores = grid.fit(x, y, qid=query, groups=query).cv_results_["mean_test_score"]
        else:
            scores = cross_val_score(ListwiseRanker(), x, y, groups=query, cv=GroupKFold(3), params={"qid": query})
    assert np.isnan(scores).all()
    failures = [str(warning.message) for warning in caught if "Scoring failed" in str(warning.message)]
    assert len(failures) == (6 if search else 3)
    assert all(line in message for line in ROUTES for message in failures)


def test_only_list_mle_takes_negative_relevances(data):
    x, y, query = data
    np.testing.assert_allclose(
        ListwiseRanker("listmle").fit(x, y - 9, qid=query).coef_,
        ListwiseRanker("listmle").fit(x, y, qid=query).coef_,
    )
    for name in ("listnet", "ndcg"):
        with pytest.raises(ValueError, match=f"objective=.{name}. needs relevances >= 0 in y; got -9.0"):
            ListwiseRanker(name).fit(x, y - 9, qid=query)


def test_refuses(data):
    x, y, query = data
    with pytest.raises(ValueError, match=r"objective must be one of 'listnet'.*'lambdarank'"):
        ListwiseRanker("lambdarank").fit(x, y)
    with pytest.raises(ValueError, match=r"surrogate must be one of.*'exp'"):
        ListwiseRanker("ndcg", surrogate="exp").fit(x, y)
    with pytest.raises(ValueError, match="k must be"):
        ListwiseRanker(k=0).fit(x, y)
    with pytest.raises(ValueError, match="inner_batch must be at least 2; got 1"):
        ListwiseRanker(method="sox", inner_batch=1).fit(x, y, qid=query)
    with pytest.raises(ValueError, match="qid must have one query for each of the 442 rows of X; got 3"):
        ListwiseRanker().fit(x, y, qid=[1, 2, 3])
    with pytest.raises(ValueError, match=r"qid must .*; got (inf|nan) at position 2"):
        ListwiseRanker().fit(x, y, qid=np.where(np.arange(442) == 2, np.nan, query))
    with pytest.raises(ValueError, match="must have a relevance above 0; got none"):
        ListwiseRanker().fit(x, 0 * y)
    with pytest.raises(ValueError, match=r"needs relevances <= 1000 in y.*got 5000.0"):
        ListwiseRanker("ndcg").fit(x, np.where(y == 0, 5000.0, y))
    with pytest.raises(ValueError, match=r"NDCG takes relevances from 0 to 1000; got -1\.0"):
        ListwiseRanker().fit(x, y).score(x, y - 1)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_refuses_a_missing_name_of_a_query(missing):
    with pytest.raises(ValueError, match=r"qid must name a query for each row; got .* at position 1"):
        ListwiseRanker().fit([[0.0], [1.0]], [0, 1], qid=["a", missing])


class TestGroup:
    """Sizes of consecutive queries stand for the query of each row."""

    sizes = (2, 3, 1)
    x, y, qid = [[0.1], [0.9], [0.5], [0.2], [0.8], [0.4]], [0, 2, 1, 0, 1, 1], [7, 7, 3, 3, 3, 5]

    def test_is_the_same_as_qid(self):
        ranker = ListwiseRanker().fit(self.x, self.y, group=self.sizes)
        expected = ListwiseRanker().fit(self.x, self.y, qid=self.qid)
        np.testing.assert_array_equal(ranker.coef_, expected.coef_)
        assert ranker.score(self.x, self.y, group=self.sizes) == expected.score(self.x, self.y, qid=self.qid)
        assert ranker.score(self.x, self.y, qid=self.qid) == expected.score(self.x, self.y, group=np.array(self.sizes))
        with pytest.raises(ValueError, match="was fitted with qid or group, and must be scored"):
            ranker.score(self.x, self.y)

    @pytest.mark.parametrize(
        ("group", "message"),
        [
            ([2, 3], "add up to the 6 rows of X; got a sum of 5. Cross-validation cannot split sizes: give it qid"),
            ([6, 0], "whole numbers >= 1; got 0 at position 1"),
            ([2.5, 3.5], r"whole numbers >= 1; got 2\.5 at position 0"),
            ([6, float("nan")], "whole numbers >= 1; got nan at position 1"),
            ([[2, 4]], "1d array"),
        ],
    )
    def test_is_checked(self, group, message):
        ranker = ListwiseRanker()
        with pytest.raises(ValueError, match=message):
            ranker.fit(self.x, self.y, group=group)
        assert not hasattr(ranker, "coef_")
        with pytest.raises(ValueError, match=message):
            ranker.fit(self.x, self.y).score(self.x, self.y, group=group)

    def test_refuses_names_and_both(self):
        with pytest.raises(TypeError, match="group must have sizes of queries, numbers; got <U1"):
            ListwiseRanker().fit(self.x, self.y, group=["a", "b"])
        with pytest.raises(ValueError, match="qid and group must not both be given"):
            ListwiseRanker().fit(self.x, self.y, qid=self.qid, group=self.sizes)


def test_queries_of_single_rows_are_refused():
    """There is nothing to rank, and coefficients of 0 would look like a result."""
    x = np.random.default_rng(0).normal(size=(6, 2))
    with pytest.raises(ValueError, match="queries must have several rows each, which are ranked; got 6 queries of one"):
        ListwiseRanker().fit(x, np.arange(6) % 2, qid=np.arange(6))


def test_a_fit_without_queries_is_warned_of(data):
    x, y, _ = data
    with pytest.warns(UserWarning, match=r"all 442 rows are ranked as one list; pass qid= or group=") as caught:
        ListwiseRanker(max_iter=2, tol=0).fit(x, y)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ListwiseRanker(max_iter=2, tol=0).fit(x, y, qid=np.zeros(442))


def test_queries_of_two_types_are_refused():
    with pytest.raises(TypeError, match="qid must be of one type, such as all strings; got int and str"):
        ListwiseRanker().fit([[0.0], [1.0]], [0, 1], qid=["a", 1])
