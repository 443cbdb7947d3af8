"""The formulas of a step with a memory, written with loops: nothing here calls an estimate of the library."""

from dataclasses import dataclass, field

import torch

from fcco import losses
from fcco.functional._surrogates import resolve_surrogate

N = 7
POSITIVE = torch.tensor([1, 0, 1, 0, 0, 1, 0])
TIME = torch.tensor([3.0, 1.0, 2.0, 2.0, 5.0, 4.0, 2.0], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 0, 1, 1, 0, 2])


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class Naive:
    """A loss, and its formulas.

    An example is a tuple of the entries of all columns. ``phi(i, j)`` is the term of rival j in g_i, a tensor of shape
    (dim,). ``of_pool(i, pool)`` returns the constant part of g_i and a weight for every other example of the pool;
    ``of_fresh(i, expected, held)`` the constant part and a function from a fresh rival to its weight.
    """

    options: dict = field(default_factory=dict)
    targets = POSITIVE
    rings = 2  # that a memory has, by the stratum
    is_log = True

    def __str__(self):
        return "-".join([type(self).__name__, *(f"{key}={value}" for key, value in self.options.items())])

    def floats(self, seed=0):
        return [0.5 * draw(N, seed=seed)]

    @property
    def others(self):
        return [self.targets]

    def stratum(self, example):
        return int(example[-1])

    def is_outer(self, example):
        return self.stratum(example) == 1

    def count(self, pool, stratum):
        return sum(self.stratum(j) == stratum for j in pool)

    def size(self, stratum):
        return int((self.targets == stratum).sum())

    def met(self, i, fresh):
        """How many fresh examples a remembered one is compared with."""
        return len(fresh)

    def excess(self, j):
        """By which factor the rival side counts a fresh rival too much, on average over random batches.

        If a loss does not know how many outer examples there are, it does not know either that one of them has one
        outer example less among its rivals than the others have.
        """
        return 1.0

    def g(self, i, pool):
        """g of example i from a pool, which contains it."""
        constant, weight = self.of_pool(i, pool)
        return constant + sum(weight(j) * self.phi(i, j) for j in pool if j is not i and weight(j))


class Precision(Naive):
    loss, dim = losses.AveragePrecisionLoss, 2

    @property
    def is_log(self):
        return self.options.get("surrogate") == "exp"

    def make(self, **options):
        return self.loss.from_targets(self.targets, **self.options, **options)

    def ell(self, t):
        return resolve_surrogate(self.options.get("surrogate", "ramp"), 1.0)(t)

    @property
    def own_value(self):
        return 1.0 if self.options.get("surrogate", "ramp") == "ramp" else float(self.ell(torch.zeros(1)))

    @property
    def is_exact(self):
        return self.options.get("own_term", "sampled") == "exact"

    def phi(self, i, j):
        ell = self.ell((j[0] - i[0]) / self.options.get("temperature", 1.0)) / N
        return torch.stack([ell * self.stratum(j), ell])

    def of_pool(self, i, pool):
        n_pos, p, q = self.size(1), self.count(pool, 1), self.count(pool, 0)
        of_positive = (n_pos - 1) / (p - 1) if self.is_exact else n_pos / p
        own = self.own_value / N * (1 if self.is_exact else of_positive)
        return own, lambda j: of_positive if self.stratum(j) else self.size(0) / q

    def of_fresh(self, i, expected, held):
        own = self.own_value / N * (1 if self.is_exact else self.size(1) / held[1])
        return own, lambda j: (self.size(1) - 1) / expected[1] if self.stratum(j) else self.size(0) / expected[0]

    def f(self, u):
        return -u[0] / u[1]


class Push(Naive):
    loss, dim = losses.PNormPushLoss, 1

    @property
    def is_log(self):
        return self.options.get("surrogate", "exp") == "exp"

    def make(self, **options):
        return self.loss.from_targets(self.targets, **self.options, **options)

    def is_outer(self, example):
        return self.stratum(example) == 0

    def phi(self, i, j):
        ell = resolve_surrogate(self.options.get("surrogate", "exp"), 1.0)
        return ell(i[0] - j[0]).reshape(1)

    def of_pool(self, i, pool):
        return 0.0, lambda j: self.stratum(j) / self.count(pool, 1)

    def of_fresh(self, i, expected, held):
        return 0.0, lambda j: self.stratum(j) / expected[1]

    def f(self, u):
        return u[0] ** 4


