"""One training run, the same in one process and in a rank of many."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import fcco
from cases import CASES as ENGINE_CASES
from cases import make_loss
from fcco import distributed
from losses.cases import AP, CASES, DEFAULTS, NDCG, ROBUST_CONTRASTIVE, SEVERAL_CLASSES, labelled

N, FEATURES = 13, 3
SCHEDULED = [case.with_options(temperature=fcco.schedules.Cosine(final=0.2, steps=4)) for case in (AP, NDCG)]
AUTO = [
    AP.with_options(temperature="auto"),
    AP.with_options(temperature="auto", memory=4),
    replace(AP, data=labelled).with_options(temperature="auto", surrogate="sigmoid"),
]
SHARED = (fcco.losses.AUCLoss, fcco.losses.GroupDROLoss, fcco.losses.BaselineCoxLoss)
LEARNING = ROBUST_CONTRASTIVE.with_options(lr=0.01)
NO_MOAP = [case for case in DEFAULTS if case.loss in SHARED]


class Arguments(torch.nn.Module):
    """The differentiable arguments of a loss, as linear functions of features."""

    def __init__(self, floats, dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.offsets = [x.detach().to(dtype) for x in floats]
        draw = partial(torch.randn, generator=generator, dtype=torch.float64)
        self.features = (0.5 * draw(len(floats[0]), FEATURES)).to(dtype)
        weights = [(0.1 * draw(FEATURES, *x.shape[1:])).to(dtype) for x in floats]
        self.weights = torch.nn.ParameterList(weights)

    def forward(self, rows):
        made = (torch.tensordot(self.features[rows], w, 1) for w in self.weights)
        return [offset[rows] + x for offset, x in zip(self.offsets, made, strict=True)]


def batches(steps, world, n=N, size=10, seed=0):
    """For every step, the rows of every rank: repeated ones, uneven numbers of them, and ranks without any."""
    rng = np.random.default_rng(seed)
    for step in range(steps):
        rows = rng.integers(0, n, size=size - 3 * (step % 5 == 4))
        rows[:3] = rng.permutation(n)[:3]
        cuts = np.sort(rng.integers(0, len(rows) + 1, size=world - 1))
        yield [torch.as_tensor(part) for part in np.split(rows, cuts)]


def train(parts, loss_fn, model, step_of):
    """Weights and values after the steps of ``parts``, whose rows are all this process's."""
    optimizer = fcco.optim.MovingAverageSGD(model.parameters(), lr=0.01, beta=0.5)
    values = []
    for rows in parts:
        optimizer.zero_grad()
        loss = step_of(loss_fn, model, rows)
        loss.backward()
        optimizer.step()
        values.append(loss.detach())
    return [w.detach().clone() for w in model.parameters()], torch.stack(values)


def wrapped(model, rank):
    return model if rank is None else DistributedDataParallel(model)


def own_parts(rank, world, steps):
    every = batches(steps, world)
    return [torch.cat(parts) if rank is None else parts[rank] for parts in every]


def train_loss(rank, world, case, rule, dtype, steps, sharded=False):
    """A loss of the contract tests; ``rank`` None: in one process, with the batches of all ``world`` ranks."""
    floats, others = case.population(N, scale=0.3)
    loss_fn = case.make((floats, others), rule)
    if dtype is torch.float64:
        loss_fn.double()
    distributed.configure(loss_fn, sharded=sharded)

    def step_of(loss_fn, model, rows):
        return loss_fn(*model(rows), *(x[rows] for x in others), *([rows] if case.indexed else []))

    weights, values = train(own_parts(rank, world, steps), loss_fn, wrapped(Arguments(floats, dtype), rank), step_of)
    return weights, values, distributed.full_state_dict(loss_fn)


def train_engine(rank, world, case, steps, sharded=False):
    """CoupledLoss itself, with a rule of the contract tests."""
    rule, log, dim = case
    loss_fn = distributed.configure(make_loss(case, n=N, n_outer=11).double(), sharded=sharded)
    floats = [torch.zeros(N, dtype=torch.float64) if dim == 1 else torch.zeros(N, dim, dtype=torch.float64)]

    def step_of(loss_fn, model, rows):
        (inner,) = model(torch.arange(N) if rule.all_rows else rows)
        inner = 0.5 + inner.sigmoid()
        inner = inner.log() if log else inner
        return loss_fn(inner, rows)

    model = wrapped(Arguments(floats, torch.float64), rank)
    weights, values = train(own_parts(rank, world, steps), loss_fn, model, step_of)
    return weights, values, distributed.full_state_dict(loss_fn)


def each_rule_once(cases):
    """Of every kind of rule, one number in plain space and two in log space."""
    kept = {}
    for case in cases:
        rule, log, dim = case
        if dim == (2 if log else 1):
            kept.setdefault((type(rule), log), case)
    return list(kept.values())


def plans(world):
    """Every run by name: (function, arguments, whether the table is sharded: each of the two, if it can be)."""
    runs, both, two = {}, (False, True), world == 2
    for case in DEFAULTS:
        runs[f"{case}-{torch.float64}"] = (train_loss, (case, None, torch.float64, 6 if two else 4), both)
    if two:  # Rules, precision and options change formulas, and neither what is sent nor by how many.
        for case in DEFAULTS:
            for rule in (fcco.SOX(0.3), *([] if case in NO_MOAP else [fcco.MOAP(0.2)])):
                runs[f"{case}-{rule}"] = (train_loss, (case, rule, torch.float64, 6), both)
            runs[f"{case}-{torch.float32}"] = (train_loss, (case, None, torch.float32, 6), (True,))
        for case in [*CASES, *SEVERAL_CLASSES, *SCHEDULED, *AUTO, LEARNING]:
            runs[f"{case}-{fcco.SOAP(0.5)}"] = (train_loss, (case, fcco.SOAP(0.5), torch.float64, 4), (True,))
    for case in ENGINE_CASES if two else each_rule_once(ENGINE_CASES):
        runs[f"{case}"] = (train_engine, (case, 5 if two else 3), (False,) if case[0].all_rows else both)
    return runs
