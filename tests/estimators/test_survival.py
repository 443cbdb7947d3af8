import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError, UndefinedMetricWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fcco
from fcco.estimators import _cox_rows, _loop, _survival
from fcco.estimators._concordance import count_pairs
from fcco.estimators._cox_minibatch import cox_draws, cox_form
from fcco.estimators._cox_rows import Rows
from fcco.estimators._kernels import RULES
from fcco.estimators._risk_sets import CoxObjective, RiskSets, group, sort_order
from fcco.estimators._survival import CoxRegressor
from fcco.estimators._survival_target import as_survival
from fcco.functional import cox_loss

GOLDEN = json.loads((Path(__file__).parent / "golden" / "survival.json").read_text())
TIES = ("breslow", "efron")


def make_data(n=300, d=3, *, tied=True, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    life, watched = rng.exponential(np.exp(-x @ np.linspace(1.0, -0.5, d))), rng.exponential(2.0, size=n)
    time = np.minimum(life, watched)
    return x, np.ceil(time * 10) if tied else time, life <= watched


def columns(time, event):
    return np.column_stack([time, event])


def golden(name):
    case = GOLDEN[name]
    return np.array(case["x"]), columns(case["time"], case["event"]), case


def make_objective(x, time, event, ties, penalty=0.0):
    order = sort_order(time, event)
    sets = RiskSets(event[order], *group(time[order], event[order]), ties == "efron")
    return CoxObjective(Rows(x, order), sets, np.full(x.shape[1], penalty))


def by_autograd(x, time, event, ties, w, penalty=0.0):
    """Value, gradient and Hessian of the objective on standardised features."""
    z = torch.from_numpy((x - x.mean(0)) / x.std(0))

    def objective(w):
        loss = cox_loss(z @ w, torch.from_numpy(time), torch.from_numpy(event), ties=ties)
        return loss + 0.5 * penalty * (w @ w)

    w = torch.tensor(w, requires_grad=True)
    value = objective(w)
    (gradient,) = torch.autograd.grad(value, w)
    return value.item(), gradient.numpy(), torch.autograd.functional.hessian(objective, w).numpy()


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


def covariances(z, time, event, ties, w):
    """The Hessian per event, as the sum over events of the covariance of z in their risk sets."""
    hessian = np.zeros((z.shape[1], z.shape[1]))
    h = z @ w
    for t in np.unique(time[event]):
        dying = event & (time == t)
        for place in range(dying.sum()):
            left = np.where(dying, 1 - place / dying.sum() if ties == "efron" else 1.0, time >= t)
            share = left * np.exp(h - h[left > 0].max(), where=left > 0, out=np.zeros(len(h)))
            hessian += np.cov(z.T, aweights=share, ddof=0)
    return hessian / event.sum()


@pytest.mark.parametrize("scale", [0.0, 1.0, 400.0])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("tied", [True, False])
def test_derivatives_are_those_of_the_exact_objective(ties, tied, scale):
    """At scale 400 log risks lie thousands apart, no common unit could hold all risk sets, and those alike count."""
    x, time, event = make_data(60, tied=tied)
    x = np.round(x)
    w = scale * np.array([1.0, 0.0, -1.0]) * x.std(0)
    objective = make_objective(x, time, event, ties, penalty=0.3)
    value = objective.value(w)
    gradient, hessian = objective.derivatives()
    expected = by_autograd(x, time, event, ties, w, penalty=0.3)
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-10, atol=1e-12)
    z = (x - x.mean(0)) / x.std(0)
    np.testing.assert_allclose(hessian, covariances(z, time, event, ties, w) + 0.3 * np.eye(3), rtol=1e-9, atol=1e-11)
    if scale <= 1:
        np.testing.assert_allclose(hessian, expected[2], rtol=1e-9, atol=1e-11)
    assert hessian[1, 1] > 0.31


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_blocks_may_end_anywhere(monkeypatch, kind):
    x, time, event = make_data(100)
    expected = CoxRegressor(ties="efron").fit(x, columns(time, event))
    monkeypatch.setattr(_cox_rows, "_BLOCK", 9)  # three rows
    found = CoxRegressor(ties="efron").fit(kind(x), columns(time, event))
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-10)
    np.testing.assert_allclose(found.covariance_, expected.covariance_, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("ties", TIES)
def test_the_gradient_vanishes_at_the_solution(ties):
    x, time, event = make_data()
    model = CoxRegressor(ties=ties).fit(x * [1e6, 1e-6, 1.0] + [1e9, 0.0, -5.0], columns(time, event))
    w = model.coef_ * np.array([1e6, 1e-6, 1.0]) * x.std(0)
    value, gradient, _ = by_autograd(x, time, event, ties, w)
    assert np.abs(gradient).max() < 1e-7
    assert model.log_likelihood_ == pytest.approx(-value * event.sum(), rel=1e-9)
    assert model.loss_curve_[-1] == pytest.approx(value, rel=1e-9)
    assert model.n_iter_ == len(model.loss_curve_) < 8


def test_forms_of_y():
    x, time, event = make_data(80)
    structured = np.array(list(zip(event, time, strict=True)), dtype=[("dead", "?"), ("days", "<f8")])
    forms = [
        structured,
        structured[["days", "dead"]],
        np.array(list(zip(event, time, strict=True)), dtype=[("event", "<i8"), ("time", "<f8")]),
        columns(time, event),
        columns(time, event).tolist(),
        pd.DataFrame({"days": time, "dead": event.astype(int)}),
        pd.DataFrame({"dead": event, "days": time}),
        pd.DataFrame({"Event": event.astype(int), "Time": time}),
    ]
    for y in forms:
        found_time, found_event = as_survival(y)
        np.testing.assert_array_equal(found_time, time)
        np.testing.assert_array_equal(found_event, event)
        assert found_event.dtype == bool
    all_died = CoxRegressor().fit(x, time).coef_
    np.testing.assert_array_equal(all_died, CoxRegressor().fit(x, columns(time, np.ones(80))).coef_)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        np.testing.assert_array_equal(CoxRegressor().fit(x, time[:, None]).coef_, all_died)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (columns(np.ones(4), [0, 0, 0, 0]), "no event: all 4 times are censored"),
        (columns(np.ones(4), [0, 1, 2, 1]), "events must be 0 or 1.*2"),
        (columns([1.0, np.nan, 2.0, 3.0], np.ones(4)), "NaN"),
        (columns([1.0, 2.0], [1, 1]), "inconsistent"),
        (np.ones((4, 3)), r"got shape \(4, 3\)"),
        (pd.DataFrame(np.ones((4, 3)), columns=list("abc")), "two columns.*'a', 'b', 'c'"),
        (None, "requires y"),
    ],
)
def test_bad_targets_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        CoxRegressor().fit(np.arange(8.0).reshape(4, 2), y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "adam"}, "method must be one of 'exact'.*'adam'"),
        ({"ties": "exact"}, "ties must be one of .*'exact'"),
        ({"method": "sox", "ties": "efron"}, "method='sox' has Breslow's ties only"),
        ({"alpha": -1.0}, r"alpha must be finite and at least 0.0, got -1.0"),
        ({"gamma": 0.0}, "gamma .*got 0.0"),
        ({"beta": 1.5}, "beta .*got 1.5"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"max_iter": 0}, "max_iter must be at least 1, got 0"),
        ({"tol": -1.0}, "tol, if not None, must be finite and at least 0.0, got -1.0"),
        ({"learning_rate": 0.0}, "learning_rate.* above 0.0, got 0.0"),
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
    model = CoxRegressor(alpha=alpha).fit(np.column_stack([x, np.full(len(x), 7.7)]), y)
    np.testing.assert_allclose(model.coef_, [*expected.coef_, 0.0], rtol=1e-12)
    np.testing.assert_allclose(model.standard_error_, [*expected.standard_error_, np.nan], rtol=1e-12)


