"""AveragePrecisionClassifier: what it minimises, when it leaves its start, weights, probabilities."""

import pickle
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fcco.compiled import RULES
from fcco.estimators import AveragePrecisionClassifier, PNormPushClassifier
from fcco.estimators._precision import STARTS, calibrate
from fcco.estimators._sharpen import (
    Ranking,
    Sharpening,
    Stage,
    Standardised,
    best_stage,
    falling_temperatures,
    logistic_start,
    push_start,
)
from fcco.functional import average_precision_loss

pure = partial(AveragePrecisionClassifier, cv=None)  # all rows, no folds
SPARSE = [sparse.csr_matrix, sparse.csc_array]


def overlapping(n=160, seed=0):
    """Negatives far out, and a few positives on the other side, so that no logistic model is right.

    Other coefficients than those of logistic regression have an average precision that is higher by 0.02 to 0.1.
    """
    rng = np.random.default_rng(seed)
    centres = np.array([[0, 0, 0, 0], [6, -6, 0, 0], [2, 2, 0, 0], [-3, -1, 0, 0]])
    kind = rng.choice(4, n, p=[0.55, 0.2, 0.15, 0.1])
    x = rng.normal(size=(n, 4)) + centres[kind]
    return x * [1.0, 30.0, 1.0, 0.2] + [0.0, 0.0, 5.0, 0.0], kind >= 2


@pytest.fixture(scope="module")
def data():
    return overlapping()


def standardised(scores):
    return (scores - scores.mean()) / scores.std()


UNEQUAL = "the folds that probabilities are fitted to are of rows, however often they count"
BY_SHARE = "predict goes by the share of positives, and not by a probability of 1/2"
EXPECTED_TO_FAIL = {
    "check_sample_weight_equivalence_on_dense_data": UNEQUAL,
    "check_sample_weight_equivalence_on_sparse_data": UNEQUAL,
    "check_classifiers_train": BY_SHARE,
}


