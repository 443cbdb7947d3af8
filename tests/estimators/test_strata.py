"""CoxRegressor with strata and late entries: other libraries, the exact objective, predictions, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimators.survival_data import STRATIFIED, TIES, columns, golden, make_data
from fcco.compiled._cox import risk_sets, sort_order
from fcco.compiled._intervals import cover, cover_rows, intervals, within
from fcco.estimators import CoxRegressor
from fcco.estimators._columns import SortedRows
from fcco.estimators._cox_objective import CoxObjective
from fcco.estimators._cox_truncated import TruncatedCoxObjective
from fcco.functional import baseline_hazard, cox_loss


def given(name, kind):
    """The arguments of ``fit`` beside X and y."""
    known = {"strata": np.array(STRATIFIED["stratum"]), "entry": np.array(STRATIFIED[name]["entries"])}
    return known if kind == "both" else {kind: known[kind]}


def cohort(n=80, tied=True):
    x, time, event = make_data(n, tied=tied)
    rng = np.random.default_rng(3)
    entry = time - (rng.integers(1, 6, n) if tied else rng.exponential(size=n))
    return x, time, event, rng.integers(0, 3, n), entry


@pytest.mark.parametrize("kind", ["strata", "entry", "both"])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("name", ["tied", "untied"])
def test_agrees_with_lifelines_and_statsmodels(name, ties, kind):
    x, y, _ = golden(name)
    expected = STRATIFIED[name][kind][ties]
    model = CoxRegressor(ties=ties).fit(pd.DataFrame(x), y, **given(name, kind))
    np.testing.assert_allclose(model.coef_, expected["coef"], rtol=1e-6)
    np.testing.assert_allclose(model.standard_error_, expected["se"], rtol=1e-6)
    np.testing.assert_allclose(model.log_likelihood_, expected["log_likelihood"], rtol=1e-9)


@pytest.mark.filterwarnings("ignore:times go up to .* of the stratum")
@pytest.mark.parametrize("name", ["tied", "untied"])
def test_baselines_and_concordance_agree_with_lifelines(name):
    x, y, _ = golden(name)
    expected, strata = STRATIFIED[name]["strata"]["efron"], pd.Series(STRATIFIED["stratum"], dtype="category")
    model = CoxRegressor(ties="efron").fit(x, y, strata=strata)
    assert model.strata_.tolist() == ["east", "north", "south"]
    np.testing.assert_allclose(model.predict(x), expected["log_risk"], rtol=1e-5, atol=1e-7)
    at_mean = np.tile(model.mean_, (3, 1))
    hazard = model.predict_cumulative_hazard_function(
        at_mean, times=expected["times"], as_frame=False, strata=expected["strata"]
    )
    np.testing.assert_allclose(hazard, expected["baseline_cumulative_hazard"], rtol=1e-6)
    assert model.baseline_cumulative_hazard_.shape == (3, len(model.unique_times_))
    assert model.score(x, y, strata=strata) == pytest.approx(expected["concordance"], rel=1e-12)
    frame = model.predict_survival_function(pd.DataFrame(x, index=np.arange(60) + 5), times=[2.0], strata=strata)
    np.testing.assert_allclose(
        -np.log(frame[2.0].to_numpy()),
        [model.baseline_cumulative_hazard_[k][model.unique_times_ <= 2.0][-1] for k in strata.cat.codes]
        * np.exp(model.predict(x)),
    )


@pytest.mark.parametrize("scale", [0.5, 400.0])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("late", [False, True])
def test_derivatives_are_those_of_the_exact_objective(ties, late, scale):
    """At scale 400 log risks lie thousands apart, and a difference of sums would have no digit left."""
    x, time, event, stratum, entry = cohort()
    x = np.round(x)
    order, counts = sort_order(time, event, stratum), np.ones(len(x))
    rows, penalty = SortedRows(x, order, counts), np.full(3, 0.3)
    sets = risk_sets(time[order], event[order], ties == "efron", counts, stratum[order])
    objective = CoxObjective(rows, sets, penalty)
    if late:
        times = np.stack([entry, time])[:, order]
        objective = TruncatedCoxObjective(rows, times, event[order], stratum[order], ties == "efron", counts, penalty)
    w = scale * np.array([1.0, 0.0, -1.0]) * x.std(0)
    z, strata = torch.from_numpy((x - x.mean(0)) / x.std(0)), torch.from_numpy(stratum)
    entries = torch.from_numpy(entry) if late else None

    def exact(w):
        loss = cox_loss(z @ w, torch.from_numpy(time), torch.from_numpy(event), strata, entries, ties=ties)
        return loss + 0.15 * (w @ w)

    point = torch.tensor(w, requires_grad=True)
    np.testing.assert_allclose(objective.value(w), exact(point).item(), rtol=1e-12)
    gradient, hessian = objective.derivatives()
    np.testing.assert_allclose(gradient, torch.autograd.grad(exact(point), point)[0], rtol=1e-9, atol=1e-11)
    if scale < 1:
        np.testing.assert_allclose(hessian, torch.autograd.functional.hessian(exact, point), rtol=1e-9, atol=1e-11)
    along, highest = rows.linear(np.ones(3)), []
    entry, time, event, stratum = (part[order] for part in (entry, time, event, stratum))
    for i in np.flatnonzero(event):
        at_risk = (time >= time[i]) & (stratum == stratum[i]) & ((entry < time[i]) | (not late))
        highest.append(along[at_risk].max())
    np.testing.assert_allclose(objective.highest_at_risk(along), highest, rtol=1e-6)


@pytest.mark.parametrize("points", [1, 2, 7, 16])
@pytest.mark.parametrize("scale", [1.0, 400.0])
def test_sums_over_intervals(points, scale):
    rng = np.random.default_rng(0)
    first = rng.integers(0, points, 40)
    past = np.minimum(first + rng.integers(0, points + 1, 40), points)
    logs, values, x = scale * rng.normal(size=40), scale * rng.normal(size=points), rng.normal(size=(40, 2))
    sets = intervals(first, past, points)
    covers = (first <= np.arange(points)[:, None]) & (np.arange(points)[:, None] < past)
    expected = np.array([np.logaddexp.reduce(logs[row], initial=-np.inf) for row in covers])
    np.testing.assert_allclose(cover(logs, sets), expected, rtol=1e-12, atol=1e-12)
    sums = [np.logaddexp.reduce(values[row], initial=-np.inf) for row in covers.T]
    np.testing.assert_allclose(within(values, sets), sums, rtol=1e-12, atol=1e-12)
    units = np.where(np.isfinite(expected), expected, 0.0)
    rows = np.stack([np.exp(logs[row] - unit) @ x[row] for row, unit in zip(covers, units, strict=True)])
    np.testing.assert_allclose(cover_rows(logs, x, sets, units), rows, rtol=1e-11, atol=1e-12)


def test_weights_are_repetitions():
    x, time, event, stratum, entry = cohort()
    weight = np.random.default_rng(4).integers(0, 4, len(x))
    weighted = CoxRegressor().fit(x, columns(time, event), sample_weight=weight, strata=stratum, entry=entry)
    x, time, event, stratum, entry = (part.repeat(weight, axis=0) for part in (x, time, event, stratum, entry))
    repeated = CoxRegressor().fit(sparse.csr_matrix(x), columns(time, event), strata=stratum, entry=entry)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-8)
    np.testing.assert_allclose(weighted.standard_error_, repeated.standard_error_, rtol=1e-8)
    np.testing.assert_allclose(weighted.baseline_cumulative_hazard_, repeated.baseline_cumulative_hazard_, rtol=1e-8)


def test_baselines_are_those_of_the_functional_interface():
    x, time, event, stratum, entry = cohort()
    model = CoxRegressor().fit(x, columns(time, event), strata=stratum, entry=entry)
    known = (torch.from_numpy(part) for part in (model.predict(x), time, event, stratum, entry))
    baseline = baseline_hazard(*known)
    for k in range(3):
        own = baseline.strata.numpy() == k
        places = np.searchsorted(model.unique_times_, baseline.times.numpy()[own])
        np.testing.assert_allclose(
            model.baseline_cumulative_hazard_[k][places], baseline.hazard.numpy()[own], rtol=1e-9
        )


def test_entries_before_all_events_change_nothing():
    x, time, event, stratum, _ = cohort()
    plain = CoxRegressor(ties="efron").fit(x, columns(time, event), strata=stratum)
    late = CoxRegressor(ties="efron").fit(x, columns(time, event), strata=stratum, entry=np.full(len(x), -np.inf))
    np.testing.assert_allclose(late.coef_, plain.coef_, rtol=1e-9)
    np.testing.assert_allclose(late.covariance_, plain.covariance_, rtol=1e-9)
    np.testing.assert_allclose(late.baseline_cumulative_hazard_, plain.baseline_cumulative_hazard_, rtol=1e-9)


@pytest.mark.parametrize("late", [False, True])
def test_an_endless_likelihood_is_named(late):
    """Events stand highest in their strata, and not among all."""
    x, time, event, stratum, entry = cohort(tied=False)
    x = (event - time / time.max() + 3.0 * stratum)[:, None]
    with pytest.warns(ConvergenceWarning, match="rises for ever along x0:"):
        CoxRegressor().fit(x, columns(time, event), strata=stratum, entry=entry if late else None)


def test_strata_and_entries_are_routed():
    x, time, event, stratum, entry = cohort(90)
    y = columns(time, event)
    with sklearn.config_context(enable_metadata_routing=True):
        model = CoxRegressor().set_fit_request(strata=True, entry=True).set_score_request(strata=True)
        piped = make_pipeline(StandardScaler(), model)
        scores = cross_val_score(piped, x, y, params={"strata": stratum, "entry": entry}, error_score="raise", cv=3)
    train = np.arange(30, 90)
    fitted = CoxRegressor().fit(x[train], y[train], strata=stratum[train], entry=entry[train])
    assert scores[0] == pytest.approx(fitted.score(x[:30], y[:30], strata=stratum[:30]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"strata": [1, 2]}, ValueError, r"strata must have one stratum for each row, the shape \(80,\); got \(2,\)"),
        ({"strata": [None] + ["a"] * 79}, ValueError, "strata must not be missing; got None at position 0"),
        ({"entry": np.full(80, 1e9)}, ValueError, r"entry must be below the row's time, .*; got 1000000000.0 at pos"),
        ({"entry": [0.0]}, ValueError, r"entry must have one time for each row, the shape \(80,\); got \(1,\)"),
    ],
)
def test_bad_strata_and_entries_are_refused(options, error, message):
    x, time, event, *_ = cohort()
    with pytest.raises(error, match=message):
        CoxRegressor().fit(x, columns(time, event), **options)


def test_times_beyond_the_last_one_of_a_stratum_are_warned_of():
    x, y, strata = np.arange(6.0)[:, None] % 4, columns([1.0, 2.0, 3.0, 4.0, 8.0, 9.0], [1, 1, 0, 1, 1, 0]), [*"aaabbb"]
    model = CoxRegressor(alpha=0.1).fit(x, y, strata=strata)
    for times in ([4.0], [9.5]):
        with pytest.warns(
            UserWarning, match=rf"times go up to {times[0]:g}, beyond 3, the last time of the stratum a\."
        ):
            model.predict_survival_function(x, times, strata=strata)
    model.predict_survival_function(x[3:], [4.0, 9.0], strata=strata[3:])
    assert model.predict_survival_function(x, strata=strata, as_frame=False).shape == (6, 6)
    model.plot_survival(x, strata=strata)


def test_strata_of_predictions_are_checked():
    x, time, event, stratum, entry = cohort()
    model = CoxRegressor().fit(x, columns(time, event), strata=stratum)
    with pytest.raises(ValueError, match=r"strata must be given, one of strata_ .*was fitted with 3 strata"):
        model.predict_survival_function(x)
    with pytest.raises(ValueError, match=r"strata must be among those of the fit, strata_; got .*7.* at position 1"):
        model.predict_survival_function(x[:2], strata=[0, 7])
    with pytest.raises(ValueError, match="strata must not be given: the model was fitted without strata"):
        CoxRegressor().fit(x, columns(time, event)).predict_survival_function(x, strata=stratum)
    for name, values in (("strata", stratum), ("entry", entry)):
        with pytest.raises(TypeError, match=f"fit does not support {name} with method='sox'"):
            CoxRegressor(method="sox").fit(x, columns(time, event), **{name: values})


def _made(n=40):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, 2)), np.column_stack([rng.exponential(size=n), rng.random(n) < 0.7])
    return x, y, np.arange(n) % 4


def test_a_score_without_the_strata_of_the_fit_says_so():
    x, y, strata = _made()
    model = CoxRegressor().fit(x, y, strata=strata)
    with pytest.warns(UserWarning, match="fitted with strata and is scored without"):
        model.score(x, y)
    assert model.score(x, y, strata=strata) == model.concordance_index_


def test_strata_of_single_rows_are_refused():
    """Nobody is compared with anybody, and coefficients of 0 would look like a result."""
    x, y, _ = _made()
    with pytest.raises(ValueError, match="strata must have rows to compare; got 40 strata for 40 rows"):
        CoxRegressor().fit(x, y, strata=x[:, 0])


def test_the_name_of_a_column_is_not_a_column():
    x, y, _ = _made()
    with pytest.raises(ValueError, match=r"Pass the column itself, X\['city'\]"):
        CoxRegressor().fit(x, y, strata="city")
    with pytest.raises(TypeError, match=r"Pass the column itself, X\['since'\]"):
        CoxRegressor().fit(x, y, entry="since")


def test_the_summary_says_that_concordance_ignores_entries(capsys):
    x, y, _ = _made()
    CoxRegressor().fit(x, y, entry=y[:, 0] / 2).print_summary()
    assert "(entries are ignored)" in capsys.readouterr().out
