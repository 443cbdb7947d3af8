"""A run that was interrupted ends where an uninterrupted one does, bit for bit."""

import dataclasses
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import fcco
from fcco.projections import ElasticNet, project_ball, project_box
from fcco.schedules import RunningMean
from fcco.solvers import Accuracy, Checkpoint, SOXBoost, Stage
from solvers.cases import BALL, CALLS, RATES, STAGES, exponential, least_squares

CASES = {
    **CALLS,
    "average": {"method": SOXBoost(STAGES, pass_on="average"), "accuracy": Accuracy(0.1, radius=1.0)},
    "random": {"method": SOXBoost(STAGES, pass_on="random")},
    "schedules": {"method": SOXBoost([Stage(0.05, 0.3, lambda step: 1 / (step + 1), 20)] * 2)},
    "running-mean": {"method": "SOX", **RATES, "gamma": RunningMean(0.1), "lr": lambda step: 0.1 / (step + 1)},
}
PROBLEM, _ = exponential()
BOOST = SOXBoost(STAGES)
SOLVE = partial(fcco.solve, outer_batch=4, inner_batch=2, record=6, random_state=3)


def timeless(solution):
    return {column: values for column, values in solution.history.items() if column != "seconds"}


def assert_same(mine, theirs):
    assert torch.equal(mine.weights, theirs.weights)
    assert torch.equal(mine.average, theirs.average)
    # They are compared as text because the tracking error of an empty table is NaN, which does not equal itself.
    assert str(timeless(mine)) == str(timeless(theirs))
    for count in ("steps", "inner_evaluations", "outer_evaluations", "stopped_early"):
        assert getattr(mine, count) == getattr(theirs, count)


def stop_at(step):
    return lambda state: state.step == step


@pytest.mark.parametrize("step", [1, 15, 17, 24])
@pytest.mark.parametrize("name", CASES)
def test_stopped_and_resumed(name, step, tmp_path):
    """Step 15 is between two stages of SOX-boost, 17 and 24 are within the second, and 24 is recorded."""
    options, checkpoint = CASES[name], tmp_path / "run.pt"
    stopped = SOLVE(PROBLEM, **options, checkpoint=checkpoint, callback=stop_at(step))
    assert (stopped.steps, stopped.stopped_early) == (step, True)
    assert stopped.history["step"][-1] == step
    resumed = SOLVE(PROBLEM, **options, checkpoint=checkpoint)
    assert_same(resumed, SOLVE(PROBLEM, **options))
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_stopped_many_times(tmp_path):
    checkpoint = tmp_path / "run.pt"
    for step in (2, 3, 15, 16, 35, 59):
        SOLVE(PROBLEM, BOOST, checkpoint=checkpoint, callback=stop_at(step))
    resumed = SOLVE(PROBLEM, BOOST, checkpoint=checkpoint)
    assert_same(resumed, SOLVE(PROBLEM, BOOST))


def test_crashed_and_resumed(tmp_path):
    """The run continues from the last save, and takes the steps after it again."""
    checkpoint, calls = tmp_path / "run.pt", []

    def inner(w, rows, generator, inner_batch):
        calls.append(rows)
        if len(calls) == 24:  # one call identifies the problem
            raise RuntimeError("the power is out")
        return PROBLEM.inner(w, rows, generator, inner_batch)

    fragile = dataclasses.replace(PROBLEM, inner=inner)
    with pytest.raises(RuntimeError, match="the power is out") as caught:
        SOLVE(fragile, **RATES, checkpoint=Checkpoint(checkpoint, every=5))
    assert caught.value.__notes__ == ["in step 22 of sox on exponential (the first step is 0)"]
    calls.clear()
    resumed = SOLVE(dataclasses.replace(PROBLEM, inner=PROBLEM.inner), **RATES, checkpoint=checkpoint)
    assert_same(resumed, SOLVE(PROBLEM, **RATES))


