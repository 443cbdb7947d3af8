"""What cannot be meant, or cannot be done, is refused with a sentence, before the first step."""

import dataclasses
from functools import partial

import pytest
import torch

import fcco
from fcco.projections import ElasticNet, SquaredL2, project_ball
from fcco.solvers import Problem, Stage
from fcco.theory import Constants
from solvers.cases import BALL, RATES, STAGES, least_squares

PROBLEM = least_squares()
KNOWN = dataclasses.replace(
    PROBLEM, constants=Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=0.0, sigma2=0.1, zeta2=0.1), name="known"
)
FAR = dataclasses.replace(PROBLEM, start=torch.full((3,), 2.0, dtype=torch.float64))
BOOST = {"method": "sox-boost"}

CASES = {
    "method": ({**RATES, "method": "sgd"}, "method must be one of scgd, nasa, .*, strongly-convex, got 'sgd'"),
    "outer_batch-above-n": ({**RATES, "outer_batch": 21}, "outer_batch must be at most n = 20, got 21"),
    "outer_batch-0": ({**RATES, "outer_batch": 0}, "outer_batch must be at least 1, got 0"),
    "inner_batch-0": ({**RATES, "inner_batch": 0}, "inner_batch must be at least 1, got 0"),
    "steps": ({**RATES, "steps": -1}, "steps must be at least 0, got -1"),
    "lr": ({**RATES, "lr": -0.1}, "lr must be a finite number >= 0, got -0.1"),
    "lr-schedule": ({**RATES, "lr": lambda step: float("nan")}, "lr must be a finite number >= 0, got nan at step 0"),
    "beta": ({**RATES, "beta": 0.0}, r"beta must be in \(0, 1\], got 0.0"),
    "gamma": ({**RATES, "gamma": 1.5}, r"gamma of SOX must be in \(0, 1\], got 1.5"),
    "epsilon": ({"problem": KNOWN, "epsilon": 0.0}, "epsilon must be a positive number, got 0.0"),
    "gap": ({"problem": KNOWN, "epsilon": 0.1, "gap": -1.0}, "gap must be a finite number >= 0, got -1.0"),
    "random_state": ({**RATES, "random_state": -1}, "random_state must be at least 0, got -1"),
    "record_every": ({**RATES, "record_every": 0}, "record_every must be at least 1, got 0"),
    "record_at": ({**RATES, "record_at": [3, -1]}, "record_at must be at least 0, got -1"),
    "record-twice": ({**RATES, "record_every": 1, "record_at": [3]}, "two ways to say the same: give one"),
    "checkpoint_every": ({**RATES, "checkpoint_every": 5}, "checkpoint_every=5 needs checkpoint=, a file to save to"),
    "pass_on": ({**BOOST, "stages": STAGES, "pass_on": "best"}, "pass_on must be one of last, average, random, got"),
    "missing": ({"lr": 0.1, "beta": 0.1}, "sox needs gamma=, steps=, or epsilon= for the theorem to choose"),
    "no-theorem": ({"method": "soap", "epsilon": 0.1, "lr": 0.1}, "soap needs gamma=, steps=: no theorem"),
    "no-momentum": ({"method": "nasa", "lr": 0.1, "gamma": 0.1, "steps": 1}, "nasa needs beta=: no theorem"),
    "no-constants": ({"epsilon": 0.1}, "sox cannot take its step sizes from epsilon=: least squares has no constants"),
    "no-gap": (
        {"problem": dataclasses.replace(KNOWN, optimum=None), "epsilon": 0.1},
        r"the theorem needs gap=, F\(start\) - min F, which known does not tell",
    ),
    "stages-elsewhere": ({**RATES, "stages": STAGES}, "stages= is for sox-boost, not for sox"),
    "pass_on-elsewhere": ({**RATES, "pass_on": "random"}, "pass_on= is for sox-boost, not for sox"),
    "mu-elsewhere": ({**RATES, "mu": 0.1}, "mu= is for sox-boost, not for sox"),
    "radius-elsewhere": ({**RATES, "radius": 0.1}, "radius= is for sox-boost, not for sox"),
    "diameter-elsewhere": ({**RATES, "diameter": 0.1}, "diameter= is for projected, not for sox"),
    "boost-stages-mu": ({**BOOST, "stages": STAGES, "mu": 0.1}, "leave it out where stages= are given"),
    "boost-lr": ({**BOOST, "lr": 0.1}, "sox-boost has a lr in every stage: give stages= instead of lr="),
    "boost-mu": ({**BOOST, "problem": KNOWN, "epsilon": 0.1}, r"sox-boost needs mu= \(or radius=, .*\) and epsilon="),
    "boost-mu-0": ({**BOOST, "problem": KNOWN, "epsilon": 0.1, "mu": 0.0}, "mu must be a positive number, got 0.0"),
    "boost-both": ({**BOOST, "problem": KNOWN, "epsilon": 0.1, "mu": 1.0, "radius": 1.0}, "and not both"),
    "boost-radius": ({**BOOST, "problem": KNOWN, "radius": 1.0}, "radius= .* needs epsilon="),
    "boost-epsilon": ({**BOOST, "problem": KNOWN, "mu": 0.5}, "sox-boost needs epsilon=, or stages="),
    "boost-no-stage": ({**BOOST, "stages": []}, "stages must have at least one stage"),
    "boost-stage": ({**BOOST, "stages": [Stage(0.1, 2.0, 0.1, 3)]}, r"beta must be in \(0, 1\], got 2.0"),
    "projected": ({**RATES, "method": "projected"}, "projected needs projection=, such as"),
    "projected-diameter": (
        {"problem": KNOWN, "method": "projected", "projection": BALL, "epsilon": 0.1},
        "projected needs diameter=",
    ),
    "infeasible": (
        {**RATES, "problem": FAR, "projection": partial(project_ball, radius=1.0)},
        "the start must be in the set that is projected on, and is 2.46 away from it",
    ),
    "safeguard": ({**RATES, "method": "soap", "safeguard": False}, "safeguard= is for sox, .*, not for soap"),
    "estimate-all": ({**RATES, "method": "moap", "estimate_all": True}, "estimate_all= is not for moap"),
    "projection-shape": ({**RATES, "projection": torch.Tensor.norm}, r"projection must map \[3\] to the same shape"),
    "projection-bad": ({**RATES, "projection": partial(project_ball, radius=-1.0)}, "radius must be a positive number"),
    "regulariser": ({"method": "strongly-convex", "steps": 3}, "strongly-convex needs regulariser=, such as"),
    "regulariser-mu": (
        {"method": "strongly-convex", "steps": 3, "regulariser": ElasticNet(1.0, 0.0)},
        "strongly-convex needs a regulariser with mu > 0, got mu = 0.0",
    ),
    "strongly-convex-steps": (
        {"method": "strongly-convex", "regulariser": SquaredL2(1.0), "epsilon": 0.1},
        "strongly-convex needs steps=: no theorem",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refuses(name):
    options, message = CASES[name]
    calls = []
    with pytest.raises(ValueError, match=message):
        fcco.solve(**{"problem": PROBLEM, **options}, callback=calls.append)
    assert calls == []


@pytest.mark.parametrize("name", ["outer_batch", "inner_batch", "steps", "record_every", "random_state"])
def test_refuses_what_is_no_integer(name):
    with pytest.raises(TypeError, match=f"{name} must be an integer, got 2.5"):
        fcco.solve(PROBLEM, **{**RATES, name: 2.5})


def test_refuses_a_regulariser_that_is_none():
    with pytest.raises(TypeError, match=r"regulariser must have a value, a prox and mu, such as .*, got 0.1"):
        fcco.solve(PROBLEM, **RATES, regulariser=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": "a"}, "lr must be a number, got 'a'"),
        ({"lr": [0.1, 0.2]}, r"lr must be a number, got \[0.1, 0.2\]"),
        ({"lr": torch.ones(2)}, "lr must be a number, got tensor"),
        ({"beta": lambda step: "a"}, "beta must be a number, got 'a'"),
        ({"gamma": "a"}, "gamma of SOX must be a number or a schedule, got 'a'"),
        ({"epsilon": "a"}, "epsilon must be a number, got 'a'"),
        ({"gap": "a"}, "gap must be a number, got 'a'"),
        ({"projection": "ball"}, "projection must be callable, got 'ball'"),
        ({"record_at": 3}, r"record_at must be the steps to record at, such as \[10, 100\], got 3"),
        ({"problem": None}, "problem must be a fcco.solvers.Problem, got None"),
        ({"method": "sox-boost", "stages": STAGES[0]}, "stages must be a sequence of stages, got Stage"),
        ({"method": "sox-boost", "stages": [0.1]}, "a stage must be a fcco.solvers.Stage or .*, got 0.1"),
    ],
)
def test_refuses_what_is_of_another_type(options, message):
    rates = {} if "stages" in options else RATES
    with pytest.raises(TypeError, match=message):
        fcco.solve(**{"problem": PROBLEM, **rates, **options})


def test_stages_may_come_from_a_generator():
    listed, generated = (
        fcco.solve(PROBLEM, "sox-boost", stages=stages).weights for stages in (STAGES, (stage for stage in STAGES))
    )
    assert torch.equal(listed, generated)


def test_refuses_an_inner_function_that_does_not_depend_on_w():
    flat = dataclasses.replace(PROBLEM, inner=lambda w, rows, generator, inner_batch: torch.ones(len(rows)))
    with pytest.raises(ValueError, match="inner must depend on w, differentiably") as caught:
        fcco.solve(flat, **RATES)
    assert caught.value.__notes__ == ["in step 0 of sox on least squares (the first is 0)"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values * float("nan"), r"inner\[0\] is nan, not a finite number"),
        (lambda values: values[:-1], r"inner \[19\] and rows \[20\] differ in length"),
        (lambda values: values[:, None].expand(-1, 2), r"inner must have the shape \[B1\], got \[20, 2\]"),
    ],
)
def test_a_first_estimate_of_all_rows_is_checked(change, message):
    bad = dataclasses.replace(PROBLEM, inner=lambda *given: change(PROBLEM.inner(*given)))
    with pytest.raises(ValueError, match=message) as caught:
        fcco.solve(bad, **RATES, estimate_all=True)
    assert caught.value.__notes__ == ["in the first estimate of all rows of least squares"]


