"""Invalid arguments raise an error that names them, before the first step."""

import dataclasses
from functools import partial

import pytest
import torch

import fcco
from fcco.projections import ElasticNet, SquaredL2, project_ball
from fcco.solvers import Accuracy, Checkpoint, Problem, SOXBoost, Stage
from fcco.theory import Constants
from solvers.cases import BALL, RATES, STAGES, least_squares

PROBLEM = least_squares()
KNOWN = dataclasses.replace(
    PROBLEM, constants=Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=0.0, sigma2=0.1, zeta2=0.1), name="known"
)
FAR = dataclasses.replace(PROBLEM, start=torch.full((3,), 2.0, dtype=torch.float64))

# Options of solve. "accuracy" and "boost" are the arguments of Accuracy and SOXBoost, which check them.
CASES = {
    "method": ({**RATES, "method": "sgd"}, "method must be one of scgd, nasa, .*, strongly-convex, .* got 'sgd'"),
    "outer_batch-above-n": ({**RATES, "outer_batch": 21}, "outer_batch must be at most n = 20; got 21"),
    "outer_batch-0": ({**RATES, "outer_batch": 0}, "outer_batch must be at least 1; got 0"),
    "inner_batch-0": ({**RATES, "inner_batch": 0}, "inner_batch must be at least 1; got 0"),
    "steps": ({**RATES, "steps": -1}, "steps must be at least 0; got -1"),
    "lr": ({**RATES, "lr": -0.1}, "lr must be a finite number >= 0; got -0.1"),
    "lr-schedule": ({**RATES, "lr": lambda step: float("nan")}, "lr must be a finite number >= 0; got nan at step 0"),
    "beta": ({**RATES, "beta": 0.0}, r"beta must be in \(0, 1\]; got 0.0"),
    "gamma": ({**RATES, "gamma": 1.5}, r"gamma of SOX must be in \(0, 1\]; got 1.5"),
    "epsilon": ({"problem": KNOWN, "accuracy": {"epsilon": 0.0}}, "epsilon must be positive and finite; got 0.0"),
    "gap": ({"problem": KNOWN, "accuracy": {"gap": -1.0}}, "gap must be finite and not negative; got -1.0"),
    "random_state": ({**RATES, "random_state": -1}, "random_state must be at least 0; got -1"),
    "record-every": ({**RATES, "record": 0}, "record must be at least 1; got 0"),
    "record-listed": ({**RATES, "record": [3, -1]}, "each step of record must be at least 0; got -1"),
    "pass_on": ({"boost": {"pass_on": "best"}}, "pass_on must be one of last, average, random; got 'best'"),
    "missing": ({"lr": 0.1, "beta": 0.1}, r"sox needs gamma=, steps=, or accuracy=Accuracy\(epsilon\) so that"),
    "no-theorem": ({"method": "soap", "accuracy": {}, "lr": 0.1}, "soap needs gamma=, steps=: no theorem"),
    "no-momentum": ({"method": "nasa", "lr": 0.1, "gamma": 0.1, "steps": 1}, "nasa needs beta=: no theorem"),
    "no-constants": ({"accuracy": {}}, "sox cannot choose its step sizes .* because least squares has no constants"),
    "no-gap": (
        {"problem": dataclasses.replace(KNOWN, optimum=None), "accuracy": {}},
        r"Accuracy needs gap=, because known does not know F\(start\) - min F",
    ),
    "mu-elsewhere": ({**RATES, "accuracy": {"mu": 0.1}}, r"Accuracy\(mu=...\) is only used by sox-boost: .* for sox"),
    "radius-elsewhere": (
        {**RATES, "accuracy": {"radius": 0.1}},
        r"\(radius=...\) is only used by sox-boost: .* for sox",
    ),
    "diameter-elsewhere": (
        {**RATES, "accuracy": {"diameter": 0.1}},
        r"Accuracy\(diameter=...\) is only used by projected and strongly-convex: leave it out for sox",
    ),
    "boost-stages-mu": ({"boost": {"stages": STAGES}, "accuracy": {"mu": 0.1}}, r"leave it out if SOXBoost\(stages\)"),
    "boost-lr": (
        {"boost": {}, "lr": 0.1},
        r"lr= cannot be used with sox-boost: each stage of SOXBoost\(stages\) has a lr",
    ),
    "boost-mu": (
        {"boost": {}, "problem": KNOWN, "accuracy": {}},
        r"sox-boost needs accuracy=Accuracy\(epsilon, mu=...\), or Accuracy\(epsilon, radius=...\) if",
    ),
    "boost-mu-0": (
        {"boost": {}, "problem": KNOWN, "accuracy": {"mu": 0.0}},
        "mu must be positive and finite; got 0.0",
    ),
    "boost-both": ({"boost": {}, "problem": KNOWN, "accuracy": {"mu": 1.0, "radius": 1.0}}, "cannot both be given"),
    "boost-accuracy": ({"boost": {}, "problem": KNOWN}, r"sox-boost needs accuracy=.* or method=SOXBoost\(stages\)"),
    "boost-no-stage": ({"boost": {"stages": []}}, "stages must contain at least one stage; got none"),
    "boost-stage": ({"boost": {"stages": [Stage(0.1, 2.0, 0.1, 3)]}}, r"beta must be in \(0, 1\]; got 2.0"),
    "projected": ({**RATES, "method": "projected"}, "projected needs projection=, such as"),
    "projected-diameter": (
        {"problem": KNOWN, "method": "projected", "projection": BALL, "accuracy": {}},
        r"projected needs Accuracy\(diameter=...\)",
    ),
    "infeasible": (
        {**RATES, "problem": FAR, "projection": partial(project_ball, radius=1.0)},
        "start must be in the set that projection= maps to; got a start 2.46 away from it",
    ),
    "safeguard": (
        {**RATES, "method": "soap", "safeguard": False},
        "safeguard=False can only be used with sox, .*; got method soap",
    ),
    "estimate-all": ({**RATES, "method": "moap", "estimate_all": True}, "estimate_all=True cannot be used with moap"),
    "projection-shape": ({**RATES, "projection": torch.Tensor.norm}, r"projection must map \[3\] to the same shape"),
    "projection-bad": (
        {**RATES, "projection": partial(project_ball, radius=-1.0)},
        "radius must be positive and finite",
    ),
    "regulariser": ({"method": "strongly-convex", "steps": 3}, "strongly-convex needs regulariser=, such as"),
    "regulariser-mu": (
        {"method": "strongly-convex", "steps": 3, "regulariser": ElasticNet(1.0, 0.0)},
        "strongly-convex needs a regulariser with mu > 0; got mu = 0.0",
    ),
    "strongly-convex-steps": (
        {"method": "strongly-convex", "regulariser": SquaredL2(1.0), "accuracy": {}},
        r"strongly-convex needs steps=, or accuracy=Accuracy\(epsilon, diameter=..., c_r=...\)",
    ),
    "strongly-convex-lr": (
        {
            "method": "strongly-convex",
            "regulariser": SquaredL2(1.0),
            "lr": 0.1,
            "accuracy": {"diameter": 2.0, "c_r": 1.0},
        },
        "Theorem 7 has a lr of its own: give steps= together with lr=",
    ),
}