@parametrize_with_checks(
    [AveragePrecisionClassifier(probability=True, temperature=0.25, max_iter=2, random_state=0)],
    expected_failed_checks=lambda _: EXPECTED_TO_FAIL,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:.* by default the positive class is")
def test_scikit_learns_contract(estimator, check):
    check(estimator)


class TestPath:
    """The steps of a fit, one temperature after another."""

    def objective(self, x, y, change, start, options):
        """What the class says that it minimises, with features and scores of the start in units of their deviation."""
        z = torch.tensor(StandardScaler().fit_transform(x))
        unit = start / (z @ torch.tensor(start)).std(correction=0)
        value = average_precision_loss(z @ (unit + change), torch.tensor(y), **options)
        return value + 0.5 * 0.3 * change.square().sum()

    @pytest.mark.parametrize("surrogate", ["ramp", "sigmoid", "squared_hinge", "logistic"])
    def test_ends_at_a_minimum(self, surrogate, data):
        """The gradient of the stated objective is near 0; at the start it is above 0.01."""
        x, y = data
        options = {"surrogate": surrogate, "temperature": 0.25, "margin": 1.5}
        ranking = Ranking.of(x, y)
        start = logistic_start(ranking, 0.1)
        path = Sharpening([0.25], 0.3, max_iter=1000, tol=1e-12, surrogate=surrogate, margin=1.5)
        (first, last), deviation = path.path(ranking, start), ranking.deviation(start)
        assert first.temperature is None
        np.testing.assert_array_equal(first.z, start)
        sizes = []
        for stage in (first, last):
            change = torch.tensor((stage.z - start) / deviation, requires_grad=True)
            value = self.objective(x, y, change, start, options)
            sizes.append(torch.autograd.grad(value, change)[0].norm().item())
        assert sizes[0] > 0.01
        assert sizes[1] < 1e-5
        assert path.curve[-1] == pytest.approx(value.item(), rel=1e-9)

    def test_scores_are_in_units_of_the_start(self, data):
        """A start with scores 1,000 times as large leads to the same ranking: it has no other scale."""
        ranking = Ranking.of(*data)
        start = logistic_start(ranking, 1.0)
        for first, second in zip(
            *(Sharpening([0.25, 0.0625], 0.3).path(ranking, scale * start) for scale in (1.0, 1e3)), strict=True
        ):
            np.testing.assert_allclose(second.z, 1e3 * first.z, rtol=1e-6, atol=1e-6)

    def test_each_temperature_begins_where_the_one_before_ended(self, data):
        ranking = Ranking.of(*data)
        start = logistic_start(ranking, 1.0)
        whole = list(Sharpening([0.25, 0.0625], 0.3, max_iter=5).path(ranking, start))
        part = list(Sharpening([0.25], 0.3, max_iter=5).path(ranking, start))
        assert [stage.temperature for stage in whole] == [None, 0.25, 0.0625]
        np.testing.assert_array_equal(whole[1].z, part[1].z)
        alone = list(Sharpening([0.0625], 0.3, max_iter=5).path(ranking, start))
        assert np.abs(alone[1].z - whole[2].z).max() > 1e-6
        for stage in whole:
            expected = average_precision_score(data[1], ranking.x.scores(stage.z))
            assert stage.average_precision == pytest.approx(expected, rel=1e-12)

    def test_ends_at_once_without_a_scale(self):
        ranking = Ranking.of(np.ones((4, 2)), np.array([True, False, True, False]))
        (stage,) = Sharpening([0.25], 0.3).path(ranking, np.ones(2))
        assert stage.average_precision == 0.5

    @pytest.mark.parametrize("last", [1e-3, 0.0625, 0.2, 0.25, 0.3, 7.0])
    def test_temperatures_fall_by_four(self, last):
        temperatures = falling_temperatures(last)
        assert temperatures[-1] == last
        np.testing.assert_allclose(np.divide(temperatures[:-1], temperatures[1:]), 4.0)
        assert temperatures == [last] if last >= 0.25 else 0.25 <= temperatures[0] < 1.0

    def test_the_first_of_equal_stages_is_taken(self):
        stages = [Stage(None, np.zeros(1), 0.4), Stage(0.25, np.ones(1), 0.5), Stage(0.1, np.ones(1), 0.5)]
        assert best_stage(stages) is stages[1]


class TestStarts:
    @pytest.mark.parametrize("kind", [np.asarray, *SPARSE])
    @pytest.mark.parametrize("C", [0.01, 10.0])
    def test_logistic_regression_is_scikit_learns(self, C, kind, data):  # noqa: N803
        x, y = data
        expected = LogisticRegression(C=C, tol=1e-10, max_iter=1000).fit(StandardScaler().fit_transform(x), y)
        np.testing.assert_allclose(logistic_start(Ranking.of(kind(x), y), C), expected.coef_[0], rtol=1e-4)

    def test_many_features(self):
        x, y = make_classification(60, 1100, random_state=0)
        expected = LogisticRegression(C=0.01, tol=1e-8, max_iter=1000).fit(StandardScaler().fit_transform(x), y)
        found = logistic_start(Ranking.of(x, y == 1), 0.01)
        assert np.corrcoef(found, expected.coef_[0])[0, 1] > 0.999

    def test_push_is_the_p_norm_push(self, data):
        x, y = data
        z = StandardScaler().fit_transform(x)
        expected = PNormPushClassifier(p=4.0, alpha=1e-3, tol=1e-9).fit(z, y).coef_[0]
        np.testing.assert_allclose(push_start(Ranking.of(x, y)), expected, rtol=0.05)

    @pytest.mark.parametrize(("name", "better"), [("outliers", "push"), ("rare", "logistic")])
    def test_auto_takes_the_better_one(self, name, better):
        first = {start: pure(start=start, max_iter=1).fit(*DATA[name]()).path_[0] for start in STARTS}
        other = {"push": "logistic", "logistic": "push"}[better]
        assert first["auto"] == first[better] > first[other]


def one_against_the_rest(load, label):
    x, y = load(return_X_y=True)
    every = len(y) // 60
    return x[::every], y[::every] == label


def classes(share, seed, **options):
    x, y = make_classification(120, 8, weights=[1 - share], random_state=seed, **{"class_sep": 0.5, **options})
    return x, y == 1


def noise(n, d, positives):
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, d)), rng.permutation(n) < positives


def twice(x, y):
    return np.hstack([x, x, x + 1e-9 * np.sin(x)]), y


DATA = {
    "iris": lambda: one_against_the_rest(load_iris, 1),
    "wine": lambda: one_against_the_rest(load_wine, 2),
    "digits": lambda: one_against_the_rest(load_digits, 8),
    "cancer": lambda: one_against_the_rest(load_breast_cancer, 0),
    "even": lambda: classes(0.5, 0),
    "rare": lambda: classes(0.05, 1),
    "common": lambda: classes(0.95, 2),
    "wrong labels": lambda: classes(0.2, 3, flip_y=0.4),
    "random labels": lambda: noise(120, 5, 30),
    "one positive": lambda: noise(80, 3, 1),
    "one negative": lambda: noise(80, 3, 79),
    "more features than rows": lambda: noise(30, 60, 9),
    "one feature": lambda: noise(90, 1, 20),
    "constant": lambda: (np.full((20, 3), 7.0), np.arange(20) % 4 == 0),
    "duplicates": lambda: (np.arange(60)[:, None] % 3 * [1.0, -2.0], np.arange(60) % 4 == 0),
    "two rows": lambda: (np.array([[1.0, 2.0], [3.0, 0.0]]), np.array([True, False])),
    "separable": lambda: (np.arange(40.0)[:, None] * [1.0, 0.1], np.arange(40) > 30),
    "outliers": lambda: overlapping(100),
    "collinear": lambda: twice(*overlapping(100)),
    "integers": lambda: (np.round(overlapping(100)[0]).astype(int), overlapping(100)[1]),
    "mostly zero": lambda: ((overlapping(100)[0] > [1.0, 30.0, 6.0, 0.2]) * 1.0, overlapping(100)[1]),
}


