import math
from dataclasses import replace
from itertools import product

import pytest

from fcco.theory import Constants, sox, split_batch, tracking_error

PLAIN = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=1.0, sigma2=1.0, zeta2=1.0)
SIZES = {"n": 1000, "outer_batch": 20, "inner_batch": 10, "epsilon": 0.01, "gap": 2.0}


def grid():
    for c_f, l_f, c_g, l_g, sigma2, zeta2 in product(
        (0.3, 2.0), (0.1, 3.0), (0.5, 4.0), (0.0, 1.0), (0.0, 0.7), (0, 2)
    ):
        yield Constants(c_f=c_f, l_f=l_f, c_g=c_g, l_g=l_g, sigma2=sigma2, zeta2=float(zeta2))


def test_smoothness():
    assert Constants(c_f=2.0, l_f=3.0, c_g=5.0, l_g=7.0, sigma2=0.0, zeta2=0.0).smoothness == 2 * 7 + 5**2 * 3


def test_theorem_3_by_hand():
    c = Constants(c_f=2.0, l_f=3.0, c_g=5.0, l_g=7.0, sigma2=11.0, zeta2=13.0)
    got = sox(c, n=100, outer_batch=4, inner_batch=6, epsilon=0.1, gap=17.0)
    c1 = math.sqrt(5**2 + 13 / 6)
    assert got.beta == pytest.approx(4 * 0.1**2 / (12 * 2**2 * (13 + 5**2)))
    assert got.gamma == pytest.approx(min(6 * 0.1**2 / (240 * 3**2 * c1**2 * 11), 5 * 100 / (3 * 4) * got.beta))
    assert got.lr == pytest.approx(min(got.beta / (4 * 89), got.gamma * 4 / (30 * 3 * 100 * c1 * 5)))
    start = 17 + 2**2 * 5**2 / (4 * 89) + 2 * 3 * c1 * 11 / (3 * 5 * 6)
    assert got.steps == math.ceil(6 * start / (got.lr * 0.1**2))


@pytest.mark.parametrize(
    ("change", "sizes", "field", "expected"),
    [
        ({}, {"epsilon": 100.0}, "beta", 2 / 7),
        ({}, {"epsilon": 0.1}, "beta", 10 * 0.1**2 / (12 * 2)),
        ({"sigma2": 0.0}, {"epsilon": 100.0}, "gamma", 1 / 5),
        ({"sigma2": 100.0}, {"epsilon": 0.1}, "gamma", 10 * 0.1**2 / (240 * (1 + 1 / 10) * 100)),
        ({"sigma2": 0.0}, {"n": 20, "epsilon": 0.1}, "gamma", 5 / 3 * 10 * 0.1**2 / (12 * 2)),
        ({"l_f": 0.0}, {"epsilon": 100.0}, "lr", 2 / 7 / 4),
        ({"l_f": 1e-6}, {"epsilon": 100.0}, "lr", 2 / 7 / (4 * (1 + 1e-6))),
        ({"sigma2": 0.0}, {"epsilon": 100.0}, "lr", 1 / 5 * 20 / (30 * 1000 * math.sqrt(1.1))),
    ],
)
def test_each_bound_of_theorem_3_can_be_the_active_one(change, sizes, field, expected):
    got = sox(replace(PLAIN, **change), **{**SIZES, **sizes})
    assert getattr(got, field) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "b1", "b2"), [(1, 1, 1), (50, 50, 3), (400, 7, 90)])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 10.0])
def test_the_six_terms_of_the_paper_are_the_steps(n, b1, b2, epsilon):
    for c in grid():
        c1, smaller = math.sqrt(c.c_g**2 + c.zeta2 / b2), min(b1, b2)
        noise = c.c_f**2 * (c.zeta2 + c.c_g**2) / (smaller * epsilon**2)
        start = 0.5 + c.c_f**2 * c.c_g**2 / (4 * c.smoothness) + 2 * c.l_f * c1 * c.sigma2 / (3 * c.c_g * b2)
        terms = (
            48 * noise * c.smoothness,
            14 * c.smoothness,
            7200 * n * c.l_f**3 * c1**3 * c.c_g * c.sigma2 / (b1 * b2 * epsilon**2),
            150 * c.l_f * n * c1 * c.c_g / b1,
            63 * c.l_f * c1 * c.c_g,
            216 * c.l_f * c1 * c.c_g * noise,
        )
        got = sox(c, n=n, outer_batch=b1, inner_batch=b2, epsilon=epsilon, gap=0.5)
        assert got.steps == pytest.approx(6 * start / epsilon**2 * max(terms), rel=1e-9, abs=1)


