"""The compiled update rules against those of the engine, row by row."""

import math

import numpy as np
import pytest
import torch

import fcco
from compiled.parts import from_python
from fcco.compiled._rules import RULES, UNGUARDED_SOX, make_rate, new_table, new_update, rate_of_row, step_row

GAMMA = 0.3
ENGINE = {
    RULES["bsgd"]: fcco.BSGD(),
    RULES["soap"]: fcco.SOAP(GAMMA),
    RULES["sox"]: fcco.SOX(GAMMA),
    UNGUARDED_SOX: fcco.SOX(GAMMA, safeguard=False),
}
step, rate_for, row_rate = (from_python(part) for part in (step_row, make_rate, rate_of_row))


@pytest.mark.parametrize("log", [False, True], ids=["plain", "log"])
@pytest.mark.parametrize("rule", ENGINE)
def test_a_row_takes_the_step_of_the_engine(rule, log):
    """The loss is the new row, and the gradient of log u is g / u where f is differentiated."""
    loss = fcco.CoupledLoss(torch.exp if log else torch.square, n=1, rule=ENGINE[rule], log=log).double()
    rate, old, age = rate_for(GAMMA, 1.0), 0.0, 0
    for value in (0.7, 2.0, 0.1, 5.0):
        estimate = math.log(value) if log else value
        new, at = step(rule, log, rate, old, estimate, age)
        inner = torch.tensor([estimate], dtype=torch.float64, requires_grad=True)
        found = loss(inner, torch.tensor([0]))
        found.backward()
        assert found.item() == pytest.approx(math.exp(new) if log else new**2, rel=1e-12)
        assert inner.grad.item() == pytest.approx(value if log else 2.0 * at, rel=1e-12)
        old, age = new, 1


def test_moap_decays_a_row_for_the_steps_without_a_visit():
    """3 steps after its last visit, u is (1 - gamma)³ u + gamma n/B g."""
    rate, expected = rate_for(GAMMA, 4.0), (1 - GAMMA) ** 3 * 2.0 + GAMMA * 4.0 * 0.5
    assert step(RULES["moap"], False, rate, 2.0, 0.5, 3) == pytest.approx((expected, expected), rel=1e-12)
    in_log = step(RULES["moap"], True, rate, math.log(2.0), math.log(0.5), 3)
    assert np.exp(in_log) == pytest.approx((expected, expected), rel=1e-12)


def test_the_rate_of_a_row_may_fall_with_its_visits():
    table, update = new_table(2, 1), new_update("soap", 1.0, 2, exponent=0.5, floor=0.4)
    table.visits[:] = 3, 99
    rates = [row_rate(update, rate_for(1.0, 1.0), table, row).gamma for row in (0, 1)]
    assert rates == pytest.approx([4**-0.5, 0.4])
