"""Average precision, p-norm push and AUC."""

import numpy as np
import pytest
import torch

import fcco
import fcco.functional as F
from fcco.core import kernels
from fcco.core.surrogates import as_surrogate
from fcco.objectives.bipartite import AUC, AUCMargin, AveragePrecision, PNormPush, Scored

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
RULES = (fcco.BSGD(), fcco.SOAP(0.7), fcco.SOX(0.5))
torch.manual_seed(0)
SCORES = 2 * torch.randn(60, dtype=torch.float64)
TARGET = (torch.rand(60) < 0.4).long()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("many", [kernels.MANY, 0])
@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("kind", ["ap", "push", "auc"])
def test_of_all_data_it_is_exact(kind, name, many, library, monkeypatch):
    monkeypatch.setattr(kernels, "MANY", many)
    ell = as_surrogate(name, 0.8)
    objective, exact = {
        "ap": (AveragePrecision(ell, 0.7), lambda x: F.average_precision_loss(x, TARGET, temperature=0.7, **options)),
        "push": (PNormPush(ell, 3), lambda x: F.p_norm_push_loss(x, TARGET, p=3, **options)),
        "auc": (AUC(ell), lambda x: F.auc_loss(x, TARGET, **options)),
    }[kind]
    options = {"surrogate": name, "margin": 0.8}
    loss = as_loss(objective, 60, fcco.BSGD(), library)
    assert_equal(lambda x: loss(x, TARGET, index=torch.arange(60)), exact, SCORES)
    assert_equal(lambda x: loss.eval()(x, TARGET), exact, SCORES)


@pytest.mark.parametrize("library", LIBRARIES)
def test_min_max_is_exact(library):
    loss = as_loss(AUCMargin(0.8), 1, fcco.BSGD(), library).eval()
    assert_equal(lambda x: loss(x, TARGET), lambda x: F.auc_loss(x, TARGET, form="min_max", margin=0.8), SCORES)


@pytest.mark.parametrize("library", LIBRARIES)
def test_min_max_keeps_the_digits_of_single_precision(library):
    loss = as_loss(AUCMargin(), 1, fcco.SOAP(0.9), library)
    x = (SCORES + 1e4).float()
    value, gradient = value_and_gradient(lambda x: loss(x, TARGET, index=0 * TARGET), x)
    exact, of_exact = value_and_gradient(lambda x: F.auc_loss(x, TARGET, form="min_max"), x.double())
    assert abs(value - exact) < 1e-5 * exact
    assert (gradient - of_exact).abs().max() < 1e-5 * of_exact.abs().max()


@pytest.mark.parametrize("name", ["ramp", "squared_hinge", "exp"])
@pytest.mark.parametrize("kind", ["ap", "push", "auc", "auc of known sizes"])
def test_with_a_memory_the_gradient_is_unbiased(kind, name):
    labels, sizes, ell = np.array([0] * 4 + [1] * 3), np.array([4.0, 3.0]), as_surrogate(name)
    objective = {
        "ap": AveragePrecision(ell, 1.0, sizes, "exact"),
        "push": PNormPush(ell),
        "auc": AUC(ell),
        "auc of known sizes": AUC(ell, sizes),
    }[kind]
    objective.refreshes = False
    rng = np.random.RandomState(0)
    x, u = Scored(rng.randn(7), labels), rng.rand(7, objective.dim)[:, slice(None) if objective.dim > 1 else 0] + 1
    for batches in (stratified_batches(labels, (2, 1)), stratified_batches(labels, (1, 1)), random_batches(7, 3)):
        for disjoint in (False, True):
            u_of = np.log(u) if objective.log else u
            assert bias(objective, x, u_of, all_draws(batches, disjoint=disjoint)) < 1e-12


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("kind", ["ap", "push", "auc"])
def test_extreme_scores_give_finite_losses(kind, name, dtype, memory, library):
    """Of push and AUC with "exp", only those whose own value is finite."""
    ell = as_surrogate(name)
    objective = {"ap": AveragePrecision(ell), "push": PNormPush(ell, 2), "auc": AUC(ell)}[kind]
    loss, sign = as_loss(objective, 60, fcco.SOAP(0.7), library, memory), 2 * TARGET - 1
    for scale in (0.0, 1e-30, 1e2, 1e4):
        x = (scale * SCORES if kind == "ap" else scale * SCORES.abs() * sign).to(dtype)
        for _ in range(2):
            value_and_gradient(lambda x: loss(x, TARGET, index=torch.arange(60)), x)


@pytest.mark.parametrize("many", [kernels.MANY, 0])
def test_a_sum_does_not_vanish_beside_those_that_are_not_in_it(many, monkeypatch):
    monkeypatch.setattr(kernels, "MANY", many)
    x, target = torch.tensor([490.0, 1.0, 0.0, 0.5, -500.0]), torch.tensor([1, 1, 1, 0, 0])
    loss = as_loss(PNormPush(as_surrogate("exp"), 1), 5, fcco.BSGD())
    assert_equal(
        lambda x: loss(x, target, index=torch.arange(5)), lambda x: F.p_norm_push_loss(x, target, p=1), x, 1e-5
    )


def test_a_function_is_not_taken_for_the_surrogate_of_its_name(monkeypatch):
    def hinge(t):
        return t.sigmoid()

    monkeypatch.setattr(kernels, "MANY", 0)
    loss = as_loss(AUC(as_surrogate(hinge)), 1, fcco.BSGD())
    assert_equal(
        lambda x: loss(x, TARGET, index=0 * TARGET), lambda x: F.auc_loss(x, TARGET, surrogate="sigmoid"), SCORES
    )


def test_a_function_may_overflow_on_pairs_that_do_not_count():
    loss = as_loss(AUC(as_surrogate(lambda t: t.exp())), 1, fcco.BSGD())
    x = 1e4 * SCORES.abs() * (2 * TARGET - 1) + TARGET
    value, _ = value_and_gradient(lambda x: loss(x, TARGET, index=0 * TARGET), x)
    assert value < 1
