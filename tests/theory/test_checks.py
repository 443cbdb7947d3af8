import math
import re
from dataclasses import asdict

import pytest

from fcco.theory import (
    Constants,
    boost_constants,
    complexities,
    convexifier,
    projected,
    sox,
    sox_boost,
    split_batch,
    strongly_convex,
    tracking_error,
)

PLAIN = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=1.0, sigma2=1.0, zeta2=1.0)
SIZES = {"n": 10, "outer_batch": 2, "inner_batch": 2}
CALLS = {
    "sox": lambda **k: sox(PLAIN, **{**SIZES, "epsilon": 0.1, "gap": 1.0, **k}),
    "sox_boost": lambda **k: sox_boost(PLAIN, **{**SIZES, "epsilon": 0.1, "gap": 1.0, "mu": 0.1, **k}),
    "projected": lambda **k: projected(PLAIN, **{**SIZES, "epsilon": 0.1, "diameter": 1.0, **k}),
    "strongly_convex": lambda **k: strongly_convex(**{"n": 10, "outer_batch": 2, "mu": 0.1, **k}),
    "complexities": lambda **k: complexities(**{**SIZES, "epsilon": 0.1, "mu": 0.1, **k}),
    "tracking_error": lambda **k: tracking_error(
        PLAIN, **{**SIZES, "error": 1.0, "gamma": 0.1, "lr": 0.1, "direction2": 1.0, **k}
    ),
    "convexifier": lambda **k: convexifier(**{"epsilon": 0.1, "radius": 1.0, **k}),
    "split_batch": lambda **k: split_batch(**{"budget": 4, "n": 10, **k}),
}
WITH_SIZES = ["sox", "sox_boost", "projected", "strongly_convex", "complexities", "tracking_error"]
WITH_EPSILON = ["sox", "sox_boost", "projected", "complexities", "convexifier"]


@pytest.mark.parametrize("name", CALLS)
def test_the_calls_themselves_are_fine(name):
    CALLS[name]()


@pytest.mark.parametrize("name", WITH_EPSILON)
@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_epsilon(name, epsilon):
    with pytest.raises(ValueError, match=f"epsilon must be positive and finite; got {epsilon!r}"):
        CALLS[name](epsilon=epsilon)


@pytest.mark.parametrize("name", ["sox", "sox_boost", "projected"])
def test_an_epsilon_too_small_to_count_the_steps(name):
    with pytest.raises(ValueError, match="epsilon is too small"):
        CALLS[name](epsilon=1e-320 if name != "sox" else 1e-170)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sox", {"epsilon": 1e300}),
        ("sox", {"gap": 1e308}),
        ("sox_boost", {"gap": 1e308, "weight_decay": 1e10}),
        ("projected", {"diameter": 1e200}),
        ("complexities", {"epsilon": 1e-80}),
        ("complexities", {"mu": 1e-200}),
        ("convexifier", {"epsilon": 1e-300, "radius": 1e-200}),
        ("tracking_error", {"lr": 1e300}),
    ],
)
def test_numbers_beyond_floating_point(name, change):
    with pytest.raises(ValueError, match=r"beyond floating point|more steps than can be counted"):
        CALLS[name](**change)


@pytest.mark.parametrize(("epsilon", "radius", "mu"), [(1e-300, 1e100, 0.0), (1e300, 1e-10, math.inf)])
def test_a_convexifier_that_is_no_mu(epsilon, radius, mu):
    with pytest.raises(ValueError, match=rf"2 epsilon / radius\^2 must be positive and finite; got {mu}"):
        convexifier(epsilon, radius)


@pytest.mark.parametrize("theorem", [sox, projected])
@pytest.mark.parametrize("constant", [name for name in asdict(PLAIN) if name != "chi2"])
def test_constants_beyond_floating_point(theorem, constant):
    """They raise a ValueError, in the theorem at the latest, or give finite parameters."""
    target = {"gap": 1.0} if theorem is sox else {"diameter": 1.0}

    def outcome(value):
        try:
            return theorem(Constants(**{**asdict(PLAIN), constant: value}), **SIZES, epsilon=0.1, **target)
        except ValueError as refused:
            return str(refused)

    for found in map(outcome, (1e160, 1e300)):
        if isinstance(found, str):
            assert re.search("beyond floating point|more steps than can be counted", found)
        else:
            assert all(map(math.isfinite, asdict(found).values()))


