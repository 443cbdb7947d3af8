"""Steps: against the exact objectives, the losses and plain loops; pure, in fixed shapes, and on several processes."""

import numpy as np
import pytest
import torch

import fcco
from core.compare import LIBRARIES, SURROGATES, assert_close, convert
from core.populations import Given, population, remembered
from fcco.core import kernels
from fcco.core.objective import OneKernel
from fcco.core.outers import Power
from fcco.core.step import as_batch, estimate, take, take_step
from fcco.core.surrogates import as_surrogate
from fcco.core.weights import Weights
from fcco.losses.loss import ObjectiveLoss
from fcco.losses.table import FirstRows
from fcco.objectives.bipartite import AveragePrecision, PNormPush, Scored
from fcco.objectives.given import GivenInner
from fcco.objectives.neighbours import NCA
from fcco.objectives.survival import Cox, Survival

F, L = fcco.functional, fcco.losses
EXACT = [
    (AveragePrecision(as_surrogate(s)), F.average_precision_loss, {"surrogate": s})
    for s in ("ramp", "squared_hinge", "hinge", "sigmoid", "logistic", "exp")
]
EXACT += [(PNormPush(as_surrogate(s), 2), F.p_norm_push_loss, {"surrogate": s, "p": 2}) for s in ("logistic", "exp")]
EXACT += [(Cox(term=term), F.cox_loss, {}) for term in ("sampled", "exact", "bounded")]
EXACT += [(NCA(likelihood=log), F.nca_loss, {"log_likelihood": log}) for log in (False, True)]


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize(("objective", "function", "options"), EXACT)
def test_a_full_batch_is_the_exact_objective(objective, function, options, is_sorted, monkeypatch):
    monkeypatch.setattr(kernels, "MANY", 0 if is_sorted else 10**9)
    x, _ = population(objective, np.arange(90) % 7 // 5)
    columns = [torch.tensor(column) for column in x if column is not None]
    expected = function(columns[0].requires_grad_(), *columns[1:], **options)
    expected.backward()
    for to in LIBRARIES.values():
        batch = as_batch(objective, convert(to, x), to(np.arange(90)))
        made = take_step(objective, fcco.BSGD(), FirstRows(), batch)
        assert_close(made.value, expected.detach())
        assert_close(made.gradients[0], columns[0].grad)


def test_an_example_without_a_mate_has_no_logarithm():
    embedding, label = torch.randn(7, 2).double().requires_grad_(), torch.tensor([0, 0, 1, 2, 2, 2, 3])
    expected = F.nca_loss(embedding, label, log_likelihood=True)
    expected.backward()
    for sizes in (None, np.bincount(label) * 1.0):
        objective = NCA(sizes, likelihood=True)
        batch = as_batch(objective, objective.Columns(embedding.detach().numpy(), label.numpy()), np.arange(7))
        made = take_step(objective, fcco.BSGD(), FirstRows(), batch)
        assert_close(made.value, expected.detach())
        assert_close(made.gradients[0], embedding.grad)
        assert objective.total in (None, 5.0)


def test_a_risk_set_of_events_alone_stands_for_everybody():
    h, time = np.random.RandomState(0).randn(2, 4)
    batch = as_batch(Cox(), Survival(h, time, np.ones(4)), np.arange(4))
    inner = [np.log(np.exp(h - h[i])[time >= time[i]].sum() * 40 / 4) for i in range(4)]
    assert_close(estimate(Cox(np.array([30.0, 10.0])), batch).inner, inner)


def test_the_floor_of_a_risk():
    old, fresh, inner = np.array([0.3, 2.0, 9.0]), np.array([1.0, 2.0, 2.0, 5.0]), np.array([3.0, 0.5, -1.0])
    part = np.array([1 / max((fresh >= t).sum(), 1) for t in old])
    expected = np.maximum(0.0, inner - np.log(1 + 8 * (np.sqrt(part) + part)))
    for to in LIBRARIES.values():
        anchors, candidates = (Survival(None, to(time), None) for time in (old, fresh))
        assert_close(Cox().floor(anchors, candidates, to(inner), to(0 * inner)), expected)


EXP = as_surrogate("exp")


def by_step(step):
    return 1 / (2 + step)


def by_visits(visits):
    return 0.9 / (1 + visits)


by_visits.per_row = True
RULES = [fcco.SOX(0.4), fcco.SOX(by_step), fcco.SOAP(by_visits), fcco.MOAP(0.4)]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_rows_follow_their_rule(rule, log):
    """In plain numbers, of f = u², with rows that repeat in a batch."""
    loss = ObjectiveLoss(GivenInner(Power(2.0, log), log=log), 7, rule=rule).double()
    u, visits, rng, is_moap = np.zeros(7), np.zeros(7), np.random.RandomState(0), isinstance(rule, fcco.MOAP)
    for step in range(12):
        rows, g = rng.randint(7, size=4), 10 ** rng.randn(4)
        mean = np.array([g[rows == row].mean() for row in rows])
        rate = {by_step: by_step(step), by_visits: by_visits(visits[rows])}.get(rule.rate, 0.4)
        old, cover = np.where((visits[rows] > 0) | is_moap, u[rows], mean), 7 / len(set(rows)) if is_moap else 1.0
        u *= 0.6 if is_moap else 1.0
        u[rows] = (1 - rate) * old + rate * cover * mean
        visits[list(set(rows))] += 1
        at = np.maximum(old, rate * mean if log else 0.0) if isinstance(rule, fcco.SOX) else u[rows]
        inner = torch.tensor(np.log(g) if log else g).requires_grad_()
        value = loss(inner, index=torch.tensor(rows))
        value.backward()
        assert_close(value.detach(), (u[rows] ** 2).mean())
        assert_close(inner.grad, 2 * at * (g if log else 1.0) / 4)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("term", ["sampled", "exact"])
@pytest.mark.parametrize("surrogate", ["ramp", "exp"])
def test_rows_that_repeat(surrogate, term, known):
    """A row is updated once, by the mean of its estimates; the gradient counts each."""
    rows, sizes = np.array([3, 1, 3, 0, 2, 1, 4, 3]), np.array([20.0, 6.0] if known else [3.0, 5.0])
    label, u, distinct, g, new, loss = (rows > 1) * 1, np.ones((5, 2)), [], {}, {}, 0.0
    h = torch.randn(8, dtype=torch.double, requires_grad=True)
    for i in np.flatnonzero(label):
        copies, pairs = (rows == rows[i]).sum(), SURROGATES[surrogate](h - h[i])
        each, own = (sizes[1] / 5, sizes[1] / 5 * copies) if term == "sampled" else (5 / (5 - copies), 1.0)
        each = each if known else 1.0  # each stands for itself
        positive = each * pairs[(label == 1) & (rows != rows[i])].sum() + own
        g[i] = torch.stack([positive, sizes[0] / 3 * pairs[label == 0].sum()])
    for i in g:
        new[rows[i]] = 0.7 + 0.3 * torch.stack([g[j].detach() for j in g if rows[j] == rows[i]]).mean(0)
        one, two = new[rows[i]]
        loss = loss + (torch.stack([-two, one]) / (one + two) ** 2 * g[i]).sum() / len(g)
    loss.backward()
    for to in LIBRARIES.values():
        objective = AveragePrecision(as_surrogate(surrogate), 1.0, to(sizes) if known else None, term)
        table = Given(to(np.log(u) if objective.log else u), 0.3)
        table.coverage = lambda count: distinct.append(int(count)) or 1.0
        batch = as_batch(objective, convert(to, Scored(h.detach().numpy(), label)), to(rows))
        made = take_step(objective, fcco.SOAP(0.3), table, batch)
        held = np.exp(np.asarray(made.new)) if objective.log else made.new
        assert_close(held, np.stack([new[row] for row in np.asarray(made.rows)]))
        assert_close(made.value, np.mean([-new[rows[i]][0] / new[rows[i]].sum() for i in g]))
        assert_close(made.gradients[0], h.grad)
        take_step(objective, fcco.MOAP(0.3), table, batch)
    assert distinct == [3, 3]  # rows of anchors


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("dim", "place", "count"), [(2, 1, 2), (1, 1, 2), (2, 0, 2), (1, 0, 1)])
def test_sums_are_weighed(dim, place, count, log):
    objective, bare = OneKernel(), torch.rand(count, 4, dtype=torch.double, requires_grad=True)
    objective.dim, objective.log, objective.self_relation, objective.self_value = dim, log, place, 1.0 if log else 0.3
    each, own = torch.rand(count, 1, dtype=torch.double), torch.rand(4, dtype=torch.double)
    g = bare * each + own * objective.self_value * (torch.arange(count) == place)[:, None]
    g = g.T if dim > 1 else g.sum(0)
    (slope,) = torch.autograd.grad((g.log() if log else g).sum(), bare)
    for to in LIBRARIES.values():
        held = to((bare.log() if log else bare).detach().numpy().copy())
        inner, of_bare = objective.weighted(held, Weights(to(each), to(own), None))
        assert_close(np.exp(np.asarray(inner)) if log else inner, g.detach())
        assert_close(np.asarray(of_bare) + np.zeros(bare.shape), slope * bare.detach() if log else slope)


