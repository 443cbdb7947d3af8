"""PNormPushClassifier and AveragePrecisionClassifier: what they minimise, scikit-learn's contract, degenerate data."""

import pickle
import sys
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import average_precision_score, get_scorer, make_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fcco.compiled import RULES
from fcco.estimators import AveragePrecisionClassifierCV, CoxRegressor, ListwiseRanker, NeighborhoodComponentsAnalysis
from fcco.estimators._precision import AveragePrecisionClassifier
from fcco.estimators._push import PNormPushClassifier
from fcco.estimators._validation import METHODS
from fcco.functional import p_norm_push_loss

CLASSES = [PNormPushClassifier, AveragePrecisionClassifier]


@pytest.fixture(scope="module")
def data():
    x, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(x)[:, :8], 1 - y


@parametrize_with_checks(
    [
        PNormPushClassifier(),
        AveragePrecisionClassifier(method="sox", random_state=0),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:.* by default the positive class is")
def test_scikit_learns_contract(estimator, check):
    check(estimator)


def objective(ranker, x, y, w):
    """What PNormPushClassifier says that it minimises, by fcco.functional."""
    scores, target = torch.tensor(x) @ w, torch.tensor(y)
    value = p_norm_push_loss(scores, target, p=ranker.p, surrogate=ranker.surrogate, margin=ranker.margin)
    return value + ranker.alpha / 2 * w.square().sum()


@pytest.mark.parametrize("surrogate", ["exp", "squared_hinge", "logistic", "sigmoid", "ramp"])
def test_exact_is_at_a_minimum(surrogate, data):
    """The gradient of the stated objective, with its penalty, is near 0; at w = 0 it is above 0.04."""
    x, y = data[0][:150], data[1][:150]
    ranker = PNormPushClassifier(surrogate=surrogate, alpha=0.01, tol=1e-12, pos_label=1).fit(x, y)
    w = torch.tensor(ranker.coef_[0], requires_grad=True)
    value = objective(ranker, x, y, w)
    value.backward()
    assert ranker.loss_curve_[-1] == pytest.approx(value.item(), rel=1e-9)
    assert w.grad.norm() < 1e-5
    zero = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    objective(ranker, x, y, zero).backward()
    assert zero.grad.norm() > 0.04


@pytest.mark.parametrize("method", RULES)
def test_stochastic_methods_come_near_the_exact_one(method, data):
    """They close 95% of the gap between w = 0 and the exact minimum (99% but for MOAP)."""
    x, y = data
    alpha, kind = 0.01, PNormPushClassifier
    exact = kind(alpha=alpha, tol=1e-9).fit(x, y)
    start = objective(exact, x, y, torch.zeros(8, dtype=torch.float64)).item()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ranker = kind(alpha=alpha, method=method, gamma=0.1 if method == "moap" else 0.5, random_state=0).fit(x, y)
    left = (ranker.loss_curve_[-1] - exact.loss_curve_[-1]) / (start - exact.loss_curve_[-1])
    assert -1e-6 <= left < (0.05 if method == "moap" else 0.01)
    w = torch.tensor(ranker.coef_[0])
    assert ranker.loss_curve_[-1] == pytest.approx(objective(ranker, x, y, w).item(), rel=1e-9)
    assert all(np.diff(ranker.loss_curve_) <= 0)


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("kind", CLASSES)
def test_features_of_any_unit(kind, method, data):
    """In units that differ by 10⁶ the ranking is learnt as well, at the default learning rate."""
    x, y = data
    units = 10.0 ** np.linspace(-2, 4, 8)
    ranker = kind(alpha=0.0, method=method, max_iter=30, tol=0, random_state=0)
    assert roc_auc_score(y, ranker.fit(x * units, y).decision_function(x * units)) > 0.95


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", CLASSES)
def test_random_state_reproduces_bit_for_bit(kind, method, data):
    x, y = data
    ranker = kind(method=method, max_iter=5, tol=0, random_state=3)
    first, second = clone(ranker).fit(x, y), clone(ranker).fit(x, y)
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert first.loss_curve_ == second.loss_curve_
    if method not in ("exact", "moap"):
        assert clone(ranker).set_params(random_state=4).fit(x, y).loss_curve_ != first.loss_curve_


@pytest.mark.parametrize("kind", CLASSES)
def test_predicts_as_many_positives_as_there_were(kind, data):
    x, y = data
    ranker = kind().fit(x, y)
    assert ranker.predict(x).sum() == y.sum()
    np.testing.assert_array_equal(ranker.predict(x) == 1, ranker.decision_function(x) > 0)


def test_push_score(data):
    """The p-norm of the negatives' heights, off 1; with p = 1 it is AUC; ties count half."""
    x, y = data
    ranker = PNormPushClassifier(p=3.0).fit(x, y)
    scores = ranker.decision_function(x)
    own, rivals = scores[y == 0][:, None], scores[y == 1]
    height = ((rivals < own) + 0.5 * (rivals == own)).mean(1)
    assert ranker.score(x, y) == pytest.approx(1 - np.mean(height**3) ** (1 / 3))
    ranker.p = 1.0
    assert ranker.score(x, y) == pytest.approx(roc_auc_score(y, scores))
    rounded = ranker.set_params(p=1.0)
    rounded.coef_ = np.zeros_like(rounded.coef_)
    assert rounded.score(x, y) == 0.5


def test_average_precision_score(data):
    x, y = data
    ranker = AveragePrecisionClassifier().fit(x, y)
    assert ranker.score(x, y) == average_precision_score(y, ranker.decision_function(x))


def test_push_and_precision_find_more_at_the_top_than_chance():
    x, y = make_classification(600, 10, n_informative=4, weights=[0.9], class_sep=0.7, random_state=0)
    for kind in CLASSES:
        scores = kind().fit(x[:400], y[:400]).decision_function(x[400:])
        assert average_precision_score(y[400:], scores) > 3 * y[400:].mean()


@pytest.mark.parametrize("kind", CLASSES)
def test_labels_of_any_kind(kind, data):
    x, y = data
    named = np.where(y == 1, "yes", "no")
    ranker, numbered = kind().fit(x, named), kind().fit(x, y)
    np.testing.assert_array_equal(ranker.coef_, numbered.coef_)
    assert list(ranker.classes_) == ["no", "yes"]
    assert ranker.score(x, named) == numbered.score(x, y)
    assert set(ranker.predict(x)) == {"no", "yes"}


QUICK_CV = partial(AveragePrecisionClassifierCV, C=[0.1, 1.0], alpha=[0.1], cv=3, random_state=0)
RANKERS = [
    PNormPushClassifier(),
    PNormPushClassifier(method="sox", max_iter=5, tol=0, random_state=0),
    AveragePrecisionClassifier(alpha=0.1, probability=True, random_state=0),
    QUICK_CV(standard_errors=0.0),
]


@pytest.fixture(scope="module")
def frauds():
    x, y = make_classification(400, 6, n_informative=3, weights=[0.9], class_sep=0.7, flip_y=0.05, random_state=1)
    return x, np.where(y == 1, "fraud", "ok")


@pytest.mark.parametrize("ranker", RANKERS)
class TestPosLabel:
    def test_ranks_as_if_it_were_the_last_class(self, ranker, frauds):
        """'fraud' sorts before 'ok'; as True it sorts after False."""
        x, y = frauds
        named, marked = clone(ranker).set_params(pos_label="fraud").fit(x, y), clone(ranker).fit(x, y == "fraud")
        assert list(named.classes_) == ["fraud", "ok"]
        assert (named.pos_label_, marked.pos_label_) == ("fraud", True)
        scores = named.score_samples(x)
        np.testing.assert_allclose(scores, marked.decision_function(x), rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(scores, -named.decision_function(x))
        np.testing.assert_array_equal(marked.score_samples(x), marked.decision_function(x))
        np.testing.assert_array_equal(named.predict(x) == "fraud", marked.predict(x))
        assert named.score(x, y) == pytest.approx(marked.score(x, y == "fraud"), rel=1e-9)
        if hasattr(ranker, "predict_proba"):
            np.testing.assert_allclose(named.predict_proba(x)[:, ::-1], marked.predict_proba(x), rtol=1e-5)

    def test_is_what_scikit_learns_scorers_score(self, ranker, frauds):
        """They turn decision_function round, and take the column of classes_, if pos_label is classes_[0]."""
        x, y = frauds
        ranker = clone(ranker).set_params(pos_label="fraud").fit(x, y)
        expected = average_precision_score(y == "fraud", ranker.score_samples(x))
        assert expected > 0.3
        for response in ("decision_function", "predict_proba"):
            if hasattr(ranker, response):
                scorer = make_scorer(average_precision_score, response_method=response, pos_label="fraud")
                assert scorer(ranker, x, y) == pytest.approx(expected, rel=1e-9)
        if not isinstance(ranker, PNormPushClassifier):
            assert ranker.score(x, y) == pytest.approx(expected, rel=1e-9)
        zero = clone(ranker).set_params(pos_label=0).fit(x, (y == "ok").astype(int))
        assert get_scorer("roc_auc")(zero, x, (y == "ok").astype(int)) > 0.8
        assert (ranker.predict(x) == "fraud").sum() == (y == "fraud").sum()
        np.testing.assert_array_equal(ranker.predict(x) == "ok", ranker.decision_function(x) > 0)

    def test_that_y_does_not_have_is_refused(self, ranker, frauds):
        ranker = clone(ranker).set_params(pos_label="Fraud")
        message = r"pos_label must be one of the classes of y, \['fraud', 'ok'\]; got 'Fraud'"
        with pytest.raises(ValueError, match=message):
            ranker.fit(*frauds)
        assert not hasattr(ranker, "coef_")

    def test_a_default_that_most_rows_have_is_warned_of(self, ranker, frauds):
        x, y = frauds
        share = (y == "ok").mean()
        message = (
            rf"positive class is 'ok', the last in sorted order, which has {share:.0%} of .* pass pos_label='fraud';"
        )
        with pytest.warns(UserWarning, match=message) as caught:
            clone(ranker).fit(x, y)
        assert [warning.filename for warning in caught if warning.category is UserWarning] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            for label, target in (("ok", y), ("fraud", y), (None, y == "fraud"), (1, (y == "ok").astype(int))):
                clone(ranker).set_params(pos_label=label).fit(x, target)


def test_a_warm_start_with_another_class(data):
    """Its scores are turned round, so that it begins where the fit before ended."""
    x, y = data
    ranker = PNormPushClassifier(warm_start=True, pos_label=0).fit(x, y)
    end = ranker.loss_curve_[-1]
    assert ranker.set_params(max_iter=1, tol=0).fit(x, y).loss_curve_ == [pytest.approx(end, rel=1e-4)]


def test_weights_decide_which_class_has_most(data):
    x, y = data
    with pytest.warns(UserWarning, match="the positive class is 1, .* which has 85% of the rows"):
        PNormPushClassifier().fit(x, y, sample_weight=np.where(y == 1, 9.7, 1.0))


@pytest.mark.parametrize("method", ["exact", "soap"])
@pytest.mark.parametrize("kind", CLASSES)
def test_float32_stays(kind, method, data):
    x, y = data
    ranker = kind(method=method, random_state=0, max_iter=20, tol=0).fit(x.astype(np.float32), y)
    wide = kind(method=method, random_state=0, max_iter=20, tol=0).fit(x, y)
    assert ranker.coef_.dtype == ranker.intercept_.dtype == ranker.decision_function(x.astype(np.float32)).dtype
    assert ranker.coef_.dtype == np.float32
    np.testing.assert_allclose(ranker.coef_, wide.coef_, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", CLASSES)
def test_small_and_constant_data(kind, method):
    """Fewer rows than a batch; a constant feature keeps the coefficient 0."""
    x = np.array([[0.0, 5.0], [1.0, 5.0], [0.2, 5.0]])
    ranker = kind(method=method, max_iter=20, tol=0, random_state=0).fit(x, [0, 1, 0])
    assert list(ranker.predict(x)) == [0, 1, 0]
    assert ranker.coef_[0, 0] > 0.1
    assert ranker.coef_[0, 1] == pytest.approx(0, abs=1e-8)
    constant = kind(method=method, max_iter=3, tol=0, random_state=0).fit(np.ones((4, 1)), [0, 1, 0, 1])
    assert constant.coef_[0, 0] == 0


@pytest.mark.parametrize("ranker", [PNormPushClassifier(), AveragePrecisionClassifier(cv=None)])
def test_warm_start_begins_where_the_fit_before_ended(ranker, data):
    x, y = data[0], 1 - data[1]
    ranker = clone(ranker).set_params(warm_start=True, pos_label=1).fit(x, y)
    end = ranker.loss_curve_[-1]
    assert ranker.set_params(method="soap", random_state=0, max_iter=3, tol=0).fit(x, y).loss_curve_[0] <= end + 1e-12
    with pytest.raises(ValueError, match="X has 3 features, and the fit before had 8"):
        ranker.fit(x[:, :3], y)


@pytest.mark.parametrize(
    ("kind", "method"),
    [(PNormPushClassifier, "exact"), (PNormPushClassifier, "soap"), (AveragePrecisionClassifier, "soap")],
)
def test_warns_and_prints(kind, method, data, capsys):
    x, y = data
    ranker = kind(method=method, max_iter=2, verbose=1, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_iter=2") as caught:
        ranker.fit(x, y)
    assert [warning.category for warning in caught].count(ConvergenceWarning) == 1
    last = capsys.readouterr().err.split("\r")[-1]
    assert last.startswith(f"{kind.__name__}: 100%")
    assert f"objective {ranker.loss_curve_[-1]:.6g}]" in last
    assert len(ranker.loss_curve_) == ranker.n_iter_ == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranker.set_params(tol=0).fit(x, y)


def test_warns_where_no_step_is_small_enough(data):
    ranker = PNormPushClassifier(method="sox", learning_rate=1e12, max_iter=10, random_state=0)
    with pytest.warns(ConvergenceWarning, match="no pass improved on the start"):
        ranker.fit(*data)
    assert not ranker.coef_.any()


def test_works_with_scikit_learns_tools(data):
    x, y = data
    frame = pd.DataFrame(x, columns=[f"f{i}" for i in range(8)])
    search = GridSearchCV(make_pipeline(StandardScaler(), PNormPushClassifier()), {"pnormpushclassifier__p": [1, 4]})
    search.fit(frame, y)
    assert search.best_score_ > 0.9
    ranker = AveragePrecisionClassifier().fit(frame, y)
    assert list(ranker.feature_names_in_) == list(frame.columns)
    again = pickle.loads(pickle.dumps(ranker))
    np.testing.assert_array_equal(again.predict(frame), ranker.predict(frame))


def test_plot_loss(data, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    ranker = PNormPushClassifier().fit(*data)
    assert list(ranker.plot_loss().lines[0].get_ydata()) == ranker.loss_curve_
    with pytest.raises(NotFittedError):
        PNormPushClassifier().plot_loss()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"plot_loss needs matplotlib: pip install 'fcco\[plot\]'"):
        ranker.plot_loss()


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "adam"}, "method must be one of 'exact'.*'adam'"),
        ({"surrogate": "square"}, "surrogate must be one of.*'square'"),
        ({"margin": -1.0}, "margin must be finite.*-1.0"),
        ({"alpha": -0.5}, "alpha must be finite and at least 0.0; got -0.5"),
        ({"gamma": 0.0}, "gamma"),
        ({"beta": 1.5}, "beta"),
        ({"learning_rate": 0.0}, "learning_rate.*0.0"),
        ({"outer_batch": 0}, "outer_batch.*0"),
        ({"max_iter": 0}, "max_iter.*0"),
        ({"n_iter_no_change": 0}, "n_iter_no_change.*0"),
        ({"tol": float("nan")}, "tol must be a number; got nan"),
    ],
)
def test_refuses_parameters(kind, options, message, data):
    ranker = kind(**options)
    with pytest.raises(ValueError, match=message):
        ranker.fit(*data)
    assert not hasattr(ranker, "coef_")


def test_refuses_data(data):
    x, y = data
    with pytest.raises(ValueError, match="p must be finite and at least 1"):
        PNormPushClassifier(p=0.5).fit(x, y)
    with pytest.raises(ValueError, match=r"surrogate must be one of.*'exp'"):
        AveragePrecisionClassifier("exp").fit(x, y)
    with pytest.raises(ValueError, match=r"Only binary classification is supported.*multiclass"):
        PNormPushClassifier().fit(x, np.arange(len(x)) % 3)
    with pytest.raises(ValueError, match="one class: 1"):
        PNormPushClassifier().fit(x, np.ones(len(x), int))
    ranker = PNormPushClassifier().fit(x, y)
    with pytest.raises(ValueError, match=r"y must be made of the classes of the fit, \[0, 1\]; got 7"):
        ranker.score(x, np.where(y == 1, 7, 0))
    with pytest.raises(ValueError, match="one class only"):
        ranker.score(x, np.ones(len(x), int))


def test_scores_that_would_overflow():
    """An outlier 10⁵ deviations out: the exponentials of a step overflow, the objective's logarithm does not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    y = (x[:, 0] > 0).astype(int)
    x[0] *= 1e5
    ranker = PNormPushClassifier(p=8, alpha=1e-6).fit(x, y)
    assert np.isfinite(ranker.coef_).all()
    assert ranker.loss_curve_[-1] < 1.0


def test_push_score_of_heights_whose_powers_underflow():
    """One of two positives stands below one of two negatives: 1 - 1/2 (1/2)^(1/p)."""
    ranker = PNormPushClassifier().fit([[0.0], [1.0]], [0, 1]).set_params(p=2000.0)
    expected = 1 - 0.5 * 0.5 ** (1 / 2000)
    assert ranker.score([[0.0], [2.0], [1.0], [3.0]], [0, 0, 1, 1]) == pytest.approx(expected)


def test_score_takes_columns_and_refuses_other_lengths(data):
    x, y = data
    ranker = PNormPushClassifier().fit(x, y)
    assert ranker.score(x, pd.DataFrame({"y": y})) == ranker.score(x, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ranker.score(x, y[:5])


def test_tol_of_any_float(data):
    assert PNormPushClassifier(tol=np.float32(1e-4)).fit(*data).n_iter_ > 0


@pytest.mark.parametrize("method", ["exact", "soap"])
def test_features_too_small_for_the_penalty_are_warned_of(method, data):
    x, y = data
    with pytest.warns(UserWarning, match="vary so little, by a standard deviation of 1e-12 or less, that alpha=0.001"):
        coef = PNormPushClassifier(method=method, random_state=0).fit(1e-12 * x, y).coef_
    assert not (x @ coef[0]).any()


def test_features_whose_squares_overflow_are_refused(data):
    x, y = 1e200 * data[0][:40], data[1][:40]
    for model in (PNormPushClassifier(), ListwiseRanker(), NeighborhoodComponentsAnalysis(), CoxRegressor()):
        with pytest.raises(ValueError, match=r"features must be at most 1e\+150 in size; got .*: scale them down"):
            model.fit(x, y + 1)
