import math
from dataclasses import astuple, replace
from itertools import product

import pytest

from fcco.theory import Constants, boost_constants, convexifier, sox_boost

PLAIN = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=1.0, sigma2=1.0, zeta2=1.0)
SLACK = 1 + 1e-9


def grid():
    for c_f, l_f, c_g, sigma2, zeta2 in product((0.3, 2.0), (0.0, 0.1, 3.0), (0.5, 4.0), (0.0, 0.7), (0.0, 2.0)):
        yield Constants(c_f=c_f, l_f=l_f, c_g=c_g, l_g=1.0, sigma2=sigma2, zeta2=zeta2)


def derived(c, b2, smoothness):
    c1 = math.sqrt(c.c_g**2 + c.zeta2 / b2)
    c4 = min(1 / (4 * smoothness), 1 / (18 * c.l_f * c1 * c.c_g) if c.l_f else math.inf)
    return c1, 2 * c.c_f**2 * (c.zeta2 + c.c_g**2), 40 * c.l_f**2 * c1**2 * c.sigma2, c4, 24 * c.l_f**2 * c1**2


def test_the_stages_by_hand():
    c = Constants(c_f=2.0, l_f=3.0, c_g=5.0, l_g=7.0, sigma2=11.0, zeta2=13.0)
    n, b1, b2, mu = 100, 4, 6, 0.5
    c1, c2, c3, c4, c5 = derived(c, b2, 2 * 7 + 25 * 3)
    first = max(1.0, c4 * (2**2 * 5**2 + c5 * 11 / 6))
    stages = sox_boost(c, n=n, outer_batch=b1, inner_batch=b2, epsilon=1e-3, gap=1.0, mu=mu)
    assert c1 == math.sqrt(25 + 13 / 6)
    assert len(stages) == math.ceil(math.log2(first / 1e-3))
    for k, stage in enumerate(stages):
        target = first / 2**k
        lr = min(
            mu * c4 * 4 * target / (6 * c2),
            4 * target / (69 * c2),
            mu * c4 * 24 * target / (10 * n * c3),
            24 * target / (163 * n * c3),
            3 * 4 * c4 / (25 * n),
            2 * c4 / 7,
        )
        assert stage.lr == pytest.approx(lr)
        assert stage.beta == pytest.approx(lr / c4)
        assert stage.gamma == pytest.approx(5 * n * lr / (3 * 4 * c4))
        assert stage.steps == math.ceil(max(12 / mu, 109 * c4) / stage.lr)


@pytest.mark.parametrize(("n", "b1", "b2"), [(1, 1, 1), (40, 40, 3), (400, 7, 90)])
@pytest.mark.parametrize("mu", [1e-3, 0.05])
def test_every_stage_halves_both_errors(n, b1, b2, mu):
    for c in grid():
        c1, c2, c3, c4, c5 = derived(c, b2, c.smoothness)
        stages = sox_boost(c, n=n, outer_batch=b1, inner_batch=b2, epsilon=0.01, gap=1.0, mu=mu)
        target = max(1.0, c4 * (c.c_f**2 * c.c_g**2 + c5 * c.sigma2 / b2))
        for s in stages:
            assert s.beta <= 2 / 7 * SLACK
            assert s.gamma <= min(1 / 5, 5 * n / (3 * b1) * s.beta) * SLACK
            assert s.lr <= s.beta / (4 * c.smoothness) * SLACK
            assert s.lr * 30 * c.l_f * n * c1 * c.c_g <= s.gamma * b1 * SLACK
            # Theorem 3, from a gap and C_4 times an error of v and u of at most target each.
            of_v, of_u = s.beta * c2 / min(b1, b2), s.gamma * c3 / b2
            gradient2 = 4 * target / (s.lr * s.steps) + 2 * of_v + 2 * of_u
            assert gradient2 / (2 * mu) <= target / 2 * SLACK
            # The error contracts by 1 - 5/24 beta a step, and is fed by 25/36 beta |grad F|^2 and the noise.
            error = 24 / 5 * (target / (c4 * s.beta * s.steps) + 25 / 36 * gradient2 + of_v + 2 * of_u)
            assert error <= target / (2 * c4) * SLACK
            target /= 2
        assert target <= 0.01


def errors_of_a_stage(decay, of_v, of_u, mu):
    """|F - F*| and the error of v and u after a stage, as the proof bounds them.

    ``decay`` is the target over lr * steps, the others are the noise of v and of u. See the tests above and below.
    """
    gradient2 = 4 * decay + 2 * of_v + 2 * of_u
    return gradient2 / (2 * mu), 24 / 5 * (decay + 25 / 36 * gradient2 + of_v + 2 * of_u)


def largest_step(c, n, b1, b2, mu, target):
    """Bounds of lr, and lr * steps, that leave a sixth of the target to each of three causes of both errors."""
    _, c2, c3, c4, _ = derived(c, b2, c.smoothness)

    def most(*unit):
        gap, error = errors_of_a_stage(*unit, mu)
        return target / 6 / gap, target / 6 / c4 / error

    progress = max(target / bound for bound in most(1, 0, 0))
    of_v = [c4 * bound * min(b1, b2) / c2 for bound in most(0, 1, 0)]
    of_u = [c4 * bound * b2 / c3 * 3 * b1 / (5 * n) if c3 else math.inf for bound in most(0, 0, 1)]
    return [*of_v, *of_u, c4 * 3 * b1 / (5 * n) / 5], progress  # the last: gamma <= 1/5


