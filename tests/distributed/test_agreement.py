"""What ranks must have alike, and what they do where one of them cannot take a step."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from test_behaviour import LABELS, N, features, message_of

import fcco
from fcco import distributed, losses, schedules
from harness.ranks import SUBJECTS, dealt_rows
from harness.traffic import recording

RANKED = 64
TIMES, EVENTS = torch.arange(N).double(), torch.arange(N) % 2 == 0


def times(factor):
    return lambda u: factor * u


class Falling:
    """A schedule of one's own."""

    def __init__(self, first):
        self.first = first

    def __call__(self, step):
        return self.first / (1 + step)


class Scaled(torch.nn.Module):
    def __init__(self, factor, rank):
        super().__init__()
        self.factor, self._rank, self.inside = factor, rank, torch.nn.Softplus(beta=factor)

    def forward(self, u):
        return self.inside(self.factor * u)


def engine(outer=torch.log1p, rule=None, **options):
    return fcco.CoupledLoss(outer, N, rule=rule or fcco.SOX(0.1), **options)


DIFFERENT = {
    "gamma=0.1": lambda x: engine(rule=fcco.SOX((0.1, 0.5)[x])),
    "safeguard=True": lambda x: engine(rule=fcco.SOX(0.1, safeguard=(True, False)[x])),
    "gamma=Cosine(final=0.1, steps=10)": lambda x: engine(rule=fcco.SOX(schedules.Cosine(0.1, (10, 20)[x]))),
    "gamma=Falling(first=0.5)": lambda x: engine(rule=fcco.SOAP(Falling((0.5, 0.25)[x]))),
    "rule=SOX": lambda x: engine(rule=(fcco.SOX(0.1), fcco.SOAP(0.1))[x]),
    "rule=SCGD": lambda x: engine(rule=(fcco.SCGD(0.1), fcco.SOX(0.1))[x]),
    "init=0": lambda x: engine(init=(0.0, 1.0)[x]),
    "n_outer=5": lambda x: engine(n_outer=(5, 6)[x]),
    "outer=times.<locals>": lambda x: engine(times((2.0, 3.0)[x])),
    "outer=partial(power": lambda x: engine(functools.partial(power, exponent=(2, 3)[x])),
    "outer=Scaled(factor=2": lambda x: engine(Scaled((2.0, 3.0)[x], 0)),
    "p=4": lambda x: losses.PNormPushLoss(N, p=(4, 3)[x]),
    "temperature=0.1": lambda x: losses.ContrastiveLoss(N, temperature=(0.1, 0.2)[x]),
    "temperature=0.25": lambda x: losses.AveragePrecisionLoss(N, n_pos=4, temperature=(0.25, 0.5)[x]),
    "temperature=0.75": lambda x: losses.NDCGLoss(N, temperature=(0.75, 0.5)[x]),
    "temperature=Falling(first=0.5)": lambda x: losses.AveragePrecisionLoss(
        N, n_pos=4, temperature=Falling((0.5, 0.25)[x])
    ),
    "temperature=1": lambda x: losses.AveragePrecisionLoss(N, n_pos=4, temperature=(1.0, Falling(1.0))[x]),
    "own_term='exact'": lambda x: losses.CoxLoss(N, own_term=("exact", "sampled")[x]),
    "surrogate=Surrogate(name='hinge'": lambda x: losses.PartialAUCLoss(N, surrogate=("hinge", "sigmoid")[x]),
    "surrogate=Surrogate(name='squared_hinge'": lambda x: losses.PartialAUCLoss(N, margin=(1.0, 0.5)[x]),
    "n_pos=4": lambda x: losses.AveragePrecisionLoss(N, n_pos=(4, 5)[x]),
    "class_sizes=": lambda x: losses.NCALoss(N, class_sizes=([5, 4], [4, 5])[x]),
    "times=": lambda x: losses.BaselineCoxLoss(N, times=([0.0, 2.0], [0.0, 3.0])[x], events=[1, 1]),
    "gather=True": lambda x: distributed.configure(losses.CoxLoss(N), gather=(True, False)[x]),
}


