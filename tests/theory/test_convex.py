import math
from itertools import product

import pytest

from fcco.theory import Constants, projected, strongly_convex

PLAIN = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=1.0, sigma2=1.0, zeta2=1.0)


def grid():
    for c_f, l_f, c_g, sigma2, zeta2 in product((0.3, 2.0), (0.0, 0.1, 3.0), (0.5, 4.0), (0.0, 0.7), (0.0, 2.0)):
        yield Constants(c_f=c_f, l_f=l_f, c_g=c_g, l_g=1.0, sigma2=sigma2, zeta2=zeta2)


@pytest.mark.parametrize(("n", "b1", "b2"), [(1, 1, 1), (40, 40, 3), (400, 7, 90)])
@pytest.mark.parametrize("epsilon", [0.01, 3.0])
def test_the_gap_of_theorem_3(n, b1, b2, epsilon):
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
def test_the_order_of_theorem_3(change, exponent):
    sizes = {"n": 10**6, "outer_batch": 8, "inner_batch": 8, "epsilon": 1e-3, "diameter": 1.0}
    changed = {**sizes, **{name: type(sizes[name])(sizes[name] * factor) for name, factor in change.items()}}
    assert projected(PLAIN, **changed).steps / projected(PLAIN, **sizes).steps == pytest.approx(2**exponent, rel=1e-3)


@pytest.mark.parametrize("t", [0, 1, 17])
def test_theorem_4(t):
    schedule = strongly_convex(n=30, outer_batch=4, mu=0.2)
    tau = 4 / 30 * (t + 1)
    assert schedule.lr(t) == pytest.approx(1 / (0.2 * (t + 1)))
    assert schedule.gamma(t) == pytest.approx(1 / (1 + tau))
