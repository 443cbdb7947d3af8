"""Compiled, on an accelerator, and in mixed precision."""

import math

import pytest
import torch

import fcco
from cases import CASES, case_id, make_batch, make_loss, run, same, state
from fcco import losses

COMPILED_CASES = [case for case in CASES if case[2] == 2]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_equals_eager(case, backend):
    eager, compiled = make_loss(case), make_loss(case)
    step = torch.compile(compiled, fullgraph=True, backend=backend)
    for seed, rows in enumerate([[0, 1, 2, 3], [3, 3, 7, 0], [9, 8, 9, 9], [2, 4, 6, 8]]):
        inner, index = make_batch(case, seed=seed, rows=rows, dtype=torch.float32)
        same = inner.detach().clone().requires_grad_()
        expected = eager(inner, index)
        expected.backward()
        loss = step(same, index)
        loss.backward()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(same.grad, inner.grad)
    torch.testing.assert_close(state(compiled), state(eager))


@pytest.mark.parametrize("case", COMPILED_CASES, ids=case_id)
def test_one_graph_without_breaks(case):
    """Of the first of every kind of rule, in either space, the graph is also differentiated before it runs."""
    rule, log, _ = case
    first = next(other for other in COMPILED_CASES if type(other[0]) is type(rule) and other[1] == log)
    compiled_equals_eager(case, backend="aot_eager" if case is first else "eager")


@pytest.mark.parametrize("case", [(fcco.SOX(0.3), True, 2), (fcco.MOAP(0.3), False, 2)], ids=case_id)
def test_inductor(case):
    compiled_equals_eager(case, backend="inductor")


N = 60
CLASSES = torch.arange(N) % 3
POSITIVE = (torch.arange(N) % 3 == 0).long()


def mean_of_others(pool):
    """The mean over everyone of e^(h_j - h_i)."""
    recall, own = pool.recall or fcco.Recall(), pool.own[0]
    theirs = own if pool.rivals is None else pool.rivals[0] if recall.apart else torch.cat([own, pool.rivals[0]])
    present = torch.ones(len(theirs)) if recall.present is None else recall.present[-len(theirs) :].to(own.dtype)
    return ((theirs - own.unsqueeze(1)).exp() * present).sum(1) / present.sum()


def with_labels(labels):
    return lambda loss_fn, x, rows: loss_fn(x[:, 0] if labels is POSITIVE else x, labels[rows], rows)


