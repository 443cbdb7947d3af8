"""NCA's exact objective, in blocks, against autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from compiled.test_nca import problem, state
from fcco.compiled import _nca_exact as _all_pairs
from fcco.compiled._nca_exact import mean_share
from fcco.functional import nca_loss

Array = NDArray[Any]


@pytest.mark.parametrize("scale", [1.0, 1e3], ids=["near", "far apart"])
@pytest.mark.parametrize("pairs", [1, 170, 10_000], ids=["row by row", "uneven blocks", "one block"])
def test_all_pairs_give_the_exact_gradient(pairs: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_all_pairs, "_PAIRS", pairs)
    x, label, start = problem(np.float64)
    rows, run = state(x, label, scale * start, normalise=False)
    weights = torch.nn.Parameter(torch.tensor(scale * start))
    loss = nca_loss(torch.tensor(x) @ weights.T, torch.tensor(label))
    loss.backward()
    share, gradient = _all_pairs.share_and_gradient(rows, run.a)
    assert share == pytest.approx(-loss.item(), abs=1e-9)
    np.testing.assert_allclose(gradient, weights.grad.numpy(), atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e3], ids=["near", "far apart"])
@pytest.mark.parametrize("width", [1, 7, 50])
def test_shares_of_anchors_are_exact(width: int, scale: float) -> None:
    x, label, start = problem(np.float64)
    rows, run = state(x, label, scale * start, normalise=False)
    share = np.mean([mean_share(rows, run.a, np.array([i]), width) for i in range(50)])
    assert share == pytest.approx(-nca_loss(torch.as_tensor(x @ run.a.T), torch.as_tensor(label)).item(), abs=1e-9)
    assert mean_share(rows, run.a, np.arange(50), width) == pytest.approx(share, abs=1e-12)
