"""``solve`` with a rule in the place of a method's name."""

from dataclasses import dataclass

import pytest
import torch

import fcco
from solvers.cases import RATES, exponential

NAMED = {"sox": fcco.SOX(0.2), "soap": fcco.SOAP(0.2), "moap": fcco.MOAP(0.2), "bsgd": fcco.BSGD()}
NAMED |= {"scgd": fcco.SCGD(0.2), "nasa": fcco.NASA(0.2)}


@pytest.mark.parametrize("name", NAMED)
def test_a_rule_is_the_method_of_its_name(name):
    problem, _ = exponential()
    beta = 0.3 if name in ("sox", "moap", "nasa") else 1.0
    options = {"outer_batch": 4, "inner_batch": 2, "steps": 30, "lr": 0.05, "beta": beta}
    mine = fcco.solve(problem, NAMED[name], **options)
    theirs = fcco.solve(problem, name, gamma=0.2, **options)
    assert torch.equal(mine.weights, theirs.weights)
    assert mine.inner_evaluations == theirs.inner_evaluations
    assert mine.method == name.upper()


def test_no_momentum_by_default():
    problem, _ = exponential()
    options = {"steps": 20, "lr": 0.05, "outer_batch": 4}
    mine = fcco.solve(problem, fcco.SOX(0.2), **options)
    assert torch.equal(mine.weights, fcco.solve(problem, fcco.SOX(0.2), beta=1.0, **options).weights)


@dataclass(frozen=True)
class LatestOrOlder(fcco.Rule):
    """A rule of one's own: the mean of the old row and the estimate."""

    @property
    def rate(self):
        return 0.5

    def update(self, old, batch):
        new = (old + batch.estimate) / 2
        return new, new


def test_a_rule_of_ones_own():
    problem, _ = exponential()
    options = {"outer_batch": 4, "steps": 30, "lr": 0.05}
    mine = fcco.solve(problem, LatestOrOlder(), **options)
    assert torch.allclose(mine.weights, fcco.solve(problem, fcco.SOAP(0.5), **options).weights)


def test_resumed(tmp_path):
    problem, _ = exponential()
    options = {"method": fcco.SOAP(0.2), "outer_batch": 4, "steps": 30, "lr": 0.05}
    fcco.solve(problem, **options, checkpoint=tmp_path / "run.pt", callback=lambda state: state.step == 11)
    resumed = fcco.solve(problem, **options, checkpoint=tmp_path / "run.pt")
    assert torch.equal(resumed.weights, fcco.solve(problem, **options).weights)
    with pytest.raises(ValueError, match="belongs to another run: its rule is"):
        fcco.solve(problem, **options | {"method": fcco.SOAP(0.4)}, checkpoint=tmp_path / "run.pt")


def test_refuses_a_second_gamma():
    problem, _ = exponential()
    with pytest.raises(ValueError, match=r"gamma= cannot be used with a rule, which has its own rate; got gamma=0\.2"):
        fcco.solve(problem, fcco.SOX(0.1), **RATES)


def test_refuses_first_estimates_of_rows_that_start_from_zero():
    problem, _ = exponential()
    with pytest.raises(ValueError, match="cannot be used with MOAP, whose u starts from 0"):
        fcco.solve(problem, fcco.MOAP(0.1), steps=1, lr=0.1, estimate_all=True)


@dataclass(frozen=True)
class LogOnly(LatestOrOlder):
    log = True


def test_refuses_a_rule_of_the_other_space():
    problem, _ = exponential()
    with pytest.raises(ValueError, match="LogOnly is defined for log=True only"):
        fcco.solve(problem, LogOnly(), steps=1, lr=0.1)
