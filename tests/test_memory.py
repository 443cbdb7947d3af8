"""The memory of recent outputs: its formulas, its mechanics, its state."""

import copy
import io
import itertools
import pickle

import pytest
import torch
import torch._dynamo.testing

import fcco
from fcco import functional, losses
from fcco._remember import Made
from losses import cases
from remembering_naively import (
    CASES,
    POSITIVE,
    Cox,
    N,
    PartialAUC,
    Precision,
    Push,
    Transcript,
    exactly,
    objective,
    sides,
)

STRENGTHS = ["gradient", "estimate"]
BATCHES = [[0, 1, 2, 3], [4, 2, 5], [1, 6, 3], [6, 4], [5, 0, 3, 6, 1, 2, 4], [2, 0, 5, 1], [3, 4, 6, 0]]


@pytest.fixture
def _in_torch(monkeypatch):
    """Losses do not work out their steps by hand."""
    for module in ("_bipartite", "_survival"):
        monkeypatch.setattr(f"fcco.losses.{module}.can_remember", lambda *_: False)


def gradients(value, floats):
    made = torch.autograd.grad(value, floats, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(made, floats, strict=True)]


def call(loss_fn, case, rows, floats, indexed=True):
    """The loss of some rows, given their outputs."""
    return loss_fn(*floats, *(x[rows] for x in case.others), *([torch.tensor(rows)] if indexed else []))


def outputs(case, rows, seed=0, dtype=torch.float64):
    return [x[list(rows)].to(dtype).requires_grad_() for x in case.floats(seed)]


# ---- formulas


def follow(case, strength, size=3, refresh=True, scale=1.0):
    memory = fcco.Memory(size, strength, refresh=refresh, guard=False)
    loss_fn = case.make(rule=fcco.BSGD(), memory=memory).double()
    transcript = Transcript(case, size, strength, refresh)
    for seed, rows in enumerate(BATCHES):
        floats = [(scale * x.detach()).requires_grad_() for x in outputs(case, rows, seed)]
        value, objective = transcript.step(rows, floats)
        loss = call(loss_fn, case, rows, floats)
        wanted = gradients(objective, floats) if isinstance(objective, torch.Tensor) else [0 * x for x in floats]
        close = {"rtol": 1e-9, "atol": 1e-11, "msg": lambda text, seed=seed: f"step {seed}: {text}"}
        torch.testing.assert_close(gradients(loss, floats), wanted, **close)
        torch.testing.assert_close(loss.detach(), torch.as_tensor(value, dtype=torch.float64), **close)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.usefixtures("_in_torch")
def test_steps_are_what_the_formulas_say(case, strength):
    follow(case, strength)


@pytest.mark.parametrize("options", [{"refresh": False}, {"scale": 5.0}], ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if not case.options], ids=str)
@pytest.mark.usefixtures("_in_torch")
def test_steps_with_old_or_large_outputs_are_what_the_formulas_say(case, options):
    follow(case, "gradient", **options)


@pytest.mark.parametrize("case", [case for case in CASES if case.others], ids=str)
def test_steps_by_hand_are_what_the_formulas_say(case):
    follow(case, "gradient")


class Fixed:
    """A loss whose f is linear, with the slopes of its own f at the exact g, so that it does not matter where f is
    differentiated; of every step it is known what either side contributes."""

    def __init__(self, case, monkeypatch, size=N):
        self.case, self.parts = case, []
        floats = case.floats()
        slope = Transcript(case, 1, "").slope
        self.slopes = {k: slope(g) for k, g in exactly(case, floats).items()}
        table = torch.stack([self.slopes.get(k, torch.zeros(case.dim, dtype=torch.float64)) for k in range(N)])
        self.loss = case.make(rule=fcco.BSGD(), memory=fcco.Memory(size, guard=False)).double()
        coupled = self.loss.coupled

        def linear(u, index):
            return (table[index] * (u.exp() if coupled.log else u).reshape(len(u), -1)).sum(1)

        coupled.outer, coupled._outer_takes_index = linear, True
        monkeypatch.setattr(Made, "balance", lambda made, loss: self.keep(made, loss))

    def keep(self, made, loss):
        if made.rival_side is not None:
            self.parts.append((loss * made.own_factor, made.rival_side))
        return loss

    def expecting(self, expected):
        """From now on, this is what is expected of a batch."""
        memory = self.loss.memory
        expected = torch.tensor(expected, dtype=torch.float64)
        memory.expected.copy_(expected)
        memory.expect = lambda *_: expected
        return self

    def step(self, rows):
        """The gradients of both sides with respect to all outputs, without a change of the memory."""
        everyone = [x.requires_grad_() for x in self.case.floats()]
        with self.loss.coupled.frozen():
            call(self.loss, self.case, rows, [x[rows] for x in everyone])
        (parts,) = self.parts
        self.parts.clear()
        return [gradients(side, everyone) if side.requires_grad else [0 * x for x in everyone] for side in parts]


