"""Steps of an objective, as the shell takes them, and all steps of a small population."""

import itertools

import torch

import fcco
from fcco.core.arrays import ones, places_of
from fcco.core.step import Remembered, as_batch, estimate, expected, take, take_step


class Table:
    """Rows that are kept from step to step."""

    def __init__(self, n, dim, rule):
        shape = (n,) if dim == 1 else (n, dim)
        self.u, self.seen, self.gamma = torch.zeros(shape).double(), torch.zeros(n, dtype=torch.bool), rule.rate

    def read(self, rows, first):
        seen = self.seen[rows]
        return torch.where(seen if first.dim() == 1 else seen[:, None], self.u[rows], first)

    def rate(self, rows):
        return self.gamma

    def coverage(self, distinct):
        return len(self.u) / distinct

    def write(self, step):
        counts = step.share > 0
        self.u[step.rows[counts]], self.seen[step.rows[counts]] = step.new[counts], True


def step_of(objective, columns, rows, table=None, rule=None, sample=None, memory=None):
    """Take a step; return the loss, whose gradient reaches the outputs, the parameters and the sample."""
    rule = fcco.BSGD() if rule is None else rule
    table = Table(int(rows.max()) + 1, objective.dim, rule) if table is None else table
    outputs = columns[: objective.outputs]
    given = [*(c.detach() for c in outputs), *columns[len(outputs) :]]
    with torch.no_grad():
        batch = as_batch(objective, objective.Columns(*given), rows)._replace(sample=sample)
        step = take_step(objective, rule, table, batch, memory)
    table.write(step)
    loss = sum((o * g).sum() for o, g in zip(outputs, step.gradients, strict=True))
    loss.detach().copy_(step.value)
    return loss if step.extra is None else loss + (step.extra - step.extra.detach())


def gradients_of(loss, *leaves):
    made = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in made)
    return made


def assert_equal(one, other, leaves, rtol=1e-12, *, values=True):
    """Compare two losses and their gradients in the same leaves."""
    if values:
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol, check_dtype=False)
    for a, b in zip(gradients_of(one, *leaves), gradients_of(other, *leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * float(b.abs().max()))


class Fixed:
    """A table and a rule that leave the rows as they are given."""

    rate = staticmethod(lambda rows: 1.0)

    def __init__(self, u):
        self.u = u

    def read(self, rows, first):
        return self.u[rows]

    def update(self, old, met):
        return old, old


def mean_error(objective, x, u, pairs):
    """Return how far the mean gradient over all pairs of a memory and a batch is from that of all data.

    f is differentiated at given rows, and the running means are what they converge to. The gradient is that in the
    outputs and in the parameters.
    """
    n, fixed, parameters = len(u), Fixed(u), objective.parameters
    everyone = torch.arange(n)
    terms = estimate(objective, as_batch(objective, x, everyone)).share

    def recalled(held, fresh, mean):
        rows = torch.tensor(sorted(set(held) - set(fresh)), dtype=torch.int64)
        old = take(x, rows)
        share = terms[rows]
        pool = objective.pool(old, ones(old[0]))
        return Remembered(old, rows, pool, u[rows], share, places_of(share > 0), mean, 1.0, True)

    def fresh_batch(rows):
        return as_batch(objective, take(x, torch.tensor(rows)), torch.tensor(rows))

    def of_all(step, rows):
        full = [x[k].new_zeros(x[k].shape).index_add(0, rows, g) for k, g in enumerate(step.gradients)]
        return [*full, *(torch.autograd.grad(step.extra, parameters) if parameters else ())]

    relations = objective.anchor_relations
    zero, mean = u.new_zeros(objective.strata * (1 + relations)), 0.0
    for held, fresh in pairs:
        batch, memory = fresh_batch(fresh), recalled(held, fresh, zero)
        made = estimate(objective, batch, memory)
        mean = mean + expected(objective, batch, memory, made.count, made.share)[0] / len(pairs)
    exact = of_all(take_step(objective, fixed, fixed, fresh_batch(everyone.tolist())), everyone)
    sums = [0 * g for g in exact]
    for held, fresh in pairs:
        memory = recalled(held, fresh, mean)._replace(rate=0.0)
        step = take_step(objective, fixed, fixed, fresh_batch(fresh), memory)
        sums = [s + g / len(pairs) for s, g in zip(sums, of_all(step, torch.tensor(fresh)), strict=True)]
    return max(float((s - g).norm() / g.norm()) for s, g in zip(sums, exact, strict=True))


def some(n, size):
    """Return all random batches."""
    return list(itertools.combinations(range(n), size))


def of_each(labels, size):
    """Return all batches with so many examples of each class."""
    classes = [[i for i, y in enumerate(labels) if y == c] for c in sorted(set(labels))]
    return [sum(parts, ()) for parts in itertools.product(*(itertools.combinations(c, size) for c in classes))]


def whole(labels, count):
    """Return all batches of so many whole classes."""
    return [
        tuple(i for i, y in enumerate(labels) if y in chosen)
        for chosen in itertools.combinations(sorted(set(labels)), count)
    ]


def paired(batches, *, disjoint):
    """Return all pairs of a remembered batch and a fresh one."""
    return [(a, b) for a in batches for b in batches if not (disjoint and set(a) & set(b))]
