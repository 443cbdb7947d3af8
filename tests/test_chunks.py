"""Outputs and gradients in chunks are those of the whole batch, whatever the module does and whatever surrounds it."""

import copy
import dataclasses
import pickle
import warnings
from collections import OrderedDict
from itertools import pairwise

import chunks
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint_sequential

import fcco
from fcco import ChunkedModule, forward_in_chunks
from fcco.losses.loss import ObjectiveLoss
from fcco.objectives.survival import Cox

N, SIZE = 100, 16


def rows(seed=0, n=N, d=6):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32))


def network(*, dropout=0.0, width=32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 4))


def objective(outputs):
    """A loss that compares examples: no sum over micro-batches equals it."""
    scores = outputs[:, 0].float()
    return (scores.logcumsumexp(0) - scores).mean() + outputs.float().square().mean()


def with_graph(module, *args, size=SIZE, **kwargs):
    """The chunks with their graphs: what the gradient must be to the last bit."""
    n = len(args[0])
    pieces = -(-n // size)
    edges = [n * piece // pieces for piece in range(pieces + 1)]
    return torch.cat([module(*(v[a:b] for v in args), **kwargs) for a, b in pairwise(edges)])


def in_chunks(module, *args, size=SIZE, **kwargs):
    return forward_in_chunks(module, *args, chunk_size=size, **kwargs)


def gradients(forward, module, *args, loss=objective, **kwargs):
    """The gradient of every parameter, from the same random state, and the next random number."""
    module.zero_grad()
    torch.manual_seed(1)
    loss(forward(module, *args, **kwargs)).backward()
    made = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    assert all(g is None or (g.isfinite().all() and g.any()) for g in made)
    return [*made, torch.rand(1)]


def assert_equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


def error(first, second):
    """The largest difference, relative to the largest entry."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None]
    return max((a - b).abs().max().item() for a, b in pairs) / max(b.abs().max().item() for _, b in pairs)


class Tower(nn.Module):
    """Nested inputs and outputs, and an output that nobody uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.unused = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, features, *, extra, flag=True, scale=None):
        z = self.body(features["x"] + extra[0] + (0 if scale is None else scale))
        return {"z": (z if flag else -z, [z.relu()]), "unused": self.unused(extra[0]), "kind": "tower", "none": None}


class Spectral(nn.Module):
    """Buffers that change with every call and decide the outputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.layer(x).relu())


class RunningScale(nn.Module):
    """A buffer that is replaced, not written to, and that the gradient reads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 4)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean()
        return self.linear(x) / self.scale


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRU(6, 4, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.cell(x[:, None].expand(-1, 5, -1))[0][:, -1]


class Recomputing(nn.Module):
    """Gradient checkpointing of its own."""

    def __init__(self, *, reentrant):
        super().__init__()
        self.net, self.reentrant = network(dropout=0.3), reentrant

    def forward(self, x):
        if self.reentrant:
            x = x.requires_grad_()
        return checkpoint_sequential(self.net, 2, x, use_reentrant=self.reentrant)


def batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def frozen_below():
    net = network(dropout=0.3)
    net[0].requires_grad_(False)
    return net


@pytest.mark.parametrize(
    "make",
    [
        lambda: network(dropout=0.3),
        frozen_below,
        Recurrent,
        lambda: Recomputing(reentrant=False),
        lambda: Recomputing(reentrant=True),
        lambda: batch_norm().eval(),
        lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.GroupNorm(1, 3), nn.Dropout(0.2), nn.Flatten()),
    ],
    ids=["dropout", "frozen", "gru", "checkpointing", "reentrant checkpointing", "batch norm in eval", "convolution"],
)
def test_the_gradient_is_that_of_the_chunks_with_graph(make):
    module, x = make(), rows()
    x = x.reshape(N, 2, 3) if isinstance(module[0] if isinstance(module, nn.Sequential) else 0, nn.Conv1d) else x
    assert_equal(gradients(in_chunks, module, x), gradients(with_graph, module, x))


