"""Examples run, in a short form."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fcco

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example with arguments, and gives the lines it prints."""

    def run_example(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        state = torch.get_rng_state()
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        torch.set_rng_state(state)
        return capsys.readouterr().out.splitlines()

    return run_example


def last_number(line):
    return float(line.split()[-1])


def test_demo_compares_both_losses_and_draws(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    values = {
        line[7:27].strip(): float(line[27:50]) for line in run("demo", "--quick") if line[:5].strip() in ("8", "all")
    }
    assert {*values} == {"loss of the batch", "fcco.losses.NCALoss", "exact, L-BFGS"}
    assert min(values.values()) > 0.6  # as at the start, or better
    assert (tmp_path / "results" / "demo.png").exists()


def test_plain_loop_improves(run):
    values = [last_number(line) for line in run("plain_loop", "--epochs", 3)]
    assert len(values) == 3
    assert values[0] < values[1] < values[2]


def test_resuming_ends_where_the_whole_run_does(run):
    *stops, same = run("resume", "--epochs", 2, "--workers", 1)
    assert stops == ["stopped after batch 6 of epoch 1"]
    assert same == "the weights of the whole run: True"


# Lightning's own: a deprecated call of torch, and advice on loaders and loggers.
@pytest.mark.filterwarnings("ignore:.*LeafSpec", "ignore:.*does not have many workers")
def test_lightning_logs_and_saves(run, tmp_path):
    pytest.importorskip("lightning")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    *reports, saved, final = run("with_lightning", "--epochs", 2, "--log", tmp_path)
    assert len(reports) == 2 * 14 // 10
    assert saved.endswith("True")
    assert final.startswith("epoch 1:")
    log = events.EventAccumulator(str(tmp_path / "version_0")).Reload()
    assert {"fcco/loss/staleness_mean", "fcco/loss/never_seen"} <= set(log.Tags()["scalars"])


def test_accelerate_trains_and_restores(run):
    pytest.importorskip("accelerate")
    *epochs, restored = run("with_accelerate", "--epochs", 2)
    assert last_number(epochs[0]) < last_number(epochs[1])
    assert restored.endswith("True")


def test_skorch_searches(run):
    pytest.importorskip("skorch")
    *scores, table = run("with_skorch", "--epochs", 1)
    assert [line.split("(")[0] for line in scores] == ["BSGD", "SOAP", "SOX"]
    assert min(map(last_number, scores)) > 0.9
    assert "569 rows, 212 of them visited" in table


def test_compiled_step_equals_the_eager_one(run):
    torch._dynamo.reset()
    line = run("compiled_step", "--steps", 5, "--backend", "eager")[-1]
    torch._dynamo.reset()
    weights, table = (float(word) for word in line.split() if "e-" in word or "e+" in word)
    assert max(weights, table) < 1e-5


def test_mixed_precision_ends_where_single_precision_does(run):
    single, half, apart = run("mixed_precision", "--epochs", 1)
    assert single.startswith("scores torch.float32, loss torch.float32, table torch.float32")
    assert half.startswith("scores torch.bfloat16, loss torch.float32, table torch.float32")
    assert float(apart.split()[-2]) < 0.01


def test_accumulation_equals_one_batch_but_for_moap(run):
    lines = run("accumulation", "--steps", 8)
    for line, equal in zip(lines, (True, True, True, False), strict=False):
        gradients, tables = (float(word.rstrip(",")) for word in line.split() if "e-" in word or "e+" in word)
        assert (max(gradients, tables) < 1e-12) is equal, line
        assert line.endswith("steps of the table 3 and 12")
    assert last_number(lines[-1]) < last_number(lines[4])


def test_stateless_step_leaves_the_modules_alone(run):
    *values, last = run("stateless", "--steps", 20)
    assert last_number(values[0]) < last_number(values[-1])
    assert last == "steps in the state passed along: 20, in the module: 0"


def test_watch_table_reports_and_advises(run, tmp_path):
    pytest.importorskip("tensorboard")
    lines = run("watch_table", "--epochs", 2, "--draws", 8, "--plot", tmp_path / "table.png", "--log", tmp_path / "log")
    assert lines[0].startswith("epoch 0: u is off by")
    assert any(line.startswith("The table") for line in lines)
    assert (tmp_path / "table.png").exists()
    assert any((tmp_path / "log").iterdir())


def test_neural_survival_draws_curves_of_data_that_it_makes_up(run, tmp_path, monkeypatch):
    monkeypatch.delenv("FCCO_DATA", raising=False)
    first, *methods, _ = run("neural_survival", "--quick", "--figure", tmp_path / "curves.png")
    assert first.startswith("made-up data: 1500 patients")
    assert [line.split()[0] for line in methods] == ["in-batch", "CoxLoss", "CoxRegressor"]
    assert max(map(last_number, methods)) < 0.25
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_bags_of_an_objective_of_ones_own(run):
    lines = run("bags", "--steps", 60)
    assert [line.split()[0] for line in lines] == ["in-batch", "SOX"]
    assert min(map(last_number, lines)) > 0.5


def test_soft_nearest_neighbours_of_an_objective_of_ones_own(run):
    lines = run("soft_nearest_neighbours", "--epochs", 2)
    assert [line.split()[0] for line in lines] == ["in-batch", "table", "memory"]
    assert min(map(last_number, lines)) > 0.85


def test_a_large_batch_in_chunks_is_the_plain_batch(run):
    chunks, accumulation = run("large_batch", "--steps", 5)
    assert last_number(chunks) < 1e-6
    assert last_number(accumulation) > 1e-3


# Lightning's own: a deprecated call of torch, and advice on loaders.
@pytest.mark.filterwarnings("ignore:.*LeafSpec", "ignore:.*does not have many workers", "ignore:.*number of training")
def test_a_large_batch_in_lightning(run):
    pytest.importorskip("lightning")
    assert last_number(run("large_batch_lightning", "--epochs", 3)[-1]) > 0.9


def test_a_large_batch_does_not_depend_on_the_number_of_processes(run, monkeypatch):
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (one,) = run("large_batch_ddp", "--steps", 3)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command += [str(EXAMPLES / "large_batch_ddp.py"), "--steps", "3"]
    (two,) = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert one.startswith("1 processes")
    assert two.startswith("2 processes")
    assert last_number(two) == pytest.approx(last_number(one), abs=2e-6)


def test_retrieval_finds_more_than_chance(run):
    lines = run("retrieval", "--items", 2000, "--epochs", 2)
    assert len(lines) == 3
    assert min(map(last_number, lines)) > 50 / 2000


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


def test_own_rule_is_compared(run):
    header, *rows = run("own_rule", "--evaluations", 1280, "--seeds", 1)
    assert header.startswith("method")
    assert {row.split()[0] for row in rows} == {"Trimmed", "SOAP", "SOX"}


def test_solvers_train_a_module(run):
    start, *trained = [last_number(line) for line in run("train_module_with_solver", "--steps", 300)]
    assert len(trained) == 3
    assert max(trained) < start
