"""BaselineCoxLoss: unbiased by enumeration, its steps in NumPy, its hazard, and what it refuses."""

from itertools import combinations, product

import numpy as np
import pytest
import torch

import fcco
from fcco.functional import cox_loss
from fcco.losses import BaselineCoxLoss
from losses.cases import same, state

TIME = torch.tensor([3.0, 1.0, 2.0, 2.0, 5.0, 4.0, 2.0, 6.0], dtype=torch.float64)
EVENT = torch.tensor([1, 1, 1, 0, 1, 0, 1, 0])
TIMES, COUNTS = [1.0, 2.0, 3.0, 5.0], [1, 2, 1, 1]
FROZEN = fcco.SOX(1e-12)  # rows stay as they are, and f is differentiated there


def risks(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(TIME), dtype=torch.float64, generator=generator, requires_grad=True)


def exact_sums(risk):
    """[K]: sums of e^h over those who live to see each time."""
    return torch.stack([risk.detach()[time <= TIME].exp().sum() for time in TIMES])


def at_random(size):
    return [list(rows) for rows in combinations(range(len(TIME)), size)]


def by_stratum(events, others):
    seen = [i for i, e in enumerate(EVENT) if e]
    rest = [i for i, e in enumerate(EVENT) if not e]
    return [[*a, *b] for a, b in product(combinations(seen, events), combinations(rest, others))]


def test_rows_are_the_times_of_events():
    loss_fn = BaselineCoxLoss.from_targets(TIME, EVENT)
    assert loss_fn.times.tolist() == TIMES
    assert loss_fn.events.tolist() == COUNTS
    assert (loss_fn.n, loss_fn.n_events, loss_fn.n_examples) == (4, 5, 8)


class TestUnbiased:
    BATCHES = pytest.mark.parametrize(
        ("batches", "options"),
        [
            *((at_random(size), {"centred": centred}) for size in (1, 2, 3, 5) for centred in (False, True)),
            *((by_stratum(*sizes), {"stratified": True}) for sizes in ((1, 2), (3, 1))),
        ],
    )

    @BATCHES
    def test_sums(self, batches, options):
        risk, total = risks(), 0.0
        for rows in batches:
            loss_fn = BaselineCoxLoss.from_targets(TIME, EVENT, rule=fcco.SOAP(1.0), **options)
            loss_fn(risk[rows], TIME[rows], EVENT[rows])
            total = total + loss_fn.table.read(None, cold=-torch.inf).exp()
        torch.testing.assert_close(total / len(batches), exact_sums(risk), rtol=1e-12, atol=0)

    @BATCHES
    def test_gradient_where_rows_are_right(self, batches, options):
        """Of all events, although a batch has a few of them, or none."""
        risk = risks()
        for rows in batches:
            loss_fn = BaselineCoxLoss.from_targets(TIME, EVENT, rule=FROZEN, **options).double()
            loss_fn.table.write(None, exact_sums(risk).log())
            (loss_fn(risk[rows], TIME[rows], EVENT[rows]) / len(batches)).backward()
        wanted = torch.autograd.grad(cox_loss(risk, TIME, EVENT), risk)[0]
        torch.testing.assert_close(risk.grad, wanted, rtol=0, atol=1e-12)

    def test_value_where_rows_are_right(self):
        risk, batches, total = risks(), at_random(3), 0.0
        for rows in batches:
            loss_fn = BaselineCoxLoss.from_targets(TIME, EVENT, rule=FROZEN).double()
            loss_fn.table.write(None, exact_sums(risk).log())
            total += loss_fn(risk[rows], TIME[rows], EVENT[rows]).item()
        assert total / len(batches) == pytest.approx(cox_loss(risk, TIME, EVENT).item(), abs=1e-9)