def power(u, exponent):
    return u**exponent


def call(loss_fn, rows):
    x = features()[rows].abs().requires_grad_()
    arguments = {
        fcco.CoupledLoss: (x[:, 0], rows),
        losses.ContrastiveLoss: (x, x.flip(0), rows),
        losses.NCALoss: (x, LABELS[rows], rows),
        losses.CoxLoss: (x[:, 0], TIMES[rows], EVENTS[rows], rows),
        losses.BaselineCoxLoss: (x[:, 0], TIMES[rows], EVENTS[rows]),
        losses.NDCGLoss: (x[:, 0], LABELS[rows], torch.zeros_like(rows), rows),
    }.get(type(loss_fn), (x[:, 0], LABELS[rows], rows))
    if isinstance(loss_fn, fcco.CoupledLoss) and loss_fn.rule.all_rows:
        arguments = (features()[:, 0].abs().requires_grad_(), rows)
    return loss_fn(*arguments)


def disagreements(rank):
    """What is said to losses that differ between the ranks, and how many steps have been taken."""
    rows, said = torch.arange(N).tensor_split(2)[rank], {}
    for name, make in DIFFERENT.items():
        loss_fn = make(rank)
        said[name] = message_of(lambda loss_fn=loss_fn: call(loss_fn, rows)), int(loss_fn.table.step)
    return said


def changed_between_steps(rank):
    """A rule, two options and an outer function that one rank changes after a step."""
    rows, said = torch.arange(N).tensor_split(2)[rank], []
    contrastive, coupled = losses.ContrastiveLoss(N), engine(Scaled(2.0, rank))
    precision = losses.AveragePrecisionLoss(N, n_pos=4)
    for loss_fn, change in (
        (contrastive, lambda: setattr(contrastive, "rule", fcco.SOAP((0.7, 0.8)[rank]))),
        (contrastive, lambda: setattr(contrastive, "temperature", 0.1 + 0.1 * rank)),
        (precision, lambda: setattr(precision, "temperature", 0.5 + 0.25 * rank)),
        (coupled, lambda: setattr(coupled.outer, "factor", 2.0 + rank)),
    ):
        contrastive.rule = fcco.SOAP(0.7)
        call(loss_fn, rows)
        change()
        said.append((message_of(lambda loss_fn=loss_fn: call(loss_fn, rows)), int(loss_fn.table.step)))
    return said


@dataclasses.dataclass
class Config:
    rank: int
    where: str


class Trainer:
    """An object that belongs to its process, one of whose methods is f."""

    def __init__(self, rank):
        self.rank, self.path = rank, f"/tmp/rank-{rank}"

    def outer(self, u):
        return u.log1p()


def made_apart(rank):
    """Losses that are the same, though nothing in them is the same object, and some of it is the rank's own."""
    rows, weight = torch.arange(N).tensor_split(2)[rank], torch.full((N + rank,), 1.0)
    trainer, generator = Trainer(rank), torch.Generator().manual_seed(rank)
    steps = []
    for loss_fn in (
        engine(lambda u, index: weight[index] * u),
        engine(trainer.outer),
        engine(lambda u: trainer.outer(u) + 0 * torch.rand(1, generator=generator)),
        engine(Scaled(2.0, rank)),
        engine(rule=fcco.SOX(np.float64(0.25) if rank else 0.25), init=0 if rank else 0.0),
        engine(rule=fcco.SOX(lambda step: 0.5)),
    ):
        call(loss_fn, rows)
        steps.append(int(loss_fn.table.step))
    return steps


def low(u):
    """f that is not defined everywhere."""
    if (u > 5).any():
        raise ArithmeticError("f is not defined above 5")
    return u.square()


