"""Steps with a memory that are worked out in NumPy give what the engine gives."""

import copy

import pytest
import torch

import fcco
from fcco import losses
from fcco.losses import _bipartite, _similarity, _survival

N = 60


def average_precision(**options):
    return lambda y: losses.AveragePrecisionLoss.from_targets(y, temperature=0.5, **options)


def push(**options):
    return lambda y: losses.PNormPushLoss.from_targets(y, **options)


def cox(*, known=True, **options):
    return lambda y: losses.CoxLoss.from_targets(y, **options) if known else losses.CoxLoss(N, **options)


def cases():
    for surrogate in ("ramp", "squared_hinge", "hinge", "sigmoid", "logistic"):
        for own_term in ("exact", "sampled"):
            yield f"ap-{surrogate}-{own_term}", average_precision(surrogate=surrogate, own_term=own_term, memory=16)
    for surrogate in ("exp", "squared_hinge", "logistic"):
        yield f"push-{surrogate}", push(surrogate=surrogate, memory=16)
    for known in (True, False):
        yield f"cox-{known}", cox(known=known, memory=16)
    for name, make in {"ap": average_precision, "push": push, "cox": cox}.items():
        yield f"{name}-small", make(memory=3)
        yield f"{name}-large", make(memory=500)
        yield f"{name}-table", make(memory=16, rule=fcco.SOAP(gamma=0.5))


CASES = dict(cases())


def walk(loss, y, time, size, *, dtype, has_rows, monkeypatch, by_hand, steps=15):
    """Return values and gradients of some steps."""
    if not by_hand:
        monkeypatch.setattr(_bipartite, "can_fuse", lambda *_: False)
        monkeypatch.setattr(_survival, "can_work_by_hand", lambda *_: False)
    generator, made = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        rows = torch.randperm(N, generator=generator)[:size]
        scores = torch.randn(size, generator=generator, dtype=dtype).requires_grad_()
        columns = (scores, time[rows], y[rows]) if isinstance(loss, losses.CoxLoss) else (scores, y[rows])
        value = loss(*columns, rows if has_rows else None)
        value.backward()
        made.append(torch.cat([value.detach().reshape(1), scores.grad]))
    monkeypatch.undo()
    return torch.stack(made)


@pytest.mark.parametrize("size", [1, 2, 12])
@pytest.mark.parametrize("name", CASES)
def test_by_hand_equals_the_engine(name, size, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(N, generator=generator) < 0.3).long()
    time = torch.randint(1, 20, (N,), generator=generator).double()
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        one = CASES[name](y)
        other = copy.deepcopy(one)
        for has_rows in (True, False) if isinstance(one.coupled.rule, fcco.BSGD) else (True,):
            options = {"dtype": dtype, "has_rows": has_rows, "monkeypatch": monkeypatch}
            ours = walk(one, y, time, size, by_hand=True, **options)
            engine = walk(other, y, time, size, by_hand=False, **options)
            torch.testing.assert_close(ours, engine, rtol=tolerance, atol=tolerance)
        held = one.memory.born >= 0
        for (key, value), like in zip(one.memory.state_dict().items(), other.memory.state_dict().values(), strict=True):
            part = held if value.dim() and len(value) == len(held) else ...  # other places may hold anything
            torch.testing.assert_close(value[part], like[part], rtol=1e-5, atol=1e-5, msg=key)


@pytest.mark.parametrize("memory", [8, 2])  # of two outputs, there are fewer than a batch has
def test_the_fast_path_is_taken(memory, monkeypatch):
    y = (torch.arange(N) % 3 == 0).long()
    taken = []
    for module, name in (
        (_bipartite, "remembering_average_precision"),
        (_bipartite, "remembering_p_norm_push"),
        (_survival, "remembering_cox"),
    ):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, _f=original, **k: taken.append(_f(*a, **k)) or taken[-1])
    for loss in (
        losses.AveragePrecisionLoss.from_targets(y, memory=memory),
        losses.PNormPushLoss.from_targets(y, memory=memory),
        losses.CoxLoss.from_targets(y, memory=memory),
    ):
        for rows in (torch.arange(12), torch.arange(12, 24)):  # the first step is the engine's, which makes room
            columns = (rows.double(), y[rows]) if isinstance(loss, losses.CoxLoss) else (y[rows],)
            loss(torch.randn(12, requires_grad=True), *columns, rows)
    assert len(taken) == 3
    assert all(value is not None for value in taken)


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("options", [{}, {"log_likelihood": True}, {"rule": fcco.SOAP(gamma=0.5)}], ids=str)
@pytest.mark.parametrize("size", [3, 12, 24])  # the last one has more than is remembered
def test_nca_by_hand_equals_the_engine(size, options, guard, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 4, (N,), generator=generator)
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        one = losses.NCALoss(N, memory=fcco.Memory(16, guard=guard), **options)
        other, taken = copy.deepcopy(one), 0
        for _ in range(20):
            rows = torch.randperm(N, generator=generator)[:size]
            z = 5 + torch.randn(size, 3, generator=generator, dtype=dtype)
            made = []
            for loss in (one, other):
                leaf = z.clone().requires_grad_()
                if loss is other:
                    monkeypatch.setattr(_similarity, "can_remember_nca", lambda *_: False)
                else:
                    taken += _similarity.can_remember_nca(one.coupled, leaf, label[rows])
                value = loss(leaf, label[rows], rows)
                value.backward()
                made.append(torch.cat([value.detach().reshape(1), leaf.grad.reshape(-1)]))
                monkeypatch.undo()
            torch.testing.assert_close(*made, rtol=tolerance, atol=tolerance)
        assert taken >= 16
        held = one.memory.born >= 0
        torch.testing.assert_close(one.memory.at[held], other.memory.at[held], rtol=1e-4, atol=1e-4)
