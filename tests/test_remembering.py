"""The kernels of the study of remembered outputs: against the losses of the library, and against their formulas."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from harness import data, excess
from harness.excess import BETA, Row
from harness.tasks import Variant
from remembering import _problem
from remembering._measure import Entry, choose, verdict
from remembering._problem import Problem
from remembering._settings import Setting
from remembering._train import descend, weights

RUNS = [
    (Row("cox", "diabetes", 16, 3), 0.05, "SOAP .7 sampled"),
    (Row("average_precision", "breast cancer", 32, 4), 1.0, "SOAP .7 sampled"),
    (Row("p_norm_push", "breast cancer", 32, 3), 0.02, "SOAP .5"),
    (Row("partial_auc", "breast cancer", 32, 4), 0.2, "SOAP .7"),
    (Row("nca", "digits", 128, 2), 4.0, "SOAP .9"),
]


def library_weights(row, loss_fn, lr):
    """Return the weights after the loop of ``harness.excess.train``."""
    task, plan = excess.task(row.objective, row.data), excess.batches(row, 0)
    w = nn.Parameter(task.start.clone())
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=BETA, weight_decay=task.penalty)
    for t, rows in enumerate(plan):
        optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * t / len(plan))) / 2
        optimizer.zero_grad()
        task.step(loss_fn, w, rows, torch.Generator()).backward()
        optimizer.step()
    return w.detach().double().numpy()


@pytest.mark.parametrize(("row", "lr", "rule"), RUNS, ids=[row.objective for row, _, _ in RUNS])
def test_in_batch_and_table_are_those_of_the_library(row, lr, rule):
    task = excess.task(row.objective, row.data)
    reached = []
    for name, variant in (("in-batch", "in-batch"), ("table", rule)):
        expected = library_weights(row, task.loss(Variant(variant), 10), lr)
        reached.append(weights(row, Setting(name), lr, 0))
        assert np.abs(reached[-1] - expected).max() < 1e-5  # float32 there, float64 here
    assert np.abs(reached[0] - reached[1]).max() > 1e-4


@pytest.mark.parametrize("batch", [1, 16])
def test_baseline_is_that_of_the_library(batch):
    row = Row("cox", "diabetes", batch, 2)
    _, time, event = data.survival("diabetes")
    expected = library_weights(row, fcco.losses.BaselineCoxLoss.from_targets(time, event), 0.05)
    assert np.abs(weights(row, Setting("baseline"), 0.05, 0) - expected).max() < 1e-5 * max(1, np.abs(expected).max())


def test_the_exact_objective_is_that_of_the_harness():
    for row, *_ in RUNS:
        place, task = _problem.problem(row.objective, row.data), excess.task(row.objective, row.data)
        w = torch.randn(task.start.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        assert place.at(w.numpy()) == pytest.approx(task.objective(w).item(), rel=1e-12)
        assert (place.batches(row.batch, row.passes, 3) == torch.stack(excess.batches(row, 3)).numpy()).all()


def phi(objective, own, rival):
    """The kernel of an outer example and a rival, each a triple of output, key and flag."""
    (h, key, _), (other, its_key, its_flag) = own, rival
    if objective == "nca":
        near = torch.exp(-(h - other).square().sum())
        return torch.stack([near * (key == its_key), near])
    t = (other - h)[0]
    if objective == "cox":
        return torch.exp(t)[None] * bool(its_key >= key)
    if objective == "average_precision":
        near = ((t + 4).relu() ** 2 - 2 * t.relu() ** 2 + (t - 4).relu() ** 2) / 32
        return torch.stack([near * bool(its_flag), near])
    if objective == "p_norm_push":
        return torch.exp(-t)[None] * bool(its_flag)
    return torch.exp((1 + t).relu() ** 2)[None] * (not its_flag)


def outer(objective, u):
    if objective in ("nca", "average_precision"):
        return -u[0] / u[1]
    return u[0] ** 4 if objective == "p_norm_push" else u[0].log()


def slope(objective, u):
    u = u.detach().requires_grad_()
    return torch.autograd.grad(outer(objective, u), u)[0]


class Transcript:
    """The methods of the study, line by line, with a list for each stratum of the memory."""

    def __init__(self, place, setting, batch):
        self.place, self.setting, self.objective, self.batch = place, setting, place.objective, batch
        self.memory, self.table = [], {}
        members = {True: int(place.flag.sum()), False: int((~place.flag).sum())}
        n = len(place.x)
        random = setting.natural or self.objective in ("cox", "nca")
        self.expected = {c: batch * members[c] / n if random else batch / 2 for c in members}
        self.mass = {c: 1.0 if self.objective in ("p_norm_push", "partial_auc") else members[c] for c in members}
        self.n, self.random = n, random

    def is_outer(self, example):
        return self.objective == "nca" or bool(example["flag"]) != (self.objective == "p_norm_push")

    def triple(self, example):
        return example["h"], example["key"], example["flag"]

    def estimate(self, own, pool, weight):
        """g of an example from a pool, in which its own term is a constant."""
        total = 0.0
        for other in pool:
            if other["row"] == own["row"]:
                if self.objective == "nca" or not self.is_rival(own, own):
                    continue
                total = total + weight(other) * torch.ones(
                    2 if self.objective == "average_precision" else 1, dtype=torch.float64
                )
            else:
                total = total + weight(other) * phi(self.objective, self.triple(own), self.triple(other))
        return total

    def is_rival(self, own, other):
        kinds = {"p_norm_push": bool(other["flag"]), "partial_auc": not other["flag"]}
        return kinds.get(self.objective, True)

    def pool_weight(self, pool):
        if self.objective == "nca":
            return lambda _: (self.n - 1) / (len(pool) - 1)
        counts = {c: sum(bool(e["flag"]) == c for e in pool) for c in (True, False)}
        scale = 1.0
        if self.objective == "cox":
            scale = self.n / sum(self.mass[c] for c in counts if counts[c])
        return lambda e: scale * self.mass[bool(e["flag"])] / counts[bool(e["flag"])]

    def batch_weight(self, fresh):
        if self.objective in ("cox", "nca"):
            others = self.objective == "nca"
            return lambda _: (self.n - others) / (len(fresh) - others)
        return self.pool_weight(fresh)

    def expected_weight(self, example):
        if self.objective == "nca":
            return (self.n - 1) / self.batch
        return self.mass[bool(example["flag"])] / self.expected[bool(example["flag"])]

    def loss(self, rows, h):
        """A value whose gradient with respect to h is that of the setting; the memory takes the batch in."""
        place, setting = self.place, self.setting
        fresh = [
            {"h": h[k], "key": place.key[row], "flag": place.flag[row], "row": int(row)} for k, row in enumerate(rows)
        ]
        memory = [e for e in self.memory if e["row"] not in set(map(int, rows))]
        still = [e | {"h": e["h"].detach()} for e in fresh]
        virtual, pool = setting.name.startswith("virtual"), [*still, *memory]
        usable = self.objective in ("cox", "nca") or len({bool(e["flag"]) for e in pool}) == 2
        weight = self.pool_weight(pool)
        for e in fresh:
            e["u"] = None
            if usable and self.is_outer(e):
                u = self.estimate(e | {"h": e["h"].detach()}, pool, weight).detach()
                rate = setting.rate(self.objective)
                u = (1 - rate) * self.table.get(e["row"], u) + rate * u
                e["u"] = self.table[e["row"]] = u
        own = [e for e in fresh if e["u"] is not None]
        remembered = [e for e in memory if e["u"] is not None]
        if virtual and remembered:
            value = setting.blend * self.virtual(own, fresh, pool, remembered, weight)
            if setting.blend < 1:
                value = value + (1 - setting.blend) * self.of_batch(own, fresh)
        else:
            value = self.of_batch(own, fresh)
        self.remember(memory, fresh)
        return value

    def of_batch(self, own, fresh):
        usable = self.objective in ("cox", "nca") or len({bool(e["flag"]) for e in fresh}) == 2
        if not usable or not own:
            return 0.0 * sum(e["h"].sum() for e in fresh)
        weight = self.batch_weight(fresh)
        return sum(slope(self.objective, e["u"]) @ self.estimate(e, fresh, weight) for e in own) / len(own)

    def virtual(self, own, fresh, pool, remembered, weight):
        objective = self.objective
        outers = self.batch if objective == "nca" else self.expected[objective != "p_norm_push"]
        value = 0.0 * sum(e["h"].sum() for e in fresh)
        for e in own:
            value = value + slope(objective, e["u"]) @ self.estimate(e, pool, weight) / outers
        count = len(remembered) + (len(own) if self.setting.pairs else 0)
        for e in remembered:
            if self.setting.recomputed:
                e["u"] = self.estimate(e, pool, weight).detach()
            if self.setting.refresh:
                rate = self.batch / len(pool)
                e["u"] = (1 - rate) * e["u"] + rate * self.refreshed(e, fresh, weight)
            found = self.estimate(e, fresh, self.expected_weight)
            value = value + self.trusted(e, fresh, found.detach()) * slope(objective, e["u"]) @ found / count
        for e in own if self.setting.pairs else ():
            others = [other for other in fresh if other["row"] != e["row"]]
            still = e | {"h": e["h"].detach()}
            value = value + slope(objective, e["u"]) @ self.estimate(still, others, self.other_weight(e)) / count
        return value

    def trusted(self, own, fresh, found):
        """The factor that limits an estimate from m rivals to 1 + limit (1 / sqrt(m) + 1 / m) times u."""
        terms = [phi(self.objective, self.triple(own), self.triple(e))[-1] for e in fresh]
        rivals = sum(bool(term > 0) for term in terms)
        if not self.setting.limit or rivals == 0:
            return 1.0
        return min(
            1.0, (1 + self.setting.limit * (1 / math.sqrt(rivals) + 1 / rivals)) * float(own["u"][-1] / found[-1])
        )

    def refreshed(self, own, fresh, weight):
        """g of a remembered example from the fresh ones and its own term."""
        found = self.estimate(own, fresh, self.expected_weight).detach()
        return found + weight(own) if self.objective in ("cox", "average_precision") else found

    def other_weight(self, own):
        """Weights of the other fresh examples as rivals of a fresh one."""

        def weight(other):
            c = bool(other["flag"])
            if self.objective == "nca":
                return (self.n - 1) / (self.batch - 1)
            if self.random:
                return self.mass[c] / self.expected[c] * self.batch / (self.batch - 1) * (self.n - 1) / self.n
            same = c == bool(own["flag"])
            return (self.mass[c] - same) / (self.expected[c] - same)

        return weight

    def remember(self, memory, fresh):
        memory = [*memory, *(e | {"h": e["h"].detach()} for e in fresh)]
        strata = {None} if self.objective == "nca" else {True, False}
        kept = []
        for c in strata:
            size = self.setting.size(self.batch if c is None else self.expected[c])
            kept += [e for e in memory if c is None or bool(e["flag"]) == c][-size:]
        self.memory = kept


def tiny(objective):
    """Twelve examples of three features."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(12, 3))
    flag = np.arange(12) % 3 != 0 if objective == "cox" else np.arange(12) % 2 == 0
    key = np.round(generator.exponential(size=12), 1) if objective == "cox" else np.arange(12) % 3 * 1.0
    start = generator.normal(size=(3, 2) if objective == "nca" else 3) / 2
    return Problem(objective, x, key, flag, start, lambda h: h.sum())


