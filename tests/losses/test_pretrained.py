"""PretrainedAveragePrecisionLoss: cross entropy, the switch, the blend, and the temperature that follows the logits."""

import copy
import io
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fcco
from fcco import distributed, functional
from fcco.losses import AveragePrecisionLoss, PretrainedAveragePrecisionLoss

N, N_POS = 40, 8
TARGET = torch.arange(N) < N_POS
PHASES = {"new": 0, "cross entropy": 2, "due": 4, "just switched": 5, "blend": 9}
SWITCH = 4


def make(**options):
    return PretrainedAveragePrecisionLoss.from_targets(TARGET, **{"switch": SWITCH, **options})


def batches(count, size=10, seed=0):
    """Rows at random, and logits that grow from batch to batch."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(count):
        rows = torch.randperm(N, generator=generator)[:size]
        logits = (1 + 0.3 * step) * (torch.randn(size, generator=generator, dtype=torch.float64) + TARGET[rows])
        yield logits.requires_grad_(), TARGET[rows], rows


def run(loss_fn, given):
    """Values and gradients of a run."""
    made = []
    for logits, target, rows in given:
        loss = loss_fn(logits, target, rows)
        made += [loss.detach(), *torch.autograd.grad(loss, logits)]
    return made


def in_phase(name, **options):
    loss_fn = make(**options)
    run(loss_fn, batches(PHASES[name]))
    return loss_fn


def state(loss_fn):
    return {
        **{name: value.clone() for name, value in loss_fn.state_dict().items()},
        "on": torch.tensor(loss_fn.training),
    }


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def equal(first, second):
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class TestCrossEntropy:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("labels", [torch.Tensor.bool, torch.Tensor.long, torch.Tensor.float])
    def test_is_torchs_before_the_switch(self, labels, dtype):
        loss_fn = make()
        for logits, target, rows in batches(SWITCH):
            own, other = (logits.detach().to(dtype).requires_grad_() for _ in range(2))
            loss, expected = (
                loss_fn(own, labels(target), rows),
                F.binary_cross_entropy_with_logits(other, target.to(dtype)),
            )
            assert loss.dtype == dtype
            torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0.0)
            loss.backward()
            expected.backward()
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-6, atol=0.0)
        assert not loss_fn.switched

    def test_leaves_the_table_empty(self):
        loss_fn = in_phase("due")
        table = loss_fn.precision.table
        assert table.step == 0
        assert not table.visits.any()
        assert not table.u.any()
        assert loss_fn.precision.temperature == 1.0


class TestBlend:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"blend": 0.0},
            {"blend": 1.0},
            {"blend": 0.7, "surrogate": "sigmoid", "own_term": "exact", "temperature": 0.3},
            {"rule": fcco.SOX(gamma=0.4), "surrogate": "squared_hinge"},
            {"rule": fcco.BSGD()},
        ],
    )
    def test_is_of_cross_entropy_and_average_precision(self, options):
        """Step by step, with the temperature that the loss has at that step."""
        loss_fn = make(**options)
        blend, kept = options.get("blend", 0.2), {k: v for k, v in options.items() if k in ("surrogate", "own_term")}
        twin = AveragePrecisionLoss(N, N_POS, rule=options.get("rule", fcco.SOAP(gamma=0.7)), **kept)
        values = []
        for step, (logits, target, rows) in enumerate(batches(12)):
            other = logits.detach().clone().requires_grad_()
            loss = loss_fn(logits, target, rows)
            assert loss_fn.switched == (step >= SWITCH)
            if step < SWITCH:
                continue
            twin.temperature = (
                twin.temperature if step > SWITCH else reference(step, options.get("temperature", 0.0625))
            )
            cross_entropy, precision = (
                F.binary_cross_entropy_with_logits(other, target.double()),
                twin(other, target, rows),
            )
            expected = (1 - blend) * cross_entropy + blend * precision
            torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(
                *(torch.autograd.grad(v, leaf)[0] for v, leaf in ((loss, logits), (expected, other))),
                rtol=1e-9,
                atol=1e-12,
            )
            twin.temperature = loss_fn.precision.temperature
            values.append(precision.item())
        torch.testing.assert_close(twin.table.u, loss_fn.precision.table.u, rtol=1e-9, atol=1e-12)
        assert len(set(values)) > 4

    def test_raises_average_precision_where_cross_entropy_cannot(self):
        """Negatives far out, and positives on either side: the best linear ranking is not that of cross entropy."""
        from sklearn.metrics import average_precision_score  # which ranks need not wait for

        rng = np.random.default_rng(0)
        centres = np.array([[0, 0], [6, -6], [2, 2], [-3, -1]])
        kind = rng.choice(4, 300, p=[0.55, 0.2, 0.15, 0.1])
        x, y = torch.tensor(rng.normal(size=(300, 2)) + centres[kind], dtype=torch.float32), torch.tensor(kind >= 2)
        found = {}
        for switch in (150, 10**9):
            torch.manual_seed(0)
            model = nn.Linear(2, 1)
            loss_fn = PretrainedAveragePrecisionLoss.from_targets(y, switch, blend=0.9, temperature=0.25)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
            for _ in range(400):
                optimizer.zero_grad()
                loss_fn(model(x)[:, 0], y, torch.arange(300)).backward()
                optimizer.step()
            found[switch] = average_precision_score(y, model(x)[:, 0].detach())
        assert found[150] > found[10**9] + 0.03


def moments(logits, target):
    return np.array([[side.sum(), logits[side].sum(), (logits[side] ** 2).sum()] for side in (~target, target)])


def deviation(known):
    """Of the training logits, from those of recent batches: each class has its share of the training set."""
    share = np.array([N - N_POS, N_POS]) / N
    mean, square = ((share * known[:, power] / known[:, 0]).sum() for power in (1, 2))
    return math.sqrt(square - mean**2)


def reference(steps, temperature):
    """The temperature at the switch after so many steps of ``batches``."""
    known = np.zeros((2, 3))
    for logits, target, _ in batches(steps):
        known = 0.99 * known + moments(logits.detach().numpy(), target.numpy())
    return temperature * deviation(known)


class TestTemperature:
    def test_is_set_at_the_switch_and_after_every_n_examples(self):
        """With batches of 10 of 40 examples, this is every fourth step."""
        loss_fn, known, since, expected = make(), np.zeros((2, 3)), 0, 1.0
        changes = []
        for step, (logits, target, rows) in enumerate(batches(14)):
            if step == SWITCH:
                expected = 0.0625 * deviation(known)
            loss_fn(logits, target, rows)
            known = 0.99 * known + moments(logits.detach().numpy(), target.numpy())
            since += 10 * (step >= SWITCH)
            if since >= N:
                since, expected = 0, 0.0625 * deviation(known)
                changes.append(step)
            assert loss_fn.precision.temperature == pytest.approx(expected, rel=1e-9)
        assert changes == [7, 11]

    def test_is_set_by_end_epoch(self):
        loss_fn = in_phase("just switched")
        before = loss_fn.precision.temperature
        assert not loss_fn.end_epoch()
        assert loss_fn.precision.temperature == pytest.approx(reference(5, 0.0625), rel=1e-9)
        assert loss_fn.precision.temperature != before

    @pytest.mark.parametrize("copies", [1, 4])
    def test_is_that_of_the_training_set_whatever_the_share_of_positives(self, copies):
        """All rows at once, the positives once or four times: half of the batch."""
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(N, generator=generator, dtype=torch.float64) + 3.0 * TARGET - 7.0
        rows = torch.cat([torch.arange(N_POS).repeat(copies), torch.arange(N_POS, N)])
        loss_fn = make(switch=2, temperature=0.3)
        run(loss_fn, [(logits[rows].requires_grad_(), TARGET[rows], rows)] * 3)
        expected = 0.3 * logits.std(correction=0).item()
        assert loss_fn.precision.temperature == pytest.approx(expected, rel=1e-9)
        assert abs(0.3 * logits[rows].std(correction=0).item() / expected - 1) > (0.1 if copies > 1 else -1)

    @pytest.mark.parametrize("stratified", [False, True])
    def test_comes_near_with_small_batches(self, stratified):
        """Within 5%; the deviation of stratified batches themselves is 15% off."""
        generator = torch.Generator().manual_seed(2)
        target = torch.arange(1000) < 100
        logits = torch.randn(1000, generator=generator) + 3.0 * target
        loss_fn = PretrainedAveragePrecisionLoss.from_targets(target, switch=150)
        seen = []
        for _ in range(151):
            if stratified:
                rows = torch.cat([torch.randint(0, 100, (16,), generator=generator), torch.randint(100, 1000, (16,))])
            else:
                rows = torch.randint(0, 1000, (32,), generator=generator)
            seen.append(logits[rows])
            loss_fn(logits[rows].requires_grad_(), target[rows], rows)
        expected = 0.0625 * logits.std().item()
        assert loss_fn.precision.temperature == pytest.approx(expected, rel=0.05)
        if stratified:
            assert 0.0625 * torch.cat(seen).std().item() > 1.15 * expected

    def test_is_that_of_the_first_batch_if_it_is_all_there_is(self):
        (given,) = batches(1)
        loss_fn, twin = make(switch=0), AveragePrecisionLoss(N, N_POS, memory=0)
        twin.temperature = 0.0625 * deviation(moments(given[0].detach().numpy(), given[1].numpy()))
        expected = 0.8 * F.binary_cross_entropy_with_logits(given[0], given[1].double()) + 0.2 * twin(*given)
        torch.testing.assert_close(loss_fn(*given), expected, rtol=1e-9, atol=1e-12)
        assert loss_fn.switched
        assert loss_fn.precision.temperature == pytest.approx(twin.temperature, rel=1e-9)

    def test_stays_where_all_logits_are_equal(self):
        """A temperature of 0 would make the gradient infinite."""
        loss_fn = make(switch=1)
        logits = torch.full((N,), 0.3, requires_grad=True)
        gradients = run(loss_fn, [(logits, TARGET, torch.arange(N))] * 3)[1::2]
        assert loss_fn.precision.temperature == 1.0
        assert max(gradient.abs().max() for gradient in gradients) < 1.0

    @pytest.mark.parametrize("offset", [0.0, 1e5])
    @pytest.mark.parametrize("scale", [1e-3, 1e30])
    def test_of_logits_of_any_size(self, scale, offset):
        generator = torch.Generator().manual_seed(3)
        logits = scale * (torch.randn(N, generator=generator, dtype=torch.float64) + offset)
        loss_fn = make(switch=1)
        run(loss_fn, [(logits.requires_grad_(), TARGET, torch.arange(N))] * 2)
        expected = 0.0625 * logits.std(correction=0).item()
        assert loss_fn.precision.temperature == pytest.approx(expected, rel=1e-4)

    def test_of_one_class_only(self):
        loss_fn = make(switch=1)
        for logits, _, _ in batches(3, 6):
            loss_fn(logits, torch.zeros(6), torch.arange(20, 26))
        last = next(logits.detach() for logits, _, _ in batches(1, 6))
        assert loss_fn.precision.temperature == pytest.approx(0.0625 * last.std(correction=0).item(), rel=1e-9)


class TestStall:
    def test_switches_when_the_metric_stops_improving(self):
        loss_fn = make(switch=None, patience=3)
        run(loss_fn, batches(4))
        told = [0.5, 0.6, 0.6, 0.55, 0.7, 0.7, 0.69]
        assert not any(loss_fn.end_epoch(metric) for metric in told)
        assert not loss_fn.switched
        assert loss_fn.end_epoch(0.65)
        assert loss_fn.switched
        assert loss_fn.precision.temperature == pytest.approx(reference(4, 0.0625), rel=1e-9)
        assert not loss_fn.end_epoch(0.1)
        assert loss_fn.switched

    @pytest.mark.parametrize("metrics", [[-3.0, -2.0, -2.0], [0.0, 0.0], [-5.0, -math.inf]])
    def test_of_any_sign(self, metrics):
        loss_fn = make(switch=None, patience=1)
        assert [loss_fn.end_epoch(np.float32(metric)) for metric in metrics] == [False] * (len(metrics) - 1) + [True]

    @pytest.mark.parametrize("metric", [math.nan, torch.tensor(math.nan), np.float32("nan")])
    def test_a_metric_that_is_no_number_is_refused(self, metric):
        loss_fn = make(switch=None, patience=1)
        before = state(loss_fn)
        with pytest.raises(ValueError, match=r"metric must be a number; got nan.* set without positives"):
            loss_fn.end_epoch(metric)
        assert same(before, state(loss_fn))

    def test_does_not_come_by_steps(self):
        loss_fn = make(switch=None)
        run(loss_fn, batches(9))
        assert not loss_fn.switched

    def test_steps_do_not_need_a_metric(self):
        loss_fn = make(patience=1)
        assert not any(loss_fn.end_epoch(0.5) for _ in range(5))
        assert not loss_fn.end_epoch()
        assert not loss_fn.switched

    @pytest.mark.parametrize("metric", [None, "0.5", torch.zeros(2), torch.tensor(True), True])
    def test_needs_a_number(self, metric):
        loss_fn = make(switch=None)
        before = state(loss_fn)
        with pytest.raises(TypeError, match="metric must be a number"):
            loss_fn.end_epoch(metric)
        assert same(before, state(loss_fn))


def saved_and_loaded(loss_fn):
    file = io.BytesIO()
    torch.save(loss_fn.state_dict(), file)
    file.seek(0)
    other = make(switch=loss_fn.switch)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other


@pytest.mark.parametrize("phase", PHASES)
class TestState:
    @pytest.mark.parametrize("copied", [saved_and_loaded, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
    def test_goes_on_bit_for_bit(self, copied, phase):
        taken = PHASES[phase]
        first = in_phase(phase)
        second, before = copied(first), state(first)
        rest = list(batches(taken + 8))[taken:]
        made = run(second, rest)
        assert same(before, state(first))
        assert equal(run(first, rest), made)
        assert same(state(first), state(second))
        assert first.switched
        assert first.precision.temperature == second.precision.temperature != before["precision.temperature"].item()

    def test_counts_of_stalls_are_kept(self, phase):
        first = make(switch=None, patience=3)
        run(first, batches(PHASES[phase]))
        for metric in (0.5, 0.4):
            first.end_epoch(metric)
        second = make(switch=None, patience=3)
        second.load_state_dict(first.state_dict())
        for loss_fn in (first, second):
            assert [loss_fn.end_epoch(metric) for metric in (0.5, 0.5)] == [False, True]
        assert same(state(first), state(second))

    @pytest.mark.parametrize("mode", ["eval", "no_grad", "inference_mode"])
    def test_nothing_changes_unless_it_learns(self, mode, phase):
        """The value is cross entropy, or the blend, in which average precision is that of the batch in eval mode."""
        loss_fn = in_phase(phase)
        ((logits, target, rows),) = batches(1, seed=5)
        loss_fn.train(mode != "eval")
        before = state(loss_fn)
        with getattr(torch, mode.replace("eval", "enable_grad"))():
            loss = loss_fn(logits, target, rows + 1000 * (mode == "eval"))
        assert same(before, state(loss_fn))
        with torch.no_grad():
            cross_entropy = F.binary_cross_entropy_with_logits(logits, target.double())
            precision = functional.average_precision_loss(logits, target, temperature=loss_fn.precision.temperature)
        if not loss_fn.switched:
            assert loss.item() == pytest.approx(cross_entropy.item(), rel=1e-9)
        elif mode == "eval":
            assert loss.item() == pytest.approx((0.8 * cross_entropy + 0.2 * precision).item(), rel=1e-6)
        assert loss.isfinite()

    def test_states_are_tensors(self, phase):
        assert all(isinstance(value, torch.Tensor) for value in in_phase(phase).state_dict().values())

    def test_an_earlier_state_takes_the_switch_back(self, phase):
        loss_fn = in_phase("blend")
        loss_fn.load_state_dict(in_phase(phase).state_dict())
        assert loss_fn.switched == (PHASES[phase] > SWITCH)
        assert same(state(loss_fn), state(in_phase(phase)))

    def test_a_batch_that_is_refused_changes_nothing(self, phase):
        loss_fn = in_phase(phase)
        before, attributes = state(loss_fn), (loss_fn.switched, loss_fn.precision.temperature)
        ((logits, target, rows),) = batches(1, seed=5)
        bad = logits.detach().clone()
        bad[3] = torch.nan
        huge = logits.detach().clone()
        huge[3] = math.inf
        for batch, kind, message in (
            ((bad, target, rows), ValueError, "logits must be finite; got nan at position 3"),
            ((huge, target, rows), ValueError, "logits must be finite; got inf at position 3"),
            (
                (logits[:, None], target[:, None], rows),
                ValueError,
                r"logits must .*; got \[10, 1\]: pass logits.squeeze\(1\)",
            ),
            ((logits[:0], target[:0], rows[:0]), ValueError, "logits must not be empty"),
            ((logits, target[:3], rows), ValueError, r"target must have the shape \[10\], like logits; got \[3\]"),
            ((logits, 2 * target.long() - 1, rows), ValueError, "got -1 at position 0. If .* pass target > 0"),
            ((logits, 0.5 * target, rows), ValueError, r"target must be 0 or 1; got 0\.5"),
            ((logits, target, rows + 35), IndexError, r"index must be in \[0, 40\); got"),
            ((logits, target, rows[:3]), ValueError, r"index must have the shape \[10\]"),
            ((logits, target, rows.double()), TypeError, "index must be of an integer dtype"),
            ((logits.long(), target, rows), TypeError, "logits must have a floating dtype; got torch.int64"),
            ((logits.tolist(), target, rows), TypeError, "logits must be a tensor; got list"),
            ((logits, target.tolist(), rows), TypeError, "target must be a tensor; got list"),
            ((logits.to("meta"), target.to("meta"), rows), ValueError, "logits are on meta, the loss on cpu"),
        ):
            with pytest.raises(kind, match=message):
                loss_fn(*batch)
            assert same(before, state(loss_fn))
            assert attributes == (loss_fn.switched, loss_fn.precision.temperature)
        loss_fn(logits, target, rows).backward()


class TestBatches:
    @pytest.mark.parametrize("phase", ["cross entropy", "blend"])
    def test_without_positives(self, phase):
        loss_fn = in_phase(phase)
        logits = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64, requires_grad=True)
        loss = loss_fn(logits, torch.zeros(5), torch.arange(30, 35))
        expected = F.binary_cross_entropy_with_logits(logits, torch.zeros(5, dtype=torch.float64))
        share = 0.8 if phase == "blend" else 1.0
        torch.testing.assert_close(loss, share * expected)
        assert torch.autograd.grad(loss, logits)[0].isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_in_other_dtypes(self, dtype):
        """The gradient has the dtype of the logits, and the temperature does not lose digits on the way."""
        narrow, wide = make(), make()
        for logits, target, rows in batches(9):
            leaf = logits.detach().to(dtype).requires_grad_()
            loss = narrow(leaf, target, rows)
            expected = wide(leaf.detach().double(), target, rows)
            torch.testing.assert_close(loss.double(), expected, rtol=0.02, atol=0.02)
            (gradient,) = torch.autograd.grad(loss, leaf)
            assert gradient.dtype == dtype
            assert gradient.isfinite().all()
        assert narrow.precision.temperature == pytest.approx(wide.precision.temperature, rel=1e-9)

    @pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.float, nn.Module.double])
    @pytest.mark.parametrize("phase", ["new", "cross entropy", "blend"])
    def test_casting_the_loss_changes_nothing(self, phase, cast):
        """Squares of logits do not fit into half precision."""
        plain, other = in_phase(phase), cast(in_phase(phase))
        assert other.moments.dtype == torch.float64
        given = [(300.0 * logits.detach().float().requires_grad_(), *rest) for logits, *rest in batches(9)]
        torch.testing.assert_close(run(other, given), run(plain, given), rtol=1e-5, atol=1e-6)
        assert other.precision.temperature == pytest.approx(plain.precision.temperature, rel=1e-5)

    def test_compiled(self):
        """No step makes a new graph."""
        torch._dynamo.reset()
        plain, other = make(), make()
        compiled = torch.compile(other, backend="eager")
        assert equal(run(compiled, batches(14)), run(plain, batches(14)))
        assert same(state(plain), state(other))

    def test_moves_to_another_device(self):
        moved = in_phase("cross entropy").to("meta")
        assert {buffer.device.type for buffer in moved.buffers()} == {"meta"}
        assert moved.moments.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"switch": -1}, ValueError, "switch must be at least 0; got -1"),
        ({"switch": 1.5}, TypeError, "switch must be an integer; got 1.5"),
        ({"patience": 0}, ValueError, "patience must be at least 1; got 0"),
        ({"blend": -0.1}, ValueError, "blend must be finite and at least 0.0; got -0.1"),
        ({"blend": 1.1}, ValueError, r"blend must be in \[0, 1\]; got 1\.1"),
        ({"blend": math.nan}, ValueError, "blend must be finite"),
        ({"blend": "half"}, TypeError, "blend must be a number; got str"),
        ({"temperature": 0.0}, ValueError, "temperature must be finite and above 0.0; got 0.0"),
        ({"temperature": math.inf}, ValueError, "temperature must be finite and above 0.0; got inf"),
        ({"temperature": torch.sqrt}, TypeError, "temperature must be a number"),
        ({"surrogate": "step"}, ValueError, "surrogate must be callable or one of"),
        ({"own_term": "none"}, ValueError, "own_term must be one of 'exact', 'sampled'; got 'none'"),
        ({"rule": 0.7}, TypeError, "rule must be an instance of a rule"),
    ],
)
def test_refuses_options(options, kind, message):
    with pytest.raises(kind, match=message):
        make(**options)


def test_refuses_targets():
    for target, kind, message in (
        ([0, 0, 0], ValueError, "target must have positives and negatives; got 0 positives among 3 examples"),
        ([0, 2, 1], ValueError, "target must be 0 or 1; got 2 at position 1"),
        (["yes", "no"], TypeError, "must be numbers"),
        ([[0, 1]], ValueError, r"target must have the shape \[n\]; got \[1, 2\]"),
    ):
        with pytest.raises(kind, match=message):
            PretrainedAveragePrecisionLoss.from_targets(target)


def temperatures(rank, world):
    """By step, of a rank that has a third of each batch or the rest; and of one that trains alone."""
    loss_fn, alone = make(), distributed.configure(make(), alone=True)
    found = []
    for given in batches(14, size=9):
        mine = slice(0, 3) if rank == 0 else slice(3, 9)
        loss_fn(*(column[mine] for column in given))
        found.append(loss_fn.precision.temperature)
    if rank == 0:
        run(alone, batches(14, size=9))
    return found, alone.precision.temperature


def test_ranks_agree_on_the_temperature(monkeypatch):
    """Also with batches of different sizes; it is that of one process that has all rows."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "distributed")
    from ranks import run_ranks

    (first, alone), (second, _) = run_ranks(temperatures, 2)
    loss_fn, expected = make(), []
    for given in batches(14, size=9):
        loss_fn(*given)
        expected.append(loss_fn.precision.temperature)
    assert first == second == pytest.approx(expected, rel=1e-9)
    assert alone == pytest.approx(expected[-1], rel=1e-9)
    assert len(set(expected)) == 4  # before and at the switch, and twice later


