"""Rates that are not given are those of the theorems."""

import dataclasses

import pytest
import torch

import fcco
from fcco import theory
from fcco.projections import SquaredL2, project_ball
from fcco.solvers import Stage, problems

PROBLEM = problems.pseudo_huber("strongly_convex", n=16)
SIZES = {"outer_batch": 8, "inner_batch": 4}
SETTING = {"n": 16, **SIZES, "epsilon": 0.1}
GAP = float(PROBLEM.value(PROBLEM.start) - PROBLEM.value(PROBLEM.optimum))


def stages_of(method, problem=PROBLEM, **options):
    """What a run would use; it is stopped after its first step."""
    return fcco.solve(problem, method, **SIZES, **options, record_at=[], callback=lambda state: True).stages


def as_stages(*parameters):
    return tuple(Stage(p.lr, p.beta, p.gamma, p.steps) for p in parameters)


def test_sox():
    expected = theory.sox(PROBLEM.constants, gap=GAP, **SETTING)
    assert stages_of("sox", epsilon=0.1) == as_stages(expected)


def test_what_is_given_goes_first():
    expected = theory.sox(PROBLEM.constants, gap=3.0, **SETTING)
    (stage,) = stages_of("sox", epsilon=0.1, gap=3.0, lr=0.5, steps=7)
    assert stage == Stage(0.5, expected.beta, expected.gamma, 7)


@pytest.mark.parametrize("pass_on", ["last", "average", "random"])
def test_sox_boost(pass_on):
    expected = theory.sox_boost(PROBLEM.constants, gap=GAP, mu=PROBLEM.mu, **SETTING)
    assert stages_of("sox-boost", epsilon=0.1, mu=PROBLEM.mu, pass_on=pass_on) == as_stages(*expected)


def test_sox_boost_takes_the_stages_of_theory():
    chosen = theory.sox_boost(PROBLEM.constants, gap=GAP, mu=PROBLEM.mu, **SETTING)
    assert stages_of("sox-boost", stages=chosen[:1]) == as_stages(chosen[0])


def test_sox_boost_on_a_convex_problem():
    """mu = 2 epsilon / radius^2, and F(start) is larger by mu/2 |start|^2, while the minimum can only be larger.

    With so small an L_f it is the smoothness, L_F + mu, that bounds the step size.
    """
    convex = problems.pseudo_huber("convex", n=16, l_f=0.05)
    gap = float(convex.value(convex.start) - convex.value(convex.optimum))
    mu = 2 * 0.1 / 1.5**2
    expected = theory.sox_boost(
        convex.constants, gap=gap + mu / 2 * float(convex.start.square().sum()), mu=mu, weight_decay=mu, **SETTING
    )
    assert stages_of("sox-boost", convex, epsilon=0.1, radius=1.5) == as_stages(*expected)


def test_projected():
    expected = theory.projected(PROBLEM.constants, diameter=2.0, **SETTING)
    assert stages_of("projected", epsilon=0.1, diameter=2.0, projection=project_ball) == as_stages(expected)
    assert expected.beta == 1


def test_strongly_convex():
    (stage,) = stages_of("strongly-convex", regulariser=SquaredL2(0.2), steps=9)
    assert stage.steps == 9
    for t in (0, 1, 5):
        assert stage.rates(t) == (pytest.approx(1 / (0.2 * (t + 1))), 1.0)
        assert stage.gamma(t) == pytest.approx(1 / (1 + 8 / 16 * (t + 1)))


def test_theorem_1_holds():
    """The mean of |grad F(w_t)|^2 over the run is at most epsilon^2; at the start it is twice that."""
    problem = problems.pseudo_huber(n=16)
    solution = fcco.solve(problem, epsilon=0.6, outer_batch=16, inner_batch=16, record_every=10)
    squares = torch.tensor(solution.history["gradient_norm"]).square()
    assert squares[0] > 2 * 0.6**2
    assert squares.mean() <= 0.6**2


def test_an_unknown_gap_can_be_given():
    hidden = dataclasses.replace(PROBLEM, optimum=None)
    assert stages_of("sox", hidden, epsilon=0.1, gap=GAP) == stages_of("sox", epsilon=0.1)
