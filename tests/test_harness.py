"""The harness of the benchmarks: its search, cache, tables, minimiser and timer."""

import importlib
import json
import logging
import math
import sys
from pathlib import Path

import pytest
import torch

import defaults
from fcco_reproduce import run_jobs
from harness import cache, timing
from harness.data import covtype_rows
from harness.exact import minimise
from harness.excess import Row, minimum_job, train, tune_job
from harness.search import AROUND, REACH, search_lr
from harness.tables import as_markdown, read_csv, write_csv
from harness.tasks import Variant

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("centre", [2.0**-6, 1.0, 2.0**6])
def test_the_search_ends_between_two_worse_rates(centre):
    found = search_lr(lambda lr, seed: abs(math.log2(lr) - 1.2) + seed, centre, seeds=2)
    assert found.lr == 2.0
    assert found.scores == pytest.approx([0.2, 1.2])
    assert not found.at_end


def test_the_search_sees_past_a_local_optimum():
    """A walk from 1 ends at 1, whose neighbours are worse on both sides."""

    def score(lr, seed):
        return {1.0: 0.5, 2.0**-6: 0.1}.get(lr, 1 + abs(math.log2(lr)))

    assert score(0.5, 0) > score(1.0, 0) < score(2.0, 0)
    assert search_lr(score, 1.0, seeds=1).lr == 2.0**-6


def test_all_seeds_have_a_say_in_the_rate():
    # The first seed alone would take 1.
    assert search_lr(lambda lr, seed: lr if seed else abs(lr - 1), 1.0, seeds=3).lr < 0.5


def test_a_rate_at_which_another_seed_diverges_is_not_taken():
    found = search_lr(lambda lr, seed: math.inf if seed and lr > 1 else abs(math.log2(lr) - 1), 1.0, seeds=2)
    assert found == (1.0, [1.0, 1.0], False)


def test_nan_counts_as_divergence():
    assert search_lr(lambda lr, seed: math.nan if lr > 0.1 else -lr, 1.0, seeds=1).lr == 2.0**-4


def test_ties_go_to_the_smaller_rate():
    assert search_lr(lambda lr, seed: max(abs(math.log2(lr)), 3), 1.0, seeds=1).lr == 2.0**-3


@pytest.mark.parametrize(("slope", "factor"), [(1, 4.0 ** -(REACH + 1)), (-1, 4.0 ** (REACH + 1))])
def test_a_rate_at_the_end_of_the_grid_is_reported(slope, factor, caplog):
    with caplog.at_level(logging.WARNING, logger="fcco"):
        found = search_lr(lambda lr, seed: slope * lr, 0.5, seeds=1)
    assert (found.lr, found.at_end) == (0.5 * factor, True)
    assert "end of the grid" in caplog.text


def test_a_rate_at_the_end_of_the_fine_grid_is_reported():
    """The first seed is best at 1; the mean over seeds falls beyond what the fine grid has."""
    found = search_lr(lambda lr, seed: 100 * lr if seed else abs(lr - 1), 1.0, seeds=2)
    assert (found.lr, found.at_end) == (2.0**-AROUND, True)


def test_the_search_gives_up_where_everything_diverges():
    lr, scores, at_end = search_lr(lambda lr, seed: math.inf, 1.0, seeds=1)
    assert scores == [math.inf]
    assert at_end
    assert lr == 4.0**-REACH / 2**AROUND


def test_no_run_is_done_twice_and_only_the_fine_grid_has_all_seeds():
    runs = []
    search_lr(lambda lr, seed: runs.append((lr, seed)) or abs(math.log2(lr)), 1.0, seeds=3)
    assert len(runs) == len(set(runs)) == 2 * REACH + 1 + 3 * (2 * AROUND + 1) - 3
    assert sum(seed > 0 for _, seed in runs) == 2 * (2 * AROUND + 1)


ROW = Row("cox", "diabetes", 64, 1)


def test_a_result_is_kept_under_its_settings_and_survives_a_damaged_line(tmp_path):
    path = tmp_path / "cache.jsonl"
    jobs = [minimum_job("cox", "diabetes", iterations) for iterations in (1, 2)]
    first = run_jobs(jobs, cache=path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])  # killed while it wrote the second
    assert run_jobs(jobs, cache=path) == first
    assert len(path.read_bytes().splitlines()) == 3
    before = path.read_bytes()
    assert run_jobs(jobs, cache=path) == first
    assert path.read_bytes() == before


def test_the_key_of_a_job_covers_its_own_objective_and_no_other():
    keys = {name: tune_job(ROW._replace(objective=name), "in-batch", {}, 1).key for name in ("cox", "baseline_cox")}
    settings = {name: minimum_job(name, "diabetes", 1).settings["sources"] for name in ("cox", "baseline_cox")}
    assert len(set(keys.values())) == 2
    assert len(set(settings.values())) == 2