def test_the_choice_meets_every_condition_of_the_proof():
    n, b1, b2, epsilon, gap = 300, 8, 5, 0.2, 1.5
    for c in grid():
        got = sox(c, n=n, outer_batch=b1, inner_batch=b2, epsilon=epsilon, gap=gap)
        c1 = math.sqrt(c.c_g**2 + c.zeta2 / b2)
        slack = 1 + 1e-9
        assert got.beta <= 2 / 7
        assert got.gamma <= min(1 / 5, 5 * n / (3 * b1) * got.beta) * slack
        of_v = (
            2 * (c.smoothness * got.lr / got.beta) ** 2
            + 100 * (c.l_f * n * c1 * got.lr * c.c_g / (got.gamma * b1)) ** 2
        )
        assert of_v <= 1 / 4
        start = gap + got.lr / got.beta * (c.c_f * c.c_g) ** 2
        start += 20 * (c.l_f * c1) ** 2 * n * got.lr / (got.gamma * b1) * c.sigma2 / b2
        gradient2 = 2 * start / (got.lr * got.steps)
        gradient2 += 4 * got.beta * c.c_f**2 * (c.zeta2 + c.c_g**2) / min(b1, b2)
        gradient2 += 80 * got.gamma * (c.l_f * c1) ** 2 * c.sigma2 / b2
        assert gradient2 <= epsilon**2 * slack


@pytest.mark.parametrize(
    ("change", "exponent"),
    [({"epsilon": 1 / 2}, 4), ({"n": 2}, 1), ({"outer_batch": 2}, -1), ({"inner_batch": 2}, -1)],
)
def test_the_order_of_theorem_3(change, exponent):
    # Noise in u alone, small enough to leave the start as it is.
    c = replace(PLAIN, zeta2=0.0, sigma2=1e-3, c_f=1e-3)
    sizes = {"n": 10**6, "outer_batch": 8, "inner_batch": 8, "epsilon": 1e-4, "gap": 1.0}
    changed = {**sizes, **{name: type(sizes[name])(sizes[name] * factor) for name, factor in change.items()}}
    assert sox(c, **changed).steps / sox(c, **sizes).steps == pytest.approx(2**exponent, rel=1e-3)


@pytest.mark.parametrize("small", ["outer_batch", "inner_batch"])
def test_the_smaller_batch_bounds_the_noise_of_the_gradient(small):
    c = replace(PLAIN, sigma2=0.0, l_f=0.0, zeta2=0.0)
    sizes = {"n": 64, "outer_batch": 64, "inner_batch": 64, "epsilon": 0.01, "gap": 1.0, small: 4}
    assert sox(c, **{**sizes, small: 8}).steps == pytest.approx(sox(c, **sizes).steps / 2, rel=1e-6)


@pytest.mark.parametrize("gamma", [0.01, 0.2, 0.5, 1.0])
@pytest.mark.parametrize(("n", "b1", "b2"), [(1, 1, 1), (10, 3, 2), (100, 1, 8)])
def test_lemma_1_bounds_the_exact_expectation(gamma, n, b1, b2):
    for error, step, sigma2 in product((0.0, 1e-3, 1.0), (0.0, 1e-3, 0.1, 1.0), (0.0, 0.5)):
        c = replace(PLAIN, c_g=2.0, sigma2=sigma2)
        # The worst case: g moves by c_g times the step, away from u.
        before = (math.sqrt(error) + c.c_g * step) ** 2
        variance = sigma2 / b2
        after = before + b1 / n * ((1 - gamma) ** 2 * before + gamma**2 * variance - before)
        moved2 = b1 * gamma**2 * (before + variance)
        bound = tracking_error(
            c, error, n=n, outer_batch=b1, inner_batch=b2, gamma=gamma, lr=step, direction2=1.0, moved2=moved2
        )
        assert after <= bound + 1e-12


