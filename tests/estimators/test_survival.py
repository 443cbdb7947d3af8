"""CoxRegressor: agreement with other libraries, predictions, degenerate data, scikit-learn's contract."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, NotFittedError, UndefinedMetricWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from estimators.survival_data import TIES, OnlyEvents, columns, golden, make_data
from fcco.estimators import _survival_data
from fcco.estimators._survival import CoxRegressor
from fcco.functional import cox_loss


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("name", ["tied", "untied"])
def test_agrees_with_scikit_survival(name, ties, penalised):
    x, y, case = golden(name)
    expected = case[ties + "_penalised" * penalised]
    alpha = case["alpha"] / y[:, 1].sum() if penalised else 0.0
    model = CoxRegressor(ties=ties, alpha=alpha).fit(x, y)
    np.testing.assert_allclose(model.coef_, expected["coef"], rtol=1e-6)
    np.testing.assert_allclose(model.standard_error_, expected["se"], rtol=1e-7)
    np.testing.assert_allclose(model.log_likelihood_, expected["log_likelihood"], rtol=1e-10)
    np.testing.assert_array_equal(model.unique_times_, expected["unique_times"])
    of_zero = model.baseline_cumulative_hazard_ * np.exp(-model.mean_ @ model.coef_)
    np.testing.assert_allclose(of_zero, expected["cumulative_hazard_of_zero"], rtol=1e-6)
    hazard = model.predict_cumulative_hazard_function(x[:4], times=expected["times"], as_frame=False)
    np.testing.assert_allclose(hazard, expected["cumulative_hazard"], rtol=1e-6)
    assert model.score(x, y) == pytest.approx(expected["concordance"][0], rel=1e-12)


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_agrees_with_lifelines(name):
    x, y, case = golden(name)
    expected = case["by_lifelines"]
    model = CoxRegressor(ties="efron").fit(pd.DataFrame(x, columns=["a", "b", "c"]), y)
    assert list(model.summary.index) == ["a", "b", "c"]
    for column in model.summary.columns:
        np.testing.assert_allclose(model.summary[column], expected["summary"][column], rtol=1e-6)
    frame = pd.DataFrame(x, columns=["a", "b", "c"], index=np.arange(60) + 100)
    np.testing.assert_allclose(model.predict(frame), expected["log_risk"], rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(model.unique_times_, expected["unique_times"])
    np.testing.assert_allclose(model.baseline_cumulative_hazard_, expected["baseline_cumulative_hazard"], rtol=1e-6)
    survival = model.predict_survival_function(frame[:4])
    assert list(survival.index) == [100, 101, 102, 103]
    assert list(survival.columns) == expected["unique_times"]
    np.testing.assert_allclose(survival, expected["survival"], rtol=1e-6)
    assert model.log_likelihood_ == pytest.approx(expected["log_likelihood"], rel=1e-10)
    assert model.score(frame, y) == pytest.approx(expected["concordance"], rel=1e-12)
    assert model.concordance_index_ == pytest.approx(expected["concordance"], rel=1e-12)
    times = np.append(expected["unique_times"], np.inf)
    medians = [times[np.append(curve, 0.0) <= 0.5][0] for curve in np.array(expected["survival"])]
    np.testing.assert_array_equal(model.predict_median(frame[:4]), medians)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "adam"}, "method must be one of 'exact'.*'adam'"),
        ({"ties": "exact"}, "ties must be one of .*'exact'"),
        ({"method": "sox", "ties": "efron"}, "method='sox' has Breslow's ties only"),
        ({"alpha": -1.0}, r"alpha must be finite and at least 0.0; got -1.0"),
        ({"gamma": 0.0}, "gamma .*got 0.0"),
        ({"beta": 1.5}, "beta .*got 1.5"),
        ({"batch_size": 1, "method": "sox"}, "batch_size must be at least 2; got 1"),
        ({"max_iter": 0}, "max_iter must be at least 1; got 0"),
        ({"tol": -1.0}, "tol, if not None, must be finite and at least 0.0; got -1.0"),
        ({"learning_rate": 0.0}, "learning_rate.* above 0.0; got 0.0"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    x, time, event = make_data(20)
    with pytest.raises(ValueError, match=message):
        CoxRegressor(**options).fit(x, columns(time, event))


@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_constant_features_get_no_coefficient(alpha):
    x, time, event = make_data()
    y = columns(time, event)
    expected = CoxRegressor(alpha=alpha).fit(x, y)
    with pytest.warns(ConvergenceWarning, match=r"standard errors are NaN \(constant: x3\)\. Leave constant"):
        model = CoxRegressor(alpha=alpha).fit(np.column_stack([x, np.full(len(x), 7.7)]), y)
    np.testing.assert_allclose(model.coef_, [*expected.coef_, 0.0], rtol=1e-12)
    np.testing.assert_allclose(model.standard_error_, [*expected.standard_error_, np.nan], rtol=1e-12)


def test_collinear_features_share_a_coefficient():
    """Of b x + c (2 x + 3) only b + 2 c is known, and b = 2 c after scaling to one spread."""
    x, time, event = make_data()
    y = columns(time, event)
    expected = CoxRegressor().fit(x, y)
    for dtype in (np.float64, np.float32):
        frame = pd.DataFrame(np.column_stack([x, 2 * x[:, 0] + 3]).astype(dtype), columns=["a", "b", "c", "twice"])
        with pytest.warns(ConvergenceWarning, match=r"\(collinear, or .*: a, twice\).*or set alpha > 0"):
            model = CoxRegressor().fit(frame, y)
        assert np.isfinite(CoxRegressor(alpha=1e-3).fit(frame, y).standard_error_).all()
        first, second, third = expected.coef_
        np.testing.assert_allclose(model.coef_, [first / 2, second, third, first / 4], rtol=1e-5)
        unknown = np.array([True, False, False, True])
        np.testing.assert_array_equal(np.isnan(model.standard_error_), unknown)
        np.testing.assert_array_equal(np.isnan(model.covariance_), unknown[:, None] | unknown)
        np.testing.assert_allclose(model.standard_error_[1:3], expected.standard_error_[1:], rtol=1e-5)
        assert model.log_likelihood_ == pytest.approx(expected.log_likelihood_, rel=1e-7)


def test_nearly_collinear_features_are_told_apart():
    """With x2' = x0 + 1e-5 x2, the coefficient of x2' is 1e5 times that of x2."""
    x, time, event = make_data()
    expected = CoxRegressor().fit(x, columns(time, event))
    model = CoxRegressor().fit(np.column_stack([x[:, :2], x[:, 0] + 1e-5 * x[:, 2]]), columns(time, event))
    assert model.coef_[2] == pytest.approx(1e5 * expected.coef_[2], rel=1e-7)
    assert model.standard_error_[2] == pytest.approx(1e5 * expected.standard_error_[2], rel=1e-4)


def test_an_endless_likelihood_is_named():
    """Nobody with x3 = 1 dies, so that its coefficient falls for ever; the others have limits."""
    x, time, event = make_data()
    x = np.column_stack([x, ~event & (np.arange(len(x)) % 2 == 0)])
    y = columns(time, event)
    with pytest.warns(ConvergenceWarning, match="rises for ever along x3:"):
        model = CoxRegressor().fit(x, y)
    spared = x[:, 3] == 0
    limit = CoxRegressor().fit(x[spared, :3], y[spared])
    np.testing.assert_allclose(model.coef_[:3], limit.coef_, rtol=1e-6)
    assert model.log_likelihood_ == pytest.approx(limit.log_likelihood_, rel=1e-9)
    assert model.coef_[3] < -15
    assert -15 < CoxRegressor(alpha=1e-4).fit(x, y).coef_[3] < 0


def test_an_endless_likelihood_ends_where_rounding_does_not_decide():
    """Rows in another order are added up in another: going on for a gain of 1e-12, predictions differ by 7e-5."""
    rng = np.random.RandomState(42)
    x, time = rng.rand(15, 30), rng.randint(0, 3, 15).astype(float)
    y, order = columns(time, np.ones(15)), rng.permutation(15)
    with pytest.warns(ConvergenceWarning, match=r"rises for ever|standard errors are NaN"):
        here, there = CoxRegressor().fit(x, y), CoxRegressor().fit(x[order], y[order])
    assert np.abs(here.predict(x)).max() > 10
    np.testing.assert_allclose(there.predict(x), here.predict(x), rtol=1e-6)


def test_a_small_penalty_makes_the_optimum_finite():
    """Nobody with x3 = 1 dies, but the coefficient ends where the penalty holds it, and nothing is warned of.

    The curvature there is below what without a penalty would mean a likelihood that rises for ever.
    """
    x, time, event = make_data()
    x, alpha = np.column_stack([x, ~event & (np.arange(len(x)) % 2 == 0)]), 1e-13
    coef = CoxRegressor(alpha=alpha).fit(x, columns(time, event)).coef_
    w = torch.tensor(coef, requires_grad=True)
    cox_loss(torch.tensor(x, dtype=torch.float64) @ w, torch.tensor(time), torch.tensor(event)).backward()
    assert w.grad[3].item() == pytest.approx(-alpha * coef[3], rel=1e-3)
    with pytest.warns(ConvergenceWarning, match="reached max_iter=15"):
        CoxRegressor(alpha=alpha, max_iter=15).fit(x, columns(time, event))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_objective_never_rises():
    """On Cauchy features full steps of Newton's method go too far: the objective would rise in 6 fits of 40."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x, y = rng.standard_cauchy(size=(60, 3)), columns(rng.exponential(size=60), rng.random(60) < 0.7)
        assert np.diff(CoxRegressor().fit(x, y).loss_curve_).max() < 1e-12