@pytest.fixture
def sources_of(tmp_path, monkeypatch):
    """The digest of ``harness_copy.a.run`` in a package that is made of texts."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(cache, "PACKAGES", ("other_copy",))

    def sources_of(helper):
        at = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in {"copied": "from other_copy.b import b\ndef run(x):\n    return b(x)\n", "b": helper}.items():
            folder = at / ("other_copy" if name == "b" else ".")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.py").write_text(text)
        (at / "other_copy" / "__init__.py").touch()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(at)
            found = cache.sources(importlib.import_module("copied").run)
        for name in [name for name in sys.modules if name.split(".")[0] in ("copied", "other_copy")]:
            del sys.modules[name]
        return found

    return sources_of


def test_the_digest_covers_the_other_packages_of_the_benchmarks(sources_of):
    one = sources_of("def b(x):\n    return x\n")
    assert one == sources_of("def b(x):\n    # as it is\n    return x\n")
    assert one != sources_of("def b(x):\n    return -x\n")


def test_files_of_earlier_versions_can_be_read(tmp_path):
    path = tmp_path / "old.jsonl"
    lines = [{"run": "cox | a | minimum", "value": 1.5}, {"key": "k", "settings": {"b": 1, "a": 2}, "result": [3]}]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"key": "cut')
    assert cache.earlier_results(path) == {"cox | a | minimum": 1.5, cache.by_settings({"a": 2, "b": 1}): [3]}
    assert cache.earlier_results(tmp_path / "none.jsonl") == {}


def test_tables_round_trip_through_csv_and_keep_markup(tmp_path):
    rows = [{"a": 1, "b": "**x**"}, {"a": 2.5, "b": "y|z"}]
    write_csv(rows, tmp_path / "t.csv")
    assert read_csv(tmp_path / "t.csv") == [{"a": "1", "b": "**x**"}, {"a": "2.5", "b": "y|z"}]
    assert as_markdown(rows, markup=True).splitlines()[2:] == ["| 1 | **x** |", "| 2.5 | y\\|z |"]
    assert "\\*\\*x" in as_markdown(rows)


def test_the_published_table_of_defaults_can_be_shown():
    tables = defaults.read(DOCS / "defaults.csv")
    shown = defaults.as_table("cox", tables)
    assert "| data, batch, passes | in-batch |" in shown
    assert "largest ratio" in shown
    ends = [entry.at_end for row, entries in tables.items() if row.objective == "cox" for entry in entries.values()]
    assert ("end of the grid" in shown) == any(ends)


def test_defaults_in_short_form(tmp_path):
    rows = defaults.rows_of("cox", defaults.OBJECTIVES["cox"], quick=True)
    tables = defaults.measure(rows, 1, tmp_path / "cache.jsonl", quick=True, workers=1)
    defaults.save(tables, tmp_path / "t.csv", 1)
    again = defaults.read(tmp_path / "t.csv")
    assert {row: set(entries) for row, entries in again.items()} == {row: set(e) for row, e in tables.items()}
    assert "in-batch" in defaults.as_table("cox", again)
    assert defaults.kept(tmp_path / "t.csv", ["nca"]).keys() == again.keys()
    assert defaults.kept(tmp_path / "t.csv", ["cox"]) == defaults.kept(tmp_path / "nothing.csv", ["nca"]) == {}


def test_a_run_that_diverges_is_infinitely_bad():
    assert train(Row("p_norm_push", "breast cancer", 32, 3), Variant("SOAP .5"), 1e3, seed=0) == math.inf


def test_the_minimiser_finds_the_minimum_and_a_zero_gradient():
    x = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, w = x @ torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    w.requires_grad_()
    minimise(lambda: (x @ w - y).square().sum(), [w])
    assert w.detach().tolist() == pytest.approx([1.0, -2.0, 3.0])
    assert w.grad.abs().max() < 1e-5


def test_the_timer_alternates_and_reports_the_ratio(monkeypatch):
    calls = []
    monkeypatch.setattr(timing, "timed", lambda work: (2.0 if "a" in _done(work, calls) else 1.0, None))
    found = timing.compare(lambda: calls.append("a"), lambda: calls.append("b"), rounds=2, repeats=1)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert found == (2.0, 1.0, 2.0)


def _done(work, calls):
    before = len(calls)
    work()
    return calls[before:]


def test_covtype_is_read_in_one_place():
    sources = [path for path in Path(defaults.__file__).parent.rglob("*.py") if "covtype.data.gz" in path.read_text()]
    assert {path.name for path in sources if "gzip.open" in path.read_text()} == {"data.py"}
    assert covtype_rows.__module__ == "harness.data"
