"""What a fitted Cox model prints and plots, and its concordance index."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.exceptions import ConvergenceWarning, NotFittedError, UndefinedMetricWarning
from sklearn.linear_model import LinearRegression
from sklearn.metrics import make_scorer

from estimators.survival_data import columns, make_data
from fcco import functional
from fcco.estimators import CoxRegressor, _survival_data, concordance_index

plt = pytest.importorskip("matplotlib.pyplot")
plt.switch_backend("Agg")


@pytest.fixture(scope="module")
def cohort():
    x, time, event = make_data(120)
    return pd.DataFrame(x, columns=["age", "dose", "sex"]), columns(time, event)


@pytest.fixture(scope="module")
def model(cohort):
    return CoxRegressor().fit(*cohort)


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


class TestSummary:
    def test_header(self, model, cohort, capsys):
        time, event = cohort[1].T
        model.print_summary(4)
        lines = dict(line.strip().split("  ", 1) for line in capsys.readouterr().out.split("\n\n")[0].splitlines())
        _, sizes = np.unique(time[event == 1], return_counts=True)
        assert lines["rows"] == "120"
        assert lines["events"] == f"{event.sum():g}, of which {sizes[sizes > 1].sum()} share a time with another"
        assert lines["ties"] == "breslow"
        assert lines["log-likelihood"] == f"{model.log_likelihood_:.4f}"
        assert lines["concordance"] == f"{model.score(*cohort):.4f}"
        ratio = 2 * (model.log_likelihood_ - model.null_log_likelihood_)
        assert lines["likelihood ratio"].startswith(f"{ratio:.4f} on 3 df, p ")
        assert stats.chi2.sf(ratio, 3) < 5e-5
        assert lines["likelihood ratio"].endswith("p <0.00005")

    def test_the_null_model_has_no_coefficients(self, model, cohort):
        time, event = (torch.tensor(part) for part in cohort[1].T)
        zero = functional.cox_loss(torch.zeros_like(time), time, event)
        assert model.null_log_likelihood_ == pytest.approx(-(zero * event.sum()).item(), rel=1e-12)
        descent = CoxRegressor(method="soap", max_iter=2, tol=0, random_state=0).fit(*cohort)
        assert descent.null_log_likelihood_ == pytest.approx(model.null_log_likelihood_, rel=1e-12)

    def test_table(self, model, capsys):
        model.print_summary()
        header, *rows = capsys.readouterr().out.split("\n\n")[1].splitlines()
        titles = ["coef", "exp(coef)", "se(coef)", "coef lower 95%", "coef upper 95%", "z", "p"]
        assert [title.strip() for title in header.split("  ") if title.strip()] == titles
        assert [row.split()[0] for row in rows] == ["age", "dose", "sex"]
        for row, expected in zip(rows, model.summary[titles[:-1]].to_numpy(), strict=True):
            assert row.split()[1:7] == [f"{value:.2f}" for value in expected]
        assert {len(row) for row in rows} == {len(header)}

    def test_without_pandas_it_is_the_same(self, model, capsys, monkeypatch):
        model.print_summary()
        expected = capsys.readouterr().out
        monkeypatch.setattr(_survival_data.importlib.util, "find_spec", lambda name: None)
        model.print_summary()
        assert capsys.readouterr().out == expected

    @pytest.mark.filterwarnings("ignore:some coefficients are not determined")
    def test_says_what_is_not_determined(self, cohort, capsys):
        x, y = cohort
        CoxRegressor().fit(x.assign(twice=2 * x["age"], one=1.0), y).print_summary()
        printed = capsys.readouterr().out
        assert " on 3 df" in printed
        assert printed.splitlines()[-1].startswith("nan: the coefficient is not determined")

    @pytest.mark.filterwarnings("ignore:some coefficients are not determined")
    def test_collinear_dummies_leave_the_test_as_it_is(self, cohort, capsys):
        """All dummies of a city add up to 1, so that one of them says nothing new."""
        x, y = cohort
        city = pd.Series(np.random.default_rng(1).choice(list("abcd"), len(x)))
        lines = []
        for drop_first in (False, True):
            dummies = pd.get_dummies(city, drop_first=drop_first, dtype=float)
            CoxRegressor().fit(pd.concat([x, dummies], axis=1), y).print_summary(4)
            lines.append([line for line in capsys.readouterr().out.splitlines() if "likelihood ratio" in line])
        assert lines[0] == lines[1]
        assert " on 6 df, p " in lines[0][0]

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    def test_more_features_than_rows_leave_fewer_degrees_of_freedom(self, capsys):
        rng = np.random.default_rng(0)
        CoxRegressor().fit(rng.normal(size=(12, 30)), columns(rng.exponential(size=12), np.ones(12))).print_summary()
        assert " on 11 df, p " in capsys.readouterr().out

    @pytest.mark.filterwarnings("ignore:some coefficients are not determined")
    def test_says_where_there_is_no_maximum(self, cohort, capsys):
        x, y = cohort
        alive = pd.Series((y[:, 1] == 0) & (np.arange(len(y)) % 2 == 0), name="alive")
        with pytest.warns(ConvergenceWarning, match=r"no maximum \(monotone likelihood, or complete separation\)"):
            model = CoxRegressor().fit(x.assign(alive=alive), y)
        model.print_summary()
        assert "\nno maximum: the likelihood rises for ever along alive; coeff" in capsys.readouterr().out
        with pytest.warns(ConvergenceWarning, match="along x0, x1, .*x9 and 40 more: these"):
            CoxRegressor().fit(np.tile(alive.to_numpy()[:, None], 50), y)

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
    def test_says_that_the_likelihood_is_flat(self, capsys):
        """Nobody is at risk with the only event."""
        with pytest.warns(ConvergenceWarning, match="no coefficient is determined, as no event has rows at risk that"):
            model = CoxRegressor().fit([[1.0], [2.0], [3.0]], columns([1.0, 2.0, 3.0], [0, 0, 1]))
        model.print_summary()
        assert (
            capsys.readouterr()
            .out.splitlines()[-1]
            .endswith("no event has rows at risk that differ: the likelihood is flat")
        )

    def test_penalties_and_strata(self, cohort, capsys):
        x, y = cohort
        CoxRegressor(alpha=0.1).fit(x, y, strata=np.arange(120) % 3).print_summary()
        printed = capsys.readouterr().out
        assert "alpha  0.1\n" in printed
        assert "strata  3\n" in printed
        assert "likelihood ratio" not in printed

    def test_refuses(self, model):
        with pytest.raises(ValueError, match="decimals must be at least 0; got -1"):
            model.print_summary(-1)
        for name in ("concordance_index_", "summary"):
            with pytest.raises(NotFittedError):
                getattr(CoxRegressor(), name)
        with pytest.raises(NotFittedError):
            CoxRegressor().print_summary()


class TestPlots:
    @pytest.mark.parametrize(("ratios", "kind", "nothing"), [(False, "coef", 0.0), (True, "exp(coef)", 1.0)])
    def test_coefficients(self, model, ratios, kind, nothing):
        ax = model.plot_coefficients(hazard_ratios=ratios)
        reference, points, *_ = ax.lines
        assert set(reference.get_xdata()) == {nothing}
        np.testing.assert_array_equal(points.get_xdata(), model.summary[kind])
        (bars,) = ax.collections
        ends = np.array([segment[:, 0] for segment in bars.get_segments()])
        np.testing.assert_allclose(ends, model.summary[[f"{kind} lower 95%", f"{kind} upper 95%"]])
        assert [label.get_text() for label in ax.get_yticklabels()] == ["age", "dose", "sex"]
        assert ax.get_ylim()[0] > ax.get_ylim()[1]

    def test_survival(self, model, cohort):
        rows = cohort[0].iloc[[5, 17]]
        ax = model.plot_survival(rows)
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["5", "17"]
        for line, curve in zip(ax.lines, model.predict_survival_function(rows).to_numpy(), strict=True):
            assert line.get_drawstyle() == "steps-post"
            np.testing.assert_array_equal(line.get_xdata(), [0.0, *model.unique_times_])
            np.testing.assert_array_equal(line.get_ydata(), [1.0, *curve])
        assert model.plot_survival(cohort[0].iloc[:11], times=[3.0, 1.0]).get_legend() is None

    def test_rows_of_a_list_are_numbered(self, cohort):
        model = CoxRegressor().fit(cohort[0].to_numpy(), cohort[1])
        ax = model.plot_survival(cohort[0].iloc[:2].to_numpy().tolist())
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0", "1"]

    @pytest.mark.parametrize("scale", [1.0, 0.1])
    def test_hazard_ratios_have_plain_ticks(self, cohort, scale):
        x, y = cohort
        ax = CoxRegressor().fit(x / scale, y).plot_coefficients(hazard_ratios=True)
        ax.figure.canvas.draw()
        low, high = ax.get_xlim()
        shown = [label.get_text() for label in ax.get_xticklabels() if low <= label.get_position()[0] <= high]
        assert len(shown) >= 3
        assert all(text.replace(".", "").isdigit() for text in shown)
        assert not any(label.get_text() for label in ax.get_xticklabels(minor=True))

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    @pytest.mark.parametrize("ratios", [False, True])
    def test_intervals_without_an_end_are_cut(self, cohort, ratios):
        x, y = cohort
        alive = (y[:, 1] == 0) & (np.arange(len(y)) % 2 == 0)
        model = CoxRegressor().fit(x.assign(alive=alive), y)
        assert model.standard_error_[3] > 1000
        ax = model.plot_coefficients(hazard_ratios=ratios)
        ax.figure.canvas.draw()
        limits = np.log(ax.get_xlim()) if ratios else np.array(ax.get_xlim())
        assert np.abs(limits).max() < 50

    def test_many_coefficients_have_room(self, cohort):
        model = CoxRegressor(alpha=0.1).fit(np.tile(cohort[0], (1, 20)), cohort[1])
        assert model.plot_coefficients().figure.get_figheight() == 16.0

    @pytest.mark.parametrize("feature", ["dose", 1])
    def test_partial_effects(self, model, feature):
        ax = model.plot_partial_effects(feature, [-1, 0.5], times=[1.0, 5.0])
        rows = pd.DataFrame([model.mean_] * 3, columns=["age", "dose", "sex"])
        rows.loc[:1, "dose"] = [-1.0, 0.5]
        curves = model.predict_survival_function(rows, times=[1.0, 5.0], as_frame=False)
        for line, curve in zip(ax.lines, curves, strict=True):
            np.testing.assert_allclose(line.get_ydata(), curve, rtol=1e-12)
        names = [text.get_text() for text in ax.get_legend().get_texts()]
        assert names == ["dose = -1", "dose = 0.5", "mean"]

    def test_many_partial_effects_have_a_colour_bar(self, model):
        ax = model.plot_partial_effects("dose", np.linspace(-1, 1, 30), times=[1.0, 5.0])
        assert len({line.get_color() for line in ax.lines[:-1]}) == 30
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["mean"]
        bar = ax.figure.axes[1]
        assert (bar.get_ylabel(), *bar.get_ylim()) == ("dose", -1.0, 1.0)

    def test_strata(self, cohort):
        x, y = cohort
        model = CoxRegressor().fit(x, y, strata=np.where(np.arange(120) % 2, "b", "a"))
        ax = model.plot_survival(x.iloc[:2], times=[1.0, 5.0], strata=["a", "b"])
        curves = model.predict_survival_function(x.iloc[:2], [1.0, 5.0], as_frame=False, strata=["a", "b"])
        np.testing.assert_array_equal([line.get_ydata() for line in ax.lines], curves)
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0, stratum a", "1, stratum b"]
        ax = model.plot_partial_effects("age", [0.0], stratum="b")
        assert len(ax.lines) == 2
        with pytest.raises(ValueError, match="got 'c'"):
            model.plot_partial_effects("age", [0.0], stratum="c")
        with pytest.raises(ValueError, match="strata must be given"):
            model.plot_partial_effects("age", [0.0])

    def test_take_axes(self, model, cohort):
        ax = plt.figure().add_subplot()
        assert model.plot_coefficients(ax=ax) is ax
        assert model.plot_survival(cohort[0].iloc[:1], ax=ax) is ax
        assert model.plot_partial_effects("age", [1.0], ax=ax) is ax
        assert model.plot_loss(ax) is ax
        assert len(plt.get_fignums()) == 1

    @pytest.mark.parametrize(
        ("feature", "values"),
        [("weight", [1.0]), (3, [1.0]), (-1, [1.0]), ("age", [np.nan]), ("age", [[1.0]]), ("age", [])],
    )
    def test_refuse(self, model, feature, values):
        with pytest.raises(ValueError, match=r"feature must be one of age, dose, sex.*got|values must be finite"):
            model.plot_partial_effects(feature, values)

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [("plot_coefficients", ()), ("plot_survival", (0,)), ("plot_partial_effects", (0, [1.0]))],
    )
    def test_say_that_matplotlib_is_missing(self, name, arguments, model, cohort, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
        arguments = (cohort[0],) if name == "plot_survival" else arguments
        with pytest.raises(ImportError, match=rf"CoxRegressor.{name} needs matplotlib: pip install 'fcco\[plot\]'"):
            getattr(model, name)(*arguments)
        with pytest.raises(NotFittedError):
            getattr(CoxRegressor(), name)(*arguments)


class TestConcordance:
    def test_agrees_with_that_of_tensors(self, model, cohort):
        x, y = cohort
        risk = model.predict(x)
        weight = np.arange(120.0) % 4
        for known, weights in (({}, None), ({"sample_weight": weight}, torch.tensor(weight))):
            parts = (torch.tensor(part) for part in (risk, *y.T))
            expected = functional.concordance_index(*parts, weight=weights).item()
            assert concordance_index(y, risk, **known) == pytest.approx(expected, rel=1e-12)
            assert model.score(x, y, **known) == concordance_index(y, risk, **known)
        assert concordance_index(torch.tensor(y), torch.tensor(risk)) == model.score(x, y)
        assert concordance_index(y, risk, strata=np.zeros(120)) == model.score(x, y)

    def test_scores_any_regressor(self, cohort):
        x, y = cohort
        model = LinearRegression().fit(x, -np.log(y[:, 0]))
        assert make_scorer(concordance_index)(model, x, y) == concordance_index(y, model.predict(x)) > 0.6

    def test_refuses(self, cohort):
        y = cohort[1]
        with pytest.raises(
            ValueError, match=r"risk must have one risk for each row, the shape \(120,\); got \(120, 1\)"
        ):
            concordance_index(y, np.ones((120, 1)))
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            concordance_index(y, np.ones(119))
        with pytest.raises(ValueError, match="NaN"):
            concordance_index(y, np.full(120, np.nan))
        with pytest.warns(UndefinedMetricWarning, match="can be compared") as caught:
            assert np.isnan(concordance_index([[1.0, 0], [2.0, 0]], [1.0, 2.0]))
        assert caught[0].filename == __file__
