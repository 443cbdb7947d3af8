"""How losses behave under a process group, beside coming to the right weights."""

import copy
import math
import pickle
import resource
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import fcco
from fcco import distributed

N = 9
LABELS = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0])


def message_of(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def refusals(rank):
    """What every rank says to batches that one of them must not have, and how many steps its tables have taken."""
    engine = distributed.configure(fcco.CoupledLoss(torch.log, N, rule=fcco.SOX(gamma=0.1)), sharded=True)
    cox = fcco.losses.CoxLoss(N)
    softmax = fcco.losses.SoftmaxLoss(N)
    local = distributed.configure(fcco.losses.NCALoss(N), gather=False)
    ones, rows = torch.ones(2, requires_grad=True), torch.tensor([0, 8])
    bad = ones * math.nan if rank == 1 else ones
    far = torch.tensor([0, 9]) if rank == 1 else rows
    short = ones[:1] if rank == 1 else ones
    double = ones.double() if rank == 1 else ones
    said = [
        message_of(lambda: engine(bad, rows)),
        message_of(lambda: engine(ones, far)),
        message_of(lambda: engine(double, rows)),
        message_of(lambda: engine(ones[:0], rows[:0])),
        message_of(lambda: cox(bad, ones.detach(), rows > 0, rows)),
        message_of(lambda: cox(short, ones.detach(), rows > 0, rows)),
        message_of(lambda: softmax(ones, torch.stack([bad, ones], 1), rows)),
        message_of(lambda: local(torch.stack([bad, ones], 1), LABELS[rows], rows)),
    ]
    ragged = fcco.CoupledLoss(torch.log, 4, rule=fcco.SCGD(0.5))
    said += [
        message_of(lambda: cox(ones, ones.detach(), None if rank == 1 else rows > 0, rows)),
        message_of(lambda: engine(ones, 3 if rank == 1 else rows)),
        message_of(lambda: ragged(torch.ones(3 + 2 * rank, requires_grad=True), rows[:1])),
        message_of(lambda: engine(ones, rows, weight=None if rank == 1 else ones.detach())),
    ]
    taken = [int(loss_fn.table.step) for loss_fn in (engine, cox, softmax, local)]
    # The ranks are still in step.
    engine(ones, rows).backward()
    return said, taken, int(engine.table.step)


def weights_of(rank, world):
    """Weights as numbers, where the first rank has no rows."""
    loss_fn, inner = (
        fcco.CoupledLoss(torch.log, N, rule=fcco.SOX(gamma=0.1)),
        torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
    )
    own = slice(None) if rank == world - 1 else slice(0)
    loss = loss_fn(inner[own], torch.arange(3)[own], weight=torch.tensor([0.2, 0.3, 0.4])[own])
    loss.backward()
    return loss.detach() / world, inner.grad / world


def no_rows_of_one_dtype(rank, world):
    """Times in double precision, scores in single, and a rank without either."""
    loss_fn = distributed.configure(fcco.losses.CoxLoss(N), gather=False)
    rows = torch.arange(3 if rank == 0 else 0)
    return loss_fn(torch.ones(len(rows), requires_grad=True), rows.double(), rows >= 0, rows).detach()


class WithLoss(torch.nn.Module):
    """A model that computes its own loss."""

    def __init__(self, sharded, loss_fn=None):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2, bias=False)
        torch.nn.init.ones_(self.linear.weight)
        loss_fn = loss_fn or fcco.losses.NCALoss(N, rule=fcco.MOAP(0.3))
        self.loss_fn = distributed.configure(loss_fn, sharded=sharded)

    def forward(self, x, labels, rows):
        return self.loss_fn(self.linear(x), labels, index=rows)


def features():
    return torch.randn(N, 3, generator=torch.Generator().manual_seed(0))


def train(step, parameters, rank, world):
    parameters = list(parameters)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for seed in range(5):
        rows = torch.randint(N, (8,), generator=torch.Generator().manual_seed(seed)).tensor_split(world)[rank]
        optimizer.zero_grad()
        step(features().to(parameters[0].dtype)[rows], LABELS[rows], rows).backward()
        optimizer.step()


def loss_within(rank, world, sharded, wrap=lambda module: module):
    module = WithLoss(sharded)
    train(wrap(module), module.parameters(), rank, world)
    return module.linear.weight.detach(), distributed.full_state_dict(module.loss_fn)["table.u"]


