"""The gradient of a batch with a memory is right on average, for each sampler: over all pairs of batches there are."""

import copy
import itertools

import numpy as np
import pytest

from core.compare import LIBRARIES, assert_close, convert
from core.populations import Given, population, remembered, step
from fcco.core.step import as_batch, take, take_step
from fcco.core.surrogates import as_surrogate
from fcco.objectives.bipartite import AveragePrecision, PNormPush
from fcco.objectives.neighbours import NCA
from fcco.objectives.survival import Cox


def random(label, size):
    return list(itertools.combinations(range(len(label)), size))


def balanced(label, *sizes):
    """Return all batches with so many examples of each class."""
    parts = [itertools.combinations(np.flatnonzero(np.equal(label, k)), size) for k, size in enumerate(sizes)]
    return [sum(parts, ()) for parts in itertools.product(*parts)]


def whole(label, size, count):
    """Return all batches of so many groups, each of ``size`` neighbouring examples."""
    return [np.concatenate(some) for some in itertools.combinations(np.arange(len(label)).reshape(-1, size), count)]


OBJECTIVES = {
    "precision": lambda sizes: AveragePrecision(as_surrogate("ramp"), 1.0, sizes, "exact"),
    "log precision": lambda sizes: AveragePrecision(as_surrogate("exp"), 1.0, sizes, "exact"),
    "risk": lambda sizes: Cox(sizes, "exact"),
    "push": lambda sizes: PNormPush(as_surrogate("squared_hinge")),
    "log push": lambda sizes: PNormPush(as_surrogate("exp")),
    "neighbours": NCA,
    "by class": lambda sizes: NCA(sizes, by_class=True),
    "of unknown classes": lambda sizes: NCA(sizes.sum()[None]),
}
SIX, SEVEN, BIPARTITE = [0] * 3 + [1] * 3, [0] * 4 + [1] * 3, list(OBJECTIVES)[:5]
BOTH = (False, True)  # over all pairs of a remembered and a fresh batch, and over those without an example in both
CASES = [  # objective, labels, sampler and its sizes
    *((BOTH, name, SEVEN, balanced, 2, 1) for name in BIPARTITE),
    *((BOTH, name, SIX, random, 3) for name in [*BIPARTITE, "neighbours"]),
    (BOTH, "of unknown classes", SEVEN, random, 3),
    (BOTH, "neighbours", [0] * 4 + [1] * 4, balanced, 2, 2),
    (BOTH, "neighbours", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], whole, 2, 2),
    ([True], "neighbours", [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], whole, 3, 2),
    ([False], "by class", [0] * 3 + [1] * 5, balanced, 2, 2),
    ([True], "by class", [0] * 4 + [1] * 5, balanced, 2, 2),
    ([False], "by class", [0] * 4 + [1] * 2, random, 3),
]


def objective_of(name, label, refreshes=False):
    objective = OBJECTIVES[name](np.bincount(label).astype(float))
    objective.refreshes, objective.conserves = refreshes, False  # what this takes out is 0 on average in some batches
    return objective


def of_anchors(objective):
    """Return an objective whose gradient leaves out what candidates get."""
    sums, objective = objective.sums, copy.copy(objective)

    def sums_of_anchors(*arguments):
        bare, back = sums(*arguments)

        def backward(grad, side="both", scale=None):
            one, (other,) = back(grad, "both", scale)
            return one, (0 * other,)

        return bare, backward

    objective.sums = sums_of_anchors
    return objective


def label_of(case):
    return f"{case[1]}-{case[3].__name__}{case[4:]}-{'disjoint' if case[0] else 'all'}"


FIXED = [  # batches in which the net force is 0 on average over what is remembered
    (True, "neighbours", [0] * 4 + [1] * 4, balanced, 2, 2),
    (True, "neighbours", [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], whole, 3, 2),
    (True, "of unknown classes", SIX, random, 3),
]


def test_without_the_net_force_an_example_keeps_its_own():
    """In random batches, on average, if its gradient is the same in all of them."""
    gradients, objective, batches = np.random.RandomState(0).randn(7, 2), NCA(np.array([7.0])), random(range(7), 3)
    gradients -= gradients.mean(0)
    made = [objective.without_net_force(gradients[list(batch)], None) for batch in batches]
    assert_close(np.sum(made, 1) + 1, np.ones((len(batches), 2)))
    for k in range(7):
        mean = np.mean([one[batch.index(k)] for one, batch in zip(made, batches, strict=True) if k in batch], 0)
        assert_close(mean, gradients[k])


@pytest.mark.parametrize("case", FIXED, ids=label_of)
def test_the_net_force_is_nothing_on_average(case):
    compare_with_exact(case, conserves=True)