def mean(steps):
    """The mean over steps of the gradients of both sides, each as one vector."""
    flat = [torch.stack([torch.cat([x.flatten() for x in side]) for side in step]) for step in steps]
    return torch.stack(flat).mean(0)


def wanted_sides(case, slopes):
    everyone = [x.requires_grad_() for x in case.floats()]
    return mean([[gradients(side, everyone) for side in sides(case, everyone, slopes)]])


def expected_counts(case, batches):
    """The mean number of examples of each stratum, and of outer ones."""
    targets, several = case.targets, case.rings > 1 or "class_sizes" in case.options
    strata = range(int(targets.max()) + 1) if several else [None]
    counts = [sum((targets[rows] == c).sum().item() if several else len(rows) for rows in batches) for c in strata]
    outers = exactly(case, case.floats())
    counts.append(sum(row in outers for rows in batches for row in rows))
    return [count / len(batches) for count in counts]


RANDOM = [list(rows) for rows in itertools.combinations(range(N), 2)]
STRATIFIED = [[i, j] for i in range(N) for j in range(N) if POSITIVE[i] and not POSITIVE[j]]


DESIGNS = [(case, "random", RANDOM) for case in CASES]
# Other losses take their batches for random ones.
DESIGNS += [(case, "stratified", STRATIFIED) for case in CASES if case.rings == 2]


@pytest.mark.parametrize(("case", "batches"), [pytest.param(c, b, id=f"{c}-{name}") for c, name, b in DESIGNS])
@pytest.mark.usefixtures("_in_torch")
def test_both_sides_are_unbiased_if_everyone_is_remembered(case, batches, monkeypatch):
    """Some batches lack a class: divided by the number that a batch happens to have, they would count for nothing."""
    fixed = Fixed(case, monkeypatch)
    call(fixed.loss, case, list(range(N)), outputs(case, range(N)))
    fixed.expecting(expected_counts(case, batches))
    torch.testing.assert_close(mean(map(fixed.step, batches)), wanted_sides(case, fixed.slopes), rtol=1e-9, atol=1e-12)


UNBIASED = [
    *(Precision({"surrogate": surrogate, "own_term": "exact"}) for surrogate in ("ramp", "exp")),
    Push(),
    PartialAUC({"temperature": 1.0}),
    Cox({"own_term": "exact", "n_events": 3}),
]