def test_collinear_features_share_a_coefficient():
    """Of b x + c (2 x + 3) only b + 2 c is known, and b = 2 c after scaling to one spread."""
    x, time, event = make_data()
    y = columns(time, event)
    expected = CoxRegressor().fit(x, y)
    for dtype in (np.float64, np.float32):
        model = CoxRegressor().fit(np.column_stack([x, 2 * x[:, 0] + 3]).astype(dtype), y)
        first, second, third = expected.coef_
        np.testing.assert_allclose(model.coef_, [first / 2, second, third, first / 4], rtol=1e-5)
        np.testing.assert_array_equal(np.isnan(model.standard_error_), [True, False, False, True])
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


def test_time_as_a_feature_has_predictions_all_the_same():
    _, time, event = make_data(100, tied=False)
    with pytest.warns(ConvergenceWarning, match="rises for ever along x0:"):
        model = CoxRegressor().fit(-time[:, None], columns(time, event))
    survival = model.predict_survival_function(-time[:, None], as_frame=False)
    assert np.isfinite(survival).all()
    assert model.score(-time[:, None], columns(time, event)) == 1.0


def test_degenerate_sizes():
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
    with pytest.raises(TypeError, match="dense data is required"):
        CoxRegressor(method="sox").fit(sparse.csr_matrix(x), y)


