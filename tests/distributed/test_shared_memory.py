"""A memory that ranks share, in public losses: two processes remember, and come to, what one does."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from training import Arguments, batches, train, wrapped

import fcco
from losses import cases

N, STEPS, BATCH = 40, 10, 6
ESTIMATE = fcco.Memory(8, "estimate")
RUNS = {  # those of test_ranks_of_losses.py have a memory in the gradient too
    "ap without rows": (cases.AP.with_options(memory=8, own_term="exact"), fcco.BSGD()),
    "push without rows": (cases.PUSH.with_options(memory=8), fcco.BSGD()),
    "cox": (cases.COX.with_options(memory=8, own_term="exact"), fcco.SOX(0.3)),
    "cox estimate": (cases.COX.with_options(memory=ESTIMATE), fcco.SOAP(0.5)),
    "nca": (cases.NCA.with_options(memory=None), None),
    "contrastive": (cases.CONTRASTIVE.with_options(memory=8), fcco.SOAP(0.5)),
    "contrastive without rows": (cases.CONTRASTIVE.with_options(memory=8), fcco.BSGD()),
    "ndcg": (cases.NDCG.with_options(memory=ESTIMATE), fcco.SOAP(0.5)),
}


def own_parts(rank, world, steps):
    every = batches(steps, world, N, BATCH)
    return [torch.cat(parts) if rank is None else parts[rank] for parts in every]


def make(case, rule):
    floats, others = case.population(N, scale=0.3)
    return case.make((floats, others), rule), floats, others


def training(rank, world, name, **options):
    """Weights, values, and the state; ``rank`` None: in one process, with the batches of all ranks."""
    case, rule = RUNS[name]
    loss_fn, floats, others = make(case.with_options(**options), rule)

    def step_of(loss_fn, model, rows):
        return loss_fn(*model(rows), *(x[rows] for x in others), None if "without" in name else rows)

    model = wrapped(Arguments(floats, torch.float64), rank)
    weights, values = train(own_parts(rank, world, STEPS), loss_fn, model, step_of)
    return weights, values, cases.state(loss_fn)


def messages(rank, world, name):
    """How often ranks talk in some steps, with a memory and without one."""
    counts, (case, rule) = [], RUNS[name]
    names = ["all_gather_single", "all_gather_into_tensor", "all_to_all_single", "all_reduce"]
    originals = {name: getattr(dist, name) for name in names if hasattr(dist, name)}
    for options in ({}, {"memory": 0}):
        loss_fn, floats, others = make(case.with_options(**options), rule)
        counts.append(0)

        def counted(original, *args, **kwargs):
            counts[-1] += 1
            return original(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            for function, original in originals.items():
                patch.setattr(dist, function, partial(counted, original))
            for rows in own_parts(rank, world, 3):
                leaves = [x[rows].detach().requires_grad_() for x in floats]
                loss_fn(*leaves, *(x[rows] for x in others), rows).sum().backward()
    return counts


class WithLoss(torch.nn.Module):
    """A model that contains its loss, whose buffers DDP sends around."""

    def __init__(self):
        super().__init__()
        self.loss_fn, floats, self.others = make(cases.NCA.with_options(memory=12), fcco.SOAP(0.5))
        self.model = Arguments(floats, torch.float64)

    def forward(self, rows):
        return self.loss_fn(*self.model(rows), *(x[rows] for x in self.others), rows)


def within(rank, world):
    module = WithLoss()
    step = module if rank is None else DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.model.parameters(), lr=0.01)
    for rows in own_parts(rank, world, STEPS):
        optimizer.zero_grad()
        step(rows).backward()
        optimizer.step()
    return [w.detach() for w in module.model.parameters()], cases.state(module.loss_fn)


def everything(rank, world, folder):
    made = {name: training(rank, world, name) for name in RUNS}
    made["messages"] = [messages(rank, world, name) for name in ("cox", "cox estimate", "contrastive")]
    return {"memory": made | {"within": within(rank, world)}}


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_remember_what_one_does(ranks, name):
    weights, values, state = training(None, 2, name)
    without, *_ = training(None, 2, name, memory=0)
    assert all((one - other).abs().max() > 1e-5 for one, other in zip(weights, without, strict=True))
    for rank in ranks:
        close(rank["memory"][name], (weights, values, state))
        assert cases.same(rank["memory"][name][2], ranks[0]["memory"][name][2])


def test_a_memory_sends_nothing(ranks):
    for with_memory, without in ranks[0]["memory"]["messages"]:
        assert with_memory == without > 0


def test_buffers_that_are_broadcast(ranks):
    alone = within(None, 2)
    for rank in ranks:
        close(rank["memory"]["within"], alone)
