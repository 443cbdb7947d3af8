"""The fuzzer in its short form: the same few plans every time. ``make fuzz`` looks for others."""

import pytest

import fcco
from fuzz import TARGETS, fuzz


@pytest.mark.parametrize(("check", "case"), TARGETS, ids=[str(case) for _, case in TARGETS])
def test_a_finite_gradient_or_a_refusal(check, case):
    fuzz(check, case, max_examples=5, derandomize=True, database=None)


def test_every_loss_and_every_objective_is_a_target():
    cases = [case for _, case in TARGETS]
    covered = {base.__name__ for case in cases if hasattr(case, "loss") for base in case.loss.__mro__}
    assert covered >= set(fcco.losses.__all__)
    objectives = {name for name in fcco.functional.__all__ if name.endswith("_loss")}
    assert {case.name for case in cases if hasattr(case, "name")} == objectives - {"maml_loss"}