class PartialAUC(Naive):
    loss, dim = losses.PartialAUCLoss, 1

    def make(self, **options):
        return self.loss.from_targets(self.targets, **self.options, **options)

    def phi(self, i, j):
        return torch.exp(torch.relu(1 + j[0] - i[0]) ** 2 / self.options["temperature"]).reshape(1)

    def of_pool(self, i, pool):
        return 0.0, lambda j: (1 - self.stratum(j)) / self.count(pool, 0)

    def of_fresh(self, i, expected, held):
        return 0.0, lambda j: (1 - self.stratum(j)) / expected[0]

    def f(self, u):
        return self.options["temperature"] * u[0].log()


class Cox(Naive):
    loss, dim = losses.CoxLoss, 1

    @property
    def others(self):
        return [TIME, self.targets]

    @property
    def knows_events(self):
        return "n_events" in self.options

    @property
    def rings(self):
        return 2 if self.knows_events else 1

    @property
    def is_exact(self):
        return self.options.get("own_term", "sampled") == "exact"

    def make(self, **options):
        return self.loss(N, **self.options, **options)

    def phi(self, i, j):
        return (torch.exp(j[0] - i[0]) * (j[1] >= i[1])).reshape(1)

    def of_pool(self, i, pool):
        sizes, counts = [self.size(c) for c in (0, 1)], [self.count(pool, c) for c in (0, 1)]
        if self.is_exact:
            if not self.knows_events:
                return 1.0, lambda j: (N - 1) / (len(pool) - 1)
            return 1.0, lambda j: (sizes[1] - 1) / (counts[1] - 1) if self.stratum(j) else sizes[0] / counts[0]
        if not self.knows_events:
            return N / len(pool), lambda j: N / len(pool)
        scale = N / sum(size for size, count in zip(sizes, counts, strict=True) if count)
        return scale * sizes[1] / counts[1], lambda j: scale * sizes[self.stratum(j)] / counts[self.stratum(j)]

    def of_fresh(self, i, expected, held):
        if not self.knows_events:
            return 1.0 if self.is_exact else N / held[0], lambda j: (N - 1) / expected[0]
        own = 1.0 if self.is_exact else self.size(1) / held[1]
        return own, lambda j: (self.size(1) - 1) / expected[1] if self.stratum(j) else self.size(0) / expected[0]

    def met(self, i, fresh):
        return sum(bool(j[1] >= i[1]) for j in fresh)

    def excess(self, j):
        return 1.0 if self.knows_events else (N - 1) / N * (self.size(1) / (self.size(1) - 1) if self.stratum(j) else 1)

    def f(self, u):
        return u[0].log()


CASES = [
    *(
        Precision({"surrogate": surrogate, "own_term": own_term})
        for surrogate in ("ramp", "squared_hinge", "exp")
        for own_term in ("exact", "sampled")
    ),
    Precision({"temperature": 0.4}),
    Push(),
    Push({"surrogate": "squared_hinge"}),
    PartialAUC({"temperature": 1.0}),
    PartialAUC({"temperature": 0.6}),
    *(Cox({"own_term": own_term, **known}) for own_term in ("exact", "sampled") for known in ({}, {"n_events": 3})),
]


def examples(case, rows, floats, others=None):
    """The examples of some rows, as tuples."""
    columns = [*floats, *(x[rows] for x in case.others)] if others is None else [*floats, *others]
    return [tuple(column[k] for column in columns) for k in range(len(rows))]


def fixed(example):
    return tuple(x.detach() for x in example)


