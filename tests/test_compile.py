"""Compiled, on an accelerator, and in mixed precision."""

import inspect
import math
import os
from dataclasses import replace

import pytest
import torch

import fcco
from cases import CASES, case_id, make_batch, make_loss, run, same, state
from losses import cases

IS_WHOLE = "FCCO_COMPILE_ALL" in os.environ
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


def backends(case):
    """Of the first of every kind of rule, in either space, the graph is also differentiated before it runs."""
    rule, log, _ = case
    first = next(other for other in COMPILED_CASES if type(other[0]) is type(rule) and other[1] == log)
    return ["aot_eager" if case is first else "eager"] + ["inductor"] * IS_WHOLE


@pytest.mark.parametrize(
    ("case", "backend"),
    [pytest.param(case, each, id=f"{case_id(case)}-{each}") for case in COMPILED_CASES for each in backends(case)],
)
def test_one_graph_without_breaks(case, backend):
    compiled_equals_eager(case, backend)


BATCHES = [*cases.BATCHES[:3], [3, 3, 1, 0, 7, 7], cases.BATCHES[4]]
OPTIONS = {
    "default": {},
    "memory": {"memory": fcco.Memory(4)},
    "estimate": {"memory": fcco.Memory(4, "estimate")},
    "rule": {"rule": fcco.SOX(0.3)},
}
FORMULAS = [*cases.DEFAULTS, cases.SUPERVISED_CONTRASTIVE, cases.ROBUST_CONTRASTIVE]


def takes(case, name):
    """Lists are only remembered for their estimates."""
    is_list = case.data is cases.ranking
    return OPTIONS[name].keys() <= inspect.signature(case.loss).parameters.keys() and not (is_list and name == "memory")


def with_only(case, name):
    kept = {key: value for key, value in case.options.items() if key not in ("memory", "rule")}
    return replace(case, options={**kept, **OPTIONS[name]})


def drawn(case):
    """By name, with each of the options."""
    return {f"{case.loss.__name__}-{name}": with_only(case, name) for name in OPTIONS if takes(case, name)}


LOSSES = {name: made for case in FORMULAS for name, made in drawn(case).items()}
ONE_OF_EACH_KERNEL = ["AveragePrecisionLoss-memory", "CoxLoss-memory", "NCALoss-memory", "ContrastiveLoss-memory"]
EACH_ITS_OWN_WAY = [  # of taking a step
    "AveragePrecisionLoss-rule",
    "AUCLoss-default",
    "TwoWayPartialAUCLoss-default",
    "NDCGLoss-estimate",
    "BaselineCoxLoss-default",
    "GroupDROLoss-default",
    "RobustContrastiveLoss-default",
]
if IS_WHOLE:
    LOSSES |= {str(case): case for case in [*cases.CASES, *cases.SEVERAL_CLASSES]}


def held(loss_fn):
    """The state, but for the last place of a memory, which takes what does not fit."""
    return {
        name: value[:-1] if name.startswith(("memory.row", "memory.column")) else value
        for name, value in state(loss_fn).items()
    }


def model_with(case, loss_fn):
    def step(leaves, others, index):
        outputs = [x * (1 + 0.1 * x.sin()) for x in leaves]  # their signs stay
        return loss_fn(*outputs, *others, *([index] if case.indexed else []))

    return step


@pytest.mark.parametrize(
    ("name", "backend"),
    [(name, "aot_eager") for name in (LOSSES if IS_WHOLE else EACH_ITS_OWN_WAY)]
    + [(name, "inductor") for name in (LOSSES if IS_WHOLE else ONE_OF_EACH_KERNEL)],
)
def test_a_model_and_its_loss_are_one_graph_that_equals_eager(name, backend):
    """The backward pass reads nothing that the step overwrites, and a step that is refused writes nothing."""
    case = LOSSES[name]
    floats, others = population = case.population(dtype=torch.float32)
    eager, compiled = case.make(population), case.make(population)
    torch._dynamo.utils.counters.clear()
    step = torch.compile(model_with(case, compiled), fullgraph=True, backend=backend)
    first = step if compiled.memory is None else model_with(case, compiled)

    def batch(rows):
        return [x.detach()[rows].requires_grad_() for x in floats], [x[rows] for x in others], torch.tensor(rows)

    moved = 0
    for take, rows in zip([first] + [step] * 4, BATCHES, strict=True):
        leaves, *rest = batch(rows)
        loss, expected = take(leaves, *rest), model_with(case, eager)(leaves, *rest)
        gradients, wanted = (torch.autograd.grad(value, leaves) for value in (loss, expected))
        moved += any(bool(gradient.any()) for gradient in wanted)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-6)
    assert moved > 1  # some batches have no positive, or no list with two items
    torch.testing.assert_close(held(compiled), held(eager), rtol=1e-5, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    leaves, *rest = batch(BATCHES[0])
    before = state(compiled)
    with torch.no_grad():
        leaves[0][1] = math.nan
    with pytest.raises(RuntimeError, match="must be finite"):
        step(leaves, *rest)
    assert cases.same(before, state(compiled))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which torch reads between graphs
def test_the_first_step_with_a_memory_is_not_in_the_graph():
    case, rows = with_only(cases.COX, "memory"), torch.arange(6)
    (risk,), (time, event) = population = case.population(dtype=torch.float32)
    batch = risk.detach()[:6].requires_grad_(), time[:6], event[:6], rows
    eager, compiled, whole = (case.make(population) for _ in range(3))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(whole, fullgraph=True, backend="eager")(*batch)
    assert not whole.table.step
    torch._dynamo.utils.counters.clear()
    step = torch.compile(compiled, backend="eager")
    for count in (0, 1, 1):
        torch.testing.assert_close(step(*batch), eager(*batch))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == count


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