@pytest.mark.filterwarnings("ignore:.*changes its buffers")
@pytest.mark.parametrize("make", [batch_norm, Spectral, RunningScale])
def test_buffers_change_once_for_each_chunk(make):
    one, two, x = make(), make(), 3 * rows() + 1
    for _ in range(3):
        assert_equal(gradients(in_chunks, one, x), gradients(with_graph, two, x))
        assert_equal(list(one.buffers()), list(two.buffers()))


@pytest.mark.parametrize("size", [1, 7, 16, 50, 99, 100, 1000])
def test_the_gradient_is_that_of_the_batch(size):
    net, x = network(), rows()
    assert error(gradients(in_chunks, net, x, size=size), gradients(lambda m, v: m(v), net, x)) < 1e-6
    torch.testing.assert_close(in_chunks(net, x, size=size), net(x))


def test_rows_are_divided_evenly():
    seen = []
    net = network()
    net.register_forward_hook(lambda module, given, made: seen.append(len(given[0])))
    with torch.no_grad():
        in_chunks(net, rows(n=33))
    assert seen == [11, 11, 11]


def test_losses_of_the_library_see_the_whole_batch():
    labels, index, x = torch.arange(N) % 5, torch.arange(N), rows()
    made = []
    for forward in (in_chunks, lambda m, v: m(v)):
        loss_fn = fcco.losses.NCALoss.from_targets(labels)
        net = network()
        for _ in range(3):
            made.append(gradients(forward, net, x, loss=lambda z, f=loss_fn: f(z, labels, index)))
    for first, second in zip(made[:3], made[3:], strict=True):
        assert error(first, second) < 1e-6


def test_inputs_and_outputs_may_be_nested():
    tower, x, y = Tower(), rows(), rows(1)
    out = in_chunks(tower, {"x": x}, extra=[y], flag=False, scale=torch.tensor(2.0))
    plain = tower({"x": x}, extra=[y], flag=False, scale=torch.tensor(2.0))
    assert out["kind"] == "tower"
    assert out["none"] is None
    for part, whole in ((out, plain), (out["z"], plain["z"])):
        assert type(part) is type(whole)
    torch.testing.assert_close(out["z"][1][0], plain["z"][1][0])
    first, second = (
        gradients(lambda m: in_chunks(m, {"x": x}, extra=(y,))["z"][0], tower),
        gradients(lambda m: m({"x": x}, extra=(y,))["z"][0], tower),
    )
    assert first[2] is None  # the unused head has no gradient, rather than zeros
    assert error(first, second) < 1e-6


@dataclasses.dataclass
class Outputs(OrderedDict):
    """As in transformers: a dictionary with attributes that pytree has been told of."""

    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]

    def __post_init__(self):
        self.update(logits=self.logits, hidden=self.hidden)


pytree.register_pytree_node(
    Outputs,
    lambda out: (list(out.values()), list(out)),
    lambda values, names: Outputs(**dict(zip(names, values, strict=True))),
)


def test_outputs_of_a_registered_class():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            z = self.net(x)
            return Outputs(logits=z, hidden=(x, z.relu()))

    out = in_chunks(Model(), rows())
    assert type(out) is Outputs
    assert out.logits.shape == out["hidden"][1].shape == (N, 4)


def test_chunks_inside_of_chunks():
    inside = nn.Sequential(ChunkedModule(network(dropout=0.3), 4), nn.Linear(4, 4))
    assert_equal(gradients(in_chunks, inside, rows(n=64)), gradients(with_graph, inside, rows(n=64)))


def test_two_views_and_two_towers():
    one, two, x, y = network(), network(width=8), rows(), rows(1)
    both = nn.ModuleList([one, two])
    views = gradients(lambda m: in_chunks(m, x) + in_chunks(m, y).sin(), one)
    assert error(views, gradients(lambda m: m(x) + m(y).sin(), one)) < 1e-6
    towers = gradients(lambda m: in_chunks(m[0], x) * in_chunks(m[1], y), both)
    assert error(towers, gradients(lambda m: m[0](x) * m[1](y), both)) < 1e-6


