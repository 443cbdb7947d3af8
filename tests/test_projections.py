"""Projections and proximal operators satisfy their definitions."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from fcco import projections as P
from fcco.optim import MovingAverageSGD

CENTER = torch.tensor([0.5, -1.0, 0.0, 2.0, 0.25, -0.75], dtype=torch.float64).reshape(2, 3)
LOWER = torch.tensor([-1.0, 0.0, 0.5, -0.1, -np.inf, 0.2], dtype=torch.float64).reshape(2, 3)


def on_simplex(generator, radius):
    exponential = -torch.rand(2, 3, dtype=torch.float64, generator=generator).log()
    return radius * exponential / exponential.sum()


def in_ball(generator, radius):
    direction = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    return radius * torch.rand((), dtype=torch.float64, generator=generator) * direction / direction.norm()


# For each set: its projection, some of its points, and a test of membership.
SETS = {
    "ball": (
        partial(P.project_ball, radius=1.5),
        lambda g: in_ball(g, 1.5),
        lambda y: y.norm() <= 1.5 + 1e-12,
    ),
    "ball-off-center": (
        partial(P.project_ball, radius=0.7, center=CENTER),
        lambda g: CENTER + in_ball(g, 0.7),
        lambda y: (y - CENTER).norm() <= 0.7 + 1e-12,
    ),
    "box": (
        partial(P.project_box, lower=LOWER, upper=LOWER.clamp(min=-2) + 1),
        lambda g: LOWER.clamp(min=-2) + torch.rand(2, 3, dtype=torch.float64, generator=g),
        lambda y: bool(((y >= LOWER) & (y <= LOWER.clamp(min=-2) + 1)).all()),
    ),
    "orthant": (
        partial(P.project_box, lower=0.0),
        lambda g: torch.randn(2, 3, dtype=torch.float64, generator=g).abs(),
        lambda y: bool((y >= 0).all()),
    ),
    "simplex": (
        partial(P.project_simplex, radius=2.0),
        lambda g: on_simplex(g, 2.0),
        lambda y: bool((y >= 0).all()) and abs(y.sum() - 2) < 1e-12,
    ),
    "l1-ball": (
        partial(P.project_l1_ball, radius=0.8),
        lambda g: in_ball(g, 1.0).sign() * on_simplex(g, 0.8),
        lambda y: y.abs().sum() <= 0.8 + 1e-12,
    ),
}
POINTS = [scale * torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
          for seed, scale in enumerate([0.1, 1.0, 1.0, 10.0, 1e6])]  # fmt: skip


@pytest.mark.parametrize(("project", "draw", "contains"), SETS.values(), ids=SETS)
class TestProjection:
    def test_is_the_nearest_point(self, project, draw, contains):
        """<x - P(x), y - P(x)> <= 0 for all y of the set, which P(x) alone satisfies."""
        generator = torch.Generator().manual_seed(0)
        for x in POINTS:
            nearest = project(x)
            assert contains(nearest)
            for _ in range(100):
                y = draw(generator)
                assert contains(y)
                assert ((x - nearest) * (y - nearest)).sum() <= 1e-12 * (1 + x.norm())

    def test_leaves_its_points_alone(self, project, draw, contains):
        generator = torch.Generator().manual_seed(1)
        for x in [project(x) for x in POINTS] + [draw(generator) for _ in range(20)]:
            torch.testing.assert_close(project(x), x, rtol=1e-14, atol=1e-15)

    def test_keeps_dtype_shape_and_argument(self, project, draw, contains):
        for dtype in (torch.float32, torch.float64):
            x = POINTS[2].to(dtype)
            before = x.clone()
            nearest = project(x)
            assert nearest.shape == x.shape
            assert nearest.dtype == dtype
            assert torch.equal(x, before)
            torch.testing.assert_close(nearest.double(), project(POINTS[2]), rtol=1e-5, atol=1e-6)

    def test_plugs_into_the_optimizer(self, project, draw, contains):
        w = torch.nn.Parameter(project(POINTS[1]))
        w.grad = POINTS[2].clone()
        expected = project(w.detach() - 3.0 * w.grad)
        MovingAverageSGD([w], lr=3.0, beta=1.0, projection=project).step()
        torch.testing.assert_close(w.detach(), expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("project", [P.project_ball, P.project_simplex, P.project_l1_ball])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_dim_projects_each_slice(project, dim):
    x = POINTS[2]
    slices = torch.stack([project(s) for s in x.unbind(1 - dim % 2)], dim=1 - dim % 2)
    torch.testing.assert_close(project(x, dim=dim), slices)


def test_a_scalar_is_a_vector_too():
    assert P.project_ball(torch.tensor(-3.0)) == -1.0
    assert P.project_simplex(torch.tensor(-3.0), radius=2.0) == 2.0
    assert P.project_l1_ball(torch.tensor(-3.0)) == -1.0


def test_huge_values_do_not_overflow():
    """1e30 squared is beyond float32, and 1e30 - 1 is 1e30."""
    x = torch.tensor([1e30, -1e30, 0.0])
    torch.testing.assert_close(P.project_ball(x), torch.tensor([0.5, -0.5, 0.0]).mul(2**0.5))
    torch.testing.assert_close(P.project_simplex(x), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(P.project_l1_ball(x), torch.tensor([0.5, -0.5, 0.0]))


PROXES = {
    "l1": (partial(P.prox_l1, weight=0.6), lambda y: 0.6 * abs(y)),
    "l2": (partial(P.prox_l2, weight=0.6), lambda y: 0.3 * y**2),
    "elastic-net": (partial(P.prox_elastic_net, l1=0.6, l2=0.4), lambda y: 0.6 * abs(y) + 0.2 * y**2),
    "SquaredL2": (P.SquaredL2(0.7).prox, lambda y: 0.35 * y**2),
    "ElasticNet": (P.ElasticNet(0.2, 0.7).prox, lambda y: 0.2 * abs(y) + 0.35 * y**2),
}


@pytest.mark.parametrize("step", [0.0, 0.3, 5.0])
@pytest.mark.parametrize(("prox", "value"), PROXES.values(), ids=PROXES)
class TestProx:
    def test_is_the_least_point(self, prox, value, step):
        """Against Brent's method: the functions are sums over entries, so each entry is a problem of its own."""
        x = torch.tensor([-4.0, -0.31, 0.0, 0.05, 0.5, 2.0], dtype=torch.float64)
        for entry, least in zip(x.tolist(), prox(x, step).tolist(), strict=True):
            brute = minimize_scalar(
                lambda y, entry=entry: step * value(y) + (y - entry) ** 2 / 2, bounds=(-5, 5), options={"xatol": 1e-12}
            )
            assert least == pytest.approx(brute.x, abs=1e-5)
            assert step * value(least) + (least - entry) ** 2 / 2 <= brute.fun + 1e-12

    def test_keeps_dtype_and_shape(self, prox, value, step):
        for dtype in (torch.float32, torch.float64):
            x = POINTS[1].to(dtype)
            assert prox(x, step).dtype == dtype
            assert prox(x, step).shape == x.shape

    def test_refuses_a_negative_step(self, prox, value, step):
        with pytest.raises(ValueError, match=r"step must be finite and not negative; got -1.0"):
            prox(POINTS[1], -1.0)


