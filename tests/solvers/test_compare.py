"""``compare``: equal numbers of inner samples, one grid, and what is said of the result."""

import matplotlib as mpl
import numpy as np
import pytest
import torch

import fcco
from fcco.projections import SquaredL2
from fcco.solvers import Problem, compare
from fcco.solvers.problems import pseudo_huber
from solvers.cases import least_squares

mpl.use("agg")
SIZES = {"outer_batch": 4, "inner_batch": 2}
OPTIONS = {"evaluations": 1600, "lr": [0.01, 0.1, 1.0], "beta": 0.5, "gamma": 0.5, "seeds": 2, **SIZES}
METHODS = {"sox": "sox", "all rows": "SCGD", "in-batch": fcco.BSGD()}


@pytest.fixture(scope="module")
def problem():
    return pseudo_huber("strongly_convex", n=16)


@pytest.fixture(scope="module")
def found(problem):
    return compare(problem, METHODS, **OPTIONS)


def test_equal_numbers_of_inner_samples(found):
    assert {name: trial.steps for name, trial in found.trials.items()} == {
        "sox": 200,
        "all rows": 50,
        "in-batch": 200,
    }
    for trial in found.trials.values():
        assert {solution.inner_evaluations for solution in trial.solutions} == {1600}


def test_runs_are_those_of_solve(problem, found):
    trial = found.trials["sox"]
    options = {"steps": 200, "lr": trial.lr, "beta": 0.5, "gamma": 0.5, **SIZES}
    for seed, run in zip((1, 2), trial.solutions, strict=True):
        assert torch.equal(run.weights, fcco.solve(problem, "sox", random_state=seed, **options).weights)
    least = problem.value(problem.optimum).item()
    ends = [problem.value(run.weights).item() - least for run in trial.solutions]
    np.testing.assert_allclose(trial.excess, ends, rtol=1e-12)


def test_the_step_size_is_chosen_on_another_seed(problem, found):
    options = {"steps": 200, "beta": 0.5, "gamma": 0.5, "random_state": 0, **SIZES}
    ends = {lr: fcco.solve(problem, "sox", lr=lr, **options).history["objective"][-1] for lr in (0.01, 0.1, 1.0)}
    assert found.trials["sox"].lr == min(ends, key=ends.get)


def test_estimating_all_rows_first_is_paid_for(problem):
    found = compare(problem, {"sox": "sox"}, **OPTIONS | {"estimate_all": True, "lr": [0.1]})
    assert found.trials["sox"].steps == (1600 - 16 * 2) // 8
    assert found.trials["sox"].solutions[0].inner_evaluations == 1600


def test_only_methods_with_rows_to_estimate_pay_for_a_first_estimate(problem):
    methods = {"sox": "sox", "moap": "moap", "bsgd": "bsgd", "in-batch": fcco.BSGD()}
    options = OPTIONS | {"estimate_all": True, "lr": [0.1], "seeds": 1, "evaluations": 160}
    found = compare(problem, methods, **options)
    assert [trial.steps for trial in found.trials.values()] == [16, 20, 20, 20]
    assert {trial.solutions[0].inner_evaluations for trial in found.trials.values()} == {160}


def test_the_table(found):
    rows = found.table
    assert [row["excess"] for row in rows] == sorted(row["excess"] for row in rows)
    assert {row["method"] for row in rows} == set(METHODS)
    text = str(found).splitlines()
    assert text[0].split()[:2] == ["method", "excess"]
    assert len(text) == 1 + len(METHODS)
    assert not any(line.endswith(" ") for line in text)


def test_a_diverged_run_counts_as_infinite():
    found = compare(least_squares(), {"sox": "sox"}, **OPTIONS | {"lr": [1e6, 1e7]})
    trial = found.trials["sox"]
    assert trial.diverged == 2
    assert np.isinf(trial.excess).all()
    assert np.isnan(trial.lr)
    assert trial.lr_at_end
    assert "inf" in str(found)
    found.plot()


def test_an_end_of_the_grid_is_flagged(problem):
    found = compare(problem, {"sox": "sox"}, **OPTIONS | {"lr": [1e-6, 1e-5]})
    assert found.trials["sox"].lr_at_end
    assert compare(problem, {"sox": "sox"}, **OPTIONS | {"lr": [0.1]}).trials["sox"].lr_at_end


def test_the_minimum_of_f_is_not_that_of_f_plus_r(problem):
    found = compare(problem, {"sox": "strongly-convex"}, **OPTIONS | {"regulariser": SquaredL2(0.5), "lr": [0.1]})
    assert not found.is_excess
    assert "objective" in found.table[0]
    assert compare(problem, {"sox": "sox"}, **OPTIONS | {"minimum": -1.0, "lr": [0.1]}).minimum == -1.0


def test_pictures(found):
    left, right = found.plot()
    assert (left.get_xlabel(), right.get_xlabel()) == ("inner samples", "seconds")
    assert left.get_yscale() == "log"
    assert {text.get_text() for text in left.get_legend().get_texts()} == set(METHODS)
    ax = found.plot(x="seconds", ax=left)
    assert ax is left
    assert found.plot(x="seconds").get_xlabel() == "seconds"


BAD = {
    "no-problem": ({"problem": None}, TypeError, r"problem must be a fcco\.solvers\.Problem"),
    "no-methods": ({"methods": {}}, TypeError, "methods must be a mapping"),
    "unknown": ({"methods": {"x": "adam"}}, ValueError, "tuned: scgd, nasa.*got 'adam'"),
    "boost": ({"methods": {"x": "sox-boost"}}, ValueError, "got 'sox-boost'"),
    "number": ({"lr": 0.1}, TypeError, r"lr must be a sequence of step sizes, not empty; got 0\.1"),
    "negative": ({"lr": [0.1, -1.0]}, ValueError, "each lr must be"),
    "poor": ({"evaluations": 7}, ValueError, "at least one step of sox, which takes 8 inner samples; got 7"),
    "steps": ({"steps": 4}, TypeError, "steps= cannot be given to compare, which chooses it for every run; got 4"),
    "repeated": ({"seeds": [1, 1]}, ValueError, r"seeds must differ; got \[1, 1\]"),
    "seeds": ({"seeds": []}, ValueError, "seeds must contain at least one seed"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name, problem):
    change, error, message = BAD[name]
    arguments = {"problem": problem, "methods": {"sox": "sox"}, **OPTIONS, **change}
    with pytest.raises(error, match=message):
        compare(arguments.pop("problem"), arguments.pop("methods"), **arguments)


def test_needs_the_exact_objective():
    blind = Problem(n=2, inner=lambda w, *_: w, outer=lambda u: u, start=torch.zeros(2), name="blind")
    with pytest.raises(ValueError, match="blind has neither objective nor exact_inner"):
        compare(blind, {"sox": "sox"}, **OPTIONS)


def test_unknown_axis(found):
    with pytest.raises(ValueError, match="x must be one of inner_evaluations, seconds; got 'epochs'"):
        found.plot(x="epochs")