def fully_sharded(rank, world, sharded):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module = WithLoss(sharded)
    fully_shard(module.linear, mesh=init_device_mesh("cpu", (world,)))
    train(module, module.parameters(), rank, world)
    state = distributed.full_state_dict(module)
    return state["linear.weight"], state["loss_fn.table.u"]


def tasks():
    x = torch.randn(6, 4, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x, x * torch.arange(6).reshape(6, 1, 1)


def maml(rank, world):
    model = torch.nn.Linear(1, 1).double()
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    loss_fn = fcco.losses.MAMLLoss.for_model(model, n=6, lr=0.1)
    x, y = tasks()
    for _ in range(3):
        rows = torch.tensor([0, 3, 3, 5, 1]).tensor_split(world)[rank]
        gradients = torch.autograd.grad(
            loss_fn(model, (x[rows], y[rows]), (x[rows], y[rows]), rows), model.parameters()
        )
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            if world > 1:
                dist.all_reduce(gradient)
            parameter.data -= 0.1 * gradient / world
    return [parameter.detach() for parameter in model.parameters()], loss_fn.table.u


class Labelled(NamedTuple):
    z: torch.Tensor
    label: torch.Tensor


class Mates(fcco.Objective):
    """An objective of one's own: the logarithm of the mean of e^-d² over all others, those of i's class alone."""

    Columns, log = Labelled, True

    def outer(self, log_u):
        return log_u.exp()

    def estimate(self, anchors, candidates, weights):
        mates = weights * (anchors.label[:, None] == candidates.label)
        return fcco.functional.logsumexp(mates.log() - (anchors.z[:, None] - candidates.z).square().sum(2))


def own_objective(rank, world, sharded=False):
    """Weights, the table and the memory after steps of an objective of one's own."""
    loss_fn = fcco.ObjectiveLoss(Mates(), N, rule=fcco.SOAP(0.5), memory=4).double()
    module = WithLoss(sharded, loss_fn).double()
    train(DistributedDataParallel(module) if world > 1 else module, module.parameters(), rank, world)
    state = distributed.full_state_dict(loss_fn)
    return module.linear.weight.detach(), {name: state[name] for name in ("table.u", "memory.row", "memory.column0")}


def own_inner_sets(rank, world):
    """Without gathering, a rank's risk sets are of its own batch, and its rows still in one table."""
    loss_fn = distributed.configure(fcco.losses.CoxLoss(N, rule=fcco.BSGD()), gather=False)
    risk, rows = features()[:, 0], torch.arange(N).tensor_split(world)[rank]
    loss = loss_fn(risk[rows].requires_grad_(), torch.arange(N).double()[rows], torch.ones(len(rows)), rows)
    return loss.detach(), loss_fn.table.u


def compiled(rank, world):
    loss_fn = fcco.losses.NCALoss(N, memory=0)
    step = torch.compile(loss_fn, backend="eager") if world > 1 else loss_fn
    rows = torch.arange(8).tensor_split(world)[rank]
    x = features().requires_grad_()
    step(x[rows], LABELS[rows], rows).backward()
    if world > 1:
        dist.all_reduce(x.grad)
    return x.grad / world, loss_fn.table.u


def alone(rank):
    """What one rank does by itself, while the other does nothing: eval, no_grad, copies."""
    if rank == 0:
        loss_fn = distributed.configure(fcco.losses.NCALoss(N))
        value = loss_fn.eval()(features(), LABELS, torch.arange(N))
        with torch.no_grad():
            loss_fn.train()(features(), LABELS, torch.arange(N))
        pickle.loads(pickle.dumps(loss_fn))
        return value.item()
    return None


def kept(rank):
    """Whatever a table holds when it is sharded, and when it is made whole again, and copied."""
    loss_fn = fcco.CoupledLoss(torch.log, N, rule=fcco.SOX(gamma=0.1))
    loss_fn(torch.arange(1.0, 4.0).requires_grad_(), torch.tensor([2 * rank, 4, 8]))
    before = loss_fn.table.u.clone()
    distributed.configure(loss_fn, sharded=True)
    block = copy.deepcopy(loss_fn).table.u.clone()
    wrong = message_of(
        lambda: loss_fn.load_state_dict(fcco.CoupledLoss(torch.log, N + 1, rule=fcco.SOX(gamma=0.1)).state_dict())
    )
    distributed.configure(loss_fn)
    everyone = message_of(lambda: distributed.configure(fcco.CoupledLoss(torch.log, N, rule=fcco.SCGD()), sharded=True))
    return before, block, loss_fn.table.u, wrong, everyone


def gathered(rank):
    made = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.full((1 + rank, 2), 1.0 + rank, dtype=dtype, requires_grad=True)
        every, rows = distributed.gather(x, torch.arange(1 + rank))
        (every.sum(1) * torch.arange(3) * (rank + 1)).sum().backward()
        made.append((every.detach(), rows, x.grad))
    return made


def temperature(rank, world):
    """The moments that set it after steps of ranks that compare only their own examples, and after a refusal."""
    made = []
    for gather, sharded in ((True, False), (False, False), (False, True)):
        loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(LABELS, temperature="auto", memory=4)
        if world == 2:
            distributed.configure(loss_fn, gather=gather, sharded=sharded)
        scores, rows = features()[:, 0].requires_grad_(), torch.arange(N).tensor_split(world)[rank]
        for scale in (1.0, 5.0):
            loss_fn(scale * scores[rows], LABELS[rows], rows).backward()
        bad = scores[rows] * (math.nan if rank == world - 1 else 1.0)
        said = message_of(lambda loss_fn=loss_fn, bad=bad, rows=rows: loss_fn(bad, LABELS[rows], rows))
        made.append((loss_fn.deviation.moments, said))
    return made


def no_events(rank, world):
    """One rank has no outer row: the other's are weighed as in one process."""
    loss_fn = fcco.losses.CoxLoss(N)
    risk, event = features()[:, 0].requires_grad_(), torch.arange(N) < 4
    rows = torch.arange(8).tensor_split(world)[rank]
    loss = loss_fn(risk[rows], torch.arange(N).double()[rows], event[rows], rows)
    loss.backward()
    return loss.detach(), risk.grad


def everything(rank, world, folder):
    ddp = DistributedDataParallel
    made = {
        "refusals": refusals(rank),
        "maml": maml(rank, world),
        "own_inner_sets": own_inner_sets(rank, world),
        "own_objective": [own_objective(rank, world, sharded) for sharded in (False, True)],
        "compiled": compiled(rank, world),
        "alone": alone(rank),
        "kept": kept(rank),
        "gathered": gathered(rank),
        "no_events": no_events(rank, world),
        "temperature": temperature(rank, world),
        "weights": weights_of(rank, world),
        "no_rows": no_rows_of_one_dtype(rank, world),
    }
    for sharded in (False, True):
        made["ddp", sharded] = loss_within(rank, world, sharded, ddp)
        made["fsdp", sharded] = fully_sharded(rank, world, sharded) if torch.__version__ >= "2.6" else None
    return made


def test_what_one_rank_refuses_no_rank_takes(ranks):
    (first, taken, steps), (second, also_taken, also_steps) = (rank["refusals"] for rank in ranks)
    told = "RuntimeError: rank 1 has refused its batch, so that no rank takes this step"
    assert taken == also_taken == [0, 0, 0, 0]
    assert steps == also_steps == 1
    assert [first[place] for place in (0, 1, 4, 5, 6, 7, 8, 9)] == [told] * 8
    assert second[0].startswith("NotFiniteError: inner must be finite; got nan at position 0")
    assert second[1].startswith("IndexError: index must be in [0, 9); got 9 at position 1")
    assert first[2] == second[2]
    assert first[2].endswith("rank 0 has dtype=torch.float32, rank 1 has dtype=torch.float64")
    assert first[3] == second[3] == "ValueError: the batch is empty on all ranks"
    assert second[4] == "ValueError: risk must be finite; got nan at position 0"
    assert second[5] == "ValueError: time must have the shape [1], like risk; got [2]"
    assert second[6].startswith("ValueError: sampled_logits must be finite or -inf; got nan at position (0, 0)")
    assert second[7].startswith("ValueError: embeddings must be finite; got nan at position (0, 0)")
    assert second[8] == "TypeError: event must be a tensor; got NoneType"
    assert second[9] == "ValueError: index must have the shape [B1]; got []"
    assert first[10] == "ValueError: SCGD tracks all rows: inner needs 4 rows; got [3]"
    assert first[11] == second[11]
    assert first[11].endswith("rank 0 has weight=numbers, rank 1 has weight=None")


def test_weights_are_taken_as_they_are_whichever_rank_has_rows(ranks):
    values, gradients = zip(*(rank["weights"] for rank in ranks), strict=True)
    inner, weight = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.2, 0.3, 0.4])
    torch.testing.assert_close(2 * values[0], (weight * inner.log()).sum())
    torch.testing.assert_close(sum(gradients), weight / inner)


