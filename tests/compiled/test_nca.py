"""NCA's compiled steps against the engine, on the same rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fcco
from fcco.compiled import new_update
from fcco.compiled._nca import SECOND_RATE, NCARows, NCAState, nca_rows, nca_state, train_nca
from fcco.estimators._nca_fit import Batches, draw_batches
from fcco.functional import nca_loss

RULES = {"bsgd": fcco.BSGD(), "soap": fcco.SOAP(0.3), "moap": fcco.MOAP(0.3), "sox": fcco.SOX(0.3)}


Array = NDArray[Any]


def problem(dtype: Any, n_classes: int = 4) -> tuple[Array, Array, Array]:
    """50 rows far from the origin, one of them alone in its class, and a start."""
    random = np.random.RandomState(0)
    x = (3 + random.randn(50, 6)).astype(dtype)
    label = np.concatenate([random.randint(0, n_classes, 49), [n_classes]])
    label = np.unique(label, return_inverse=True)[1]
    return x, label, (0.6 * random.randn(3, 6)).astype(dtype)


def state(x: Array, label: Array, start: Array, *, normalise: bool) -> tuple[NCARows, NCAState]:
    return nca_rows(x, label, x.mean(0)), nca_state(start, len(x), normalise=normalise)


@pytest.mark.parametrize("optimizer", ["average", "adam"])
@pytest.mark.parametrize("n_classes", [4, 15], ids=["few classes", "many classes"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-4)])
@pytest.mark.parametrize("method", RULES)
def test_agrees_with_the_engine_on_the_same_rows(
    method: str, dtype: Any, tolerance: float, n_classes: int, optimizer: str
) -> None:
    x, label, start = problem(dtype, n_classes)
    rows, run = state(x, label, start, normalise=optimizer == "adam")
    lr, beta, alpha = 0.02, 0.3, 1e-2
    weights = torch.nn.Parameter(torch.tensor(start))
    engine = fcco.losses.NCALoss.from_targets(label, rule=RULES[method])
    steps: torch.optim.Optimizer = fcco.optim.MovingAverageSGD([weights], lr=lr, beta=beta, weight_decay=alpha)
    if optimizer == "adam":
        steps = torch.optim.Adam([weights], lr=lr, betas=(1 - beta, 1 - SECOND_RATE), eps=1e-15, weight_decay=alpha)
    batches = draw_batches(np.random.RandomState(1), label, per_pass=4, passes=6)
    update = new_update(method, 0.3, len(x))
    values, _ = train_nca(rows, update, run, *batches, np.full(24, lr), beta=beta, alpha=alpha)
    np.testing.assert_allclose(values, values_of_engine(engine, weights, steps, x, label, batches), atol=tolerance)
    np.testing.assert_allclose(run.a, weights.detach().numpy(), atol=tolerance)


def values_of_engine(engine: Any, weights: Any, steps: Any, x: Array, label: Array, batches: Any) -> list[float]:
    """A step on each batch with torch; the loss of each."""
    values, centred = [], torch.tensor(x - x.mean(0))
    for begin, end in pairwise(batches.bounds):
        index = torch.tensor(batches.order[begin:end])
        steps.zero_grad()
        loss = engine(centred[index] @ weights.T, torch.tensor(label)[index], index)
        loss.backward()
        steps.step()
        values.append(loss.item())
    return values


@pytest.mark.parametrize("method", RULES)
def test_agrees_with_the_engine_on_batches_of_one_class(method: str) -> None:
    """They say nothing of strangers: their rows have no term, and wait. Every other batch has rows of all classes."""
    x, label, start = problem(np.float64)
    alone, random = np.flatnonzero(label == 1), np.random.RandomState(1)
    parts = [part for _ in range(4) for part in (random.permutation(alone), random.permutation(50))]
    batches = Batches(np.concatenate(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])]))
    rows, run = state(x, label, start, normalise=False)
    weights, update = torch.nn.Parameter(torch.tensor(start)), new_update(method, 0.3, len(x))
    values, known = train_nca(rows, update, run, *batches, np.full(8, 0.5), beta=0.3, alpha=1e-2)
    assert list(known) == [0, 50] * 4
    engine = fcco.losses.NCALoss.from_targets(label, rule=RULES[method])
    steps = fcco.optim.MovingAverageSGD([weights], lr=0.5, beta=0.3, weight_decay=1e-2)
    np.testing.assert_allclose(values, values_of_engine(engine, weights, steps, x, label, batches), atol=1e-9)
    np.testing.assert_allclose(run.a, weights.detach().numpy(), atol=1e-9)
    assert np.abs(run.a - start).max() > 0.1


@pytest.mark.parametrize("scale", [1.0, 1e3], ids=["near", "far apart"])
def test_a_full_batch_gives_the_exact_gradient(scale: float) -> None:
    x, label, start = problem(np.float64)
    rows, run = state(x, label, scale * start, normalise=False)
    update, bounds = new_update("bsgd", 1.0, len(x)), np.array([0, 50])
    values, known = train_nca(rows, update, run, np.arange(50), bounds, np.ones(1), beta=1.0, alpha=0.0)
    assert known[0] == 50
    weights = torch.nn.Parameter(torch.tensor(scale * start))
    loss = nca_loss(torch.tensor(x) @ weights.T, torch.tensor(label))
    (gradient,) = torch.autograd.grad(loss, weights)
    assert values[0] == pytest.approx(loss.item(), abs=1e-9)
    np.testing.assert_allclose(run.average, gradient.numpy(), atol=1e-9, rtol=1e-6)