MADE = {
    "precision": lambda sizes: AveragePrecision(as_surrogate("ramp"), 0.5, sizes, "exact"),
    "log precision": lambda sizes: AveragePrecision(EXP, 1.0, sizes, "bounded"),
    "sampled": lambda sizes: AveragePrecision(as_surrogate("squared_hinge"), 1.0, sizes),
    "push": lambda sizes: PNormPush(as_surrogate("logistic"), 2),
    "risk": Cox,
    "exact risk": lambda sizes: Cox(sizes, "exact"),
    "neighbours": NCA,
    "by class": lambda sizes: NCA(sizes, by_class=True),
}


def situation(name, to=np.asarray, remembers=True, places=slice(8)):
    """Return an objective, rows of a table, a batch with repeated rows, and a memory; two of its places are empty."""
    label, rows, old = (
        [0, 1] * 3 + [0, 0, 0, 1, 0, 1],
        np.array([0, 3, 5, 8, 11, 3, 6, 0]),
        np.array([1, 2, 7, 9, 10, 4]),
    )
    objective = MADE[name](np.bincount(label) * 3.0)
    x, u = population(objective, label)
    rows, fresh = rows[places].copy(), take(x, rows[places])
    fresh[0][:] += 0.1 * np.random.RandomState(1).randn(*fresh[0].shape)  # copies that differ
    memory = remembered(objective, x, old, rows, u, 1.5, 0.1) if remembers else None
    return objective.like(to(u)), to(u), convert(to, fresh), to(rows), convert(to, memory)


