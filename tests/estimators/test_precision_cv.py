"""AveragePrecisionClassifierCV: what is tried, what is chosen, the last fit, and its probabilities."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV, GroupKFold, ShuffleSplit, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fcco.estimators import AveragePrecisionClassifier, AveragePrecisionClassifierCV
from fcco.estimators._bipartite import cut_between
from fcco.estimators._precision import Setting, calibrate, choose
from fcco.estimators._sharpen import Ranking, Sharpening, logistic_start, push_start

KINDS = [sparse.csr_matrix, sparse.csc_array]


def quick(**options):
    """A small search."""
    defaults = {"C": [0.01, 1.0], "alpha": [0.1, 3.0], "cv": 3, "max_iter": 5, "random_state": 0}
    return AveragePrecisionClassifierCV(**{**defaults, **options})


def far_negatives(n=150, seed=0):
    """A cluster of negatives far out, and a few positives on the other side: no logistic model is right."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0, 0, 0], [6, -6, 0], [2, 2, 0], [-3, -1, 0]])
    kind = rng.choice(4, n, p=[0.55, 0.2, 0.15, 0.1])
    return rng.normal(size=(n, 3)) + centres[kind], kind >= 2


@pytest.fixture(scope="module")
def data():
    return far_negatives()


@pytest.fixture(scope="module")
def fitted(data):
    return quick(standard_errors=0.0).fit(*data)


def standardised(scores):
    return (scores - scores.mean()) / scores.std()


UNEQUAL = "the folds are of rows, however often they count"
BY_SHARE = "predict goes by the share of positives, and not by a probability of 1/2"


