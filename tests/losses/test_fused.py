"""The losses worked out by hand are those of the estimates, step by step."""

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco import losses
from fcco.losses import _bipartite
from fcco.losses._fused import Pairs, SortedHinges

SURROGATES = ["squared_hinge", "hinge", "logistic", "sigmoid", "exp", lambda t: (1 + t.square()).log() + 0.5]
RULES = [fcco.SOX(0.3), fcco.SOAP(0.3), fcco.MOAP(0.3), fcco.BSGD()]
N, N_POS = 60, 20


def both_ways(make, monkeypatch, steps, dtype=torch.float64, size=16):
    """Values, gradients and table of the loss by hand, and by the estimate and autograd."""
    results = []
    for by_hand in (True, False):
        with monkeypatch.context() as patch:
            if not by_hand:
                patch.setattr(_bipartite, "can_fuse", lambda *_: False)
            loss_fn, history = make(), []
            generator = torch.Generator().manual_seed(0)
            for step in range(steps):
                scores = torch.randn(size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
                repeats = step % 2 == 0 or size > N
                index = torch.randint(N, (size,), generator=generator)
                if not repeats:
                    index = torch.randperm(N, generator=generator)[:size]
                target = index < N_POS
                loss = loss_fn(scores, target, index)
                loss.backward()
                history += [loss.detach(), scores.grad]
            results.append((history, loss_fn.table.read(None, cold=0.0)))
    return results


@pytest.mark.parametrize("surrogate", SURROGATES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("own_term", ["exact", "sampled"])
def test_average_precision(surrogate, rule, own_term, monkeypatch):
    def make():
        return losses.AveragePrecisionLoss(N, N_POS, 0.7, surrogate, rule, own_term)

    by_hand, by_graph = both_ways(make, monkeypatch, steps=6)
    torch.testing.assert_close(by_hand, by_graph, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("surrogate", SURROGATES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_p_norm_push(surrogate, rule, monkeypatch):
    by_hand, by_graph = both_ways(lambda: losses.PNormPushLoss(N, 3, surrogate, 0.7, rule), monkeypatch, steps=6)
    torch.testing.assert_close(by_hand, by_graph, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("make", [lambda: losses.AveragePrecisionLoss(N, N_POS), lambda: losses.PNormPushLoss(N)])
def test_float32_agrees_to_its_precision(make, monkeypatch):
    by_hand, by_graph = both_ways(make, monkeypatch, steps=4, dtype=torch.float32)
    torch.testing.assert_close(by_hand, by_graph, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("power", ["squared_hinge", "hinge"])
@pytest.mark.parametrize("spread", [1.0, 1e3])
def test_sorting_is_going_through_pairs(power, spread):
    surrogate = fcco.functional._surrogates.resolve_surrogate(power, 0.5)
    rng = np.random.default_rng(0)
    own, rivals, weight = spread * rng.normal(size=40) + 7, spread * rng.normal(size=30) + 7, rng.normal(size=40)
    own[:5] = rivals[:5]
    pairs, sorted_ = Pairs(surrogate, own, rivals), SortedHinges(surrogate, own, rivals)
    np.testing.assert_allclose(sorted_.sums, pairs.sums, rtol=1e-9, atol=1e-9 * spread**2)
    for mine, theirs in zip(sorted_.pull_back(weight), pairs.pull_back(weight), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9 * spread)


def test_large_batches_are_sorted(monkeypatch):
    by_hand, by_graph = both_ways(
        lambda: losses.AveragePrecisionLoss(N, N_POS, own_term="sampled"), monkeypatch, steps=1, size=500
    )
    torch.testing.assert_close(by_hand, by_graph, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss_fn", [losses.AveragePrecisionLoss(N, N_POS), losses.PNormPushLoss(N)])
def test_reaches_the_weights_of_a_model(loss_fn):
    model = nn.Linear(3, 1)
    scores = model(torch.randn(8, 3)).squeeze(1)
    (2 * loss_fn(scores, torch.arange(8) % 2, torch.arange(8))).backward()
    assert model.weight.grad.abs().sum() > 0
