"""Examples run, in a short form."""

import runpy
import sys
from pathlib import Path

import torch

import fcco

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_demo_prints_a_table_with_every_method(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo.py", "--steps", "3", "--seeds", "1"])
    runpy.run_path(str(EXAMPLES / "demo.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("exact optimum") == 2
    for name in fcco.METHODS:
        assert printed.count(f"\n{name}  ") == 2


def test_engine_benchmark_runs(capsys):
    benchmark = runpy.run_path(str(EXAMPLES.parent / "benchmarks" / "engine.py"))
    benchmark["against_no_table"](64, 2, fcco.SOX(0.1), compiled=False, rounds=1, repeats=1)
    assert "SOX, 64 x 2" in capsys.readouterr().out


def test_losses_benchmark_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["losses.py", "--quick"])
    threads = torch.get_num_threads()
    runpy.run_path(str(EXAMPLES.parent / "benchmarks" / "losses.py"), run_name="__main__")
    torch.set_num_threads(threads)
    assert "average precision" in capsys.readouterr().out
