import math
from dataclasses import asdict, replace

import pytest
import torch

from fcco.solvers import Problem, problems
from fcco.theory import estimate_constants
from fcco.theory._estimate import _directions, _points

CASES = {
    "nonconvex": lambda: problems.pseudo_huber(n=12, d=3, sigma=0.3, zeta=0.2),
    "convex": lambda: problems.pseudo_huber("convex", n=12, d=3, c_f=2.0, l_f=0.7),
    "strongly_convex": lambda: problems.pseudo_huber("strongly_convex", n=12, d=3, sigma=0.05, zeta=0.5),
    "logistic": lambda: problems.invariant_logistic(n=60, d=3),
    "logistic_l2": lambda: problems.invariant_logistic(n=60, d=3, l2=0.1),
}
# 2,000 samples: three standard errors of a sample variance are 3 sqrt(2 / 2000) = 10% at most (normal samples).
SAMPLES, ERROR = 2000, 0.1


@pytest.mark.parametrize("name", CASES)
def test_estimates_are_below_the_known_constants_and_of_their_size(name):
    problem = CASES[name]()
    found = asdict(estimate_constants(problem, radius=problem.radius, points=8, rows=8, samples=SAMPLES))
    for constant, known in asdict(problem.constants).items():
        slack = 1 + (ERROR if constant in ("sigma2", "zeta2") else 1e-3)
        assert known / 3 <= found[constant] <= known * slack + 1e-9, constant


def test_a_large_inner_batch_stands_for_g_where_g_is_not_given():
    problem = CASES["nonconvex"]()
    exact = asdict(estimate_constants(problem, points=4, rows=3, samples=200))
    sampled = asdict(estimate_constants(replace(problem, exact_inner=None), points=4, rows=3, samples=200))
    assert sampled == pytest.approx(exact, rel=0.05)


def test_log_space_is_left():
    def logs(w, rows, generator, inner_batch):
        return w[rows]

    problem = Problem(n=2, inner=logs, outer=lambda u: 3 * u, start=torch.zeros(2), log=True, exact_inner=lambda w: w)
    found = estimate_constants(problem, points=50, rows=2, samples=1, radius=1e-3)
    # f(g) = 3 log g has the slope 3 and the curvature 3 at g = 1, and g = exp(w_i) those of exp at 0.
    assert asdict(found) == pytest.approx(
        {"c_f": 3.0, "l_f": 3.0, "c_g": 1.0, "l_g": 1.0, "sigma2": 0.0, "zeta2": 0.0, "chi2": 0.0}, rel=1e-2
    )


def test_f_is_measured_at_single_samples_too():
    """A row may hold one of them: f = u² / 2 is flat at g = 0, and has the slope 1 at the samples -1 and 1."""

    def signs(w, rows, generator, inner_batch):
        return w[0] + (2.0 * torch.randint(2, (len(rows), inner_batch), generator=generator) - 1).mean(1)

    problem = Problem(
        n=2, inner=signs, outer=lambda u: u**2 / 2, start=torch.zeros(1), exact_inner=lambda w: w.expand(2)
    )
    found = estimate_constants(problem, points=2, rows=1, samples=20, radius=1e-3)
    assert found.c_f == pytest.approx(1.0, abs=2e-3)


def test_variances_add_up_over_the_values_of_g():
    def signs(w, rows, generator, inner_batch):
        return w.sum() + (2.0 * torch.randint(2, (len(rows), inner_batch, 2), generator=generator) - 1).mean(1)

    problem = Problem(
        n=2,
        dim=2,
        inner=signs,
        outer=lambda u: u.square().sum(1),
        start=torch.zeros(1),
        exact_inner=lambda w: w.sum().expand(2, 2),
    )
    assert estimate_constants(problem, points=2, rows=1, samples=20, radius=1e-3).sigma2 == pytest.approx(2.0)


def test_many_dimensions_are_probed_at_random():
    """One estimate has a standard error of sqrt(2 / 64) = 18%, a unit vector's square length from 64 normal probes.

    Three standard errors of a mean of 6 are 22%. Probes of a unit length would miss by 80 / 64 - 1 = 25%.
    """
    problem = problems.pseudo_huber(n=4, d=80, zeta=0.5, sigma=0.5)
    found = [estimate_constants(problem, points=1, rows=1, samples=60, random_state=seed).zeta2 for seed in range(6)]
    assert sum(found) / len(found) == pytest.approx(0.25, rel=0.22)


@pytest.mark.parametrize("d", [3, 64, 65, 90])
def test_directions_cover_all_of_space_alike(d):
    """The sum of v v' is the identity: exactly while there are no more than 64 of them, and on average beyond."""
    generator = torch.Generator().manual_seed(0)
    squares = torch.stack([(v := _directions(d, generator).double()).T @ v for _ in range(1 if d <= 64 else 400)])
    # The standard error of an entry is sqrt(2 / 64 / 400) = 0.9% at most; the largest of 8,100 lies within five.
    torch.testing.assert_close(squares.mean(0), torch.eye(d).double(), atol=0.0 if d <= 64 else 0.045, rtol=0.0)


