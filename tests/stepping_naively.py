"""Steps with a memory in the gradient, in NumPy, written with loops over pairs: nothing here calls the library.

Of an anchor i and a candidate j, relation 0 is that of i to itself. l is a function of z_j - z_i for every objective.
"""

import numpy as np

N = 12
POSITIVE = np.array([1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 1])
CLASSES = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2])
TIME = np.array([3.0, 1.0, 2.0, 2.0, 5.0, 4.0, 2.0, 6.0, 1.0, 3.0, 7.0, 5.0])


class Precision:
    """l = (1 + z_j - z_i)_+^2 of positives and of negatives, and f = -u_0 / (u_0 + u_1)."""

    label, rings, width, fills = POSITIVE, 2, (), False

    def __init__(self, own_term="sampled"):
        self.own_term = own_term
        self.sizes = {k: np.bincount(self.label != self.label[k], minlength=2) for k in range(N)}
        self.anchor_sizes = {k: np.array([self.label.sum() - self.label[k]]) for k in range(N)}
        self.n_anchors = self.label.sum()

    def is_anchor(self, k):
        return self.label[k] == 1

    def relation(self, i, j):
        return 0 if self.label[i] == self.label[j] else 1

    def of_anchor(self, k, i):
        """In which relation anchor i is to candidate k."""
        return 0

    def stands(self, k, means):
        """How many a fresh candidate stands for, given how many are fresh and meet an anchor on average."""
        return np.array([(self.label == self.label[k]).sum()]) / np.maximum(means[self.label[k]], 1e-30)

    def pair(self, i, j, z):
        height = max(1 + z[j] - z[i], 0)
        return height**2, 2 * height

    def f(self, u):
        return -u[0] / u.sum(), np.array([-u[1], u[0]]) / u.sum() ** 2

    def weight(self, i, j, each, pool):
        return each[self.relation(i, j)]

    def rate(self, known, fresh, there):
        """At which rate, or rates, a remembered u meets what is fresh: neither relation lags behind the other."""
        return min(known * fresh / np.maximum(there, 1))

    def without_net_force(self, rows, gradient):
        return gradient


class Cox(Precision):
    """l = e^(z_j - z_i) of those with T_j >= T_i, in one sum of events and others, and f = log.

    The floor of rows is left out: here the memory is not so large that it matters.
    """

    def __init__(self, own_term="sampled"):
        super().__init__(own_term)
        self.fills = own_term == "sampled"

    def pair(self, i, j, z):
        value = np.exp(z[j] - z[i]) * (TIME[j] >= TIME[i])
        return value, value

    def rate(self, known, fresh, there):
        return known.all() * fresh.sum() / there.sum()

    def f(self, u):
        return np.log(u.sum()), np.ones(2) / u.sum()


class NCA(Precision):
    """l = e^(-|z_j - z_i|^2) of mates and of strangers, and f = -u_0 / (u_0 + u_1) or -log of it."""

    label, rings, width = CLASSES, 1, (2,)

    def __init__(self, likelihood=False):
        super().__init__(None)
        self.likelihood, self.n_anchors = likelihood, N
        self.anchor_sizes = {k: size - [1, 0] for k, size in self.sizes.items()}

    def is_anchor(self, k):
        return True

    def of_anchor(self, k, i):
        return self.relation(k, i)

    def stands(self, k, means):
        return N / means[0]

    def pair(self, i, j, z):
        value = np.exp(-np.sum((z[j] - z[i]) ** 2))
        return value, -2 * (z[j] - z[i]) * value

    def rate(self, known, fresh, there):
        return known * fresh / np.maximum(there, 1)

    def f(self, u):
        value, slope = super().f(u)
        return (-np.log(-value), slope / -value) if self.likelihood else (value, slope)

    def weight(self, i, j, each, pool):
        there = np.bincount(self.label[pool], minlength=3)
        if self.relation(i, j) == 1 and there.all():  # then strangers stand for their own class
            return (self.label == self.label[j]).sum() / there[self.label[j]]
        return super().weight(i, j, each, pool)

    def without_net_force(self, rows, gradient):
        """Take the mean over strangers out, and put back what the class itself does to the others."""
        mates = {k: [j for j in rows if j != k and self.label[j] == self.label[k]] for k in rows}
        strangers = {k: [j for j in rows if self.label[j] != self.label[k]] for k in rows}

        def mean(values, some):
            return sum((values[j] for j in some), np.zeros(2)) / max(len(some), 1)

        y = {k: gradient[k] - mean(gradient, strangers[k]) for k in rows}
        return {k: y[k] - (y[k] + (self.sizes[k][0] - 1) * mean(y, mates[k])) / N for k in rows}


