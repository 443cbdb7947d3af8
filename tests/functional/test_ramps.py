"""The ramp, and its sums over a set by sorting, against sums over all pairs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import expit

import fcco.functional as F
from fcco.functional._ramps import HALF_WIDTH, ramp, ramp_slope, ramp_sums
from functional import naive
from functional.objectives import Case, binary, ranking, value_and_gradients

# Points at the kinks, within a window, and far apart; few distinct values, so that ties are frequent.
NUMBERS = st.one_of(
    st.integers(-3, 3).map(lambda k: k * HALF_WIDTH),
    st.integers(-9, 9).map(float),
    st.floats(-12, 12),
    st.floats(-1e6, 1e6),
)
OFFSETS = (0.0, 0.1, -7.3, 1e3, -1e6, 1e9 + 0.25, 1e15)
KINKS = torch.tensor([-HALF_WIDTH, 0.0, HALF_WIDTH], dtype=torch.float64)


def vectors(least=1, most=12):
    return st.lists(NUMBERS, min_size=least, max_size=most).map(lambda x: torch.tensor(x, dtype=torch.float64))


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def curvature(t):
    """The second derivative, which jumps at the kinks."""
    return -t.sign() * (t.abs() < HALF_WIDTH) / HALF_WIDTH**2


def by_pairs(thresholds, points, weights, order=0):
    """The sum over all pairs, whose differences are exact wherever they matter."""
    t = points.unsqueeze(-2) - thresholds.unsqueeze(-1)
    return ((ramp, ramp_slope, curvature)[order](t) * weights.unsqueeze(-2)).sum(-1)


def check_sums(thresholds, points, weights, orders=(0, 1), tolerance=1e-13):
    for order in orders:
        sums, expected = (way(thresholds, points, weights, order) for way in (ramp_sums, by_pairs))
        scale = weights.abs().sum(-1, keepdim=True) if weights.shape[-1] else 1.0
        torch.testing.assert_close(sums, expected, rtol=1e-12, atol=tolerance * float(torch.as_tensor(scale).max()))


class TestRamp:
    T = torch.linspace(-9, 9, 73, dtype=torch.float64)

    def test_formula(self):
        t = self.T
        formula = ((t + 4).relu() ** 2 - 2 * t.relu() ** 2 + (t - 4).relu() ** 2) / 32
        torch.testing.assert_close(ramp(t), formula, rtol=0, atol=1e-14)

    def test_symmetric_rising_and_bounded(self):
        values = ramp(self.T)
        torch.testing.assert_close(values + values.flip(0), torch.ones_like(values), rtol=0, atol=1e-15)
        assert (values.diff() >= 0).all()
        assert values[self.T <= -HALF_WIDTH].eq(0).all()
        assert values[self.T >= HALF_WIDTH].eq(1).all()
        assert ramp(torch.tensor([-math.inf, 0.0, math.inf])).tolist() == [0.0, 0.5, 1.0]

    def test_slope_is_the_derivative(self):
        t = self.T.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(ramp(t).sum(), t)[0], ramp_slope(self.T), rtol=0, atol=1e-15)
        assert ramp_slope(torch.tensor([-math.inf, 0.0, math.inf])).tolist() == [0.0, 1 / HALF_WIDTH, 0.0]

    @pytest.mark.parametrize("kink", KINKS.tolist())
    def test_value_and_slope_are_continuous_at_the_kinks(self, kink):
        """The curvature is not: it jumps by 1/16 or 1/8."""
        for function, slope in ((ramp, 0.25), (ramp_slope, 1 / 16)):
            for width in (1e-3, 1e-6, 1e-9):
                left, here, right = function(torch.tensor([kink - width, kink, kink + width], dtype=torch.float64))
                assert abs(here - left) <= 1.01 * slope * width
                assert abs(right - here) <= 1.01 * slope * width
        t = torch.tensor([kink - 1e-9, kink, kink + 1e-9], dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(ramp(t).sum(), t)
        torch.testing.assert_close(gradient, ramp_slope(t.detach()), rtol=0, atol=1e-15)

    def test_half_width_fits_the_sigmoid_best(self):
        """In the mean square over all t, which the best width, 3.992, lowers by 0.06% more."""

        def error(width):
            def square(t):
                return (naive.ramp(t * HALF_WIDTH / width) - expit(t)) ** 2

            return sum(quad(square, *ends, epsabs=1e-13)[0] for ends in ((0, width), (width, 60)))

        best = minimize_scalar(error, bounds=(1, 12), method="bounded", options={"xatol": 1e-6})
        assert best.x == pytest.approx(HALF_WIDTH, abs=0.02)
        assert error(HALF_WIDTH) < 1.001 * best.fun
        assert ramp_slope(torch.zeros(())) == 1 / 4  # like that of the sigmoid


class TestSums:
    @settings(deadline=None, max_examples=300)
    @given(vectors(), vectors(least=0), st.sampled_from(OFFSETS), st.integers(0, 2**32 - 1))
    def test_every_pair(self, thresholds, points, offset, seed):
        weights = random(len(points), seed=seed)
        check_sums(thresholds + offset, points + offset, weights)

    @pytest.mark.parametrize("point", [5e-324, 1e-310, -5e-324])
    def test_points_a_hair_from_the_edge_of_a_cell(self, point):
        check_sums(torch.zeros(1).double(), torch.tensor([point]).double(), torch.ones(1).double())

    @pytest.mark.parametrize("offset", OFFSETS)
    @pytest.mark.parametrize("spread", [1e-9, 1.0, 30.0, 1e4, 1e8])
    def test_any_offset_and_spread(self, offset, spread):
        points = offset + spread * (random(300, seed=1) - 0.5)
        thresholds = torch.cat([offset + spread * (random(200, seed=2) - 0.5), points[:50]])
        check_sums(thresholds, points, random(300, seed=3))

    def test_curvature(self):
        check_sums(30 * random(50), 30 * random(70, seed=1), random(70, seed=2), orders=(2,))

    def test_signed_weights(self):
        """A gradient is such a sum."""
        check_sums(20 * random(50), 20 * random(70, seed=1), random(70, seed=2) - 0.5, orders=(0, 1, 2))

    @pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
    def test_single_precision(self, offset):
        """At 1e6 the scores are multiples of 1/16, whose differences float32 has no trouble with."""
        points, thresholds = (offset + 30 * random(n).float() for n in (200, 100))
        weights = random(200, seed=2).float()
        for order in (0, 1):
            expected = by_pairs(thresholds.double(), points.double(), weights.double(), order)
            sums = ramp_sums(thresholds, points, weights, order)
            assert sums.dtype == torch.float32
            torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=2e-5)

    @pytest.mark.parametrize("far", [1e8, -1e12, 1e20, -1e300])
    def test_one_score_far_from_the_others_costs_no_digits(self, far):
        points = torch.cat([torch.tensor([far], dtype=torch.float64), 10 * random(40)])
        check_sums(points, points, random(41, seed=1))

    @pytest.mark.parametrize("size", [1e15, 3e15, 9e15, 1.8e16, 4e16, 1e17, 1e20, 1e100, 1e300])
    def test_scores_of_any_size(self, size):
        """Numbers beside each other, from 1/8 apart at 1e15 to far more than the width: only ties are near then."""
        here = torch.full((), size, dtype=torch.float64)
        up, down = (torch.nextafter(here, here * factor) for factor in (2, 0.5))
        points = torch.stack([here, here, up, down, -here, -up, torch.zeros_like(here), here / 2])
        check_sums(points, points, torch.arange(1.0, 9.0, dtype=torch.float64))

    @pytest.mark.parametrize("base", [0.0, 0.7, 2.0, 4.0, -4.0, 12.0, 1e6])
    def test_points_at_the_kinks(self, base):
        """On the edges of cells too: a point at ±δ has a value of 0 or 1 and a slope of 0, wherever it is counted."""
        steps = torch.tensor([-8.0, -4.0, 0.0, 4.0, 8.0], dtype=torch.float64)
        threshold = torch.tensor([base], dtype=torch.float64)
        points = threshold + steps
        weights = torch.ones(5, dtype=torch.float64)
        np.testing.assert_allclose(ramp_sums(threshold, points, weights).item(), 2.5, rtol=1e-12)
        np.testing.assert_allclose(ramp_sums(threshold, points, weights, 1).item(), 0.25, rtol=1e-9)
        for t, value, slope in ((-4, 0, 0), (0, 0.5, 0.25), (4, 1, 0)):
            one = torch.tensor([base + t], dtype=torch.float64)
            assert ramp_sums(threshold, one, weights[:1]).item() == pytest.approx(value, abs=1e-9)
            assert ramp_sums(threshold, one, weights[:1], 1).item() == pytest.approx(slope, abs=1e-9)

    def test_ties(self):
        points = torch.tensor([1.0, 1.0, 1.0, -2.0, -2.0, 6.0], dtype=torch.float64)
        check_sums(points, points, torch.arange(6.0, dtype=torch.float64))
        same = torch.full((1000,), 0.3, dtype=torch.float64)
        torch.testing.assert_close(ramp_sums(same, same, torch.ones_like(same)), 500 * torch.ones_like(same))

    def test_far_above_is_1_and_far_below_is_0(self):
        thresholds = torch.tensor([0.0], dtype=torch.float64)
        points = torch.tensor([5.0, 1e9, -5.0, -1e9], dtype=torch.float64)
        weights = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
        assert ramp_sums(thresholds, points, weights).tolist() == [3.0]
        assert ramp_sums(thresholds, points, weights, 1).tolist() == [0.0]

    @pytest.mark.parametrize("order", [0, 1, 2, 3])
    @pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
    def test_no_points_and_no_thresholds(self, order, shape):
        thresholds, none = random(*shape, 4).requires_grad_(), random(*shape, 0).requires_grad_()
        sums = ramp_sums(thresholds, none, none, order)
        assert torch.equal(sums, torch.zeros_like(thresholds))
        assert (torch.autograd.grad(sums.sum(), thresholds)[0] == 0).all()
        assert ramp_sums(none, thresholds, thresholds, order).shape == none.shape

    @pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 3)])
    def test_batch_dimensions(self, shape):
        thresholds, points, weights = (30 * random(*shape, n, seed=n) for n in (5, 7, 7))
        for order in (0, 1, 2):
            sums = ramp_sums(thresholds, points, weights, order)
            assert sums.shape == (*shape, 5)
            flat = (x.reshape(-1, x.shape[-1]) for x in (thresholds, points, weights))
            expected = [ramp_sums(*row, order) for row in zip(*flat, strict=True)]
            torch.testing.assert_close(sums.reshape(-1, 5), torch.stack(expected), rtol=1e-14, atol=1e-15)

    def test_not_contiguous(self):
        points, thresholds = (30 * random(7, 5, seed=seed).T for seed in (0, 1))
        check_sums(thresholds, points, random(7, 5, seed=2).T)

    def test_many_points_keep_their_digits(self):
        """100,000 of them, in blocks of pairs. Cumulative sums reach 1e6 in their second moments."""
        points = 50 * random(100_000)
        thresholds = points[::1000]
        weights = torch.ones_like(points)
        for order in (0, 1):
            sums, expected = ramp_sums(thresholds, points, weights, order), by_pairs(thresholds, points, weights, order)
            torch.testing.assert_close(sums, expected, rtol=1e-11, atol=1e-9)


class TestDerivatives:
    @pytest.mark.parametrize("order", [0, 1])
    @pytest.mark.parametrize("spread", [1.0, 10.0])
    def test_gradcheck(self, order, spread):
        arguments = [(spread * random(2, n, seed=n)).requires_grad_() for n in (3, 5)]
        arguments.append((random(2, 5, seed=9) - 0.3).requires_grad_())
        assert torch.autograd.gradcheck(lambda *x: ramp_sums(*x, order), arguments)

    @pytest.mark.parametrize("spread", [1.0, 10.0])
    def test_gradgradcheck(self, spread):
        arguments = [(spread * random(2, n, seed=n)).requires_grad_() for n in (3, 5)]
        arguments.append((random(2, 5, seed=9) - 0.3).requires_grad_())
        assert torch.autograd.gradgradcheck(ramp_sums, arguments)

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_each_argument_alone(self, which):
        arguments = [10 * random(n, seed=n) for n in (3, 5, 5)]
        arguments[which].requires_grad_()
        assert torch.autograd.gradcheck(ramp_sums, arguments)
        assert torch.autograd.gradgradcheck(ramp_sums, arguments)

    def test_second_derivatives_of_average_precision(self):
        (scores,), (target,) = Case("average_precision_loss", binary).make(n=7)
        assert torch.autograd.gradgradcheck(lambda h: F.average_precision_loss(h, target, temperature=0.2), scores)

    @pytest.mark.parametrize("offset", OFFSETS)
    def test_gradient_of_ties_and_kinks_is_that_of_pairs(self, offset):
        """The slope is continuous, so that a gradient does not depend on which side a point is taken to be on."""
        steps = torch.tensor([0.0, 0.0, 4.0, -4.0, 8.0, 4.0, 1.0, 2.5], dtype=torch.float64)
        gradients = []
        for way in (ramp_sums, by_pairs):
            x = (steps + offset).requires_grad_()
            sums = way(x, x, torch.arange(1.0, 9.0, dtype=torch.float64))
            gradients.append(torch.autograd.grad((sums * torch.linspace(-1, 2, 8)).sum(), x)[0])
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-13)

    def test_within_torch_func(self):
        thresholds, points, weights = 10 * random(4), 10 * random(6, seed=1), random(6, seed=2)
        gradient = torch.func.grad(lambda x: ramp_sums(x, points, weights).square().sum())(thresholds)
        expected = torch.func.grad(lambda x: by_pairs(x, points, weights).square().sum())(thresholds)
        torch.testing.assert_close(gradient, expected)


def own_term_of_1(t):
    return torch.where(t == 0, 1.0, ramp(t))


TEMPERED = [Case("average_precision_loss", binary), Case("ndcg_loss", ranking)]


class TestObjectives:
    """By sorting, what they are by pairs, in single precision and far from 0 too."""

    def test_single_precision_at_a_million(self):
        case = Case("average_precision_loss", binary, {"temperature": 0.25})
        (scores,), others = case.make(n=200)
        offset = (1e6 + scores.detach().mul(64).round() / 16).float().requires_grad_()
        near = (offset.detach().double() - 1e6).requires_grad_()
        loss, (gradient,) = value_and_gradients(case, [offset], others)
        exact, (exact_gradient,) = value_and_gradients(case, [near], others)
        torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
        torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-5, atol=1e-8)

    @pytest.mark.parametrize("far", [1e20, -1e20])
    @pytest.mark.parametrize("place", [0, 1])
    def test_one_score_far_away(self, far, place):
        """A positive or a negative: the others' gradient is what it is by pairs."""
        case = Case("average_precision_loss", binary, {"temperature": 0.5})
        (scores,), (target,) = case.make(n=30)
        scores.data[(target == place).nonzero()[0]] = far
        loss, (gradient,) = value_and_gradients(case, [scores], [target])
        np.testing.assert_allclose(loss.item(), case.naive(scores, target), rtol=1e-12)
        slow = Case("average_precision_loss", binary, {"temperature": 0.5, "surrogate": own_term_of_1})
        torch.testing.assert_close(gradient, value_and_gradients(slow, [scores], [target])[1][0], rtol=1e-9, atol=1e-13)

    @pytest.mark.parametrize("case", TEMPERED, ids=str)
    def test_a_temperature_is_a_unit_of_the_scores(self, case):
        (scores,), others = case.make()
        loss, (gradient,) = value_and_gradients(case, [scores], others, temperature=0.3)
        scaled = (scores.detach() / 0.3).requires_grad_()
        unit, (unit_gradient,) = value_and_gradients(case, [scaled], others, temperature=1.0)
        torch.testing.assert_close(loss, unit, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, unit_gradient / 0.3, rtol=1e-10, atol=1e-14)

    @pytest.mark.parametrize("surrogate", ["ramp", "sigmoid", "squared_hinge", "exp"])
    @pytest.mark.parametrize("case", TEMPERED, ids=str)
    def test_scores_that_overflow_in_units_of_the_temperature(self, case, surrogate):
        _, others = case.make()
        scores = torch.linspace(0, 1e300, 11, dtype=torch.float64)
        message = (
            "scores must be so small that 4 times the value over a temperature of 1e-10 is finite; got .* at position 1"
        )
        with pytest.raises(ValueError, match=message):
            case(scores, *others, surrogate=surrogate, temperature=1e-10)

    def test_sums_of_ramps_are_not_negative(self):
        """Of points that are just within the width, moments cancel, and a root of a sum below 0 would be no number."""
        target, below = torch.arange(100) // 50, 0
        for seed in range(20):
            noise = 1e-8 * (random(100, seed=seed) - 0.5)
            scores = (noise + 3.3 + HALF_WIDTH * target).requires_grad_()
            below += int((ramp_sums(-scores[:50], -scores[50:], torch.ones(50, dtype=torch.float64)) < 0).sum())
            loss = F.p_norm_push_loss(scores, target, p=1.5, surrogate="ramp")
            assert loss >= 0
            assert torch.autograd.grad(loss, scores)[0].isfinite().all()
        assert below > 0
