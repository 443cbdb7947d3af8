"""Rates that are not given are those of the theorems."""

import dataclasses
import math

import pytest
import torch

import fcco
from fcco import theory
from fcco.projections import SquaredL2, project_ball
from fcco.schedules import RunningMean
from fcco.solvers import Accuracy, SOXBoost, Stage, problems
from solvers.cases import BALL, exponential

PROBLEM = problems.pseudo_huber("strongly_convex", n=16)
SIZES = {"outer_batch": 8, "inner_batch": 4}
SCALE = {"n": 16, **SIZES, "epsilon": 0.1}
GAP = float(PROBLEM.value(PROBLEM.start) - PROBLEM.value(PROBLEM.optimum))


def stages_of(method, problem=PROBLEM, **options):
    """Return the stages of a run, which is stopped after its first step."""
    return fcco.solve(problem, method, **SIZES, **options, record=[], callback=lambda state: True).stages


def as_stages(*parameters):
    return tuple(Stage(p.lr, p.beta, p.gamma, p.steps) for p in parameters)


def test_sox():
    expected = theory.sox(PROBLEM.constants, gap=GAP, **SCALE)
    assert stages_of("sox", accuracy=Accuracy(0.1)) == as_stages(expected)


def test_what_is_given_goes_first():
    expected = theory.sox(PROBLEM.constants, gap=3.0, **SCALE)
    (stage,) = stages_of("sox", accuracy=Accuracy(0.1, gap=3.0), lr=0.5, steps=7)
    assert stage == Stage(0.5, expected.beta, expected.gamma, 7)


@pytest.mark.parametrize("pass_on", ["last", "average", "random"])
def test_sox_boost(pass_on):
    expected = theory.sox_boost(PROBLEM.constants, gap=GAP, mu=PROBLEM.mu, **SCALE)
    found = stages_of(SOXBoost(pass_on=pass_on), accuracy=Accuracy(0.1, mu=PROBLEM.mu))
    assert found == as_stages(*expected)


def test_sox_boost_takes_the_stages_of_theory():
    chosen = theory.sox_boost(PROBLEM.constants, gap=GAP, mu=PROBLEM.mu, **SCALE)
    assert stages_of(SOXBoost(chosen[:1])) == as_stages(chosen[0])


def test_sox_boost_on_a_convex_problem():
    """mu is 2 epsilon / radius^2. F(start) grows by mu/2 |start|^2, and the minimum does not decrease.

    With so small an L_f it is the smoothness, L_F + mu, that bounds the step size.
    """
    convex = problems.pseudo_huber("convex", n=16, l_f=0.05)
    gap = float(convex.value(convex.start) - convex.value(convex.optimum))
    mu = 2 * 0.1 / 1.5**2
    expected = theory.sox_boost(
        convex.constants,
        gap=gap + mu / 2 * float(convex.start.square().sum()),
        mu=mu,
        weight_decay=mu,
        **SCALE,
    )
    assert stages_of("sox-boost", convex, accuracy=Accuracy(0.1, radius=1.5)) == as_stages(*expected)


def test_projected():
    expected = theory.projected(PROBLEM.constants, diameter=2.0, **SCALE)
    found = stages_of("projected", accuracy=Accuracy(0.1, diameter=2.0), projection=project_ball)
    assert found == as_stages(expected)
    assert expected.beta == 1


def test_strongly_convex():
    (stage,) = stages_of("strongly-convex", regulariser=SquaredL2(0.2), steps=9)
    assert stage.steps == 9
    for t in (0, 1, 5):
        assert stage.rates(t) == (pytest.approx(1 / (0.2 * (t + 1))), 1.0)
        assert stage.gamma(t) == pytest.approx(1 / (1 + 8 / 16 * (t + 1)))


def test_strongly_convex_chooses_its_length():
    accuracy = Accuracy(0.1, diameter=2.0, c_r=0.2, scale=10.0)
    (stage,) = stages_of("strongly-convex", regulariser=SquaredL2(0.2), projection=project_ball, accuracy=accuracy)
    whole = theory.strongly_convex_steps(PROBLEM.constants, mu=0.2, c_r=0.2, diameter=2.0, **SCALE)
    assert stage.steps == math.ceil(whole / 10)


def test_theorem_3_holds():
    """The mean of |grad F(w_t)|^2 over the run is at most epsilon^2; at the start it is twice that."""
    problem = problems.pseudo_huber(n=16)
    solution = fcco.solve(problem, accuracy=Accuracy(0.6), outer_batch=16, inner_batch=16, record=10)
    squares = torch.tensor(solution.history["gradient_norm"]).square()
    assert squares[0] > 2 * 0.6**2
    assert squares.mean() <= 0.6**2


def test_an_unknown_gap_can_be_given():
    hidden = dataclasses.replace(PROBLEM, optimum=None)
    assert stages_of("sox", hidden, accuracy=Accuracy(0.1, gap=GAP)) == stages_of("sox", accuracy=Accuracy(0.1))