def test_points_are_uniform_in_the_ball_and_on_the_way_to_the_optimum():
    """In the ball (|w| / radius)^d is uniform: 1/2 on average, with a standard error of 0.9% for 1,000 points."""
    problem, generator = problems.pseudo_huber(n=4, d=3), torch.Generator().manual_seed(0)
    start, optimum = problem.start, problem.optimum
    points = torch.stack(_points(problem, 2000, 2.0, generator))
    volumes = ((points[1::2] - start).norm(dim=1) / 2.0) ** 3
    assert volumes.max() <= 1
    assert volumes.mean().item() == pytest.approx(0.5, abs=0.03)  # radii that are uniform would give 1/4
    way = (points[::2] - start) @ (optimum - start) / (optimum - start).square().sum()
    torch.testing.assert_close(points[::2], start + way[:, None] * (optimum - start))
    assert way.min() >= 0
    assert way.max() <= 1
    assert way.mean().item() == pytest.approx(0.5, abs=0.03)


def test_the_direction_of_the_largest_curvature_is_looked_for():
    """A direction drawn at random in 20 dimensions would find about sqrt(1 / 20) of it."""
    curvature = torch.full((20,), 0.1, dtype=torch.float64)
    curvature[7] = 3.0

    def exact(w):
        return (1 + w.sum() + (curvature * w.square()).sum() / 2).expand(2)

    problem = Problem(
        n=2,
        inner=lambda w, rows, generator, inner_batch: exact(w)[rows],
        outer=torch.sin,
        start=torch.zeros(20, dtype=torch.float64),
        exact_inner=exact,
    )
    found = estimate_constants(problem, points=1, rows=1, samples=3)
    assert found.l_g == pytest.approx(3.0, rel=0.01)


def test_the_same_seed_gives_the_same_constants():
    problem = CASES["logistic"]()
    first, second, other = (
        estimate_constants(problem, points=2, rows=2, samples=20, random_state=seed) for seed in (1, 1, 2)
    )
    assert first == second != other


@pytest.mark.parametrize("argument", ["points", "rows", "samples", "inner_batch", "radius"])
def test_refusals(argument):
    with pytest.raises(ValueError, match=f"{argument} must be .*got 0"):
        estimate_constants(CASES["logistic"](), **{argument: 0})


@pytest.mark.parametrize("log", [False, True], ids=["plain", "log"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_curvature_of_f_at_any_scale_of_g(scale, log):
    """f = log has the slope 1/g and the curvature 1/g^2, whatever the size of g."""
    slopes = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 10

    def exact(w):
        return (slopes @ w) + math.log(scale) if log else scale * (slopes @ w).exp()

    problem = Problem(
        n=6,
        inner=lambda w, rows, generator, inner_batch: exact(w)[rows],
        outer=(lambda u: u) if log else torch.log,
        start=torch.zeros(3, dtype=torch.float64),
        exact_inner=exact,
        log=log,
    )
    found = estimate_constants(problem, points=4, rows=2, samples=3)
    assert found.c_f == pytest.approx(1 / scale, rel=0.5)
    assert found.l_f == pytest.approx(found.c_f**2, rel=1e-9)


def test_what_is_not_a_number_is_not_a_constant():
    problem = Problem(
        n=2, inner=lambda w, rows, generator, inner_batch: w[rows] - 5, outer=torch.sqrt, start=torch.zeros(2)
    )
    with pytest.raises(ValueError, match=r"must be .*finite.*; got nan"):
        estimate_constants(problem, points=4, rows=2, samples=3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 2, 2)])
def test_weights_of_any_shape_and_dtype(shape, dtype):
    """g = sqrt(1 + |w|^2) has slopes and curvatures up to 1, f = 2u the slope 2 and no curvature."""
    problem = Problem(
        n=2,
        inner=lambda w, rows, generator, inner_batch: (1 + w.square().sum()).sqrt().expand(len(rows)),
        outer=lambda u: 2 * u,
        start=torch.zeros(shape, dtype=dtype),
    )
    found = estimate_constants(problem, points=6, rows=1, samples=2, inner_batch=1)
    assert asdict(found) == pytest.approx(
        {"c_f": 2.0, "l_f": 0.0, "c_g": 0.6, "l_g": 0.85, "sigma2": 0.0, "zeta2": 0.0, "chi2": 0.0}, abs=0.16
    )


@pytest.mark.parametrize("seed", [None, 0.5])
def test_a_seed_is_an_integer(seed):
    with pytest.raises(TypeError, match=f"random_state must be an integer; got {seed}"):
        estimate_constants(CASES["logistic"](), random_state=seed)
