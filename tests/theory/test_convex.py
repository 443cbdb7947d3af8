import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fcco.theory import Constants, projected, strongly_convex, strongly_convex_steps

PLAIN = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=1.0, sigma2=1.0, zeta2=1.0)


def grid():
    for c_f, l_f, c_g, sigma2, zeta2 in product((0.3, 2.0), (0.0, 0.1, 3.0), (0.5, 4.0), (0.0, 0.7), (0.0, 2.0)):
        yield Constants(c_f=c_f, l_f=l_f, c_g=c_g, l_g=1.0, sigma2=sigma2, zeta2=zeta2)


@pytest.mark.parametrize(("n", "b1", "b2"), [(1, 1, 1), (40, 40, 3), (400, 7, 90)])
@pytest.mark.parametrize("epsilon", [0.01, 3.0])
def test_the_gap_of_theorem_5(n, b1, b2, epsilon):
    d = 1.7
    for c in grid():
        got = projected(c, n=n, outer_batch=b1, inner_batch=b2, epsilon=epsilon, diameter=d)
        eta, tau, steps = 1 / got.lr, 1 / got.gamma - 1, got.steps
        v, slope = c.sigma2 / b2, math.sqrt(c.c_g**2 + c.zeta2 / b2)
        terms = [
            n * (c.c_f * c.c_g * d + c.l_f * v) / (b1 * steps),
            n * c.c_f**2 * c.c_g * slope / (eta * b1),
            tau * n * c.l_f * (c.c_g**2 * d**2 + v) / (2 * b1 * steps),
            c.l_f * v / tau if tau else 0.0,
            c.c_f**2 * c.c_g**2 / eta,
            c.c_f**2 * (c.zeta2 + c.c_g**2) / (eta * min(b1, b2)),
            eta * d**2 / (2 * steps),
            b1 * c.l_f * c.c_g**2 * d**2 / (n * tau) if tau else 0.0,
        ]
        assert got.beta == 1
        assert max(terms) <= epsilon / 8 * (1 + 1e-6)
        # One of the first, third and seventh terms is tight, so there is no step too many.
        assert max(terms[0], terms[2], terms[6]) * steps / max(steps - 1, 0.5) > epsilon / 8 * (1 - 1e-6)
        # One of the terms that eta bounds is tight, and one that tau bounds, so neither is too large.
        assert max(terms[1], terms[4], terms[5]) == pytest.approx(epsilon / 8)
        if c.l_f:
            assert max(terms[3], terms[7]) == pytest.approx(epsilon / 8)
        else:
            assert tau == 0


@pytest.mark.parametrize(("change", "exponent"), [({"epsilon": 0.5}, 2), ({"n": 2}, 1), ({"outer_batch": 2}, -1)])
def test_the_order_of_theorem_5(change, exponent):
    sizes = {"n": 10**6, "outer_batch": 8, "inner_batch": 8, "epsilon": 1e-3, "diameter": 1.0}
    changed = {**sizes, **{name: type(sizes[name])(sizes[name] * factor) for name, factor in change.items()}}
    assert projected(PLAIN, **changed).steps / projected(PLAIN, **sizes).steps == pytest.approx(2**exponent, rel=1e-3)


@pytest.mark.parametrize("t", [0, 1, 17])
def test_theorem_7(t):
    schedule = strongly_convex(n=30, outer_batch=4, mu=0.2)
    tau = 4 / 30 * (t + 1)
    assert schedule.lr(t) == pytest.approx(1 / (0.2 * (t + 1)))
    assert schedule.gamma(t) == pytest.approx(1 / (1 + tau))


