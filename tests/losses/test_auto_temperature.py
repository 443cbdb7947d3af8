"""AveragePrecisionLoss(temperature="auto"): τ is .0625 times the deviation of recent scores over the population."""

import copy
import io

import numpy as np
import pytest
import torch
import torch._dynamo.testing

import fcco
from fcco import functional
from fcco.core.arrays import moved
from fcco.losses import AveragePrecisionLoss, NDCGLoss

N, B, STEPS = 60, 12, 12
TARGET = (torch.arange(N) % 5 == 0).long()
MISSING = torch.stack([TARGET, TARGET.roll(1), (torch.arange(N) % 3 == 0).long()], 1)
MISSING[::7, 0] = MISSING[3::11, 2] = -1


def expected(history, target):
    """τ of each class, from the scores and labels of all steps so far; -1 is a missing label."""
    target = np.asarray(target).reshape(len(target), -1)
    made = []
    for k in range(target.shape[1]):
        population = [np.sum(target[:, k] == label) for label in (0, 1)]
        share, mean, variance = [], [], []
        for label in (0, 1):
            values, weights = [], []
            for age, (scores, labels) in enumerate(reversed(history)):
                member = np.reshape(labels, (len(labels), -1))[:, k] == label
                values.append(np.reshape(scores, (len(scores), -1))[member, k])
                weights.append(np.full(member.sum(), 0.99**age))
            values, weights = np.concatenate(values), np.concatenate(weights)
            if len(values) == 0:
                continue
            share.append(population[label])
            mean.append(np.average(values, weights=weights))
            variance.append(np.average((values - mean[-1]) ** 2, weights=weights))
        share = np.array(share) / np.sum(share)
        centre = share @ np.array(mean)
        made.append(0.0625 * np.sqrt(share @ np.array(variance) + share @ (np.array(mean) - centre) ** 2))
    return made