def precision_of_logistic_regression(x, y):
    """Of features in units of their deviation, or, if they are mostly 0, of the size of their other values."""
    scaled, filled = StandardScaler().fit_transform(x), (x != 0).mean(0)
    size = np.sqrt(np.square(x).sum(0) / np.maximum((x != 0).sum(0), 1))
    scaled = scaled * np.where(filled < 0.5, x.std(0) / np.where(size > 0, size, 1.0), 1.0)
    model = LogisticRegression(tol=1e-10, max_iter=1000).fit(scaled, y)
    return average_precision_score(y, model.decision_function(scaled).round(9))


@pytest.mark.parametrize("name", DATA)
class TestNeverWorseThanTheStart:
    @pytest.mark.parametrize("start", STARTS)
    def test_exact(self, start, name):
        x, y = DATA[name]()
        ranker = pure(start=start, max_iter=6, alpha=0.1, pos_label=True).fit(x, y)
        score = ranker.score(x, y)
        assert score >= ranker.path_[0][1] - 1e-12
        assert score == pytest.approx(max(precision for _, precision in ranker.path_), rel=1e-9)
        assert (ranker.temperature_, pytest.approx(score, rel=1e-9)) in ranker.path_
        assert np.isfinite(ranker.coef_).all()
        if start != "push":
            assert score >= precision_of_logistic_regression(x, y) - 1e-9

    def test_sparse(self, name):
        x, y = DATA[name]()
        some = SPARSE[list(DATA).index(name) % 2](x)
        ranker = pure(temperature=0.25, max_iter=3, alpha=0.1, pos_label=True).fit(some, y)
        assert ranker.score(some, y) >= ranker.path_[0][1] - 1e-12
        assert ranker.path_[0][1] == pytest.approx(precision_of_logistic_regression(x, y), abs=1e-9)

    def test_stochastic(self, name):
        """Each rule on every fourth of the data sets, with a learning rate that would lead far away."""
        x, y = DATA[name]()
        method = list(RULES)[list(DATA).index(name) % len(RULES)]
        options = {"method": method, "learning_rate": 4.0, "max_iter": 2, "tol": 0, "random_state": 0}
        ranker = pure(pos_label=True, **options)
        score = ranker.fit(x, y).score(x, y)
        assert score >= ranker.path_[0][1] - 1e-12
        assert score >= precision_of_logistic_regression(x, y) - 1e-9


def few_and_sparse(seed):
    """Indicators that are mostly 0, with 3% positives, of which half are trained on."""
    rng = np.random.default_rng(seed)
    x = rng.random((600, 40)) < 0.1
    effect = x @ rng.normal(size=40)
    scores = 3.0 * effect / effect.std() + rng.logistic(size=600)
    return sparse.csr_array(x * 1.0), scores > np.quantile(scores, 0.97)


def digits_8(_):
    x, digit = load_digits(return_X_y=True)
    return x, digit == 8


