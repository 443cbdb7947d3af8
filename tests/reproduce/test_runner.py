import io
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from fcco.cli import main
from fcco_reproduce import Job, run_jobs
from fcco_reproduce._cache import Cache
from fcco_reproduce._runner import is_stored, sources
from reproduce import work


def calls(log):
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def test_finished_work_is_not_done_again(tmp_path):
    cache, log = tmp_path / "deep" / "cache.jsonl", tmp_path / "log"
    jobs = work.squares(log, 0.0)
    assert run_jobs(jobs[:4], cache=cache) == [0, 1, 4, 9]
    assert run_jobs(jobs, cache=cache) == [0, 1, 4, 9, 16, 25]
    assert sorted(calls(log)) == [0, 1, 2, 3, 4, 5]


def test_the_same_task_twice_is_done_once(tmp_path):
    log = tmp_path / "log"
    jobs = work.squares(log, 0.0)[2:4]
    assert run_jobs([*jobs, *jobs]) == [4, 9, 4, 9]
    assert sorted(calls(log)) == [2, 3]


def test_parallel_is_serial(tmp_path):
    jobs = [Job(work.random_walk, {"seed": seed, "steps": 40}, cost=seed) for seed in range(5)]
    serial = run_jobs(jobs)
    assert run_jobs(jobs, workers=2, cache=tmp_path / "cache.jsonl") == serial
    assert run_jobs(jobs, cache=tmp_path / "cache.jsonl") == serial


def test_a_key_is_the_content():
    def job(**settings):
        return Job(work.square, settings)

    assert job(number=1, seconds=2).key == job(seconds=2, number=1).key
    assert job(number=1).key == Job(work.square, {"number": 1}, cost=9.0).key
    assert len({job(number=1).key, job(number=2).key, Job(work.fail_on_two, {"number": 1}).key}) == 3


def test_an_edited_function_is_run_again(tmp_path, monkeypatch):
    source = "def answer(number):\n    return number + {}\n"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    results = []
    for added in (1, 2):
        name = f"edited_{added}"
        (tmp_path / f"{name}.py").write_text(source.format(added))
        function = __import__(name).answer
        function.__module__ = "edited"
        monkeypatch.setitem(sys.modules, "edited", sys.modules[name])
        results += run_jobs([Job(function, {"number": 1})], cache=tmp_path / "cache.jsonl")
    assert results == [2, 3]


def test_results_of_other_code_count_only_if_asked_for(tmp_path):
    """The file says which code made a line, and a study's record with it."""
    cache, log = tmp_path / "cache.jsonl", tmp_path / "log"
    job = work.squares(log, 0.0)[3]
    Cache(cache).store("made long ago", {"job": job.name, "code": "old", "settings": job.settings}, 10)
    assert run_jobs([job], cache=cache, any_code=True) == [10]
    assert is_stored(job, cache, any_code=True)
    assert not is_stored(job, cache)
    assert sources([job], cache) == {job.name: ["old"]}
    assert calls(log) == []
    assert run_jobs([job], cache=cache) == [9]
    assert run_jobs([job], cache=cache, any_code=True) == [9]
    assert sources([job], cache) == {job.name: [job.code]}


def test_blas_and_torch_have_one_thread():
    found = Job(work.threads, {}).run()
    assert found["torch"] == 1
    assert found["blas"]
    assert set(found["blas"]) == {1}