def steps_in_numpy(batches, risk, gamma, at_old):
    """Gradients of the rule, term by term: martingale residuals at the moving averages of the sums."""
    u, seen, found = np.zeros(len(TIMES)), np.zeros(len(TIMES), bool), []
    time, event = TIME.numpy(), EVENT.numpy()
    for t, rows in enumerate(batches):
        h, c = risk[t].detach().numpy()[rows], len(TIME) / len(rows)
        members = np.array([sum(time[i] >= k for i in rows) for k in TIMES])
        estimate = np.array([c * sum(np.exp(h[j]) for j, i in enumerate(rows) if time[i] >= k) for k in TIMES])
        new = np.where(seen, (1 - gamma) * u + gamma * estimate, estimate)
        trusted = np.ones(len(TIMES))
        limited = seen & (members > 0) & (gamma < 1)
        trusted[limited] = np.minimum(1, (new * (1 + 8 / np.sqrt(np.maximum(members, 1))))[limited] / estimate[limited])
        at = np.where(seen, np.maximum(u, gamma * estimate), estimate) if at_old else new
        u, seen = np.where(seen | (estimate > 0), new, u), seen | (estimate > 0)
        gradient = np.zeros(len(TIME))
        for j, i in enumerate(rows):
            terms = zip(TIMES, COUNTS * trusted, at, seen, strict=True)
            hazard = sum(d / a for k, d, a, s in terms if s and k <= time[i])
            gradient[i] = c * (np.exp(h[j]) * hazard - event[i]) / 5
        found.append(gradient)
    return found, u


@pytest.mark.parametrize("rule", [fcco.SOAP(0.3), fcco.SOX(0.3), fcco.SOAP(1.0)])
def test_steps_are_those_of_numpy(rule):
    batches = [[3, 5], [0, 1, 6], [7, 4], [2, 3], [0, 5, 7, 1], [4, 6]]
    risk = [risks(seed) for seed in range(len(batches))]
    loss_fn = BaselineCoxLoss.from_targets(TIME, EVENT, rule=rule).double()
    wanted, rows = steps_in_numpy(batches, risk, rule.gamma, isinstance(rule, fcco.SOX))
    for h, batch, gradient in zip(risk, batches, wanted, strict=True):
        loss_fn(h[batch], TIME[batch], EVENT[batch]).backward()
        np.testing.assert_allclose(h.grad.numpy(), gradient, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(loss_fn.table.u.exp().numpy(), rows, rtol=1e-12)


def test_one_huge_risk_weighs_no_more_than_is_likely():
    """Without a limit its gradient would be that of an estimate 1 / γ times the row."""
    risk = torch.zeros(len(TIME), dtype=torch.float64)
    loss_fn = BaselineCoxLoss.from_targets(TIME, EVENT, rule=fcco.SOAP(0.001)).double()
    loss_fn(risk.clone().requires_grad_(), TIME, EVENT)
    risk[7] = 50.0
    risk.requires_grad_()
    loss_fn(risk, TIME, EVENT).backward()
    # 8 live to see the first time, 7 the second, then 4 and 2; it makes up nearly all of each sum.
    limit = sum(d * (1 + 8 / m**0.5) for d, m in zip(COUNTS, (8, 7, 4, 2), strict=True)) / 5
    assert risk.grad[7].item() == pytest.approx(limit)


def test_an_index_changes_nothing():
    risk, rows = risks(), [0, 3, 6]
    values = [
        BaselineCoxLoss.from_targets(TIME, EVENT)(risk[rows], TIME[rows], EVENT[rows], *index).item()
        for index in ((), (torch.tensor(rows),))
    ]
    assert values[0] == values[1]


def test_a_batch_without_events_teaches():
    loss_fn, risk = BaselineCoxLoss.from_targets(TIME, EVENT), risks()
    loss_fn(risk, TIME, EVENT)
    rows = [3, 5, 7]
    loss_fn(risk[rows], TIME[rows], EVENT[rows]).backward()
    assert (risk.grad[rows] > 0).all()


def test_a_common_rise_of_all_risks_changes_nothing():
    """Neither the gradient of a batch that is centred, nor the value, once a row is known."""
    make = lambda: BaselineCoxLoss.from_targets(TIME, EVENT, rule=fcco.SOAP(0.1), centred=True).double()  # noqa: E731
    for rows in ([0, 1, 2], [3, 5, 7]):
        found = []
        for level in (0.0, 50.0):
            loss_fn, risk = make(), risks()
            loss_fn(risk + level, TIME, EVENT)
            loss = loss_fn((risk + level)[rows], TIME[rows], EVENT[rows])
            (gradient,) = torch.autograd.grad(loss, risk)
            assert gradient.sum().abs() < 1e-12
            found.append(torch.cat([gradient, loss.detach().reshape(1)]))
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", [fcco.BSGD(), fcco.SOAP(1.0)], ids=str)
def test_without_memory_a_batch_that_misses_late_times_has_a_finite_loss(rule):
    loss_fn, risk = BaselineCoxLoss.from_targets(TIME, EVENT, rule=rule), risks()
    loss_fn(risk, TIME, EVENT)
    assert loss_fn(risk[[1, 2]], TIME[[1, 2]], EVENT[[1, 2]]).isfinite()
    assert loss_fn.cumulative_hazard()[1].isfinite().all()


def test_a_batch_that_no_event_concerns_is_a_zero_with_a_graph():
    loss_fn = BaselineCoxLoss(4, [10.0], [1])
    risk = torch.zeros(2, requires_grad=True)
    loss = loss_fn(risk, torch.tensor([1.0, 2.0]), torch.tensor([0, 0]))
    loss.backward()
    assert loss.item() == 0
    assert risk.grad.tolist() == [0, 0]
    assert not loss_fn.table.visits.any()


@pytest.mark.parametrize(
    ("known", "given"),
    [
        (torch.float64, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.float32, torch.float64),
    ],
    ids=str,
)
def test_times_of_fewer_digits_are_the_same_times(known, given):
    """0.1 in float32 lies above 0.1 in float64: an example must stay in its own risk set, also after a cast."""
    time, event = torch.tensor([0.1, 0.3, 0.7], dtype=torch.float64), torch.tensor([1, 1, 1])
    loss_fn = BaselineCoxLoss.from_targets(time.to(known), event).double()
    risk = torch.zeros(3, requires_grad=True)
    assert loss_fn(risk, time.to(given), event).item() == pytest.approx(np.log(6) / 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.uint8], ids=str)