def test_inputs_that_need_a_gradient():
    net, made = network(), []
    for forward in (in_chunks, lambda m, v: m(v)):
        x = rows().requires_grad_()
        objective(forward(net, x)).backward()
        made.append([x.grad])
    assert error(*made) < 1e-6


def test_the_gradient_of_an_input_is_put_together_once():
    x = rows().requires_grad_()
    with torch.profiler.profile() as profile:
        objective(in_chunks(network(), x)).backward()
    assert not any("slice_backward" in event.key for event in profile.key_averages())  # as large as x, for each chunk


def test_nothing_to_train():
    net = network().requires_grad_(False)
    assert not in_chunks(net, rows()).requires_grad


def test_a_method_of_a_module():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network(dropout=0.3)

        def encode(self, x):
            return self.net(x)

    m, x = Encoder(), rows()
    assert_equal(gradients(lambda m: in_chunks(m.encode, x), m), gradients(lambda m: with_graph(m.encode, x), m))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_a_graph(context):
    net, x = network(), rows()
    with context():
        torch.testing.assert_close(in_chunks(net, x), net(x))


def test_an_empty_batch():
    assert in_chunks(network(), rows(n=0)).shape == (0, 4)


@pytest.mark.parametrize("backwards", [1, 2])
def test_autograd_grad_and_second_derivatives(backwards):
    def of(forward):
        net, x = network(), rows().double()
        net.double()[1] = nn.Tanh()
        parameters = list(net.parameters())
        loss = objective(forward(net, x).double())
        grads = torch.autograd.grad(loss, parameters, create_graph=backwards == 2)
        return grads if backwards == 1 else torch.autograd.grad(sum(g.square().sum() for g in grads), parameters)

    assert error(of(in_chunks), of(lambda m, v: m(v))) < 1e-6


def test_backward_twice():
    net, x = network(dropout=0.3), rows()
    loss = objective(in_chunks(net, x))
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in net.parameters()]
    loss.backward()
    assert error([p.grad for p in net.parameters()], [2 * g for g in once]) < 1e-6


def half_precision_error(forward, *, exactly=lambda m, v: m(v), inner=False):
    """How far the gradient under autocast is from that in single precision, as a share of its norm."""
    net, x = network(width=64), rows(n=4096)
    torch.nn.init.zeros_(net[3].bias)
    exact = torch.cat([g.flatten() for g in gradients(exactly, net, x)[:-1]])
    if inner:
        net.forward = torch.autocast("cpu", torch.bfloat16)(net.forward)

    def cast(module, v):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(module, v)

    got = torch.cat([g.flatten() for g in gradients(cast, net, x)[:-1]])
    return ((got - exact).norm() / exact.norm()).item()


def test_autocast_is_as_exact_as_for_the_whole_batch():
    """Chunks that share a cast add up their gradients in half precision."""
    whole = half_precision_error(lambda m, v: m(v))
    assert whole < 0.06
    assert half_precision_error(in_chunks) < 1.2 * whole
    assert half_precision_error(in_chunks, inner=True) < 1.2 * whole
    assert half_precision_error(with_graph) > 3 * whole  # this test sees the difference


def test_plain_calls_beside_it_under_autocast():
    def between(middle):
        return lambda m, v: m(v) + middle(m, 2 * v) + m(3 * v)

    exactly = between(lambda m, v: m(v))
    plain = half_precision_error(exactly, exactly=exactly)
    assert half_precision_error(between(in_chunks), exactly=exactly) < 2 * plain
    assert half_precision_error(between(with_graph), exactly=exactly) > 3 * plain