def test_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        Job(work.threads, {}).run()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_key_does_not_know_the_place():
    jobs = [Job(work.square, {"number": 1}, place=place) for place in ({}, {"log": "a"}, {"log": "b"})]
    assert len({job.key for job in jobs}) == 1


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    """SIGKILL while jobs are under way: what was finished is kept, and no worker stays behind."""
    cache, log = tmp_path / "cache.jsonl", tmp_path / "log"
    command = [sys.executable, "-c", "from reproduce import work; work.main()", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 300
    while not (cache.exists() and cache.read_text().count("\n") >= 2):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(Cache(cache).results)
    assert 2 <= kept < 6
    time.sleep(1.0)
    before = len(calls(log))
    assert run_jobs(work.squares(log, 0.4), cache=cache) == [0, 1, 4, 9, 16, 25]
    # Each kept result was computed once; one under way when the run was killed may have been logged, and is done again.
    assert len(calls(log)) - before == 6 - kept
    assert before - kept <= 2


def reproduce(study, out):
    return ["reproduce", study, "--quick", "--only", "iii", "--seeds", "2", "--workers", "1", "--out", str(out)]


def goes_on(command, cache, capsys):
    """Results that are there are not computed again, and all files come out."""
    kept = cache.read_text().rpartition("\n")[0].splitlines()
    capsys.readouterr()
    assert main(command) == 0
    assert cache.read_text().splitlines()[: len(kept)] == kept
    progress = [line for line in capsys.readouterr().err.splitlines() if " jobs, " in line]
    assert 0 < len(progress) == len(Cache(cache).results) - len(kept)
    assert {path.suffix for path in cache.parent.glob("iii-*")} == {".csv", ".svg", ".json"}


def test_a_killed_study_goes_on_where_it_was(tmp_path, capsys):
    cache, command = tmp_path / "cache.jsonl", reproduce("quick", tmp_path)
    with subprocess.Popen(
        [sys.executable, "-m", "fcco", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 300
        while not (cache.exists() and "\n" in cache.read_text()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    goes_on(command, cache, capsys)


@pytest.mark.parametrize("study", ["theory", "push", "nca"])
def test_a_stopped_study_goes_on_where_it_was(study, tmp_path, monkeypatch, capsys):
    def stop(*arguments):
        store(*arguments)
        raise KeyboardInterrupt

    store, command = Cache.store, reproduce(study, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Cache, "store", stop)
        with pytest.raises(SystemExit):
            main(command)
    goes_on(command, tmp_path / "cache.jsonl", capsys)


def test_keys_are_the_same_in_another_process():
    """Of every study; they would not be if the order of a set or an address in memory were part of them."""
    code = "from reproduce import work; print(*work.keys())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == work.keys()


def test_half_a_line_is_dropped(tmp_path):
    path = tmp_path / "cache.jsonl"
    Cache(path).store("a", {}, 1)
    with path.open("a") as file:
        file.write('{"key": "b", "resu')
    reopened = Cache(path)
    assert reopened.results == {"a": 1}
    reopened.store("c", {}, 3)
    assert Cache(path).results == {"a": 1, "c": 3}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_and_the_rest_is_kept(tmp_path, workers):
    cache = tmp_path / "cache.jsonl"
    jobs = [Job(work.fail_on_two, {"number": k}, cost=10 - k) for k in range(3)]
    with pytest.raises(ArithmeticError, match="two"):
        run_jobs(jobs, workers=workers, cache=cache)
    assert set(Cache(cache).results.values()) <= {0, 1}
    if workers == 1:
        assert len(Cache(cache).results) == 2


def test_progress_says_what_is_left():
    stream = io.StringIO()
    run_jobs([Job(work.square, {"number": k}) for k in range(3)], progress=stream)
    lines = stream.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == ["1/3 jobs", "2/3 jobs", "3/3 jobs"]
    assert lines[-1].endswith("00:00 left")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_a_bar():
    stream = Terminal()
    run_jobs([Job(work.square, {"number": k}) for k in range(2)], progress=stream)
    shown = list(dict.fromkeys(line.strip() for line in stream.getvalue().split("\r")[1:]))
    assert [line[:32] for line in shown] == [
        f"[{'':<20}] 0/2 jobs,"[:32],
        f"[{10 * '#':<20}] 1/2 jobs,"[:32],
        f"[{20 * '#':<20}] 2/2 jobs,"[:32],
    ]
    assert shown[0].endswith("? left")
    assert shown[2].endswith("00:00 left")


def test_a_bar_that_does_not_come_to_its_end_leaves_its_line():
    stream = Terminal()
    with pytest.raises(ArithmeticError):
        run_jobs([Job(work.fail_on_two, {"number": k}) for k in (1, 2)], progress=stream)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\n")


def test_no_workers():
    with pytest.raises(ValueError, match="workers must be at least 1; got 0"):
        run_jobs([], workers=0)
