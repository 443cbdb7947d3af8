"""Schedules for gamma: their formulas, and that the engine applies them per step or per visit."""

import math

import pytest
import torch

import fcco
from fcco.schedules import Constant, Cosine, Power, RunningMean, Stages
from fcco.solvers import Problem, SOXBoost, Stage


@pytest.mark.parametrize("step", [0, 3, 10, 11, 1000])
def test_cosine_formula(step):
    expected = 0.1 + 0.9 * (1 + math.cos(math.pi * min(step / 10, 1))) / 2
    assert Cosine(0.1, 10)(step) == pytest.approx(expected, rel=1e-14)
    assert Cosine(0.1, 10)(torch.tensor(float(step))).item() == pytest.approx(expected, rel=1e-6)


def test_constant_is_a_number():
    plain, constant = (fcco.CoupledLoss(torch.log, 2, rule=fcco.SOX(gamma)) for gamma in (0.3, Constant(0.3)))
    for value in (1.0, 2.0, 5.0):
        for loss_fn in (plain, constant):
            loss_fn(torch.tensor([value]), [0])
    assert torch.equal(plain.table.u, constant.table.u)


def test_running_mean_is_the_mean_of_all_estimates():
    estimates = torch.tensor([1.0, 4.0, 2.0, 7.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    for log in (False, True):
        loss_fn = fcco.CoupledLoss(lambda u: u, 3, rule=fcco.SOX(RunningMean()), log=log)
        for estimate in estimates:
            loss_fn((estimate.log() if log else estimate).reshape(1), [1])
            loss_fn(torch.zeros(1), [2])
        held = loss_fn.table.u[1].exp() if log else loss_fn.table.u[1]
        torch.testing.assert_close(held, estimates.mean(), rtol=1e-14, atol=0)


def test_running_mean_counts_a_repeated_row_once():
    loss_fn = fcco.CoupledLoss(lambda u: u, 1, rule=fcco.SOX(RunningMean()))
    loss_fn(torch.tensor([2.0, 4.0]), [0, 0])
    loss_fn(torch.tensor([9.0]), [0])
    assert loss_fn.table.visits.tolist() == [2]
    assert loss_fn.table.u.item() == 6.0


def test_running_mean_with_a_floor_becomes_a_moving_average():
    assert RunningMean(floor=0.3)(torch.tensor([0.0, 1.0, 9.0])).tolist() == pytest.approx([1.0, 0.5, 0.3])


def test_power_lies_between_a_constant_and_the_running_mean():
    visits = torch.arange(50.0)
    assert torch.equal(Power(0.0)(visits), torch.ones(50))
    torch.testing.assert_close(Power(1.0)(visits), RunningMean()(visits))
    expected = [max((t + 1) ** -0.6, 0.2) for t in range(50)]
    assert Power(0.6, floor=0.2)(visits).tolist() == pytest.approx(expected, rel=1e-6)


def test_power_counts_the_visits_of_each_row():
    loss_fn = fcco.CoupledLoss(lambda u: u, 2, rule=fcco.SOAP(Power(0.5)))
    held = 0.0
    for visit, estimate in enumerate([1.0, 4.0, 2.0, 7.0], start=1):
        loss_fn(torch.tensor([estimate], dtype=torch.float64), [1])
        held += (estimate - held) / math.sqrt(visit)
    assert loss_fn.table.u.tolist() == pytest.approx([0.0, held], rel=1e-14)


def test_any_function_of_the_step():
    """The first step is 0, and the count is part of the state."""
    seen = []

    def schedule(step):
        seen.append(step)
        return 1 / (step + 2)

    loss_fn = fcco.CoupledLoss(torch.log, 1, rule=fcco.SOAP(schedule))
    for _ in range(3):
        loss_fn(torch.ones(1), [0])
    resumed = fcco.CoupledLoss(torch.log, 1, rule=fcco.SOAP(schedule))
    resumed.load_state_dict(loss_fn.state_dict())
    resumed(torch.ones(1), [0])
    resumed.eval()(torch.ones(1), [0])
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(0.0), r"gamma must be in \(0, 1\]; got 0.0"),
        (lambda: Cosine(1.5, 10), r"final must be in \(0, 1\]; got 1.5"),
        (lambda: Cosine(0.5, 0), "steps must be at least 1; got 0"),
        (lambda: RunningMean(-0.1), r"floor must be in \[0, 1\]; got -0.1"),
        (lambda: Power(1.5), r"exponent must be in \[0, 1\]; got 1.5"),
        (lambda: Power(0.5, floor=-1.0), r"floor must be in \[0, 1\]; got -1.0"),
        (lambda: fcco.SOX(gamma=0.0), r"gamma of SOX must be in \(0, 1\]; got 0.0"),
        (lambda: fcco.SOAP(gamma=1.01), r"gamma of SOAP must be in \(0, 1\]; got 1.01"),
        (lambda: fcco.MOAP(gamma=math.nan), r"gamma of MOAP must be in \(0, 1\]; got nan"),
        (lambda: fcco.MOAP(gamma=RunningMean()), "MOAP decays all rows at one rate"),
    ],
)
def test_refuses_rates_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("gamma", ["0.1", None, True])
def test_refuses_rates_that_are_no_numbers(gamma):
    with pytest.raises(TypeError, match=f"gamma of SOX must be a number or a schedule; got {gamma!r}"):
        fcco.SOX(gamma=gamma)