def bound_of_theorem_7(c, steps, *, n, outer_batch, inner_batch, mu, c_r, diameter):
    """Return what the proof bounds the excess and the squared distance by, term by term."""
    p, d, v = outer_batch / n, diameter, c.sigma2 / inner_batch
    harmonic = 1 + math.log(steps)
    slope = math.sqrt(c.c_g**2 + c.zeta2 / inner_batch)
    terms = [
        mu * d**2 / 2,  # the distance of the start
        p * c.c_f * c.c_g * d,  # the first change of the table
        c_r * d,  # R at the start minus R at the end
        (1 + p) / p * c.l_f / 2 * (v + c.c_g**2 * d**2),  # the divergence of the first table
        c.l_f * v / (2 * p),  # the dual gap of the first table
        min(c.l_f * c.c_g**2 * d**2 / 2, c.c_f * c.c_g * d) / p,  # that of the last one
        2 * c.c_f**2 * (c.zeta2 + c.c_g**2) / min(outer_batch, inner_batch) * harmonic / mu,  # noise of the gradient
        2 * c.c_f**2 * c.c_g**2 * harmonic / mu,  # the steps of w
        (1 - p) / p * c.c_f * c.c_g * (c.c_f * slope + c_r) * harmonic / mu,  # rows that are not drawn lag behind
        c.l_f * c.c_g**2 * d**2 / 2 * harmonic,  # the table moves
        c.l_f * v / p * harmonic,  # noise of the table
    ]
    return max(1 + c.l_f * c.c_g**2 / mu, 2 / mu) * sum(terms) / steps


@pytest.mark.parametrize(("n", "b1", "b2"), [(1, 1, 1), (40, 40, 3), (400, 7, 90)])
@pytest.mark.parametrize("epsilon", [0.01, 3.0, 1e6])
def test_the_steps_of_theorem_7(n, b1, b2, epsilon):
    sizes = {"n": n, "outer_batch": b1, "inner_batch": b2, "mu": 0.3, "c_r": 0.7, "diameter": 1.7}
    for c in grid():
        steps = strongly_convex_steps(c, epsilon=epsilon, **sizes)
        assert bound_of_theorem_7(c, steps, **sizes) <= epsilon * (1 + 1e-6)
        assert steps == 1 or bound_of_theorem_7(c, steps - 1, **sizes) > epsilon * (1 - 1e-6)


def test_theorem_7_bounds_a_run():
    """f(u) = softplus(u), g_i(w) = a_i w + noise and R = mu/2 w^2 on [-1, 1], over many runs at once."""
    rng = np.random.default_rng(0)
    n, outer_batch, inner_batch, mu, sigma, runs, steps = 4, 2, 1, 0.5, 0.5, 400, 200
    a = np.array([1.0, -0.8, 0.6, 0.9])
    slope = lambda u: 1 / (1 + np.exp(-u))  # noqa: E731
    best = 0.0
    for _ in range(200):  # the minimiser is a fixed point
        best = -np.mean(a * slope(a * best)) / mu
    assert abs(best) < 1
    schedule = strongly_convex(n=n, outer_batch=outer_batch, mu=mu)
    constants = Constants(c_f=1.0, l_f=0.25, c_g=1.0, l_g=0.0, sigma2=sigma**2, zeta2=0.0)
    sizes = {"n": n, "outer_batch": outer_batch, "inner_batch": inner_batch, "mu": mu, "c_r": mu, "diameter": 2.0}
    w = np.ones(runs)
    u = a * w[:, None] + sigma * rng.standard_normal((runs, n))
    every = np.arange(runs)[:, None]
    average = np.zeros(runs)
    value = lambda w: np.logaddexp(0, a * w[:, None]).mean(1) + mu / 2 * w**2  # noqa: E731
    for t in range(steps):
        average += (w - average) / (t + 1)
        rows = rng.permuted(np.tile(np.arange(n), (runs, 1)), axis=1)[:, :outer_batch]
        found = a[rows] * w[:, None] + sigma * rng.standard_normal(rows.shape)
        gradient = (slope(u[every, rows]) * a[rows]).mean(1)
        u[every, rows] += schedule.gamma(t) * (found - u[every, rows])
        w = np.clip((w - schedule.lr(t) * gradient) / (1 + schedule.lr(t) * mu), -1, 1)
        reached = max(np.mean((w - best) ** 2), np.mean(value(average)) - value(np.array([best]))[0])
        assert reached <= bound_of_theorem_7(constants, t + 1, **sizes)
    assert reached < 0.01  # and the run converges


def test_the_convex_theorems_need_an_exact_f():
    stochastic = replace(PLAIN, chi2=0.5)
    sizes = {"n": 4, "outer_batch": 2, "inner_batch": 2, "epsilon": 0.1, "diameter": 1.0}
    with pytest.raises(ValueError, match=r"Theorem 5 does not cover a stochastic f: chi2 must be 0; got 0\.5"):
        projected(stochastic, **sizes)
    with pytest.raises(ValueError, match="Theorem 7 does not cover a stochastic f"):
        strongly_convex_steps(stochastic, mu=0.1, c_r=0.1, **sizes)
