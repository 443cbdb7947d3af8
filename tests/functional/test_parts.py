"""The parts that several objectives share: sorted sums of hinges, scans of lists, chunks, surrogates."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import fcco.functional as F
from fcco.functional._chunks import Places, chunk_rows, map_chunks, row_places
from fcco.functional._hinges import hinge_sums
from fcco.functional._lists import cumulative_logsumexp, padded_blocks
from fcco.functional._surrogates import SURROGATES, resolve_surrogate
from fcco.functional._tensors import segment_logsumexp
from functional import naive
from functional.objectives import CASES, Case, binary, classes, value_and_gradients

# Few distinct values, so that ties are frequent, and many orders of magnitude.
NUMBERS = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6), st.floats(-1e-6, 1e-6))


def vectors(least=1, most=12):
    return st.lists(NUMBERS, min_size=least, max_size=most).map(lambda x: torch.tensor(x, dtype=torch.float64))


class TestHingeSums:
    @settings(deadline=None, max_examples=200)
    @given(vectors(), vectors(least=0), st.sampled_from([0, 1, 2]), st.integers(0, 2**32 - 1))
    def test_every_pair(self, thresholds, points, power, seed):
        weights = torch.rand(len(points), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        above = points - thresholds.unsqueeze(1)
        terms = (above > 0) if power == 0 else above.clamp(min=0) ** power
        expected = (weights * terms).sum(1)
        torch.testing.assert_close(hinge_sums(thresholds, points, weights, power), expected, rtol=1e-9, atol=0)

    def test_no_digit_is_lost_to_distant_points(self):
        """Prefix sums of x² would carry 1e16 through a sum whose terms are 1."""
        points = torch.tensor([1e8, 0.0, 1.0, -1e8], dtype=torch.float64)
        thresholds = torch.tensor([1e8 - 1, -1e8 - 1], dtype=torch.float64)
        sums = hinge_sums(thresholds, points, torch.ones(4, dtype=torch.float64), 2)
        exact = sum(int(x - (-1e8 - 1)) ** 2 for x in points.tolist())
        assert sums.tolist() == [1.0, pytest.approx(exact, rel=1e-15)]

    @pytest.mark.parametrize("power", [0, 1, 2])
    def test_a_point_at_the_kink_stays_there_whatever_the_rounding(self, power):
        """0.3 - 1 is below -0.7 before it is rounded, and not after."""
        threshold, point = (torch.tensor([value], dtype=torch.float64) for value in (0.3, -0.7))
        assert hinge_sums(threshold, point, torch.ones_like(point), power, margin=1.0).item() == 0.0

    @pytest.mark.parametrize("power", [1, 2])
    def test_derivatives(self, power):
        rng = torch.Generator().manual_seed(0)
        arguments = [torch.randn(2, n, generator=rng, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5)]
        assert torch.autograd.gradcheck(lambda *x: hinge_sums(*x, power), arguments)
        assert torch.autograd.gradgradcheck(lambda *x: hinge_sums(*x, power), arguments)

    @pytest.mark.parametrize("surrogate", ["hinge", "squared_hinge"])
    def test_same_as_pair_by_pair(self, surrogate):
        (scores,), others = Case("average_precision_loss", binary).make(n=50)
        scores.data[:10] = scores.data[10:20] - 1.0  # at the kink
        by_sorting = value_and_gradients(
            Case("average_precision_loss", binary, {"surrogate": surrogate}), [scores], others
        )
        ell = resolve_surrogate(surrogate)
        by_pairs = value_and_gradients(
            Case("average_precision_loss", binary, {"surrogate": lambda t: ell(t)}), [scores], others
        )
        torch.testing.assert_close(by_sorting, by_pairs, rtol=1e-11, atol=1e-15)


class TestLists:
    @settings(deadline=None, max_examples=100)
    @given(vectors(most=25), st.integers(0, 2**32 - 1))
    def test_cumulative_logsumexp(self, values, seed):
        n, rng = len(values), np.random.default_rng(seed)
        lists = np.unique(rng.integers(0, 4, size=n), return_inverse=True)[1]
        rank = rng.integers(0, 3, size=n)
        totals, run = cumulative_logsumexp(values, torch.tensor(lists), torch.tensor(rank))
        below = [(lists == lists[i]) & (rank <= rank[i]) for i in range(n)]
        expected = [naive.log_sum_exp(values.numpy()[mask]) for mask in below]
        np.testing.assert_allclose(totals[run].numpy(), expected, rtol=1e-12, atol=1e-12)

    @settings(deadline=None, max_examples=50)
    @given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
    def test_padded_blocks_hold_every_item_once_in_bounded_memory(self, sizes):
        n = sum(sizes)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        lists = torch.empty(n, dtype=torch.int64)
        lists[order] = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        found, slots = [], 0
        for items, valid in padded_blocks(order, torch.tensor(sizes)):
            slots += items.numel()
            found += items[valid].tolist()
            for row, mask in zip(items, valid, strict=True):
                assert len(lists[row[mask]].unique()) == 1
        assert sorted(found) == list(range(n))
        assert slots < 2 * n

    def test_segment_logsumexp(self):
        values = torch.tensor([1e4, -1e4, 1e4 + 1, 0.0], dtype=torch.float64, requires_grad=True)
        sums = segment_logsumexp(values, torch.tensor([1, 0, 1, 2]), 3)
        expected = torch.tensor([-1e4, 1e4 + math.log1p(math.e), 0.0], dtype=torch.float64)
        torch.testing.assert_close(sums, expected, rtol=1e-14, atol=0)
        assert torch.autograd.grad(sums.sum(), values)[0].sum().item() == pytest.approx(3)


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that any operation makes, in the backward pass too."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        made = out if isinstance(out, (tuple, list)) else (out,)
        self.numel = max([self.numel, *(x.numel() for x in made if isinstance(x, torch.Tensor))])
        return out


class TestChunks:
    N = 120

    @pytest.mark.parametrize(
        "case",
        [
            case
            for case in CASES
            if case.chunked
            and not {"ramp", "hinge", "squared_hinge", "exp"} & {case.options.get("surrogate")}
            and case.options.get("form") != "min_max"  # which takes O(n)
        ],
        ids=str,
    )
    def test_no_matrix_of_all_pairs(self, case):
        floats, others = case.make(n=self.N)
        with LargestTensor() as whole:
            value_and_gradients(case, floats, others, chunk=1000)
        with LargestTensor() as parts:
            value_and_gradients(case, floats, others, chunk=2)
        assert parts.numel <= 2 * 2 * self.N + 3 * self.N
        assert whole.numel > 2 * parts.numel

    def test_default_fits_a_million_columns(self):
        for dtype in (torch.float32, torch.float64):
            like = torch.empty(0, dtype=dtype)
            assert chunk_rows(10**6, like, None) * 10**6 * like.element_size() <= 2**23
        assert chunk_rows(10**9, like, None) == 1
        assert chunk_rows(0, like, None) > 1

    def test_places_of_rows(self):
        like = torch.zeros(1)
        assert list(row_places(4, 10, like, 3, lambda rows: (rows,))) == [(slice(0, 3),), (slice(3, 4),)]
        assert list(row_places(4, 10, like, None, lambda rows: (rows, ...))) == [(slice(0, 4), ...)]

    def test_places_of_a_million_rows_take_no_memory(self):
        assert sys.getsizeof(row_places(10**6, 10**6, torch.zeros(1), None, lambda rows: (rows,))) < 1000

    def test_a_tensor_given_twice_has_one_gradient(self):
        x = torch.randn(4, dtype=torch.float64, requires_grad=True)
        places = Places(4, lambda k: (slice(k, k + 1), ...))
        squares = lambda place, own, all_of_them: own * all_of_them.sum()  # noqa: E731
        assert torch.autograd.gradcheck(lambda x: map_chunks(squares, places, 4, x, x), x)
        assert torch.autograd.gradgradcheck(lambda x: map_chunks(squares, places, 4, x, x), x)

    def test_second_derivative(self):
        floats, others = Case("partial_auc_loss", binary).make(n=6)
        assert torch.autograd.gradgradcheck(lambda h: F.partial_auc_loss(h, *others, chunk=1), floats)

    def test_only_what_is_needed_is_differentiated(self):
        first = torch.randn(5, 3, requires_grad=True)
        second = torch.randn(5, 3)
        whole = F.contrastive_loss(first, second)
        parts = F.contrastive_loss(first, second, chunk=2)
        torch.testing.assert_close(torch.autograd.grad(parts, first), torch.autograd.grad(whole, first))

    def test_parts_without_a_derivative(self):
        x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        places = Places(4, lambda k: (slice(k, k + 1), ...))
        map_chunks(lambda place, x, y: 2 * x if place[0].start else torch.ones(1), places, 4, x, y).sum().backward()
        assert x.grad.tolist() == [0.0, 2.0, 2.0, 2.0]
        assert y.grad.tolist() == [0.0] * 4

    @pytest.mark.parametrize("case", [Case("nca_loss", classes)], ids=str)
    def test_large_embeddings(self, case):
        floats, others = case.make(scale=1e4)
        torch.testing.assert_close(
            value_and_gradients(case, floats, others, chunk=2), value_and_gradients(case, floats, others)
        )

    @pytest.mark.parametrize("chunk", [None, 2])
    def test_autocast_does_not_reach_the_exact_objective(self, chunk):
        first, second = torch.randn(2, 6, 4).unbind()
        first.requires_grad_()
        expected = F.contrastive_loss(first, second)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.contrastive_loss(first, second, chunk=chunk)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, first), torch.autograd.grad(expected, first))


class TestSurrogates:
    T = torch.linspace(-3, 3, 25, dtype=torch.float64)

    @pytest.mark.parametrize("name", SURROGATES)
    def test_formula(self, name):
        expected = [naive.surrogate_of(name, 0.6)(t) for t in self.T.tolist()]
        np.testing.assert_allclose(resolve_surrogate(name, 0.6)(self.T), expected, rtol=1e-13)

    def test_alias(self):
        assert resolve_surrogate("exponential") == resolve_surrogate("exp")

    def test_callable(self):
        ell = resolve_surrogate(torch.nn.Softplus(beta=2.0))
        assert ell.name == "Softplus"
        torch.testing.assert_close(ell(self.T), torch.nn.functional.softplus(self.T, beta=2.0))

    def test_margin_is_the_hinges_alone(self):
        for name in ("ramp", "sigmoid", "logistic", "exp"):
            assert torch.equal(resolve_surrogate(name, 5.0)(self.T), resolve_surrogate(name)(self.T))

    @pytest.mark.parametrize("name", SURROGATES)
    def test_same_as_a_callable(self, name):
        """Sorted, separable and pairwise evaluation agree."""
        (scores,), (target,) = Case("p_norm_push_loss", binary).make(n=15)
        ell = resolve_surrogate(name)
        for function in (F.p_norm_push_loss, F.partial_auc_loss):
            by_name = function(scores, target, surrogate=name)
            torch.testing.assert_close(
                by_name, function(scores, target, surrogate=lambda t: ell(t)), rtol=1e-12, atol=0
            )

    @pytest.mark.parametrize("temperature", [1.0, 0.3])
    @pytest.mark.parametrize("name", SURROGATES)
    def test_same_as_a_callable_with_the_own_term(self, name, temperature):
        """Without ties, t = 0 is the own term alone, which is 1 if the surrogate is bounded."""
        (scores,), (target,) = Case("average_precision_loss", binary).make(n=15)
        ell = resolve_surrogate(name)
        own_value = 1.0 if name in naive.BOUNDED else ell.at_zero(scores)
        by_name = F.average_precision_loss(scores, target, surrogate=name, temperature=temperature)
        by_pairs = F.average_precision_loss(
            scores, target, surrogate=lambda t: torch.where(t == 0, own_value, ell(t)), temperature=temperature
        )
        torch.testing.assert_close(by_name, by_pairs, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("name", SURROGATES)
    def test_bounded_ones_rise_from_0_to_1(self, name):
        far = torch.tensor([-1e4, 1e4], dtype=torch.float64)
        ell = resolve_surrogate(name)
        assert ell.bounded == (name in naive.BOUNDED) == (ell(far).tolist() == [0.0, 1.0])
        assert ell.own_value(far).tolist() == [1.0 if ell.bounded else ell.at_zero(far)]

    def test_a_function_under_the_name_of_a_bounded_one_is_not_taken_for_it(self):
        def ramp(t):
            return t.exp()

        assert not resolve_surrogate(ramp).bounded
        assert resolve_surrogate(torch.sigmoid).bounded

    @pytest.mark.parametrize("name", SURROGATES)
    def test_slopes(self, name):
        ell, t = resolve_surrogate(name, 0.6), self.T.clone().requires_grad_()
        values, slopes = ell.value_and_slope(self.T)
        assert torch.equal(values, ell(self.T))
        torch.testing.assert_close(slopes, torch.autograd.grad(ell(t).sum(), t)[0], rtol=1e-12, atol=1e-15)
