"""The solution, with its history, counts and averages; callbacks, progress and plots."""

import dataclasses
import math
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import fcco
from fcco.projections import ElasticNet
from fcco.solvers import Accuracy, SOXBoost, problems
from solvers.cases import BALL, CALLS, RATES, STAGES, exponential, least_squares

PROBLEM = least_squares()
SIZES = {"outer_batch": 4, "inner_batch": 3}


def column(solution, name):
    return torch.tensor(solution.history[name], dtype=torch.float64)


def look(method="sox", problem=PROBLEM, **options):
    """Return the solution, every iterate from the start on, and the table after each step."""
    iterates, tables = [problem.start], []

    def callback(state):
        iterates.append(state.weights.clone())
        tables.append((state.table.u.clone(), state.table.visits.bool().clone()))

    solution = fcco.solve(problem, method, **SIZES, **options, record=1, callback=callback)
    return solution, iterates, tables


class TestHistory:
    def test_of_a_smooth_problem(self):
        solution, iterates, tables = look(**RATES)
        assert solution.history["step"] == list(range(41))
        exact = [PROBLEM.exact_inner(w) for w in iterates]
        b = PROBLEM.outer.__self__.b
        slopes = PROBLEM.outer.__self__.mean_a
        objectives = torch.stack([((g - b) ** 2).mean() / 2 for g in exact])
        norms = torch.stack([(slopes.T @ (g - b) / 20).norm() for g in exact])
        torch.testing.assert_close(column(solution, "objective"), objectives)
        torch.testing.assert_close(column(solution, "gradient_norm"), norms)
        errors = [(u - g)[seen].square().mean() for (u, seen), g in zip(tables, exact[1:], strict=True)]
        torch.testing.assert_close(column(solution, "tracking_error")[1:], torch.stack(errors))
        assert math.isnan(solution.history["tracking_error"][0])

    def test_average_is_of_all_iterates_but_the_last(self):
        solution, iterates, _ = look(**RATES)
        means = [torch.stack(iterates[: max(1, t)]).mean(0) for t in range(len(iterates))]
        torch.testing.assert_close(solution.average, means[-1])
        objectives = torch.stack([PROBLEM.value(w) for w in means])
        torch.testing.assert_close(column(solution, "average_objective"), objectives)

    def test_of_the_last_stage(self):
        solution, iterates, _ = look(SOXBoost(STAGES))
        torch.testing.assert_close(solution.average, torch.stack(iterates[35:60]).mean(0))
        assert solution.history["stage"] == [0] * 15 + [1] * 20 + [2] * 25 + [3]

    def test_with_a_regulariser_and_a_set(self):
        """The objective is F + R. The gradient norm is the length of a proximal gradient step with lr = 1."""
        regulariser = ElasticNet(0.1, 0.2)
        solution, iterates, _ = look(**RATES, regulariser=regulariser, projection=BALL)
        objectives = torch.stack([PROBLEM.value(w) + regulariser(w) for w in iterates])
        torch.testing.assert_close(column(solution, "objective"), objectives)
        for w, norm in zip(iterates, solution.history["gradient_norm"], strict=True):
            at = w.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(PROBLEM.value(at), at)
            assert norm == pytest.approx(float((w - BALL(regulariser.prox(w - gradient, 1.0))).norm()))
        assert max(float(w.norm()) for w in iterates) == pytest.approx(1.2)

    def test_with_the_convexifier(self):
        solution, iterates, _ = look(SOXBoost(STAGES), accuracy=Accuracy(0.4, radius=2.0))  # mu = 0.2
        objectives = torch.stack([PROBLEM.value(w) + 0.1 * w.square().sum() for w in iterates])
        torch.testing.assert_close(column(solution, "objective"), objectives)
        assert solution.history["gradient_norm"][0] == pytest.approx(look(**RATES)[0].history["gradient_norm"][0])

    def test_moap_has_a_table_from_the_start(self):
        """All rows of u are 0, so the error is the mean square of g."""
        problem, _ = exponential()
        solution = fcco.solve(problem, "moap", **SIZES, **RATES)
        expected = float(problem.exact_inner(problem.start).square().mean())
        assert solution.history["tracking_error"][0] == pytest.approx(expected)

    def test_log_space_tracks_g_itself(self):
        plain, log = (fcco.solve(exponential(log=log)[0], "soap", **SIZES, **RATES) for log in (False, True))
        for name in ("objective", "gradient_norm", "tracking_error"):
            np.testing.assert_allclose(log.history[name], plain.history[name], rtol=1e-9)

    def test_is_nan_where_the_problem_does_not_tell(self):
        solution = fcco.solve(dataclasses.replace(PROBLEM, exact_inner=None), **RATES)
        assert all(map(math.isnan, solution.history["objective"] + solution.history["tracking_error"]))
        objective = dataclasses.replace(PROBLEM, exact_inner=None, objective=PROBLEM.value)
        solution = fcco.solve(objective, **RATES)
        assert all(map(math.isfinite, solution.history["objective"] + solution.history["gradient_norm"]))

    @pytest.mark.parametrize(
        ("options", "steps"),
        [
            ({}, [0, 40]),
            ({"record": 15}, [0, 15, 30, 40]),
            ({"record": 20}, [0, 20, 40]),
            ({"record": [30, 7, 99]}, [7, 30]),
            ({"record": []}, []),
            ({"steps": 0}, [0]),
        ],
    )
    def test_recorded_steps(self, options, steps):
        solution = fcco.solve(PROBLEM, **{**RATES, **options})
        assert solution.history["step"] == steps
        assert {len(values) for values in solution.history.values()} == {len(steps)}

    def test_recording_changes_nothing(self):
        often, seldom = (fcco.solve(PROBLEM, **RATES, **SIZES, record=every) for every in (1, None))
        assert torch.equal(often.weights, seldom.weights)