class TestLeavingTheStart:
    """Rows that are left out decide."""

    @pytest.mark.parametrize("make", [few_and_sparse, digits_8])
    def test_new_rows_are_not_ranked_worse_than_by_logistic_regression(self, make):
        """Without folds they are: by 0.016 and 0.001 of average precision over these splits."""
        gains = []
        for seed in range(2, 6):
            x, y = make(seed)
            parts = train_test_split(x, y, test_size=0.5, stratify=y, random_state=seed)
            ours = AveragePrecisionClassifier(random_state=0).fit(parts[0], parts[2])
            start = pure(alpha=1e9, max_iter=1).fit(parts[0], parts[2])
            gains.append(ours.score(parts[1], parts[3]) - start.score(parts[1], parts[3]))
        assert np.mean(gains) > -0.0005

    def test_it_is_left_if_that_gains(self):
        x, y = overlapping(1000)
        new, labels = overlapping(1000, seed=1)
        ranker = AveragePrecisionClassifier(alpha=0.1, random_state=0).fit(x, y)
        table = pd.DataFrame(ranker.cv_results_)
        folds = StratifiedKFold(5, shuffle=True, random_state=0).split(x, y)
        scores = [[] for _ in range(3)]
        for learn, rest in folds:
            ranking = Ranking.of(x[learn], y[learn])
            path = Sharpening([0.25, 0.0625], 0.1, max_iter=100).path(ranking, logistic_start(ranking, 1.0))
            for place, stage in enumerate(path):
                scores[place].append(average_precision_score(y[rest], x[rest] @ ranking.x.coefficients(stage.z)))
        np.testing.assert_allclose(table.filter(like="split"), scores, rtol=1e-9)
        gain = np.subtract(scores[1], scores[0])
        assert gain.mean() > 2 * gain.std(ddof=1) / np.sqrt(5)
        assert ranker.temperature_ == [None, 0.25, 0.0625][table["mean_test_score"].argmax()]
        np.testing.assert_array_equal(ranker.coef_, pure(alpha=0.1, temperature=ranker.temperature_).fit(x, y).coef_)
        assert ranker.score(new, labels) > ranker.path_[0][1] + 0.02

    def test_it_is_not_left_for_a_gain_within_the_noise(self):
        data = overlapping(seed=1)
        ranker = AveragePrecisionClassifier(random_state=0).fit(*data)
        means = ranker.cv_results_["mean_test_score"]
        assert ranker.temperature_ is None
        assert means.argmax() > 0
        start = Ranking.of(*data)
        np.testing.assert_array_equal(ranker.coef_[0], start.x.coefficients(logistic_start(start, 1.0)))

    @pytest.mark.parametrize("name", ["one positive", "one negative"])
    def test_a_small_class_remains_at_the_start(self, name):
        x, y = DATA[name]()
        ranker = AveragePrecisionClassifier(pos_label=True, alpha=0.01).fit(x, y)
        assert ranker.temperature_ is None
        assert ranker.cv_results_ is None
        assert len(ranker.path_) == 3
        x, y = overlapping(1000)
        few = np.flatnonzero(y)[4:]
        x, y = np.delete(x, few, axis=0), np.delete(y, few)
        assert AveragePrecisionClassifier(alpha=0.01).fit(x, y).cv_results_ is None
        assert AveragePrecisionClassifier(alpha=0.01, cv=4).fit(x, y).cv_results_ is not None

    def test_folds_of_any_form(self, data):
        splits = list(StratifiedKFold(3).split(*data))
        first, second = (AveragePrecisionClassifier(cv=cv, max_iter=5).fit(*data) for cv in (splits, iter(splits)))
        np.testing.assert_array_equal(first.coef_, second.coef_)
        with pytest.raises(ValueError, match="at least one fold; an iterator is used up after one fit"):
            second.fit(*data)

    @pytest.mark.parametrize("cv", [1, True, 2.5, "five"])
    def test_folds_are_checked(self, cv, data):
        with pytest.raises((ValueError, TypeError), match="cv"):
            AveragePrecisionClassifier(cv=cv).fit(*data)

    def test_every_method_and_weights(self, data):
        x, y = data
        for options in ({"method": "sox", "max_iter": 2, "tol": 0}, {"max_iter": 5}):
            ranker = AveragePrecisionClassifier(random_state=0, verbose=0, **options)
            first, second = clone(ranker).fit(x, y), clone(ranker).fit(x, y)
            np.testing.assert_array_equal(first.coef_, second.coef_)
            assert first.cv_results_["mean_test_score"].tolist() == second.cv_results_["mean_test_score"].tolist()
            assert len(first.cv_results_["temperature"]) == len(first.path_)
        weighted = clone(ranker).fit(x, y, sample_weight=1.0 + np.arange(len(y)) % 2)
        assert (weighted.cv_results_["mean_test_score"] != first.cv_results_["mean_test_score"]).all()


def test_finds_more_than_logistic_regression():
    """Otherwise, never to be worse would be easy."""
    gains = []
    for seed in range(4):
        x, y = overlapping(seed=seed)
        ranker = pure(alpha=0.1).fit(x, y)
        gains.append(ranker.score(x, y) - precision_of_logistic_regression(x, y))
    assert min(gains) > 0.01
    assert np.mean(gains) > 0.04


@pytest.mark.parametrize("method", RULES)
def test_stochastic_methods_descend_from_the_start(method, data):
    """They close half of the gap between the start and the exact minimum at the same temperature."""
    x, y = data
    options = {"temperature": 0.25, "alpha": 0.3, "tol": 0, "random_state": 0}
    exact = pure(**options).fit(x, y)
    ranker = pure(method=method, max_iter=20, **options).fit(x, y)
    assert ranker.path_[0] == exact.path_[0]
    assert [temperature for temperature, _ in ranker.path_] == [None, 0.25]
    still = pure(method=method, max_iter=1, **{**options, "alpha": 1e9}).fit(x, y)
    begin, end = still.loss_curve_[-1], exact.loss_curve_[-1]
    assert ranker.loss_curve_[-1] < begin - 0.5 * (begin - end)
    assert begin - end > 0.01