@pytest.mark.parametrize("name", WITH_EPSILON)
@pytest.mark.parametrize("epsilon", ["a", None, True, [0.1]])
def test_epsilon_is_a_number(name, epsilon):
    with pytest.raises(TypeError, match=r"epsilon must be a number; got"):
        CALLS[name](epsilon=epsilon)


def test_a_batch_of_the_constants_is_whole():
    with pytest.raises(TypeError, match=r"inner_batch must be an integer; got 2\.5"):
        boost_constants(PLAIN, inner_batch=2.5)


@pytest.mark.parametrize("name", WITH_SIZES)
def test_more_outer_examples_than_there_are(name):
    with pytest.raises(ValueError, match="outer_batch must not exceed n = 10; got 11"):
        CALLS[name](outer_batch=11)


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (name, argument)
        for name in WITH_SIZES
        for argument in SIZES
        if (name, argument) != ("strongly_convex", "inner_batch")
    ],
)
def test_sizes_are_integers(name, argument):
    with pytest.raises(TypeError, match=f"{argument} must be an integer; got 2.5"):
        CALLS[name](**{argument: 2.5})
    with pytest.raises(ValueError, match=f"{argument} must be at least 1; got 0"):
        CALLS[name](**{argument: 0})


@pytest.mark.parametrize("name", ["sox_boost", "strongly_convex", "complexities"])
@pytest.mark.parametrize("mu", [0.0, -1.0])
def test_mu(name, mu):
    with pytest.raises(ValueError, match=f"mu must be positive and finite; got {mu}"):
        CALLS[name](mu=mu)


def test_mu_beyond_the_smoothness():
    with pytest.raises(ValueError, match=r"mu must not exceed the smoothness L_F = 2; got 2\.5"):
        CALLS["sox_boost"](mu=2.5)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("sox", "gap", -1.0),
        ("sox_boost", "gap", -1.0),
        ("sox_boost", "weight_decay", -1.0),
        ("projected", "diameter", 0.0),
        ("convexifier", "radius", 0.0),
        ("tracking_error", "gamma", 0.0),
        ("tracking_error", "gamma", 1.5),
        ("tracking_error", "error", -1.0),
        ("tracking_error", "moved2", -1.0),
        ("split_batch", "budget", 1),
    ],
)
def test_other_values(name, argument, value):
    with pytest.raises(ValueError, match=f"{argument} must .*got {value}"):
        CALLS[name](**{argument: value})


@pytest.mark.parametrize("constant", asdict(PLAIN))
def test_constants(constant):
    with pytest.raises(ValueError, match=f"{constant} must .*got -1.0"):
        Constants(**{**asdict(PLAIN), constant: -1.0})
    with pytest.raises(TypeError, match=f"{constant} must be a number; got 'x'"):
        Constants(**{**asdict(PLAIN), constant: "x"})


@pytest.mark.parametrize("constant", ["c_f", "c_g"])
def test_slopes_are_positive(constant):
    with pytest.raises(ValueError, match=f"{constant} must be positive"):
        Constants(**{**asdict(PLAIN), constant: 0.0})


def test_a_linear_objective():
    with pytest.raises(ValueError, match="F would be linear"):
        Constants(c_f=1.0, l_f=0.0, c_g=1.0, l_g=0.0, sigma2=1.0, zeta2=0.0)


def test_the_target_of_a_split_needs_constants():
    with pytest.raises(TypeError, match="together or not at all"):
        split_batch(4, n=10, epsilon=0.1, gap=1.0)
    with pytest.raises(TypeError, match="together or not at all"):
        split_batch(4, n=10, constants=PLAIN)