@pytest.mark.parametrize("estimate_all", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_running_mean_is_the_mean_of_all_estimates_of_a_row(estimate_all, stages):
    """The weights do not move. An earlier stage may have a rate that does not need the number of visits."""
    seen = {row: [] for row in range(PROBLEM.n)}

    def inner(w, rows, generator, inner_batch):
        values = PROBLEM.inner(w, rows, generator, inner_batch)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            seen[row].append(value)
        return values

    states = []
    first = [] if stages == 1 else [Stage(0.0, 0.5, 1.0, 1)]
    fcco.solve(
        dataclasses.replace(PROBLEM, inner=inner),
        SOXBoost([*first, Stage(0.0, 0.5, RunningMean(), 60)]),
        outer_batch=1 if stages == 2 else 4,
        estimate_all=estimate_all,
        callback=states.append,
    )
    table = states[-1].table
    assert table.visits.tolist() == [len(values) for values in seen.values()]
    assert max(map(len, seen.values())) > 3
    if stages == 1 or not estimate_all:  # a first step at rate 1 forgets the first estimate
        means = [sum(values) / len(values) if values else 0.0 for values in seen.values()]
        torch.testing.assert_close(table.u, torch.tensor(means, dtype=torch.float64))


@pytest.mark.parametrize(
    ("method", "known", "given", "message"),
    [
        ("sox", {}, {"projection": BALL}, "Theorem 3 does not cover a projection: give the step sizes yourself"),
        ("sox", {}, {"regulariser": SquaredL2(0.1)}, "Theorem 3 does not cover a regulariser"),
        ("sox-boost", {"mu": 0.05}, {"projection": BALL}, "Theorem 4 does not cover a projection"),
        ("sox-boost", {"radius": 1.0}, {"regulariser": SquaredL2(0.1)}, "Theorem 4 does not cover a regulariser"),
        (
            "projected",
            {"diameter": 2.4},
            {"projection": BALL, "regulariser": SquaredL2(0.1)},
            "Theorem 5 does not cover a regulariser",
        ),
    ],
)
def test_a_theorem_is_not_stretched(method, known, given, message):
    accuracy = Accuracy(0.1, **known)
    with pytest.raises(ValueError, match=message):
        stages_of(method, accuracy=accuracy, **given)
    if method != "sox-boost":
        (stage,) = stages_of(method, accuracy=accuracy, lr=0.1, beta=0.1, gamma=0.1, steps=3, **given)
        assert stage.lr == 0.1


@pytest.mark.parametrize(
    ("method", "known", "given"),
    [
        ("projected", {"diameter": 2.4}, {"projection": BALL}),
        ("strongly-convex", {"diameter": 2.4, "c_r": 1.0}, {"regulariser": SquaredL2(0.1)}),
    ],
)
def test_a_theorem_about_scalars_needs_a_scalar(method, known, given):
    several = dataclasses.replace(exponential(dim=2)[0], constants=PROBLEM.constants)
    with pytest.raises(ValueError, match=r"Theorem [57] needs a scalar g, dim=1; exponential has dim=2"):
        stages_of(method, several, accuracy=Accuracy(0.1, **known), **given)


def test_a_theorem_does_not_cover_the_safeguard():
    logarithmic = dataclasses.replace(exponential(log=True)[0], constants=PROBLEM.constants)
    accuracy = Accuracy(0.1, gap=GAP)
    with pytest.raises(ValueError, match="Theorem 3 does not cover the safeguard in log space: give safeguard=False"):
        stages_of("sox", logarithmic, accuracy=accuracy)
    (stage,) = stages_of("sox", logarithmic, accuracy=accuracy, safeguard=False)
    assert stage.steps == stages_of("sox", accuracy=accuracy)[0].steps


@pytest.mark.parametrize("method", ["sox", "sox-boost", "projected", "strongly-convex"])
def test_the_safeguard_can_be_turned_off(method):
    """In log space, SOX floors a row that is far below a new estimate. The paper does not."""
    problem, _ = exponential(log=True)
    slow = {"gamma": 1e-3, "steps": 30, "lr": 1e-5}  # without the safeguard, larger steps soon raise an error
    options = {
        "sox": {"method": "sox", **slow, "beta": 1.0},
        "sox-boost": {"method": SOXBoost([Stage(1e-5, 1.0, 1e-3, 30)])},
        "projected": {"method": "projected", **slow, "projection": BALL},
        "strongly-convex": {"method": "strongly-convex", **slow, "regulariser": SquaredL2(0.0001)},
    }[method]
    jumps = dataclasses.replace(
        problem, inner=lambda w, rows, g, b: problem.inner(w, rows, g, b) + 9 * torch.rand((), generator=g)
    )
    safe, letter = (fcco.solve(jumps, **options, safeguard=on).weights for on in (True, False))
    assert not torch.equal(safe, letter)
    plain, _ = exponential()
    on, off = (fcco.solve(plain, **options, safeguard=on).weights for on in (True, False))
    assert torch.equal(on, off)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_factor_for_practice(scale):
    chosen = theory.sox(PROBLEM.constants, **SCALE, gap=GAP)
    (stage,) = stages_of("sox", accuracy=Accuracy(0.1, scale=scale))
    assert stage.lr == pytest.approx(scale * chosen.lr)
    assert stage.gamma == pytest.approx(min(scale * chosen.gamma, 1.0))
    assert stage.beta == pytest.approx(min(scale * chosen.beta, 1.0))
    assert stage.steps == math.ceil(chosen.steps / scale)


def test_warns_if_the_optimum_is_out_of_reach():
    with pytest.warns(UserWarning, match="3 steps with lr = .* means that a minimiser is at least") as caught:
        fcco.solve(PROBLEM, steps=3, **SIZES, accuracy=Accuracy(0.1))
    assert caught[0].filename == __file__
