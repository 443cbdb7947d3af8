"""Several ranks take the steps of one process: tables, memories, values and weights are the same."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import fcco
from fcco import distributed
from fcco.schedules import RunningMean
from losses import shells

# More ranks than two, and parts of which one is empty, are left to the same code.

CASES = [*shells.CASES, ("given", 0)]


SHARDED = [
    ("ap", 0, fcco.SOAP(0.5)),
    ("nca", 12, fcco.SOX(0.5)),
    ("cox", 12, fcco.MOAP(0.5)),
    ("push", 0, fcco.SOAP(RunningMean(0.1))),
    ("given", 0, fcco.SOAP(0.5)),
]


def part_of(rank, world):
    return lambda rows, step: rows[rank::world] if step != 4 else rows if rank == 0 else rows[:0]


def all_parts(world):
    return lambda rows, step: torch.cat([rows[rank::world] for rank in range(world)]) if step != 4 else rows


def average(gradient):
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()


def state_of(loss):
    return {name: value for name, value in loss.state_dict().items() if not name.endswith("_extra_state")}


def everything(rank, world, folder):
    made = {}
    for name, memory in CASES:
        loss = shells.make(name, memory)
        _, seen = shells.train(loss, name, shells.weights(), steps=8, part=part_of(rank, world), average=average)
        made[f"shell {name} {memory}"] = seen, state_of(loss)
    for name, memory, rule in SHARDED:
        loss = distributed.configure(shells.make(name, memory, rule), sharded=True)
        _, seen = shells.train(loss, name, shells.weights(), steps=8, part=part_of(rank, world), average=average)
        made[f"shell sharded {name} {memory} {rule}"] = seen, len(loss.table.u), distributed.full_state_dict(loss)
    made["shell refusal"] = refusal(rank)
    made["shell empty parts"] = with_known_columns(slice(None) if rank == 0 else slice(0))
    return made


def with_known_columns(part):
    """The values of losses whose columns are not all given, or not for each example, of a part of a batch."""
    relevance, query = torch.tensor([1.0, 0.0, 2.0, 0.0]), torch.tensor([0, 0, 1, 1])
    scores, rows, classes = torch.arange(4.0).sin(), torch.arange(4), torch.arange(3)
    columns, logits = (scores[part], relevance[part], query[part]), scores[part, None] * (1 + classes)
    lists, softmax = fcco.losses.NDCGLoss.from_targets, fcco.losses.SoftmaxLoss(4, 20)
    values = [
        lists(relevance, query)(*columns, rows[part]),
        lists(relevance, query, rule=fcco.BSGD())(*columns),
        softmax(scores[part], logits, rows[part], -1.0 - classes, target=rows[part], candidates=classes),
        softmax.in_batch(scores[part, None] * scores[part], rows[part], rows[part]),
    ]
    return torch.stack(values)


def refusal(rank):
    """Rank 0 has a bad row in the first step; the second step pairs the right batches."""
    loss, outputs = shells.make("ap", 12), torch.arange(8.0).reshape(4, 2).double().requires_grad_()
    message = ""
    try:
        loss(*shells.columns("ap", outputs, torch.arange(4)), index=torch.arange(4) + (1000 if rank == 0 else 0))
    except Exception as error:
        message = str(error)
    value = loss(*shells.columns("ap", outputs, torch.arange(4)), index=torch.arange(4) * 2 + rank)
    return message, value.item(), int(loss.table.step)


@pytest.mark.parametrize(("name", "memory"), CASES)
def test_ranks_are_one_process(ranks, name, memory):
    alone = shells.make(name, memory)
    _, wanted = shells.train(alone, name, shells.weights(), steps=8, part=all_parts(2))
    (seen, state), (others, other) = (made[f"shell {name} {memory}"] for made in ranks)
    np.testing.assert_allclose(seen, wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(seen, others)
    for key, value in state_of(alone).items():
        torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-12)
        assert torch.equal(state[key], other[key]), key


@pytest.mark.parametrize(("name", "memory", "rule"), SHARDED)
def test_a_sharded_table_is_one_table(ranks, name, memory, rule):
    alone = shells.make(name, memory, rule)
    _, wanted = shells.train(alone, name, shells.weights(), steps=8, part=all_parts(2))
    for seen, rows, state in (made[f"shell sharded {name} {memory} {rule}"] for made in ranks):
        assert rows == shells.N // 2
        np.testing.assert_allclose(seen, wanted, rtol=1e-9, atol=1e-12)
        for key, value in state_of(alone).items():
            torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-12)
        shells.make(name, memory, rule).load_state_dict(state)  # on another number of ranks


def test_an_empty_part_has_the_columns_of_the_others(ranks):
    for made in ranks:
        torch.testing.assert_close(made["shell empty parts"], with_known_columns(slice(None)))


def test_an_error_on_one_rank_is_one_on_all(ranks):
    (one, value, steps), (two, other, _) = (made["shell refusal"] for made in ranks)
    assert one == "index must be in [0, 100); got 1000 at position 0"
    assert two == "rank 0 has refused its batch, so that no rank takes this step"
    assert value == other
    assert steps == 1