def test_a_forgotten_index_is_named():
    loss_fn = PretrainedAveragePrecisionLoss.from_targets([1, 0, 0, 1, 0], switch=1)
    logits, target = torch.zeros(3, requires_grad=True), torch.tensor([1, 0, 0])
    with pytest.raises(TypeError, match=r"index must be given.*fcco\.data\.Indexed"):
        loss_fn(logits, target)
    assert loss_fn.eval()(logits, target).isfinite()  # validation data have no rows


def test_the_metric_of_an_epoch_may_be_a_tensor():
    loss_fn = PretrainedAveragePrecisionLoss(n=5, n_pos=2, patience=1)
    assert not loss_fn.end_epoch(torch.tensor(0.5))
    assert loss_fn.end_epoch(torch.tensor([0.4]))


def test_a_loss_that_never_switches_says_so_once():
    loss_fn = PretrainedAveragePrecisionLoss(n=5, n_pos=2)
    logits, target, index = torch.zeros(5, requires_grad=True), torch.tensor([1, 0, 0, 1, 0]), torch.arange(5)
    for _ in range(10):
        loss_fn(logits, target, index)
    with pytest.warns(UserWarning, match="still cross entropy: pass switch="):
        loss_fn(logits, target, index)
    loss_fn(logits, target, index)  # a second warning would be an error
    told = PretrainedAveragePrecisionLoss(n=5, n_pos=2)
    told.end_epoch(0.5)
    for _ in range(20):
        told(logits, target, index)


def test_settings_are_printed():
    loss_fn = PretrainedAveragePrecisionLoss(n=5, n_pos=2, patience=1)
    assert "switch=None, blend=0.2, temperature=0.0625, now: cross entropy\n" in repr(loss_fn)
    loss_fn.end_epoch(0.5), loss_fn.end_epoch(0.5)
    assert "now: cross entropy and average precision" in repr(loss_fn)