def solve(problem=PROBLEM, accuracy=None, boost=None, **options):
    if accuracy is not None:
        options["accuracy"] = Accuracy(**{"epsilon": 0.1, **accuracy})
    if boost is not None:
        options["method"] = SOXBoost(**boost)
    return fcco.solve(problem, **options)


@pytest.mark.parametrize("name", CASES)
def test_refuses(name):
    options, message = CASES[name]
    calls = []
    with pytest.raises(ValueError, match=message):
        solve(**options, callback=calls.append)
    assert calls == []


@pytest.mark.parametrize("name", ["outer_batch", "inner_batch", "steps", "record", "random_state"])
def test_refuses_what_is_no_integer(name):
    with pytest.raises(TypeError, match=f"{name} must be an integer; got 2.5"):
        fcco.solve(PROBLEM, **{**RATES, name: 2.5})


@pytest.mark.parametrize(("every", "error"), [(0, ValueError), (2.5, TypeError)])
def test_a_checkpoint_is_saved_every_so_many_steps(every, error):
    with pytest.raises(error, match=f"every must be .*got {every}"):
        Checkpoint("run.pt", every=every)


def test_an_accuracy_needs_epsilon():
    with pytest.raises(TypeError, match="epsilon"):
        Accuracy(mu=0.5)