@parametrize_with_checks(
    [AveragePrecisionClassifierCV(C=[1.0], alpha=[1.0], cv=2, max_iter=2, random_state=0)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": UNEQUAL,
        "check_sample_weight_equivalence_on_sparse_data": UNEQUAL,
        "check_classifiers_train": BY_SHARE,
    },
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:.* by default the positive class is")
def test_scikit_learns_contract(estimator, check):
    check(estimator)


class TestResults:
    def test_the_table_has_a_row_for_each_setting(self, fitted):
        table = fitted.cv_results_
        splits = [f"split{k}_test_score" for k in range(3)]
        assert list(table) == ["C", "alpha", "temperature", "mean_test_score", "std_test_score", *splits]
        rows = list(zip(*(np.nan_to_num(table[name], nan=-1.0) for name in ("C", "alpha", "temperature")), strict=True))
        start = max(rows[:3], key=lambda row: table["mean_test_score"][rows.index(row)])[0]
        sharpened = [(start, alpha, temperature) for alpha in (0.1, 3.0) for temperature in (0.25, 0.0625)]
        assert rows == [(0.01, -1, -1), (1.0, -1, -1), (-1, -1, -1), *sharpened]
        scores = np.stack([table[name] for name in splits])
        np.testing.assert_allclose(table["mean_test_score"], scores.mean(0))
        np.testing.assert_allclose(table["std_test_score"], scores.std(0))
        assert len(pd.DataFrame(table)) == 7

    def test_without_the_push(self, data):
        table = quick(push=False, alpha=[3.0]).fit(*data).cv_results_
        np.testing.assert_array_equal(np.isnan(table["C"]), np.zeros(4, bool))

    def test_the_scores_of_starts_are_scikit_learns(self, data):
        """Average precision of logistic regression on standardised features, on rows that are left out."""
        x, y = data
        folds = list(StratifiedKFold(4).split(x, y))
        table = quick(cv=folds, alpha=[3.0], temperature=[0.25], push=False).fit(x, y).cv_results_
        for place, C in enumerate((0.01, 1.0)):  # noqa: N806
            model = make_pipeline(StandardScaler(), LogisticRegression(C=C, tol=1e-8))
            expected = cross_val_score(model, x, y, cv=folds, scoring="average_precision")
            found = [table[f"split{k}_test_score"][place] for k in range(4)]
            np.testing.assert_allclose(found, expected, rtol=1e-9)

    def test_the_scores_of_settings_are_those_of_paths(self, data, fitted):
        x, y = data
        folds = StratifiedKFold(3, shuffle=True, random_state=0).split(x, y)
        place = 5  # alpha = 3 at the first temperature
        setting = Setting(*(fitted.cv_results_[name][place] for name in Setting._fields))
        assert setting[1:] == (3.0, 0.25)
        for k, (learn, rest) in enumerate(folds):
            ranking = Ranking.of(x[learn], y[learn])
            start = push_start(ranking) if np.isnan(setting.C) else logistic_start(ranking, setting.C)
            *_, last = Sharpening([0.25], 3.0, max_iter=5).path(ranking, start)
            expected = average_precision_score(y[rest], x[rest] @ ranking.x.coefficients(last.z))
            assert fitted.cv_results_[f"split{k}_test_score"][place] == pytest.approx(expected, rel=1e-9)


class TestChoice:
    @pytest.mark.parametrize("standard_errors", [0.0, 0.5, 2.0, 1e9])
    @pytest.mark.parametrize("seed", range(3))
    def test_follows_the_rule(self, seed, standard_errors):
        """The best setting, if it beats the best start by so many standard errors of the difference."""
        model = quick(standard_errors=standard_errors, max_iter=2).fit(*far_negatives(60, seed))
        table = pd.DataFrame(model.cv_results_)
        starts = table[table.alpha.isna()]
        start, best = table.loc[starts.mean_test_score.idxmax()], table.loc[table.mean_test_score.idxmax()]
        gain = (best - start)[[f"split{k}_test_score" for k in range(3)]].astype(float)
        clearly = gain.mean() > standard_errors * gain.std(ddof=1) / np.sqrt(3)
        chosen = best if clearly else start
        expected = [None if np.isnan(chosen[name]) else chosen[name] for name in ("C", "alpha", "temperature")]
        assert [model.C_, model.alpha_, model.temperature_] == expected
        assert model.best_score_ == pytest.approx(chosen.mean_test_score)

    @pytest.mark.parametrize(("standard_errors", "leaves"), [(3.4, True), (3.5, False)])
    def test_the_standard_error_is_of_the_mean_difference(self, standard_errors, leaves):
        """Gains of 1, 2 and 3 have a mean of 2, a deviation of 1 and a standard error of 1 / sqrt(3)."""
        start, other = Setting(1.0), Setting(1.0, 3.0, 0.25)
        chosen = choose({start: [9.0, 5.0, 1.0], other: [10.0, 7.0, 4.0]}, start, standard_errors)
        assert chosen == (other if leaves else start)

    def test_leaves_the_start_where_that_pays(self, fitted):
        assert fitted.alpha_ in (0.1, 3.0)
        assert fitted.temperature_ in (0.25, 0.0625)
        assert fitted.best_score_ == fitted.cv_results_["mean_test_score"].max()

    def test_otherwise_stays_at_logistic_regression(self, data):
        x, y = data
        model = quick(standard_errors=1e9, push=False).fit(x, y)
        assert model.alpha_ is None
        assert model.temperature_ is None
        logistic = make_pipeline(StandardScaler(), LogisticRegression(C=model.C_, tol=1e-8)).fit(x, y)
        scores, expected = model.decision_function(x), logistic.decision_function(x)
        np.testing.assert_allclose(standardised(scores), standardised(expected), atol=1e-6)

    def test_the_push_may_be_the_start(self):
        search = quick(alpha=[3.0], max_iter=1, standard_errors=1e9)
        chosen = {search.fit(*far_negatives(90, seed)).C_ for seed in range(3)}
        assert None in chosen

    def test_one_fold_has_no_standard_error(self, data):
        x, y = data
        model = quick(cv=ShuffleSplit(1, random_state=0), standard_errors=1e9).fit(x, y)
        table = model.cv_results_
        assert model.best_score_ == table["split0_test_score"].max() == table["mean_test_score"].max()


class TestLastFit:
    def test_is_the_chosen_path_on_all_rows(self, data, fitted):
        x, y = data
        ranking = Ranking.of(x, y)
        start = push_start(ranking) if fitted.C_ is None else logistic_start(ranking, fitted.C_)
        path = Sharpening([t for t in (0.25, 0.0625) if t >= fitted.temperature_], fitted.alpha_, max_iter=5)
        *_, last = path.path(ranking, start)
        np.testing.assert_allclose(fitted.coef_[0], ranking.x.coefficients(last.z), rtol=1e-9)
        assert fitted.loss_curve_ == pytest.approx(path.curve)
        assert fitted.n_iter_ == len(path.curve)

    def test_goes_through_the_temperatures_above(self, data):
        ranking = Ranking.of(*data)
        start = logistic_start(ranking, 1.0)
        z, curve = quick()._fit_setting(ranking, Setting(1.0, 0.1, 0.0625))
        path = Sharpening([0.25, 0.0625], 0.1, max_iter=5)
        *_, last = path.path(ranking, start)
        np.testing.assert_array_equal(z, last.z)
        assert curve == path.curve
        np.testing.assert_array_equal(quick()._fit_setting(ranking, Setting(1.0))[0], start)

    def test_is_that_of_the_classifier_with_these_settings(self, data):
        x, y = data
        model = quick(C=[0.1], alpha=[0.1], temperature=[0.25], push=False, standard_errors=0.0).fit(x, y)
        plain = AveragePrecisionClassifier(C=0.1, alpha=0.1, temperature=0.25, max_iter=5, cv=None).fit(x, y)
        assert model.temperature_ == plain.temperature_ == 0.25
        np.testing.assert_allclose(model.coef_, plain.coef_, rtol=1e-9)
        np.testing.assert_allclose(model.intercept_, plain.intercept_, rtol=1e-9)
        assert model.score(x, y) == pytest.approx(average_precision_score(y, model.decision_function(x)))

    def test_temperatures_may_come_in_any_order(self, data):
        first, second = (quick(temperature=order).fit(*data) for order in ((0.25, 0.0625), (0.0625, 0.25)))
        np.testing.assert_array_equal(first.coef_, second.coef_)
        assert first.best_score_ == second.best_score_

    def test_predicts_as_many_positives_as_there_were(self, data, fitted):
        assert fitted.predict(data[0]).sum() == data[1].sum()


class TestFolds:
    def test_random_state_reproduces(self, data):
        first, second, other = (quick(random_state=seed, alpha=[3.0]).fit(*data) for seed in (3, 3, 4))
        np.testing.assert_array_equal(first.coef_, second.coef_)
        np.testing.assert_array_equal(first.predict_proba(data[0]), second.predict_proba(data[0]))
        assert list(first.cv_results_["split0_test_score"]) != list(other.cv_results_["split0_test_score"])

    def test_of_any_form(self, data):
        x, y = data
        splitter = StratifiedKFold(3, shuffle=True, random_state=0)
        small = {"alpha": [3.0], "push": False, "max_iter": 2}
        expected = quick(**small).fit(x, y)
        for cv in (splitter, list(splitter.split(x, y)), splitter.split(x, y)):
            np.testing.assert_array_equal(quick(**small, cv=cv).fit(x, y).coef_, expected.coef_)
        groups = np.arange(len(y)) % 7
        model = quick(**small, cv=GroupKFold(3).split(x, y, groups)).fit(x, y)
        assert len([name for name in model.cv_results_ if name.startswith("split")]) == 3

    def test_an_iterator_that_is_used_up(self, data):
        model = quick(alpha=[3.0], cv=iter(list(StratifiedKFold(2).split(*data)))).fit(*data)
        with pytest.raises(ValueError, match="at least one fold; an iterator is used up after one fit"):
            model.fit(*data)

    def test_there_are_no_more_than_rows_of_a_class(self):
        x, y = far_negatives(40)
        few = y & (np.cumsum(y) <= 2)
        model = quick(alpha=[3.0], cv=5).fit(x, few)
        assert "split1_test_score" in model.cv_results_
        assert "split2_test_score" not in model.cv_results_

    @pytest.mark.parametrize("flip", [False, True])
    def test_one_row_of_a_class_is_too_few(self, flip):
        x, _ = far_negatives(40)
        model = quick(pos_label=True)
        with pytest.raises(ValueError, match="at least 2 rows of each class; y has 1 of one"):
            model.fit(x, (np.arange(40) == 7) ^ flip)
        assert not hasattr(model, "coef_")

    def test_each_needs_both_classes(self, data):
        x, y = data
        order = np.argsort(~y, kind="stable")
        with pytest.raises(ValueError, match="every fold of cv must have rows of both classes"):
            quick(cv=[(order[40:], order[:40]), (order[:40], order[40:])]).fit(x, y)


class TestWeights:
    def test_a_row_counts_as_often_as_it_weighs(self, data):
        """With folds that keep the copies of a row together."""
        x, y = data
        weight = 1 + np.arange(len(y)) % 3
        origin = np.arange(len(y)).repeat(weight)
        folds = list(StratifiedKFold(3).split(x, y))
        copies = [tuple(np.flatnonzero(np.isin(origin, part)) for part in fold) for fold in folds]
        weighted = quick(cv=folds).fit(x, y, sample_weight=weight)
        repeated = quick(cv=copies).fit(x[origin], y[origin])
        starts = slice(0, 3)
        for name in ("split0_test_score", "split1_test_score", "split2_test_score"):
            np.testing.assert_allclose(weighted.cv_results_[name][starts], repeated.cv_results_[name][starts])
        plain = quick(cv=folds).fit(x, y)
        assert np.abs(plain.cv_results_["mean_test_score"] - weighted.cv_results_["mean_test_score"]).max() > 1e-3

    def test_rows_of_weight_zero_are_left_out(self, data):
        x, y = data
        some = np.arange(len(y)) % 5 > 0
        weighted = quick().fit(x, y, sample_weight=some)
        fewer = quick().fit(x[some], y[some])
        np.testing.assert_allclose(weighted.coef_, fewer.coef_, rtol=1e-9)
        np.testing.assert_allclose(weighted.predict_proba(x), fewer.predict_proba(x), rtol=1e-6)

    def test_indices_of_rows_of_weight_zero_are_refused(self, data):
        x, y = data
        folds = list(StratifiedKFold(3).split(x, y))
        with pytest.raises(
            ValueError, match=r"cv must have rows in \[0, 149\); got 149. Rows of weight 0 are left out"
        ):
            quick(cv=folds).fit(x, y, sample_weight=np.arange(150) != 20)

    def test_are_checked(self, data):
        with pytest.raises(ValueError, match="finite and at least 0; got -1"):
            quick().fit(*data, sample_weight=-np.ones(150))


class TestProbabilities:
    def test_rise_with_the_score_and_sum_to_one(self, data, fitted):
        x, y = data
        found = fitted.predict_proba(x)
        np.testing.assert_array_equal(fitted.predict_log_proba(x), np.log(found))
        np.testing.assert_allclose(found.sum(1), 1.0)
        assert np.all(np.diff(found[np.argsort(fitted.decision_function(x)), 1]) >= 0)
        assert found[:, 1].mean() == pytest.approx(y.mean(), abs=0.05)
        assert found[y, 1].mean() > found[~y, 1].mean() + 0.1

    def test_are_of_rows_that_are_left_out(self):
        """On random labels, many features rank the training rows well, but their scores mean nothing."""
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(60, 25)), rng.permutation(60) < 20
        model = quick(C=[10.0], standard_errors=1e9, push=False).fit(x, y)
        assert model.score(x, y) > 0.8
        assert np.ptp(model.predict_proba(x)[:, 1]) < 0.5

    def test_scores_of_folds_are_above_the_thresholds_of_folds(self, data):
        """The place of the features shifts the scores of each fold by another amount, which must not matter."""
        x, y = data[0] + 50.0, data[1]
        folds = list(StratifiedKFold(3).split(x, y))
        model = quick(C=[1.0], cv=folds, push=False, standard_errors=1e9).fit(x, y)
        scores, labels = [], []
        for learn, rest in folds:
            scaler = StandardScaler().fit(x[learn])
            logistic = LogisticRegression(tol=1e-8).fit(scaler.transform(x[learn]), y[learn])
            known = logistic.decision_function(scaler.transform(x[learn]))
            cut = cut_between(known, y[learn], np.ones(len(learn)))
            scores.append(logistic.decision_function(scaler.transform(x[rest])) - cut)
            labels.append(y[rest])
        expected = calibrate(np.concatenate(scores), np.concatenate(labels), np.ones(len(y)))
        found = model.predict_proba(x)
        np.testing.assert_allclose(found, expected.predict_proba(model.decision_function(x)[:, np.newaxis]), atol=1e-4)

    def test_need_a_fit(self, data):
        with pytest.raises(NotFittedError):
            quick().predict_proba(data[0])


