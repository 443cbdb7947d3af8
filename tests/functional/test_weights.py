"""Weights of the examples in average precision: how often each counts."""

import numpy as np
import pytest
import torch

import fcco.functional as F
from fcco.functional._surrogates import resolve_surrogate
from functional import naive
from functional.objectives import NAMES, Case, binary

AP = Case("average_precision_loss", binary)
N = 20


@pytest.fixture
def data():
    (scores,), (target,) = AP.make(n=N)
    rng = np.random.default_rng(1)
    weight = torch.tensor(rng.exponential(size=N) * (rng.uniform(size=N) < 0.8))
    return scores, target, weight


@pytest.mark.parametrize("surrogate", NAMES)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
class TestEverySurrogate:
    def test_value_is_the_formula(self, data, surrogate, temperature):
        scores, target, weight = data
        options = {"surrogate": surrogate, "temperature": temperature}
        loss = AP(scores, target, weight=weight, **options)
        arrays = (x.detach().numpy() for x in (scores, target))
        expected = naive.average_precision_loss(*arrays, weight=weight.numpy(), **options)
        np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)

    def test_gradcheck(self, data, surrogate, temperature):
        scores, target, weight = (x[:8] for x in data)
        options = {"surrogate": surrogate, "temperature": temperature, "weight": weight}
        scores = scores.detach().requires_grad_()
        assert torch.autograd.gradcheck(lambda scores: AP(scores, target, **options), scores)

    def test_ones_are_no_weights(self, data, surrogate, temperature):
        scores, target, _ = data
        options = {"surrogate": surrogate, "temperature": temperature}
        weighted = AP(scores, target, weight=torch.ones(N), **options)
        torch.testing.assert_close(weighted, AP(scores, target, **options), rtol=1e-14, atol=0)

    def test_only_ratios_matter(self, data, surrogate, temperature):
        scores, target, weight = data
        options = {"surrogate": surrogate, "temperature": temperature}
        loss = AP(scores, target, weight=weight, **options)
        for factor in (1e-12, 1e9):
            scaled = AP(scores, target, weight=factor * weight, **options)
            torch.testing.assert_close(scaled, loss, rtol=1e-12, atol=0)

    def test_zero_is_to_be_left_out(self, data, surrogate, temperature):
        scores, target, weight = data
        options = {"surrogate": surrogate, "temperature": temperature}
        loss, kept = AP(scores, target, weight=weight, **options), weight > 0
        assert not kept.all()
        few = AP(scores[kept], target[kept], weight=weight[kept], **options)
        torch.testing.assert_close(loss, few, rtol=1e-14, atol=0)
        assert (torch.autograd.grad(loss, scores)[0][~kept] == 0).all()

    def test_chunk_is_of_no_account(self, data, surrogate, temperature):
        scores, target, weight = data
        options = {"surrogate": surrogate, "temperature": temperature, "weight": weight}
        torch.testing.assert_close(AP(scores, target, chunk=3, **options), AP(scores, target, **options))


@pytest.mark.parametrize("surrogate", NAMES)
def test_numbers_of_copies(data, surrogate):
    """An integer weight stands for copies, if a copy counts like the example itself: if ℓ(0) is the own term."""
    scores, target, _ = data
    ell = resolve_surrogate(surrogate)
    own_value = ell.own_value(scores)
    options = {"surrogate": lambda t: torch.where(t == 0, own_value, ell(t)), "temperature": 0.3}
    count = torch.arange(N) % 4
    weighted = AP(scores, target, weight=count, **options)
    copied = AP(scores.repeat_interleave(count), target.repeat_interleave(count), **options)
    torch.testing.assert_close(weighted, copied, rtol=1e-12, atol=0)
    torch.testing.assert_close(AP(scores, target, weight=count, surrogate=surrogate, temperature=0.3), weighted)


@pytest.mark.parametrize("surrogate", NAMES)
def test_classes_without_weight(data, surrogate):
    """They are classes without members: 0 without positives, and -1 without negatives."""
    scores, target, _ = data
    loss = AP(scores, target, weight=(target == 0).double(), surrogate=surrogate)
    assert loss == 0
    assert (torch.autograd.grad(loss, scores)[0] == 0).all()
    loss = AP(scores, target, weight=(target == 1).double(), surrogate=surrogate)
    assert loss.item() == pytest.approx(-1, rel=1e-12)


@pytest.mark.parametrize("surrogate", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_any_dtype(data, surrogate, dtype):
    scores, target, weight = data
    weight = weight.ceil().to(dtype)
    for narrow in (torch.float32, torch.bfloat16):
        loss = AP(scores.to(narrow), target, weight=weight, surrogate=surrogate)
        exact = AP(scores.to(narrow).double(), target, weight=weight.double(), surrogate=surrogate)
        assert loss.dtype == narrow
        torch.testing.assert_close(loss.double(), exact, rtol=1e-6 if narrow == torch.float32 else 2**-8, atol=0)


@pytest.mark.parametrize("surrogate", NAMES)
def test_weights_of_all_magnitudes(data, surrogate):
    """From 1e-9 to 1e9, of which the largest have the highest scores, or the lowest."""
    scores, target, _ = data
    weight = torch.logspace(-9, 9, N, dtype=torch.float64)
    for order in (scores.argsort(), scores.argsort(descending=True)):
        loss = AP(scores[order], target[order], weight=weight, surrogate=surrogate)
        arrays = (x.detach().numpy() for x in (scores[order], target[order]))
        expected = naive.average_precision_loss(*arrays, weight=weight.numpy(), surrogate=surrogate)
        np.testing.assert_allclose(loss.item(), expected, rtol=1e-10)


def test_on_another_device():
    with pytest.raises(ValueError, match="weight and scores must be on the same device; got meta and cpu"):
        F.average_precision_loss(torch.zeros(2), torch.tensor([0, 1]), weight=torch.ones(2, device="meta"))