@pytest.mark.parametrize("options", [{}, {"method": "soap", "max_iter": 5, "tol": 0, "random_state": 0}])
def test_times_may_be_close_to_each_other(options):
    """1e-9 apart, in float32 they would all be one."""
    x, time, event = make_data(200)
    y, close = columns(time, event), columns(1.0 + 1e-9 * time, event)
    expected, found = CoxRegressor(**options).fit(x, y), CoxRegressor(**options).fit(x, close)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-12)
    np.testing.assert_array_equal(found.unique_times_, np.unique(close[:, 0]))
    np.testing.assert_allclose(found.baseline_cumulative_hazard_, expected.baseline_cumulative_hazard_, rtol=1e-12)
    assert found.score(x, close) == expected.score(x, y)
    functional = [cox_loss(torch.tensor(x[:, 0]), torch.tensor(t), torch.tensor(event)) for t in (time, close[:, 0])]
    assert functional[0] == functional[1]


def test_time_as_a_feature_has_predictions_all_the_same():
    _, time, event = make_data(100, tied=False)
    with pytest.warns(ConvergenceWarning, match="rises for ever along x0:"):
        model = CoxRegressor().fit(-time[:, None], columns(time, event))
    survival = model.predict_survival_function(-time[:, None], as_frame=False)
    assert np.isfinite(survival).all()
    assert model.score(-time[:, None], columns(time, event)) == 1.0


