"""What objectives are held against: exact objectives, another loss over some batches, all batches that there are."""

import itertools

import numpy as np
import torch

from fcco.core.arrays import counted, places_of
from fcco.core.objective import Objective
from fcco.core.step import Remembered, as_batch, estimate, expected, take_step
from fcco.core.weights import Pool
from fcco.losses.loss import ObjectiveLoss


def as_loss(objective, n, rule, library="numpy", memory=0):
    """Return the loss of an objective that takes its steps with NumPy or with torch."""
    loss = ObjectiveLoss(objective, n, rule=rule, memory=memory)
    if library == "torch":
        loss._takes_arrays = lambda columns: False
    return loss


def value_and_gradient(f, x):
    """Return f(x) and its gradient, which must be finite, and not 0."""
    leaf = x.clone().requires_grad_()
    value = f(leaf)
    value.backward()
    assert value.isfinite()
    assert leaf.grad.isfinite().all()
    return value.detach(), leaf.grad


def assert_equal(f, g, x, tol=1e-12, value=True):
    """Assert that two functions have one value and one gradient, which is not 0."""
    (one, of_one), (two, of_two) = value_and_gradient(f, x), value_and_gradient(g, x)
    assert of_two.abs().max() > 0
    assert (of_one - of_two).abs().max() <= tol * of_two.abs().max()
    if value:
        assert abs(one - two) <= tol * max(1, abs(two))


class Fixed:
    """Rows that are what they are."""

    def __init__(self, u):
        self.u = u

    def read(self, rows, first):
        return self.u[rows]

    def rate(self, rows):
        return 1.0

    def coverage(self, distinct):
        return 1.0

    def update(self, old, met):
        return old, old


@np.errstate(all="ignore")
def bias(objective: Objective, x, u, draws):
    """Return how far the mean gradient is from the exact one, relative to its length.

    ``draws`` are pairs of a batch that is remembered and a fresh one, all equally likely. With the rows u given, f is
    linear.
    """
    rows = np.arange(len(u))
    exact = _gradients(take_step(objective, Fixed(u), Fixed(u), as_batch(objective, x, rows)), rows, len(u))
    draws = [(_batch(objective, x, fresh), _memory(objective, x, old, fresh, u)) for old, fresh in draws]
    mean = sum(_means(objective, *draw) for draw in draws) / len(draws)
    total = 0.0
    for batch, memory in draws:
        memory = memory._replace(mean=mean, rate=0.0)
        total = total + _gradients(take_step(objective, Fixed(u), Fixed(u), batch, memory), batch.rows, len(u))
    assert np.linalg.norm(exact) > 0
    return np.linalg.norm(total / len(draws) - exact) / np.linalg.norm(exact)


def _gradients(step, rows, n):
    gradient = np.zeros((n, *step.gradients[0].shape[1:]))
    np.add.at(gradient, rows, step.gradients[0])
    return gradient


def _batch(objective, x, rows):
    rows = np.array(rows)
    return as_batch(objective, type(x)(*(None if c is None else c[rows] for c in x)), rows)


def _memory(objective, x, old, fresh, u):
    rows = np.array([row for row in old if row not in set(fresh)], dtype=int)
    held = type(x)(*(None if c is None else c[rows] for c in x))
    kind, weight = objective.kind(held), np.ones(len(rows))
    share = objective.is_anchor(held) * weight
    pool = Pool(kind, weight, counted(kind, objective.kinds, weight))
    return Remembered(held, rows, pool, u[rows], share, places_of(share > 0), None, 1.0, True)


def _means(objective, batch, memory):
    memory = memory._replace(mean=np.zeros(objective.strata * (1 + objective.anchor_relations)))
    made = estimate(objective, batch, memory)
    return expected(objective, batch, memory, made.count, made.share)[0]


def random_batches(n, size):
    """Return all batches of a size."""
    return list(itertools.combinations(range(n), size))


def stratified_batches(strata, sizes):
    """Return all batches with so many of each stratum."""
    members = [[row for row, stratum in enumerate(strata) if stratum == k] for k in range(len(sizes))]
    parts = [list(itertools.combinations(part, size)) for part, size in zip(members, sizes, strict=True)]
    return [sum(batch, ()) for batch in itertools.product(*parts)]


def all_draws(batches, *, disjoint=False):
    """Return all pairs of batches, or those that have no row in common."""
    return [(a, b) for a in batches for b in batches if not (disjoint and set(a) & set(b))]


def steps(new, other, scores, target, *, value=True, tol=1e-11):
    """Assert that two losses agree over uneven batches, in which rows repeat, with one output each."""
    rng = np.random.RandomState(1)
    for size in (24, 8, 16, 30):
        index = torch.as_tensor(np.append(rng.permutation(len(scores))[:size], [3, 3, 7]))
        made = [value_and_gradient(_of_batch(loss, target, index), scores) for loss in (new, other)]
        (one, of_one), (two, of_two) = made
        if value:
            assert abs(one - two) <= tol * max(1, abs(two))
        assert of_two.abs().max() > 0
        assert (of_one - of_two).abs().max() <= tol * of_two.abs().max()


def _of_batch(loss, target, index):
    return lambda x: loss(x[index], target[index], index=index)