def failing(rank, world, sharded, rule, dtype):
    """f fails on the last rank in the second of three steps; the tables after that, and after the third."""
    loss_fn = distributed.configure(fcco.CoupledLoss(low, N, rule=rule), sharded=sharded)
    rows = torch.tensor([0, 8, 4, 3]).tensor_split(world)[rank]
    loss_fn(torch.ones(len(rows), requires_grad=True), rows)
    before = {name: value.clone() for name, value in loss_fn.table.block.state_dict().items()}
    high = torch.full((len(rows),), 60.0 if rank == world - 1 else 2.0, dtype=dtype, requires_grad=True)
    said = message_of(lambda: loss_fn(high, rows))
    after = loss_fn.table.block.state_dict()
    unchanged = all(
        torch.equal(after[name], value) and after[name].dtype == value.dtype for name, value in before.items()
    )
    loss_fn(2 * torch.ones(len(rows), requires_grad=True), rows)
    return said, unchanged, distributed.full_state_dict(loss_fn)


def overflowing(rank, sharded):
    """An estimate far above its row, on one rank, by a rule that does not bound what follows."""
    loss_fn = losses.CoxLoss(N, rule=fcco.SOX(0.5, safeguard=False))
    distributed.configure(loss_fn, sharded=sharded, gather=False)
    rows, time = torch.tensor([0, 8, 4, 3]).tensor_split(2)[rank], torch.tensor([0.0, 1.0])
    said = []
    for risk in (0.0, 100.0 * rank, 1.0):
        scores = torch.tensor([0.0, risk], requires_grad=True)
        said.append(message_of(lambda scores=scores: loss_fn(scores, time, time >= 0, rows)))
    return said, int(loss_fn.table.step)


def failing_tasks(rank):
    """The f of MAML is the caller's model, which may refuse its data."""
    model = torch.nn.Linear(1, 2)
    loss_fn = losses.MAMLLoss.for_model(model, n=4, lr=0.1, loss=torch.nn.functional.cross_entropy)
    x, y = torch.ones(1, 3, 1), torch.tensor([[0, 1, 1]])
    query = y + 5 * rank
    return message_of(lambda: loss_fn(model, (x, y), (x, query), [rank])), int(loss_fn.table.step)


MASK = torch.tensor([True, False, True, True, True, False, False, True, False])


def masked(rank, world, sharded):
    """A mask of bool, of which the ranks have unequal parts."""
    loss_fn = distributed.configure(engine(torch.square, rule=fcco.SOAP(0.5)), sharded=sharded)
    inner = torch.arange(1.0, N + 1).requires_grad_()
    rows = torch.arange(N).split([2, N - 2] if world == 2 else [N])[rank]
    loss = loss_fn(inner[rows], rows, weight=MASK[rows])
    loss.backward()
    return loss.detach() / world, inner.grad / world, loss_fn.table.full().u, loss_fn.table.full().visits


def traffic(rank, world, batch=16):
    """What a step of this rank sends, message by message, and what the formulas of docs/scale.md say."""
    made = {}
    for name, subject in SUBJECTS.items():
        for sharded in (False, True):
            loss_fn = distributed.configure(subject.make(RANKED), sharded=sharded)
            with recording() as sent:
                for _ in range(2):
                    subject.step(loss_fn, dealt_rows(batch, world, RANKED))
            made[name, sharded] = [message for message, _ in sent], 2 * subject.sizes.step(world, batch, sharded)
    return made


FAILING = [
    (sharded, rule, dtype)
    for sharded in (False, True)
    for rule in (fcco.SOX(0.5), fcco.SOAP(0.5))
    for dtype in (torch.float32, torch.float64)
]


def views_on_two_ranks(rank):
    """What is said to two views of an example, one on each rank, under one index."""
    z = features()[[0, 1]] + rank
    with pytest.warns(UserWarning, match="two views") as told:
        losses.NCALoss(N)(z.requires_grad_(), LABELS[[0, 1]], torch.tensor([0, 1 + rank]))
    return str(told[0].message)


def everything(rank, world, folder):
    return {
        "views": views_on_two_ranks(rank),
        "disagreements": disagreements(rank),
        "changed": changed_between_steps(rank),
        "made_apart": made_apart(rank),
        "failing": [failing(rank, world, *case) for case in FAILING],
        "overflowing": [overflowing(rank, sharded) for sharded in (False, True)],
        "failing_tasks": failing_tasks(rank),
        "masked": [masked(rank, world, sharded) for sharded in (False, True)],
        "traffic": traffic(rank, world),
    }