def test_refuses_a_regulariser_that_is_none():
    with pytest.raises(TypeError, match=r"regulariser must have mu, prox and a value, such as .*; got 0.1"):
        fcco.solve(PROBLEM, **RATES, regulariser=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": "a"}, "lr must be a number; got 'a'"),
        ({"lr": [0.1, 0.2]}, r"lr must be a number; got \[0.1, 0.2\]"),
        ({"lr": torch.ones(2)}, "lr must be a number; got tensor"),
        ({"beta": lambda step: "a"}, "beta must be a number; got 'a'"),
        ({"gamma": "a"}, "gamma of SOX must be a number or a schedule; got 'a'"),
        ({"accuracy": {"epsilon": "a"}}, "epsilon must be a number; got 'a'"),
        ({"accuracy": {"gap": "a"}}, "gap must be a number; got 'a'"),
        ({"projection": "ball"}, "projection must be callable; got 'ball'"),
        ({"record": "ab"}, "each step of record must be an integer; got 'a'"),
        ({"problem": None}, "problem must be a fcco.solvers.Problem; got None"),
        ({"boost": {"stages": STAGES[0]}}, "stages must be a sequence of fcco.solvers.Stage; got Stage"),
        ({"boost": {"stages": [0.1]}}, "each stage must be a fcco.solvers.Stage or .*; got 0.1"),
    ],
)
def test_refuses_what_is_of_another_type(options, message):
    with pytest.raises(TypeError, match=message):
        solve(**{**RATES, **options})


def test_an_accuracy_is_an_object():
    with pytest.raises(TypeError, match=r"accuracy must be a fcco.solvers.Accuracy; got 0.1"):
        fcco.solve(KNOWN, accuracy=0.1)


def test_stages_may_come_from_a_generator():
    listed, generated = (
        fcco.solve(PROBLEM, SOXBoost(stages)).weights for stages in (STAGES, (stage for stage in STAGES))
    )
    assert torch.equal(listed, generated)


def test_refuses_an_inner_function_that_does_not_depend_on_w():
    flat = dataclasses.replace(PROBLEM, inner=lambda w, rows, generator, inner_batch: torch.ones(len(rows)))
    with pytest.raises(ValueError, match="inner must return a differentiable function of w") as caught:
        fcco.solve(flat, **RATES)
    assert caught.value.__notes__ == ["in step 0 of sox on least squares (the first step is 0)"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values * float("nan"), "inner must be finite; got nan at position 0"),
        (lambda values: values[:-1], r"inner must return one value for each of 20 rows; got the shape \[19\]"),
        (lambda values: values[:, None].expand(-1, 2), r"inner must have the shape \[B1\]; got \[20, 2\]"),
    ],
)
def test_a_first_estimate_of_all_rows_is_checked(change, message):
    bad = dataclasses.replace(PROBLEM, inner=lambda *given: change(PROBLEM.inner(*given)))
    with pytest.raises(ValueError, match=message) as caught:
        fcco.solve(bad, **RATES, estimate_all=True)
    assert caught.value.__notes__ == ["in the first estimate of all rows of least squares"]


def test_a_schedule_that_leaves_its_range_says_where():
    with pytest.raises(ValueError, match="lr must be a finite number >= 0; got -1 at step 3") as caught:
        fcco.solve(PROBLEM, **{**RATES, "lr": lambda step: 2 - step})
    assert caught.value.__notes__ == ["in step 3 of sox on least squares (the first step is 0)"]


def test_divergence_says_where():
    with pytest.raises(ValueError, match=r"inner must be such that the loss is finite") as caught:
        fcco.solve(PROBLEM, **{**RATES, "lr": 1e200})
    first, last = caught.value.__notes__
    assert first == "if the run diverges, a smaller lr helps"
    assert "of sox on least squares (the first step is 0)" in last


def test_a_last_step_to_infinity_is_not_returned():
    problem = dataclasses.replace(PROBLEM, outer=lambda u, _: 1e200 * u)
    with pytest.raises(ValueError, match=r"weights must be finite; got -?inf at position 0") as caught:
        fcco.solve(problem, **{**RATES, "method": "bsgd", "lr": 1e200, "steps": 1})
    assert caught.value.__notes__ == ["after step 0 of bsgd on least squares: a smaller lr helps"]