def steps(target=TARGET, seed=0, dtype=torch.float64, count=STEPS, balanced=True):
    """Batches of rows and scores, whose spread and offset change from step to step."""
    rng = np.random.default_rng(seed)
    for step in range(count):
        rows = rng.choice(N, B, replace=False)
        if balanced and target.dim() == 1:
            rows = np.concatenate(
                [rng.choice(np.flatnonzero(target.numpy() == label), B // 2, replace=False) for label in (0, 1)]
            )
        shape = (B, *target.shape[1:])
        scores = (1 + step) * rng.normal(size=shape) + 3 * target[rows].clamp(min=0).numpy() - step
        yield torch.from_numpy(rows), torch.tensor(scores, dtype=dtype)


def step(loss_fn, rows, scores, target=TARGET):
    leaf = scores.clone().requires_grad_()
    loss = loss_fn(leaf, target[rows], rows)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def state(loss_fn):
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in loss_fn.state_dict().items()
    }


def unchanged(loss_fn, before):
    now = loss_fn.state_dict()
    return all(torch.equal(torch.as_tensor(now[name]), torch.as_tensor(value)) for name, value in before.items())


OPTIONS = {
    "default": {},
    "table": {"memory": 0},
    "bsgd": {"rule": fcco.BSGD(), "own_term": "exact"},
    "memory": {"memory": 8, "surrogate": "sigmoid"},
    "estimate": {"memory": fcco.Memory(8, "estimate")},
    "squared hinge": {"surrogate": "squared_hinge", "memory": 8},
    "exp": {"surrogate": "exp", "memory": 0},
    "own function": {"surrogate": torch.sigmoid, "memory": 0},
    "several classes": {},
    "several classes, memory": {"memory": 8},
}


def at(loss_fn, tau):
    """Give a loss a temperature for each class."""

    def at_step(objective, batch, *, is_step):
        objective = copy.copy(objective)
        objective.tau = float(tau[0]) if loss_fn.classes is None else moved(np.array(tau), batch.x[0])
        return objective, None

    loss_fn.at_step = at_step


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", OPTIONS)
def test_it_is_the_loss_at_the_expected_temperature(name, library, monkeypatch):
    """Of the whole run so far, and without a gradient through it."""
    if library == "torch":
        monkeypatch.setattr(AveragePrecisionLoss, "_takes_arrays", lambda *_: False)
    target = MISSING if "classes" in name else TARGET
    auto = AveragePrecisionLoss.from_targets(target, temperature="auto", **OPTIONS[name])
    twin = AveragePrecisionLoss.from_targets(target, **OPTIONS[name])
    history, moved = [], 0.0
    for rows, scores in steps(target):
        history.append((scores.numpy(), target[rows].numpy()))
        tau = expected(history, target)
        at(twin, tau)
        wanted = step(twin, rows, scores, target)
        made = step(auto, rows, scores, target)
        moved += made[1].abs().sum()
        torch.testing.assert_close(made, wanted, rtol=1e-9, atol=1e-11)
    assert moved > 0.01
    torch.testing.assert_close(auto.table.u, twin.table.u, rtol=1e-9, atol=1e-11)


def test_balanced_batches_do_not_change_it():
    """The scores of all data, in batches that hold as many positives as negatives."""
    scores = torch.tensor(np.random.default_rng(0).normal(size=N)) + 4 * TARGET
    loss_fn = AveragePrecisionLoss.from_targets(TARGET, temperature="auto")
    negatives, positives = (torch.nonzero(label == TARGET).flatten() for label in (0, 1))
    rows = torch.cat([positives.repeat(4), negatives])
    loss_fn(scores[rows].requires_grad_(), TARGET[rows], rows)
    wanted = functional.average_precision_loss(scores, TARGET, temperature=float(0.0625 * scores.std(correction=0)))
    torch.testing.assert_close(loss_fn.eval()(scores, TARGET, None), wanted, rtol=1e-12, atol=0)


def test_eval_before_training_uses_the_deviation_of_the_batch():
    for target in (TARGET, MISSING):
        loss_fn = AveragePrecisionLoss.from_targets(target, temperature="auto").eval()
        before = state(loss_fn)
        for rows, scores in steps(target, count=3):
            tau = []
            for k, column in enumerate(scores.reshape(B, -1).T):
                known = target[rows].reshape(B, -1)[:, k] >= 0
                tau.append(0.0625 * float(column[known].std(correction=0)))
            twin = AveragePrecisionLoss.from_targets(target).eval()
            at(twin, tau)
            wanted = twin(scores, target[rows], None)
            if target is TARGET:
                exact = functional.average_precision_loss(scores, target[rows], temperature=tau[0])
                torch.testing.assert_close(wanted, exact, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(loss_fn(scores, target[rows], None), wanted, rtol=1e-9, atol=1e-12)
        assert unchanged(loss_fn, before)


def test_only_a_step_changes_it():
    """Neither evaluation, nor a batch that is refused, nor a step that is worked out and not kept."""
    loss_fn = AveragePrecisionLoss.from_targets(TARGET, temperature="auto")
    (first, scores), (rows, others) = steps(count=2)
    step(loss_fn, first, scores)
    before = state(loss_fn)
    tau = expected([(scores.numpy(), TARGET[first].numpy())], TARGET)[0]
    with torch.no_grad():
        wanted = AveragePrecisionLoss.from_targets(TARGET, temperature=tau)(others, TARGET[rows], rows)
        torch.testing.assert_close(loss_fn(others, TARGET[rows], rows), wanted, rtol=1e-9, atol=1e-12)
    wanted = functional.average_precision_loss(others, TARGET[rows], temperature=tau)
    torch.testing.assert_close(loss_fn.eval()(others, TARGET[rows], rows), wanted, rtol=1e-9, atol=1e-12)
    loss_fn.train()
    with loss_fn.frozen():
        step(loss_fn, rows, others)
    bad = others.clone()
    bad[3] = torch.nan
    with pytest.raises(ValueError, match="scores must be finite; got nan at position 3"):
        step(loss_fn, rows, bad)
    with pytest.raises(ValueError, match="the standard deviation of scores must be finite"):
        step(loss_fn, rows, 1e200 * others)
    with pytest.raises(ValueError, match="target must be"):
        loss_fn(others.requires_grad_(), 1 - TARGET[rows], rows)
    with pytest.raises(IndexError, match="index must be"):
        loss_fn(others, TARGET[rows], rows + N)
    with pytest.raises(ValueError, match="must have the shape"):
        loss_fn(others, TARGET[rows][:-1], rows)
    with pytest.raises(ValueError, match="must not be empty"):
        loss_fn(others[:0], TARGET[:0], rows[:0])
    assert unchanged(loss_fn, before)
    step(loss_fn, rows, others.detach())
    assert not unchanged(loss_fn, before)


@pytest.mark.parametrize("target", [TARGET, MISSING], ids=["one", "several"])
def test_resuming_is_bit_for_bit(target):
    whole = AveragePrecisionLoss.from_targets(target, temperature="auto")
    resumed, made = None, []
    for taken, (rows, scores) in enumerate(steps(target, dtype=torch.float32)):
        if taken == STEPS // 2:
            file = io.BytesIO()
            torch.save(whole.state_dict(), file)
            file.seek(0)
            resumed = AveragePrecisionLoss.from_targets(target, temperature="auto")
            resumed.load_state_dict(torch.load(file, weights_only=True))
        made = step(whole, rows, scores, target)
        if resumed is not None:
            assert all(map(torch.equal, step(resumed, rows, scores, target), made))
    assert resumed is not None


def test_a_state_that_is_refused_changes_nothing():
    saved, loss_fn = (AveragePrecisionLoss.from_targets(TARGET, temperature="auto") for _ in range(2))
    for rows, scores in steps():
        step(saved, rows, scores)
    broken, before = saved.state_dict(), state(loss_fn)
    broken["table.u"] = broken["table.u"] * torch.nan
    with pytest.raises(RuntimeError, match="u must be finite"):
        loss_fn.load_state_dict(broken)
    assert unchanged(loss_fn, before)


def test_a_state_of_other_data_is_left_out():
    """As a whole, with strict=False: the moments belong to the table."""
    saved, loss_fn = (AveragePrecisionLoss.from_targets(y, temperature="auto") for y in (TARGET, TARGET[:-5]))
    step(saved, *next(steps()))
    before = state(loss_fn)
    with pytest.warns(UserWarning, match="AveragePrecisionLoss"):
        loss_fn.load_state_dict(saved.state_dict(), strict=False)
    assert unchanged(loss_fn, before)


def test_constant_scores():
    """Their differences are 0 in any unit; the gradient is that of τ = .0625, and the next step is as usual."""
    for value in (0.0, 1e4, -0.1):
        loss_fn = AveragePrecisionLoss.from_targets(TARGET, temperature="auto", memory=0)
        twin = AveragePrecisionLoss.from_targets(TARGET, temperature=0.0625, memory=0)
        rows, scores = next(steps(dtype=torch.float32))
        constant = torch.full_like(scores, value)
        made = step(loss_fn, rows, constant)
        torch.testing.assert_close(made, step(twin, rows, constant))
        assert 0 < made[1].abs().sum() < 100
        assert all(part.isfinite().all() for part in step(loss_fn, rows, scores))


def test_a_label_that_no_batch_has_had():
    loss_fn = AveragePrecisionLoss.from_targets(TARGET, temperature="auto")
    rows = torch.nonzero(TARGET == 0).flatten()[:B]
    scores = torch.linspace(-1, 2, B, dtype=torch.float64)
    loss_fn(scores.requires_grad_(), TARGET[rows], rows)
    tau = expected([(scores.detach().numpy(), TARGET[rows].numpy())], TARGET)[0]
    rows, others = next(steps())
    wanted = functional.average_precision_loss(others, TARGET[rows], temperature=tau)
    torch.testing.assert_close(loss_fn.eval()(others, TARGET[rows], None), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("target", [TARGET, MISSING], ids=["one", "several"])
def test_compiled(target):
    """In one graph, and the backward pass uses τ of its step, whatever the moments have become by then."""
    torch._dynamo.reset()
    options = {"temperature": "auto", "memory": 0, "surrogate": "sigmoid"}
    eager, compiled = (AveragePrecisionLoss.from_targets(target, **options) for _ in range(2))
    loss_fn = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for rows, scores in steps(target, dtype=torch.float32, count=6):
        made, wanted = step(loss_fn, rows, scores, target), step(eager, rows, scores, target)
        assert wanted[1].abs().sum() > 0
        torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(compiled.deviation.moments, eager.deviation.moments, rtol=1e-6, atol=1e-6)
    torch._dynamo.reset()


def test_casts_and_copies():
    loss_fn = AveragePrecisionLoss.from_targets(TARGET, temperature="auto")
    for rows, scores in steps(count=2):
        step(loss_fn, rows, scores)
    moments = loss_fn.deviation.moments.clone()
    for made in (copy.deepcopy(loss_fn).half(), copy.deepcopy(loss_fn).float(), copy.deepcopy(loss_fn).double()):
        assert torch.equal(made.deviation.moments, moments)
        assert made.deviation.moments.dtype == torch.float64
    copy.deepcopy(loss_fn).to("meta")
    rows, scores = next(steps(seed=1))
    assert all(map(torch.equal, step(copy.deepcopy(loss_fn), rows, scores), step(loss_fn, rows, scores)))


def test_where_it_is_not_to_be_had():
    loss_fn = AveragePrecisionLoss.from_targets(TARGET)
    loss_fn.temperature = "auto"
    with pytest.raises(ValueError, match="pass temperature='auto' to the constructor"):
        step(loss_fn, *next(steps()))
    with pytest.raises(TypeError, match="temperature must be a number; got str"):
        NDCGLoss(6, temperature="auto")
