"""Stored runs are confirmed by short runs with the code that made them and with today's."""

import json
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import confirm
from fcco_reproduce._cache import Cache
from fcco_reproduce._page import making
from fcco_reproduce._stale import digest, stale, state

WORK = """
def measure(*, method, steps, seed):
    return {"value": %s * len(method) + seed, "history": [{"steps": steps, "seconds": 0.1}], "seconds": 0.2}
"""
ENTRIES = [
    {"job": "work.measure", "settings": {"method": name, "steps": 5000, "seed": k}}
    for name in ("SOX", "SOAP", "MOAP")
    for k in range(4)
]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A function that makes a checkout whose results have a factor."""

    def make(factor):
        place = tmp_path / str(factor)
        (place / "src").mkdir(parents=True)
        (place / "src" / "work.py").write_text(WORK % factor)
        return place

    return make


def test_runs_on_prepared_data_find_them_by_their_content(tmp_path, monkeypatch):
    monkeypatch.setattr(confirm, "PREPARED", tmp_path)
    np.savez(tmp_path / "digits.npz", hash=np.array("abc"))
    assert confirm.place_of({"data": "abc"}) == {"path": str(tmp_path / "digits.npz")}
    assert confirm.place_of({"data": "other"}) == confirm.place_of({}) == {}


def test_one_run_of_each_kind_is_chosen():
    chosen = confirm.sample(ENTRIES)
    assert [entry["settings"]["method"] for entry in chosen] == ["MOAP", "SOAP", "SOX"]
    assert chosen == confirm.sample(ENTRIES)


def test_without_stored_runs_those_of_the_short_study_are_taken(tmp_path, monkeypatch):
    def reproduce(words, **options):
        (Path(words[-1]) / "cache.jsonl").write_text(json.dumps(ENTRIES[0]))

    monkeypatch.setattr(confirm.subprocess, "run", reproduce)
    assert confirm.runs_of(tmp_path / "theory") == ENTRIES[:1]


def test_runs_are_short_and_by_the_code_of_the_checkout(tree):
    short = [{**entry, "settings": confirm.shortened(entry["settings"])} for entry in ENTRIES[:2]]
    one, other = (confirm.run_by(tree(factor), short) for factor in (1.0, 2.0))
    assert one[0] == {"value": 3.0, "history": [{"steps": 60, "seconds": 0.1}], "seconds": 0.2}
    assert other[1]["value"] == 7.0


def test_a_first_run_which_may_compile_does_not_count(monkeypatch):
    times = count(1)
    monkeypatch.setattr(confirm, "run_by", lambda tree, entries: next(times))
    assert confirm.repeated(confirm.ROOT, ENTRIES) == 2


def test_times_do_not_count():
    assert confirm.without_times([{"a": 1.5, "seconds": 3.0, "b": {"seconds": 1}}]) == [{"a": 1.5, "b": {}}]


def test_times_and_memory_of_applications_do_not_count():
    tuned = [[0.5, [[1.0, 0.9, 0.8, 12.5, 3.0]], False]] * 2
    assert confirm.comparable(tuned, {"case": {}}) == [[0.5, [[1.0, 0.9, 0.8]], False]] * 2
    assert confirm.comparable({"value": 1, "seconds": 2}, {"method": "SOX"}) == {"value": 1}


def test_runs_that_fail_are_reported(tree):
    with pytest.raises(RuntimeError, match="no attribute 'nothing'"):
        confirm.run_by(tree(1.0), [{**ENTRIES[0], "job": "work.nothing"}])


@pytest.mark.parametrize("factor", [1.0, 1.0000000000000002])
def test_a_result_that_differs_in_the_last_digit_is_refused(factor, stored, monkeypatch):
    between(monkeypatch, 1.0, factor)
    monkeypatch.setattr(confirm, "environment", dict)
    if factor == 1.0:
        found = confirm.confirm(stored.parent, "0123")
        assert (found["runs"], found["commit"], list(found["sources"])) == (3, "0123", ["work.measure"])
    else:
        with pytest.raises(ValueError, match="0123 and today's code differ in"):
            confirm.confirm(stored.parent, "0123")


@pytest.mark.parametrize("factor", [1.0, 1.0000000000000002])
def test_today_s_code_goes_on_from_runs_that_are_the_same(factor, stored, monkeypatch):
    between(monkeypatch, 1.0, factor)
    before = stored.read_text()
    if factor != 1.0:
        with pytest.raises(ValueError, match="differ in"):
            confirm.adopt(stored, "0123", 2)
        assert stored.read_text() == before
        return
    confirm.adopt(stored, "0123", 2)
    jobs = [confirm._job(entry["job"], entry["settings"]) for entry in ENTRIES]
    assert Cache(stored).results == {job.key: k for k, job in enumerate(jobs)}
    assert all(json.loads(line)["made_by"] == "of 0123" for line in stored.read_text().splitlines())


def test_runs_that_a_change_is_meant_to_change_are_dropped(stored, monkeypatch):
    between(monkeypatch, 1.0, 1.0)
    confirm.adopt(stored, "0123", 2, without="SOX")
    methods = [json.loads(line)["settings"]["method"] for line in stored.read_text().splitlines()]
    assert methods == ["SOAP"] * 4 + ["MOAP"] * 4


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "push", "case": {"data": "ijcnn1"}},
        {"objective": "cox"},
        {"cell": {"objective": "cox"}},
        {"row": ["cox", "whas500", 8, 40]},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_digest_among_the_settings_is_that_of_today(settings):
    expected = confirm.sources(confirm.load("push").run if "case" in settings else confirm.OBJECTIVES["cox"].build)
    assert confirm.as_today({**settings, "sources": "of 0123"}) == {**settings, "sources": expected}
    assert confirm.as_today(settings) == settings


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A file of runs, whose function can be imported."""
    (tmp_path / "work.py").write_text(WORK % 1)
    monkeypatch.syspath_prepend(tmp_path)
    lines = [json.dumps({**entry, "code": "of 0123", "result": k}) for k, entry in enumerate(ENTRIES)]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    yield tmp_path / "runs.jsonl"
    sys.modules.pop("work", None)


def between(monkeypatch, *factors):
    """Let results with two factors stand for those of the code of a commit and of today's."""
    times, factors = count(), iter(factors)

    def run_by(tree, entries):
        factor = next(factors)
        return [{"value": factor * len(entry["settings"]["method"]), "seconds": next(times)} for entry in entries]

    monkeypatch.setattr(confirm, "repeated", run_by)
    monkeypatch.setattr(confirm.subprocess, "run", lambda words, **options: None)


def test_confirmed_results_are_not_stale_until_the_code_changes_again():
    name = "fcco_reproduce._stale.stale"
    record = {"sources": {name: ["of earlier code"]}}
    assert stale(record)
    found = {"sources": {name: digest(stale)}, "runs": 3, "date": "2026-11-18T08:00:00+00:00"}
    confirmed = {**record, "confirmed": found}
    assert not stale(confirmed)
    assert state(confirmed) == "made by earlier code, which gives the same as today's in 3 short runs"
    found["sources"][name] = "of code in between"
    assert stale(confirmed) == [f"the code behind {name} has changed"]
    about = {"study": {"making": "By {seeds} seeds."}, "run": {"seeds": 4}}
    assert making([about]) == "By 4 seeds."
    assert "3 short runs, one of each kind" in making([{**about, "confirmed": found}])
