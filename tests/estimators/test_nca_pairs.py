"""Sums over pairs of rows: against autograd of the exact objective, and on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fcco.estimators import _nca_pairs
from fcco.estimators._nca_pairs import Pairs
from fcco.functional import nca_loss

Array = NDArray[Any]


def problem(n_classes: int, n: int = 50) -> tuple[Array, Array, Array]:
    """Rows far from the origin, one of them alone in its class, and a map."""
    random = np.random.RandomState(0)
    label = np.concatenate([random.randint(0, n_classes, n - 1), [n_classes]])
    return 3 + random.randn(n, 6), np.unique(label, return_inverse=True)[1], 0.6 * random.randn(3, 6)


@pytest.mark.parametrize("scale", [1.0, 1e3], ids=["near", "far apart"])
@pytest.mark.parametrize("n_classes", [1, 4, 25], ids=["one class", "few classes", "many classes"])
@pytest.mark.parametrize("height", [1, 7, 64], ids=["row by row", "uneven blocks", "one block"])
def test_all_pairs_give_the_exact_gradient(
    height: int, n_classes: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nca_pairs, "_HEIGHT", height)
    x, label, start = problem(n_classes)
    weights = torch.nn.Parameter(torch.tensor(scale * start))
    loss = nca_loss(torch.tensor(x) @ weights.T, torch.tensor(label))
    loss.backward()
    pairs = Pairs(x, label, x.mean(0))
    share, gradient = pairs.share_and_gradient(scale * start)
    assert share == pytest.approx(-loss.item(), abs=1e-9)
    assert pairs.share(scale * start) == share
    np.testing.assert_allclose(gradient, weights.grad.numpy(), atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("n_classes", [4, 25])
def test_anchors_and_rivals_are_those_asked_for(n_classes: int) -> None:
    """Anchors that are among the rivals are not their own rivals."""
    x, label, start = problem(n_classes)
    pairs, random = Pairs(x, label, x.mean(0)), np.random.RandomState(1)
    anchors, rivals = (np.sort(random.permutation(50)[:m]) for m in (20, 30))
    weights, rows = torch.nn.Parameter(torch.tensor(start)), torch.from_numpy(pairs.x)
    own, others = rows[anchors] @ weights.T, rows[rivals] @ weights.T
    close = (-(own[:, None] - others).square().sum(2)).exp() * torch.from_numpy(anchors[:, None] != rivals)
    same = torch.from_numpy(pairs.label[anchors][:, None] == pairs.label[rivals])
    expected = ((close * same).sum(1) / close.sum(1)).mean()
    (-expected).backward()
    share, gradient = pairs.share_and_gradient(start, anchors, rivals)
    assert share == pytest.approx(expected.item(), abs=1e-12)
    np.testing.assert_allclose(gradient, weights.grad.numpy(), atol=1e-12)
    share, rough = pairs.share_and_gradient(start, anchors, rivals, np.float32)
    assert share == pytest.approx(expected.item(), abs=1e-6)
    assert rough.dtype == np.float64
    np.testing.assert_allclose(rough, gradient, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_without_mates_the_gradient_is_nothing(dtype: Any) -> None:
    """Not a tiny one, whose square would be 0, and by which L-BFGS would divide."""
    x, _, start = problem(4)
    share, gradient = Pairs(x.astype(dtype), np.arange(50), x.mean(0)).share_and_gradient(start.astype(dtype))
    assert share == 0.0
    assert not gradient.any()


def test_shares_of_anchors_are_exact() -> None:
    x, label, start = problem(4)
    pairs = Pairs(x, label, x.mean(0))
    each = [pairs.share(start, np.array([i])) for i in range(50)]
    assert pairs.share(start) == pytest.approx(np.mean(each), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_are_the_same_bit_by_bit_on_any_number_of_threads(dtype: Any) -> None:
    x, label, start = problem(4, n=700)
    pairs, before = Pairs(x.astype(dtype), label, x.mean(0)), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(pairs.share_and_gradient(start.astype(dtype)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for share, gradient in found[1:]:
        assert share == found[0][0]
        np.testing.assert_array_equal(gradient, found[0][1])
