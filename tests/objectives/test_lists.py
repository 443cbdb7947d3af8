"""ListNet, ListMLE and NDCG: equal to the exact objective, right on average, finite."""

import itertools

import numpy as np
import pytest
import torch

import fcco
from fcco import functional
from fcco.core import kernels
from fcco.core.arrays import namespace, ones, places_of
from fcco.core.step import Remembered, as_batch, estimate, take_step
from fcco.core.surrogates import as_surrogate
from fcco.objectives.lists import NDCG, Listed, ListMLE, ListNet

ARRAYS = pytest.mark.parametrize("array", [np.asarray, torch.tensor], ids=["numpy", "torch"])
TERMS = pytest.mark.parametrize("term", ["exact", "sampled", "bounded"])
OPTIONS = {
    "proportional": ("net", {}),
    "softmax": ("net", {"target": "softmax"}),
    "mle": ("mle", {}),
    **{
        name: ("ndcg", {"surrogate": name}) for name in ("ramp", "sigmoid", "hinge", "squared_hinge", "logistic", "exp")
    },
    "margin": ("ndcg", {"surrogate": "hinge", "margin": 0.3}),
    "temperature": ("ndcg", {"temperature": 0.4}),
    "k": ("ndcg", {"k": 2, "sharpness": 1.5}),
    "k, exp": ("ndcg", {"k": 3, "surrogate": "exp", "temperature": 2.0}),
}
CASES = pytest.mark.parametrize("case", OPTIONS)
EXACT = {"net": functional.list_net_loss, "mle": functional.list_mle_loss, "ndcg": functional.ndcg_loss}


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):  # as the shell does
        yield


def objective_of(case, term="sampled"):
    """Return the objective of a case, its exact form, and its options."""
    name, options = OPTIONS[case]
    if name == "net":
        made = ListNet(options.get("target", "proportional"), term)
    elif name == "mle":
        made = ListMLE(term)
    else:
        surrogate = as_surrogate(options.get("surrogate", "ramp"), options.get("margin", 1.0))
        rest = options.get("temperature", 1.0), options.get("k"), options.get("sharpness", 2.0), term
        made = NDCG(surrogate, *rest)
    return made, EXACT[name], options


def items(n=60, seed=0, spread=2.0):
    """Return scores, relevances and queries, among which are lists of one item and lists without a relevant one."""
    rng = np.random.RandomState(seed)
    query = rng.choice([7, -3, 40, 41, 1000, 12], n, p=[0.4, 0.3, 0.1, 0.1, 0.07, 0.03])
    relevance = rng.choice([0.0, 0.0, 1.0, 1.0, 2.0, 0.5], n) * (query != 41)
    return spread * rng.randn(n), relevance, query


class Table:
    """The rows of a table, and what is remembered of all of them."""

    def __init__(self, n, array, rule):
        self.u, self.seen, self.gamma = array(np.zeros(n)), array(np.zeros(n, bool)), getattr(rule, "rate", 1.0)
        self.score, self.born = array(np.zeros(n)), array(np.zeros(n, bool))

    def read(self, rows, first):
        return namespace(first).where(self.seen[rows], self.u[rows], first)

    def rate(self, rows):
        return self.gamma

    def coverage(self, distinct):
        return 1.0

    def recall(self, objective, known, batch):
        """Return all rows, of which those that are new, or in the batch, do not count."""
        x, weight = Listed(self.score, *known[1:]), self.born * ones(self.score)
        weight[batch.rows] = 0.0
        rows = places_of(weight >= 0)
        return Remembered(x, rows, objective.pool(x, weight), self.u, 0 * weight, rows[:0], 0.0, 1.0, False)


def as_columns(array, *columns):
    return Listed(*(array(column) for column in columns))


def close(one, other, rtol=1e-12):
    one, other = np.asarray(one), np.asarray(other)
    assert np.isfinite(other).all()
    assert np.abs(other).max() > 0
    np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * np.abs(other).max())


@pytest.mark.parametrize("many", [10**9, 0], ids=["dense", "sorted"])
@ARRAYS
@TERMS
@CASES
def test_whole_lists_give_the_exact_objective(case, term, array, many, monkeypatch):
    monkeypatch.setattr(kernels, "MANY", many)
    monkeypatch.setattr(kernels, "GROUPED", many)
    objective, exact, options = objective_of(case, term)
    columns = items()
    scores = torch.tensor(columns[0], requires_grad=True)
    wanted = exact(scores, *map(torch.tensor, columns[1:]), **options)
    wanted.backward()
    batch = as_batch(objective, as_columns(array, *columns), array(np.arange(60)))
    step = take_step(objective, fcco.BSGD(), Table(60, array, fcco.BSGD()), batch)
    close(step.value, wanted.detach())
    close(step.gradients[0], scores.grad)