class TestUnits:
    @pytest.mark.parametrize("kind", [np.asarray, *SPARSE])
    def test_of_a_column(self, kind):
        """Its deviation; if it is mostly 0, the root mean square of the other values; nothing if it is constant."""
        x = np.array([[1.0, 0.0, 0.0, 7.0], [2.0, 0.0, 3.0, 7.0], [3.0, 0.0, -4.0, 7.0], [6.0, 5.0, 0.0, 7.0]])
        weight = np.array([1.0, 2.0, 1.0, 1.0])
        found, weighted = Standardised(kind(x)), Standardised(kind(x), weight)
        np.testing.assert_allclose(found.unit, [1 / x[:, 0].std(), 1 / 5.0, 1 / x[:, 2].std(), 0.0])
        repeated = x.repeat(weight.astype(int), axis=0)
        np.testing.assert_allclose(weighted.unit, [1 / repeated[:, 0].std(), 1 / 5.0, 1 / repeated[:, 2].std(), 0.0])
        z = np.array([1.0, -2.0, 3.0, 4.0])
        w = found.coefficients(z)
        np.testing.assert_allclose(found.scores(z), (x - x.mean(0)) @ w, atol=1e-12)
        np.testing.assert_allclose(found.scores(z) + found.offset(z), x @ w)
        np.testing.assert_allclose(found.standard(w), [1.0, -2.0, 3.0, 0.0])
        by_score = np.array([1.0, 2.0, -1.0, 0.5])
        np.testing.assert_allclose(found.gradient(by_score), ((x - x.mean(0)) * found.unit).T @ by_score, atol=1e-12)

    @pytest.mark.parametrize("n", [12, 14, 60])
    def test_rounding_does_not_decide_whether_half_is_mostly(self, n):
        """Half of the values are 0, in any order, form and weight: the unit is the deviation, which is 1/2."""
        rng = np.random.default_rng(n)
        x = np.stack([rng.permutation(n) % 2 for _ in range(20)], 1) * 1.0
        for kind in (np.asarray, *SPARSE):
            np.testing.assert_allclose(Standardised(kind(x)).unit, 2.0)
        for weight in (0.1, 3.0, 1e-9):
            np.testing.assert_allclose(Standardised(x, np.full(n, weight)).unit, 2.0)

    @pytest.mark.parametrize("method", ["exact", "sox"])
    @pytest.mark.parametrize("start", ["logistic", "push"])
    def test_scale_and_place_of_features_do_not_matter(self, start, method, data):
        x, y = data
        ranker = pure(start=start, method=method, alpha=0.3, max_iter=20, tol=0, random_state=0)
        expected = standardised(clone(ranker).fit(x, y).decision_function(x))
        units, shifts = np.array([1e-3, 1e2, 1e6, 1.0]), np.array([1e-3, 1e6, -1e6, 1e3])
        moved = x * units + shifts
        scores = clone(ranker).fit(moved, y).decision_function(moved)
        np.testing.assert_allclose(standardised(scores), expected, atol=1e-3)

    @pytest.mark.parametrize("kind", SPARSE)
    @pytest.mark.parametrize("start", ["logistic", "push"])
    def test_sparse_is_dense(self, start, kind, data):
        x, y = data
        x = np.where(np.abs(x) > 1.0, x, 0.0)
        ranker = pure(start=start, alpha=0.3)
        dense, other = clone(ranker).fit(x, y), clone(ranker).fit(kind(x), y)
        np.testing.assert_allclose(other.coef_, dense.coef_, rtol=1e-6)
        np.testing.assert_allclose(other.decision_function(kind(x)), dense.decision_function(x), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose([p for _, p in other.path_], [p for _, p in dense.path_], rtol=1e-12)

    @pytest.mark.parametrize("method", ["exact", "soap"])
    def test_float32_stays(self, method, data):
        x, y = data
        ranker = pure(method=method, max_iter=3, tol=0, random_state=0)
        narrow, wide = clone(ranker).fit(x.astype(np.float32), y), clone(ranker).fit(x, y)
        assert narrow.coef_.dtype == narrow.intercept_.dtype == np.float32
        assert narrow.decision_function(x.astype(np.float32)).dtype == np.float32
        np.testing.assert_allclose(narrow.coef_, wide.coef_, rtol=1e-3, atol=1e-5)

    def test_a_large_penalty_stays_at_the_start(self, data):
        x, y = data
        scores = pure(alpha=1e9, C=0.1).fit(x, y).decision_function(x)
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, tol=1e-8)).fit(x, y)
        np.testing.assert_allclose(standardised(scores), standardised(model.decision_function(x)), atol=1e-5)
        far = pure(alpha=0.01, C=0.1).fit(x, y).decision_function(x)
        assert np.abs(standardised(far) - standardised(scores)).max() > 0.1