def test_a_finished_run_is_not_run_again(tmp_path):
    checkpoint, steps = tmp_path / "run.pt", []
    first = SOLVE(PROBLEM, **RATES, checkpoint=checkpoint)
    again = SOLVE(PROBLEM, **RATES, checkpoint=checkpoint, callback=lambda state: steps.append(state.step))
    assert_same(again, first)
    assert steps == []
    assert again.seconds == first.seconds


def test_a_generator_goes_on_as_well(tmp_path):
    checkpoint, generator = tmp_path / "run.pt", torch.Generator().manual_seed(3)
    SOLVE(PROBLEM, **RATES, checkpoint=checkpoint, callback=stop_at(7))
    resumed = SOLVE(PROBLEM, **{**RATES, "random_state": generator}, checkpoint=checkpoint)
    uninterrupted = torch.Generator().manual_seed(3)
    assert_same(resumed, SOLVE(PROBLEM, **{**RATES, "random_state": uninterrupted}))
    assert torch.equal(generator.get_state(), uninterrupted.get_state())


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()], ids=["disk-full", "interrupt"])
def test_a_torn_save_leaves_the_last_one(tmp_path, monkeypatch, error):
    checkpoint, save = tmp_path / "run.pt", torch.save
    SOLVE(PROBLEM, **RATES, checkpoint=checkpoint, callback=stop_at(10))
    whole = checkpoint.read_bytes()

    def torn(obj, file):
        save(obj, file)
        file.truncate(100)
        raise error

    monkeypatch.setattr(torch, "save", torn)
    with pytest.raises(type(error)):
        SOLVE(PROBLEM, **RATES, checkpoint=Checkpoint(checkpoint, every=1))
    monkeypatch.undo()
    assert checkpoint.read_bytes() == whole
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]
    assert_same(SOLVE(PROBLEM, **RATES, checkpoint=checkpoint), SOLVE(PROBLEM, **RATES))


def test_a_save_is_one_rename(tmp_path, monkeypatch):
    """The last checkpoint is untouched until the new one replaces it."""
    checkpoint = tmp_path / "run.pt"
    SOLVE(PROBLEM, **RATES, checkpoint=checkpoint, callback=stop_at(10))
    whole, seen = checkpoint.read_bytes(), []

    def rename(part, target):
        saved = torch.load(part, weights_only=True)
        seen.append((saved["run"]["counters"]["step"], target.read_bytes() == whole))
        raise OSError("no rename")

    monkeypatch.setattr(Path, "replace", rename)
    with pytest.raises(OSError, match="no rename"):
        SOLVE(PROBLEM, **RATES, checkpoint=Checkpoint(checkpoint, every=4))
    assert seen == [(12, True)]
    assert checkpoint.read_bytes() == whole
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_what_a_killed_process_leaves_is_overwritten(tmp_path):
    (tmp_path / "run.pt.part").write_bytes(b"half a checkpo")
    assert_same(SOLVE(PROBLEM, **RATES, checkpoint=tmp_path / "run.pt"), SOLVE(PROBLEM, **RATES))
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_it_holds_data_alone(tmp_path):
    """A checkpoint can be loaded with weights_only=True, so no code runs when it is opened."""
    SOLVE(PROBLEM, **RATES, checkpoint=tmp_path / "run.pt")
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    assert saved["run"]["counters"]["step"] == RATES["steps"]