def test_grad_scaler():
    made = []
    for forward in (in_chunks, lambda m, v: m(v)):
        net, scaler = network(), torch.amp.GradScaler("cpu", init_scale=2.0**24)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        steps = skipped = 0
        while steps < 5:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = objective(forward(net, rows()))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            overflowed = scaler.get_scale() < scale
            steps, skipped = steps + (not overflowed), skipped + overflowed
        assert 0 < skipped < 20
        made.append([p.detach() for p in net.parameters()])
    assert error(*made) < 1e-3


def test_accumulation_around():
    net, x, y = network(dropout=0.3), rows(), rows(1)

    def accumulated(forward):
        net.zero_grad()
        torch.manual_seed(1)
        for part in (x, y):
            (objective(forward(net, part)) / 2).backward()
        return [p.grad.clone() for p in net.parameters()]

    assert_equal(accumulated(in_chunks), accumulated(with_graph))


@pytest.mark.parametrize("outside", [False, True])
def test_torch_compile(outside):
    net, x = network(dropout=0.0 if outside else 0.3), rows(n=64)
    if outside:
        compiled = torch.compile(lambda v: in_chunks(net, v), backend="aot_eager")
        forward = lambda m, v: compiled(v)  # noqa: E731
        assert error(gradients(forward, net, x), gradients(with_graph, net, x)) < 1e-6
    else:
        compiled = torch.compile(net, backend="aot_eager")
        assert_equal(
            gradients(lambda m, v: in_chunks(compiled, v), net, x),
            gradients(lambda m, v: with_graph(compiled, v), net, x),
        )


def test_what_changes_between_the_passes_is_noticed():
    net, x = network(dropout=0.3), rows()
    loss = objective(in_chunks(net, x))
    with torch.no_grad():
        net[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"changed since forward_in_chunks: call backward\(\) before optimizer"):
        loss.backward()
    loss = objective(in_chunks(net, x))
    net.eval()
    with pytest.raises(RuntimeError, match="train"):
        loss.backward()
    net.train()
    loss = objective(in_chunks(net, x))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert all(p.grad is None for p in net.parameters())


def test_weights_that_functional_call_passes_in():
    net, x = network(), rows()
    weights = {name: (2 * p).detach().requires_grad_() for name, p in net.named_parameters()}
    loss = objective(torch.func.functional_call(ChunkedModule(net, SIZE), weights, x))
    with pytest.raises(RuntimeError, match="inside of functional_call"):  # the chunks would be repeated with others
        loss.backward()


def test_weights_that_change_in_forward():
    with pytest.raises(RuntimeError, match=r"forward\(\) must not change weights; call a module with lazy ones once"):
        in_chunks(nn.LazyLinear(4), rows())


def test_random_states_of_all_devices_are_kept(monkeypatch):
    """Those of the arguments of torch's checkpoint: there has to be one on each device that the module uses."""
    devices = []

    def recorder(function, *args, **options):
        devices.append({leaf.device.type for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)})
        return function(*args)

    class Split(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x).to("meta"))

    monkeypatch.setattr("fcco.chunks.checkpoint", recorder)
    in_chunks(Split(nn.Linear(6, 4), nn.Linear(4, 4, device="meta")), rows(n=32))
    assert devices == [{"cpu", "meta"}] * 2


@pytest.mark.parametrize("call", [2, 4], ids=["forward", "backward"])
def test_an_error_in_the_middle_leaves_everything_as_it_was(call):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.calls = network(), 0

        def forward(self, x):
            self.calls += 1
            if self.calls == call:
                raise KeyError("a passing trouble")
            return self.net(x)

    module, x = Fails(), rows(n=48)
    with torch.autocast("cpu", torch.bfloat16):
        cached = torch.is_autocast_cache_enabled()
        with pytest.raises(KeyError):
            objective(in_chunks(module, x)).backward()
        assert torch.is_autocast_cache_enabled() == cached
    assert all(p.grad is None for p in module.parameters())
    assert_equal(gradients(in_chunks, module, x), gradients(with_graph, module, x))