def test_an_f_without_a_slope_says_where():
    problem = dataclasses.replace(PROBLEM, outer=lambda u, _: (u - u.detach()).sqrt())
    with pytest.raises(fcco.NotFiniteError, match="inner must be such that the gradient is finite") as caught:
        fcco.solve(problem, **RATES)
    assert caught.value.__notes__ == ["in step 0 of sox on least squares (the first step is 0)"]


def test_weights_are_named_when_g_has_no_slope():
    """Not the inner values, which are the first to be checked in the next step."""

    def inner(w, *given):
        return PROBLEM.inner(w, *given) + (w - w.detach()).sqrt().sum()

    problem = dataclasses.replace(PROBLEM, inner=inner)
    with pytest.raises(fcco.NotFiniteError, match=r"weights must be finite; got .* that of step 0 is not") as caught:
        fcco.solve(problem, **RATES)
    assert caught.value.name == "weights"
    assert caught.value.__notes__ == ["in step 1 of sox on least squares (the first step is 0)"]


def test_divergence_asks_for_a_smaller_lr():
    problem = dataclasses.replace(PROBLEM, outer=lambda u, _: 1e200 * u)
    with pytest.raises(ValueError, match=r"after step 0: step 0 diverged, which a smaller lr prevents\n"):
        fcco.solve(problem, **{**RATES, "method": "bsgd", "lr": 1e200})


@pytest.mark.parametrize("outer", [lambda u, _: u.detach(), lambda u, _: torch.ones_like(u)])
def test_refuses_an_outer_function_that_does_not_depend_on_u(outer):
    with pytest.raises(ValueError, match="outer must return a differentiable function of u"):
        fcco.solve(dataclasses.replace(PROBLEM, outer=outer), **RATES)


def test_a_step_size_that_no_float_holds():
    single = Problem(n=20, inner=lambda w, rows, *_: w.expand(len(rows)), outer=torch.square, start=torch.zeros(1))
    with pytest.raises(ValueError, match=r"lr must be at most 3.4e\+38, the largest torch.float32; got 1e\+39"):
        fcco.solve(single, **{**RATES, "lr": 1e39})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"exact_inner": lambda w: w.expand(19, 3)},
            r"exact_inner must return a tensor of shape \[20\]; got \[19, 3\]",
        ),
        ({"exact_inner": lambda w: 1.0}, "exact_inner must return a tensor of shape .*; got float"),
        ({"outer": lambda u, _: u[:, None] - u}, r"outer must map \[20\] to \[20\]; got \[20, 20\]"),
        ({"outer": lambda u, _: u.mean()}, r"outer must map \[20\] to \[20\]; got \[\]"),
        ({"objective": lambda w: w}, r"objective must return a scalar tensor; got \[3\]"),
        ({"objective": lambda w: 1.0}, "objective must return a scalar tensor; got float"),
    ],
)
def test_shapes_of_exact_values_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PROBLEM, **change).value(PROBLEM.start)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be at least 1; got 0"),
        ({"dim": 1.5}, TypeError, "dim must be an integer; got 1.5"),
        ({"inner": 3}, TypeError, "inner must be callable; got 3"),
        ({"outer": None}, TypeError, "outer must be callable; got None"),
        ({"start": [0.0]}, TypeError, r"start must be a floating tensor; got \[0.0\]"),
        ({"start": torch.zeros(3, dtype=torch.int64)}, TypeError, "start must be a floating tensor"),
        ({"start": torch.tensor([0.0, float("nan"), 0.0])}, ValueError, "start must be finite; got tensor"),
        ({"exact_inner": 3}, TypeError, "exact_inner must be callable; got 3"),
        ({"objective": 3}, TypeError, "objective must be callable; got 3"),
        ({"optimum": [0.0, 0.0, 0.0]}, TypeError, r"optimum must be a tensor; got \[0.0, 0.0, 0.0\]"),
        ({"constants": {"c_f": 1.0}}, TypeError, "constants must be fcco.theory.Constants; got {'c_f': 1.0}"),
        ({"optimum": torch.zeros(2)}, ValueError, r"optimum must have the shape \[3\] of start; got \[2\]"),
    ],
)
def test_problem_refuses(change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(PROBLEM, **change)


def test_a_problem_without_objective_says_so():
    problem = Problem(n=2, inner=PROBLEM.inner, outer=torch.log, start=torch.zeros(3))
    with pytest.raises(ValueError, match="problem has neither objective nor exact_inner"):
        problem.value(torch.zeros(3))