OTHERS = {
    "problem": ({}, {"problem": dataclasses.replace(PROBLEM, name="another")}),
    "n": ({}, {"problem": exponential(n=13)[0]}),
    "dim": ({}, {"problem": exponential(dim=2)[0]}),
    "log": ({}, {"problem": exponential(log=True)[0]}),
    "start": ({}, {"problem": dataclasses.replace(PROBLEM, start=PROBLEM.start + 1)}),
    "inner and outer function": ({}, {"problem": dataclasses.replace(PROBLEM, outer=torch.log)}),
    "method": ({}, {"method": "soap"}),
    "outer_batch": ({}, {"outer_batch": 3}),
    "inner_batch": ({}, {"inner_batch": 3}),
    "lr": ({}, {"lr": 0.06}),
    "beta": ({}, {"beta": 0.2}),
    "gamma": ({"gamma": lambda step: 0.3}, {"gamma": lambda step: 0.3 if step < 39 else 0.1}),
    "steps": ({}, {"steps": 41}),
    "seed": ({}, {"random_state": 4}),
    "record": ({}, {"record": 7}),
    "regulariser": ({"regulariser": ElasticNet(0.1, 0.1)}, {"regulariser": ElasticNet(0.1, 0.2)}),
    "projection": ({"projection": BALL}, {"projection": partial(project_ball, radius=1.3)}),
    "safeguard": ({}, {"safeguard": False}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_refuses_the_checkpoint_of_another_run(name, tmp_path):
    checkpoint = tmp_path / "run.pt"
    common, changed = OTHERS[name]
    options = {"problem": PROBLEM, "method": "sox", **RATES, **common, "checkpoint": checkpoint}
    SOLVE(**options, callback=stop_at(2))
    before = checkpoint.read_bytes()
    with pytest.raises(ValueError, match=f"run.pt belongs to another run: its {name} is .*, not "):
        SOLVE(**{**options, **changed})
    assert checkpoint.read_bytes() == before


def test_a_function_that_changed_is_told_by_the_value_that_differs(tmp_path):
    run = partial(SOLVE, method="sox", **RATES, checkpoint=tmp_path / "run.pt")
    run(PROBLEM, callback=stop_at(2))
    other = dataclasses.replace(PROBLEM, outer=lambda u, index: PROBLEM.outer(u, index) + 1e-3 * (index == 5))
    with pytest.raises(
        ValueError, match=r"its inner and outer function is -0.2618036\d+ at position 13, not -0.26080361"
    ):
        run(other)


@pytest.mark.parametrize("stages", [STAGES[:2], [*STAGES[:2], dataclasses.replace(STAGES[2], steps=3)]])
def test_refuses_other_stages(stages, tmp_path):
    SOLVE(PROBLEM, BOOST, checkpoint=tmp_path / "run.pt", callback=stop_at(2))
    with pytest.raises(ValueError, match=r"belongs to another run: its (number of stages|steps)"):
        SOLVE(PROBLEM, SOXBoost(stages), checkpoint=tmp_path / "run.pt")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"hello"], ids=["empty", "text", "word"])
def test_refuses_other_files(content, tmp_path):
    (tmp_path / "run.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"run.pt is not a checkpoint of fcco.solve"):
        SOLVE(PROBLEM, **RATES, checkpoint=tmp_path / "run.pt")
    assert (tmp_path / "run.pt").read_bytes() == content


def test_refuses_the_weights_of_a_model(tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "run.pt")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        SOLVE(PROBLEM, **RATES, checkpoint=tmp_path / "run.pt")


def test_float32(tmp_path):
    double = least_squares()
    problem = dataclasses.replace(
        double,
        start=double.start.float(),
        optimum=None,
        exact_inner=None,
        inner=lambda w, rows, generator, batch: double.inner(w.double(), rows, generator, batch).float(),
    )
    SOLVE(problem, **RATES, checkpoint=tmp_path / "run.pt", callback=stop_at(11))
    resumed = SOLVE(problem, **RATES, checkpoint=tmp_path / "run.pt")
    assert resumed.weights.dtype == torch.float32
    assert_same(resumed, SOLVE(problem, **RATES))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_refuses_a_damaged_file(share, tmp_path):
    checkpoint = tmp_path / "run.pt"
    SOLVE(PROBLEM, **RATES, checkpoint=checkpoint)
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"run.pt is not a checkpoint of fcco.solve, or is damaged"):
        SOLVE(PROBLEM, **RATES, checkpoint=checkpoint)