class TestWeights:
    def fits(self, data, kind, **options):
        """The same rows with weights, repeated, and without weights."""
        x, y = data
        weight = np.random.default_rng(1).integers(0, 4, len(y))
        ranker = pure(alpha=0.3, **options)
        weighted = clone(ranker).fit(kind(x), y, sample_weight=weight)
        repeated = clone(ranker).fit(kind(x.repeat(weight, axis=0)), y.repeat(weight))
        return weighted, repeated, ranker.fit(kind(x), y)

    @pytest.mark.parametrize(
        ("surrogate", "start", "kind"),
        [
            ("squared_hinge", "logistic", np.asarray),
            ("squared_hinge", "push", sparse.csr_matrix),
            ("squared_hinge", "logistic", sparse.csc_array),
            ("logistic", "push", np.asarray),
        ],
    )
    def test_a_row_counts_as_often_as_it_weighs(self, surrogate, start, kind, data):
        weighted, repeated, plain = self.fits(data, kind, start=start, surrogate=surrogate, max_iter=20)
        np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-5)
        np.testing.assert_allclose(weighted.intercept_, repeated.intercept_, rtol=1e-5)
        assert weighted.loss_curve_[-1] == pytest.approx(repeated.loss_curve_[-1], rel=1e-9)
        assert np.abs(plain.coef_ / weighted.coef_ - 1).max() > 0.01

    def test_copies_of_a_row_are_half_above_one_another(self, data):
        """Unlike a weight: scikit-learn's average precision counts rows of equal scores in full."""
        weighted, repeated, plain = self.fits(data, np.asarray)
        assert weighted.path_[0] == (None, pytest.approx(repeated.path_[0][1], rel=1e-9))
        np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=0.1)
        assert np.abs(plain.coef_ / weighted.coef_ - 1).max() > 0.5

    def test_rows_of_weight_zero_are_left_out(self, data):
        x, y = data
        some = np.arange(len(y)) % 3 > 0
        labels = np.where(some, y, 2)
        weighted = pure(probability=True, max_iter=3, random_state=0)
        fewer = clone(weighted).fit(x[some], labels[some], sample_weight=np.full(some.sum(), 2.0))
        weighted.fit(x, labels, sample_weight=2.0 * some)
        np.testing.assert_array_equal(weighted.coef_, fewer.coef_)
        np.testing.assert_array_equal(weighted.predict_proba(x), fewer.predict_proba(x))


class TestWarmStart:
    def test_goes_on_from_the_last_fit(self, data):
        x, y = data
        ranker = pure(alpha=0.1, warm_start=True).fit(x, y)
        before, end = ranker.path_[0][1], ranker.score(x, y)
        assert end > before
        assert ranker.fit(x, y).path_[0] == (None, pytest.approx(end, rel=1e-9))
        assert ranker.score(x, y) >= end - 1e-12

    def test_does_not_begin_at_worse_coefficients(self, data):
        x, y = data
        ranker = pure(warm_start=True).fit(x, y)
        expected = ranker.coef_.copy()
        ranker.coef_ = -ranker.coef_
        np.testing.assert_allclose(ranker.fit(x, y).coef_, expected, rtol=1e-9)

    def test_without_it_nothing_is_kept(self, data):
        x, y = data
        ranker = pure(alpha=0.1).fit(x, y)
        first = ranker.coef_.copy()
        np.testing.assert_array_equal(ranker.fit(x, y).coef_, first)