def test_hazards_are_steps():
    """Without features' effect Breslow's hazard is deaths / at risk: 1/4 at time 1, 2/3 at time 2, none at 3."""
    y = columns([1.0, 2.0, 2.0, 3.0], [1, 1, 1, 0])
    model = CoxRegressor().fit(np.ones((4, 1)), y)
    np.testing.assert_allclose(model.baseline_cumulative_hazard_, [1 / 4, 1 / 4 + 2 / 3, 1 / 4 + 2 / 3], rtol=1e-14)
    times = [0.5, 1.0, 1.9, 2.0, 99.0]
    hazard = model.predict_cumulative_hazard_function(np.ones((1, 1)), times=times, as_frame=False)
    np.testing.assert_allclose(hazard, [[0, 1 / 4, 1 / 4, 11 / 12, 11 / 12]], rtol=1e-14)
    survival = model.predict_survival_function(np.ones((1, 1)), times=times, as_frame=False)
    np.testing.assert_allclose(survival, np.exp(-hazard), rtol=1e-14)
    with pytest.raises(ValueError, match="times"):
        model.predict_survival_function(np.ones((1, 1)), times=[np.nan])


def test_without_pandas_there_are_arrays(monkeypatch):
    x, time, event = make_data(50)
    model = CoxRegressor().fit(x, columns(time, event))
    framed, table = model.predict_survival_function(x), model.summary
    monkeypatch.setattr(_survival.importlib.util, "find_spec", lambda name: None)
    np.testing.assert_array_equal(model.predict_survival_function(x), framed.to_numpy())
    assert model.summary["covariate"].tolist() == ["x0", "x1", "x2"]
    np.testing.assert_array_equal(model.summary["se(coef)"], table["se(coef)"])


@pytest.mark.parametrize("method", RULES)
def test_descent_comes_near_the_optimum(method):
    """Within 0.002 of the exact minimum, which lies more than 0.25 below the objective of w = 0."""
    x, time, event = make_data(600, tied=False)
    x, y = x * [100.0, 0.01, 1.0], columns(time, event)
    exact = CoxRegressor(alpha=1e-6).fit(x, y)
    model = CoxRegressor(method=method, alpha=1e-6, random_state=0).fit(x, y)
    assert exact.loss_curve_[0] - exact.loss_curve_[-1] > 0.25
    assert 0 <= min(model.loss_curve_) - exact.loss_curve_[-1] < 0.002
    assert model.log_likelihood_ <= exact.log_likelihood_ + 1e-3
    np.testing.assert_allclose(model.standard_error_, exact.standard_error_, rtol=0.1)
    again = clone(model).fit(x, y)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert again.loss_curve_ == model.loss_curve_


ENGINE_RULES = {"bsgd": fcco.BSGD(), "soap": fcco.SOAP(0.3), "moap": fcco.MOAP(0.3), "sox": fcco.SOX(0.3)}


