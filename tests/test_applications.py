"""The applications: tuning and tables by hand-made results, then every application and example in its short form."""

import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from applications import DIVERGED, Case, Entry, Method, Result, Tuned, duel, floor, ratio, tune
from applications._measure import jobs_of, load, measure, measured, names
from applications._page import as_page, helps_up_to
from fcco_reproduce._cache import Cache
from harness.tables import spread
from harness.training import DivergedError, train

EXAMPLES = Path(__file__).parent.parent / "examples" / "applications"


def entry(name, kind, objective, metric=(0.5, 0.5, 0.5)):
    results = [Result(value, held, held, 1.0) for value, held in zip(objective, metric, strict=True)]
    return Entry(Method(name, kind), Tuned(1.0, results), Tuned(1.0, results))


def entries(ours, theirs, exact=(1.0, 1.0, 1.0)):
    found = [entry("mine", "ours", ours), entry("batch", "in-batch", theirs), entry("best", "exact", exact)]
    return {one.method.name: one for one in found}


def test_objective_and_metric_have_rates_of_their_own():
    def run(lr, seed):
        return Result(abs(math.log2(lr)), valid=-abs(math.log2(lr) - 2), test=lr)

    by_objective, by_metric = tune(run, centre=0.5, seeds=3)
    assert (by_objective.lr, by_metric.lr) == (1.0, 4.0)
    assert [result.test for result in by_metric.results] == [4.0, 4.0, 4.0]


def test_a_rate_at_which_another_seed_diverges_is_not_taken():
    by_objective, _ = tune(lambda lr, seed: DIVERGED if seed and lr > 0.5 else Result(1 / lr, lr, lr), 1.0, 2, reach=0)
    assert by_objective.lr == 0.5


def test_a_method_with_another_objective_is_tuned_for_its_metric():
    tuned, by_metric = tune(lambda lr, seed: Result(math.nan, -abs(lr - 4), lr), 1.0, 2)
    assert tuned == by_metric
    assert tuned.lr == 4.0


def test_a_rate_at_the_end_of_the_grid_is_said_on_the_page():
    table = {Case("a", 8, 1): entries((1.1,) * 3, (1.4,) * 3)}
    assert "end of the grid" not in as_page({"push": (load("push"), table)}, {}, {})
    found = table[Case("a", 8, 1)]["mine"]
    table[Case("a", 8, 1)]["mine"] = replace(found, by_metric=found.by_metric._replace(at_end=True))
    page = as_page({"push": (load("push"), table)}, {}, {})
    assert page.endswith("| Top ranking | a | 8 | mine |\n")
    assert "#learning-rates-at-the-end-of-the-grid" in page.partition("\n## Top ranking")[0]


@pytest.mark.parametrize("result", [DIVERGED, Result(math.nan, math.nan, math.nan)], ids=["diverged", "NaN"])
def test_a_method_that_never_works_has_results_that_say_so(result):
    for tuned in tune(lambda lr, seed: result, 1.0, 3):
        assert tuned.results == [result] * 3


def test_the_excess_is_over_the_exact_minimum():
    table = entries(ours=(1.1, 1.1, 1.1), theirs=(1.4, 1.4, 1.4))
    assert floor(table) == 1.0
    assert ratio(table) == pytest.approx(0.1 / 0.4)
    assert duel(table, "objective").winner == "ours"


def test_a_difference_within_the_noise_is_even():
    assert duel(entries(ours=(1.0, 1.2, 1.4), theirs=(1.1, 1.3, 1.5)), "objective").winner == "even"


def test_losses_are_told_and_so_is_divergence():
    assert duel(entries(ours=(1.4, 1.4, 1.4), theirs=(1.1, 1.1, 1.1)), "objective").winner == "theirs"
    assert duel(entries(ours=(math.inf,) * 3, theirs=(1.1, 1.1, 1.1)), "objective").winner == "theirs"
    assert spread([math.inf, 1.0]) == "diverged"


def test_the_best_competitor_is_the_one_shown_and_one_without_the_objective_is_none():
    table = entries(ours=(1.2, 1.2, 1.2), theirs=(1.4, 1.4, 1.4))
    table["other"] = entry("other", "field", (math.nan,) * 3, metric=(0.9, 0.9, 0.9))
    assert duel(table, "objective").rival == "batch"
    assert duel(table, "metric").rival == "other"
    assert duel(table, "metric").winner == "theirs"


def test_where_it_stops_helping_is_said():
    small, large = Case("a", 8, 1), Case("a", 64, 1)
    won, lost = entries((1.1,) * 3, (1.4,) * 3), entries((1.4,) * 3, (1.1,) * 3)
    assert "Beyond batch 8" in helps_up_to({small: won, large: lost})
    assert "At no batch size" in helps_up_to({small: lost, large: lost})


def test_training_that_leaves_the_numbers_is_divergence():
    w = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(DivergedError):
        train(lambda _: (w * math.inf).sum(), [torch.arange(1)], [torch.optim.SGD([w], lr=1.0)])


@pytest.mark.parametrize("name", names())
def test_every_application_runs_in_its_short_form(name):
    table = measure([name], quick=True, cache=None)[name]
    (case,) = table
    assert math.isfinite(sum(duel(table[case], "metric").ours))
    page = as_page({name: (load(name), table)}, {"absent": {"left out"}}, {})
    assert load(name).title in page
    assert "left out" in page


def test_rows_that_are_not_finished_are_named(tmp_path):
    tables, missing = measured(["push"], tmp_path / "none.jsonl")
    assert tables == {"push": {}}
    assert missing == [f"Top ranking: {name} (batch 8, 32, 128)" for name in ("covtype", "ijcnn1")]
    assert "not measured yet" in as_page({"push": (load("push"), {})}, {}, {}, missing)


def test_results_of_an_earlier_search_can_still_be_shown(tmp_path):
    """Their keys are of other code, their settings have a version, and they do not know the end of a grid."""
    cache = Cache(tmp_path / "cache.jsonl")
    for number, (_, _, job) in enumerate(jobs_of("push")):
        settings = {key: value for key, value in job.settings.items() if key != "sources"}
        result = [[0.25, [[1.0 + number, 0.5, 0.5, 1.0, 1.0]] * 3]] * 2
        cache.store(f"old {number}", {"task": "tune_case", "settings": {**settings, "version": 1}}, result)
    assert measured(["push"], cache.path)[0] == {"push": {}}
    tables, missing = measured(["push"], cache.path, earlier=True)
    assert missing == []
    assert len(tables["push"]) == len(load("push").cases)
    assert not any(entry.by_metric.at_end for found in tables["push"].values() for entry in found.values())


@pytest.mark.parametrize("name", names())
def test_methods_that_do_not_depend_on_the_batch_run_once(name):
    # A method may take batches on some data and not on others.
    unbatched = [(case, method, job) for case, method, job in jobs_of(name) if not method.batched]
    keys = {job.key for _, _, job in unbatched}
    assert len(keys) == len({(method.name, case.where, case.passes) for case, method, _ in unbatched})


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_end_with_a_figure(path, tmp_path, monkeypatch, capsys):
    figure = tmp_path / "figure.png"
    monkeypatch.setattr(sys, "argv", [path.name, "--quick", "--figure", str(figure)])
    runpy.run_path(str(path), run_name="__main__")
    assert figure.stat().st_size > 1000
    assert "figure" in capsys.readouterr().out
