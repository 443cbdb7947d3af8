"""Compiled code on disk: used again, but never after a change of what it was made from."""

import errno
import gc
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest
from numba.core import caching, event
from numba.core.dispatcher import Dispatcher

from fcco.compiled import _compile, _concordance, _cox, _linear, _nca, _pairs, _rules, _sampling
from fcco_reproduce._digest import _parse

MODULES = (_concordance, _cox, _linear, _nca, _pairs, _rules, _sampling)
KERNELS = [
    (m, f)
    for m in MODULES
    for f in (*vars(m).values(), *vars(m).get("_LOOPS", {}).values())
    if isinstance(f, Dispatcher) and f.__module__ == m.__name__
]
ENTRIES = [kernel for _, kernel in KERNELS if not kernel.targetoptions.get("no_cpython_wrapper")]

HELPER = "from kernels._compile import njit\n\n@njit(cache=True)\ndef helper(x):\n    return x + {}\n"
ENTRY = (
    "from kernels._compile import njit\nfrom kernels.helper import helper\n\n"
    "@njit(cache=True)\ndef entry(x):\n    return helper(x)\n"
)
RUN = "from kernels.entry import entry; print(entry(0), sum(entry.stats.cache_hits.values()))"


def run(code, **environment):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_changed_helper_is_compiled_again(tmp_path):
    """The entry point's own file stays as it is."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(_compile.__file__, package)
    (package / "entry.py").write_text(ENTRY)
    found = []
    for added in (1, 1, 2, 2):
        (package / "helper.py").write_text(HELPER.format(added))
        found.append(run(RUN, PYTHONPATH=str(tmp_path), NUMBA_CACHE_DIR=str(tmp_path / "cache")))
    assert found == [["1", "0"], ["1", "1"], ["2", "0"], ["2", "1"]]


def test_every_kernel_is_cached_by_all_of_them():
    assert len(KERNELS) > 35
    assert len(ENTRIES) >= 10
    assert all(isinstance(kernel._cache, _compile._Cache) for kernel in ENTRIES)


def test_loops_of_one_factory_are_told_apart_on_disk():
    keys = {loop._cache._index_key((), _Magic) for loop in _linear._LOOPS.values()}
    assert len(keys) == len(_linear._LOOPS) == 4


class _Magic:
    magic_tuple = tuple


def test_kernels_are_made_of_what_is_in_files_of_kernels():
    """What a kernel takes from elsewhere in this library could change unnoticed."""
    known = {f"fcco.compiled.{path.stem}" for path in _compile.kernel_files()}
    for module, kernel in KERNELS:
        imported = _parse(module.__file__, module.__package__).imported
        for name in kernel.py_func.__code__.co_names:
            for source, _ in imported.get(name, ()):
                assert not source.startswith("fcco") or source in known, f"{kernel.__name__} uses {name} of {source}"


def test_estimators_can_be_imported_and_used_without_a_folder_to_write_to(tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    code = (
        "import numpy as np, fcco.estimators; from fcco.compiled._concordance import _count, count_pairs; "
        "counts = count_pairs(np.array([1.0, 2.0]), np.array([True, True]), np.array([2.0, 1.0])); "
        "print(type(_count._cache).__name__, *counts)"
    )
    only_there = {"NUMBA_CACHE_DIR": str(blocked / "cache"), "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    assert run(code, PYTHONPATH=os.pathsep.join(sys.path), **only_there) == ["NullCache", "1.0", "0.0", "0.0"]


@pytest.fixture
def double(tmp_path, monkeypatch):
    """Makes a compiled function; a second one finds what the first one left."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def make():
        @_compile.njit(cache=True)
        def double(x):
            return 2 * x

        return double

    return make


def test_a_full_disk_costs_only_the_time_to_compile(double, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    assert double()(3) == 6


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_damaged_file_is_replaced(double, tmp_path, ending):
    assert double()(3) == 6
    (damaged,) = tmp_path.rglob(f"*.{ending}")
    Path(damaged).write_bytes(damaged.read_bytes()[:5])
    assert double()(3) == 6
    again = double()
    assert again(3) == 6
    assert sum(again.stats.cache_hits.values()) == 1


@pytest.fixture
def slow(monkeypatch):
    """A function that takes more than no time to compile; nobody has been told of anything."""
    monkeypatch.setattr(_compile, "_told", set())

    @numba.njit
    def helper(x):
        return x + 1

    @numba.njit
    def slow(x):
        return helper(x) * 2

    return slow


def test_garbage_is_collected_again_after_compiling(slow):
    with _compile.compiling("Model", verbose=1):
        assert slow(1) == 4
    assert gc.isenabled()


def test_the_user_is_told_once_of_long_compilation(slow, monkeypatch, caplog):
    monkeypatch.setattr(_compile, "PATIENCE", 0.0)
    for argument in (1, 1.0):
        with _compile.compiling("Ranker"):
            slow(argument)
    assert [record.name for record in caplog.records] == ["fcco.compiled"]
    assert "compiling kernels for Ranker, once; for this process" in caplog.text


def test_the_user_is_told_while_kernels_are_compiled(slow, monkeypatch, caplog):
    """Compilation here goes on until the line is there."""
    monkeypatch.setattr(_compile, "PATIENCE", 0.01)

    class Waiting(event.Listener):
        def on_start(self, event):
            pass

        def on_end(self, event):
            began = time.perf_counter()
            while not caplog.records and time.perf_counter() < began + 60.0:
                time.sleep(0.001)
            told.append(len(caplog.records))

    told = []
    with _compile.compiling("Ranker"), event.install_listener("numba:compile", Waiting()):
        slow(1)
    assert told[0] == 1


def test_short_compilations_add_up(slow, monkeypatch, caplog):
    monkeypatch.setattr(_compile, "PATIENCE", 1e6)
    watch = _compile._Watch("Ranker", 0)
    watch.spent = 1e6
    with event.install_listener("numba:compile", watch):
        slow(1)
    assert len(caplog.records) == 1


def test_the_user_is_not_told_of_short_compilation(slow, monkeypatch, caplog):
    monkeypatch.setattr(_compile, "PATIENCE", 1e6)
    with _compile.compiling("Ranker"):
        slow(1)
    assert not caplog.records


def test_the_message_names_the_folder(slow, double, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(_compile, "PATIENCE", 0.0)
    with _compile.compiling("Ranker"):
        double()(3)
    assert f"kept in {tmp_path}" in caplog.text


def test_the_line_is_on_stderr_without_any_setting():
    code = (
        "import numba; from fcco.compiled import _compile; _compile.PATIENCE = 0.0\n"
        "with _compile.compiling('Ranker'): numba.njit(lambda x: x + 1)(1)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("compiling kernels for Ranker, once")
    assert done.stdout == ""
