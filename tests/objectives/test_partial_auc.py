"""Partial AUC: one-way, by CVaR, and two-way."""

import numpy as np
import pytest
import torch

import fcco
import fcco.functional as F
from fcco import losses as L
from fcco.core import kernels
from fcco.core.surrogates import as_surrogate
from fcco.objectives.bipartite import Scored
from fcco.objectives.partial_auc import CVaRPartialAUC, PartialAUC, TwoWayPartialAUC

from .checks import (
    all_draws,
    as_loss,
    assert_equal,
    bias,
    random_batches,
    stratified_batches,
    value_and_gradient,
)

SURROGATES = ("ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp")
LIBRARIES = ("numpy", "torch")
torch.manual_seed(0)
SCORES = torch.randn(60, dtype=torch.float64)
TARGET = (torch.rand(60) < 0.4).long()
SIZES = np.bincount(TARGET, minlength=2).astype(float)


def two_way(library, **options):
    """Return the loss of two levels."""
    loss = L.TwoWayPartialAUCLoss(60, temperature=0.7, positive_temperature=0.5, **options)
    if library == "torch":
        loss._takes_arrays = lambda columns: False
    return loss


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("many", [kernels.MANY, 0])
@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("kind", ["one-way", "cvar", "two-way"])
def test_of_all_data_it_is_exact(kind, name, many, library, monkeypatch):
    monkeypatch.setattr(kernels, "MANY", many)
    ell, options = as_surrogate(name, 0.8), {"surrogate": name, "margin": 0.8}
    rows = torch.arange(60)
    if kind == "two-way":
        loss = two_way(library, rule=fcco.BSGD(), **options)
        options |= {"temperature": 0.7, "positive_temperature": 0.5}
        assert_equal(
            lambda x: loss(x, TARGET, rows), lambda x: F.two_way_partial_auc_loss(x, TARGET, **options), SCORES
        )
        return
    objective, exact = {
        "one-way": (PartialAUC(ell, 0.7), lambda x: F.partial_auc_loss(x, TARGET, temperature=0.7, **options)),
        "cvar": (CVaRPartialAUC(ell, 0.23), lambda x: F.cvar_partial_auc_loss(x, TARGET, max_fpr=0.23, **options)),
    }[kind]
    loss = as_loss(objective, 60, fcco.BSGD(), library)
    scores = SCORES if kind == "one-way" else SCORES.mul(4).round() / 4  # with ties
    assert_equal(lambda x: loss(x, TARGET, index=rows), exact, scores)
    assert_equal(lambda x: loss.eval()(x, TARGET), exact, scores)


@pytest.mark.parametrize("name", ["squared_hinge", "sigmoid", "exp"])
@pytest.mark.parametrize("kind", ["one-way", "one-way of known sizes", "cvar"])
def test_with_a_memory_the_gradient_is_unbiased(kind, name):
    labels, sizes, ell = np.array([0] * 4 + [1] * 3), np.array([4.0, 3.0]), as_surrogate(name)
    objective = {
        "one-way": PartialAUC(ell, 0.8),
        "one-way of known sizes": PartialAUC(ell, 0.8, sizes),
        "cvar": CVaRPartialAUC(ell, 0.6, sizes),
    }[kind]
    objective.refreshes = False
    rng = np.random.RandomState(0)
    x, u = Scored(rng.randn(7), labels), rng.rand(7, 3) if kind == "cvar" else np.log(rng.rand(7) + 1)
    for batches in (stratified_batches(labels, (2, 1)), random_batches(7, 3)):
        for disjoint in (False, True):
            assert bias(objective, x, u, all_draws(batches, disjoint=disjoint)) < 1e-12


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("kind", ["one-way", "cvar", "two-way"])
def test_extreme_scores_give_finite_losses(kind, name, dtype, memory, library):
    """With "exp" only those whose own surrogates are finite; other pairs may overflow."""
    ell, rows, rule = as_surrogate(name), torch.arange(60), fcco.SOAP(0.7)
    if kind == "two-way":
        shell = two_way(library, surrogate=name)
        loss = lambda x: shell(x, TARGET, rows)  # noqa: E731
    else:
        objective = PartialAUC(ell, 0.7) if kind == "one-way" else CVaRPartialAUC(ell, 0.3, SIZES)
        shell = as_loss(objective, 60, rule, library, memory)
        loss = lambda x: shell(x, TARGET, index=rows)  # noqa: E731
    for scale in (0.0, 1e-30, 1e2, 1e4):
        x = scale * (SCORES if name != "exp" else SCORES.abs() * (2 * TARGET - 1))
        for _ in range(2):
            value_and_gradient(loss, x.to(dtype))


@pytest.mark.parametrize("library", LIBRARIES)
def test_equal_rows_with_different_scores_are_one_negative(library):
    """A copy of the anchor is neither level with it nor above it."""
    scores = torch.tensor([0.0, 1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    target, index = torch.tensor([0, 0, 0, 1, 0]), torch.tensor([0, 0, 1, 2, 3])
    loss = as_loss(CVaRPartialAUC(as_surrogate("hinge", 1.0), 0.32, np.array([9.0, 4.0])), 13, fcco.BSGD(), library)
    # Above the negative of score 2, one of three others stands for a third of the other eight; none is above that of 3.
    inside = (0.32 - 8 / 3 / 9) / (1 / 9)
    assert float(loss(scores, target, index=index)) == pytest.approx((inside * 2.5 + 3.5) / 0.32 / 4, rel=1e-12)


def test_the_peak_is_that_of_anchors_that_count():
    objective = TwoWayPartialAUC(as_surrogate("hinge"), 1.0, 2.0)
    assert objective.outer_of(np.array([-900.0, 0.0]), np.array([1.0, 0.0])).peak == -450.0
    assert objective.outer_of(np.array([-900.0, 0.0]), np.zeros(2)).peak == 0.0
