"""Every method follows its algorithm box on the same draws."""

import numpy as np
import pytest
import torch

import fcco
import reference
from fcco.projections import SquaredL2
from fcco.solvers import Accuracy, SOXBoost, Stage
from solvers import reference as stagewise
from solvers.cases import BALL, STAGES, exponential, replay

STEPS, OUTER_BATCH, INNER_BATCH, ETA, BETA, GAMMA, MU, SEED = 200, 4, 2, 0.05, 0.3, 0.2, 0.02, 5
SIZES = {"outer_batch": OUTER_BATCH, "inner_batch": INNER_BATCH, "random_state": SEED}

REFERENCES = {
    "scgd": lambda arrays, draws: reference.scgd(arrays, arrays.w0, ETA, GAMMA, draws),
    "nasa": lambda arrays, draws: reference.nasa(arrays, arrays.w0, ETA, BETA, GAMMA, draws),
    "soap": lambda arrays, draws: reference.soap(arrays, arrays.w0, ETA, GAMMA, draws),
    "moap": lambda arrays, draws: reference.moap(arrays, arrays.w0, ETA, BETA, GAMMA, draws),
    "bsgd": lambda arrays, draws: reference.bsgd(arrays, arrays.w0, ETA, draws),
    "sox": lambda arrays, draws: reference.sox(arrays, arrays.w0, ETA, BETA, GAMMA, draws),
}


def run(problem, method, **options):
    """Return the solution and the last table. With a ball, assert that its border was reached."""
    tables, norms = [], []

    def look(state):
        tables.append(state.table)
        norms.append(float(state.weights.norm()))

    solution = fcco.solve(problem, method, **SIZES, **options, callback=look)
    if "projection" in options:
        assert max(norms) == pytest.approx(BALL.keywords["radius"]), "otherwise the projection is not tested"
    return solution, tables[-1].read(None, cold=0.0).reshape(problem.n, problem.dim)


def assert_close(mine, theirs):
    np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-10, atol=1e-10)


def ball(w):
    return w * min(1, BALL.keywords["radius"] / np.linalg.norm(w))


@pytest.fixture(params=[1, 2], ids=["scalar", "vector"])
def case(request):
    return exponential(dim=request.param)


@pytest.mark.parametrize("method", REFERENCES)
def test_the_six(case, method):
    problem, arrays = case
    solution, table = run(problem, method, steps=STEPS, lr=ETA, beta=BETA, gamma=GAMMA)
    draws = replay(
        arrays,
        torch.Generator().manual_seed(SEED),
        STEPS,
        OUTER_BATCH,
        INNER_BATCH,
        all_rows=method in ("scgd", "nasa"),
    )
    w, u = REFERENCES[method](arrays, draws)
    assert_close(solution.weights, w)
    assert_close(table, u)
    assert np.abs(w - arrays.w0).max() > 0.1, "the path has to go somewhere"


def test_log_space():
    problem, arrays = exponential(log=True)
    solution, table = run(problem, "sox", steps=STEPS, lr=ETA, beta=BETA, gamma=GAMMA)
    draws = replay(arrays, torch.Generator().manual_seed(SEED), STEPS, OUTER_BATCH, INNER_BATCH)
    w, u = reference.sox(arrays, arrays.w0, ETA, BETA, GAMMA, draws, floor=True)
    assert_close(solution.weights, w)
    assert_close(table.exp(), u)


def test_schedules_are_functions_of_the_step():
    """SOX-boost with stages of one step each is SOX with rates that change at every step."""
    problem, arrays = exponential()
    schedules = {"lr": lambda t: ETA / (t + 1) ** 0.5, "beta": lambda t: 1 / (t + 2), "gamma": lambda t: 0.5 - t / 400}
    solution, table = run(problem, "sox", steps=STEPS, **schedules)
    draws = replay(arrays, torch.Generator().manual_seed(SEED), STEPS, OUTER_BATCH, INNER_BATCH)
    rates = [tuple(schedule(t) for schedule in schedules.values()) for t in range(STEPS)]
    w, u = stagewise.sox_boost(arrays, arrays.w0, rates, [[draw] for draw in draws])
    assert_close(solution.weights, w)
    assert_close(table, u)


def test_schedules_of_a_stage_begin_with_it():
    problem, arrays = exponential()
    stages = [Stage(lambda t: ETA / (t + 1), lambda t: 1 / (t + 2), lambda t: 1 / (t + 1), 10)] * 2
    solution, table = run(problem, SOXBoost(stages))
    draws = replay(arrays, torch.Generator().manual_seed(SEED), 20, OUTER_BATCH, INNER_BATCH)
    rates = [(ETA / (t + 1), 1 / (t + 2), 1 / (t + 1)) for t in range(10)] * 2
    w, u = stagewise.sox_boost(arrays, arrays.w0, rates, [[draw] for draw in draws])
    assert_close(solution.weights, w)
    assert_close(table, u)


@pytest.mark.parametrize("pass_on", ["last", "average", "random"])
@pytest.mark.parametrize("mu", [0.0, 0.5], ids=["as-it-is", "convexified"])
def test_sox_boost(case, pass_on, mu):
    problem, arrays = case
    accuracy = Accuracy(mu * 2, radius=2.0) if mu else None  # mu = 2 epsilon / radius^2
    solution, table = run(problem, SOXBoost(STAGES, pass_on), accuracy=accuracy)
    generator, draws = torch.Generator().manual_seed(SEED), []
    for stage in STAGES:
        steps = int(torch.randint(stage.steps, (), generator=generator)) + 1 if pass_on == "random" else stage.steps
        draws.append(replay(arrays, generator, steps, OUTER_BATCH, INNER_BATCH))
    rates = [(stage.lr, stage.beta, stage.gamma) for stage in STAGES]
    w, u = stagewise.sox_boost(arrays, arrays.w0, rates, draws, pass_on, mu)
    assert_close(solution.weights, w)
    assert_close(table, u)
    assert solution.steps == sum(map(len, draws))


def test_projected(case):
    problem, arrays = case
    solution, table = run(problem, "projected", steps=STEPS, lr=0.4, gamma=GAMMA, projection=BALL)
    draws = replay(arrays, torch.Generator().manual_seed(SEED), STEPS, OUTER_BATCH, INNER_BATCH)
    w, u, average = stagewise.projected(arrays, arrays.w0, 1 / 0.4, GAMMA, draws, ball)
    assert_close(solution.weights, w)
    assert_close(solution.average, average)
    assert_close(table, u)


def test_strongly_convex(case):
    problem, arrays = case
    solution, table = run(problem, "strongly-convex", steps=STEPS, regulariser=SquaredL2(MU), projection=BALL)
    draws = replay(arrays, torch.Generator().manual_seed(SEED), STEPS, OUTER_BATCH, INNER_BATCH)
    w, u, average = stagewise.strongly_convex(arrays, arrays.w0, MU, draws, ball)
    assert_close(solution.weights, w)
    assert_close(solution.average, average)
    assert_close(table, u)
