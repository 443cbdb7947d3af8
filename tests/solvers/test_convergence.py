"""Every method on every problem reaches the minimum of what it minimises."""

from functools import partial

import pytest
import torch

import fcco
from fcco.projections import ElasticNet, SquaredL2, project_ball
from fcco.solvers import SOXBoost, Stage, problems

STEPS = 600
SIZES = {"outer_batch": 8, "inner_batch": 4}

# Each problem with a suitable step size.
PROBLEMS = {
    "nonconvex": (partial(problems.pseudo_huber, "nonconvex", n=16), 0.3),
    "convex": (partial(problems.pseudo_huber, "convex", n=16), 0.3),
    "strongly-convex": (partial(problems.pseudo_huber, "strongly_convex", n=16), 0.3),
    "logistic": (partial(problems.invariant_logistic, n=40, d=3), 0.5),
    "regularised-logistic": (partial(problems.invariant_logistic, n=40, d=3, l2=0.1), 0.5),
    "p-norm-push": (partial(problems.p_norm_push, l2=0.1), 0.05),
}


def decreasing(lr):
    return {"steps": STEPS, "lr": lambda step: lr * (1 - step / STEPS), "beta": 0.3, "gamma": 0.3}


def ball(problem):
    """Return the projection onto a ball that contains the minimum."""
    return partial(project_ball, radius=3 * float(problem.optimum.norm()) + float(problem.start.norm()))


# The options of each method on a problem, for a step size.
OPTIONS = {
    **{name: lambda problem, lr: decreasing(lr) for name in ("scgd", "nasa", "soap", "bsgd", "sox")},
    # Rows scaled by n / B1 need a slow average, and p-norm push takes them to the fourth power.
    "moap": lambda problem, lr: {**decreasing(0.3 * lr), "gamma": 0.01},
    "sox-boost": lambda problem, lr: {
        "method": SOXBoost([Stage(lr / 2**k, 0.4 / 2**k, 0.5 / 2**k, 150) for k in range(4)])
    },
    "projected": lambda problem, lr: {"steps": STEPS, "lr": lr / 2, "gamma": 0.3, "projection": ball(problem)},
    "strongly-convex": lambda problem, lr: {
        "steps": STEPS,
        "regulariser": SquaredL2(0.3),
        "projection": ball(problem),
    },
}


# Every method on a problem of each kind, and one method on the variants of these.
RUNS = [
    *((problem, method) for problem in ("nonconvex", "regularised-logistic", "p-norm-push") for method in OPTIONS),
    *((problem, "sox") for problem in ("convex", "strongly-convex", "logistic")),
    ("logistic", "moap"),
]


@pytest.mark.parametrize(("name", "method"), RUNS)
def test_reaches_the_minimum(name, method):
    """The excess over the minimum after 600 steps of 8 rows x 4 draws, as a share of the excess at the start.

    Each bound is twice what was measured or more: 0.055 for MOAP and 0.018 for the others, both on the logistic
    problem. Where the theorem is about the average of the iterates, it is the average that is tested.
    """
    make, lr = PROBLEMS[name]
    problem = make()
    options = {"method": method, **OPTIONS[method](problem, lr)}
    regulariser = options.get("regulariser", SquaredL2(0.0))

    def objective(w):
        return problem.value(w) + regulariser(w)

    solution = fcco.solve(problem, **SIZES, **options)
    least = float(objective(problems.minimiser(objective, problem.optimum)))
    column = "average_objective" if method in ("projected", "strongly-convex") else "objective"
    first, last = solution.history[column]
    assert 0 <= last - least < (0.11 if method == "moap" else 0.04) * (first - least)


def test_the_minimum_over_a_set_is_on_its_border():
    """If the ball does not contain the minimum, the gradient mapping vanishes and the gradient does not."""
    problem = problems.pseudo_huber("nonconvex", n=16)
    start = problem.start / problem.start.norm()
    solution = fcco.solve(
        fcco.solvers.Problem(
            n=16, inner=problem.inner, outer=problem.outer, start=-start, exact_inner=problem.exact_inner
        ),
        "projected",
        **SIZES,
        steps=STEPS,
        lr=0.1,
        gamma=0.3,
        projection=project_ball,
    )
    at = solution.weights.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(problem.value(at), at)
    assert solution.weights.norm() == pytest.approx(1.0)
    assert solution.history["gradient_norm"][-1] < 0.05 * gradient.norm()


def test_an_elastic_net():
    """F + R with two features that do not matter, against proximal gradient descent on the exact problem.

    Stochastic proximal steps come near the zeros of the minimum, and need not end on them. Without R the minimum
    is 0.34 away.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    target = x @ torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    regulariser = ElasticNet(0.2, 0.2)

    def inner(w, rows, generator, inner_batch):
        noise = torch.randn(len(rows), inner_batch, 4, generator=generator, dtype=torch.float64).mean(1)
        return (x[rows] + 0.2 * noise) @ w

    problem = fcco.solvers.Problem(
        n=30,
        inner=inner,
        outer=lambda u, index: (u - target[index]) ** 2 / 2,
        start=torch.zeros(4, dtype=torch.float64),
        exact_inner=lambda w: x @ w,
    )
    exact = problem.start
    for _ in range(500):
        exact = regulariser.prox(exact - 0.3 * x.T @ (x @ exact - target) / 30, 0.3)
    solution = fcco.solve(problem, "strongly-convex", **SIZES, steps=1500, regulariser=regulariser)
    assert (exact == 0).tolist() == [False, False, True, True]
    torch.testing.assert_close(solution.weights, exact, rtol=0.0, atol=0.03)
    torch.testing.assert_close(solution.average, exact, rtol=0.0, atol=0.03)