@pytest.mark.parametrize("method", RULES)
def test_descent_takes_the_steps_of_the_engine(method):
    n, d, lr, beta, alpha, steps = 40, 3, 0.1, 0.3, 0.05, 50
    x, time, event = make_data(n, d)
    draws, form = cox_draws(time, event, 8), cox_form(method, 0.3, int(event.sum()))
    start = np.array([0.3, -0.2, 0.1])
    run, shadow = (_loop.new_run(start, n, 1, np.arange(n), np.zeros(0, np.int64), 5) for _ in range(2))
    _loop.train(x, form, draws, run, np.full(steps, lr), np.ones(d), beta, alpha, np.empty(steps))
    loss_fn = fcco.losses.CoxLoss(n, rule=ENGINE_RULES[method])
    loss_fn.coupled.n_outer = int(event.sum())  # as with n_events, which would also weigh the censored apart
    w = torch.tensor(start, requires_grad=True)
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=beta, weight_decay=alpha)
    batch, target = _loop.empty_batch(draws, 1), [torch.from_numpy(part) for part in (time, event)]
    for _ in range(steps):
        rows = torch.from_numpy(batch.rows[: _loop.fill_batch(draws, shadow, batch)].copy())
        optimizer.zero_grad()
        loss_fn(torch.from_numpy(x)[rows] @ w, *(part[rows] for part in target), rows).backward()
        optimizer.step()
    assert np.abs(run.w - start).max() > 0.1
    np.testing.assert_allclose(run.w, w.detach().numpy(), rtol=1e-10)


@pytest.mark.parametrize("method", ["exact", "soap"])
def test_warm_start_and_limits(method, capsys):
    x, time, event = make_data()
    y = columns(time, event)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        model = CoxRegressor(method=method, max_iter=2, warm_start=True, verbose=1, random_state=0).fit(x, y)
    assert "objective" in capsys.readouterr().out
    assert model.n_iter_ == 2
    reached = min(model.loss_curve_)
    model.set_params(max_iter=100, verbose=0).fit(x, y)
    assert model.loss_curve_[0] < reached + 0.01
    cold = CoxRegressor(method=method, random_state=0).fit(x, y)
    np.testing.assert_allclose(model.coef_, cold.coef_, rtol=1e-9 if method == "exact" else 0.2)
    with pytest.raises(ValueError, match="X has 2 features, and the fit before had 3"):
        model.fit(x[:, :2], y)


def test_works_in_scikit_learn():
    x, time, event = make_data()
    y = np.array(list(zip(event, time, strict=True)), dtype=[("event", "?"), ("time", "<f8")])
    pipeline = make_pipeline(StandardScaler(), CoxRegressor())
    search = GridSearchCV(pipeline, {"coxregressor__alpha": [0.0, 10.0]}, error_score="raise").fit(x, y)
    assert search.best_params_ == {"coxregressor__alpha": 0.0}
    model = CoxRegressor().fit(x, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))


@parametrize_with_checks([CoxRegressor(), CoxRegressor(method="sox", max_iter=20, random_state=0)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_checks(estimator, check):
    """Checks have tiny data, on which passes run out and likelihoods rise for ever."""
    check(estimator)


def test_descent_never_ends_above_its_start():
    x, time, event = make_data()
    y = columns(time, event)
    start = CoxRegressor().fit(x, y).loss_curve_[0]
    model = CoxRegressor(method="sox", learning_rate=1e4, tol=0, max_iter=2, random_state=0)
    with pytest.warns(ConvergenceWarning, match="no pass improved on the start"):
        model.fit(x, y)
    assert -model.log_likelihood_ / event.sum() == pytest.approx(start)


def test_a_field_named_time_tells_the_other():
    y = np.array([(2.0, 1), (3.0, 0)], dtype=[("time", "<f8"), ("status", "<i8")])
    np.testing.assert_array_equal(as_survival(y), ([2.0, 3.0], [True, False]))


def test_no_baseline_before_a_fit():
    assert not hasattr(CoxRegressor(), "baseline_cumulative_hazard_")
    with pytest.raises(NotFittedError):
        _ = CoxRegressor().baseline_cumulative_hazard_