def test_batch_norm_warns_once():
    module, x = batch_norm(), rows()
    with pytest.warns(UserWarning, match=r"^BatchNorm1d changes its buffers.*use GroupNorm, or eval"):
        in_chunks(module, x)
    with pytest.warns(UserWarning, match="BatchNorm1d"):
        in_chunks(batch_norm(), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_chunks(module, x)
        in_chunks(batch_norm(), x, size=N)  # one chunk is the batch
        in_chunks(batch_norm().eval(), x)
        in_chunks(network(dropout=0.3), x)
        unset = network()
        unset.register_buffer("unset", torch.tensor(torch.nan))
        in_chunks(unset, x)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_running_statistics_warns(training):
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False)).train(training)
    with pytest.warns(UserWarning, match=r"^BatchNorm1d changes its buffers at every call or normalises by the batch"):
        in_chunks(net, rows())


def test_sparse_rows_are_an_error():
    with pytest.raises(ValueError, match=r"inputs must be dense tensors, .* got one of the layout torch\.sparse_coo"):
        in_chunks(network(), rows().to_sparse())


def test_a_buffer_that_changes_in_some_chunks_only():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls = nn.Linear(6, 4), 0
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            if self.calls == 3:
                self.total += 1
            return self.linear(x) + self.total

    with pytest.raises(RuntimeError, match="changes in some chunks only"):
        in_chunks(Sometimes(), rows())


def test_bad_input():
    net, x = network(), rows()
    with pytest.raises(ValueError, match="chunk_size must be at least 1; got 0"):
        forward_in_chunks(net, x, chunk_size=0)
    with pytest.raises(ValueError, match=r"one number of rows; got \[12, 100\]"):
        in_chunks(nn.Bilinear(6, 6, 2), x, rows(n=12))
    with pytest.raises(ValueError, match="one number of rows; got none"):
        in_chunks(net, 3.0)
    with pytest.raises(ValueError, match="only tensors are divided; got list with 100 entries, as many"):
        in_chunks(net, x, ["a name"] * N)
    with pytest.raises(TypeError, match="Module or a method of one; got function"):
        in_chunks(lambda v: net(v), x)
    with pytest.raises(TypeError, match="Module; got int"):
        ChunkedModule(3, 8)


def test_outputs_without_rows():
    class Odd(nn.Module):
        def __init__(self, out):
            super().__init__()
            self.linear, self.out = nn.Linear(6, 4), out

        def forward(self, x):
            return self.out(self.linear(x))

    with pytest.raises(ValueError, match=r"a row for each of the 14 examples.*shape \[\].*Compute a loss"):
        in_chunks(Odd(objective), rows())
    with pytest.raises(ValueError, match="of the type object cannot be joined"):
        in_chunks(Odd(lambda z: (z, object())), rows())
    with pytest.raises(ValueError, match="of the type float cannot be joined"):
        in_chunks(Odd(lambda z: (z, z.mean().item())), rows())
    with pytest.raises(ValueError, match="same structure"):
        in_chunks(Odd(lambda z: [z] * len(z)), rows())