def run(objective, u, x, rows, memory, **options):
    return take_step(objective, fcco.SOX(0.4), Given(u, 0.4), as_batch(objective, x, rows, **options), memory)


def arrays_in(x):
    """Return all arrays in tuples and objects; those of NumPy can no more be changed."""
    if isinstance(x, np.ndarray | torch.Tensor):
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
        return [x]
    parts = x if isinstance(x, tuple) else vars(x).values() if hasattr(x, "__dict__") else ()
    return [array for part in parts for array in arrays_in(part)]


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_steps_are_pure_and_equal_in_both_libraries(name, remembers):
    made = []
    for to in LIBRARIES.values():
        parts = situation(name, to, remembers)
        arrays, step = arrays_in(parts), run(*parts)
        for array, before in zip(arrays, arrays_in(situation(name, to, remembers)), strict=True):
            assert np.array_equal(array, before)
        made.append([step.value, step.new, step.share, step.kept, step.gradients[0], step.rows])
        made[-1] += [step.refreshed, step.mean] if remembers else []
    for one, other in zip(*made, strict=True):
        assert type(one) is not type(other)
        assert_close(one, other)


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_fixed_shapes(name, remembers):
    for to in LIBRARIES.values():
        objective, u, x, rows, memory = situation(name, to, remembers)
        expected, padded = run(objective, u, x, rows, memory), memory
        if remembers:
            more = lambda c, to=to: to(np.append(c, np.asarray(c)[:2], 0))  # noqa: E731
            old, keys, at = convert(more, (memory.x, memory.rows, memory.at))
            weight, share = (to(np.append(c, [0.0, 0.0])) for c in (memory.pool.weight, memory.share))  # empty places
            pool = objective.pool(old, weight)
            padded = memory._replace(x=old, rows=keys, pool=pool, at=at, share=share, anchors=None)
        got, anchors = run(objective, u, x, rows, padded, fixed=True), np.asarray(objective.is_anchor(x))
        assert not np.asarray(got.share)[~anchors].any()
        assert_close(got.value, expected.value)
        assert_close(got.gradients[0], expected.gradients[0])
        for field in ("rows", "new", "share", "kept"):
            assert_close(np.asarray(getattr(got, field))[anchors], getattr(expected, field))
        if remembers:
            assert_close(got.mean, expected.mean)
            assert_close(np.asarray(got.refreshed)[np.asarray(memory.anchors)], expected.refreshed)


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_each_process_estimates_its_own_anchors(name, remembers):
    objective, _, x, rows, memory = situation(name, remembers=remembers)
    whole = estimate(objective, as_batch(objective, x, rows), memory)
    grad = np.random.RandomState(0).randn(*whole.inner.shape)
    parts = [as_batch(objective, x, rows, mine=slice(*ends)) for ends in ((0, 3), (3, 3), (3, 8))]
    made = [estimate(objective, part, memory) for part in parts]
    for field in ("inner", "share", "count"):
        assert_close(np.concatenate([getattr(one, field) for one in made]), getattr(whole, field))
    sides = [one.backward(grad[part.mine]) for one, part in zip(made, parts, strict=True)]
    expected = whole.backward(grad)
    assert_close(np.concatenate([one[0] for one, _ in sides]), expected[0][0])
    assert_close(sum(other[0] for _, other in sides), expected[1][0])


