"""The partial likelihood with its derivatives, and the concordance index."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from estimators.survival_data import TIES, columns, make_data
from fcco.compiled._cox import risk_sets, sort_order
from fcco.estimators import _columns
from fcco.estimators._columns import SortedRows
from fcco.estimators._cox_objective import CoxObjective
from fcco.estimators._survival import CoxRegressor
from fcco.functional import cox_loss


def make_objective(x, time, event, ties, penalty=0.0):
    order = sort_order(time, event)
    counts = np.ones(len(time))
    sets = risk_sets(time[order], event[order], ties == "efron", counts)
    return CoxObjective(SortedRows(x, order, counts), sets, np.full(x.shape[1], penalty))


def by_autograd(x, time, event, ties, w, penalty=0.0):
    """Value, gradient and Hessian of the objective on standardised features."""
    z = torch.from_numpy((x - x.mean(0)) / x.std(0))

    def objective(w):
        loss = cox_loss(z @ w, torch.from_numpy(time), torch.from_numpy(event), ties=ties)
        return loss + 0.5 * penalty * (w @ w)

    w = torch.tensor(w, requires_grad=True)
    value = objective(w)
    (gradient,) = torch.autograd.grad(value, w)
    return value.item(), gradient.numpy(), torch.autograd.functional.hessian(objective, w).numpy()


def covariances(z, time, event, ties, w):
    """The Hessian per event, as the sum over events of the covariance of z in their risk sets."""
    hessian = np.zeros((z.shape[1], z.shape[1]))
    h = z @ w
    for t in np.unique(time[event]):
        dying = event & (time == t)
        for place in range(dying.sum()):
            left = np.where(dying, 1 - place / dying.sum() if ties == "efron" else 1.0, time >= t)
            share = left * np.exp(h - h[left > 0].max(), where=left > 0, out=np.zeros(len(h)))
            hessian += np.cov(z.T, aweights=share, ddof=0)
    return hessian / event.sum()


@pytest.mark.parametrize("scale", [0.0, 1.0, 400.0])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("tied", [True, False])
def test_derivatives_are_those_of_the_exact_objective(ties, tied, scale):
    """At scale 400 log risks lie thousands apart, no common unit could hold all risk sets, and those alike count."""
    x, time, event = make_data(60, tied=tied)
    x = np.round(x)
    w = scale * np.array([1.0, 0.0, -1.0]) * x.std(0)
    objective = make_objective(x, time, event, ties, penalty=0.3)
    value = objective.value(w)
    gradient, hessian = objective.derivatives()
    expected = by_autograd(x, time, event, ties, w, penalty=0.3)
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-10, atol=1e-12)
    z = (x - x.mean(0)) / x.std(0)
    np.testing.assert_allclose(hessian, covariances(z, time, event, ties, w) + 0.3 * np.eye(3), rtol=1e-9, atol=1e-11)
    if scale <= 1:
        np.testing.assert_allclose(hessian, expected[2], rtol=1e-9, atol=1e-11)
    assert hessian[1, 1] > 0.31


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_blocks_may_end_anywhere(monkeypatch, kind):
    x, time, event = make_data(100)
    expected = CoxRegressor(ties="efron").fit(x, columns(time, event))
    monkeypatch.setattr(_columns, "_BLOCK", 9)  # three rows
    found = CoxRegressor(ties="efron").fit(kind(x), columns(time, event))
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-10)
    np.testing.assert_allclose(found.covariance_, expected.covariance_, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("ties", TIES)
def test_the_gradient_vanishes_at_the_solution(ties):
    x, time, event = make_data()
    model = CoxRegressor(ties=ties).fit(x * [1e6, 1e-6, 1.0] + [1e9, 0.0, -5.0], columns(time, event))
    w = model.coef_ * np.array([1e6, 1e-6, 1.0]) * x.std(0)
    value, gradient, _ = by_autograd(x, time, event, ties, w)
    assert np.abs(gradient).max() < 1e-7
    assert model.log_likelihood_ == pytest.approx(-value * event.sum(), rel=1e-9)
    assert model.loss_curve_[-1] == pytest.approx(value, rel=1e-9)
    assert model.n_iter_ == len(model.loss_curve_) - 1 < 8


def test_one_iteration_is_one_step_of_newtons_method():
    x, time, event = make_data()
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        model = CoxRegressor(max_iter=1).fit(x, columns(time, event))
    _, gradient, hessian = by_autograd(x, time, event, "breslow", np.zeros(3))
    np.testing.assert_allclose(model.coef_ * x.std(0), -np.linalg.solve(hessian, gradient), rtol=1e-8)
    assert (model.n_iter_, len(model.loss_curve_)) == (1, 2)