def test_two_views_on_two_ranks_need_two_rows(ranks):
    for rank in ranks:
        assert rank["views"].startswith("index must be different for two views of an example; got 0 at positions ")


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_differ_are_told_in_what(ranks, name):
    (first, taken), (second, also_taken) = (rank["disagreements"][name] for rank in ranks)
    assert first == second
    assert first.startswith("ValueError: all ranks must take the same step, and rank 0 has ")
    assert name in first.split(", rank 1 has ")[0]
    assert name.split("=")[0] in first.split(", rank 1 has ")[1]
    assert taken == also_taken == 0


def test_numbers_of_both_ranks_are_named(ranks):
    said, _ = ranks[0]["disagreements"]["gamma=0.1"]
    assert said.endswith("rank 0 has gamma=0.1, rank 1 has gamma=0.5")


def test_what_changes_between_steps_is_noticed(ranks):
    for rank in ranks:
        (rule, first), (temperature, second), (of_precision, third), (outer, fourth) = rank["changed"]
        assert rule.endswith("rank 0 has gamma=0.7, rank 1 has gamma=0.8")
        assert temperature.endswith("rank 0 has temperature=0.1, rank 1 has temperature=0.2")
        assert of_precision.endswith("rank 0 has temperature=0.5, rank 1 has temperature=0.75")
        assert "factor=2" in outer
        assert "factor=3" in outer
        assert (first, second, third, fourth) == (1, 2, 1, 1)


def test_losses_made_apart_are_the_same(ranks):
    assert [rank["made_apart"] for rank in ranks] == [[1] * 6] * 2


@pytest.mark.parametrize("place", range(len(FAILING)), ids=lambda place: str(FAILING[place]))
def test_an_outer_function_that_fails_on_one_rank_changes_no_table(ranks, place):
    """Every rank has the rows of all, and evaluates f at them."""
    (told, kept, state), (failed, also_kept, also_state) = (rank["failing"][place] for rank in ranks)
    assert told == failed == "ArithmeticError: f is not defined above 5"
    assert kept
    assert also_kept
    _, _, expected = failing(0, 1, False, FAILING[place][1], torch.float32)
    torch.testing.assert_close(state, expected)
    torch.testing.assert_close(also_state, expected)


@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
def test_a_gradient_that_overflows_on_one_rank_changes_no_table(ranks, sharded):
    (told, steps), (refused, also_steps) = (rank["overflowing"][sharded] for rank in ranks)
    assert told == refused
    assert refused[1].startswith("NotFiniteError: risk must be such that the gradient is at most 2^64; got ")
    assert refused[1].endswith("SOX(gamma=0.5, safeguard=False) does not bound g / u, as safeguard=True does")
    assert refused[0] is refused[2] is None
    assert steps == also_steps == 2


def test_a_model_that_fails_on_one_rank_changes_no_table(ranks):
    (told, taken), (failed, also_taken) = (rank["failing_tasks"] for rank in ranks)
    assert told == "RuntimeError: rank 1 has refused its batch, so that no rank takes this step"
    assert "out of bounds" in failed
    assert taken == also_taken == 0


@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
def test_a_mask_counts_over_all_ranks(ranks, sharded):
    values, gradients, *tables = zip(*(rank["masked"][sharded] for rank in ranks), strict=True)
    value, gradient, *table = masked(0, 1, False)
    assert value == torch.arange(1.0, N + 1)[MASK].square().mean()
    torch.testing.assert_close(sum(values), value)
    torch.testing.assert_close(sum(gradients), gradient)
    for rank in zip(*tables, strict=True):
        torch.testing.assert_close(list(rank), table)
    assert torch.equal(table[1], MASK)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", SUBJECTS)
def test_traffic_is_as_documented(ranks, name, sharded):
    """Message by message and byte by byte, where every rank keeps equally many of a batch's rows."""
    for rank in ranks:
        sent, formulas = rank["traffic"][name, sharded]
        assert sent == formulas
