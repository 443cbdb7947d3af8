"""MAML: a table of adapted weights, and second derivatives."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fcco
from fcco import functional, losses

TASKS = 5


def tasks(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    x = torch.randn(2, TASKS, 4, 3, dtype=dtype)
    y = torch.randn(2, TASKS, 4, 1, dtype=dtype)
    return (x[0], y[0]), (x[1], y[1])


def make_model(dtype=torch.float64):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).to(dtype)


def some(data, rows):
    return data[0][rows], data[1][rows]


def gradients(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()))


def by_hand(model, support, query, lr):
    """One step on each task, with a graph of its own, and no vmap."""
    total = 0.0
    for i in range(len(support[0])):
        slopes = torch.autograd.grad(
            F.mse_loss(model(support[0][i]), support[1][i]), list(model.parameters()), create_graph=True
        )
        adapted = {name: w - lr * slope for (name, w), slope in zip(model.named_parameters(), slopes, strict=True)}
        total = total + F.mse_loss(torch.func.functional_call(model, adapted, (query[0][i],)), query[1][i])
    return total / len(support[0])


def test_objective_and_second_derivatives():
    model, (support, query) = make_model(), tasks()
    loss, wanted = functional.maml_loss(model, support, query, lr=0.1), by_hand(model, support, query, 0.1)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradients(loss, model), gradients(wanted, model))


@pytest.mark.parametrize("rule", [fcco.SOAP(1.0), fcco.BSGD(), fcco.SOX(0.3)], ids=str)
def test_full_batch_is_the_exact_objective(rule):
    model, (support, query) = make_model(), tasks()
    loss_fn = losses.MAMLLoss.for_model(model, TASKS, 0.1, rule=rule)
    loss = loss_fn(model, support, query, torch.arange(TASKS))
    wanted = functional.maml_loss(model, support, query, lr=0.1)
    torch.testing.assert_close(loss, wanted, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(gradients(loss, model), gradients(wanted, model), rtol=1e-8, atol=1e-10)


def test_rows_are_averages_of_adapted_weights():
    """Over support sets: g is linear in the support set's gradient, so its mean is the adapted weights of all."""
    model = make_model()
    loss_fn = losses.MAMLLoss.for_model(model, TASKS, 0.1, rule=fcco.SOX(0.25))
    first, second = tasks(seed=2), tasks(seed=3)
    for support, query in (first, second):
        loss_fn(model, support, query, torch.arange(TASKS))
    one, two = (fcco.functional._meta.adapt(model, support, lr=0.1) for support, _ in (first, second))
    torch.testing.assert_close(loss_fn.table.u, (0.75 * one + 0.25 * two).detach())


def test_eval_is_the_exact_objective_of_the_batch():
    model, (support, query) = make_model(), tasks()
    loss_fn = losses.MAMLLoss.for_model(model, 2, 0.1).eval()
    loss = loss_fn(model, support, query, torch.arange(TASKS) + 100)
    torch.testing.assert_close(loss, functional.maml_loss(model, support, query, lr=0.1))
    assert not loss_fn.table.visits.any()


def test_a_model_of_one_parameter():
    model, x = nn.Linear(1, 1, bias=False), torch.randn(3, 4, 1)
    loss_fn = losses.MAMLLoss.for_model(model, 3, 0.1)
    loss = loss_fn(model, (x, 2 * x), (x, 2 * x), torch.arange(3))
    torch.testing.assert_close(loss, functional.maml_loss(model, (x, 2 * x), (x, 2 * x), lr=0.1))


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "state_dict"])
def test_copies_continue_bit_for_bit(copied):
    model, (support, query) = make_model(), tasks()
    loss_fn = losses.MAMLLoss.for_model(model, TASKS, 0.1)
    loss_fn(model, *(some(data, [0, 3]) for data in (support, query)), torch.tensor([0, 3]))
    if copied == "deepcopy":
        other = copy.deepcopy(loss_fn)
    elif copied == "pickle":
        other = pickle.loads(pickle.dumps(loss_fn))
    else:
        file = io.BytesIO()
        torch.save(loss_fn.state_dict(), file)
        file.seek(0)
        other = losses.MAMLLoss.for_model(model, TASKS, 0.1)
        other.load_state_dict(torch.load(file, weights_only=True))
    rows = torch.tensor([3, 1])
    results = [f(model, some(support, rows), some(query, rows), rows) for f in (loss_fn, other)]
    assert torch.equal(*results)
    assert all(torch.equal(a, b) for a, b in zip(*(gradients(r, model) for r in results), strict=True))


