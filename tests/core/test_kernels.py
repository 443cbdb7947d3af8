"""The kernels against comparisons of all pairs that autograd differentiates, in float64."""

import itertools

import numpy as np
import pytest
import torch

from core.compare import LIBRARIES, SURROGATES, assert_close, convert
from fcco.core import kernels
from fcco.core.kernels import Pairs, Same, log_sums, log_sums_from, minus_squared_distances, score_sums
from fcco.core.surrogates import as_surrogate


def all_pairs(name, t, pairs, rows, is_above=True):
    """Return the sums over all pairs, [S, m], which are left out if their rows are the same."""
    kept = (torch.ones_like(t) > 0) & is_above
    kept = kept if rows is None else kept & (rows[0][:, None] != rows[1])
    kept = kept if pairs.group is None else kept & (pairs.group[0][:, None] == pairs.group[1])
    masks = torch.stack([kept if mask is None else kept & mask for mask in pairs.relations])
    if name != "exp":
        return (SURROGATES[name](t) * masks * pairs.weight).sum(2)
    t, is_empty = (t + pairs.weight.log()).masked_fill(~masks, -torch.inf), ~(masks & (pairs.weight > 0)).any(2)
    return t.masked_fill(is_empty[:, :, None], 0.0).logsumexp(2).masked_fill(is_empty, -torch.inf)


def same_of(rows, kind):
    """Return which pairs are one example, as the places of these or as rows."""
    if kind is None:
        return None
    places = (rows[0][:, None] == rows[1]).nonzero().T.contiguous()
    return Same(*rows, False) if kind == "rows" else Same(*places)


def check_kernel(kernel, sums, scores, rest, rtol=1e-12):
    """Compare a kernel, with each side by itself and with scales, in both precisions, with what autograd says."""
    a, c = (x.clone().requires_grad_() for x in scores)
    value = sums(a, c)
    grad = torch.randn_like(value)
    live = torch.where(value > -torch.inf, value, 0.0) * grad
    made = [torch.autograd.grad(part.sum(), (a, c), retain_graph=True) for part in live]
    to_anchors, to_candidates = sum(one for one, _ in made), torch.stack([other for _, other in made])
    scales = [torch.rand(k, len(c), dtype=torch.double) for k in (1, len(grad))]
    for to, narrow in itertools.product(LIBRARIES.values(), (False, True)):
        cast = (lambda x, to=to: to(x.float() if x.is_floating_point() else x)) if narrow else to
        tolerance = (1e-3, 1e-6) if narrow else (rtol, 1e-14)

        def check(got, expected, tolerance=tolerance, narrow=narrow):
            assert str(got.dtype).endswith("32" if narrow else "64")
            assert_close(got, expected, *tolerance, may_vanish=not expected.any())

        got, back = kernel(*convert(cast, (*scores, *rest)))
        check(got, value.detach())
        (one,), (other,) = back(cast(grad))
        check(one, to_anchors)
        check(other, to_candidates.sum(0))
        (alone,), nothing = back(cast(grad), "anchors")
        check(alone, to_anchors)
        assert nothing == (None,)
        for scale in scales:
            nothing, (alone,) = back(cast(grad), "candidates", cast(scale))
            check(alone, (to_candidates * scale).sum(0))
            assert nothing == (None,)


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("same", [None, "places", "repeats", "rows"])
@pytest.mark.parametrize("name", SURROGATES)
def test_sums_equal_those_over_all_pairs(name, same, is_sorted, monkeypatch):
    for bound in ("MANY", "GROUPED"):
        monkeypatch.setattr(kernels, bound, 0 if is_sorted else 10**9)
    m, r, surrogate, taus = 11, 37, as_surrogate(name, 0.7), (1.0, 0.3, torch.tensor(0.6, dtype=torch.double))
    hides = name == "exp" and is_sorted and same in ("places", "repeats")  # a large self pair hides others
    for tau, grouped, by_anchor, spread in itertools.product(taus, *[(False, True)] * 2, (1.0, 2.0 if hides else 30.0)):
        c, label = torch.randn(r, dtype=torch.double) * spread, torch.rand(r) < 0.5
        place = torch.randperm(r)[:m].sort()[0]
        rows = torch.arange(r) // (1 if same == "places" else 2)
        rows = None if same is None else (rows[place], rows)
        group = (torch.arange(r) // 2 % 3) if grouped else None
        relations = (label[place][:, None] == label, None) if by_anchor else (label, ~label, None)
        weight = torch.rand(r, dtype=torch.double) * (torch.arange(r) % 5 > 0)
        pairs = Pairs(relations, weight, same_of(rows, same), None if group is None else (group[place], group))
        check_kernel(
            lambda a, c, pairs, tau: score_sums(a, c, surrogate, pairs, tau),
            lambda a, c, tau=tau, pairs=pairs, rows=rows: all_pairs(name, (c - a[:, None]) / tau, pairs, rows),
            (c[place], c),
            (pairs, tau),
            1e-9 if hides else 1e-12,
        )


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3, 1e6, 1e9, 1e15, 1e30])
@pytest.mark.parametrize("name", ["ramp", "hinge", "squared_hinge"])
def test_sorting_loses_no_digits(name, spread, offset, monkeypatch):
    rng, surrogate, r, m = np.random.RandomState(0), as_surrogate(name, 1.0), 400, 150
    for grouped in (False, True):
        c, group = rng.randn(r) * spread, rng.randint(3, size=r)
        c[::7] = np.round(c[::7] / 4) * 4
        c[5:8] = -1e-30, 5e-324, 0.0
        c[grouped & (group == 1)] = rng.randn((grouped & (group == 1)).sum())
        if spread > 1:  # at the kink; near 0, rounding decides on which side
            c[2::7] = c[1::7][: len(c[2::7])] - 1.0
        c, place = c + offset, np.sort(rng.permutation(r)[:m])
        same, group = Same(np.arange(m), place), (group[place], group) if grouped else None
        pairs, grad, made = Pairs((rng.rand(r) < 0.5, None), rng.rand(r), same, group), rng.randn(2, m), []
        for many in (10**9, 0):
            monkeypatch.setattr(kernels, "MANY", many)
            value, back = score_sums(c[place], c, surrogate, pairs)
            made.append((value, *(side[0] for side in back(grad))))
        np.testing.assert_allclose(made[1][0], made[0][0], rtol=1e-12, atol=1e-12)
        for got, expected in zip(*made[::-1], strict=True):
            assert_close(got, expected, 1e-12, 1e-13, may_vanish=name == "ramp" and spread > 1e6)