class TestProbabilities:
    def test_rise_with_the_score_and_sum_to_one(self, data):
        x, y = data
        named = np.where(y, "yes", "no")
        ranker = pure(probability=True, max_iter=5, random_state=0).fit(x, named)
        found, scores = ranker.predict_proba(x), ranker.decision_function(x)
        np.testing.assert_array_equal(ranker.predict_log_proba(x), np.log(found))
        assert found.shape == (len(y), 2)
        np.testing.assert_allclose(found.sum(1), 1.0)
        order = np.argsort(scores)
        assert np.all(np.diff(found[order, 1]) > 0)
        assert found[:, 1].mean() == pytest.approx(y.mean(), abs=0.05)
        assert found[y, 1].mean() > found[~y, 1].mean() + 0.1
        np.testing.assert_array_equal(clone(ranker).fit(x, named).predict_proba(x), found)

    def test_do_not_change_the_ranking(self, data):
        with_them, without = (pure(probability=p, max_iter=3, random_state=0).fit(*data) for p in (True, False))
        np.testing.assert_array_equal(with_them.coef_, without.coef_)
        np.testing.assert_array_equal(with_them.intercept_, without.intercept_)

    def test_never_fall_even_if_the_scores_mean_nothing(self):
        """On random labels the scores of rows that are left out are often worse than chance."""
        flat = 0
        for seed in range(4):
            rng = np.random.default_rng(seed)
            x, y = rng.normal(size=(40, 8)), rng.permutation(40) < 20
            ranker = pure(probability=True, max_iter=2, random_state=0).fit(x, y)
            found = ranker.predict_proba(x)[np.argsort(ranker.decision_function(x)), 1]
            assert np.all(np.diff(found) >= 0)
            flat += found[0] == found[-1]
        assert 0 < flat < 4

    @pytest.mark.parametrize("probability", [False, True])
    def test_are_there_if_asked_for(self, probability, data):
        ranker = pure(probability=probability, max_iter=2)
        assert hasattr(ranker, "predict_proba") == probability
        ranker.fit(*data)
        assert hasattr(ranker, "predict_proba") == probability
        ranker.set_params(probability=not probability)
        if probability:
            with pytest.raises(AttributeError, match="predict_proba"):
                ranker.predict_proba(data[0])
        else:
            with pytest.raises(NotFittedError, match="probability=True at the fit"):
                ranker.predict_proba(data[0])
        with pytest.raises(NotFittedError):
            pure(probability=True).predict_proba(data[0])

    @pytest.mark.parametrize("name", ["one positive", "one negative"])
    def test_need_two_rows_of_each_class(self, name):
        ranker = pure(probability=True, pos_label=True)
        with pytest.raises(ValueError, match="at least 2 rows of each class; got 1 of one"):
            ranker.fit(*DATA[name]())
        assert not hasattr(ranker, "coef_")

    @pytest.mark.filterwarnings("ignore:Since FrozenEstimator does not appear to accept sample_weight")
    @pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
    @pytest.mark.parametrize("distance", [0.3, 1.0, 30.0])
    def test_are_those_of_scikit_learns_platt_scaling(self, distance, scale):
        """Also of classes without an overlap, for which there is no steepest slope."""

        class Scorer(LogisticRegression):
            def decision_function(self, x):
                return x[:, 0]

        rng = np.random.default_rng(0)
        y = rng.random(100) < 0.3
        scores = rng.normal(size=100) + distance * y
        weight = rng.integers(1, 4, 100) * 1.0
        frozen = pytest.importorskip("sklearn.frozen").FrozenEstimator(Scorer().fit(scores[:, None], y))
        oracle = CalibratedClassifierCV(frozen, method="sigmoid").fit(scores[:, None], y, sample_weight=weight)
        found = calibrate(scale * scores, y, weight).predict_proba(scale * scores[:, None])
        np.testing.assert_allclose(found, oracle.predict_proba(scores[:, None]), atol=2e-3)


LABELS = {
    "bool": lambda y: y,
    "int": lambda y: y.astype(int),
    "signs": lambda y: 2 * y.astype(int) - 1,
    "float": lambda y: y.astype(float),
    "str": lambda y: np.where(y, "b", "a"),
    "object": lambda y: np.where(y, "b", "a").astype(object),
    "list": lambda y: y.tolist(),
    "series": lambda y: pd.Series(y, index=np.arange(len(y))[::-1]),
}
FEATURES = {
    "list": lambda x: x.tolist(),
    "frame": lambda x: pd.DataFrame(x, columns=list("abcd")),
    "fortran": np.asfortranarray,
    "read-only": lambda x: np.frombuffer(x.tobytes()).reshape(x.shape),
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "coo": sparse.coo_matrix,
}


class TestForms:
    @pytest.mark.parametrize("form", LABELS)
    def test_labels_of_any_kind(self, form, data):
        x, y = data
        labels = LABELS[form](y)
        expected = pure(max_iter=1).fit(x, y)
        ranker = pure(max_iter=1).fit(x, labels)
        np.testing.assert_array_equal(ranker.coef_, expected.coef_)
        assert ranker.score(x, labels) == expected.score(x, y)
        np.testing.assert_array_equal(ranker.predict(x) == ranker.classes_[1], expected.predict(x))

    @pytest.mark.parametrize("form", FEATURES)
    def test_features_of_any_kind(self, form, data):
        x, y = data
        expected = pure(max_iter=1).fit(x, y)
        ranker = pure(max_iter=1).fit(FEATURES[form](x), y)
        np.testing.assert_allclose(ranker.coef_, expected.coef_, rtol=1e-9)
        if form == "frame":
            assert list(ranker.feature_names_in_) == list("abcd")
            with pytest.raises(ValueError, match="feature names"):
                ranker.predict(FEATURES[form](x)[list("badc")])

    def test_integers_are_numbers(self, data):
        x, y = np.round(data[0]).astype(int), data[1]
        first, second = (pure(max_iter=3).fit(z, y) for z in (x, x.astype(float)))
        np.testing.assert_array_equal(first.coef_, second.coef_)

    def test_tools_of_scikit_learn(self, data):
        frame = FEATURES["frame"](data[0])
        pipeline = make_pipeline(StandardScaler(), pure(max_iter=3))
        search = GridSearchCV(pipeline, {"averageprecisionclassifier__alpha": [0.1, 10.0]}, cv=2).fit(frame, data[1])
        assert search.best_score_ > data[1].mean()
        ranker = pure(probability=True, max_iter=3).fit(frame, data[1])
        again = pickle.loads(pickle.dumps(ranker))
        np.testing.assert_array_equal(again.predict_proba(frame), ranker.predict_proba(frame))
        np.testing.assert_array_equal(again.predict(frame), ranker.predict(frame))


