"""The benchmark of average precision: its parts by hand-made numbers, then the whole in a short form."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import issparse
from sklearn.datasets import load_breast_cancer

from fcco.data import PositiveNegativeSampler
from fcco_reproduce._digest import LIBRARIES, _Trail
from harness.cache import PACKAGES
from top_of_list import _linear, _network, _network_libauc
from top_of_list.__main__ import run
from top_of_list._batches import balanced_batches, random_batches
from top_of_list._compare import Results, differences
from top_of_list._measure import Measurer, Record, best_of, measure
from top_of_list._methods import BEST, KINDS, Scale, linear_methods
from top_of_list._metrics import precision_at_positives
from top_of_list._prepared import prepare, split
from top_of_list._sparse import one_hot
from top_of_list._tasks import TASKS, Task, available

TINY = Scale(1, 1, 20, (1e-3, 1e-2), (0.01, 1.0), (1e-2,), (4,), (5,))
CANCER = next(task for task in TASKS if task.name == "breast cancer")


def row(method, seed, test, valid=0.5, task="t", group="reporting"):
    return Record(task, group, "linear", method, seed, test, test, test, valid, "C=1", 1.0)


@pytest.mark.parametrize(
    "function",
    [_linear.logistic_regression, _linear.boosted_trees, _network.usual_loss, _network_libauc.libauc],
    ids=lambda function: function.__name__,
)
def test_results_of_the_usual_methods_do_not_depend_on_the_library(function):
    trail = _Trail({*LIBRARIES, *PACKAGES})
    trail.follow(function.__module__, function.__name__)
    assert {module.split(".")[0] for module, _ in trail.seen} == {"top_of_list"}


def test_names_of_tasks_can_be_given_with_commas():
    names = [task.name for task in TASKS]
    assert len(set(names)) == len(names) >= 14
    assert not any("," in name for name in names)


def test_without_data_only_tasks_that_ship_are_left(monkeypatch):
    monkeypatch.delenv("FCCO_DATA", raising=False)
    assert {"breast cancer", "digits 8", "diabetes"} <= {task.name for task in available()}
    assert all(task.ships for task in available())


def test_a_split_is_stratified_and_standardised_by_its_training_part(tmp_path):
    parts = split(prepare(CANCER, tmp_path).path, 0)
    assert [len(part.y) for part in parts] == [341, 114, 114]
    assert np.ptp([part.y.mean() for part in parts]) < 0.01
    assert abs(parts.train.x.mean(0)).max() < 0.1  # clipping moves the mean a little
    assert abs(parts.test.x).max() <= 5


def test_noise_changes_labels_of_positives_outside_of_the_test_part(tmp_path):
    noisy = Task("noisy", "reporting", CANCER.load, noise=0.1)
    clean, wrong = (split(prepare(task, tmp_path).path, 1) for task in (CANCER, noisy))
    assert (clean.test.y == wrong.test.y).all()
    before, after = (parts.train.y.sum() + parts.valid.y.sum() for parts in (clean, wrong))
    assert after == before - round(0.1 * before)


def test_a_file_has_a_hash_of_its_content_and_not_of_its_name(tmp_path):
    again = Task("other", "reporting", lambda: CANCER.load())
    assert prepare(CANCER, tmp_path).data == prepare(again, tmp_path).data
    assert prepare(CANCER, tmp_path).data != prepare(Task("n", "reporting", CANCER.load, noise=0.5), tmp_path).data


def test_rare_values_have_no_column():
    table = one_hot([np.array([0] * 5 + [1] * 5 + [2]), np.array([7] * 11)])
    assert issparse(table)
    assert table.sum(0).tolist() == [[5.0, 5.0, 11.0]]


def test_balanced_batches_are_those_of_the_sampler_up_to_their_order():
    y = (np.arange(200) % 10 == 0).astype(np.int64)
    ours = balanced_batches(y, 8, 5, seed=0).numpy()
    theirs = np.array(list(PositiveNegativeSampler(y, batch=8, drop_last=True)))
    for batches in (ours, theirs):
        assert batches.shape == (5, 8)
        assert (y[batches].sum(1) == 4).all()
        assert len(np.unique(batches)) == 40  # no row twice within a pass over the positives


def test_random_batches_go_through_all_rows():
    batches = random_batches(20, 5, 8, seed=0).numpy()
    assert sorted(batches[:4].ravel()) == sorted(batches[4:].ravel()) == list(range(20))


def test_precision_at_k_shares_places_among_ties():
    assert precision_at_positives(np.array([1, 0, 1, 0]), np.zeros(4)) == 0.5


def test_the_best_usual_method_is_chosen_by_validation_and_the_harsh_one_by_test():
    plain, balanced = "logistic regression", "balanced logistic regression"
    rows = [row(plain, s, 0.6, valid=0.9) for s in (0, 1)] + [row(balanced, s, 0.8, valid=0.1) for s in (0, 1)]
    ours = "AveragePrecisionClassifierCV"
    rows += best_of(rows, linear_methods(TINY), ("usual",), BEST["linear"]) + [row(ours, s, 0.7) for s in (0, 1)]
    (fair,), (harsh,) = (differences(Results(rows), "linear", ours, harsh=harsh) for harsh in (False, True))
    assert (fair.verdict, harsh.verdict, harsh.rival) == ("above", "below", balanced)
    assert math.isclose(fair.mean, 0.1)


def test_a_difference_within_two_standard_errors_is_even():
    rows = [row("a", 0, 0.5), row("a", 1, 0.7), row(BEST["linear"], 0, 0.6), row(BEST["linear"], 1, 0.5)]
    (found,) = differences(Results(rows), "linear", "a")
    assert found.verdict == "even"
    assert found.margin == pytest.approx(2 * np.std([-0.1, 0.2], ddof=1) / math.sqrt(2))


def test_the_short_form_runs_and_continues_from_its_file(tmp_path, monkeypatch):
    monkeypatch.delenv("FCCO_DATA", raising=False)
    page = run([CANCER], list(KINDS), TINY, tmp_path, tmp_path / "docs", workers=1)
    assert {"top_of_list.md", "top_of_list.csv", "top_of_list_linear.svg", "top_of_list_network.svg"} == {
        path.name for path in (tmp_path / "docs").iterdir()
    }
    assert "FCCO_DATA is not set" in page
    for name in ("AveragePrecisionClassifierCV", "AP after balanced BCE"):
        assert name in page
    lines = (tmp_path / "cache.jsonl").read_text().count("\n")
    assert run([CANCER], list(KINDS), TINY, tmp_path, tmp_path / "docs", workers=0) == page
    assert (tmp_path / "cache.jsonl").read_text().count("\n") == lines


def test_networks_have_the_lr_that_the_first_split_chose_on_all_splits(tmp_path):
    records = measure("network", {CANCER: prepare(CANCER, tmp_path)}, replace(TINY, seeds=2), Measurer(None, 1))
    settings = {(row.seed, row.setting) for row in records if row.method == "BCE"}
    assert {seed for seed, _ in settings} == {0, 1}
    assert len({setting for _, setting in settings}) == 1


def test_what_is_not_finished_is_left_out(tmp_path):
    prepared = {CANCER: prepare(CANCER, tmp_path)}
    assert all(measure(kind, prepared, TINY, Measurer(tmp_path / "none.jsonl", 0)) == [] for kind in KINDS)


def test_features_are_those_of_scikit_learn(tmp_path):
    prepared = prepare(CANCER, tmp_path)
    assert (prepared.n, prepared.features) == load_breast_cancer().data.shape
    assert not prepared.sparse