def test_degenerate_sizes():
    with pytest.warns(ConvergenceWarning, match=r"constant: x0, x1"):
        assert CoxRegressor().fit([[1.0, 2.0]], [[1.0, 1]]).coef_.tolist() == [0.0, 0.0]
    same_time = CoxRegressor().fit([[2.0], [1.0], [4.0]], columns(np.ones(3), [1, 0, 0]))
    assert np.isfinite(same_time.coef_).all()
    with pytest.warns(UndefinedMetricWarning, match="can be compared"):
        assert np.isnan(same_time.score([[1.0], [2.0]], [[1.0, 0], [2.0, 0]]))


def test_sparse_and_float32_and_frames_agree():
    x, time, event = make_data()
    x = np.where(np.abs(x) < 0.5, 0.0, x).astype(np.float32)
    y = columns(time, event)
    expected = CoxRegressor().fit(x.astype(np.float64), y)
    for kind in (sparse.csr_matrix, sparse.csc_array, np.asarray, np.asfortranarray, pd.DataFrame):
        frame = kind(x)
        if kind is pd.DataFrame:
            frame.columns = ["a", "b", "c"]
        model = CoxRegressor().fit(frame, y)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5)
        np.testing.assert_allclose(model.predict(frame), expected.predict(x), rtol=1e-4, atol=1e-5)
        assert model.coef_.dtype == np.float64
    with pytest.raises(TypeError, match="method='sox' takes dense X only"):
        CoxRegressor(method="sox").fit(sparse.csr_matrix(x), y)