class TestInvalid:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"temperature": 0.0}, "temperature must be finite and above 0; got 0.0"),
            ({"temperature": np.inf}, "temperature must be finite and above 0; got inf"),
            ({"start": "zero"}, "start must be one of 'logistic', 'push', 'auto'; got 'zero'"),
            ({"C": 0.0}, r"C must be finite and above 0\.0; got 0\.0"),
            ({"C": np.nan}, r"C must be finite and above 0\.0; got nan"),
            ({"alpha": -1.0}, r"alpha must be finite and at least 0\.0; got -1\.0"),
            ({"surrogate": "exp"}, "surrogate must be one of .*; got 'exp'"),
            ({"max_iter": 0}, "max_iter must be at least 1; got 0"),
        ],
    )
    def test_parameters(self, options, message, data):
        ranker = pure(**options)
        with pytest.raises(ValueError, match=message):
            ranker.fit(*data)
        assert not hasattr(ranker, "coef_")

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_features_that_are_not_finite(self, bad, data):
        x = data[0].copy()
        x[3, 1] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            pure().fit(x, data[1])

    @pytest.mark.parametrize("kind", [np.asarray, *SPARSE])
    def test_features_whose_squares_overflow(self, kind, data):
        x = data[0] * [1.0, 1.0, 1e200, 1.0]
        with pytest.raises(
            ValueError, match=r"features must be at most 1e\+150 in size; got .*e\+200: scale them down"
        ):
            pure().fit(kind(x), data[1])

    def test_labels(self, data):
        x, y = data
        for labels, message in (
            (np.zeros(len(y)), "needs two classes to rank; y has one class: 0.0"),
            (np.arange(len(y)) % 3, "Only binary classification is supported"),
            (x[:, 0], "Unknown label type: continuous"),
            (np.where(np.arange(len(y)) == 2, np.nan, y), "Input y contains NaN"),
            (y[:-1], "inconsistent numbers of samples"),
        ):
            with pytest.raises(ValueError, match=message):
                pure().fit(x, labels)

    def test_sparse_features_of_stochastic_methods(self, data):
        with pytest.raises(TypeError, match='method="exact"'):
            pure(method="sox").fit(sparse.csr_array(data[0]), data[1])


@pytest.mark.parametrize("scale", [1e-147, 1e-30, 1e30, 1e147])
def test_features_of_an_extreme_scale(scale, data):
    x, y = data
    expected, ranker = (pure(max_iter=5).fit(factor * x, y) for factor in (1.0, scale))
    np.testing.assert_allclose(ranker.coef_ * scale, expected.coef_, rtol=1e-6)


def test_an_outlier_does_not_hide_the_others(data):
    x, y = data[0].copy(), data[1]
    x[0] = 1e12
    ranker = pure(probability=True, max_iter=10, random_state=0).fit(x, y)
    assert np.isfinite(ranker.predict_proba(x)).all()
    assert ranker.score(x, y) >= ranker.path_[0][1] - 1e-12


@pytest.mark.parametrize("weight", [1e-30, 1e30])
def test_weights_of_an_extreme_scale_do_not_warn(weight, data):
    """Newton's method warns of such a Hessian, although the start need not be a minimum."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranker = pure(max_iter=3).fit(*data, sample_weight=np.full(len(data[1]), weight))
    assert np.isfinite(ranker.coef_).all()


@pytest.mark.parametrize("start", ["logistic", "push"])
def test_fits_where_gradients_are_off(start, data):
    expected = pure(start=start, max_iter=2).fit(*data).coef_
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = pure(start=start, max_iter=2).fit(*data).coef_
        np.testing.assert_array_equal(found, expected)


def test_prints_what_it_does(data, capsys):
    ranker = pure(max_iter=2, verbose=1).fit(*data)
    lines = [line.split("\r")[-1] for line in capsys.readouterr().err.split("\n")[:-1]]
    for line, temperature, value in zip(lines, ("0.25", "0.0625"), ranker.loss_curve_[1::2], strict=True):
        assert line.startswith(f"AveragePrecisionClassifier at temperature {temperature}: 100%")
        assert f"objective {value:.6g}]" in line


def test_the_objective_is_tracked(data):
    ranker = pure(alpha=0.3, temperature=0.25).fit(*data)
    assert np.all(np.diff(ranker.loss_curve_) <= 1e-12)
    assert ranker.n_iter_ == len(ranker.loss_curve_) > 2
    two = pure(alpha=0.3, temperature=0.0625).fit(*data)
    assert two.loss_curve_[: len(ranker.loss_curve_)] == ranker.loss_curve_
    assert [temperature for temperature, _ in two.path_] == [None, 0.25, 0.0625]


def test_as_many_rows_are_predicted_positive_as_there_are(data):
    x, y = data
    for ranker in map(partial(pure, alpha=0.3, max_iter=5), ("ramp", "sigmoid")):
        assert ranker.fit(x, y).predict(x).sum() == y.sum()
