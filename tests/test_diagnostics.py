"""Diagnostics: figures against formulas, advice on problems whose answer is known, and nothing changed by either."""

import contextlib
import copy
import math
import pickle
import re
from collections import Counter
from dataclasses import astuple
from itertools import combinations, islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fcco
from fcco.core.outers import FromFunction
from fcco.core.surrogates import as_surrogate
from fcco.data import PositiveNegativeSampler
from fcco.diagnostics import (
    Advice,
    GradientError,
    Monitor,
    advise,
    exact_inner,
    gradient_bias,
    relative_error,
    row_error,
)
from fcco.diagnostics._advice import _Errors, _share, _share_error, jackknife_error, measured_drift
from fcco.diagnostics._gradients import Sample
from fcco.diagnostics._monitor import sum_of_squared_weights
from fcco.diagnostics._probe import probing
from fcco.diagnostics._watch import engine_of
from fcco.losses.loss import ObjectiveLoss, Visit
from fcco.objectives.bipartite import PNormPush
from fcco.objectives.given import GivenInner
from fcco.objectives.survival import Cox


def batches_of_rows(n=9, steps=12, size=4, seed=0):
    """Batches with repeated rows, of which the last two rows never come."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, n - 2, (size,), generator=generator) for _ in range(steps)]


def step(loss_fn, rows, **options):
    estimates = torch.arange(1.0, 1 + len(rows)).requires_grad_()
    return loss_fn(estimates, rows, **options)


class OfGiven(ObjectiveLoss):
    """CoupledLoss in the shell of every objective."""

    def __init__(self, outer, n, rule):
        super().__init__(GivenInner(FromFunction(outer)), n, rule=rule)

    def forward(self, inner, index, **options):
        return super().forward(inner, index=index, **options)


def state(loss_fn):
    return {name: value.clone() for name, value in loss_fn.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


class TestMonitor:
    @pytest.mark.parametrize("rule", [fcco.SOX(0.3), fcco.SOAP(fcco.schedules.RunningMean()), fcco.MOAP(0.3)], ids=str)
    @pytest.mark.parametrize("padded", [False, True])
    @pytest.mark.parametrize("engine", [fcco.CoupledLoss, OfGiven])
    def test_staleness_and_visits_are_those_of_a_diary(self, engine, rule, padded):
        n, last, visits = 9, {}, {}
        loss_fn = engine(torch.square, n, rule=rule)
        with Monitor(loss_fn) as monitor:
            for t, rows in enumerate(batches_of_rows(n), start=1):
                mask = torch.arange(len(rows)) % 2 == 0 if padded else torch.ones(len(rows), dtype=torch.bool)
                step(loss_fn, rows, **({"weight": mask} if padded else {}))
                for row in set(rows[mask].tolist()):
                    last[row], visits[row] = t, visits.get(row, 0) + 1
        report = monitor.report()
        stale = sorted(t - seen for seen in last.values())
        assert report["step"] == t
        assert sorted(monitor.staleness().tolist()) == stale
        assert report["staleness_mean"] == pytest.approx(sum(stale) / len(stale))
        assert report["staleness_max"] == stale[-1]
        assert report["never_seen"] == pytest.approx(1 - len(last) / n)
        assert report["visits"] == pytest.approx(sum(visits.values()) / len(visits))

    def test_rules_that_track_all_rows_see_all(self):
        loss_fn = fcco.CoupledLoss(torch.square, 5, rule=fcco.SCGD(0.3))
        with Monitor(loss_fn) as monitor:
            loss_fn(torch.ones(5, requires_grad=True), torch.tensor([2]))
        report = monitor.report()
        assert (report["never_seen"], report["effective_rate"]) == (0, pytest.approx(0.3))

    def test_calls_that_take_no_step_do_not_count(self):
        loss_fn = fcco.CoupledLoss(torch.square, 5, rule=fcco.SOX(gamma=0.1))
        with Monitor(loss_fn) as monitor:
            with torch.no_grad():
                step(loss_fn, torch.tensor([0]))
            step(loss_fn.eval(), torch.tensor([0]))
            with pytest.raises(IndexError, match=r"got 5 at position 1"):
                step(loss_fn.train(), torch.tensor([0, 5]))
            assert monitor.report() == {"step": 0, "never_seen": 1, "gamma": 0.1}

    @pytest.mark.parametrize("loss", [fcco.losses.AveragePrecisionLoss, fcco.losses.PNormPushLoss])
    @pytest.mark.parametrize("memory", [0, fcco.Memory(4), fcco.Memory(4, "estimate")], ids=str)
    def test_losses_that_work_by_hand_are_seen_and_stay_the_same(self, loss, memory):
        target = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0])
        scores = torch.linspace(-1, 1, 8).requires_grad_()
        watched, free = (loss.from_targets(target, memory=memory) for _ in range(2))
        with Monitor(watched) as monitor:
            for rows in ([0, 1, 2, 3], [0, 1, 5, 6]):
                values = [loss_fn(scores[rows], target[rows], rows) for loss_fn in (watched, free)]
                assert torch.equal(*values)
                assert torch.equal(*(torch.autograd.grad(value, scores)[0] for value in values))
        assert same(state(watched), state(free))
        outer = {0, 3, 5} if loss is fcco.losses.AveragePrecisionLoss else {1, 2, 6}
        assert set(monitor._visits.nonzero().flatten().tolist()) == outer
        assert monitor.report()["never_seen"] == pytest.approx(1 - len(outer) / watched.n_outer)

    @pytest.mark.parametrize("engine", [fcco.CoupledLoss, OfGiven])
    def test_sees_the_same_when_compiled(self, engine):
        torch._dynamo.reset()
        reports = []
        for compiled in (False, True):
            loss_fn = engine(torch.square, 9, rule=fcco.SOX(0.3))
            monitor = Monitor(loss_fn)
            # The first step of the shell is not part of a graph.
            call = torch.compile(loss_fn, fullgraph=engine is not OfGiven, backend="aot_eager") if compiled else loss_fn
            for rows in batches_of_rows():
                step(call, rows)
            reports.append(monitor.report())
        torch._dynamo.reset()
        assert reports[0] == pytest.approx(reports[1], rel=1e-5)

    def test_jump_is_the_distance_of_estimates_from_rows(self):
        loss_fn = fcco.CoupledLoss(torch.square, 4, rule=fcco.SOX(0.5))
        with Monitor(loss_fn) as monitor:
            loss_fn(torch.tensor([1.0, 2.0], requires_grad=True), [0, 1])
            assert monitor.jump is None
            loss_fn(torch.tensor([1.5, 9.0], requires_grad=True), [0, 2])  # row 2 is new
        assert monitor.jump == pytest.approx(0.5)

    @pytest.mark.parametrize("log", [False, True])
    def test_errors_are_those_of_rows_and_of_the_last_batch(self, log):
        space = torch.log if log else torch.clone
        g = space(torch.tensor([1.0, 2.0, 4.0]))
        loss_fn = fcco.CoupledLoss(torch.square, 3, rule=fcco.SOX(0.5), log=log)
        with Monitor(loss_fn, exact=lambda rows: g[rows]) as monitor:
            for estimates, rows in (([1.0, 2.0], [0, 1]), ([3.0], [1])):
                loss_fn(space(torch.tensor(estimates, requires_grad=True)), rows)
        report = monitor.report()  # u is 1, 2.5, unseen; the last estimate of row 1 was 3
        if log:
            assert report["tracking_error"] == pytest.approx(math.sqrt((2 * 0.5 / 4.5) ** 2 / 2), rel=1e-5)
            assert report["estimate_error"] == pytest.approx(2 / 5, rel=1e-5)
        else:
            assert report["tracking_error"] == pytest.approx(math.sqrt(0.5**2 / (1 + 2**2)))
            assert report["estimate_error"] == pytest.approx(1 / 2)

    def test_errors_leave_out_padding_and_rows_beyond_the_sample(self):
        asked = []

        def exact(rows):
            asked.append(rows)
            return torch.ones(len(rows))

        loss_fn = fcco.CoupledLoss(torch.square, 9, rule=fcco.SOX(gamma=0.1))
        with Monitor(loss_fn, exact, sample=3) as monitor:
            loss_fn(torch.ones(8, requires_grad=True), torch.arange(8))
            inner, weight = torch.tensor([2.0, 50.0], requires_grad=True), torch.tensor([1.0, 0.0])
            loss_fn(inner, torch.tensor([8, 0]), weight=weight)
        assert monitor.report()["estimate_error"] == pytest.approx(1.0)  # 2 for 1; 50 is padding
        (rows,) = asked
        assert len(rows[:-1].unique()) == 3
        assert rows[-1] == 8

    def test_rows_that_decay_stand_for_no_number_of_estimates(self):
        for rule, expected in ((fcco.MOAP(0.5), False), (fcco.SOX(0.5), True)):
            loss_fn = fcco.CoupledLoss(torch.square, 4, rule=rule)
            with Monitor(loss_fn) as monitor:
                step(loss_fn, torch.tensor([0, 1]))
            assert ("averaged" in monitor.report()) is expected

    def test_rates(self):
        loss_fn = fcco.CoupledLoss(torch.square, 4, rule=fcco.SOAP(fcco.schedules.Cosine(final=0.2, steps=4)))
        with Monitor(loss_fn) as monitor:
            for rows in ([0, 1], [0, 2]):
                step(loss_fn, torch.tensor(rows))
        gamma = fcco.schedules.Cosine(final=0.2, steps=4)(2)
        report = monitor.report()
        assert report["gamma"] == pytest.approx(gamma)
        assert report["effective_rate"] == pytest.approx(gamma * 4 / (4 * 2))
        twice = (1 - gamma) ** 2 + gamma**2
        assert report["averaged"] == pytest.approx((1 / twice + 1 + 1) / 3)

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_several_may_watch(self, order):
        target, scores = torch.tensor([1, 0, 0, 1]), torch.linspace(-1, 1, 4).requires_grad_()
        loss_fn = fcco.losses.PNormPushLoss(4)
        monitors = [Monitor(loss_fn), Monitor(loss_fn)]
        steps = []
        for closed in order:
            loss_fn(scores, target, torch.arange(4))
            steps.append([int(monitor._steps) for monitor in monitors])
            monitors[closed].close()
        loss_fn(scores, target, torch.arange(4))
        assert steps == [[1, 1], [1 + order[0], 2 - order[0]]]
        assert [int(monitor._steps) for monitor in monitors] == steps[-1]
        assert loss_fn.observers == []

    def test_leaves_nothing_behind(self):
        loss_fn = fcco.losses.PNormPushLoss(4)
        before = pickle.dumps(loss_fn)
        with Monitor(loss_fn):
            pass
        assert pickle.dumps(loss_fn) == before

    def test_writes_to_tensorboard(self, tmp_path):
        tensorboard = pytest.importorskip("torch.utils.tensorboard")
        events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        loss_fn = fcco.CoupledLoss(torch.square, 4, rule=fcco.SOX(gamma=0.1))
        with Monitor(loss_fn) as monitor, tensorboard.SummaryWriter(tmp_path) as writer:
            step(loss_fn, torch.tensor([0, 1]))
            report = monitor.to_tensorboard(writer, step=7)
        log = events.EventAccumulator(str(tmp_path)).Reload()
        assert {tag.removeprefix("fcco/") for tag in log.Tags()["scalars"]} == set(report) - {"step"}
        (scalar,) = log.Scalars("fcco/never_seen")
        assert (scalar.step, scalar.value) == (7, 0.5)

    def test_plots(self, tmp_path):
        pytest.importorskip("matplotlib")
        loss_fn = fcco.CoupledLoss(torch.square, 4, rule=fcco.SOX(gamma=0.1))
        monitor = Monitor(loss_fn, exact=lambda rows: torch.ones(len(rows)))
        monitor.plot()  # of nothing yet
        for _ in range(3):
            step(loss_fn, torch.tensor([0, 1]))
            monitor.report()
        figure = monitor.plot(tmp_path / "table.png")
        assert (tmp_path / "table.png").stat().st_size > 0
        lines = {line.get_label(): line for panel in figure.axes for line in panel.lines}
        assert list(lines["gamma"].get_xdata()) == [1, 2, 3]
        assert {"tracking error", "estimate error", "jump", "effective rate", "never seen"} <= set(lines)

    @pytest.mark.parametrize(
        "module",
        [
            torch.nn.Linear(1, 1),
            torch.nn.ModuleList(fcco.CoupledLoss(torch.log, 2, rule=fcco.SOX(gamma=0.1)) for _ in "ab"),
        ],
    )
    def test_wants_one_table(self, module):
        with pytest.raises(ValueError, match=r"holds [02] tables, not one"):
            Monitor(module)


class TestFormulas:
    @pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0])
    @pytest.mark.parametrize("visits", [1, 2, 5])
    def test_row_error_is_that_of_a_moving_average(self, gamma, visits):
        """Weights of the estimates, and of a g that has moved by one since each visit."""
        weights = [gamma * (1 - gamma) ** k for k in range(visits - 1)] + [(1 - gamma) ** (visits - 1)]
        variance = sum(weight**2 for weight in weights)
        lag = sum(weight * (k + 1) for k, weight in enumerate(weights))
        m = torch.tensor([float(visits)], dtype=torch.float64)
        assert sum_of_squared_weights(gamma, m).item() == pytest.approx(variance)
        assert row_error(gamma, 2.0, 3.0, m).item() == pytest.approx(4 * variance + 9 * lag**2)

    def test_drift_is_found_again(self):
        gamma, noise, drift = 0.4, 0.3, 0.05
        long = torch.tensor([1e4], dtype=torch.float64)
        jump = math.sqrt(noise**2 + row_error(gamma, noise, drift, long).item())
        assert measured_drift(jump, noise, gamma) == pytest.approx(drift)
        assert measured_drift(0.0, noise, gamma) == 0

    def test_relative_error(self):
        a, b = torch.tensor([[1.0, 10.0], [3.0, 10.0]]), torch.tensor([[1.0, 8.0], [2.0, 6.0]])
        assert relative_error(a, b) == pytest.approx(math.sqrt((1 / 5 + (4 + 16) / 100) / 2))
        shares = [0, 2 * 2 / 18, 2 * 1 / 5, 2 * 4 / 16]
        assert relative_error(a.log(), b.log(), log=True) == pytest.approx(math.sqrt(sum(s**2 for s in shares) / 4))
        nothing = torch.tensor([-math.inf, -math.inf])
        assert relative_error(nothing, torch.tensor([-math.inf, 0.0]), log=True) == pytest.approx(math.sqrt(4 / 2))


class OneRow:
    """f = u² / 2 of one inner value g = w · mean a: the in-batch gradient is off by w · Var(mean of a batch)."""

    def __init__(self, rule):
        self.a = torch.tensor([1.0, 2.0, 4.0, 5.0], dtype=torch.float64)
        self.w = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        self.loss_fn = fcco.CoupledLoss(lambda u: u**2 / 2, 1, rule=rule).double()

    def evaluate(self, loss_fn, rows):
        return loss_fn((self.w * self.a[rows]).mean().reshape(1), [0])


class TestGradients:
    def test_errors_are_those_of_all_batches(self):
        problem = OneRow(fcco.SOX(0.5))
        a, w = problem.a, problem.w.item()
        batches = list(combinations(range(4), 2))
        held = 1.1 * w * a.mean()
        problem.loss_fn(held.reshape(1).requires_grad_(), [0])
        errors = gradient_bias(
            problem.loss_fn, problem.evaluate, batches, [problem.w], population=range(4), draws=len(batches)
        )
        means = torch.stack([a[list(batch)].mean() for batch in batches])
        exact = w * a.mean() ** 2
        for error, gradients in (
            (errors.in_batch, w * means**2),
            (errors.table, held * means),
            (errors.perfect, w * a.mean() * means),
        ):
            bias2 = (gradients.mean() - exact) ** 2 - gradients.var() / len(batches)
            assert error.bias == pytest.approx((bias2.clamp(min=0).sqrt() / exact).item())
            assert error.noise == pytest.approx((gradients.std() / exact).item())
        assert errors.perfect.bias == 0
        assert errors.norm == pytest.approx(exact.item())

    def test_all_see_the_same_samples_where_the_forward_pass_draws_some(self):
        """With f(u) = u a table makes no difference."""
        w = torch.tensor(0.7, requires_grad=True)
        loss_fn = fcco.CoupledLoss(lambda u: u, 1, rule=fcco.SOX(0.5))

        def evaluate(loss_fn, rows):
            return loss_fn((w * (1 + torch.randn(len(rows)))).mean().reshape(1), [0])

        before = torch.get_rng_state()
        errors = gradient_bias(loss_fn, evaluate, [[0, 1]] * 8, [w], population=range(4), draws=8, exact=lambda: w)
        assert errors.in_batch == errors.table == errors.perfect
        assert errors.in_batch.noise > 0
        torch.set_rng_state(before)
        assert errors == gradient_bias(
            loss_fn, evaluate, [[0, 1]] * 8, [w], population=range(4), draws=8, exact=lambda: w
        )

    def test_an_exact_objective_may_be_given(self):
        problem = OneRow(fcco.SOX(0.5))
        twice = gradient_bias(
            problem.loss_fn,
            problem.evaluate,
            [[0, 1, 2, 3]] * 2,
            [problem.w],
            population=range(4),
            exact=lambda: (problem.w * problem.a.mean()) ** 2,
        )
        assert twice.in_batch.bias == pytest.approx(1 / 2)

    def test_refusals(self):
        problem = OneRow(fcco.SOX(0.5))
        arguments = problem.loss_fn, problem.evaluate
        with pytest.raises(ValueError, match="at least 2 batches; got 1"):
            gradient_bias(*arguments, iter([[0, 1]]), [problem.w], population=range(4))
        with pytest.raises(ValueError, match="does not depend on any parameter"):
            gradient_bias(*arguments, [[0, 1]], [], population=range(4))
        with pytest.raises(ValueError, match="visits must be a finite number, at least 1; got 0"):
            advise(*arguments, [[0, 1]], [problem.w], visits=0)
        with pytest.raises(ValueError, match="call the loss it is given once, with an index, and called it so 0 times"):
            exact_inner(problem.loss_fn, lambda loss_fn, rows: None, range(4))(torch.tensor([0]))


class OfObjective(ObjectiveLoss):
    """p-norm push in the shell of every objective."""

    def __init__(self, target, rule=None, memory=0):
        rule = rule or (fcco.BSGD() if memory else fcco.SOAP(0.5))
        super().__init__(PNormPush(as_surrogate("exp"), 2), len(target), rule=rule, memory=memory)
        self.n_outer = int((target == 0).sum())

    def forward(self, scores, target, index=None):
        return super().forward(scores, target, index=index)


class Push:
    """p-norm push on Gaussian data: the inner values are means of exponentials over few positives."""

    def __init__(self, batch, positives=100, **options):
        generator = torch.Generator().manual_seed(0)
        self.y = (torch.arange(4 * positives) % 4 == 0).long()
        self.x = torch.randn(len(self.y), 5, generator=generator) + 0.3 * self.y.unsqueeze(1)
        self.w = torch.full((5,), 0.3, requires_grad=True)
        options = {"memory": 0, **options}
        if isinstance(options["memory"], fcco.Memory):
            self.loss_fn = fcco.losses.PNormPushLoss.from_targets(self.y, p=2, **options)
        else:
            self.loss_fn = OfObjective(self.y, **options)
        self.sampler = PositiveNegativeSampler(self.y, batch=batch, outer="negative")

    def evaluate(self, loss_fn, rows):
        return loss_fn(self.x[rows] @ self.w, self.y[rows], rows)

    def train(self, epochs, lr):
        optimizer = fcco.optim.MovingAverageSGD([self.w], lr=lr)
        for _ in range(epochs):
            for rows in self.sampler:
                optimizer.zero_grad()
                self.evaluate(self.loss_fn, torch.as_tensor(rows)).backward()
                optimizer.step()

    def advice(self, visits, lr=1e-6, epochs=2, batches=None, draws=400):
        with Monitor(self.loss_fn) as monitor:
            self.train(epochs, lr)
        batches = self.sampler if batches is None else batches
        return advise(self.loss_fn, self.evaluate, batches, [self.w], visits=visits, monitor=monitor, draws=draws)


class TestAdvice:
    def test_padding_has_no_inner_value(self):
        loss_fn = fcco.CoupledLoss(torch.square, 3, rule=fcco.SOX(gamma=0.1))
        inner, weight = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor([1.0, 0.0, 1.0])
        g = exact_inner(loss_fn, lambda loss_fn, rows: loss_fn(inner, rows, weight=weight))(torch.arange(3))
        torch.testing.assert_close(g, torch.tensor([1.0, math.nan, 3.0]), equal_nan=True)

    def test_exact_inner_values(self):
        problem = Push(batch=4)
        g = exact_inner(problem.loss_fn, problem.evaluate)(torch.tensor([1, 2, 3]))
        h = (problem.x @ problem.w).detach()
        expected = (h[1:4, None] - h[problem.y == 1]).exp().mean(1).log()
        torch.testing.assert_close(g, expected)

    def test_a_noisy_batch_and_many_visits_want_a_table(self):
        advice = Push(batch=4).advice(visits=100)
        assert advice.use_table
        assert advice.drift_measured
        assert advice.drift < advice.noise / 2  # the weights stand still; without the noise taken off it is 0.58
        assert advice.gain < 0.8
        assert advice.gamma == 0.5  # the rate of the loss
        assert "The table should help: use gamma = 0.5" in str(advice)

    def test_one_visit_wants_none(self):
        advice = Push(batch=4).advice(visits=1, draws=4)
        assert not advice.use_table
        assert "use rule=fcco.BSGD(). Rows come once" in str(advice).replace("\n", " ")

    def test_a_batch_of_everything_wants_none(self):
        problem = Push(batch=4)
        advice = problem.advice(visits=100, batches=[range(len(problem.y))] * 2, draws=4)
        assert not advice.use_table
        assert advice.noise == 0
        assert "The batch knows g exactly" in str(advice).replace("\n", " ")

    def test_faster_training_wants_none(self):
        """Of the same problem at the same weights, where only the drift is another: what a monitor would have seen."""
        problem = Push(batch=4)
        batches = [*problem.sampler, *problem.sampler]
        found = []
        for jump in (0.0, 3.0, 30.0):
            monitor = Monitor(problem.loss_fn)
            monitor._jump += jump**2
            monitor._weight += 1
            monitor.close()
            arguments = problem.loss_fn, problem.evaluate, batches, [problem.w]
            found.append(advise(*arguments, visits=100, monitor=monitor, draws=len(batches)))
        still, moving, racing = found
        assert still.drift == 0 < moving.drift < 5 * moving.noise < racing.drift
        assert [advice.use_table for advice in found] == [True, True, False]
        assert still.gain < moving.gain
        assert min(still.by_gamma, key=still.by_gamma.get) < min(moving.by_gamma, key=moving.by_gamma.get)
        assert "rows are out of date when they are needed" in str(racing).replace("\n", " ")

    def test_the_gain_is_that_of_the_mean_over_half_of_the_run_but_of_no_more_batches_than_were_looked_at(self):
        problem = Push(batch=4, positives=10)  # 30 outer rows, two in a batch: 15 steps are a visit of all
        for visits, steps in ((3, 0.5 * 3 * 15), (1000, 200 / 2)):
            found = problem.advice(visits=visits, draws=200)
            assert min(found.table.bias, found.in_batch.bias) > 0  # otherwise steps would not matter
            with_table, without = ((e.bias**2 + e.noise**2 / steps) for e in (found.table, found.in_batch))
            assert found.gain == pytest.approx(with_table / without, rel=1e-9)
            assert found.gain == found.by_gamma[found.gamma]

    def test_rows_get_errors_from_other_batches_than_those_they_meet(self):
        problem, calls = Push(batch=4), []

        def evaluate(loss_fn, rows):
            calls.append((type(engine_of(loss_fn).rule), tuple(rows.tolist())))
            return problem.evaluate(loss_fn, rows)

        batches = [tuple(rows) for rows in islice(problem.sampler, 10)]
        advise(problem.loss_fn, evaluate, batches, [problem.w], visits=10, draws=10)
        with_table = {rows for rule, rows in calls if rule is fcco.SOAP}
        assert with_table == set(batches[5:])
        in_batch = Counter(rows for rule, rows in calls if rule is fcco.BSGD)
        assert {rows: in_batch[rows] for rows in batches} == dict.fromkeys(batches, 1)

    @pytest.mark.parametrize("kind", ["plain", "log", "signed"])
    def test_rows_of_a_run_have_the_errors_that_were_met(self, kind):
        """After one visit a row is its estimate, but where g is positive not below 5% of g."""
        n, generator = 200, torch.Generator().manual_seed(0)
        g = 0.5 + torch.rand(n, generator=generator, dtype=torch.float64)
        if kind == "signed":
            g[::2] *= -1
        factor = (1 + torch.randn(n, generator=generator, dtype=torch.float64)).clamp(min=1e-3)
        met, log = torch.arange(n // 2), kind == "log"
        space = torch.log if log else torch.clone
        yes = torch.ones(n // 2, dtype=torch.bool)
        visit = Visit(met, space(g * factor)[met], space(g)[met], yes, yes)
        rows, known = _Errors(space(g), [visit], log, seed=1).table(0.5, drift=0.0, visits=2)
        assert 0.35 < known.double().mean() < 0.65  # before the second visit half of the rows have had the first
        floor = 0.05 if kind != "signed" else -math.inf
        assert (factor[met] < 0.05).any()
        torch.testing.assert_close(rows[met], space(g * factor.clamp(min=floor))[met])
        # A row that was not met has the error of another.
        error = rows[n // 2 :].exp() / g[n // 2 :] if log else rows[n // 2 :] / g[n // 2 :]
        if kind != "signed":
            assert torch.cdist(error[:, None], factor[met].clamp(min=0.05)[:, None]).amin(1).max() < 1e-6

    @pytest.mark.parametrize("rule", [fcco.BSGD(), fcco.SOAP(fcco.schedules.RunningMean())], ids=str)
    def test_a_loss_without_a_constant_rate_is_told_the_usual_one(self, rule):
        problem = Push(batch=4)
        problem.loss_fn = fcco.losses.PNormPushLoss.from_targets(problem.y, p=2, rule=rule)
        found = advise(problem.loss_fn, problem.evaluate, problem.sampler, [problem.w], visits=10, draws=10)
        assert found.gamma == 0.7
        assert not found.drift_measured

    def test_nothing_is_changed(self):
        problem = Push(batch=4)
        problem.train(1, lr=1e-6)
        before, w, random = state(problem.loss_fn), problem.w.detach().clone(), torch.get_rng_state()
        problem.loss_fn.eval()
        advise(problem.loss_fn, problem.evaluate, problem.sampler, [problem.w], visits=10, draws=10)
        assert not problem.loss_fn.training
        assert not engine_of(problem.loss_fn).training
        assert same(state(problem.loss_fn), before)
        assert torch.equal(problem.w, w)
        assert torch.equal(torch.get_rng_state(), random)
        assert problem.loss_fn.table.step == len(problem.sampler)


MEMORIES = [16, fcco.Memory(16), fcco.Memory(16, "estimate")]


class TestMemory:
    """A loss that remembers outputs and keeps no table."""

    @pytest.mark.parametrize("memory", MEMORIES, ids=str)
    def test_a_report_has_the_ages_and_nothing_of_rows(self, memory):
        problem = Push(batch=4, memory=memory)
        with Monitor(problem.loss_fn, exact=exact_inner(problem.loss_fn, problem.evaluate)) as monitor:
            assert monitor.report() == {"step": 0, "remembered": 0}
            for rows in islice(problem.sampler, 12):
                problem.evaluate(problem.loss_fn, torch.as_tensor(rows)).backward()
            report = monitor.report()
        # Two positives and two negatives a step, which come once in these steps: of each, those of 8 steps are held.
        assert report["remembered"] == 32
        assert (report["age_mean"], report["age_median"], report["age_max"]) == (4.5, 4, 8)
        assert report["never_seen"] == pytest.approx(1 - 24 / 300)
        assert report["visits"] == 1
        assert 0 < report["estimate_error"] < 1
        rest = {"step", "remembered", "age_mean", "age_median", "age_max", "never_seen", "visits", "estimate_error"}
        assert set(report) == rest
        assert monitor.jump is None

    def test_calls_without_an_index_leave_out_what_goes_by_row(self):
        problem = Push(batch=4, memory=MEMORIES[0])
        with Monitor(problem.loss_fn) as monitor:
            for rows in islice(problem.sampler, 3):
                problem.loss_fn(problem.x[rows] @ problem.w, problem.y[rows]).backward()
        report = monitor.report()
        assert set(report) == {"step", "remembered", "age_mean", "age_median", "age_max"}
        assert (report["step"], report["remembered"], report["age_max"]) == (3, 12, 3)
        with pytest.raises(ValueError, match="once, with an index, and called it so 0 times"):
            exact_inner(problem.loss_fn, lambda loss_fn, rows: loss_fn(problem.x[rows] @ problem.w, problem.y[rows]))(
                torch.arange(2)
            )

    def test_with_a_table_too_it_has_both(self):
        problem = Push(batch=4, memory=MEMORIES[0], rule=fcco.SOAP(0.5))
        with Monitor(problem.loss_fn) as monitor:
            problem.train(2, lr=1e-6)
        assert {"gamma", "staleness_mean", "jump", "remembered", "age_mean"} <= set(monitor.report())

    def test_is_drawn_and_written(self, tmp_path):
        pytest.importorskip("matplotlib")

        class Writer:
            def __init__(self):
                self.names = set()

            def add_scalar(self, name, value, step):
                self.names.add(name)

            def add_histogram(self, name, values, step):
                assert values.tolist() == [1] * 4
                self.names.add(f"histogram of {name}")

        problem, writer = Push(batch=4, memory=MEMORIES[0]), Writer()
        monitor = Monitor(problem.loss_fn)
        monitor.plot()  # of nothing yet
        problem.evaluate(problem.loss_fn, torch.as_tensor(next(iter(problem.sampler)))).backward()
        monitor.to_tensorboard(writer)
        assert {"fcco/remembered", "fcco/age_mean", "histogram of fcco/age"} <= writer.names
        assert "histogram of fcco/staleness" not in writer.names
        figure = monitor.plot(tmp_path / "memory.png")
        assert {line.get_label() for panel in figure.axes for line in panel.lines} == {"age mean"}

    @pytest.mark.parametrize("memory", MEMORIES, ids=str)
    def test_gradients_are_those_with_the_memory_as_it_is(self, memory):
        """And the in-batch, the perfect and the exact ones are those of a loss that never had one."""
        with_memory, without = Push(batch=8, memory=memory), Push(batch=8)
        with_memory.train(1, lr=1e-6)
        without.w = with_memory.w
        before, batches = state(with_memory.loss_fn), list(without.sampler)
        found, plain = (
            gradient_bias(problem.loss_fn, problem.evaluate, batches, [problem.w], draws=40)
            for problem in (with_memory, without)
        )
        assert same(state(with_memory.loss_fn), before)
        for name in ("in_batch", "perfect"):
            ours, theirs = (astuple(getattr(bias, name)) for bias in (found, plain))
            assert ours == pytest.approx(theirs, rel=1e-3)
        assert found.norm == pytest.approx(plain.norm)
        assert found.table != found.in_batch
        assert found.kept == "memory"
        assert str(found).splitlines()[2].startswith("memory ")
        assert plain.kept == "table"

    @pytest.mark.parametrize("memory", MEMORIES, ids=str)
    def test_advice_says_what_is_remembered_and_recommends_no_rule(self, memory):
        problem = Push(batch=4, memory=memory)
        empty = problem.advice(visits=20, epochs=0, draws=4)
        assert empty.memory.count == 0
        assert "keeps no table but remembers outputs of recent batches, and has seen none" in spoken(empty)
        problem.train(1, lr=1e-6)
        before = state(problem.loss_fn)
        advice = advise(problem.loss_fn, problem.evaluate, problem.sampler, [problem.w], visits=20, draws=40)
        assert same(state(problem.loss_fn), before)
        assert (advice.memory.count, advice.memory.age) == (32, 4.5)
        assert not advice.drift_measured
        words = spoken(advice)
        assert "keeps no table but remembers 32 outputs of recent batches, 4.5 steps old on average" in words
        assert "BSGD" not in words
        assert "gamma" not in words

    def test_advice_on_both_has_words_on_both(self):
        advice = Push(batch=4, memory=MEMORIES[0], rule=fcco.SOAP(0.5)).advice(visits=20, draws=8)
        assert "The loss remembers 32 outputs" in spoken(advice)
        assert "The table" in spoken(advice)

    def test_a_loss_inside_a_model_keeps_its_memory(self):
        problem = Push(batch=4, memory=MEMORIES[0])
        problem.train(1, lr=1e-6)
        memory = problem.loss_fn.memory
        with contextlib.suppress(KeyError), probing(problem.loss_fn):
            assert problem.loss_fn.memory is None
            raise KeyError
        assert problem.loss_fn.memory is memory


def spoken(advice):
    return str(advice).replace("\n", " ")


def share_of_square_error(generator, batches=2000):
    """Share and its error, from gradients [batches, 2] with a bias and a noise, with a table and without."""
    target = torch.tensor([1.0, 0.0], dtype=torch.float64)
    samples = []
    for bias, noise in ((0.2, 0.5), (0.5, 1.0)):
        gradients = target + bias + noise * torch.randn(5, batches // 5, 2, generator=generator, dtype=torch.float64)
        counts = torch.full((5,), batches / 5, dtype=torch.float64)
        samples.append(Sample(target, gradients.sum(1), gradients.square().sum((1, 2)), counts))
    return _share(*samples, steps=20), _share_error(*samples, steps=20)


def test_the_jackknife_gives_the_standard_error_of_a_mean():
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64)
    others = (values.sum() - values) / (len(values) - 1)
    assert jackknife_error(others) == pytest.approx((values.std() / math.sqrt(len(values))).item())


def test_the_error_of_the_gain_is_its_spread_over_samples():
    """Three standard errors of the comparison are 14%. Without the factor of the jackknife it would miss by half."""
    generator = torch.Generator().manual_seed(0)
    shares, errors = torch.tensor([share_of_square_error(generator) for _ in range(300)]).T
    assert errors.square().mean().sqrt().item() == pytest.approx(shares.std().item(), rel=0.15)


def percents(pattern, text):
    return [int(value) for value in re.search(pattern, text).groups()]


shares = st.floats(0, 5) | st.floats(0.97, 1.03)


@settings(deadline=None, max_examples=500)
@given(
    noise=st.just(0.0) | st.floats(1e-3, 3),
    ratio=st.floats(0, 12) | st.floats(4.95, 5.05),
    visits=st.floats(1, 3) | st.floats(1, 200),
    gain=shares,
    gain_error=st.floats(0, 0.3),
)
def test_what_the_advice_says_follows_from_its_numbers(noise, ratio, visits, gain, gain_error):
    drift = ratio * noise
    averages = noise > 0 and round(visits) > 1
    if not averages:
        gain, gain_error = 1.0, 0.0  # as advise has it
    errors = GradientError(0.5, 4.0), GradientError(0.25, 3.0)
    advice = Advice(0.7, gain, gain_error, noise, drift, True, visits, *errors, {1.0: 1.0})
    text = str(advice).replace("\n", " ")
    assert advice.use_table == (averages and 0.2 * drift <= noise)
    assert ("use gamma = 0.7" in text) is ("should help" in text) is advice.use_table
    assert ("use rule=fcco.BSGD()" in text) is ("does not help here" in text) is not advice.use_table

    if "about" in text:
        late, of_batch = percents(r"about (\d+)%.* the error of (\d+)%", text)
        assert late <= of_batch if advice.use_table else late >= of_batch
    better, worse = "the table leaves" in text, "the table raises" in text
    if averages:
        share, error = percents(r"(\d+)% \(± (\d+)%\)", text)
        assert better == (share + error < 100)
        assert worse == (share - error > 100)
        assert ("no clear difference" in text) is not (better or worse)
    disagrees = worse if advice.use_table else better
    assert ("no forecast" in text) is disagrees
    assert ("later in the run" in text) is (worse and advice.use_table)


def test_advice_at_a_stationary_point_has_words_too():
    nothing = GradientError(math.inf, math.inf)
    advice = Advice(0.7, math.nan, math.nan, 0.4, 0.1, True, 20, nothing, nothing, {1.0: 1.0})
    assert "The table should help: use gamma = 0.7" in str(advice)
    assert "no clear difference" in str(advice).replace("\n", " ")


def test_rows_put_into_a_probed_loss_do_not_decay_with_its_own():
    loss_fn = fcco.CoupledLoss(torch.square, 2, rule=fcco.MOAP(0.5))
    for rows in ([0, 1], [0], [0]):
        loss_fn(torch.ones(len(rows), requires_grad=True), rows)
    own, rows = loss_fn.table.read(None, cold=0.0), torch.tensor([5.0, 7.0])
    assert own[1] < own[0] / 4  # which was not written for two steps
    with probing(loss_fn, fcco.SOX(0.5), rows):
        assert torch.equal(loss_fn.table.read(None, cold=0.0), rows)
    assert torch.equal(loss_fn.table.read(None, cold=0.0), own)


def test_rows_of_a_probed_loss_start_as_the_other_rule_has_them():
    loss_fn = fcco.CoupledLoss(torch.square, 2, rule=fcco.MOAP(0.5))
    inner = torch.tensor([3.0], requires_grad=True)
    with probing(loss_fn, fcco.SOX(0.5)):
        loss_fn(inner, [0]).backward()
    assert inner.grad.item() == 6.0  # at the first estimate, and not at MOAP's 0


def test_a_loss_inside_a_model_is_probed_and_left_as_it_was():
    model = torch.nn.ModuleDict({"net": torch.nn.Linear(1, 1), "loss": fcco.losses.PNormPushLoss(4, memory=0)})
    model.eval()
    before, table = copy.deepcopy(model.state_dict()), model["loss"].table
    monitor = Monitor(model)
    with contextlib.suppress(KeyError), probing(model, fcco.BSGD()) as visits:
        assert engine_of(model).rule == fcco.BSGD()
        assert model["loss"].training
        model["loss"](torch.ones(2, requires_grad=True), torch.tensor([0, 1]), [0, 1]).backward()
        raise KeyError
    assert len(visits) == 1
    assert engine_of(model).rule == fcco.SOAP(0.5)
    assert model["loss"].table is table
    assert not any(module.training for module in model.modules())
    assert int(monitor._steps) == 0
    assert same(model.state_dict(), before)


def test_a_copy_is_not_watched():
    loss_fn = fcco.CoupledLoss(torch.square, 2, rule=fcco.SOX(gamma=0.1))
    monitor = Monitor(loss_fn)
    for double in (copy.deepcopy(loss_fn), pickle.loads(pickle.dumps(loss_fn))):
        double(torch.ones(2, requires_grad=True), [0, 1])
    assert int(monitor._steps) == 0
    loss_fn(torch.ones(2, requires_grad=True), [0, 1])
    assert int(monitor._steps) == 1


class OfRisks(ObjectiveLoss):
    def forward(self, risk, time, event, index):
        return super().forward(risk, time, event, index=index)


@pytest.mark.parametrize(
    "loss_fn", [fcco.losses.CoxLoss(12, memory=12), OfRisks(Cox(), 12, rule=fcco.SOX(0.3), memory=12)]
)
def test_a_report_has_the_drift_of_what_is_remembered(loss_fn):
    time, event = torch.arange(12.0), torch.ones(12)
    with fcco.diagnostics.Monitor(loss_fn) as monitor:
        for shift in (0.0, 0.0, 1.0):
            for rows in torch.arange(12).view(3, 4):
                risk = (torch.linspace(-1, 1, 12)[rows] + shift).requires_grad_()
                loss_fn(risk, time[rows], event[rows], rows)
            report = monitor.report()
            assert ("drift" in report) == (len(monitor.history) > 1)
    assert monitor.history[1]["drift"] == 0.0
    assert monitor.history[2]["drift"] > 0.3
    assert copy.deepcopy(loss_fn).memory.watchers == []
    assert loss_fn.memory.watchers == []


class TestFewBatches:
    """A list gives the same batches in every pass, which say no more than those of one pass."""

    @staticmethod
    def problem(count):
        problem = OneRow(fcco.SOX(0.5))
        pairs = list(combinations(range(4), 2))
        return problem, pairs[:count]

    def test_those_of_a_list_count_once(self):
        problem, batches = self.problem(6)
        arguments = problem.loss_fn, problem.evaluate, batches, [problem.w]
        options = {"population": range(4)}
        with pytest.warns(UserWarning, match="batches has only 6 batches to look at, and a bias below about"):
            again = gradient_bias(*arguments, **options, draws=200)
        assert again == gradient_bias(*arguments, **options, draws=6)
        assert again.perfect.bias == 0  # these are all batches, and the row is exact

    def test_those_of_a_sampler_are_others_in_every_pass(self):
        problem = Push(batch=100, positives=25)
        arguments = problem.loss_fn, problem.evaluate, problem.sampler, [problem.w]
        gradient_bias(*arguments, draws=3 * len(problem.sampler))

    def test_a_single_one_tells_nothing(self):
        problem, batches = self.problem(1)
        with pytest.raises(ValueError, match="at least 2 batches; got 1"):
            gradient_bias(problem.loss_fn, problem.evaluate, batches, [problem.w], population=range(4))

    def test_advice_warns_of_them(self):
        problem = Push(batch=8, positives=25)
        with pytest.warns(UserWarning, match="batches has only 5 batches to look at"):
            problem.advice(visits=10, epochs=0, batches=list(problem.sampler)[:5], draws=12)


def test_estimates_that_are_exact_up_to_rounding_want_no_table():
    advice = fcco.diagnostics.Advice(
        gamma=0.7, gain=1.0, gain_error=0.0, noise=1e-7, drift=1e-7, drift_measured=False, visits=50,
        in_batch=fcco.diagnostics.GradientError(0.0, 0.1), table=fcco.diagnostics.GradientError(0.0, 0.1), by_gamma={},
    )  # fmt: skip
    assert not advice.use_table
    assert "The batch knows g exactly" in str(advice).replace("\n", " ")
