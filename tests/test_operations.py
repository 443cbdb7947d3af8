"""How many operations a step dispatches, which is what it costs on a small batch, and on an accelerator."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fcco

VIEWS = {"view", "expand", "unsqueeze", "squeeze", "slice", "select", "detach", "alias"}


class Counter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def operations(rule, log, device):
    """Names of the operations of a second step on the same distinct rows, forward and backward."""
    loss_fn = fcco.CoupledLoss(torch.neg if log else torch.log, 1000, rule=rule, log=log).to(device)
    inner, rows = torch.ones(8, device=device, requires_grad=True), torch.arange(8, device=device)
    loss_fn(inner, rows).backward()
    with Counter() as counter:
        loss_fn(inner, rows).backward()
    return [name for name in counter.names if name not in VIEWS]


# On the meta device nothing can be read, as on an accelerator: rows may repeat, and may be new.
@pytest.mark.parametrize(
    ("rule", "log", "on_cpu", "on_device"),
    [
        (fcco.BSGD(), False, 52, 82),
        (fcco.SOAP(0.1), False, 53, 83),
        (fcco.SOX(0.1), False, 53, 83),
        (fcco.SOX(0.1), True, 65, 102),
        (fcco.SOX(fcco.schedules.RunningMean()), False, 65, 94),
        (fcco.MOAP(0.1), False, 72, 105),
    ],
    ids=str,
)
def test_a_step_dispatches_no_more_than(rule, log, on_cpu, on_device):
    assert len(operations(rule, log, "cpu")) <= on_cpu
    assert len(operations(rule, log, "meta")) <= on_device


def test_rows_are_gathered_and_scattered_once():
    for device, expected in (("cpu", [1, 1]), ("meta", [2, 0])):  # of the values, and of the visits
        names = operations(fcco.SOAP(0.1), False, device)
        assert [names.count(name) for name in ("index_copy_", "index_fill_")] == expected
    assert operations(fcco.SOAP(0.1), False, "cpu").count("index_select") == 2  # of the values, and of the visits


def test_new_rows_are_marked_again_only_where_there_are_any():
    """A batch of which one row is new writes the same marks as one of which all are."""
    loss_fn = fcco.CoupledLoss(torch.log, 6, rule=fcco.SOAP(0.5))
    for rows in ([0, 1], [0, 1], [1, 4]):
        loss_fn(torch.ones(2, requires_grad=True), rows)
    assert loss_fn.table.visits.tolist() == [True, True, False, False, True, False]