@pytest.mark.parametrize("case", [(d, *case) for which, *case in CASES for d in which], ids=label_of)
def test_gradients_are_unbiased(case):
    compare_with_exact(case)


def compare_with_exact(case, conserves=False):
    disjoint, name, label, sampler, *sizes = case
    objective, everybody = objective_of(name, label), np.arange(len(label))
    objective.conserves = conserves
    x, u = population(objective, label)
    pairs = itertools.product(map(np.array, sampler(label, *sizes)), repeat=2)
    pairs = [(old, new) for old, new in pairs if not (disjoint and set(old) & set(new))]
    first = [step(objective, x, u, new, remembered(objective, x, old, new, u))[0] for old, new in pairs]
    mean = np.mean([made.mean for made in first], 0)
    memories = [(new, remembered(objective, x, old, new, u, mean, 0.0)) for old, new in pairs]
    for one in (objective,) if conserves else (objective, of_anchors(objective)):
        _, exact = step(one, x, u, everybody)
        gradients = [step(one, x, u, *pair)[1] for pair in memories]
        assert_close(np.mean(gradients, 0), exact)
        assert np.var(gradients, 0).sum() > 0.5 * (exact**2).sum()  # single gradients are far off


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_empty_memory_is_none(name):
    label, fresh = SEVEN, np.array([0, 2, 3, 4, 6, 6, 4])
    if name not in BIPARTITE:  # all examples are anchors, of which a batch has as many of each kind as the population
        label, fresh = [0] * 4 + [1] * 4, np.array([0, 2, 4, 6, 6, 4, 2, 0])
    objective = objective_of(name, label)
    x, u = population(objective, label)
    for to in LIBRARIES.values():
        given, one = Given(to(u)), objective.like(to(u))
        batch = as_batch(one, convert(to, take(x, fresh)), to(fresh))
        memory = convert(to, remembered(objective, x, fresh, fresh, u))
        alone, both = (take_step(one, given, given, batch, part) for part in (None, memory))
        assert_close(both.gradients[0], alone.gradients[0])
        assert_close(both.value, alone.value)


@pytest.mark.parametrize("name", ["precision", "sampled", "log precision", "risk", "neighbours"])
def test_estimates_of_remembered_anchors_are_unbiased(name):
    """On average over what is remembered with an anchor and what is fresh, if each relation is there."""
    objective, anchor, made = objective_of(name.replace("sampled", "precision"), SEVEN, refreshes=True), 4, []
    x, u = population(objective, SEVEN)
    plain, exactly = np.exp if objective.log else np.array, copy.copy(objective)
    objective.self_term = name if name == "sampled" else objective.self_term
    for old, fresh in itertools.product(map(np.array, random(SEVEN, 2)), map(np.array, random(SEVEN, 3))):
        if anchor not in old or set(old) & set(fresh):
            continue
        memory = remembered(objective, x, old, fresh, u)
        refreshed = step(objective, x, u, fresh, memory)[0].refreshed[list(memory.rows[memory.anchors]).index(anchor)]
        new, held = (
            np.array([mask.sum() for mask in objective.relation(take(x, [anchor]), take(x, rows))])
            for rows in (fresh, old[old != anchor])
        )
        if (new > 0).all():
            rate = new / (new + held) if objective.dim > 1 else new.sum() / (new + held).sum()
            rate = rate.min() if objective.refreshes_alike else rate
            made.append((plain(refreshed) - (1 - rate) * plain(u[anchor])) / rate)
            if name == "sampled":  # the self term stands for as many as each positive in the pool
                made[-1][0] += 1 - 3 / (new[0] + held[0] + 1)
        elif objective.dim == 1:
            assert refreshed == u[anchor]
    exact = step(exactly, x, u, np.arange(7))[0].kept[list(np.flatnonzero(objective.is_anchor(x))).index(anchor)]
    assert_close(np.mean(made, 0), plain(exact), 1e-5)  # a rate of 1 is a little less


def test_a_floor_moves_what_candidates_get_from_remembered_anchors():
    objective, fresh, made = objective_of("risk", SEVEN, refreshes=True), np.array([1, 2, 5]), []
    x, u = population(objective, SEVEN)
    memory = remembered(objective, x, np.array([0, 3, 4, 6]), fresh, u)
    for level in (0.0, np.log(2.0), np.inf):
        objective.floor = lambda anchors, candidates, inner, at, level=level: at + level
        made.append(step(objective, x, u, fresh, memory)[1])
    assert_close(made[0] - made[2], 2 * (made[1] - made[2]))
