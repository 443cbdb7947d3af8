"""The memory of recent outputs in public losses: steps by their formulas, what it holds, what it refuses, its state."""

import copy

import numpy as np
import pytest
import torch

import fcco
from fcco import losses
from losses import cases
from stepping_naively import CLASSES, NCA, POSITIVE, TIME, Cox, N, Precision, Steps

# ---- steps


def make(objective, **options):
    """The loss of an objective, and the columns beside its outputs."""
    if isinstance(objective, NCA):
        return losses.NCALoss.from_targets(CLASSES, log_likelihood=objective.likelihood, **options), [CLASSES]
    options["own_term"] = objective.own_term
    if isinstance(objective, Cox):
        return losses.CoxLoss.from_targets(POSITIVE, **options), [TIME, POSITIVE]
    return losses.AveragePrecisionLoss.from_targets(POSITIVE, surrogate="squared_hinge", **options), [POSITIVE]


def at_random(rng, label):
    return rng.permutation(N)[:4]


def of_two_classes(rng, label):
    classes = rng.permutation(np.unique(label))[:2]
    return np.concatenate([rng.permutation(np.flatnonzero(label == c))[:2] for c in classes])


OBJECTIVES = {
    **{f"{kind.__name__} {own_term}": kind(own_term) for kind in (Precision, Cox) for own_term in ("exact", "sampled")},
    "NCA": NCA(),
    "NCA likelihood": NCA(likelihood=True),
}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("gamma", [1.0, 0.4])
@pytest.mark.parametrize("draw", [at_random, of_two_classes])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_steps_are_what_the_formulas_say(name, draw, gamma, library, monkeypatch):
    if library == "torch":
        monkeypatch.setattr(fcco.ObjectiveLoss, "_takes_arrays", lambda self, columns: False)
    objective, rng = OBJECTIVES[name], np.random.default_rng(0)
    size, scale = (8, 0.8) if "NCA" in name else (4, 2.0)
    loss_fn, columns = make(objective, rule=fcco.SOAP(gamma), memory=size)
    steps = Steps(objective, size, gamma)
    for _ in range(12):
        rows = draw(rng, objective.label)
        outputs = torch.tensor(scale * rng.normal(size=(4, *objective.width)), requires_grad=True)
        value, gradient = steps.step(rows.tolist(), outputs.detach().numpy())
        loss = loss_fn(outputs, *(torch.tensor(x[rows]) for x in columns), index=torch.tensor(rows))
        np.testing.assert_allclose(loss.item(), value, rtol=1e-10)
        (made,) = torch.autograd.grad(loss, outputs)
        np.testing.assert_allclose(made, gradient, rtol=1e-10, atol=1e-11 * np.abs(gradient).max())


@pytest.mark.parametrize(
    "case",
    [cases.AP.with_options(own_term="exact"), cases.COX.with_options(own_term="exact"), cases.PUSH, cases.PARTIAL_AUC],
    ids=str,
)
def test_an_empty_memory_is_none(case):
    population, made = case.population(), []
    for memory in (0, 4):
        loss = case.call(case.make(population, fcco.BSGD(), memory=memory), population, cases.BATCHES[0])
        made.append([loss.detach(), *cases.gradients(loss, population)])
    torch.testing.assert_close(*made)


KNOWN = [
    *(case.with_options(own_term=term) for case in (cases.AP, cases.COX) for term in ("exact", "sampled")),
    cases.AP.with_options(surrogate="exp"),
    cases.PUSH,
    cases.PARTIAL_AUC,
    cases.NCA,
    cases.CONTRASTIVE,
    cases.CONTRASTIVE.with_options(include_positive=True),
]
MODES = pytest.mark.parametrize("mode", ["gradient", "estimate"])


