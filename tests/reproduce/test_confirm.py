"""Stored runs are confirmed by repeating some of them with today's code."""

import json
from itertools import count

import pytest

from fcco_reproduce import Job, run_jobs
from fcco_reproduce._confirm import confirm, sample
from fcco_reproduce._page import making
from fcco_reproduce._stale import stale, state

FACTOR = {"of all": 1.0}
TIMES = count()


def measure(*, method, seed):
    """Return a result that depends on the method, and a time that differs at every call."""
    return {
        "value": FACTOR["of all"] * len(method) + seed,
        "history": [{"seconds": next(TIMES)}],
        "seconds": next(TIMES),
    }


@pytest.fixture
def stored(tmp_path):
    jobs = [Job(measure, {"method": name, "seed": k}) for name in ("SOX", "SOAP", "MOAP") for k in range(4)]
    run_jobs(jobs, cache=tmp_path / "runs.jsonl")
    return tmp_path / "runs.jsonl"


def test_equal_runs_confirm_all_but_for_their_times(stored):
    found = confirm(stored, 3)
    assert (found["runs"], found["of"]) == (3, 12)
    assert found["sources"] == {f"{__name__}.measure": Job(measure, {}).code}


def test_a_run_that_differs_is_named(stored, monkeypatch):
    monkeypatch.setitem(FACTOR, "of all", 1 + 2.0**-50)
    with pytest.raises(ValueError, match=r"differs, so its results are stale: \{'method': "):
        confirm(stored, 1)


def test_a_file_without_runs_confirms_nothing(tmp_path):
    (tmp_path / "runs.jsonl").write_text("")
    with pytest.raises(ValueError, match="no results to confirm"):
        confirm(tmp_path / "runs.jsonl", 3)


def test_a_sample_has_every_method_before_it_has_one_twice(stored):
    entries = [json.loads(line) for line in stored.read_text().splitlines()]
    assert {entry["settings"]["method"] for entry in sample(entries, 3)} == {"SOX", "SOAP", "MOAP"}
    assert len(sample(entries, 2)) == 2
    assert sample(entries, 3) == sample(entries, 3)


def test_confirmed_results_are_not_stale_until_the_code_changes_again(stored):
    found = {**confirm(stored, 3), "date": "2026-11-18T08:00:00+00:00"}
    record = {"sources": {f"{__name__}.measure": ["of earlier code"]}}
    assert stale(record)
    confirmed = {**record, "confirmed": found}
    assert not stale(confirmed)
    assert state(confirmed) == "made by earlier code; 3 of 12 runs, repeated with today's code, were equal"
    found["sources"][f"{__name__}.measure"] = "of code in between"
    assert stale(confirmed) == [f"the code behind {__name__}.measure has changed"]
    about = {"study": {"making": "By {seeds} seeds."}, "run": {"seeds": 4}}
    assert making([about]) == "By 4 seeds."
    assert "3 of the 12 runs, one of each method, were repeated" in making([{**about, "confirmed": found}])
