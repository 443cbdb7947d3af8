"""Surrogates, outer functions and the arithmetic of inner values, against formulas and autograd."""

import math

import numpy as np
import pytest
import torch

from core.compare import LIBRARIES, SURROGATES, assert_close
from fcco.core import outers
from fcco.core.arrays import counted
from fcco.core.spaces import LOG, PLAIN
from fcco.core.surrogates import as_surrogate

FAR = torch.tensor([-800.0, -90.0, -7.3, -4.0, -1.2, -0.3, 0.0, 0.4, 3.9, 4.1, 7.7, 90.0, 700.0], dtype=torch.double)
AT_SELF = {"ramp": 1.0, "sigmoid": 1.0, "squared_hinge": 0.49, "hinge": 0.7, "logistic": math.log(2), "exp": 1.0}


def slope_of(function, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf)[0]


@pytest.mark.parametrize("name", [*AT_SELF, torch.cosh], ids=[*AT_SELF, "cosh"])
def test_surrogates(name):
    surrogate, formula = as_surrogate(name, 0.7), SURROGATES.get(name, torch.cosh)
    for to in LIBRARIES.values() if surrogate.arrays else [torch.as_tensor]:
        value, slope = surrogate(to(FAR.numpy()))
        np.testing.assert_allclose(value, formula(FAR), rtol=1e-14)
        np.testing.assert_allclose(slope, slope_of(formula, FAR), rtol=1e-13)
    assert surrogate.self_value == pytest.approx(AT_SELF.get(name, 1.0), rel=1e-7)
    assert (surrogate.bounded, surrogate.log) == (name in ("ramp", "sigmoid"), name == "exp")
    assert as_surrogate(surrogate) is surrogate


def test_names_of_surrogates():
    assert as_surrogate("exponential") == as_surrogate("exp", 3.0)
    assert as_surrogate(torch.cosh).name == "cosh"
    for error, arguments, words in (
        (ValueError, ("steep",), "'steep'"),
        (TypeError, (3,), "int"),
        (ValueError, ("hinge", -1.0), "-1.0"),
        (ValueError, ("squared_hinge", math.inf), "inf"),
    ):
        with pytest.raises(error, match=words):
            as_surrogate(*arguments)
    with pytest.raises(ValueError, match="elementwise"):
        as_surrogate(torch.sum)(FAR)


def discount(u, k):
    return -1 / torch.log2(1 + u) * (1 if k is None else torch.sigmoid(-2.0 * (u - k - 0.5)))


OUTERS = {
    "share": (outers.Share, lambda u: -u[:, 0] / u.sum(1)),
    "likelihood": (lambda log: outers.Share(log, likelihood=True), lambda u: -(u[:, 0] / u.sum(1)).log()),
    "power": (lambda log: outers.Power(2.5, log), lambda u: u**2.5),
    "discount": (outers.Discount, lambda u: discount(u, None)),
    "top": (lambda log: outers.Discount(log, k=3), lambda u: discount(u, 3)),
    "linear": (lambda log: outers.Linear(), lambda u: u),
    "logarithm": (lambda log: outers.Logarithm(0.5), lambda u: 0.5 * u),
    "logarithms": (lambda log: outers.Logarithm(2.0), lambda u: 2.0 * u.mean(1)),
}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("name", OUTERS)
def test_outers(name, log):
    (make, formula), keeps = OUTERS[name], name.startswith("l") and name != "likelihood"
    u = torch.rand((9, 2) if name in ("share", "likelihood", "logarithms") else 9, dtype=torch.double) * 5 + 0.1
    held, function = (u.log(), lambda x: formula(x if keeps else x.exp())) if log else (u, formula)
    for to in LIBRARIES.values():
        assert_close(make(log).value(to(held), None), function(held))
        assert_close(make(log).slope(to(held), None), slope_of(function, held))


@pytest.mark.parametrize("likelihood", [False, True])
@pytest.mark.parametrize(("log", "far"), [(True, 1e3), (True, -1e3), (False, 1e30), (False, 1e-30)])
def test_shares_of_extreme_values(log, far, likelihood):
    outer, one = outers.Share(log, likelihood), 0.0 if log else 1.0
    u = np.array([[far, one], [one, far], [far, far]])
    logs = u if log else np.log(u)
    expected = logs[:, 0] - np.logaddexp(*logs.T)
    for to in LIBRARIES.values():
        np.testing.assert_allclose(outer.value(to(u), None), -expected if likelihood else -np.exp(expected), atol=1e-16)
        slope = np.asarray(outer.slope(to(u), None))
        assert np.isfinite(slope).all()
        assert_close(slope[2], np.array([-1.0, 1.0]) / (2 if likelihood else 4) / (1 if log else far))