@pytest.mark.parametrize(  # a spread of 60 is close to where sorting ends
    ("same", "spread"),
    [("places", 1.0), ("places", 300.0), ("repeats", 1.0), ("rows", 1.0), (None, 1.0), (None, 60.0), (None, 300.0)],
)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("many", [0, 10**9])
def test_sums_from_a_key_on(spread, grouped, same, many, monkeypatch):
    monkeypatch.setattr(kernels, "GROUPED", many)
    m, r, event = 40, 60, torch.rand(60) < 0.5
    h, time, group = torch.randn(r, dtype=torch.double) * spread, torch.randint(9, (r,)), torch.arange(r) // 3 % 4
    time[0], weight, rows = 10, torch.rand(r, dtype=torch.double), torch.arange(r) // (2 if same == "repeats" else 1)
    rows, group = (
        None if same is None else (rows[:m], rows),
        (group[:m], group) if grouped and same != "repeats" else None,
    )
    pairs = Pairs((~event, event, None), weight, same_of(rows, same), group)
    sums = lambda a, c: all_pairs("exp", c - a[:, None], pairs, rows, time >= time[:m, None])  # noqa: E731
    assert (sums(h[:m], h) == -torch.inf).any()
    check_kernel(log_sums_from, sums, (h[:m], h), (time[:m], time, pairs), 1e-10)


@pytest.mark.parametrize("can_read", [True, False])
@pytest.mark.parametrize("far", [10.0, 1e3, 1e5])
def test_log_sums_keep_those_that_vanish_beside_others(far, can_read, monkeypatch):
    monkeypatch.setattr(kernels, "can_read", lambda _: can_read)
    label, grad = torch.arange(20) % 3 > 0, torch.randn(2, 5, dtype=torch.double)
    t = torch.randn(5, 20, dtype=torch.double) - far * label
    pairs, leaf = Pairs((label, ~label), (torch.arange(20) != 4).double()), t.clone().requires_grad_()
    expected = all_pairs("exp", leaf, pairs, None)
    expected.backward(grad)
    for to in LIBRARIES.values():
        value, back = log_sums(to(t.numpy().copy()), convert(to, pairs))
        np.testing.assert_allclose(value, expected.detach(), rtol=1e-13)
        assert_close(back(to(grad)), leaf.grad, 1e-10)


def test_distances_lose_no_digits_to_an_offset():
    a, c = torch.randn(5, 3, dtype=torch.double) + 1e6, torch.randn(7, 3, dtype=torch.double) + 1e6
    leaves, grad = [x.clone().requires_grad_() for x in (a, c)], torch.randn(5, 7, dtype=torch.double)
    expected, weight = -((leaves[0][:, None] - leaves[1]) ** 2).sum(2), torch.ones(7, dtype=torch.double)
    expected.backward(grad)
    for to in LIBRARIES.values():
        t, back = minus_squared_distances(to(a), to(c), to(weight))
        assert_close(t, expected.detach(), 1e-9)
        for got, leaf in zip(back(to(grad)), leaves, strict=True):
            assert_close(got[0], leaf.grad, 1e-9)
        assert back(to(grad), "anchors")[1] == back(to(grad), "candidates")[0] == (None,)
        t, back = minus_squared_distances(to(a[:0]), to(c), to(weight))  # a process without anchors
        assert not back(t)[1][0].any()


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("m", "r"), [(3, 0), (0, 3)])
@pytest.mark.parametrize("name", [*SURROGATES, "risk"])
def test_nobody_to_compare(name, m, r, grouped):
    for to in LIBRARIES.values():
        a, c, none, group = (to(x) for x in (np.zeros(m), np.zeros(r), np.zeros(0, int), np.arange(3) % 2))
        pairs = Pairs((c > 0, None), None, Same(none, none), (group[:m], group[:r]) if grouped else None)
        parts = (a, c, a, c, pairs) if name == "risk" else (a, c, as_surrogate(name), pairs)
        value, back = (log_sums_from if name == "risk" else score_sums)(*parts)
        assert np.array_equal(value, np.full((2, m), -np.inf if name in ("exp", "risk") else 0.0))
        (one,), (other,) = back(to(np.ones((2, m))))
        assert np.array_equal(one, np.zeros(m))
        assert np.array_equal(other, np.zeros(r))
