"""A memory that ranks share: k processes remember, and come to, what one process does."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from training import Arguments, batches, train, wrapped

import fcco
from fcco import distributed
from losses import cases

N, STEPS, BATCH = 40, 10, 6  # so that a memory has room for a batch of other rows, without which it is not used
REPLICATED, SHARDED, WITHOUT_INDEX = {}, {"sharded": True}, {"indexed": False}
RUNS = {
    "ap": (cases.AP.with_options(memory=fcco.Memory(8)), fcco.SOAP(0.5), (REPLICATED, SHARDED)),
    "ap exact": (cases.AP.with_options(memory=fcco.Memory(8), own_term="exact"), fcco.BSGD(), (WITHOUT_INDEX,)),
    "push": (cases.PUSH.with_options(memory=fcco.Memory(8)), fcco.BSGD(), (WITHOUT_INDEX,)),
    "cox exact": (
        cases.COX.with_options(memory=fcco.Memory(8), own_term="exact"),
        fcco.SOX(0.3),
        (REPLICATED, SHARDED),
    ),
    "cox estimate": (cases.COX.with_options(memory=fcco.Memory(8, "estimate")), fcco.SOAP(0.5), (REPLICATED, SHARDED)),
    "nca": (cases.NCA.with_options(memory=fcco.Memory(12)), fcco.BSGD(), (REPLICATED,)),
    "nca default": (cases.NCA.with_options(memory=None), None, (REPLICATED, SHARDED)),
    "contrastive": (
        cases.CONTRASTIVE.with_options(memory=fcco.Memory(12, "estimate")),
        fcco.SOAP(0.5),
        (REPLICATED, SHARDED),
    ),
    "contrastive estimate": (
        cases.CONTRASTIVE.with_options(memory=fcco.Memory(12, "estimate")),
        fcco.BSGD(),
        (WITHOUT_INDEX,),
    ),
    "ndcg estimate": (cases.NDCG.with_options(memory=fcco.Memory(12, "estimate")), fcco.SOAP(0.5), (REPLICATED,)),
}


def own_parts(rank, world, steps):
    every = batches(steps, world, N, BATCH)
    return [torch.cat(parts) if rank is None else parts[rank] for parts in every]


def make(case, rule, **options):
    floats, others = case.population(N, scale=0.3)
    return distributed.configure(case.make((floats, others), rule).double(), **options), floats, others


def training(rank, world, case, rule, indexed=True, sharded=False):
    """Weights, values, and what is remembered; ``rank`` None: in one process, with the batches of all ranks."""
    loss_fn, floats, others = make(case, rule, sharded=sharded)

    def step_of(loss_fn, model, rows):
        return loss_fn(*model(rows), *(x[rows] for x in others), rows if indexed else None)

    model = wrapped(Arguments(floats, torch.float64), rank)
    weights, values = train(own_parts(rank, world, STEPS), loss_fn, model, step_of)
    return weights, values, remembered(loss_fn), distributed.full_state_dict(loss_fn)["coupled.table.u"]


def remembered(loss_fn):
    """The content of a memory, without empty places."""
    memory = loss_fn.memory
    if memory is None:
        return {}
    there = memory.born >= 0
    each = {name: b[there] for name, b in memory.named_buffers() if b.dim() and len(b) == len(there)}
    return {**each, "expected": memory.expected, "cursor": memory.cursor, "step": memory.step, "guard": memory.guard}


def messages(rank, world, case, rule):
    """How often ranks talk in some steps, with a memory and without one."""
    counts = []
    names = ["all_gather_single", "all_gather_into_tensor", "all_to_all_single", "all_reduce"]
    originals = {name: getattr(dist, name) for name in names if hasattr(dist, name)}
    for options in ({}, {"memory": 0}):
        loss_fn, floats, others = make(case.with_options(**options), rule)
        counts.append(0)

        def counted(original, *args, **kwargs):
            counts[-1] += 1
            return original(*args, **kwargs)

        for name, original in originals.items():
            setattr(dist, name, partial(counted, original))
        try:
            for rows in own_parts(rank, world, 3):
                leaves = [x[rows].detach().requires_grad_() for x in floats]
                loss_fn(*leaves, *(x[rows] for x in others), rows).sum().backward()
        finally:
            for name, original in originals.items():
                setattr(dist, name, original)
    return counts


def apart(rank, world, case):
    """Gradients of ranks that do not gather, and have no row in common, and of the same losses by themselves."""
    made = []
    for options in ({"gather": False}, {"alone": True}):
        loss_fn, floats, others = make(case, fcco.BSGD(), **options)
        found = []
        for step in range(6):
            rows = torch.randperm(N, generator=torch.Generator().manual_seed(step)).tensor_split(world)[rank][
                step % 3 :
            ]
            leaves = [x[rows].detach().requires_grad_() for x in floats]
            loss_fn(*leaves, *(x[rows] for x in others), rows).backward()
            found += [x.grad for x in leaves]
        made.append((found, remembered(loss_fn)))
    return made


class WithLoss(torch.nn.Module):
    """A model that contains its loss, whose buffers DDP sends around."""

    def __init__(self, case):
        super().__init__()
        self.loss_fn, floats, self.others = make(case, fcco.SOAP(0.5))
        self.model = Arguments(floats, torch.float64)

    def forward(self, rows):
        return self.loss_fn(*self.model(rows), *(x[rows] for x in self.others), rows)


def within(rank, world, case):
    module = WithLoss(case)
    step = module if rank is None else DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.model.parameters(), lr=0.01)
    for rows in own_parts(rank, world, STEPS):
        optimizer.zero_grad()
        step(rows).backward()
        optimizer.step()
    return [w.detach() for w in module.model.parameters()], remembered(module.loss_fn)


def refused(rank):
    """Whether a step that one rank refuses leaves the memory of every rank as it was."""
    loss_fn, floats, others = make(RUNS["cox exact"][0], fcco.BSGD())
    rows = torch.arange(4) + 4 * rank
    leaves = [x[rows].detach().requires_grad_() for x in floats]
    loss_fn(*leaves, *(x[rows] for x in others), rows)
    before = cases.state(loss_fn)
    said = []
    for bad in (rows + 100 * rank, rows if rank == 0 else rows[:1]):
        try:
            loss_fn(*leaves, *(x[rows] for x in others), bad)
        except Exception as error:
            said.append(type(error).__name__)
    return said, cases.same(cases.state(loss_fn), before)


def everything(rank, world, folder):
    made = {}
    for name, (case, rule, ways) in RUNS.items():
        made[name] = [training(rank, world, case, rule, **way) for way in ways]
    made["messages"] = [messages(rank, world, *RUNS[name][:2]) for name in ("ap", "cox estimate")]
    made["apart"] = [apart(rank, world, RUNS[name][0]) for name in ("cox exact", "push")]
    made["within"] = within(rank, world, RUNS["nca"][0])
    made["refused"] = refused(rank)
    return {"memory": made}


@pytest.fixture(scope="module")
def two(ranks):
    return [rank["memory"] for rank in ranks]


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_remember_what_one_does(two, name):
    case, rule, ways = RUNS[name]
    weights, values, memory, table = training(None, 2, case, rule, **ways[0])
    for runs in zip(*(rank[name] for rank in two), strict=True):
        for their_weights, _, their_memory, their_table in runs:
            close(their_weights, weights)
            close(their_memory, memory)
            close(their_table, table)
        close(torch.stack([run[1] for run in runs]).mean(0), values)
        assert all(torch.equal(runs[0][2][key], runs[1][2][key]) for key in memory)


@pytest.mark.parametrize("name", RUNS)
def test_the_memory_of_these_runs_is_used(name):
    case, rule, ways = RUNS[name]
    weights, without = (training(None, 2, each, rule, **ways[0])[0] for each in (case, case.with_options(memory=0)))
    assert all((one - other).abs().max() > 1e-5 for one, other in zip(weights, without, strict=True))


def test_a_memory_sends_nothing(two):
    for with_memory, without in two[0]["messages"]:
        assert with_memory == without > 0


def test_ranks_that_do_not_gather_have_memories_of_their_own(two):
    for rank in two:
        for (gradients, memory), (alone, memory_alone) in rank["apart"]:
            close(gradients, alone)
            close(memory, memory_alone)


def test_buffers_that_are_broadcast(two):
    weights, memory = within(None, 2, RUNS["nca"][0])
    for rank in two:
        close(rank["within"][0], weights)
        close(rank["within"][1], memory)


def test_a_step_that_one_rank_refuses_changes_no_memory(two):
    assert [rank["refused"][1] for rank in two] == [True, True]
    assert [len(rank["refused"][0]) for rank in two] == [2, 2]