def test_refuses_a_file_with_a_bit_that_flipped(tmp_path):
    """Anywhere: a flip is noticed, or is where nothing is read."""
    checkpoint = tmp_path / "run.pt"
    whole = SOLVE(PROBLEM, **RATES, checkpoint=checkpoint)
    content, errors, flips = checkpoint.read_bytes(), [], range(0, 8 * checkpoint.stat().st_size, 997)
    for flip in flips:
        flipped = bytearray(content)
        flipped[flip // 8] ^= 1 << flip % 8
        checkpoint.write_bytes(flipped)
        try:
            assert_same(SOLVE(PROBLEM, **RATES, checkpoint=checkpoint), whole)
        except ValueError as error:
            errors.append(str(error))
    assert len(errors) > len(flips) / 4
    assert all("run.pt is not a checkpoint of fcco.solve, or is damaged: put a copy of it" in text for text in errors)


@pytest.mark.parametrize("value", ["weights", "average", "table", "generator", "history"])
def test_refuses_another_value(value, tmp_path):
    checkpoint = tmp_path / "run.pt"
    SOLVE(PROBLEM, **RATES, checkpoint=checkpoint)
    saved = torch.load(checkpoint, weights_only=True)
    held = {"table": lambda run: run["table"]["u"], "history": lambda run: run["history"]["objective"]}
    held.get(value, lambda run: run[value])(saved["run"])[0] += 1
    torch.save(saved, checkpoint)
    with pytest.raises(ValueError, match=r"run.pt is not .*, or is damaged: .* remove it to start again"):
        SOLVE(PROBLEM, **RATES, checkpoint=checkpoint)


@pytest.mark.parametrize("place", ["missing/run.pt", "file/run.pt", "."])
def test_refuses_a_place_that_cannot_be_written_before_the_first_step(place, tmp_path):
    (tmp_path / "file").write_text("")
    calls = []
    with pytest.raises(OSError, match=r"the checkpoint .* cannot be written"):
        SOLVE(PROBLEM, **RATES, checkpoint=tmp_path / place, callback=calls.append)
    assert calls == []
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_numbers_of_numpy(tmp_path):
    """NumPy numbers are accepted, and a checkpoint contains Python numbers."""
    problem = dataclasses.replace(PROBLEM, n=np.int64(PROBLEM.n), dim=np.int64(1))
    numbers = {"lr": np.float64(0.05), "beta": lambda step: np.float64(0.3), "gamma": np.float32(0.25)}
    options = {**numbers, "steps": np.int64(40), "outer_batch": np.int64(4), "record": np.int64(6)}
    SOLVE(problem, **options, checkpoint=tmp_path / "run.pt", callback=stop_at(9))
    resumed = SOLVE(problem, **options, checkpoint=tmp_path / "run.pt")
    assert_same(resumed, SOLVE(PROBLEM, **{**RATES, "gamma": 0.25}))


@pytest.mark.parametrize("bound", ["lower", "upper"])
@pytest.mark.parametrize("entry", [0, 11])
def test_refuses_another_box(bound, entry, tmp_path):
    """A change of any entry of either bound is noticed."""
    problem = dataclasses.replace(
        PROBLEM,
        start=torch.zeros(12, dtype=torch.float64),
        inner=lambda w, *rest: PROBLEM.inner(w[: len(PROBLEM.start)], *rest),
        exact_inner=None,
    )
    box = {side: torch.full((12,), value, dtype=torch.float64) for side, value in (("lower", -2.0), ("upper", 2.0))}
    options = {**RATES, "checkpoint": tmp_path / "run.pt"}
    SOLVE(problem, **options, projection=partial(project_box, **box), callback=stop_at(2))
    box[bound] = box[bound].clone()
    box[bound][entry] *= 1.5
    with pytest.raises(ValueError, match="belongs to another run: its projection is"):
        SOLVE(problem, **options, projection=partial(project_box, **box))


class Ridge:
    """A user-defined regulariser without a repr."""

    def __init__(self, mu):
        self.mu = mu

    def __call__(self, w):
        return self.mu / 2 * w.square().sum()

    def prox(self, w, step):
        return w / (1 + step * self.mu)


def test_a_regulariser_of_ones_own(tmp_path):
    options = {**RATES, "checkpoint": tmp_path / "run.pt"}
    SOLVE(PROBLEM, **options, regulariser=Ridge(0.1), callback=stop_at(9))
    with pytest.raises(ValueError, match="belongs to another run: its regulariser is"):
        SOLVE(PROBLEM, **options, regulariser=Ridge(0.2))
    assert_same(SOLVE(PROBLEM, **options, regulariser=Ridge(0.1)), SOLVE(PROBLEM, **RATES, regulariser=Ridge(0.1)))


def saved_step(checkpoint):
    return torch.load(checkpoint, weights_only=True)["run"]["counters"]["step"]


@pytest.fixture
def ctrl_c():
    """Return a function that presses Ctrl-C.

    Python's handler is installed, because processes started with ``nohup`` or ``&`` ignore the signal.
    """
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, inherited)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_callback_that_raises_loses_nothing(error, tmp_path):
    checkpoint = tmp_path / "run.pt"

    def callback(state):
        if state.step == 17:
            raise error("enough")

    with pytest.raises(error, match="enough"):
        SOLVE(PROBLEM, **RATES, checkpoint=checkpoint, callback=callback)
    assert saved_step(checkpoint) == 17
    assert_same(SOLVE(PROBLEM, **RATES, checkpoint=checkpoint), SOLVE(PROBLEM, **RATES))