@pytest.mark.parametrize("name", ["neighbours", "by class"])
def test_a_step_with_a_memory_has_no_net_force(name):
    objective, *parts = situation(name)
    made = run(objective, *parts).gradients[0]
    objective.conserves = False
    (raw,), objective.conserves = run(objective, *parts).gradients, True
    assert_close(made, objective.without_net_force(raw, parts[1]))
    assert np.abs(made.sum(0)).max() < 0.5 * np.abs(raw.sum(0)).max()


@pytest.mark.parametrize("name", MADE)
def test_candidates_meet_remembered_anchors_at_refreshed_rows(name):
    objective, u, x, rows, memory = situation(name)
    objective.refreshes, objective.floor = True, lambda anchors, candidates, inner, at: at
    made, at = run(objective, u, x, rows, memory), memory.at.copy()
    at[memory.anchors] = made.refreshed
    assert not np.allclose(at, memory.at)
    objective.refreshes = False
    assert_close(run(objective, u, x, rows, memory._replace(at=at)).gradients[0], made.gradients[0])


@pytest.mark.parametrize("name", ["precision", "push"])
def test_a_memory_for_the_rows_alone(name):
    objective, u, x, rows, memory = situation(name)
    made, both, none = (run(objective, u, x, rows, held) for held in (memory._replace(in_gradient=False), memory, None))
    assert_close(made.gradients[0], none.gradients[0])
    assert_close(made.new, both.new)
    assert_close(made.kept, both.kept)
    assert not np.allclose(both.new, none.new)
    assert not np.allclose(both.gradients[0], none.gradients[0])


def test_the_share_of_each_f_is_the_callers():
    objective, _, x, rows, _ = situation("precision", places=slice(5))
    batch, shares = as_batch(objective, x, rows), np.array([0.5, 0.2, 2.0])
    made, *each = (
        take_step(objective, fcco.BSGD(), FirstRows(), batch._replace(share=share)) for share in (shares, *np.eye(3))
    )
    assert len({float(one.value) for one in each}) == 3
    assert_close(made.value, shares @ [one.value for one in each] / shares.sum())
    assert_close(made.gradients[0], shares @ [one.gradients[0] for one in each] / shares.sum())


@pytest.mark.parametrize("places", [[0, 3, 0], [1, 5, 0], [2]], ids=["no anchors", "no others", "alone"])
@pytest.mark.parametrize("name", ["precision", "exact risk", "neighbours"])
def test_nothing_is_known(name, places):
    for to in LIBRARIES.values():
        objective, _, x, rows, _ = situation(name, to, False, places)
        made = take_step(objective, fcco.BSGD(), FirstRows(), as_batch(objective, x, rows))
        assert float(made.value) == 0.0
        assert not any(np.asarray(array).any() for array in (made.gradients[0], made.share))