def test_ranks_and_powers_of_extreme_values():
    u = np.array([-30.0, 80.0, 800.0, 3000.0])
    for to in LIBRARIES.values():
        for k in (None, 3):
            outer = outers.Discount(True, k)
            assert np.isfinite(np.asarray(outer.slope(to(u), None))).all()
            assert_close(outer.value(to(u), None)[1:], -math.log(2) / u[1:] * (k is None), may_vanish=k == 3)
        assert_close(outers.Power(3.0, True).slope(to(np.array([-800.0, 200.0])), None), [0.0, 3 * math.exp(600.0)])


def test_outer_of_the_caller():
    u, rows = torch.rand(3, 2, dtype=torch.double), torch.tensor([4, 0, 2])
    for function, factor, sample in (
        (lambda u: (u**2).sum(1), torch.ones(3, 1), None),
        (lambda u, index: (u**2).sum(1) * index, rows[:, None], None),
        (lambda u, index, sample: (u**2).sum(1) * index * sample, rows[:, None] * 3.0, 3.0),
    ):
        outer = outers.FromFunction(function)
        assert_close(outer.slope(u, rows, sample), 2 * u * factor)
        assert_close(outer.value(u, rows, sample), ((u**2) * factor).sum(1))
    with pytest.raises(ValueError, match="differentiable"):
        outers.FromFunction(lambda u: u.detach().sum(1)).slope(u, rows)
    for wrong in (lambda u: u, lambda u: 1.0):
        with pytest.raises(ValueError, match=r"\[3, 2\] to \[3\]"):
            outers.FromFunction(wrong).value(u, rows)
    takes = [outers.takes_index(f) for f in (torch.log, lambda u, scale=1.0: u, lambda u, index=None: u)]
    assert takes == [False, False, True]


@pytest.mark.parametrize("to", LIBRARIES.values(), ids=LIBRARIES)
@pytest.mark.parametrize("shape", [(6,), (6, 2)])
def test_log_space_is_the_plain_one(shape, to):
    rng = np.random.RandomState(0)
    old, new, each = rng.rand(*shape) + 0.1, rng.rand(*shape) + 0.1, rng.rand(6, *(1,) * (len(shape) - 1))
    slot, weight = np.array([0, 1, 0, 2, 1, 0]), np.array([1.0, 2.0, 0.5, 0.0, 1.0, 3.0])
    total = np.bincount(slot, weight, 6)
    mean = np.stack([(weight * (slot == k)) @ new / max(total[k], 1) for k in range(6)])
    many = to(slot), to(weight), to(total)
    for space, a, b in ((PLAIN, to(old), to(new)), (LOG, to(np.log(old)), to(np.log(new)))):
        for got, expected in (
            (space.mix(a, b, 0.3), 0.7 * old + 0.3 * new),
            (space.mix(a, b, 1.0), new),
            (space.mix(a, b, to(each)), (1 - each) * old + each * new),
            (space.scale(a, 0.3), 0.3 * old),
            (space.scale(a, to(each)), each * old),
            (space.decay(a, to(np.log(each))), each * old),
            (space.floor(a, b, 0.9), np.maximum(old, 0.9 * new) if space is LOG else old),
            (space.group_mean(b, *many), mean),
        ):
            assert_close(np.exp(np.asarray(got)) if space is LOG else got, expected)
        assert_close(space.slope(to(each * new), b, a), each * new * (new / old if space is LOG else 1.0))
    assert (LOG.scale(a, 0.0) == -math.inf).all()
    assert LOG.value(0.0) == -math.inf
    assert LOG.value(2.0) == math.log(PLAIN.value(2.0))


def test_values_far_from_one():
    inf = math.inf
    for to in LIBRARIES.values():
        values, slot = to(np.array([1e3, 1e3 - 2, -1e3, -1e3, -inf, 5.0, -inf])), to(np.array([0, 0, 1, 1, 2, 3, 3]))
        total = counted(slot, 7, to(np.ones(7)))
        expected = [1e3 + math.log((1 + math.exp(-2)) / 2), -1e3, -inf, 5.0 - math.log(2), *[-inf] * 3]
        np.testing.assert_allclose(LOG.group_mean(values, slot, None, total), expected, rtol=1e-14)
        of_f, inner, at = (to(np.array(x)) for x in ([inf, 2.0, 2.0], [-inf, -inf, -900.0], [-inf, 0.0, -900.0]))
        np.testing.assert_array_equal(LOG.slope(of_f, inner, at), [0.0, 0.0, 2.0])
        assert float(PLAIN.group_mean(to(np.full(2, 1.5e308)), slot[:2], None, total[:2])[0]) == 1.5e308
