"""The study in small, and its parts against what the library has already."""

import math
from functools import partial

import pytest
import torch

import fcco
from fcco.cli import main
from fcco_reproduce import Scale
from fcco_reproduce.quick import STUDY
from fcco_reproduce.quick._compare import compare, judge, row
from fcco_reproduce.quick._objectives import PENALTY, Batch, P, make, neighbours
from fcco_reproduce.quick._runs import RunsByRate, optimum


def breast_cancer():
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x = bunch.data[:, :10]
    return torch.tensor((x - x.mean(0)) / x.std(0)), torch.tensor(bunch.target == 0).long()


@pytest.fixture
def weights():
    return torch.randn(2, 1, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 4


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("p-norm push", lambda h, y: fcco.functional.p_norm_push_loss(h, y, p=P)),
        ("average precision", partial(fcco.functional.average_precision_loss, surrogate="squared_hinge")),
    ],
)
def test_the_objective_is_that_of_the_library(weights, name, exact):
    x, y = breast_cancer()
    found = make(name, torch.float64).value(weights)
    expected = [exact(x @ w[0], y) + PENALTY / 2 * w.square().sum() for w in weights]
    torch.testing.assert_close(found, torch.stack(expected))


def test_the_objective_of_neighbours_is_that_of_the_library():
    from sklearn.datasets import load_digits

    bunch, made = load_digits(), neighbours(torch.float64)
    w = torch.randn(1, *made.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 8
    z = torch.tensor(bunch.data[: made.n] / 16) @ w[0].T
    exact = fcco.functional.nca_loss(z, torch.tensor(bunch.target[: made.n]))
    torch.testing.assert_close(made.value(w)[0], exact + PENALTY / 2 * w.square().sum())


@pytest.mark.parametrize("name", ["p-norm push", "average precision", "NCA"])
def test_estimates_are_unbiased(name):
    """The mean over 20,000 batches of 5 is g, within 5 standard errors; an own term counted twice is off by 10 %."""
    made = make(name, torch.float64)
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(1, *made.shape, dtype=torch.float64, generator=generator) / 10
    count, rows = 20_000, torch.zeros(20_000, 1, dtype=torch.long)
    first, second = (
        torch.stack([torch.randint(size, (count,), generator=generator) for _ in range(5)], 1) for size in made.sets
    )
    if made.shared == 0:
        first[:, 0] = 0  # the outer row is one of its batch, and stands in it once
        first[:, 1:] = torch.randint(1, made.sets[0], (count, 4), generator=generator)
    estimate = made.inner(w.expand(count, -1, -1), rows, Batch(rows, first, second))
    every = [torch.arange(size)[None] for size in made.sets]
    exact = made.inner(w, rows[:1], Batch(rows[:1], *every))
    if made.log:
        estimate, exact = estimate.exp(), exact.exp()
    error = estimate.std(0) / math.sqrt(count)
    assert ((estimate.mean(0) - exact[0]).abs() <= 5 * error + 1e-12).all()
    assert (error < 0.02 * exact[0]).all()


def test_a_run_is_the_loop_that_a_user_would_write():
    """One run of SOX on p-norm push, against fcco.losses on the same batches."""
    x, y = breast_cancer()
    made = make("p-norm push", torch.float64)
    runs = RunsByRate(made, "SOX", (0.003, 0.01), torch.zeros(2, 1, 10, dtype=torch.float64), steps=30, batch=4)
    draws, draw = [], runs._draw
    runs._draw = lambda: draws.append(draw()) or draws[-1]
    for _ in range(30):
        runs.step()
    positive, negative = y.nonzero()[:, 0], (1 - y).nonzero()[:, 0]
    w = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    loss_fn = fcco.losses.PNormPushLoss.from_targets(y, p=P, rule=fcco.SOX(0.1))
    optimizer = fcco.optim.MovingAverageSGD([w], lr=0.01, beta=0.1, weight_decay=PENALTY)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    for batch in draws:
        index = torch.cat([positive[batch.inner[3]], negative[batch.others[3]]])
        optimizer.zero_grad()
        loss_fn(x[index] @ w, y[index], index).backward()
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(runs.weights[3, 0], w.detach())


def test_a_run_that_diverges_leaves_the_others_alone():
    made, starts = make("p-norm push"), torch.zeros(2, 1, 10)
    alone = RunsByRate(made, "SOAP", (0.003,), starts, steps=200, batch=4)
    beside = RunsByRate(made, "SOAP", (0.003, 30.0), starts, steps=200, batch=4)
    for _ in range(200):
        alone.step()
        beside.step()
    assert beside.diverged.tolist() == [False, False, True, True]
    torch.testing.assert_close(beside.weights[:2], alone.weights, rtol=1e-4, atol=1e-5)


def test_the_exact_minimum_has_no_slope():
    made = make("p-norm push", torch.float64)
    least = optimum(made, torch.zeros(1, 10, dtype=torch.float64), 500)
    assert least == pytest.approx(optimum(made, torch.full((1, 10), 0.3, dtype=torch.float64), 500), rel=1e-6)
    assert least < 0.003


def test_a_method_that_always_diverges_is_said_to():
    plan = {"objective": "p-norm push", "batch": 4, "steps": 60, "seeds": 2, "tuning_seeds": 6}
    lost = compare(method="MOAP", rates=[3.0, 30.0], gammas=[0.1], **plan)
    others = [compare(method=name, rates=[0.003, 0.01], gammas=[0.5], **plan) for name in ("BSGD", "SOX")]
    assert lost["diverged"] == lost["tried"] == 2
    assert row(lost, 0.0)["objective"] == "diverged"
    finding = judge([{"start": 1.0, "minimum": 0.0027}, lost, *others], "That is all.")
    assert "MOAP diverged in all settings" in finding.verdict
    assert finding.verdict.endswith("That is all.")
    assert "Below 0" not in finding.verdict
    cut_short = judge([{"start": 1.0, "minimum": 0.9}, lost, *others], "")
    assert cut_short.verdict.endswith(
        "Below 0 means below the point that L-BFGS reached in its few iterations from one start."
    )
    assert [line["method"] for line in finding.rows] == ["at the start", "L-BFGS, all pairs", "MOAP", "BSGD", "SOX"]


def test_every_method_is_tuned_alike():
    for experiment in STUDY.experiments():
        jobs = experiment.jobs(Scale(seeds=3))[1:]
        assert len({str(job.settings["rates"]) for job in jobs}) == 1
        assert {job.settings["method"] for job in jobs} >= {"BSGD", "SOAP", "MOAP", "SOX"}
        for job in jobs:
            assert (job.settings["gammas"] == [1.0]) == (job.settings["method"] == "BSGD")
    assert len(STUDY.experiments(only="i")[0].jobs(Scale(seeds=3))) == 1 + 2 * len(fcco.METHODS)


def test_the_command(tmp_path, capsys):
    options = ["reproduce", "quick", "--quick", "--only", "iii", "--seeds", "2", "--workers", "1"]
    assert main([*options, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in fcco.METHODS:
        assert f"  {name}  " in printed
    assert printed.endswith(f"\nreport: {tmp_path / 'report.html'}\n")
    assert (tmp_path / "report.html").exists()