class TestForms:
    @pytest.mark.parametrize("kind", KINDS)
    def test_sparse_is_dense(self, kind, data):
        x, y = np.where(np.abs(data[0]) > 0.5, data[0], 0.0), data[1]
        dense, other = quick(alpha=[0.1]).fit(x, y), quick(alpha=[0.1]).fit(kind(x), y)
        np.testing.assert_allclose(other.coef_, dense.coef_, rtol=1e-6)
        np.testing.assert_allclose(other.cv_results_["mean_test_score"], dense.cv_results_["mean_test_score"])
        np.testing.assert_allclose(other.predict_proba(kind(x)), dense.predict_proba(x), rtol=1e-5)

    @pytest.mark.parametrize("labels", [("a", "b"), (-1, 1), (0.0, 1.0), (1, 2)])
    def test_labels_and_frames(self, labels, data):
        x, y = data
        frame, named = pd.DataFrame(x, columns=["a", "b", "c"]), pd.Series(np.where(y, labels[1], labels[0]))
        small = {"C": [1.0], "alpha": [3.0], "push": False, "max_iter": 1, "cv": 2}
        model, expected = quick(**small).fit(frame, named), quick(**small).fit(x, y)
        np.testing.assert_array_equal(model.coef_, expected.coef_)
        assert list(model.classes_) == list(labels)
        assert list(model.feature_names_in_) == ["a", "b", "c"]
        assert set(model.predict(frame)) == set(labels)
        assert model.score(frame, named) == expected.score(x, y)

    def test_float32_stays(self, data):
        model = quick(alpha=[3.0]).fit(data[0].astype(np.float32), data[1])
        assert model.coef_.dtype == model.intercept_.dtype == np.float32

    def test_scale_of_features_does_not_matter(self, data):
        x, y = data
        moved = x * [1e-3, 1e2, 1e5] + [0.0, 1e3, -1e6]
        first, second = quick().fit(x, y), quick().fit(moved, y)
        np.testing.assert_allclose(first.cv_results_["mean_test_score"], second.cv_results_["mean_test_score"])
        scores = [standardised(model.decision_function(z)) for model, z in ((first, x), (second, moved))]
        np.testing.assert_allclose(*scores, atol=1e-4)

    def test_degenerate_features(self):
        y = np.arange(20) % 4 == 0
        constant = quick().fit(np.ones((20, 2)), y)
        assert not constant.coef_.any()
        np.testing.assert_allclose(constant.predict_proba(np.ones((1, 2)))[0, 1], 0.25, atol=0.05)
        alone = quick().fit(y[:, np.newaxis] * 1.0, y)
        assert alone.score(y[:, np.newaxis], y) == 1.0
        wide, labels = make_classification(30, 200, random_state=0)
        assert quick(alpha=[3.0]).fit(wide, labels).score(wide, labels) == pytest.approx(1.0)

    def test_tools_of_scikit_learn(self, data):
        x, y = data
        pipeline = make_pipeline(StandardScaler(), quick(C=[1.0], alpha=[3.0], push=False, cv=2, max_iter=1))
        name = "averageprecisionclassifiercv__standard_errors"
        search = GridSearchCV(pipeline, {name: [0.0, 1.0]}, cv=2, scoring="neg_log_loss").fit(x, y)
        assert search.best_score_ < 0
        model = quick(alpha=[3.0]).fit(x, y)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
        np.testing.assert_array_equal(clone(model).fit(x, y).coef_, model.coef_)

    def test_prints_what_it_tries(self, data, capsys):
        model = quick(alpha=[3.0], temperature=[0.25], verbose=1).fit(*data)
        last = capsys.readouterr().err.split("\r")[-1]
        assert last.startswith("AveragePrecisionClassifierCV: 100%")
        assert f"average precision {model.cv_results_['mean_test_score'][-1]:.6g}]" in last


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({name: grid}, rf"{name} must be a sequence of at least one number; got ")
            for name in ("C", "alpha", "temperature")
            for grid in ([], 1.0, None, np.array(1.0), "auto", [[1.0]])
        ),
        ({"C": [1.0, -1.0]}, r"C must be finite and above 0\.0; got -1\.0"),
        ({"C": [np.inf]}, r"C must be finite and above 0\.0; got inf"),
        ({"alpha": [-0.1]}, r"alpha must be finite and at least 0\.0; got -0\.1"),
        ({"temperature": [0.0]}, "temperature must be finite and above 0; got 0.0"),
        ({"standard_errors": -1.0}, "standard_errors must be finite and at least 0.0; got -1.0"),
        ({"tol": -1.0}, "tol must be finite and at least 0.0; got -1.0"),
        ({"max_iter": 0}, "max_iter must be at least 1; got 0"),
        ({"cv": 1}, "n_splits"),
        ({"cv": []}, "cv must have at least one fold"),
    ],
)
def test_refuses_parameters(options, message, data):
    model = quick(**options)
    with pytest.raises(ValueError, match=message):
        model.fit(*data)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("options", [{"C": ["1"]}, {"alpha": [True]}, {"max_iter": 1.5}, {"standard_errors": "one"}])
def test_refuses_types(options, data):
    with pytest.raises(TypeError, match=rf"{next(iter(options))} must be"):
        quick(**options).fit(*data)


@pytest.mark.parametrize("kind", [AveragePrecisionClassifier, AveragePrecisionClassifierCV])
def test_groups_are_refused_with_what_to_do(kind, data):
    message = rf"^{kind.__name__}\.fit does not take groups; pass cv=list\(GroupKFold"
    with pytest.raises(TypeError, match=message):
        kind().fit(*data, groups=np.arange(150) % 7)