def test_whole_times(dtype):
    loss_fn = BaselineCoxLoss.from_targets(TIME.long(), EVENT)
    risk = risks()
    assert loss_fn(risk, TIME.to(dtype), EVENT).item() == pytest.approx(cox_loss(risk, TIME, EVENT).item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_times_so_large_that_one_more_is_the_same(dtype):
    time, event = torch.tensor([2e7, 3e7]).to(dtype), torch.tensor([1, 1])
    loss_fn = BaselineCoxLoss.from_targets(time, event)
    risk = torch.zeros(2, requires_grad=True)
    assert loss_fn(risk, time, event).item() == pytest.approx(np.log(2) / 2)


def test_who_lives_forever_is_in_all_risk_sets():
    loss_fn = BaselineCoxLoss.from_targets([1, 2, 5], [1, 1, 0])
    loss_fn(torch.zeros(3, requires_grad=True), torch.tensor([1.0, 2.0, torch.inf]), torch.tensor([1, 1, 0]))
    assert loss_fn.table.u.exp().tolist() == pytest.approx([3.0, 2.0])


@pytest.mark.parametrize("strata", [None, [0, 0, 1, 1]])
@pytest.mark.parametrize(("change", "time"), [(lambda t: t + 1e-3, 3.0), (lambda t: 30 * t, 90.0)])
def test_events_at_other_times_are_refused(strata, change, time):
    """They would count for the row before, as if nothing was wrong: times of another unit, for example."""
    known, event = torch.tensor([3.0, 4.0, 3.0, 5.0]), torch.tensor([1, 0, 1, 1])
    of = {} if strata is None else {"strata": torch.tensor(strata)}
    loss_fn = BaselineCoxLoss.from_targets(known, event, **of)
    loss_fn(torch.zeros(4, requires_grad=True), known, event, **of)
    loss_fn(torch.zeros(4, requires_grad=True), torch.where(event == 1, known, change(known)), event, **of)
    before = state(loss_fn)
    wanted = r"time must be one of the training events' times, to the last digit and in the unit of from_targets"
    with pytest.raises(ValueError, match=rf"{wanted}, for an event; got {time:g}.* at position 0"):
        loss_fn(torch.zeros(4, requires_grad=True), change(known), event, **of)
    assert same(before, state(loss_fn))
    merged = BaselineCoxLoss.from_targets(known, event, max_times=2 - (strata is None), **of)
    merged(torch.zeros(4, requires_grad=True), change(known), event, **of)
    loss_fn.eval()(torch.zeros(4), change(known), event, **of)


@pytest.mark.parametrize(
    ("make", "columns"),
    [
        (lambda: BaselineCoxLoss.from_targets(TIME, EVENT), (TIME, EVENT)),
        (lambda: fcco.losses.GroupDROLoss(3), (EVENT,)),
    ],
)
def test_observers_see_all_rows_and_a_frozen_step_writes_none(make, columns):
    loss_fn, seen, risk = make(), [], risks()
    loss_fn.observers.append(seen.append)
    loss_fn(risk, *columns)
    before = state(loss_fn)
    with loss_fn.frozen() as visits:
        loss = loss_fn(risk, *columns)
    assert same(before, state(loss_fn))
    for visit, known in ((seen[0], False), (visits[0], True)):
        assert visit.rows.tolist() == list(range(loss_fn.n))
        assert torch.equal(visit.seen, loss_fn.table.visits.bool() & known)
        assert torch.equal(visit.estimate[visit.where], loss_fn.table.u[visit.where])
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(loss, risk, create_graph=True)


class TestMaxTimes:
    def test_neighbours_share_a_row(self):
        loss_fn = BaselineCoxLoss.from_targets(TIME, EVENT, max_times=2)
        assert loss_fn.times.tolist() == [1.0, 5.0]
        assert loss_fn.events.tolist() == [4, 1]

    @pytest.mark.parametrize("max_times", [1, 50, 1024])
    def test_many(self, max_times):
        rng = np.random.default_rng(0)
        time, event = rng.exponential(size=5000), rng.random(5000) < 0.6
        loss_fn = BaselineCoxLoss.from_targets(time, event, max_times=max_times)
        assert loss_fn.n <= max_times
        assert loss_fn.events.sum() == event.sum()

    @pytest.mark.parametrize("max_times", [1, 20])
    def test_every_event_is_in_a_risk_set(self, max_times):
        """One that is in none would gain by ever larger h."""
        time, event = torch.arange(1.0, 401), torch.ones(400, dtype=torch.long)
        risk = torch.zeros(400)
        risk[:3] = 100.0
        risk.requires_grad_()
        BaselineCoxLoss.from_targets(time, event, max_times=max_times)(risk, time, event).backward()
        assert (risk.grad[:3] > -1 / 400).all()

    def test_little_is_lost(self):
        rng = np.random.default_rng(0)
        time, event = torch.tensor(rng.exponential(size=3000)), torch.tensor(rng.random(3000) < 0.6)
        risk = torch.tensor(rng.normal(size=3000), requires_grad=True)
        found = BaselineCoxLoss.from_targets(time, event, max_times=256)(risk, time, event)
        wanted = cox_loss(risk, time, event)
        assert found.item() == pytest.approx(wanted.item(), rel=2e-3)
        gradient, exact = (torch.autograd.grad(value, risk)[0] for value in (found, wanted))
        assert (gradient - exact).norm() < 0.02 * exact.norm()


def test_the_hazard_is_that_of_breslow():
    loss_fn, risk = BaselineCoxLoss.from_targets(TIME, EVENT).double(), risks()
    assert loss_fn.cumulative_hazard()[1].tolist() == [0.0] * 4  # nothing is known yet
    loss_fn(risk, TIME, EVENT)
    times, hazard = loss_fn.cumulative_hazard()
    assert times.tolist() == TIMES
    wanted = (torch.tensor(COUNTS) / exact_sums(risk)).cumsum(0)
    torch.testing.assert_close(hazard, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BaselineCoxLoss.from_targets([1.0, 2.0], [0, 0]), "event must have at least one event"),
        (lambda: BaselineCoxLoss.from_targets([1.0], [0, 1]), "time must have the shape"),
        (lambda: BaselineCoxLoss.from_targets([1.0, -1.0], [0, 1]), "time must be at least 0; got -1.0 at position 1"),
        (lambda: BaselineCoxLoss.from_targets([1.0, 1.0], [0, 2]), "event must be 0 or 1.*; got 2 at position 1"),
        (
            lambda: BaselineCoxLoss.from_targets([0, 1], [3.0, 1.0]),
            "event must be 0 or 1 .* takes the times first.*; got 3.0 at position 0",
        ),
        (
            lambda: BaselineCoxLoss.from_targets([True, False], [3, 1]),
            "event must be 0 or 1 .* the times first.*; got 3 at position 0",
        ),
        (lambda: BaselineCoxLoss.from_targets([1.0, 1.0], [0, 1], max_times=0), "max_times must be at least 1"),
        (lambda: BaselineCoxLoss(4, [2.0, 1.0], [1, 1]), "times must be strictly increasing; got 1.0 at position 1"),
        (lambda: BaselineCoxLoss(4, [1.0, 1.0], [1, 1]), "times must be strictly increasing; got 1.0 at position 1"),
        (
            lambda: BaselineCoxLoss(4, torch.tensor([3, 2], dtype=torch.uint8), [1, 1]),
            "times must be strictly increasing",
        ),
        (lambda: BaselineCoxLoss(4, [], []), r"times must be numbers with the shape \[K\], K >= 1; got \[0\]"),
        (lambda: BaselineCoxLoss(4, [-1.0], [1]), "times must be at least 0; got -1.0 at position 0"),
        (lambda: BaselineCoxLoss(4, [1.0, 2.0], [1, 0]), "events must be at least 1; got 0 at position 1"),
        (lambda: BaselineCoxLoss(4, [1.0, 2.0], [1]), r"events must be 2 integers; got \[1\]"),
        (lambda: BaselineCoxLoss(4, [1.0, 2.0], [1, 4]), "events must add up to at most n = 4; got 5"),
        (lambda: BaselineCoxLoss(4, [1.0], [1], stratified=True, centred=True), "centred=True needs random batches"),
        (
            lambda: BaselineCoxLoss(4, [1.0], [1], rule=fcco.MOAP(0.1)),
            "rule of BaselineCoxLoss must be SOX, SOAP or BSGD",
        ),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class TestStrata:
    STRATA = torch.tensor([4, -1, 4, 4, -1, 4, -1, -1])

    def loss(self, **options):
        return BaselineCoxLoss.from_targets(TIME, EVENT, strata=self.STRATA, **options)

    def test_rows_are_the_times_of_events_of_each_stratum(self):
        loss_fn = self.loss()
        assert loss_fn.strata.tolist() == [-1, -1, -1, 4, 4]
        assert loss_fn.times.tolist() == [1.0, 2.0, 5.0, 2.0, 3.0]
        assert loss_fn.events.tolist() == [1, 1, 1, 1, 1]
        assert self.loss(max_times=2).times.tolist() == [1.0, 2.0]

    def test_sums_and_gradients_are_unbiased(self):
        """Rows are right, and the mean over all batches of 3 is the exact gradient."""
        risk, batches = risks(), at_random(3)
        rows = self.loss()
        at_risk = (rows.times.unsqueeze(1) <= TIME) & (rows.strata.unsqueeze(1) == self.STRATA)
        right = (risk.detach().exp() * at_risk).sum(1)
        total = 0.0
        for batch in batches:
            loss_fn = self.loss(rule=fcco.SOAP(1.0)).double()
            loss_fn(risk[batch], TIME[batch], EVENT[batch], strata=self.STRATA[batch])
            total = total + loss_fn.table.read(None, cold=-torch.inf).exp()
            loss_fn = self.loss(rule=FROZEN).double()
            loss_fn.table.write(None, right.log())
            (loss_fn(risk[batch], TIME[batch], EVENT[batch], strata=self.STRATA[batch]) / len(batches)).backward()
        torch.testing.assert_close(total / len(batches), right, rtol=1e-12, atol=0)
        wanted = torch.autograd.grad(cox_loss(risk, TIME, EVENT, self.STRATA), risk)[0]
        torch.testing.assert_close(risk.grad, wanted, rtol=0, atol=1e-12)

    def test_hazards_are_those_of_each_stratum_by_itself(self):
        risk, loss_fn = risks(), self.loss(rule=fcco.SOAP(1.0)).double()
        loss_fn(risk, TIME, EVENT, strata=self.STRATA)
        for k in (-1, 4):
            own = k == self.STRATA
            alone = BaselineCoxLoss.from_targets(TIME[own], EVENT[own], rule=fcco.SOAP(1.0)).double()
            alone(risk[own], TIME[own], EVENT[own])
            torch.testing.assert_close(loss_fn.cumulative_hazard(k), alone.cumulative_hazard())
        with pytest.raises(ValueError, match=r"stratum must be one of \[-1, 4\]; got None"):
            loss_fn.cumulative_hazard()

    def test_what_contradicts_the_rows_is_refused(self):
        risk, loss_fn = risks(), self.loss()
        with pytest.raises(ValueError, match="strata must be given, because the loss has rows of 2 strata"):
            loss_fn(risk, TIME, EVENT)
        with pytest.raises(ValueError, match="strata must not be given, because the loss has no strata"):
            BaselineCoxLoss.from_targets(TIME, EVENT)(risk, TIME, EVENT, strata=self.STRATA)
        with pytest.raises(ValueError, match=r"first of the times of its stratum for an event; got 1\.0 at position 1"):
            loss_fn(risk, TIME, EVENT, strata=3 - self.STRATA)
        with pytest.raises(ValueError, match="strata must be in rising order; got 0 at position 1"):
            BaselineCoxLoss(5, [1.0, 2.0], [1, 1], strata=[1, 0])