@pytest.mark.parametrize(
    ("regulariser", "value", "mu"),
    [(P.SquaredL2(0.5), 0.25 * (4 + 9), 0.5), (P.ElasticNet(0.1, 0.3), 0.1 * 5 + 0.15 * 13, 0.3)],
    ids=["SquaredL2", "ElasticNet"],
)
def test_regularisers(regulariser, value, mu):
    assert isinstance(regulariser, P.Regulariser)
    assert regulariser.mu == mu
    torch.testing.assert_close(regulariser(torch.tensor([2.0, -3.0])), torch.tensor(value))


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("project", [P.project_ball, P.project_simplex, P.project_l1_ball])
def test_refuses_a_radius(project, radius):
    with pytest.raises(ValueError, match=f"radius must be positive and finite; got {radius}"):
        project(POINTS[1], radius)


@pytest.mark.parametrize(("lower", "upper"), [(1.0, 0.0), (LOWER, -0.5), (float("nan"), 1.0)])
def test_refuses_an_empty_box(lower, upper):
    with pytest.raises(ValueError, match="lower must not be above upper"):
        P.project_box(POINTS[1], lower, upper)


@pytest.mark.parametrize(
    "make",
    [
        partial(P.prox_l1, POINTS[1], 0.1, weight=-1.0),
        partial(P.prox_l2, POINTS[1], 0.1, weight=-1.0),
        partial(P.prox_elastic_net, POINTS[1], 0.1, l1=-1.0),
        partial(P.prox_elastic_net, POINTS[1], 0.1, l2=-1.0),
        partial(P.SquaredL2, -1.0),
        partial(P.ElasticNet, -1.0, 0.0),
        partial(P.ElasticNet, 0.0, -1.0),
    ],
)
def test_refuses_negative_weights(make):
    with pytest.raises(ValueError, match=r"must be finite and not negative; got -1.0"):
        make()


