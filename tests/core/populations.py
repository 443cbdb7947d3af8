"""Tiny populations, and steps at rows of the table that are given."""

import numpy as np

from fcco.core.step import Remembered, as_batch, take, take_step
from fcco.objectives.bipartite import Scored
from fcco.objectives.survival import Survival


class Given:
    """Rows of a table that no step changes."""

    def __init__(self, u, gamma=1.0):
        self.u, self.gamma = u, gamma

    def read(self, rows, first):
        return self.u[rows]

    def rate(self, rows):
        return self.gamma

    def coverage(self, distinct):
        return 1.0

    def update(self, old, batch):
        return old, old


def population(objective, label):
    """Return the columns of all examples, with ties in time, and rows of the table."""
    rng, label, n = np.random.RandomState(0), np.asarray(label), len(label)
    u = rng.rand(*(n, objective.dim)[: 1 + (objective.dim > 1)]) + 1.0
    u = np.log(u) if objective.log else u
    if objective.Columns is Survival:
        return Survival(rng.randn(n), rng.randint(5, size=n), label), u
    return objective.Columns(rng.randn(n) if objective.Columns is Scored else rng.randn(n, 2), label), u


def remembered(objective, x, rows, fresh, u, mean=0.0, rate=1.0):
    """Return what a memory has of some rows, of which fresh ones do not count."""
    rows = np.setdiff1d(rows, fresh)
    old, mean = take(x, rows), mean + np.zeros(objective.strata * (1 + objective.anchor_relations))
    share, pool = objective.is_anchor(old) * 1.0, objective.pool(old, np.ones(len(rows)))
    return Remembered(old, rows, pool, u[rows], share, share.nonzero()[0], mean, rate, True)


def step(objective, x, u, fresh, memory=None):
    """Return a step and its gradient in the outputs of all examples."""
    given, gradient = Given(u), np.zeros_like(x[0])
    made = take_step(objective, given, given, as_batch(objective, take(x, fresh), fresh), memory)
    gradient[fresh] = made.gradients[0]
    return made, gradient
