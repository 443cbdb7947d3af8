"""The step of the table in NumPy is that of the engine."""

import numpy as np
import pytest
import torch

import fcco
from fcco.losses._array_step import can_track, track


@pytest.mark.parametrize(
    "rule",
    [
        fcco.SOX(0.3),
        fcco.SOX(0.3, safeguard=False),
        fcco.SOAP(fcco.schedules.Cosine(0.3, 2)),
        fcco.SOX(fcco.schedules.Power(0.5)),
        fcco.SOAP(fcco.schedules.RunningMean()),
        fcco.BSGD(),
    ],
    ids=str,
)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("init", [None, 0.5])
def test_tracking_arrays_is_the_same_step(rule, log, init):
    """The table moves as it does with f, and the rows f is differentiated at are the rule's."""
    with_f, alone = (fcco.CoupledLoss(torch.square, 5, rule=rule, log=log, init=init) for _ in range(2))
    assert can_track(alone)
    for value in (1.0, 3.0, 2.0):
        inner = torch.tensor([value, 2 * value], requires_grad=True)
        loss = with_f(inner, [3, 1])
        loss.backward()
        new, at = map(torch.from_numpy, track(alone, inner.detach().numpy(), np.array([3, 1])))
        torch.testing.assert_close(new.square().mean(), loss.detach())
        carried = (inner.detach() - at).exp() if log else 1
        torch.testing.assert_close(at * carried, inner.grad)
    torch.testing.assert_close(with_f.state_dict(), alone.state_dict())


@pytest.mark.parametrize("rule", [fcco.MOAP(0.3), fcco.SCENT()], ids=str)
def test_other_rules_are_not_tracked_in_arrays(rule):
    assert not can_track(fcco.CoupledLoss(torch.square, 5, rule=rule, log=True))
