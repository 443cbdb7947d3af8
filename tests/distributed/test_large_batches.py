"""Chunks on two ranks: the gradient of the joint batch, with one reduction a step."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import fcco
from fcco import ChunkedModule, forward_in_chunks

N, SIZE = 60, 8
LABELS = torch.arange(N) % 4


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def features():
    return torch.randn(N, 6, generator=torch.Generator().manual_seed(1))


class WholeStep(nn.Module):
    """As in Lightning: the step of a module is the forward pass that DDP sees."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return fcco.losses.NCALoss(N, rule=fcco.BSGD())(forward_in_chunks(self.net, x, chunk_size=SIZE), y, None)


def reduce_and_count(counts, bucket):
    counts.append(bucket.buffer().numel())
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda future: future.value()[0] / dist.get_world_size())


def wrapped(case, net):
    """The module that takes part, and how it is called."""
    options = {"find_unused_parameters": case == "find unused", "static_graph": case == "static graph"}
    if case in ("module", "static graph", "find unused"):
        model = DistributedDataParallel(ChunkedModule(net, SIZE), **options)
        return model, model
    if case in ("function", "no_sync", "uneven", "one rank without rows"):
        model = DistributedDataParallel(net)
        return model, lambda x: forward_in_chunks(model, x, chunk_size=SIZE)
    assert case == "ChunkedModule(DDP)"
    model = DistributedDataParallel(net)
    return model, ChunkedModule(model, SIZE)


def rows_of(case, rank):
    cut = {"uneven": 15, "one rank without rows": 0}.get(case, N // 2)
    return slice(0, cut) if rank == 0 else slice(cut, N)


def step(case, rank, loss_fn):
    net, mine, counts = network(), rows_of(case, rank), []
    x, y = features()[mine], LABELS[mine]
    if case == "inside":
        model = DistributedDataParallel(WholeStep(net))
        forward, loss = None, model
    else:
        model, forward = wrapped(case, net)
        loss = lambda x, y: loss_fn(forward(x), y, None)  # noqa: E731
    model.register_comm_hook(counts, reduce_and_count)
    for _ in range(2):
        model.zero_grad()
        if case == "no_sync":
            with model.no_sync():
                loss(x, y).backward()
        loss(x, y).backward()
    assert forward is None or isinstance(model.module, (nn.Sequential, ChunkedModule))
    assert not counts or sum(counts) == 2 * sum(p.numel() for p in net.parameters())
    return [p.grad / (2 if case == "no_sync" else 1) for p in net.parameters()], len(counts)


def sharded_step(case, rank, loss_fn):
    """FSDP2 and FSDP1: gradients, and how often they are reduced for each group of parameters."""
    net, mine = network(), rows_of(case, rank)
    if case == "layers":
        for layer in (net[0], net[2], net[4]):
            fully_shard(layer)
    model = net if case == "function" else ChunkedModule(net, SIZE)
    if case == "FSDP1":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    else:
        fully_shard(model)
    with torch.profiler.profile() as profile:
        z = (
            forward_in_chunks(model, features()[mine], chunk_size=SIZE)
            if case == "function"
            else model(features()[mine])
        )
        loss_fn(z, LABELS[mine], None).backward()
    scattered = sum(e.count for e in profile.key_averages() if e.key == "c10d::_reduce_scatter_base_")
    if case == "FSDP1":
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            return [p.grad.clone() for p in net.parameters()], scattered
    return [p.grad.full_tensor() for p in net.parameters()], scattered / (3 if case == "layers" else 1)


CASES = ["function", "module", "ChunkedModule(DDP)", "static graph", "find unused", "no_sync", "uneven", "inside"]
CASES += ["one rank without rows"]
SHARDED = ["root", "layers", "function", "FSDP1"]


def everything(rank, world, folder):
    loss_fn = fcco.losses.NCALoss(N, rule=fcco.BSGD())
    made = {f"chunks, {case}": step(case, rank, loss_fn) for case in CASES}
    return made | {f"chunks, sharded {case}": sharded_step(case, rank, loss_fn) for case in SHARDED}


@pytest.mark.parametrize("case", [*CASES, *(f"sharded {case}" for case in SHARDED)])
def test_the_gradient_is_that_of_the_joint_batch(ranks, case):
    net = network()
    fcco.losses.NCALoss(N, rule=fcco.BSGD())(net(features()), LABELS, None).backward()
    largest = max(p.grad.abs().max().item() for p in net.parameters())
    assert largest > 0
    for rank in (0, 1):
        gradients, reductions = ranks[rank][f"chunks, {case}"]
        for got, parameter in zip(gradients, net.parameters(), strict=True):
            torch.testing.assert_close(got, parameter.grad, rtol=0, atol=2e-6 * largest)
        assert reductions == (1 if case.startswith("sharded") else 2)