@pytest.mark.parametrize("method", CALLS)
def test_counts(method):
    """SCGD and NASA draw samples for all n rows in every step."""
    solution = fcco.solve(PROBLEM, **SIZES, **CALLS[method], record=10)
    rows = 20 if method in ("scgd", "nasa") else 4
    steps = 60 if method == "sox-boost" else 40
    assert solution.steps == steps
    assert solution.inner_evaluations == steps * rows * 3
    assert solution.outer_evaluations == steps * 4
    assert solution.history["inner_evaluations"] == [step * rows * 3 for step in range(0, steps + 1, 10)]
    assert solution.method == method
    assert solution.seconds > 0
    assert solution.history["seconds"] == sorted(solution.history["seconds"])


def test_every_row_estimated_at_the_start():
    """The table has the estimates of a first draw, which a tiny gamma leaves unchanged."""
    problem, _ = exponential()
    generator = torch.Generator().manual_seed(3)
    estimates = problem.inner(problem.start, torch.arange(problem.n), generator, 2)
    states = []
    solution = fcco.solve(
        problem,
        outer_batch=4,
        inner_batch=2,
        steps=5,
        lr=0.1,
        beta=0.5,
        gamma=1e-30,
        estimate_all=True,
        random_state=3,
        callback=states.append,
    )
    torch.testing.assert_close(states[-1].table.u, estimates.reshape(-1))
    assert int(states[-1].table.step) == 5
    assert solution.inner_evaluations == (problem.n + 5 * 4) * 2


def test_no_steps():
    solution = fcco.solve(PROBLEM, **{**RATES, "steps": 0})
    assert torch.equal(solution.weights, PROBLEM.start)
    assert torch.equal(solution.average, PROBLEM.start)
    assert not solution.stopped_early


def test_the_start_stays_as_it_is():
    before = PROBLEM.start.clone()
    solution = fcco.solve(PROBLEM, **RATES)
    assert torch.equal(PROBLEM.start, before)
    assert not solution.weights.requires_grad


def test_weights_of_any_shape():
    matrix = dataclasses.replace(
        PROBLEM,
        start=PROBLEM.start.reshape(1, 3),
        optimum=None,
        inner=lambda w, *rest: PROBLEM.inner(w[0], *rest),
        exact_inner=lambda w: PROBLEM.exact_inner(w[0]),
    )
    assert torch.equal(fcco.solve(matrix, **RATES).weights[0], fcco.solve(PROBLEM, **RATES).weights)


@pytest.mark.parametrize("names", [("SOX", "sox", "Sox"), ("SOX-Boost", "sox_boost", "sox-boost")])
def test_names_in_any_case(names):
    if "boost" in names[1]:
        problem = problems.pseudo_huber("strongly_convex", n=8)
        options = {"accuracy": Accuracy(0.1, mu=problem.mu), "callback": lambda state: state.step == 40}
    else:
        problem, options = PROBLEM, RATES
    first, *others = (fcco.solve(problem, name, **options) for name in names)
    assert all(torch.equal(first.weights, other.weights) for other in others)