def test_a_rank_without_rows_has_the_dtype_of_the_others(ranks):
    assert [rank["no_rows"].dtype for rank in ranks] == [torch.float32] * 2


@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_wrapped_models_train_as_in_one_process(ranks, wrapper, sharded):
    """DDP broadcasts the buffers of rank 0, the table of a loss in the module among them, unless it is sharded."""
    if ranks[0][wrapper, sharded] is None:
        pytest.skip("this torch has no fully_shard")
    expected = loss_within(0, 1, False)
    for rank in ranks:
        torch.testing.assert_close(rank[wrapper, sharded], expected, rtol=1e-5, atol=1e-6)


def test_maml(ranks):
    for rank in ranks:
        torch.testing.assert_close(rank["maml"], maml(0, 1), rtol=1e-12, atol=1e-12)


def test_an_objective_of_ones_own_is_that_of_one_process(ranks):
    expected = own_objective(0, 1)
    assert (expected[0] - 1).abs().max() > 1e-3
    for rank in ranks:
        for found in rank["own_objective"]:
            torch.testing.assert_close(found, expected)


def test_inner_sets_may_stay_on_their_rank(ranks):
    losses, tables = zip(*(rank["own_inner_sets"] for rank in ranks), strict=True)
    risk = features()[:, 0]
    parts = [risk[rows] for rows in torch.arange(N).tensor_split(2)]
    own = torch.cat([part.flip(0).logcumsumexp(0).flip(0) - part + math.log(N / len(part)) for part in parts])
    torch.testing.assert_close(list(losses), [own.mean()] * 2)
    for table in tables:
        torch.testing.assert_close(table, own)