def failing_at(call, fail):
    """Return the problem with an inner function that calls ``fail`` at one of its calls, after drawing."""
    calls = []

    def inner(w, rows, generator, inner_batch):
        calls.append(rows)
        values = PROBLEM.inner(w, rows, generator, inner_batch)
        return values if len(calls) != call else fail(values)

    return dataclasses.replace(PROBLEM, inner=inner)


def raising(error):
    def fail(values):
        raise error

    return fail


# The first call identifies the problem, so the 20th call is that of step 18.
@pytest.mark.parametrize("fail", [raising(RuntimeError("lost")), lambda values: values * float("nan")])
def test_a_problem_that_raises_loses_nothing(fail, tmp_path):
    checkpoint = tmp_path / "run.pt"
    with pytest.raises((RuntimeError, ValueError), match=r"lost|nan"):
        SOLVE(failing_at(20, fail), **RATES, checkpoint=checkpoint)
    assert saved_step(checkpoint) == 18
    assert_same(SOLVE(PROBLEM, **RATES, checkpoint=checkpoint), SOLVE(PROBLEM, **RATES))


@pytest.mark.parametrize(("call", "step"), [(20, 19), (41, 40)])
def test_ctrl_c_waits_for_the_end_of_the_step(call, step, tmp_path, ctrl_c):
    checkpoint = tmp_path / "run.pt"

    def press(values):
        ctrl_c()
        return values

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        SOLVE(failing_at(call, press), **RATES, checkpoint=checkpoint)
    assert signal.getsignal(signal.SIGINT) is handler
    assert saved_step(checkpoint) == step
    assert_same(SOLVE(PROBLEM, **RATES, checkpoint=checkpoint), SOLVE(PROBLEM, **RATES))


def test_a_second_ctrl_c_does_not_wait(tmp_path, ctrl_c):
    """The interrupted step leaves an inconsistent state, so only the last save remains."""

    def press(values):
        ctrl_c()
        ctrl_c()
        return values

    with pytest.raises(KeyboardInterrupt):
        SOLVE(failing_at(20, press), **RATES, checkpoint=Checkpoint(tmp_path / "run.pt", every=5))
    assert saved_step(tmp_path / "run.pt") == 15
    assert_same(SOLVE(PROBLEM, **RATES, checkpoint=tmp_path / "run.pt"), SOLVE(PROBLEM, **RATES))


def test_ctrl_c_is_at_once_without_a_checkpoint(ctrl_c):
    states = []

    def press(values):
        ctrl_c()
        return values

    with pytest.raises(KeyboardInterrupt):
        SOLVE(failing_at(20, press), **RATES, callback=states.append)
    assert len(states) == 19


def test_a_program_that_handles_ctrl_c_keeps_its_handler(tmp_path, ctrl_c):
    pressed = []

    def press(values):
        ctrl_c()
        return values

    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    SOLVE(failing_at(20, press), **RATES, checkpoint=tmp_path / "run.pt")
    assert pressed == [signal.SIGINT]
