import io
import os
import signal
import subprocess
import sys
import time

import pytest

from fcco.reproduce import Task, run_tasks
from fcco.reproduce._cache import Cache
from reproduce import work


def calls(log):
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def test_finished_work_is_not_done_again(tmp_path):
    cache, log = tmp_path / "deep" / "cache.jsonl", tmp_path / "log"
    tasks = work.squares(log, 0.0)
    assert run_tasks(tasks[:4], cache=cache) == [0, 1, 4, 9]
    assert run_tasks(tasks, cache=cache) == [0, 1, 4, 9, 16, 25]
    assert sorted(calls(log)) == [0, 1, 2, 3, 4, 5]


def test_the_same_task_twice_is_done_once(tmp_path):
    log = tmp_path / "log"
    tasks = work.squares(log, 0.0)[2:4]
    assert run_tasks([*tasks, *tasks]) == [4, 9, 4, 9]
    assert sorted(calls(log)) == [2, 3]


def test_parallel_is_serial(tmp_path):
    tasks = [Task(work.random_walk, {"seed": seed, "steps": 40}, cost=seed) for seed in range(5)]
    serial = run_tasks(tasks)
    assert run_tasks(tasks, workers=2, cache=tmp_path / "cache.jsonl") == serial
    assert run_tasks(tasks, cache=tmp_path / "cache.jsonl") == serial


def test_a_key_is_the_content():
    def task(**settings):
        return Task(work.square, settings)

    assert task(number=1, seconds=2).key == task(seconds=2, number=1).key
    assert task(number=1).key == Task(work.square, {"number": 1}, cost=9.0).key
    assert len({task(number=1).key, task(number=2).key, Task(work.fail_on_two, {"number": 1}).key}) == 3


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
        results += run_tasks([Task(function, {"number": 1})], cache=tmp_path / "cache.jsonl")
    assert results == [2, 3]


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    """SIGKILL while tasks are under way: what was finished is kept, and no worker stays behind."""
    cache, log = tmp_path / "cache.jsonl", tmp_path / "log"
    command = [sys.executable, "-c", "from reproduce import work; work.main()", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(work.__file__))}
    process = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 60
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
    subprocess.run(command, env=environment, check=True)
    tasks = work.squares(log, 0.4)
    assert run_tasks(tasks, cache=cache) == [0, 1, 4, 9, 16, 25]
    # Each kept result was computed once; one under way when the run was killed may have been logged, and is done again.
    assert len(calls(log)) - before == 6 - kept
    assert before - kept <= 2


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
    tasks = [Task(work.fail_on_two, {"number": k}, cost=10 - k) for k in range(3)]
    with pytest.raises(ArithmeticError, match="two"):
        run_tasks(tasks, workers=workers, cache=cache)
    assert set(Cache(cache).results.values()) <= {0, 1}
    if workers == 1:
        assert len(Cache(cache).results) == 2


def test_progress_says_what_is_left():
    stream = io.StringIO()
    run_tasks([Task(work.square, {"number": k}) for k in range(3)], progress=stream)
    lines = stream.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == ["1/3 tasks", "2/3 tasks", "3/3 tasks"]
    assert lines[-1].endswith("about 0:00 left")


def test_no_workers():
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        run_tasks([], workers=0)
