"""The table as buffers: precision, moves, checkpoints and what it costs."""

import math

import pytest
import torch
from torch import nn

import fcco
from fcco import InnerTable


def test_reads_what_was_written():
    table = InnerTable(5, dim=2)
    table.write(torch.tensor([3, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert table.read(torch.tensor([0, 3, 1]), cold=-1.0).tolist() == [[3, 4], [1, 2], [-1, -1]]
    assert table.visited(None).tolist() == [True, False, False, True, False]


def test_writes_carry_no_graph():
    table = InnerTable(2)
    table.write(torch.tensor([0]), torch.ones(1, requires_grad=True))
    assert not table.u.requires_grad


def test_counts_visits_where_asked():
    table = InnerTable(3, visits=True)
    for _ in range(3):
        table.write(torch.tensor([1]), torch.ones(1))
    assert table.visited(None).tolist() == [0, 3, 0]


@pytest.mark.parametrize("log", [False, True])
def test_decay_is_applied_when_read(log):
    table = InnerTable(3, log=log, decays=True)
    value = torch.tensor([0.0 if log else 1.0])
    table.write(torch.tensor([0]), value, rate=0.5)
    table.write(torch.tensor([1]), value, rate=0.5)
    table.write(torch.tensor([1]), value, rate=0.25)
    cold = -math.inf if log else 0.0
    held = table.read(None, cold)
    expected = torch.tensor([0.5 * 0.75, 1.0, 0.0])
    torch.testing.assert_close(held.exp() if log else held, expected)


def test_decay_at_rate_one_forgets_for_good():
    table = InnerTable(2, decays=True)
    table.write(torch.tensor([0]), torch.tensor([5.0]), rate=0.5)
    for _ in range(3):
        table.write(torch.tensor([1]), torch.tensor([5.0]), rate=1.0)
    assert table.read(None, cold=0.0).tolist() == [0.0, 5.0]


def test_decay_at_rate_one_forgets_large_logarithms():
    table = InnerTable(2, log=True, decays=True)
    table.write(torch.tensor([0]), torch.tensor([2e4]), rate=0.5)
    table.write(torch.tensor([1]), torch.tensor([0.0]), rate=1.0)
    assert table.read(torch.tensor([0]), cold=0.0).exp().item() == 0.0


def test_decay_over_a_long_run_stays_exact():
    """A million steps of decay, in float64 and lazily, against a power."""
    table = InnerTable(2, decays=True, dtype=torch.float64)
    table.log_decay -= 1e6 * math.log(2)
    table.write(torch.tensor([0]), torch.ones(1, dtype=torch.float64), rate=0.5)
    for _ in range(20):
        table.write(torch.tensor([1]), torch.ones(1, dtype=torch.float64), rate=0.5)
    assert table.read(torch.tensor([0]), 0.0).item() == pytest.approx(0.5**20, rel=1e-8)


@pytest.mark.parametrize("cast", [lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to(torch.bfloat16)])
@pytest.mark.parametrize("rule", [fcco.SOX(), fcco.MOAP()])
def test_casting_the_model_down_leaves_the_table_exact(cast, rule):
    loss_fn = fcco.CoupledLoss(torch.log, 3, rule=rule)
    loss_fn(torch.tensor([1.2345678]), [0])
    before = {name: value.clone() for name, value in loss_fn.state_dict().items()}
    model = cast(nn.ModuleDict({"net": nn.Linear(2, 1), "loss": loss_fn}))
    assert model["net"].weight.dtype != torch.float32
    for name, value in loss_fn.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])


def test_casting_up_and_back():
    table = InnerTable(3, decays=True).double()
    assert table.u.dtype == torch.float64
    assert table.float().u.dtype == torch.float32
    assert table.log_decay.dtype == torch.float64


def test_float64_estimates_widen_the_table():
    loss_fn = fcco.CoupledLoss(torch.log, 2, rule=fcco.SOX(gamma=0.1))
    loss_fn(torch.tensor([0.1], dtype=torch.float32), [0])
    loss_fn(torch.tensor([0.1], dtype=torch.float64), [1])
    assert loss_fn.table.u.dtype == torch.float64
    assert loss_fn.table.u[1].item() == 0.1
    assert loss_fn(torch.tensor([0.1], dtype=torch.float32), [0]).dtype == torch.float64


def test_moves_to_another_device():
    table = InnerTable(3, dim=2, decays=True).to("meta")
    assert {buffer.device.type for buffer in table.buffers()} == {"meta"}


class TestLoading:
    @pytest.mark.parametrize(
        ("saved", "message"),
        [
            (InnerTable(4), "the saved table has n=4, dim=1, this one has n=3, dim=1"),
            (InnerTable(3, dim=2), "the saved table has n=3, dim=2, this one has n=3, dim=1"),
            (InnerTable(3, log=True), "the saved table has log=True, this one has log=False"),
        ],
    )
    def test_another_table_is_refused(self, saved, message):
        table = InnerTable(3)
        table.write(torch.tensor([1]), torch.ones(1))
        with pytest.raises(RuntimeError, match=message):
            table.load_state_dict(saved.state_dict())
        assert table.u.tolist() == [0, 1, 0]

    def test_inside_a_model_it_is_named(self):
        saved, loss_fn = (
            nn.ModuleDict({"ap": fcco.CoupledLoss(torch.log, n, rule=fcco.SOX(gamma=0.1))}) for n in (4, 3)
        )
        with pytest.raises(RuntimeError, match=r"ap\.table: the saved table has n=4"):
            loss_fn.load_state_dict(saved.state_dict())

    def test_marks_are_not_counts(self):
        with pytest.raises(RuntimeError, match="the saved table marks visits, this one counts them"):
            InnerTable(3, visits=True).load_state_dict(InnerTable(3).state_dict())

    def test_half_precision_is_refused(self):
        saved = {**InnerTable(3).state_dict(), "u": torch.zeros(3, dtype=torch.float16)}
        with pytest.raises(RuntimeError, match=r"the saved table is of torch.float16"):
            InnerTable(3).load_state_dict(saved, assign=True)

    def test_a_moap_table_is_not_a_sox_table(self):
        moap, sox = (fcco.CoupledLoss(torch.log, 3, rule=rule) for rule in (fcco.MOAP(), fcco.SOX()))
        with pytest.raises(RuntimeError, match="log_decay"):
            sox.load_state_dict(moap.state_dict())

    def test_float64_is_not_rounded(self):
        saved = InnerTable(2, dtype=torch.float64)
        saved.write(torch.tensor([0]), torch.tensor([0.1], dtype=torch.float64))
        table = InnerTable(2)
        table.load_state_dict(saved.state_dict())
        assert torch.equal(table.u, saved.u)

    def test_assign(self):
        saved = InnerTable(2)
        saved.write(torch.tensor([0]), torch.tensor([0.1]))
        with torch.device("meta"):
            table = InnerTable(2)
        table.load_state_dict(saved.state_dict(), assign=True)
        assert torch.equal(table.u, saved.u)


def test_costs_five_bytes_a_row():
    table = InnerTable(1000)
    assert sum(b.numel() * b.element_size() for b in table.buffers()) == 1000 * 5 + 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_dtype_is_float32_or_float64(dtype):
    with pytest.raises(ValueError, match="a table holds float32 or float64; got"):
        InnerTable(3, dtype=dtype)