@pytest.mark.parametrize(
    ("x", "radius", "dtype"),
    [
        ([300.0, 400.0], 1e-3, torch.float16),
        ([3.0, 4.0], 1e-3, torch.bfloat16),
        ([3e38, -3e38], 1.0, torch.float32),
        ([3e38, -3e38], 1e-30, torch.float32),
        ([3e200, 4e200], 1.0, torch.float64),
        ([3e200, 4e200], 1e-200, torch.float64),
        ([3e-200, 4e-200], 1e-200, torch.float64),
        ([1e308, 1e308], 1e308, torch.float64),
    ],
)
def test_a_ball_of_any_size(x, radius, dtype):
    """The direction is kept and the length is the radius, where squares and quotients would overflow."""
    x = torch.tensor(x, dtype=dtype)
    nearest = P.project_ball(x, radius)
    assert nearest.dtype == dtype
    wide = x.double() / x.double().abs().max()
    expected = radius * (wide / wide.norm())
    torch.testing.assert_close(nearest.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0.0)


def test_an_empty_vector_and_a_gradient():
    assert P.project_ball(torch.ones(0)).shape == (0,)
    for point in ([3.0, 4.0], [0.1, 0.2], [0.0, 0.0]):
        x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(P.project_ball, (x,))


@pytest.mark.parametrize("project", [P.project_ball, P.project_box, P.project_simplex, P.project_l1_ball])
@pytest.mark.parametrize("x", [torch.tensor([1, 2]), torch.tensor([True, False]), [1.0, 2.0]], ids=str)
def test_refuses_what_is_no_floating_tensor(project, x):
    with pytest.raises(TypeError, match="x must be a tensor of a floating dtype; got"):
        project(x)


@pytest.mark.parametrize("project", [P.project_ball, P.project_simplex, P.project_l1_ball])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_refuses_what_is_not_finite(project, value):
    with pytest.raises(ValueError, match=rf"must be finite; got {value} at position 1"):
        project(torch.tensor([0.5, value]))


@pytest.mark.parametrize(
    ("project", "name"),
    [
        (partial(P.project_box, lower=torch.zeros(3, 2)), "lower"),
        (partial(P.project_box, upper=torch.zeros(3)), "upper"),
        (partial(P.project_ball, center=torch.zeros(3, 2)), "center"),
    ],
)
def test_refuses_to_grow_the_shape(project, name):
    with pytest.raises(ValueError, match=rf"{name} must broadcast to the shape \[2\] of x; got the shape \[3.*\]"):
        project(torch.ones(2))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (partial(P.project_ball, radius="1"), "radius"),
        (partial(P.project_simplex, radius="1"), "radius"),
        (partial(P.project_l1_ball, radius="1"), "radius"),
        (partial(P.project_box, lower="1"), "lower"),
        (partial(P.prox_l1, step="1"), "step"),
        (partial(P.prox_l2, step=1.0, weight=None), "weight"),
        (P.SquaredL2, "mu"),
    ],
)
def test_refuses_what_is_no_number(make, name):
    with pytest.raises(TypeError, match=f"{name} must be a number"):
        make(torch.ones(2))