@pytest.mark.parametrize("case", UNBIASED, ids=str)
@pytest.mark.usefixtures("_in_torch")
def test_both_sides_are_unbiased_on_average_over_memories(case, monkeypatch):
    fixed, steps = Fixed(case, monkeypatch, size=4), []
    if case.rings == 1:
        memories, batches = itertools.combinations(range(N), 3), [[row] for row in range(N)]
    else:
        memories = [rows for rows in itertools.combinations(range(N), 4) if POSITIVE[list(rows)].sum() == 2]
        batches = STRATIFIED
    empty = fixed.loss.memory
    for rows in memories:
        fixed.loss.coupled.memory = copy.deepcopy(empty)
        call(fixed.loss, case, list(rows), outputs(case, rows))
        fixed.expecting(expected_counts(case, batches))
        steps += map(fixed.step, batches)
    torch.testing.assert_close(mean(steps), wanted_sides(case, fixed.slopes), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_naive_objective_is_the_librarys(case):
    floats = [x.requires_grad_() for x in case.floats()]
    value = objective(case, floats)
    exact = case.make(rule=fcco.BSGD(), memory=0).double().eval()(*floats, *case.others)
    torch.testing.assert_close(value, exact, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradients(value, floats), gradients(exact, floats), rtol=1e-9, atol=1e-12)


KNOWN = [
    *(cases.AP.with_options(own_term=own_term) for own_term in ("exact", "sampled")),
    cases.AP.with_options(surrogate="exp"),
    cases.PUSH,
    cases.PARTIAL_AUC,
    *(cases.COX.with_options(own_term=own_term) for own_term in ("exact", "sampled")),
]


@pytest.mark.parametrize("case", KNOWN, ids=str)
@pytest.mark.usefixtures("_in_torch")
def test_a_memory_of_everyone_gives_g(case):
    """Whatever the batch, if the weights have not changed since."""
    population = case.population()
    loss_fn = case.make(population, fcco.BSGD(), memory=fcco.Memory(13, "estimate")).double()
    with loss_fn.coupled.frozen() as visits:
        case.call(loss_fn, population)
    (exact,) = visits
    case.call(loss_fn, population)
    rows = torch.tensor([3, 7, 4, 12, 5])
    with loss_fn.coupled.frozen() as visits:
        case.call(loss_fn, population, rows)
    ((_, estimate, _, _, where),) = visits
    assert where.any()
    torch.testing.assert_close(estimate[where], exact.estimate[rows][where], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.usefixtures("_in_torch")
def test_rows_of_a_table_move_towards_g_of_the_pool(strength):
    case, rows = Cox({"n_events": 3}), [0, 1]
    loss_fn = case.make(rule=fcco.SOAP(0.3), memory=fcco.Memory(N, strength)).double()
    for batch in ([0, 1, 2, 3], [4, 5, 6]):
        call(loss_fn, case, batch, outputs(case, batch))
    before, g = loss_fn.table.u[0].exp(), exactly(case, case.floats())[0]
    call(loss_fn, case, rows, outputs(case, rows))
    torch.testing.assert_close(loss_fn.table.u[0].exp(), 0.7 * before + 0.3 * g[0], rtol=1e-9, atol=0)


# ---- mechanics


def ring_loss(size=3, strength="estimate"):
    return losses.PartialAUCLoss(20, rule=fcco.BSGD(), memory=fcco.Memory(size, strength))


def feed(loss_fn, rows, scores=None, indexed=True):
    """A step of a batch in which odd rows are positive, and the score of a row is its number or as given."""
    scores = torch.tensor(rows if scores is None else scores, dtype=torch.float32).requires_grad_()
    return loss_fn(scores, torch.tensor(rows) % 2, torch.tensor(rows) if indexed else None)


def held(memory):
    """The scores that a memory holds, of negatives and of positives."""
    found = []
    for ring in range(memory.rings):
        part = slice(ring * memory.options.size, (ring + 1) * memory.options.size)
        found.append(sorted(memory.column0[part][memory.born[part] >= 0].tolist()))
    return found


def test_the_newest_outputs_of_each_stratum_are_remembered():
    loss_fn = ring_loss()
    feed(loss_fn, [0, 1, 2])
    assert held(loss_fn.memory) == [[0, 2], [1]]
    feed(loss_fn, [4, 6, 3])
    assert held(loss_fn.memory) == [[2, 4, 6], [1, 3]]
    assert sorted(loss_fn.memory.ages().tolist()) == [1, 1, 1, 2, 2]


def test_of_a_batch_that_does_not_fit_the_last_are_remembered():
    loss_fn = ring_loss(size=2)
    feed(loss_fn, [0, 2, 4, 6, 8, 1])
    assert held(loss_fn.memory) == [[6, 8], [1]]
    feed(loss_fn, [10, 12, 14, 3, 5, 7])
    assert held(loss_fn.memory) == [[12, 14], [5, 7]]


def test_of_every_row_only_the_newest_is_remembered():
    loss_fn = ring_loss()
    feed(loss_fn, [0, 2, 1])
    feed(loss_fn, [0, 1], scores=[10, 11])
    assert held(loss_fn.memory) == [[2, 10], [11]]


def test_of_a_row_that_repeats_in_a_batch_the_last_is_remembered():
    loss_fn = ring_loss()
    feed(loss_fn, [0, 1, 0, 2, 0], scores=[5, 1, 6, 2, 7])
    assert held(loss_fn.memory) == [[2, 7], [1]]


def test_without_an_index_nothing_is_known_to_be_the_same():
    loss_fn = ring_loss()
    for _ in range(2):
        feed(loss_fn, [0, 1], indexed=False)
    assert held(loss_fn.memory) == [[0, 0], [1, 1]]
    assert (loss_fn.memory.row == -1).all()
    assert int(loss_fn.table.step) == 2
    assert not loss_fn.table.visits.any()


@pytest.mark.parametrize("indexed", [True, False])
def test_only_rows_that_are_not_fresh_are_recalled(indexed):
    loss_fn = ring_loss()
    feed(loss_fn, [0, 2, 1], indexed=indexed)
    recalled = loss_fn.memory.recall(torch.tensor([2, 5]) if indexed else None)
    assert sorted(recalled.columns[0][recalled.present].tolist()) == ([0, 1] if indexed else [0, 1, 2])
    assert not recalled.share[~recalled.present].any()
    if indexed:  # a batch without an index does not know these rows either, whose numbers are not positions
        loss = feed(loss_fn, [0, 1, 3], indexed=False)
        assert torch.isfinite(loss)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_batches_may_be_larger_than_the_population(strength):
    loss_fn = losses.PartialAUCLoss(2, memory=fcco.Memory(4, strength))
    for _ in range(3):
        feed(loss_fn, [0, 1, 2, 3, 4, 5], indexed=False).backward()


def test_the_composition_of_batches_is_a_running_mean():
    loss_fn = ring_loss(strength="gradient")
    for rows in ([0, 2, 4, 1], [6, 3], [8, 10, 5]):
        feed(loss_fn, rows)
    torch.testing.assert_close(loss_fn.memory.expected, torch.tensor([2.0, 1.0, 1.0]))


def test_wider_outputs_make_the_memory_wider():
    loss_fn = ring_loss()
    loss_fn(torch.ones(2, requires_grad=True), torch.tensor([True, False]), [0, 1])
    assert loss_fn.memory.column1.dtype == torch.bool
    loss_fn(torch.full((2,), 0.1, dtype=torch.float64, requires_grad=True), torch.tensor([1.0, 0.0]), [2, 3])
    assert loss_fn.memory.column0.dtype == loss_fn.memory.at.dtype == torch.float64
    assert 0.1 in loss_fn.memory.column0.tolist()
    assert loss_fn.memory.column1.dtype == torch.float32


def failing(u, index=None):
    raise ArithmeticError("no f today")


def bad_steps():
    """What must be refused, and by which error."""
    good, target, rows = torch.tensor([0.5, 0.1]), torch.tensor([1, 0]), torch.tensor([7, 8])
    yield "scores", (good / 0, target, rows), ValueError
    yield "index", (good, target, torch.tensor([7, 20])), IndexError
    yield "target", (good, torch.tensor([1, 2]), rows), ValueError
    yield "length", (good, target, rows[:1]), ValueError
    yield "shape", (good.reshape(2, 1), target, rows), ValueError
    yield "list", ([0.5, 0.1], target, rows), TypeError
    yield "targets", (good, [1, 0], rows), (TypeError, ValueError)
    yield "labels", (torch.zeros(2), target, torch.tensor([7, 7])), ValueError  # a row with two labels


@pytest.mark.parametrize(("arguments", "error"), [pytest.param(*rest, id=name) for name, *rest in bad_steps()])
@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("make", [losses.PartialAUCLoss, losses.PNormPushLoss], ids=lambda loss: loss.__name__)
def test_a_refused_step_changes_nothing(make, strength, arguments, error):
    loss_fn = make(20, memory=fcco.Memory(3, strength))
    for rows in ([0, 1, 2], [3, 4]):
        feed(loss_fn, rows)
    before = cases.state(loss_fn)
    with pytest.raises(error):
        loss_fn(*arguments)
    assert cases.same(cases.state(loss_fn), before)
    feed(loss_fn, [5, 6])
    assert not cases.same(cases.state(loss_fn), before)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_a_failing_f_changes_nothing(strength):
    loss_fn = ring_loss(strength=strength)
    for rows in ([0, 1, 2], [3, 4]):
        feed(loss_fn, rows)
    before = cases.state(loss_fn)
    loss_fn.coupled.outer = failing
    with pytest.raises(ArithmeticError):
        feed(loss_fn, [5, 6])
    assert cases.same(cases.state(loss_fn), before)


def test_frozen_steps_and_values_leave_the_memory_alone():
    loss_fn = ring_loss(strength="gradient")
    feed(loss_fn, [0, 1, 2])
    before = cases.state(loss_fn)
    with loss_fn.coupled.frozen() as visits:
        feed(loss_fn, [3, 4, 6])
    assert len(visits) == 1
    with torch.no_grad():
        feed(loss_fn, [3, 4, 6])
    loss_fn.eval()
    value = feed(loss_fn, [3, 4, 6])
    exact = functional.partial_auc_loss(torch.tensor([3.0, 4.0, 6.0]), torch.tensor([1, 0, 0]))
    torch.testing.assert_close(value.detach(), exact)
    assert cases.same(cases.state(loss_fn), before)


@pytest.mark.parametrize("memory", [-1, 1.5, True, "many"])
def test_what_is_no_memory_is_refused(memory):
    with pytest.raises((TypeError, ValueError), match="memory must be"):
        losses.CoxLoss(5, memory=memory)


def test_options_are_checked():
    with pytest.raises(ValueError, match="size must be at least 1"):
        fcco.Memory(0)
    with pytest.raises(ValueError, match="strength must be 'virtual' or 'estimate'; got 'strong'"):
        fcco.Memory(4, "strong")
    for rule in (fcco.SCGD(0.1), fcco.MSVR(0.1)):
        with pytest.raises(ValueError, match="which a memory cannot improve"):
            fcco.CoupledLoss(torch.log, 4, rule=rule, memory=3)


# ---- state

STATEFUL = [
    (cases.AP, "gradient"),
    (cases.COX, "gradient"),
]
STATES = pytest.mark.parametrize(("case", "strength"), STATEFUL, ids=str)


def remembering(case, population, strength, size=4, **options):
    return case.make(population, fcco.SOX(0.4), memory=fcco.Memory(size, strength), **options)


def through_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def loaded(loss_fn, other):
    other.load_state_dict(through_file(loss_fn.state_dict()))
    return other


COPIES = {
    "deepcopy": lambda loss_fn, fresh: copy.deepcopy(loss_fn),
    "pickle": lambda loss_fn, fresh: pickle.loads(pickle.dumps(loss_fn)),
    "state_dict": lambda loss_fn, fresh: loaded(loss_fn, fresh),
    "assigned": lambda loss_fn, fresh: (fresh.load_state_dict(loss_fn.state_dict(), assign=True), fresh)[1],
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@STATES
def test_a_copy_goes_on_bit_by_bit(case, strength, dtype, way):
    population = case.population(dtype=dtype)
    loss_fn = remembering(case, population, strength)
    cases.run(case, loss_fn, population, cases.BATCHES[:3])
    state = cases.state(loss_fn)
    other = COPIES[way](loss_fn, remembering(case, population, strength))
    expected = cases.run(case, copy.deepcopy(loss_fn), population, cases.BATCHES[3:])
    if way == "assigned":
        loss_fn = remembering(case, population, strength)
        loss_fn.load_state_dict(state)
    made = cases.run(case, other, population, cases.BATCHES[3:])
    assert all(torch.equal(one, two) for one, two in zip(made, expected, strict=True))
    assert cases.same(cases.state(loss_fn), state)


@STATES
def test_states_without_a_memory_empty_it(case, strength):
    population = case.population()
    loss_fn, plain = remembering(case, population, strength), case.make(population, fcco.SOX(0.4), memory=0)
    for some in (loss_fn, plain):
        cases.run(case, some, population, cases.BATCHES[:2])
    loss_fn.load_state_dict(plain.state_dict())
    assert not (loss_fn.memory.born >= 0).any()
    expected = case.call(copy.deepcopy(plain), population, cases.BATCHES[2])
    torch.testing.assert_close(case.call(loss_fn, population, cases.BATCHES[2]), expected, rtol=1e-12, atol=1e-12)


@STATES
def test_states_with_a_memory_load_where_there_is_none(case, strength):
    population = case.population()
    loss_fn, plain = remembering(case, population, strength), case.make(population, fcco.SOX(0.4), memory=0)
    cases.run(case, loss_fn, population, cases.BATCHES[:2])
    model = torch.nn.ModuleDict({"loss": plain})
    model.load_state_dict({f"loss.{key}": value for key, value in loss_fn.state_dict().items()})
    torch.testing.assert_close(plain.table.u, loss_fn.table.u)
    assert plain.memory is None


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
    message = r"coupled\.memory: the saved memory has size=5, strata=2, this one has size=3, strata=2\..* memory=5"
    with pytest.raises(RuntimeError, match=message):
        other.load_state_dict(saved.state_dict())
    assert cases.same(cases.state(other.memory), before)
    with fcco.load_anyway():
        other.load_state_dict(saved.state_dict())
    assert other.memory.recall(None) is None
    feed(other, [3, 4])


def test_a_refused_table_leaves_the_memory_alone():
    saved, other = losses.PartialAUCLoss(19, memory=3), losses.PartialAUCLoss(20, memory=3)
    feed(saved, [0, 1, 2])
    feed(other, [4, 5])
    before = cases.state(other)
    with pytest.raises(RuntimeError, match="n=19"):
        other.load_state_dict(saved.state_dict())
    assert cases.same(cases.state(other), before)


def test_buffers_without_their_outputs_are_an_empty_memory():
    """As savers leave it that only load what a new loss has."""
    saved, other = ring_loss(), ring_loss()
    feed(saved, [0, 1, 2])
    state = {key: value for key, value in saved.state_dict().items() if "column" not in key}
    other.load_state_dict(state)
    feed(other, [3, 4])
    assert held(other.memory) == [[4], [3]]


@STATES
def test_precision(case, strength):
    population = case.population(dtype=torch.float32)
    for cast, wide in (("half", torch.float32), ("bfloat16", torch.float32), ("double", torch.float64)):
        loss_fn = remembering(case, population, strength)
        cases.run(case, loss_fn, population, cases.BATCHES[:2])
        getattr(loss_fn, cast)()
        floats = [buffer for buffer in loss_fn.memory.buffers() if buffer.is_floating_point()]
        assert all(torch.promote_types(buffer.dtype, wide) == buffer.dtype for buffer in floats)
        cases.run(case, loss_fn, population, cases.BATCHES[2:])


@STATES
def test_outputs_of_half_precision(case, strength):
    """Remembered in single precision, and with gradients of their own dtype."""
    made = []
    for dtype in (torch.float32, torch.bfloat16):
        population = case.population(dtype=torch.float32)
        loss_fn = remembering(case, population, strength)
        floats = [x.detach().to(torch.bfloat16).to(dtype).requires_grad_() for x in population[0]]
        made.append(cases.run(case, loss_fn, (floats, population[1])))
        assert loss_fn.memory.column0.dtype == torch.float32
    for one, two in zip(*made, strict=True):
        torch.testing.assert_close(two.float(), one, rtol=0.02, atol=0.02)


@STATES
def test_nothing_is_read_from_a_device(case, strength):
    """On the meta device there is no data, so that any attempt to look at a value raises."""
    loss_fn = remembering(case, case.population(), strength).to("meta")
    floats, others = case.population(dtype=torch.float32)
    for rows in cases.BATCHES[:3]:
        arguments = [x[rows].detach().to("meta") for x in (*floats, *others)]
        arguments[0].requires_grad_()
        loss_fn(*arguments, torch.tensor(rows, device="meta")).backward()
        assert arguments[0].grad.shape == arguments[0].shape


# ---- estimates of the caller's own


def own_loss(strength, outer=torch.log, **options):
    """Means over all examples of e^(h_j - h_i)."""
    return fcco.CoupledLoss(outer, N, rule=fcco.BSGD(), memory=fcco.Memory(4, strength), **options).double()


def careful(pool):
    """An estimate that reads ``pool.recall``."""
    recall = pool.recall or fcco.Recall()
    own = pool.own[0]
    theirs = own if pool.rivals is None else pool.rivals[0] if recall.apart else torch.cat([own, pool.rivals[0]])
    present = torch.ones_like(theirs, dtype=torch.bool)
    if recall.present is not None:
        present = recall.present[len(own) :] if recall.apart else recall.present
    terms = torch.exp(theirs - own.unsqueeze(1)) * present
    return terms.sum(1) / (present.sum() if recall.expected is None else recall.expected.sum())


def careless(pool):
    theirs = pool.own[0] if pool.rivals is None else torch.cat([pool.own[0], pool.rivals[0]])
    return torch.exp(theirs - pool.own[0].unsqueeze(1)).mean(1)


def take(loss_fn, estimate, rows, seed=0, **options):
    h = Cox().floats(seed)[0][rows].requires_grad_()
    loss = loss_fn.pooled(estimate, [h], torch.tensor(rows), **options)
    return loss, gradients(loss, [h])[0]


@pytest.mark.parametrize("strength", STRENGTHS)
def test_own_estimates(strength):
    loss_fn = own_loss(strength)
    take(loss_fn, careful, [0, 1, 2])
    assert not loss_fn.estimates_read_recall
    h = Cox().floats()[0]
    loss, gradient = take(loss_fn, careful, [3, 4])
    assert loss_fn.estimates_read_recall
    u = torch.exp(h[:5].unsqueeze(0) - h[3:5].unsqueeze(1)).mean(1)
    torch.testing.assert_close(loss.detach(), u.log().mean())
    if strength == "estimate":
        wanted = h[3:5].clone().requires_grad_()
        inner = careful(fcco.Pool([wanted]))
        torch.testing.assert_close(gradient, gradients((inner / u).mean(), [wanted])[0])


@pytest.mark.parametrize("strength", STRENGTHS)
def test_estimates_that_do_not_read_recall_are_refused(strength):
    loss_fn = own_loss(strength)
    take(loss_fn, careless, [0, 1, 2, 3])  # a full memory
    before = cases.state(loss_fn)
    with pytest.raises(ValueError, match=r"estimate must read pool\.recall if there is a memory"):
        take(loss_fn, careless, [4, 5])
    assert cases.same(cases.state(loss_fn), before)


def test_random_estimates_are_not_refused():
    loss_fn = own_loss("estimate")
    for rows in ([0, 1, 2], [3, 4]):
        take(loss_fn, lambda pool: careful(pool) * torch.rand(len(pool.own[0])), rows)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_estimates_of_the_library_take_recall(strength):
    """Without a population, the pool is taken for it, without its empty places."""
    case = Cox()

    def estimate(pool):
        return functional.cox_inner(*pool.own, rivals=pool.rivals, rows=pool.rows, recall=pool.recall)

    loss_fn = fcco.CoupledLoss(torch.Tensor.clone, N, log=True, rule=fcco.BSGD(), memory=fcco.Memory(9, strength))
    with loss_fn.frozen() as visits:
        loss_fn.pooled(estimate, [case.floats()[0], *case.others], torch.arange(N))
    for rows in ([0, 1, 2, 5], [3, 4, 6]):
        loss_fn.pooled(estimate, [*outputs(case, rows), *(x[rows] for x in case.others)], torch.tensor(rows))
    rows = [2, 1]
    with loss_fn.frozen() as later:
        loss_fn.pooled(estimate, [*outputs(case, rows), *(x[rows] for x in case.others)], torch.tensor(rows))
    torch.testing.assert_close(later[0].estimate[0], visits[0].estimate[2])


def test_strata_are_checked():
    loss_fn = fcco.CoupledLoss(torch.log, N, rule=fcco.BSGD(), memory=fcco.Memory(4, strata=2))
    before = cases.state(loss_fn)
    for stratum, message in (
        (None, "stratum must be given, because the memory has 2 strata"),
        (torch.tensor([0]), r"stratum must have the shape \[2\]; got \[1\]"),
        (torch.tensor([0, 2]), r"stratum must be in \[0, 2\); got 2 at position 1"),
    ):
        with pytest.raises(ValueError, match=message):
            take(loss_fn, careful, [0, 1], stratum=stratum)
    assert cases.same(cases.state(loss_fn), before)
    take(loss_fn, careful, [0, 1], stratum=torch.tensor([0, 1]))


def test_what_a_memory_cannot_do_is_refused():
    def by_index(u, index, sample=None):
        return u.log() * (index + 1)

    h = torch.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="sample cannot be given with a memory of strength 'virtual'"):
        own_loss("gradient", by_index).pooled(careful, [h], torch.tensor([0, 1]), sample=h)
    own_loss("estimate", by_index).pooled(careful, [h], torch.tensor([0, 1]), sample=h)
    with pytest.raises(TypeError, match="index must be given, because outer takes it"):
        own_loss("gradient", by_index).pooled(careful, [h], None)
    with pytest.raises(TypeError, match=r"because SOX\(.*\) keeps a row for every .* fcco.data.Indexed adds it"):
        fcco.CoupledLoss(torch.log, 3, memory=2, rule=fcco.SOX(gamma=0.1)).pooled(careful, [h], None)