def test_no_stage_is_longer_than_the_proof_asks_for():
    """Constants are rounded up to integers: 68.8 to 69, 162.7 to 163 and 108.8 to 109."""
    active = set()
    for (n, b1, b2), share, c in product([(1, 1, 1), (40, 40, 3), (400, 7, 90)], (1e-3, 0.1, 1.0), grid()):
        mu, sizes = share * c.smoothness, {"n": n, "outer_batch": b1, "inner_batch": b2}
        stages = sox_boost(c, **sizes, epsilon=1e-3, gap=1.0, mu=mu)
        _, _, _, c4, c5 = derived(c, b2, c.smoothness)
        first = max(1.0, c4 * (c.c_f**2 * c.c_g**2 + c5 * c.sigma2 / b2))
        for k, stage in enumerate(stages):
            bounds, progress = largest_step(c, n, b1, b2, mu, first / 2**k)
            active.add(min(range(5), key=bounds.__getitem__))
            assert 0.995 * min(bounds) <= stage.lr <= min(bounds) * SLACK
            assert 0.995 * (stage.steps - 1) * stage.lr < progress < stage.steps * stage.lr * SLACK
    assert active == set(range(5))


@pytest.mark.parametrize("weight_decay", [0.0, 2.0])
def test_the_first_stage_covers_the_error_of_a_gradient_estimate_of_zero(weight_decay):
    """v starts at 0, so its square error is |grad F|^2: for a parabola of curvature L_F, 2 L_F (F - F*)."""
    c = Constants(c_f=1.0, l_f=0.5, c_g=1.0, l_g=0.1, sigma2=400.0, zeta2=0.0)
    curvature, at = c.smoothness + weight_decay, 1.5
    gap = curvature / 2 * at**2
    gradient2 = (curvature * at) ** 2 if weight_decay else (c.c_f * c.c_g) ** 2
    _, _, _, c4, c5 = derived(c, 1, curvature)
    needed = c4 * (gradient2 + c5 * c.sigma2)
    assert needed > gap

    def first_lr(epsilon):
        sizes = {"n": 50, "outer_batch": 1, "inner_batch": 1}
        return sox_boost(c, **sizes, epsilon=epsilon, gap=gap, mu=0.1, weight_decay=weight_decay)[0].lr

    # lr is proportional to the target, which is epsilon where that is larger.
    assert first_lr(2 * needed) == pytest.approx(2 * first_lr(needed))
    assert first_lr(1e-3) == pytest.approx(first_lr(needed))
    assert first_lr(1e-3) < first_lr(1.01 * needed)


def test_the_contraction_that_the_stages_rest_on():
    # Delta + W (1 - x/8) Xi with W = 24 L_f^2 C_1^2 and x = gamma B1 / n = 5/3 beta, at the largest step allowed.
    for beta in (1e-4, 0.1, 2 / 7):
        x = 5 / 3 * beta
        feed = 4 / 4**2 + 10 * 24 * (5 / 3 / 30) ** 2 / (5 / 3)
        assert 1 - beta + feed * beta <= 1 - 5 / 24 * beta
        assert feed == pytest.approx(25 / 36)
        assert (1 - x / 4) <= (1 - x / 8) * (1 - 5 / 24 * beta) * SLACK
        assert 24 * x / 8 == pytest.approx(5 * beta)


def test_a_good_start_has_one_stage():
    assert len(sox_boost(PLAIN, n=4, outer_batch=2, inner_batch=2, epsilon=100.0, gap=0.0, mu=0.1)) == 1


def test_the_order_of_theorem_4():
    c = replace(PLAIN, sigma2=1e-4, zeta2=0.0, c_f=1e-3)

    def last(**change):
        sizes = {"n": 10**4, "outer_batch": 4, "inner_batch": 4, "epsilon": 1e-7, "gap": 1.0, "mu": 1e-3}
        return sox_boost(c, **{**sizes, **change})[-1].steps

    base = last()
    assert last(epsilon=0.5e-7) / base == pytest.approx(2, rel=1e-3)
    assert last(mu=0.5e-3) / base == pytest.approx(4, rel=1e-3)
    assert last(n=2 * 10**4) / base == pytest.approx(2, rel=1e-3)
    assert last(outer_batch=8) / base == pytest.approx(1 / 2, rel=1e-3)
    assert last(inner_batch=8) / base == pytest.approx(1 / 2, rel=1e-3)


def test_weight_decay_adds_to_the_smoothness():
    sizes = {"n": 4, "outer_batch": 4, "inner_batch": 4, "epsilon": 100.0, "gap": 1.0, "mu": 0.5}
    c = replace(PLAIN, l_f=0.0)
    without, with_it = sox_boost(c, **sizes)[0], sox_boost(c, weight_decay=3.0, **sizes)[0]
    assert without.lr / without.beta == 1 / (4 * 1)
    assert with_it.lr / with_it.beta == 1 / (4 * (1 + 3))


def test_the_corollary_costs_as_much_as_it_allows():
    assert convexifier(0.3, 2.0) / 2 * 2.0**2 == pytest.approx(0.3)


@pytest.mark.parametrize("weight_decay", [0.0, 3.0])
def test_the_constants_of_the_appendix(weight_decay):
    for c in grid():
        found = boost_constants(c, inner_batch=6, weight_decay=weight_decay)
        assert astuple(found) == pytest.approx(derived(c, 6, c.smoothness + weight_decay))
