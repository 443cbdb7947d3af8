"""CoxRegressor by mini-batches: its steps, how far they come, and what it warns of."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import fcco
from compiled.parts import fill
from estimators.survival_data import columns, make_data
from fcco.compiled import RULES, new_state, train_linear
from fcco.compiled._pairs import new_batch
from fcco.estimators._survival import CoxRegressor, cox_plan


@pytest.mark.parametrize("method", RULES)
def test_descent_comes_near_the_optimum(method):
    """Within 0.002 of the exact minimum, which lies more than 0.25 below the objective of w = 0."""
    x, time, event = make_data(600, tied=False)
    x, y = x * [100.0, 0.01, 1.0], columns(time, event)
    exact = CoxRegressor(alpha=1e-6).fit(x, y)
    model = CoxRegressor(method=method, alpha=1e-6, random_state=0).fit(x, y)
    assert exact.loss_curve_[0] - exact.loss_curve_[-1] > 0.25
    assert 0 <= min(model.loss_curve_) - exact.loss_curve_[-1] < 0.002
    assert model.log_likelihood_ <= exact.log_likelihood_ + 1e-3
    np.testing.assert_allclose(model.standard_error_, exact.standard_error_, rtol=0.1)
    again = clone(model).fit(x, y)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert again.loss_curve_ == model.loss_curve_


ENGINE_RULES = {"bsgd": fcco.BSGD(), "soap": fcco.SOAP(0.3), "moap": fcco.MOAP(0.3), "sox": fcco.SOX(0.3)}


@pytest.mark.parametrize("method", RULES)
def test_descent_takes_the_steps_of_the_engine(method):
    n, d, lr, beta, alpha, steps = 40, 3, 0.1, 0.3, 0.05, 50
    x, time, event = make_data(n, d)
    plan = cox_plan(time, event, 8, method, 0.3)
    start = np.array([0.3, -0.2, 0.1])
    run, shadow = (new_state(start, n, 1, plan.first, plan.second, 5) for _ in range(2))
    rates = np.full(steps, lr)
    train_linear(x, plan.objective, plan.update, plan.sampler, run, rates, beta=beta, alpha=alpha)
    loss_fn = fcco.losses.CoxLoss(n, rule=ENGINE_RULES[method])
    loss_fn.n_outer = int(event.sum())  # as with n_events, which would also weigh the censored apart
    w = torch.tensor(start, requires_grad=True)
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=beta, weight_decay=alpha)
    batch, target = new_batch(plan.sampler.size, 1), [torch.from_numpy(part) for part in (time, event)]
    for _ in range(steps):
        rows = torch.from_numpy(fill(plan.sampler, shadow, batch))
        optimizer.zero_grad()
        loss_fn(torch.from_numpy(x)[rows] @ w, *(part[rows] for part in target), rows).backward()
        optimizer.step()
    assert np.abs(run.w - start).max() > 0.1
    np.testing.assert_allclose(run.w, w.detach().numpy(), rtol=1e-10)


def test_descent_never_ends_above_its_start():
    x, time, event = make_data()
    y = columns(time, event)
    start = CoxRegressor().fit(x, y).loss_curve_[0]
    model = CoxRegressor(method="sox", learning_rate=1e4, tol=0, max_iter=2, random_state=0)
    with pytest.warns(ConvergenceWarning, match="no pass improved on the start"):
        model.fit(x, y)
    assert -model.log_likelihood_ / event.sum() == pytest.approx(start)


@pytest.mark.parametrize("method", RULES)
def test_descent_names_an_endless_likelihood_too(method):
    """Nobody with x3 = 1 dies."""
    x, time, event = make_data()
    x = np.column_stack([x, ~event & (np.arange(len(x)) % 2 == 0)])
    with pytest.warns(ConvergenceWarning, match="rises for ever along x3:") as caught:
        CoxRegressor(method=method, random_state=0).fit(x, columns(time, event))
    assert [warning.filename for warning in caught] == [__file__]


def test_a_pass_that_makes_it_worse_is_taken_back():
    """At a rate of 30 passes do: F never rises, and what is returned is where it was lowest."""
    x, time, event = make_data()
    model = CoxRegressor(method="sox", learning_rate=30.0, tol=0, max_iter=20, random_state=0)
    model.fit(x, columns(time, event))
    assert all(np.diff(model.loss_curve_) <= 0)
    assert -model.log_likelihood_ / event.sum() == pytest.approx(model.loss_curve_[-1])


def test_steps_too_short_to_move_are_warned_of():
    x, time, event = make_data()
    with pytest.warns(ConvergenceWarning, match=r"have hardly moved.*raise learning_rate=1e-09"):
        CoxRegressor(method="sox", learning_rate=1e-9, random_state=0).fit(x[:100], columns(time, event)[:100])