def test_seeds_and_generators():
    first = fcco.solve(PROBLEM, **RATES, random_state=1)
    again = fcco.solve(PROBLEM, **RATES, random_state=torch.Generator().manual_seed(1))
    other = fcco.solve(PROBLEM, **RATES, random_state=2)
    assert torch.equal(first.weights, again.weights)
    assert not torch.equal(first.weights, other.weights)


def test_callback_stops():
    solution = fcco.solve(PROBLEM, **RATES, **SIZES, record=5, callback=lambda state: state.history["step"][-1] == 25)
    assert solution.stopped_early
    assert solution.steps == 25
    assert solution.history["step"] == [0, 5, 10, 15, 20, 25]
    assert solution.inner_evaluations == 25 * 4 * 3


def test_the_end_of_a_stopped_run_is_recorded():
    solution = fcco.solve(PROBLEM, **RATES, record=10, callback=lambda state: state.step == 13)
    assert solution.history["step"] == [0, 10, 13]
    assert solution.history["objective"][-1] == pytest.approx(float(PROBLEM.value(solution.weights)))


def test_callback_sees_the_run():
    states = []
    solution = fcco.solve(PROBLEM, **RATES, **SIZES, callback=states.append)
    assert [state.step for state in states] == list(range(1, 41))
    assert [state.inner_evaluations for state in states] == list(range(12, 481, 12))
    assert states[-1].table.u.shape == (20,)
    assert torch.equal(states[-1].weights, solution.weights)


class TestProgress:
    def test_is_on_stderr(self, capsys):
        fcco.solve(PROBLEM, **RATES, progress=True)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "sox: 100%" in captured.err
        assert "40/40" in captured.err

    def test_says_that_tqdm_is_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tqdm", None)
        calls = []
        with pytest.raises(ImportError, match="progress=True needs tqdm: pip install"):
            fcco.solve(PROBLEM, **RATES, progress=True, callback=calls.append)
        assert calls == []

    @pytest.fixture
    def calls(self, monkeypatch):
        """Replace tqdm, and return the list of calls to it."""
        calls = []

        class Bar:
            def __init__(self, **options):
                calls.append(options)

            def update(self, n):
                calls.append(n)

            def close(self):
                calls.append("close")

        tqdm = ModuleType("tqdm")
        tqdm.tqdm = Bar
        monkeypatch.setitem(sys.modules, "tqdm", tqdm)
        return calls

    def test_is_closed_when_the_run_fails(self, calls):
        with pytest.raises(ValueError, match="got -1 at step 3"):
            fcco.solve(PROBLEM, **{**RATES, "lr": lambda step: 2 - step}, progress=True)
        assert calls == [{"total": 40, "initial": 0, "desc": "sox"}, 1, 1, 1, "close"]

    def test_continues_with_the_run(self, calls, tmp_path):
        fcco.solve(PROBLEM, **RATES, checkpoint=tmp_path / "run.pt", callback=lambda state: state.step == 38)
        fcco.solve(PROBLEM, **RATES, checkpoint=tmp_path / "run.pt", progress=True)
        assert calls == [{"total": 40, "initial": 38, "desc": "sox"}, 1, 1, "close"]

    def test_silent_by_default(self, capsys):
        fcco.solve(PROBLEM, **RATES)
        assert capsys.readouterr() == ("", "")


@pytest.fixture(scope="module")
def solution():
    return fcco.solve(PROBLEM, **RATES, record=10)


class TestPlot:
    def test_draws_columns(self, solution):
        calls = {}
        ax = SimpleNamespace(
            plot=lambda x, y, label: calls.update(x=x, y=y, label=label),
            set_xlabel=lambda text: calls.update(xlabel=text),
            set_ylabel=lambda text: calls.update(ylabel=text),
            legend=lambda: None,
        )
        assert solution.plot("gradient_norm", ax=ax) is ax
        assert calls == {
            "x": solution.history["inner_evaluations"],
            "y": solution.history["gradient_norm"],
            "label": "sox",
            "xlabel": "inner evaluations",
            "ylabel": "gradient norm",
        }

    def test_says_that_matplotlib_is_missing(self, solution, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
        with pytest.raises(ImportError, match="needs matplotlib: pip install"):
            solution.plot()

    def test_refuses_unknown_columns(self, solution):
        with pytest.raises(ValueError, match=r"column must be one of step, stage, .*; got 'loss'"):
            solution.plot("loss")
