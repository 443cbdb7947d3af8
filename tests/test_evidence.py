"""Stored results know which code made them."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import evidence


@pytest.fixture
def records(monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "RECORDS", tmp_path / "evidence.json")
    monkeypatch.setattr(evidence, "RUNS", tmp_path / "runs")
    return evidence.RECORDS


def test_every_result_and_its_script_exist():
    for result in evidence.RESULTS.values():
        assert (evidence.ROOT / result.writes).is_file()
        assert all(find_spec(module) for module in result.modules)
        assert result.digest() != evidence.digest_modules([])


@pytest.mark.parametrize(("changes", "commit"), [("", "abc"), (" M src/fcco/losses/loss.py\n", "abc-dirty")])
def test_a_result_is_stale_until_today_s_code_has_made_it(records, monkeypatch, changes, commit):
    def run(words, **options):
        return type("Done", (), {"stdout": changes if "status" in words else "abc\n"})

    assert evidence.state("rivals", evidence.read()) == "stale: it does not say which code made it"
    monkeypatch.setattr(evidence.subprocess, "run", run)
    evidence.measure("rivals")
    assert evidence.state("rivals", evidence.read()) == "as today"
    found = json.loads(records.read_text())
    assert found["rivals"]["commit"] == commit
    found["rivals"]["digest"] = "0"
    assert evidence.state("rivals", found).startswith("stale: the code has changed since")


def test_another_clone_goes_on_where_a_run_was_stopped(records, monkeypatch, tmp_path):
    result = evidence.RESULTS["rivals"]
    monkeypatch.setitem(evidence.RESULTS, "rivals", replace(result, cache=str(tmp_path / "build" / "runs.jsonl")))
    working = Path(evidence.RESULTS["rivals"].cache)

    def stopped(words, **options):
        if "git" not in words:
            working.parent.mkdir(exist_ok=True)
            working.write_text((working.read_text() if working.exists() else "") + "a run\n")
            raise KeyboardInterrupt
        return type("Done", (), {"stdout": ""})

    monkeypatch.setattr(evidence.subprocess, "run", stopped)
    for runs in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            evidence.measure("rivals")
        assert (evidence.RUNS / "rivals.jsonl").read_text() == runs * "a run\n"
        working.unlink()  # another clone has only what is under version control
    assert evidence.state("rivals", evidence.read()).startswith("stale")


def test_the_list_names_all(records, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["evidence.py"])
    assert evidence.main() == 1
    assert len(capsys.readouterr().out.splitlines()) == len(evidence.RESULTS)