def orders(objective, natural):
    generator = np.random.default_rng(1)
    if natural or objective in ("cox", "nca"):
        return np.stack([generator.permutation(12)[:4] for _ in range(9)])
    return np.stack([np.r_[generator.permutation(6)[:2] * 2, generator.permutation(6)[:2] * 2 + 1] for _ in range(9)])


SETTINGS = ["virtual 3", "virtual 5", "virtual 2b", "estimate 3", "virtual 4 table .7", "virtual 4 blend .3"]
SETTINGS += ["virtual 5 recomputed", "virtual 5 refreshed", "virtual 5 pairs", "virtual 3 natural"]
SETTINGS += ["virtual 3 natural pairs", "virtual 3 refreshed natural", "virtual 5 limited"]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("objective", _problem.OBJECTIVES)
def test_memory_is_what_its_formulas_say(objective, name):
    if objective == "nca" and "limited" in name:
        pytest.skip("e^-d is at most 1")
    setting, place = Setting(name), tiny(objective)
    largest = 0.02 if objective == "p_norm_push" else 0.3
    order, rates = orders(objective, setting.natural), np.linspace(largest, largest / 3, 9)
    transcript, w = Transcript(place, setting, 4), torch.tensor(place.start)
    v = torch.zeros_like(w)
    for rows, lr in zip(order, rates, strict=True):
        w = w.detach().requires_grad_()
        h = (torch.tensor(place.x[rows]) @ w).reshape(4, -1)
        (gradient,) = torch.autograd.grad(transcript.loss(rows, h), w)
        v = v + BETA * (gradient + place.penalty * w.detach() - v)
        w = w.detach() - lr * v
    reached, finite = descend(place, setting, order, rates)
    assert finite
    assert np.abs(reached - w.numpy()).max() < 1e-10
    assert np.abs(reached - descend(place, Setting("in-batch"), order, rates)[0]).max() > 1e-5


def entry(*scores):
    return Entry(1.0, list(scores), False, 0.0, min(scores))


def test_a_setting_that_is_worse_in_one_row_is_not_chosen():
    tables = {
        Row("cox", "a", 8, 2): {"in-batch": entry(1.0, 1.1), "bold": entry(0.01, 0.02), "safe": entry(0.5, 0.6)},
        Row("cox", "b", 8, 2): {"in-batch": entry(1.0, 1.1), "bold": entry(1.5, 1.6), "safe": entry(0.5, 0.6)},
    }
    assert choose(tables, ["bold", "safe"])[0] == "safe"


def test_verdicts_are_by_paired_differences():
    base = entry(1.0, 2.0, 3.0)
    assert verdict(entry(1.1, 2.1, 3.1), base) == "worse"
    assert verdict(entry(0.9, 1.9, 2.9), base) == "better"
    assert verdict(entry(0.9, 2.1, 3.1), base) == "even"