@pytest.mark.parametrize(
    "loss",
    [
        fcco.losses.NCALoss(N),
        fcco.losses.NCALoss(N, rule=fcco.BSGD()),  # no table
        fcco.losses.GroupDROLoss(3),
        fcco.losses.BaselineCoxLoss(3, [1.0, 2.0, 3.0], [1, 1, 1]),
        fcco.losses.AveragePrecisionLoss(N, 10, temperature="auto"),
        fcco.CoupledLoss(torch.log, N, rule=fcco.SOX(0.1)),
        ObjectiveLoss(Cox(), N, rule=fcco.BSGD()),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_a_loss_inside_is_refused(loss):
    module = nn.ModuleDict({"net": network(), "loss": loss})
    with pytest.raises(ValueError, match="must not contain a loss of fcco; found 'loss'"):
        in_chunks(module, rows())
    in_chunks(module["net"], rows())


class TestChunkedModule:
    def test_is_the_same_as_the_module(self):
        net, x = network(dropout=0.3), rows()
        chunked = ChunkedModule(net, SIZE)
        assert list(chunked.state_dict()) == list(net.state_dict())
        assert [name for name, _ in chunked.named_parameters()] == [name for name, _ in net.named_parameters()]
        assert_equal(gradients(lambda m, v: chunked(v), net, x), gradients(with_graph, net, x))

    def test_state_moves_both_ways_and_inside_of_other_modules(self):
        net = nn.ModuleDict({"tower": batch_norm()})
        chunked = nn.ModuleDict({"tower": ChunkedModule(batch_norm(), SIZE)})
        with torch.no_grad():
            net["tower"][0].weight.add_(1)
        assert not chunked.load_state_dict(net.state_dict()).missing_keys
        assert_equal(list(chunked.state_dict().values()), list(net.state_dict().values()))
        assert list(chunked.state_dict()) == list(net.state_dict())
        assert chunked.state_dict()._metadata.keys() == net.state_dict()._metadata.keys()
        net.load_state_dict(chunked.state_dict())

    def test_a_state_of_its_own_class(self):
        class Counted(nn.Linear):
            def get_extra_state(self):
                return self.count

            def set_extra_state(self, state):
                self.count = state

        one, two = Counted(6, 4), Counted(6, 4)
        one.count, two.count = 3, 0
        ChunkedModule(two, 8).load_state_dict(ChunkedModule(one, 8).state_dict())
        assert two.count == 3

    def test_modes_and_casts_reach_the_module(self):
        linear = nn.Linear(6, 4)
        parent = nn.ModuleList([ChunkedModule(linear, 8)])
        parent.eval()
        assert not linear.training
        parent.train().double()
        assert linear.training
        assert linear.weight.dtype == torch.float64
        assert ChunkedModule(nn.Linear(1, 1).eval(), 8).training is False

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_are_whole(self, duplicate):
        net, x = network(), rows()
        twin = duplicate(ChunkedModule(net, SIZE))
        with torch.no_grad():
            for p in twin.parameters():
                p.zero_()
        assert not twin(x).any()
        assert net(x).any()

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_and_casts_share_their_parameters(self, duplicate):
        twin = duplicate(ChunkedModule(network(), SIZE)).double()
        assert [id(p) for p in twin.parameters()] == [id(p) for p in twin.wrapped.parameters()]
        assert twin(rows().double()).dtype == torch.float64

    def test_an_optimizer_trains_it(self):
        net, twin, x = network(), network(), rows()
        for model, parameters in ((ChunkedModule(net, SIZE), None), (twin, twin.parameters())):
            optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                objective(model(x)).backward()
                optimizer.step()
        assert error(list(net.parameters()), list(twin.parameters())) < 1e-6

    def test_attributes_are_those_of_the_module(self):
        net = network()
        net.config = {"width": 32}
        assert ChunkedModule(net, 8).config == {"width": 32}
        with pytest.raises(AttributeError, match="missing"):
            _ = ChunkedModule(net, 8).missing


def test_the_peak_is_that_of_accumulation():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    x = torch.randn(256, 3, 16, 16)

    def accumulate():
        for part in x.split(SIZE):
            (objective(net(part)) / 16).backward()

    def step(forward):
        net.zero_grad()
        objective(forward(net, x)).backward()

    step(in_chunks)  # what is allocated once
    net.zero_grad()
    before = [x, *net.parameters()]
    least = chunks.peak_of(accumulate, before)
    outputs = 2 * 4 * 4 * len(x)  # and their gradient
    assert chunks.peak_of(lambda: step(in_chunks), before) < 1.2 * (least + outputs)
    assert chunks.peak_of(lambda: step(lambda m, v: m(v)), before) > 8 * least


def test_the_benchmark_runs(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["chunks.py", "--quick"])
    threads = torch.get_num_threads()
    chunks.main()
    torch.set_num_threads(threads)
    assert capsys.readouterr().out.splitlines()[-1].startswith("| residual | 32 | 8 |")