class Transcript:
    """Steps with a memory and without a table, by the book."""

    def __init__(self, case, size, strength, refresh=True):
        self.case, self.size, self.strength, self.refresh = case, size, strength, refresh
        self.memory = []  # dicts: the row, the example, u (None if it has no term), whether the row was seen since
        self.expected, self.steps = None, 0

    def has_term(self, i, pool):
        case = self.case
        if not case.is_outer(i):
            return False
        needed = {Precision: (0, 1), Push: (1,), PartialAUC: (0,), Cox: ()}[type(case)]
        rest = [j for j in pool if j is not i]
        exact = getattr(case, "is_exact", True)
        if isinstance(case, Cox):
            if not exact:
                return True
            return all(case.count(rest, c) for c in (0, 1)) if case.knows_events else len(rest) > 0
        return all(case.count(rest if exact else pool, c) for c in needed)

    def expect(self, fresh, total):
        case = self.case
        strata = range(case.rings)
        of = case.stratum if len(strata) > 1 else lambda example: 0
        now = [float(sum(of(e) == c for e in fresh)) for c in strata] + [float(total)]
        rate = max(1 / (self.steps + 1), 1 / 100)
        before = self.expected or now
        self.expected = [x + rate * (y - x) for x, y in zip(before, now, strict=True)]
        self.steps += 1
        return self.expected[:-1], self.expected[-1]

    def ring(self, example):
        return self.case.stratum(example) if self.case.rings > 1 else 0

    def slope(self, u):
        u = u.detach().requires_grad_()
        return torch.autograd.grad(self.case.f(u), u)[0]

    def step(self, rows, floats):
        """The value and a scalar with the gradient of a step."""
        case, fresh = self.case, examples(self.case, rows, floats)
        for entry in self.memory:
            entry["is_stale"] |= entry["row"] in rows
        memory = [entry for entry in self.memory if not entry["is_stale"]]
        still = [fixed(e) for e in fresh]
        pool = [*still, *(entry["example"] for entry in memory)]
        u = [case.g(e, pool).detach() if self.has_term(e, pool) else None for e in still]
        remembered = [entry for entry in memory if entry["u"] is not None]
        outers = [k for k in range(len(rows)) if u[k] is not None]
        enough = remembered and len(remembered) >= self.expected[-1]
        expected, mean_total = self.expect(fresh, len(outers))
        if self.strength == "gradient" and enough:
            objective = self.virtual(fresh, still, pool, memory, remembered, u, expected, mean_total)
            counted = outers
            at = u
        else:  # of the batch alone
            counted = [k for k in outers if self.has_term(fresh[k], fresh)]
            g = {k: case.g(fresh[k], fresh) for k in counted}
            at = u if self.strength == "estimate" else {k: g[k].detach() for k in counted}
            objective = sum(self.slope(at[k]) @ g[k] for k in counted) / max(len(counted), 1)
        value = sum(case.f(at[k]) for k in counted) / max(len(counted), 1)
        new = [{"row": row, "example": still[k], "u": u[k], "is_stale": False} for k, row in enumerate(rows)]
        last = [[e for e in self.memory + new if self.ring(e["example"]) == ring] for ring in range(case.rings)]
        self.memory = [entry for entries in last for entry in entries[-self.size :]]  # stale ones take up room too
        return value, objective

    def virtual(self, fresh, still, pool, memory, remembered, u, expected, mean_total):
        case = self.case
        objective = 0.0
        for k, example in enumerate(fresh):
            if u[k] is not None:
                among = [example if j is still[k] else j for j in pool]
                objective = objective + self.slope(u[k]) @ case.g(example, among) / mean_total
        held = [sum(self.ring(j) == ring for j in pool) for ring in range(case.rings)]
        rate = len(fresh) / (len(fresh) + len(memory))
        for entry in remembered:
            own, weight = case.of_fresh(entry["example"], expected, held)
            g = own + sum(weight(j) * case.phi(entry["example"], j) for j in fresh)
            g = g if isinstance(g, torch.Tensor) else torch.full((case.dim,), own, dtype=torch.float64)
            at = entry["u"]
            if self.refresh:
                at = entry["u"] = (1 - rate) * entry["u"] + rate * g.detach()
                if isinstance(case, Cox):
                    met = max(case.met(entry["example"], fresh), 1)
                    at = at.maximum(g.detach() / (1 + 8 / met**0.5 + 8 / met))
            objective = objective + self.slope(at) @ g / len(remembered)
        return objective


def exactly(case, floats):
    """g of every outer example, by its row."""
    everyone = examples(case, range(N), floats)
    transcript = Transcript(case, 1, "")
    return {k: case.g(i, everyone) for k, i in enumerate(everyone) if transcript.has_term(i, everyone)}


def objective(case, floats):
    """F."""
    g = exactly(case, floats)
    return sum(case.f(u) for u in g.values()) / len(g)


def sides(case, floats, slopes):
    """The sum of <slope, g> over all outer examples, as a function of them alone, and of their rivals alone."""
    everyone = examples(case, range(N), floats)
    still = [fixed(example) for example in everyone]
    own, rival = 0.0, 0.0
    for i, slope in slopes.items():
        _, weight = case.of_pool(everyone[i], everyone)
        for j in range(N):
            if j != i and weight(everyone[j]):
                weighted = weight(everyone[j]) * slope / len(slopes)
                own = own + weighted @ case.phi(everyone[i], still[j])
                rival = rival + case.excess(everyone[j]) * weighted @ case.phi(still[i], everyone[j])
    return own, rival