@ARRAYS
@pytest.mark.parametrize("case", ["proportional", "softmax", "mle", "ramp", "exp"])
def test_fixed_shapes_give_the_same_step(case, array):
    objective, *_ = objective_of(case, "bounded")
    known = objective.describe(as_columns(array, *items()))
    rows = np.random.RandomState(0).choice(40, 30)
    x = Listed(*(column[rows] for column in known))
    steps = []
    for fixed in (False, True):
        batch = as_batch(objective, x, array(rows), fixed=fixed)
        steps.append(take_step(objective, fcco.BSGD(), Table(60, array, fcco.BSGD()), batch))
    close(steps[1].value, steps[0].value)
    close(steps[1].gradients[0], steps[0].gradients[0])


@ARRAYS
@TERMS
@CASES
def test_one_item(case, term, array):
    """The only item of a batch, relevant and irrelevant, of a list of which more is known."""
    objective, *_ = objective_of(case, term)
    relevance, query = np.array([1.0, 0.0, 0.0, 2.0]), np.array([3, 3, 3, 3])
    known = objective.describe(as_columns(array, np.ones(4), relevance, query))
    for row in range(3):
        batch = as_batch(objective, Listed(*(column[[row]] for column in known)), array([row]))
        step = take_step(objective, fcco.BSGD(), Table(4, array, fcco.BSGD()), batch)
        assert np.isfinite(float(step.value))
        assert not np.asarray(step.gradients[0]).any()


@ARRAYS
def test_irrelevant_items_of_list_mle_need_no_relevant_one(array):
    objective = ListMLE("exact")
    known = objective.describe(as_columns(array, np.zeros(3), np.array([0.0, 0.0, 1.0]), np.zeros(3, int)))
    made = estimate(objective, as_batch(objective, Listed(*(column[:2] for column in known)), array(np.arange(2))))
    assert (np.asarray(made.share) > 0).all()
    close(made.inner, np.log([2.0, 2.0]))


@CASES
def test_processes_that_share_lists(case):
    objective, *_ = objective_of(case)
    x, rows = as_columns(np.asarray, *items()), np.arange(60)
    whole = estimate(objective, as_batch(objective, x, rows))
    parts = [estimate(objective, as_batch(objective, x, rows, mine=part)) for part in (slice(0, 17), slice(17, 60))]
    for name in ("inner", "share", "count"):
        close(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))


@pytest.mark.parametrize("remembered", [None, "disjoint", "any"])
@pytest.mark.parametrize("case", ["proportional", "softmax", "mle", "ramp", "exp"])
def test_exact_self_terms_estimate_g_without_bias(case, remembered):
    """The mean over all batches, with all memories, of those that can estimate g of an item is g."""
    objective, *_ = objective_of(case, "exact")
    relevance, query = np.array([2.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]), np.array([0] * 5 + [1] * 2)
    scores = np.random.RandomState(0).randn(7)
    known = objective.describe(Listed(scores, relevance, query))
    table = Table(7, np.asarray, fcco.BSGD())
    table.score[...] = scores
    whole, total, count = as_batch(objective, known, np.arange(7)), np.zeros(7), np.zeros(7)
    size = 3 if remembered == "disjoint" else 4
    for rows in itertools.combinations(range(7), size):
        batch = as_batch(objective, Listed(*(column[list(rows)] for column in known)), np.array(rows))
        for held in [()] if remembered is None else itertools.combinations(range(7), size):
            if remembered == "disjoint" and set(held) & set(rows):
                continue
            table.born[...] = False
            table.born[list(held)] = True
            made = estimate(objective, batch, table.recall(objective, known, batch) if held else None)
            anchors = np.array(rows)[batch.anchors]
            total[anchors] += (np.exp(made.inner) if objective.log else made.inner) * (made.share > 0)
            count[anchors] += made.share > 0
    wanted = estimate(objective, whole).inner
    assert (count[whole.anchors] > 0).all()
    close((total / count)[whole.anchors], np.exp(wanted) if objective.log else wanted)


@pytest.mark.parametrize("many", [10**9, 0], ids=["dense", "sorted"])
@ARRAYS
@CASES
def test_extreme_scores(case, array, many, monkeypatch):
    monkeypatch.setattr(kernels, "MANY", many)
    monkeypatch.setattr(kernels, "GROUPED", many)
    objective, exact, options = objective_of(case)
    for spread in (1e4, 1e30):
        columns = items(spread=spread)
        wanted = exact(*map(torch.tensor, columns), **options)
        batch = as_batch(objective, as_columns(array, *columns), array(np.arange(60)))
        step = take_step(objective, fcco.BSGD(), Table(60, array, fcco.BSGD()), batch)
        close(step.value, wanted, 1e-11)
        gradient = np.asarray(step.gradients[0])
        assert np.isfinite(gradient).all()
        assert abs(gradient.sum()) < 1e-14  # nothing changes if all scores move together