class Steps:
    """A run with a memory of so many outputs of each label, or of all, and a table that moves by gamma."""

    def __init__(self, objective, size, gamma):
        self.objective, self.size, self.gamma = objective, size, gamma
        self.table, self.means, self.count = {}, 0.0, 0
        self.memory = []  # dicts of row, output, u (None without a term), and whether the row has come again

    def counts(self, i, rows):
        return np.bincount([self.objective.relation(i, j) for j in rows], minlength=2)

    def weigh(self, rest, there):
        """Return the weight of a candidate of each relation, and which relations are known."""
        each = rest / np.maximum(there, 1)
        if self.objective.fills:
            each = each * rest.sum() / max((each * there).sum(), 1e-30)
        return each, (there > 0) | self.objective.fills

    def total(self, i, weights, own, z):
        u = np.array([own, 0.0])
        for j in weights:
            if j != i:
                u[self.objective.relation(i, j)] += weights[j] * self.objective.pair(i, j, z)[0]
        return u

    def step(self, rows, outputs):
        """Return the value and the gradients in the outputs of the rows."""
        o, z = self.objective, dict(zip(rows, outputs, strict=True))
        for entry in self.memory:
            entry["again"] |= entry["row"] in z
        old = [entry for entry in self.memory if not entry["again"]]
        z |= {entry["row"]: entry["z"] for entry in old}
        pool, own_part = list(z), np.array([1, 0])

        # The estimates of fresh anchors by the pool, and their rows.
        u, at, weights = {}, {}, {}
        for i in filter(o.is_anchor, rows):
            there, mine = self.counts(i, pool), 0 if o.own_term == "sampled" else own_part
            each, known = self.weigh(o.sizes[i] - mine, there - mine)
            own = {"sampled": each[0], "exact": 1.0, None: 0.0}[o.own_term]
            if known.all():
                weights[i] = {j: o.weight(i, j, each, pool) for j in pool}
                u[i] = self.total(i, weights[i], own, z)
                at[i] = (1 - self.gamma) * self.table.get(i, u[i]) + self.gamma * u[i]
        self.table |= at
        value = sum(o.f(at[i])[0] for i in at) / max(len(at), 1)
        slopes = {i: o.f(at[i])[1] for i in at}

        # What remembered anchors have of fresh candidates.
        for entry in old:
            i = entry["row"]
            if entry["u"] is None:
                continue
            fresh, there = self.counts(i, rows), self.counts(i, pool)
            each, known = self.weigh(o.sizes[i] - own_part, fresh)
            own = {"sampled": o.sizes[i][0] / there[0], "exact": 1.0, None: 0.0}[o.own_term]
            new, there = self.total(i, {j: each[o.relation(i, j)] for j in rows}, own, z), there - own_part
            rate = o.rate(known, fresh, there)
            entry["u"] = (1 - rate) * entry["u"] + rate * new
            slopes[i] = o.f(entry["u"])[1]

        # The anchors that every fresh example meets, and the means over batches.
        meets = {k: np.zeros_like(o.anchor_sizes[k]) for k in rows}
        for k in rows:
            for i in slopes:
                meets[k][o.of_anchor(k, i)] += i != k
        now = np.zeros((o.rings, 1 + len(meets[rows[0]])))
        now[0, 0] = len(at)
        for k in rows:
            now[o.label[k] if o.rings == 2 else 0, 1:] += meets[k] > 0
        self.count += 1
        self.means = self.means + (now - self.means) / self.count

        # Fresh examples as anchors of all candidates, and as candidates of all anchors.
        gradient = {k: np.zeros(o.width) for k in rows}
        for i in at:
            for j in pool:
                if j != i:
                    weight = weights[i][j] * slopes[i][o.relation(i, j)]
                    gradient[i] -= weight * o.pair(i, j, z)[1] / self.means[0, 0]
        for k in rows:
            stands = o.stands(k, self.means[:, 1:]) * (o.anchor_sizes[k] / np.maximum(meets[k], 1)) / o.n_anchors
            for i in slopes:
                if i != k:
                    weight = stands[o.of_anchor(k, i)] * slopes[i][o.relation(i, k)]
                    gradient[k] += weight * o.pair(i, k, z)[1]
        gradient = o.without_net_force(rows, gradient)

        self.memory += [{"row": k, "z": z[k], "u": u.get(k), "again": False} for k in rows]
        ring = {entry["row"]: o.label[entry["row"]] if o.rings == 2 else 0 for entry in self.memory}
        parts = [[entry for entry in self.memory if ring[entry["row"]] == r] for r in range(o.rings)]
        self.memory = [entry for part in parts for entry in part[-self.size :]]  # those that came again take up room
        return value, np.array([gradient[k] for k in rows])