def test_rates_of_rows_need_the_attribute():
    loss_fn = fcco.CoupledLoss(torch.log, 4, rule=fcco.SOX(lambda visits: torch.ones(3)))
    with pytest.raises(ValueError, match=r"must return one rate; got a tensor of shape \[3\].*per_row = True"):
        loss_fn(torch.ones(3), [0, 1, 2])
    assert loss_fn.table.step == 0


def test_rules_are_frozen():
    with pytest.raises(AttributeError):
        fcco.SOX(0.1).gamma = 0.2
    assert fcco.SOX(0.1) == fcco.SOX(gamma=0.1)


BOOST = [Stage(0.3, 0.5, 0.5, 4), Stage(0.2, 0.3, 0.25, 3), Stage(0.1, 0.2, 0.125, 5)]


def test_stages_by_hand():
    stages = Stages(BOOST)
    expected = [0.5] * 4 + [0.25] * 3 + [0.125] * 6
    assert [stages(step) for step in range(13)] == expected
    for dtype in (torch.int64, torch.float32):
        assert [stages(torch.tensor(step, dtype=dtype)).item() for step in range(13)] == expected


def test_stages_in_a_loop_are_sox_boost():
    """A loop with the schedule takes the steps of the solver's Algorithm 2."""
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = Problem(
        n=6, inner=lambda w, rows, *_: (x[rows] @ w).exp(), outer=torch.log1p, start=torch.ones(3, dtype=torch.float64)
    )
    rows = []

    def inner(w, drawn, *_):
        rows.append(drawn)
        return problem.inner(w, drawn)

    seen = Problem(n=6, inner=inner, outer=torch.log1p, start=problem.start)
    solution = fcco.solve(seen, SOXBoost(BOOST), outer_batch=2)
    stages, w = Stages(BOOST), problem.start.clone().requires_grad_()
    loss_fn = fcco.CoupledLoss(torch.log1p, 6, rule=fcco.SOX(stages))
    optimizer = fcco.optim.MovingAverageSGD([w], lr=1.0)
    scheduler = stages.scheduler(optimizer)
    for drawn in rows:
        optimizer.zero_grad()
        loss_fn(problem.inner(w, drawn), drawn).backward()
        optimizer.step()
        scheduler.step()
    assert torch.equal(w.detach(), solution.weights)


def test_stages_resume(tmp_path):
    stages = Stages(BOOST)

    def make():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        return optimizer, stages.scheduler(optimizer)

    optimizer, scheduler = make()
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    torch.save(scheduler.state_dict(), tmp_path / "state.pt")
    again, resumed = make()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one, other in ((optimizer, scheduler), (again, resumed)):
        for _ in range(2):
            one.step()
            other.step()
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.1
    assert "beta" not in again.param_groups[0]


@pytest.mark.parametrize(
    ("stages", "error", "message"),
    [
        ([], ValueError, "at least one stage"),
        ([0.1], TypeError, r"each stage must be a fcco\.solvers\.Stage"),
        ([Stage(0.1, 0.1, Cosine(0.1, 5), 3)], TypeError, "must be numbers here; got Stage"),
        ([Stage(0.1, 2.0, 0.1, 3)], ValueError, r"beta and gamma in \(0, 1\]"),
    ],
)
def test_stages_refuse(stages, error, message):
    with pytest.raises(error, match=message):
        Stages(stages)