def test_lemma_1_by_hand():
    got = tracking_error(
        replace(PLAIN, c_g=3.0, sigma2=5.0),
        7.0,
        n=10,
        outer_batch=4,
        inner_batch=2,
        gamma=0.1,
        lr=0.01,
        direction2=11.0,
        moved2=0.5,
    )
    expected = (1 - 0.1 * 4 / 40) * 7 + 5 * 10 * 0.01**2 * 3**2 * 11 / (0.1 * 4)
    expected += 2 * 0.1**2 * 5 * 4 / (10 * 2) - 0.5 / 40
    assert got == pytest.approx(expected)


@pytest.mark.parametrize(
    ("budget", "n", "expected"),
    [(2, 1, (1, 1)), (64, 100, (32, 32)), (65, 100, (32, 33)), (64, 20, (20, 44)), (100, 1, (1, 99))],
)
def test_half_and_half_where_n_allows_it(budget, n, expected):
    assert split_batch(budget, n=n) == expected


def test_the_split_by_constants_has_the_fewest_steps():
    c = Constants(c_f=1.0, l_f=0.5, c_g=1.0, l_g=1.0, sigma2=0.3, zeta2=4.0)
    target = {"n": 12, "epsilon": 0.3, "gap": 1.0}
    outer, inner = split_batch(30, constants=c, **target)
    steps = {b: sox(c, outer_batch=b, inner_batch=30 - b, **target).steps for b in range(1, 13)}
    assert outer + inner == 30
    assert steps[outer] == min(steps.values())


def test_without_noise_the_outer_batch_takes_all():
    c = Constants(c_f=1.0, l_f=10.0, c_g=1.0, l_g=1.0, sigma2=0.0, zeta2=0.0)
    assert split_batch(32, n=1000, constants=c, epsilon=10.0, gap=1.0) == (31, 1)


def test_among_splits_that_need_as_many_steps_the_most_even_is_taken():
    c = Constants(c_f=1.0, l_f=0.0, c_g=1.0, l_g=1.0, sigma2=0.0, zeta2=0.0)
    sizes = {"n": 1000, "epsilon": 100.0, "gap": 1.0}
    assert len({sox(c, outer_batch=b, inner_batch=32 - b, **sizes).steps for b in range(1, 32)}) == 1
    assert split_batch(32, constants=c, **sizes) == (16, 16)


@pytest.mark.parametrize(("b1", "b2", "b3"), [(1, 1, 1), (2, 1, 2), (1, 2, 2), (2, 2, 1)])
def test_the_variance_with_a_stochastic_f_by_enumeration(b1, b2, b3):
    """Two rows; f'_i and the gradient of g_i each take two values, drawn with replacement and independently."""
    outer, inner = ((0.5, -1.5), (1.0, 2.0)), ((1.0, 3.0), (-2.0, 0.5))
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    variance = lambda values: mean([(x - mean(values)) ** 2 for x in values])  # noqa: E731
    c = Constants(
        c_f=max(abs(mean(pair)) for pair in outer),
        l_f=1.0,
        c_g=max(abs(mean(pair)) for pair in inner),
        l_g=0.0,
        sigma2=0.0,
        zeta2=max(map(variance, inner)),
        chi2=max(map(variance, outer)),
    )

    def row_estimates(i):
        return [mean(f) * mean(g) for f in product(outer[i], repeat=b3) for g in product(inner[i], repeat=b2)]

    batches = [mean(draw) for rows in product(range(2), repeat=b1) for draw in product(*map(row_estimates, rows))]
    assert variance(batches) <= c.gradient_variance(b1, b2, b3)
    assert mean(batches) == pytest.approx(mean([mean(f) * mean(g) for f, g in zip(outer, inner, strict=True)]))


def test_the_samples_of_a_stochastic_f_enter_beta():
    c = replace(PLAIN, chi2=0.5)
    got = sox(c, **SIZES, outer_samples=4)
    assert got.beta == pytest.approx(0.01**2 * 4 / (12 * ((1 + 0.5 / 4) * 2 + 0.5)))
    assert sox(PLAIN, **SIZES, outer_samples=4) == sox(PLAIN, **SIZES)
