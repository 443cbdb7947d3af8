"""The types of ``from_targets`` name the arguments of the constructors, no more and no fewer."""

import inspect
import typing

import pytest

from fcco import losses
from fcco.losses.loss import ObjectiveLoss

GIVEN_BY_TARGETS = {"n", "n_pos", "times", "events", "strata", "switch", "n_classes", "n_groups", "group_sizes"} | {
    "n_events",
    "target",
    "lists",
    "k",
    "class_sizes",
}
WITH_TARGETS = [
    name
    for name in losses.__all__
    if hasattr(getattr(losses, name), "from_targets") and not issubclass(getattr(losses, name), ObjectiveLoss)
]


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_options_are_those_of_the_constructor(name):
    loss = getattr(losses, name)
    hints = typing.get_type_hints(loss.from_targets, include_extras=True)
    (options,) = typing.get_args(hints["options"])
    known = {*inspect.signature(loss).parameters} - GIVEN_BY_TARGETS
    assert {*options.__annotations__} == known