@pytest.mark.filterwarnings("ignore:some coefficients are not determined")
def test_times_beyond_the_last_one_are_warned_of():
    """The last value is carried on, where nobody was watched: of a hazard of 1/4, in the plot too."""
    x = np.ones((4, 1))
    model = CoxRegressor().fit(x, columns([1.0, 2.0, 2.0, 3.0], [1, 0, 0, 0]))
    curves = model.predict_survival_function, model.predict_cumulative_hazard_function, model.plot_survival
    for curve in curves:
        with pytest.warns(UserWarning, match=r"times go up to 4, beyond 3, the last time of the training") as caught:
            curve(x, times=[1.0, 4.0])
        assert caught[0].filename == __file__
        curve(x, times=[1.0, 3.0])
    with pytest.warns(UserWarning, match="times go up to 4"):
        survival = model.predict_survival_function(x, times=[3.0, 4.0], as_frame=False)
    np.testing.assert_allclose(survival, np.exp(-1 / 4))


@pytest.mark.filterwarnings("ignore:some coefficients are not determined")
def test_hazards_are_steps():
    """Without features' effect Breslow's hazard is deaths / at risk: 1/4 at time 1, 2/3 at time 2, none at 3."""
    y = columns([1.0, 2.0, 2.0, 3.0], [1, 1, 1, 0])
    model = CoxRegressor().fit(np.ones((4, 1)), y)
    np.testing.assert_allclose(model.baseline_cumulative_hazard_, [1 / 4, 1 / 4 + 2 / 3, 1 / 4 + 2 / 3], rtol=1e-14)
    times = [0.5, 1.0, 1.9, 2.0, 3.0]
    hazard = model.predict_cumulative_hazard_function(np.ones((1, 1)), times=times, as_frame=False)
    np.testing.assert_allclose(hazard, [[0, 1 / 4, 1 / 4, 11 / 12, 11 / 12]], rtol=1e-14)
    survival = model.predict_survival_function(np.ones((1, 1)), times=times, as_frame=False)
    np.testing.assert_allclose(survival, np.exp(-hazard), rtol=1e-14)
    with pytest.raises(ValueError, match="times"):
        model.predict_survival_function(np.ones((1, 1)), times=[np.nan])


@pytest.mark.filterwarnings("ignore:some coefficients are not determined")
def test_the_median_is_where_survival_reaches_a_half():
    """Hazards of 1/3 and 1/2 in all: survival is exp(-1/3), then exp(-5/6), below 1/2. Without the second, never."""
    x, times = np.ones((3, 1)), [1.0, 2.0, 3.0]
    assert CoxRegressor().fit(x, columns(times, [1, 1, 0])).predict_median(x).tolist() == [2.0] * 3
    assert CoxRegressor().fit(x, columns(times, [1, 0, 0])).predict_median(x).tolist() == [np.inf] * 3


def test_medians_keep_the_index():
    x, time, event = make_data(80)
    frame = pd.DataFrame(x, columns=list("abc"), index=[f"row {i}" for i in range(80)])
    model = CoxRegressor().fit(frame, columns(time, event))
    medians = model.predict_median(frame[:4])
    assert isinstance(medians, pd.Series)
    assert medians.index.tolist() == ["row 0", "row 1", "row 2", "row 3"]
    np.testing.assert_array_equal(medians, CoxRegressor().fit(x, columns(time, event)).predict_median(x[:4]))


def test_medians_follow_the_curves():
    x, time, event = make_data(80)
    strata = np.arange(80) % 2
    model = CoxRegressor().fit(x, columns(time, event), strata=strata)
    curves = model.predict_survival_function(x, strata=strata, as_frame=False)
    times = np.append(model.unique_times_, np.inf)
    expected = [times[np.append(curve, 0.0) <= 0.5][0] for curve in curves]
    assert len({np.inf} & set(expected)) == 1
    np.testing.assert_array_equal(model.predict_median(x, strata=strata), expected)