def test_a_schedule_that_leaves_its_range_says_where():
    with pytest.raises(ValueError, match="lr must be a finite number >= 0, got -1 at step 3") as caught:
        fcco.solve(PROBLEM, **{**RATES, "lr": lambda step: 2 - step})
    assert caught.value.__notes__ == ["in step 3 of sox on least squares (the first is 0)"]


def test_divergence_says_where():
    with pytest.raises(ValueError, match="not a finite number") as caught:
        fcco.solve(PROBLEM, **{**RATES, "lr": 1e200})
    assert "of sox on least squares" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"dim": 1.5}, TypeError, "dim must be an integer, got 1.5"),
        ({"inner": 3}, TypeError, "inner must be callable, got 3"),
        ({"outer": None}, TypeError, "outer must be callable, got None"),
        ({"start": [0.0]}, TypeError, r"start must be a floating tensor, got \[0.0\]"),
        ({"start": torch.zeros(3, dtype=torch.int64)}, TypeError, "start must be a floating tensor"),
        ({"start": torch.tensor([0.0, float("nan"), 0.0])}, ValueError, "start must be finite"),
        ({"exact_inner": 3}, TypeError, "exact_inner must be callable, got 3"),
        ({"objective": 3}, TypeError, "objective must be callable, got 3"),
        ({"optimum": [0.0, 0.0, 0.0]}, TypeError, r"optimum must be a tensor, got \[0.0, 0.0, 0.0\]"),
        ({"constants": {"c_f": 1.0}}, TypeError, "constants must be fcco.theory.Constants, got {'c_f': 1.0}"),
        ({"optimum": torch.zeros(2)}, ValueError, r"optimum \[2\] and start \[3\] differ in shape"),
    ],
)
def test_problem_refuses(change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(PROBLEM, **change)


def test_a_problem_without_objective_says_so():
    problem = Problem(n=2, inner=PROBLEM.inner, outer=torch.log, start=torch.zeros(3))
    with pytest.raises(ValueError, match="problem has neither objective nor exact_inner"):
        problem.value(torch.zeros(3))
