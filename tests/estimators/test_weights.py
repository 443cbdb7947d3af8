"""sample_weight: what it means in fit and score, where it is refused, and which weights are."""

import inspect
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.utils.validation import has_fit_parameter

from estimators.survival_data import TIES, WEIGHTED, OnlyEvents, columns, golden, make_data
from fcco.compiled import RULES, SURROGATES
from fcco.compiled._concordance import count_pairs
from fcco.compiled._cox import risk_sets, sort_order
from fcco.estimators import (
    AveragePrecisionClassifier,
    CoxRegressor,
    ListwiseRanker,
    NeighborhoodComponentsAnalysis,
    PNormPushClassifier,
)
from fcco.estimators._bipartite import cut_between
from fcco.estimators._columns import SortedRows
from fcco.estimators._cox_objective import CoxObjective
from fcco.estimators._validation import check_weights
from fcco.functional import average_precision_loss

KINDS = [np.asarray, sparse.csr_matrix, sparse.csc_array]


@pytest.fixture(scope="module")
def data():
    """Two classes that overlap, and weights from 0 to 4."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    y = np.where(x @ [1.0, -0.5, 0.0] + rng.normal(size=120) > 0.5, "yes", "no")
    return x, y, rng.integers(0, 5, 120)


def survival_data(tied=True):
    x, time, event = make_data(150, tied=tied)
    return x, columns(time, event), np.random.default_rng(1).integers(0, 5, 150)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_push_counts_a_row_as_often_as_it_weighs(surrogate, kind, data):
    x, y, weight = data
    ranker = PNormPushClassifier(3.0, surrogate=surrogate, alpha=0.1)
    repeated = clone(ranker).fit(kind(x.repeat(weight, axis=0)), y.repeat(weight))
    weighted = clone(ranker).fit(kind(x), y, sample_weight=weight)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6)
    np.testing.assert_allclose(weighted.intercept_, repeated.intercept_, rtol=1e-6)
    np.testing.assert_allclose(weighted.loss_curve_, repeated.loss_curve_, rtol=1e-9)
    plain = clone(ranker).fit(kind(x), y)
    assert np.abs(plain.coef_ - weighted.coef_).max() > 0.01


@pytest.mark.parametrize("p", [1.0, 3.0])
def test_the_push_score_counts_a_row_as_often_as_it_weighs(p, data):
    x, y, weight = data
    ranker = PNormPushClassifier(p).fit(x, y)
    ranker.coef_ = ranker.coef_.round(1)
    tied = x.round()  # so that scores are
    score = ranker.score(tied, y, sample_weight=weight)
    assert score == pytest.approx(ranker.score(tied.repeat(weight, axis=0), y.repeat(weight)), rel=1e-12)
    assert abs(score - ranker.score(tied, y)) > 1e-3
    if p == 1.0:
        assert score == pytest.approx(roc_auc_score(y, ranker.decision_function(tied), sample_weight=weight))


def test_the_precision_score_is_scikit_learns(data):
    x, y, weight = data
    for options in ({}, {"method": "sox", "max_iter": 2, "tol": 0}):
        ranker = AveragePrecisionClassifier(cv=None, **options)
        scores = ranker.fit(x, y).decision_function(x)
        expected = average_precision_score(y, scores, sample_weight=weight, pos_label="yes")
        assert ranker.score(x, y, sample_weight=weight) == pytest.approx(expected, rel=1e-12)
        assert abs(expected - ranker.score(x, y)) > 1e-3


def test_a_weight_of_average_precision_counts_the_own_term_too():
    """A row of weight 2 counts itself by 2; two copies count themselves by 1, and each other by ℓ(0) = 1/2."""
    scores, positive = torch.zeros(3), torch.tensor([1, 1, 0])
    weighted = -average_precision_loss(scores, positive, weight=torch.tensor([2.0, 1.0, 1.0])).item()
    assert weighted == pytest.approx((2 * 2.5 / 3.0 + 2.0 / 2.5) / 3)
    twice = -average_precision_loss(torch.zeros(4), torch.tensor([1, 1, 1, 0])).item()
    assert twice == pytest.approx(2.0 / 2.5)


@pytest.mark.parametrize("unit", [0.1, 1e-12, 1e12])
def test_only_the_ratio_of_weights_matters_to_coefficients(unit, data):
    """A tenth of each row, added up, is off by rounding: the threshold must not mind."""
    x, y, weight = data
    plain, scaled = (PNormPushClassifier().fit(x, y, sample_weight=scale * weight) for scale in (1.0, unit))
    np.testing.assert_allclose(scaled.coef_, plain.coef_, rtol=1e-6)
    np.testing.assert_allclose(scaled.intercept_, plain.intercept_, rtol=1e-6)
    x, y, weight = survival_data()
    plain, scaled = (CoxRegressor().fit(x, y, sample_weight=scale * weight) for scale in (1.0, unit))
    np.testing.assert_allclose(scaled.coef_, plain.coef_, rtol=1e-9)
    np.testing.assert_allclose(scaled.standard_error_ * np.sqrt(unit), plain.standard_error_, rtol=1e-9)


def test_equal_weights_are_none(data):
    x, y, _ = data
    plain, weighted = PNormPushClassifier().fit(x, y), PNormPushClassifier().fit(x, y, sample_weight=np.full(120, 0.1))
    np.testing.assert_allclose(weighted.coef_, plain.coef_, rtol=1e-6)
    assert (weighted.predict(x) == "yes").sum() == (plain.predict(x) == "yes").sum() == (y == "yes").sum()
    x, y, _ = survival_data()
    for ties in TIES:
        plain, weighted = (CoxRegressor(ties=ties).fit(x, y, sample_weight=w) for w in (None, np.full(150, 1.0)))
        np.testing.assert_allclose(weighted.coef_, plain.coef_, rtol=1e-12)


def test_the_threshold_goes_by_weight():
    """Half-way from the row with which the positives' weight is reached to that with which it is passed, if any."""
    scores, positive = np.array([5.0, 4.0, 3.0, 1.0]), np.array([True, False, True, False])
    assert cut_between(scores, positive, np.array([1.0, 1.0, 2.0, 1.0])) == 3.0
    assert cut_between(scores, positive, np.array([1.0, 2.0, 2.0, 1.0])) == 3.5
    assert cut_between(scores, positive, np.array([0.1, 0.2, 0.2, 0.1])) == 3.5
    assert cut_between(scores, positive, np.array([1.0, 1e-30, 2.0, 1e-30])) == 2.0


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("tied", [True, False])
def test_breslow_counts_a_row_as_often_as_it_weighs(tied, alpha, kind):
    x, y, weight = survival_data(tied)
    weighted = CoxRegressor(alpha=alpha).fit(kind(x), y, sample_weight=weight)
    repeated = CoxRegressor(alpha=alpha).fit(kind(x.repeat(weight, axis=0)), y.repeat(weight, axis=0))
    for name in ("coef_", "covariance_", "mean_", "log_likelihood_", "loss_curve_", "unique_times_"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(weighted.baseline_cumulative_hazard_, repeated.baseline_cumulative_hazard_, rtol=1e-8)
    plain = CoxRegressor(alpha=alpha).fit(kind(x), y)
    assert np.abs(plain.coef_ - weighted.coef_).max() > 0.01
    score = weighted.score(kind(x), y, sample_weight=weight)
    assert score == pytest.approx(repeated.score(kind(x.repeat(weight, axis=0)), y.repeat(weight, axis=0)), rel=1e-12)
    assert abs(score - weighted.score(kind(x), y)) > 1e-3


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_efron_weighs_as_lifelines(name):
    x, y, _ = golden(name)
    expected, weight = WEIGHTED[name], WEIGHTED["weight"]
    model = CoxRegressor(ties="efron").fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(model.coef_, expected["coef"], rtol=1e-6)
    np.testing.assert_allclose(model.standard_error_, expected["se"], rtol=1e-7)
    assert model.log_likelihood_ == pytest.approx(expected["log_likelihood"], rel=1e-10)
    at_their_mean = model.baseline_cumulative_hazard_ * np.exp(model.coef_ @ (expected["mean"] - model.mean_))
    np.testing.assert_allclose(at_their_mean, expected["baseline_cumulative_hazard"], rtol=1e-6)
    with_none = CoxRegressor(ties="efron").fit(
        np.vstack([x, x + 1.0]), np.vstack([y, y]), sample_weight=[*weight, *np.zeros(60)]
    )
    np.testing.assert_allclose(with_none.coef_, model.coef_, rtol=1e-9)


def weighted_likelihood(z, time, event, weight, ties, w):
    """The negative log-likelihood by its definition, group by group."""
    h, value = z @ w, 0.0
    for t in np.unique(time[event]):
        dying = event & (time == t)
        for place in range(dying.sum()):
            left = np.where(dying, 1 - place / dying.sum() if ties == "efron" else 1.0, time >= t)
            value += weight[dying].mean() * np.log(np.sum(left * weight * np.exp(h)))
    return value - np.sum(weight[event] * h[event])


@pytest.mark.parametrize("ties", TIES)
def test_derivatives_of_the_weighted_likelihood(ties):
    x, time, event = make_data(60)
    weight = np.random.default_rng(2).uniform(0.2, 3.0, 60)
    order = sort_order(time, event)
    sets = risk_sets(time[order], event[order], ties == "efron", weight[order])
    objective = CoxObjective(SortedRows(x, order, weight), sets, np.zeros(3))
    mean = np.average(x, axis=0, weights=weight)
    z = (x - mean) / np.sqrt(np.average(np.square(x - mean), axis=0, weights=weight))
    w, total, step = np.array([0.5, -0.3, 0.2]), weight[event].sum(), 1e-5 * np.eye(3)
    assert objective.value(w) == pytest.approx(weighted_likelihood(z, time, event, weight, ties, w) / total, rel=1e-12)
    gradient, hessian = objective.derivatives()
    ends = [[weighted_likelihood(z, time, event, weight, ties, w + s * e) for s in (1, -1)] for e in step]
    np.testing.assert_allclose(gradient, [(up - down) / 2e-5 / total for up, down in ends], rtol=1e-6)
    slopes = []
    for e in step:
        for s in (1, -1):
            objective.value(w + s * e)
            slopes.append(objective.derivatives()[0])
    np.testing.assert_allclose(hessian, np.subtract(slopes[::2], slopes[1::2]) / 2e-5, rtol=1e-6, atol=1e-9)


def test_concordance_weighs_pairs():
    rng = np.random.default_rng(3)
    time, event, risk = rng.integers(0, 9, 200), rng.random(200) < 0.6, rng.integers(0, 5, 200) / 4.0
    weight = rng.uniform(0.0, 3.0, 200) * (rng.random(200) < 0.8)
    comparable = event[:, None] & ((time > time[:, None]) | ((time == time[:, None]) & ~event))
    pairs, higher, same = comparable * np.outer(weight, weight), risk[:, None] > risk, risk[:, None] == risk
    expected = [(pairs * kind).sum() for kind in (higher, ~higher & ~same, same)]
    found = count_pairs(time.astype(float), event, risk, weight)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.concordance == pytest.approx((expected[0] + 0.5 * expected[2]) / sum(expected), rel=1e-12)


def test_a_perfect_order_has_no_discordant_pairs_whatever_it_weighs():
    time, weight = np.arange(1000.0), np.random.default_rng(0).random(1000)
    pairs = count_pairs(time, np.ones(1000, bool), -time, weight)
    assert pairs.concordance <= 1.0
    assert pairs.concordance == pytest.approx(1.0, abs=1e-12)


def test_rows_of_weight_zero_are_not_there(data):
    """Not even as a third class, as the only event, or as a time."""
    x, y, _ = data
    some = np.arange(120) < 100
    ranker = PNormPushClassifier().fit(x, np.where(some, y, "other"), sample_weight=some)
    np.testing.assert_allclose(ranker.coef_, PNormPushClassifier().fit(x[some], y[some]).coef_, rtol=1e-6)
    assert list(ranker.classes_) == ["no", "yes"]
    for kind in (PNormPushClassifier, AveragePrecisionClassifier):
        with pytest.raises(ValueError, match="y has one class: no"):
            kind().fit(x, y, sample_weight=y == "no")
    with pytest.raises(ValueError, match="one class all of weight 0"):
        ranker.score(x, y, sample_weight=y == "no")
    x, y, _ = survival_data()
    with pytest.raises(ValueError, match="no event: all 1 times are censored"):
        CoxRegressor().fit(x[:2], [[1.0, 1], [2.0, 0]], sample_weight=[0, 1])


class Push(PNormPushClassifier):
    pass


class Precision(AveragePrecisionClassifier):
    pass


class Cox(OnlyEvents):
    pass


class Lists(ListwiseRanker):
    pass


class Components(NeighborhoodComponentsAnalysis):
    pass


REFUSING = [
    *(
        (kind(method=method), rf"{kind.__name__}\.fit does not .* with method='{method}'; use method=\"exact\"")
        for kind in (Push, Precision, Cox)
        for method in RULES
    ),
    (Lists(), r"Lists\.fit does not support sample_weight$"),
    (Components(), r"Components\.fit does not support sample_weight$"),
]


@pytest.mark.parametrize(("model", "message"), REFUSING)
def test_weights_are_refused_where_they_cannot_be_used(model, message, data):
    """And the signature, by which scikit-learn goes, shows none; a fit without them, or with None, is as ever."""
    x, y = data[0], (data[1] == "yes").astype(int)
    with pytest.raises(TypeError, match=message):
        model.fit(x, y, sample_weight=np.ones(120))
    assert not vars(model).keys() - model.get_params().keys()
    assert not has_fit_parameter(model, "sample_weight")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the end of passes, and what y and lists are taken for
        model.set_params(max_iter=2).fit(x, y, sample_weight=None)


@pytest.mark.parametrize("model", [Push(), Precision(), Cox()])
def test_weights_are_shown_where_they_can_be_used(model):
    assert has_fit_parameter(model, "sample_weight")
    assert not has_fit_parameter(model.set_params(method="sox"), "sample_weight")
    assert list(inspect.signature(type(model).fit).parameters)[:4] == ["self", "X", "y", "sample_weight"]
    assert list(inspect.signature(Lists.fit).parameters) == ["self", "X", "y", "qid", "group"]


def test_the_score_of_lists_refuses_weights(data):
    x, y = data[0], (data[1] == "yes").astype(int)
    ranker, qid = Lists().fit(x, y, qid=np.zeros(120)), np.zeros(120)
    with pytest.raises(TypeError, match=r"Lists\.score does not support sample_weight: all queries count alike"):
        ranker.score(x, y, sample_weight=np.ones(120))
    assert ranker.score(x, y, qid, sample_weight=None) == ranker.score(x, y, qid)


BAGGED = [{}, {"method": "sox", "max_iter": 2, "tol": 0}]


@pytest.mark.parametrize("ranker", [kind(**options) for kind in (Push, Precision) for options in BAGGED])
def test_bagging_draws_rows_by_weight_or_by_index(ranker, data):
    x, y, _ = data
    bag = BaggingClassifier(ranker, n_estimators=3, random_state=0).fit(x, y)
    assert bag.score(x, y) > 0.7
    assert len({tuple(one.coef_[0]) for one in bag.estimators_}) == 3


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(119), r"one weight for each row, the shape \(120,\); got \(119,\)"),
        (np.ones((120, 1)), r"the shape \(120,\); got \(120, 1\)"),
        (np.where(np.arange(120) == 7, np.nan, 1.0), "finite and at least 0; got nan at position 7"),
        (np.where(np.arange(120) == 7, np.inf, 1.0), "finite and at least 0; got inf at position 7"),
        (np.where(np.arange(120) == 7, -2.0, 1.0), r"finite and at least 0; got -2\.0 at position 7"),
        (np.zeros(120), "above 0 for some row; all 120 weights are zero"),
    ],
)
def test_weights_that_cannot_be_meant_are_refused(weight, message, data):
    x, y, _ = data
    time = np.arange(120.0)
    for model, target in ((PNormPushClassifier(), y), (OnlyEvents(), time), (AveragePrecisionClassifier(), y)):
        if has_fit_parameter(model, "sample_weight"):
            with pytest.raises(ValueError, match=message):
                clone(model).fit(x, target, sample_weight=weight)
        model.fit(x, target)
        with pytest.raises(ValueError, match=message):
            model.score(x, target, sample_weight=weight)


def test_weights_of_any_form():
    for form in (list, tuple, np.array):
        np.testing.assert_array_equal(check_weights(form([1, 0, 2]), 3), [1.0, 0.0, 2.0])
    np.testing.assert_array_equal(check_weights(None, 2), [1.0, 1.0])