IN_PIECES = {  # losses that compilers leave out of their graphs
    "NCA": (lambda: losses.NCALoss.from_targets(CLASSES, memory=24), with_labels(CLASSES)),
    "AP": (lambda: losses.AveragePrecisionLoss.from_targets(POSITIVE), with_labels(POSITIVE)),
    "partial AUC": (lambda: losses.PartialAUCLoss.from_targets(POSITIVE, memory=16), with_labels(POSITIVE)),
    "robust": (
        lambda: losses.RobustContrastiveLoss(N, 0.4, lr=0.05, rule=fcco.SOAP(0.5)),
        lambda loss_fn, x, rows: loss_fn(x[:, :2], x[:, 2:], rows),
    ),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which torch reads between graphs
@pytest.mark.parametrize("name", ["NCA", "AP", "partial AUC", "robust"])
def test_inductor_has_the_gradient_of_what_was_there_before_the_step(name):
    """Its backward pass must not read what the step has overwritten."""
    make, call = IN_PIECES[name]
    eager, compiled = make(), make()
    step = torch.compile(lambda x, rows: call(compiled, 2 * x.sin(), rows), backend="inductor")
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        rows = torch.randperm(N, generator=generator)[:12]
        x = torch.randn(12, 4, generator=generator).requires_grad_()
        same = x.detach().clone().requires_grad_()
        loss, expected = step(same, rows), call(eager, 2 * x.sin(), rows)
        loss.backward()
        expected.backward()
        assert x.grad.abs().sum() > 0
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(same.grad, x.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state(compiled), state(eager))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_one_graph_with_a_memory_is_refused_and_without_a_step_is_made():
    make, call = IN_PIECES["AP"]
    loss_fn, x, rows = make(), torch.randn(12, 1), torch.arange(12)
    step = torch.compile(lambda: call(loss_fn, x, rows), fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        step()
    loss_fn.eval()
    torch.testing.assert_close(step(), call(loss_fn, x, rows))


def test_steps_do_not_recompile():
    counter = torch._dynamo.testing.CompileCounter()
    loss_fn = make_loss((fcco.SOX(fcco.schedules.Cosine(0.1, 10)), False, 1))
    step = torch.compile(loss_fn, fullgraph=True, backend=counter)
    for seed in range(5):
        inner, index = make_batch((loss_fn.rule, False, 1), seed=seed, dtype=torch.float32)
        step(inner, index)
    assert counter.frame_count == 1


@pytest.mark.parametrize(("inner", "index"), [([1.0, math.nan], [0, 1]), ([1.0, 2.0], [0, 10])])
def test_compiled_checks_raise_and_change_nothing(inner, index):
    loss_fn = make_loss((fcco.SOX(0.3), False, 1))
    step = torch.compile(loss_fn, fullgraph=True, backend="aot_eager")
    with pytest.raises((RuntimeError, IndexError)):
        step(torch.tensor(inner, requires_grad=True), torch.tensor(index))
    assert not loss_fn.table.visits.any()


def test_compiled_gradients_are_checked():
    loss_fn = make_loss((fcco.SOX(0.3, safeguard=False), True, 1))
    step = torch.compile(loss_fn, fullgraph=True, backend="aot_eager")
    step(torch.tensor([-100.0, 0.0], requires_grad=True), torch.tensor([0, 1]))
    before = state(loss_fn)
    with pytest.raises(RuntimeError, match="the loss, its gradient and what it keeps must be finite"):
        step(torch.tensor([0.0, 0.0], requires_grad=True), torch.tensor([0, 1]))
    assert same(before, state(loss_fn))


def test_compiled_schedules_are_checked():
    loss_fn = make_loss((fcco.SOX(lambda step: 1.5 + step), False, 1))
    step = torch.compile(loss_fn, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"gamma of SOX must be in \(0, 1\]"):
        step(torch.ones(2, requires_grad=True), torch.tensor([0, 1]))


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_never_waits_for_the_device(case):
    """On the meta device there is no data, so any attempt to look at a value raises."""
    loss_fn = make_loss(case).to("meta")
    for seed in range(3):
        inner, index = make_batch(case, seed=seed, dtype=torch.float32)
        inner = inner.detach().to("meta").requires_grad_()
        loss = loss_fn(inner, index.to("meta"))
        loss.backward()
        assert inner.grad.shape == inner.shape


def test_another_device_than_the_table_is_named():
    loss_fn = make_loss((fcco.SOX(0.3), False, 1))
    with pytest.raises(ValueError, match=r"the batch is on meta, .* on cpu: move the loss with \.to\("):
        loss_fn(torch.ones(2, device="meta"), [0, 1])


@pytest.mark.parametrize("case", [(fcco.SOX(0.3), False, 1), (fcco.SOX(0.3), True, 2)], ids=case_id)
def test_autocast(case):
    """A bfloat16 model, a float32 table, and gradients that agree with float32 to bfloat16's accuracy."""
    _, log, dim = case
    torch.manual_seed(0)
    x, index = torch.rand(6, 8), torch.arange(6)
    gradients = {}
    for enabled in (False, True):
        torch.manual_seed(1)
        model, loss_fn = torch.nn.Linear(8, dim), make_loss(case)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            inner = model(x)
            loss = loss_fn(inner if log else inner.exp(), index)
        loss.backward()
        assert loss.dtype == loss_fn.table.u.dtype == torch.float32
        gradients[enabled] = model.weight.grad
    torch.testing.assert_close(gradients[True], gradients[False], rtol=0.05, atol=0.02)


def test_grad_scaler():
    case = (fcco.SOX(0.3), False, 1)
    weights = []
    for enabled in (False, True):
        loss_fn, w = make_loss(case), torch.nn.Parameter(torch.tensor(1.0))
        optimizer = fcco.optim.MovingAverageSGD([w], lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        for seed in range(4):
            inner, index = make_batch(case, seed=seed, dtype=torch.float32)
            optimizer.zero_grad()
            scaler.scale(loss_fn(inner.detach() * w, index)).backward()
            scaler.step(optimizer)
            scaler.update()
        weights.append(w.item())
    assert weights[0] == pytest.approx(weights[1], rel=1e-6)
    assert weights[0] != 1.0


@pytest.mark.parametrize("gamma", [0.3, lambda step: 1 / (3 + step)], ids=["constant", "schedule"])
def test_float64_compiles(gamma):
    case = (fcco.SOX(gamma), False, 2)
    loss_fn = make_loss(case).double()
    values = run(torch.compile(loss_fn, fullgraph=True, backend="aot_eager"), case)
    torch.testing.assert_close(values, run(make_loss(case), case), rtol=1e-12, atol=1e-12)