def test_compiled_under_a_group(ranks):
    for rank in ranks:
        torch.testing.assert_close(rank["compiled"], compiled(0, 1))


def test_a_rank_may_evaluate_by_itself(ranks):
    exact = fcco.functional.nca_loss(features(), LABELS).item()
    assert ranks[0]["alone"] == pytest.approx(exact, rel=1e-6)


def test_a_table_keeps_its_rows_when_it_is_sharded_and_made_whole(ranks):
    whole = torch.tensor([1.0, 0, 1.0, 0, 2.0, 0, 0, 0, 3.0])
    for rank, (before, block, after, wrong, everyone) in enumerate(r["kept"] for r in ranks):
        assert torch.equal(before, whole)
        assert torch.equal(block, whole[5 * rank : 5 * rank + 5])
        assert torch.equal(after, whole)
        assert "the saved table has n=10, this one has n=9" in wrong
        assert everyone == "ValueError: SCGD updates all rows at every step: its table cannot be sharded"


def test_gathering_brings_all_rows_and_their_gradients_back(ranks):
    for rank, (every, rows, gradient) in ((rank, made) for rank, r in enumerate(ranks) for made in r["gathered"]):
        assert every.tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
        assert rows.tolist() == [0, 0, 1]
        # Row j weighs j · 1 in the first rank's loss and j · 2 in the second's.
        assert gradient.tolist() == ([[0.0, 0.0]] if rank == 0 else [[3.0, 3.0], [6.0, 6.0]])


def test_the_temperature_is_that_of_all_ranks(ranks):
    alone = temperature(0, 1)
    for rank in (0, 1):
        for (moments, said), (wanted, _) in zip(ranks[rank]["temperature"], alone, strict=True):
            assert torch.equal(moments, ranks[0]["temperature"][0][0])
            torch.testing.assert_close(moments, wanted, rtol=1e-12, atol=1e-12)
            assert said is not None
            assert ("scores" if rank else "rank 1 has refused") in said


def test_a_rank_without_outer_rows(ranks):
    values, gradients = zip(*(rank["no_events"] for rank in ranks), strict=True)
    expected, gradient = no_events(0, 1)
    torch.testing.assert_close(list(values), [expected] * 2)
    torch.testing.assert_close(sum(gradients) / 2, gradient)


def test_without_a_group_nothing_is_sharded():
    loss_fn = distributed.configure(fcco.losses.NCALoss(N), sharded=True)
    assert type(loss_fn.table) is fcco.InnerTable
    x = features()
    assert distributed.gather(x)[0] is x


def test_a_table_takes_up_no_memory_before_it_is_written():
    """Of 2 GB reserved, less than a tenth is used."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = fcco.InnerTable(4 * 10**8)
    assert table.part(10**8, 3).u.tolist() == [0.0, 0.0, 0.0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
