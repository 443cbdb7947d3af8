"""Problems and options that the tests of the solvers share."""

from functools import partial

import numpy as np
import torch

from fcco.projections import SquaredL2, project_ball
from fcco.solvers import Problem, SOXBoost, Stage
from fcco.solvers._solver import draw_rows
from problems import ExponentialProblem, LeastSquaresProblem


def exponential(dim=1, log=False, **options):
    """Return the problem of the engine's tests, as a :class:`Problem` and in NumPy."""
    arrays = ExponentialProblem(dim=dim, **options)

    def inner(w, rows, generator, inner_batch):
        batches = torch.randint(arrays.set_size, (len(rows), inner_batch), generator=generator)
        values = arrays.torch_inner(w, rows.numpy(), batches.numpy(), log)
        return values[:, 0] if dim == 1 else values

    everything = np.tile(np.arange(arrays.set_size), (arrays.n, 1))
    problem = Problem(
        n=arrays.n,
        dim=dim,
        log=log,
        inner=inner,
        outer=arrays.log_outer if log else arrays.outer,
        start=torch.tensor(arrays.w0),
        exact_inner=lambda w: arrays.torch_inner(w, np.arange(arrays.n), everything, log),
        name="exponential",
    )
    return problem, arrays


def least_squares(**options):
    arrays = LeastSquaresProblem(**options)
    return Problem(
        n=arrays.n,
        inner=lambda w, rows, generator, inner_batch: arrays.inner(w, rows, inner_batch, generator),
        outer=arrays.outer,
        start=torch.zeros(arrays.d, dtype=torch.float64),
        exact_inner=lambda w: arrays.mean_a @ w,
        optimum=arrays.optimum,
        name="least squares",
    )


def replay(arrays, generator, steps, outer_batch, inner_batch, all_rows=False):
    """Return the draws of ``steps`` steps of a solver, in the form that the reference implementations take."""
    draws = []
    for _ in range(steps):
        rows = draw_rows(arrays.n, outer_batch, generator)
        evaluated = torch.arange(arrays.n) if all_rows else rows
        batches = np.zeros((arrays.n, inner_batch), dtype=int)
        batches[evaluated] = torch.randint(arrays.set_size, (len(evaluated), inner_batch), generator=generator).numpy()
        draws.append((rows.numpy(), batches))
    return draws


RATES = {"lr": 0.05, "beta": 0.3, "gamma": 0.2, "steps": 40}
STAGES = [Stage(0.08, 0.4, 0.5, 15), Stage(0.04, 0.2, 0.25, 20), Stage(0.02, 0.1, 0.125, 25)]
BALL = partial(project_ball, radius=1.2)

# Every method, with options that work on any problem whose start is in the ball.
CALLS = {
    **{method: {"method": method, **RATES} for method in ("scgd", "nasa", "soap", "moap", "bsgd", "sox")},
    "sox-boost": {"method": SOXBoost(STAGES)},
    "projected": {"method": "projected", **RATES, "projection": BALL},
    "strongly-convex": {
        "method": "strongly-convex",
        "steps": 40,
        "regulariser": SquaredL2(0.5),
        "projection": BALL,
    },
}