def test_steps_reduce_the_exact_objective():
    """Two tasks at a time, with new support sets."""
    torch.manual_seed(0)
    slopes = torch.linspace(0.5, 2, TASKS).reshape(TASKS, 1, 1)
    model = nn.Linear(1, 1)
    loss_fn = losses.MAMLLoss.for_model(model, TASKS, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(TASKS, 50, 1)
    whole = (x, slopes * x), (x, slopes * x)
    before = functional.maml_loss(model, *whole, lr=0.1).item()
    for _ in range(100):
        rows = torch.randperm(TASKS)[:2]
        x = torch.randn(2, 5, 1)
        optimizer.zero_grad()
        loss_fn(model, (x, slopes[rows] * x), (x, slopes[rows] * x), rows).backward()
        optimizer.step()
    assert functional.maml_loss(model, *whole, lr=0.1).item() < 0.5 * before


def test_float32():
    model, (support, query) = make_model(torch.float32), tasks(dtype=torch.float32)
    loss = losses.MAMLLoss.for_model(model, TASKS, 0.1)(model, support, query, torch.arange(TASKS))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, functional.maml_loss(model, support, query, lr=0.1))


@pytest.mark.skipif(torch.__version__.startswith("2.4."), reason="cannot trace functional_call within vmap")
def test_one_graph_that_equals_eager():
    torch._dynamo.reset()
    model, (support, query) = make_model(torch.float32), tasks(dtype=torch.float32)
    eager, compiled = (losses.MAMLLoss.for_model(model, TASKS, 0.1) for _ in range(2))
    step = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for rows in (torch.tensor([0, 3]), torch.tensor([3, 3])):
        arguments = model, some(support, rows), some(query, rows), rows
        torch.testing.assert_close(gradients(step(*arguments), model), gradients(eager(*arguments), model))
    torch.testing.assert_close(compiled.table.u, eager.table.u)
    torch._dynamo.reset()


def test_never_waits_for_the_device():
    model, data = make_model().to("meta"), [[x.to("meta") for x in part] for part in tasks()]
    loss_fn = losses.MAMLLoss.for_model(model, TASKS, 0.1).to("meta")
    loss_fn(model, *data, torch.arange(TASKS, device="meta")).backward()
    assert model[0].weight.grad.shape == model[0].weight.shape


class TestErrors:
    def check(self, match, error=ValueError, **changes):
        model, (support, query) = make_model(), tasks()
        loss_fn = losses.MAMLLoss.for_model(model, TASKS, 0.1)
        arguments = {"model": model, "support": support, "query": query, "index": torch.arange(TASKS), **changes}
        with pytest.raises(error, match=match):
            loss_fn(**arguments)
        assert not loss_fn.table.visits.any()

    def test_numbers_of_tasks(self):
        (x, y), _ = tasks()
        self.check("support must have the same number of tasks", support=(x, y[1:]))
        self.check("query must have 5 tasks", query=(x[1:], y[1:]))
        self.check("query must have 5 tasks", query=(x, y[1:]))
        self.check("index", index=torch.arange(4))
        self.check(r"index must be in \[0, 5\); got 5 at position 4", IndexError, index=torch.arange(5) + 1)

    def test_not_pairs(self):
        self.check("support must be a pair of tensors", TypeError, support=tasks()[0][0])

    def test_another_model(self):
        self.check("model must have 11 parameters, like the table's rows; got 4", model=nn.Linear(3, 1).double())

    def test_data_that_is_not_finite(self):
        (x, y), _ = tasks()
        x[2, 0, 0] = torch.nan
        self.check("support must be such that the gradient is finite; got nan at position 2", support=(x, y))

    def test_step_size(self):
        with pytest.raises(ValueError, match="lr must be finite and above 0"):
            losses.MAMLLoss(5, 3, lr=0.0)


def test_a_model_of_fewer_digits_than_the_table():
    loss_fn = losses.MAMLLoss.for_model(make_model(), TASKS, 0.1, rule=fcco.SOX(0.5))
    for dtype in (torch.float64, torch.float32):
        model = make_model().to(dtype)
        support, query = ([part.to(dtype) for part in data] for data in tasks())
        loss = loss_fn(model, support, query, torch.arange(TASKS))
        assert all(gradient.dtype == dtype for gradient in gradients(loss, model))
    assert loss.item() == pytest.approx(functional.maml_loss(model, support, query, lr=0.1).item())
