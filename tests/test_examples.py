"""Examples run, in a short form."""

import runpy
import sys
from pathlib import Path

import torch

import fcco

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_demo_prints_both_methods(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo.py", "--steps", "50"])
    runpy.run_path(str(EXAMPLES / "demo.py"), run_name="__main__")
    values = {line[:13].strip(): float(line[15:]) for line in capsys.readouterr().out.splitlines()[1:]}
    assert set(values) == {"in-batch loss", "SOX"}
    assert max(values.values()) < 1


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