@MODES
@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_a_memory_of_everyone_gives_g(case, mode):
    """Whatever the batch, if the outputs have not changed since."""
    population, rows = case.population(), torch.tensor([3, 7, 4, 12, 5])
    loss_fn = case.make(population, fcco.SOAP(1.0), memory=fcco.Memory(13, mode))
    case.call(loss_fn, population)
    exact = loss_fn.table.u[rows]
    case.call(loss_fn, population, rows)
    assert exact.any()
    torch.testing.assert_close(loss_fn.table.u[rows], exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", cases.REMEMBERING, ids=str)
def test_gradients_of_several_steps_accumulate(case):
    """A step is over before its gradient is taken: later ones do not change it."""
    population, loss_fn = case.population(), case.make(case.population())
    other, apart = copy.deepcopy(loss_fn), []
    for rows in cases.BATCHES:
        apart.append(cases.gradients(case.call(loss_fn, population, rows), population))
    together = cases.gradients(sum(case.call(other, population, rows) for rows in cases.BATCHES), population)
    torch.testing.assert_close(list(together), [sum(parts) for parts in zip(*apart, strict=True)])


# ---- what it holds


def ring_loss(size=3, mode="gradient", n=20):
    return losses.PartialAUCLoss(n, rule=fcco.BSGD(), memory=fcco.Memory(size, mode))


def feed(loss_fn, rows, scores=None, indexed=True):
    """A step of a batch in which odd rows are positive, and the score of a row is its number or as given."""
    scores = torch.tensor(rows if scores is None else scores, dtype=torch.float32).requires_grad_()
    return loss_fn(scores, torch.tensor(rows) % 2, torch.tensor(rows) if indexed else None)


def held(loss_fn):
    """The scores that are held of negatives and of positives."""
    memory, here = loss_fn.memory, (loss_fn.memory.born >= 0).tolist()
    places = [range(ring * memory.size, (ring + 1) * memory.size) for ring in range(memory.rings)]
    return [sorted(memory.columns[0][k].item() for k in some if here[k]) for some in places]


FED = {  # batches, or batches and scores, and what is held after each
    "the newest of each stratum": [([0, 1, 2], [[0, 2], [1]]), ([4, 6, 3], [[2, 4, 6], [1, 3]])],
    "the last of a batch that does not fit": [
        ([0, 2, 4, 6, 8, 1], [[4, 6, 8], [1]]),
        ([10, 12, 3, 5, 7, 9], [[8, 10, 12], [5, 7, 9]]),
    ],
    "the newest of a row": [([0, 2, 1], [[0, 2], [1]]), ([0, 1], [10, 11], [[2, 10], [11]])],
    "the last of a row that repeats": [([0, 1, 0, 2, 0], [5, 1, 6, 2, 7], [[2, 7], [1]])],
}


@MODES
@pytest.mark.parametrize("name", FED)
def test_what_is_held(name, mode):
    loss_fn = ring_loss(mode=mode)
    for *batch, wanted in FED[name]:
        feed(loss_fn, *batch)
        assert held(loss_fn) == wanted
    assert (loss_fn.memory.row[loss_fn.memory.share > 0] % 2 == 1).all()  # positives have a term


def test_without_an_index_nothing_is_known_to_be_the_same():
    loss_fn = ring_loss()
    for _ in range(2):
        feed(loss_fn, [0, 1], indexed=False)
    assert held(loss_fn) == [[0, 0], [1, 1]]
    assert (loss_fn.memory.row == -1).all()
    assert sorted(loss_fn.memory.ages().tolist()) == [1, 1, 2, 2]
    assert not loss_fn.table.visits.any()
    feed(loss_fn, [2, 3])  # whose numbers are not the rows of any that are held
    assert held(loss_fn) == [[0, 0, 2], [1, 1, 3]]


@MODES
def test_batches_and_memories_may_be_larger_than_the_population(mode):
    loss_fn = ring_loss(8, mode, n=2)
    for _ in range(3):
        feed(loss_fn, [0, 1, 2, 3, 4, 5], indexed=False).backward()
    loss_fn = ring_loss(8, mode, n=6)
    for _ in range(3):
        feed(loss_fn, [0, 1, 2, 3]).backward()
    assert held(loss_fn) == [[0, 2], [1, 3]]


def test_wider_outputs_make_the_memory_wider():
    loss_fn = ring_loss()
    loss_fn(torch.ones(2, requires_grad=True), torch.tensor([True, False]), [0, 1])
    assert [column.dtype for column in loss_fn.memory.columns] == [torch.float32, torch.bool]
    loss_fn(torch.full((2,), 0.1, dtype=torch.float64, requires_grad=True), torch.tensor([1.0, 0.0]), [2, 3])
    assert loss_fn.memory.columns[0].dtype == loss_fn.memory.at.dtype == torch.float64
    assert 0.1 in loss_fn.memory.columns[0].tolist()


@pytest.mark.parametrize("case", [cases.AP, cases.COX, cases.NCA, cases.CONTRASTIVE], ids=str)
def test_outputs_of_half_precision(case):
    """Remembered in single precision, and with gradients of their own dtype."""
    made = []
    for dtype in (torch.float32, torch.bfloat16):
        floats, others = case.population(dtype=torch.float32)
        floats = [x.detach().to(torch.bfloat16).to(dtype).requires_grad_() for x in floats]
        loss_fn = case.make((floats, others), fcco.SOX(0.4), memory=4)
        made.append(cases.run(case, loss_fn, (floats, others)))
        assert loss_fn.memory.columns[0].dtype == torch.float32
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(other.float(), one, rtol=0.02, atol=0.02)


# ---- what is refused


BAD = {
    "scores": (torch.tensor([torch.inf, 0.1]), torch.tensor([1, 0]), torch.tensor([7, 8]), ValueError, "finite"),
    "index": (torch.ones(2), torch.tensor([1, 0]), torch.tensor([7, 20]), IndexError, "index must be in"),
    "target": (torch.ones(2), torch.tensor([1, 2]), torch.tensor([7, 8]), ValueError, "target must"),
    "length": (torch.ones(2), torch.tensor([1, 0]), torch.tensor([7]), ValueError, "differ in length|index must"),
    "shape": (torch.ones(2, 1), torch.tensor([1, 0]), torch.tensor([7, 8]), ValueError, "scores must"),
    "list": ([0.5, 0.1], torch.tensor([1, 0]), torch.tensor([7, 8]), TypeError, "scores must"),
    "labels": (torch.zeros(2), torch.tensor([1, 0]), torch.tensor([7, 7]), ValueError, "each row must have one label"),
}


@MODES
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("make", [losses.PartialAUCLoss, losses.PNormPushLoss], ids=lambda loss: loss.__name__)
def test_a_refused_step_changes_nothing(make, name, mode):
    loss_fn, (*arguments, error, message) = make(20, memory=fcco.Memory(3, mode)), BAD[name]
    for rows in ([0, 1, 2], [3, 4]):
        feed(loss_fn, rows)
    before = cases.state(loss_fn)
    with pytest.raises(error, match=message):
        loss_fn(*arguments)
    assert cases.same(cases.state(loss_fn), before)
    feed(loss_fn, [5, 6])
    assert not cases.same(cases.state(loss_fn), before)


def test_outputs_of_other_shapes_are_refused():
    loss_fn, labels = losses.NCALoss(9), torch.tensor([0, 1, 0])
    loss_fn(torch.randn(3, 2).requires_grad_(), labels, torch.arange(3))
    with pytest.raises(ValueError, match=r"embedding must have the shape \['B', 2\].* got \[3, 4\]"):
        loss_fn(torch.randn(3, 4).requires_grad_(), labels, torch.arange(3) + 3)
    loss_fn, event = losses.CoxLoss(9), torch.ones(3)
    loss_fn(torch.randn(3).requires_grad_(), torch.arange(3.0), event, torch.arange(3))
    with pytest.raises(ValueError, match="stratum is given, but the memory has examples without it"):
        loss_fn(torch.randn(3).requires_grad_(), torch.arange(3.0), event, torch.arange(3) + 3, strata=labels)


def test_options_are_checked():
    for memory in (-1, 1.5, True, "many"):
        with pytest.raises((TypeError, ValueError), match="memory must be"):
            losses.CoxLoss(5, memory=memory)
    with pytest.raises(ValueError, match="size must be at least 1"):
        fcco.Memory(0)
    with pytest.raises(ValueError, match="mode must be one of 'gradient', 'estimate'; got 'strong'"):
        fcco.Memory(4, "strong")


# ---- state


@pytest.mark.parametrize("case", [cases.AP, cases.COX, cases.NCA, cases.CONTRASTIVE], ids=str)
def test_states_with_and_without_a_memory(case):
    """One with a memory loads where there is none; one without empties it."""
    population = case.population()
    loss_fn, plain = (case.make(population, fcco.SOX(0.4), memory=memory) for memory in (4, 0))
    for some in (loss_fn, plain):
        cases.run(case, some, population, cases.BATCHES[:2])
    other = torch.nn.ModuleDict({"loss": case.make(population, fcco.SOX(0.4), memory=0)})
    other.load_state_dict({f"loss.{key}": value for key, value in loss_fn.state_dict().items()})
    assert torch.equal(other["loss"].table.u, loss_fn.table.u)
    loss_fn.load_state_dict(plain.state_dict())
    assert len(loss_fn.memory.ages()) == 0
    expected = case.call(plain, population, cases.BATCHES[2])
    torch.testing.assert_close(case.call(loss_fn, population, cases.BATCHES[2]), expected, rtol=1e-12, atol=1e-12)


def test_states_without_the_loss_leave_the_memory_alone():
    loss_fn = ring_loss()
    feed(loss_fn, [0, 1, 2])
    before = cases.state(loss_fn)
    model = torch.nn.ModuleDict({"net": torch.nn.Linear(1, 1), "loss": loss_fn})
    model.load_state_dict({"net.weight": torch.ones(1, 1), "net.bias": torch.ones(1)}, strict=False)
    assert cases.same(cases.state(loss_fn), before)


def test_a_memory_of_another_size_is_refused():
    saved, other = ring_loss(size=5), ring_loss(size=3)
    for loss_fn in (saved, other):
        feed(loss_fn, [0, 1, 2])
    before = cases.state(other.memory)
    message = r"memory: the saved memory has size=5, strata=2, this one has size=3, strata=2\..* memory=5"
    with pytest.raises(RuntimeError, match=message):
        other.load_state_dict(saved.state_dict())
    assert cases.same(cases.state(other.memory), before)


def test_buffers_without_their_outputs_are_an_empty_memory():
    """As savers leave it that only load what a new loss has."""
    saved, other = ring_loss(), ring_loss()
    feed(saved, [0, 1, 2])
    other.load_state_dict({key: value for key, value in saved.state_dict().items() if "column" not in key})
    feed(other, [3, 4])
    assert held(other) == [[4], [3]]