def test_without_pandas_there_are_arrays(monkeypatch):
    x, time, event = make_data(50)
    model = CoxRegressor().fit(x, columns(time, event))
    framed, table = model.predict_survival_function(x), model.summary
    monkeypatch.setattr(_survival_data.importlib.util, "find_spec", lambda name: None)
    np.testing.assert_array_equal(model.predict_survival_function(x), framed.to_numpy())
    assert model.summary["covariate"].tolist() == ["x0", "x1", "x2"]
    np.testing.assert_array_equal(model.summary["se(coef)"], table["se(coef)"])


@pytest.mark.parametrize("method", ["exact", "soap"])
def test_warm_start_and_limits(method, capsys):
    x, time, event = make_data()
    y = columns(time, event)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        model = CoxRegressor(method=method, max_iter=2, warm_start=True, verbose=1, random_state=0).fit(x, y)
    assert f"objective {model.loss_curve_[-1]:.6g}]" in capsys.readouterr().err.split("\r")[-1]
    assert model.n_iter_ == 2
    reached = min(model.loss_curve_)
    model.set_params(max_iter=100, verbose=0).fit(x, y)
    assert model.loss_curve_[0] < reached + 0.01
    cold = CoxRegressor(method=method, random_state=0).fit(x, y)
    np.testing.assert_allclose(model.coef_, cold.coef_, rtol=1e-9 if method == "exact" else 0.2)
    with pytest.raises(ValueError, match="X has 2 features, and the fit before had 3"):
        model.fit(x[:, :2], y)


def test_a_warm_start_keeps_out_of_directions_that_say_nothing():
    """Of x0 and its copy only the sum of coefficients counts: a start at 5 and -5 is one at 0 and 0."""
    x, time, event = make_data()
    x, y = np.column_stack([x, x[:, 0]]), columns(time, event)
    with pytest.warns(ConvergenceWarning, match="collinear"):
        cold, warm = CoxRegressor().fit(x, y), CoxRegressor(warm_start=True).fit(x, y)
    warm.coef_ += np.array([5.0, 0.0, 0.0, -5.0])
    with pytest.warns(ConvergenceWarning, match="collinear"):
        np.testing.assert_allclose(warm.fit(x, y).coef_, cold.coef_, rtol=1e-9)


def test_descent_starts_warm_in_any_units():
    x, time, event = make_data()
    x, y = x * [100.0, 0.01, 1.0], columns(time, event)
    exact = CoxRegressor(alpha=1e-6, warm_start=True).fit(x, y)
    end = exact.loss_curve_[-1]
    again = exact.set_params(method="soap", max_iter=2, tol=0, random_state=0).fit(x, y)
    assert again.loss_curve_[-1] == pytest.approx(end, abs=1e-6)


def test_works_in_scikit_learn():
    x, time, event = make_data()
    y = np.array(list(zip(event, time, strict=True)), dtype=[("event", "?"), ("time", "<f8")])
    pipeline = make_pipeline(StandardScaler(), CoxRegressor())
    search = GridSearchCV(pipeline, {"coxregressor__alpha": [0.0, 10.0]}, error_score="raise").fit(x, y)
    assert search.best_params_ == {"coxregressor__alpha": 0.0}
    model = CoxRegressor().fit(x, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))


@parametrize_with_checks([OnlyEvents(), OnlyEvents(method="sox", max_iter=20, random_state=0)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_checks(estimator, check):
    """Checks have tiny data, on which passes run out and likelihoods rise for ever."""
    check(estimator)


def test_no_baseline_before_a_fit():
    assert not hasattr(CoxRegressor(), "baseline_cumulative_hazard_")
    with pytest.raises(NotFittedError):
        _ = CoxRegressor().baseline_cumulative_hazard_


def test_events_are_not_taken_for_weights():
    """A third argument, as other libraries take the events, would leave all censored rows out."""
    x, time, event = np.ones((3, 1)), np.arange(3.0), np.array([True, False, True])
    with pytest.raises(TypeError, match="positional argument"):
        CoxRegressor().fit(x, time, event)
