"""Stochastic runs on p-norm push, by the compiled loop of :mod:`fcco.compiled`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fcco.compiled import (
    OUTERS,
    PUSH,
    SURROGATES,
    ClassSampler,
    LinearState,
    Objective,
    TableUpdate,
    new_state,
    train_linear,
)
from fcco.compiled._rules import Array
from fcco_reproduce._methods import MethodSettings
from fcco_reproduce._update import table_update
from fcco_reproduce.datasets import Split
from fcco_reproduce.push._data import P, penalty, push_loss


class Batches(NamedTuple):
    """Rows of all steps, one batch after the other."""

    outer: Array
    inner: Array


@dataclass(frozen=True)
class Trace:
    """The measurements of a run.

    Parameters
    ----------
    losses : list of float
        On the test part, after the iterations 0, ``every``, 2 ``every``...
    train_loss : float
        On the training part, at the end.
    w : Array
        The weights at the end.
    seconds : float
        Of the processor, for the steps alone.
    """

    losses: list[float]
    train_loss: float
    w: Array
    seconds: float


def draw_batches(y: Array, size: int, steps: int, seed: int) -> Batches:
    """Draw the batches that the authors' code draws for a seed, but for outer rows that stand twice in one.

    They draw with replacement: in one step of seven on ijcnn1, and of twenty on covtype, an outer row stands twice.
    Its second place is drawn again, until all rows of the batch differ.

    Raises
    ------
    ValueError
        If class 0, the outer one, has fewer rows than a batch.
    """
    first, second = (np.flatnonzero(y == label) for label in (0, 1))
    if len(first) < size:
        raise ValueError(f"a batch needs {size} rows of class 0, there are {len(first)}")
    random, places = np.random.RandomState(seed), np.empty((2, steps, size), np.int64)
    for step in range(steps):
        places[1, step] = random.choice(len(second), size)
        places[0, step] = random.choice(len(first), size)
    _make_distinct(places[0], len(first), np.random.default_rng(seed))
    return Batches(first[places[0]].ravel(), second[places[1]].ravel())


def _make_distinct(batches: Array, n: int, generator: np.random.Generator) -> None:
    """Draw second places of a number in its batch again, below n, until there are none."""
    while True:
        order = np.argsort(batches, axis=1, kind="stable")
        in_order = np.take_along_axis(batches, order, axis=1)
        step, place = np.nonzero(in_order[:, 1:] == in_order[:, :-1])
        if not len(step):
            return
        batches[step, order[step, place + 1]] = generator.integers(n, size=len(step))


def start(y: Array, width: int, setting: MethodSettings, batches: Batches, seed: int) -> LinearState:
    """A run that has taken no step; with ``as_coded``, at the weights that the authors' code draws for the seed."""
    w = torch.zeros(width)
    if setting.as_coded:
        w.uniform_(-1.0, 1.0, generator=torch.Generator().manual_seed(seed))
    run = new_state(w.numpy(), len(y), 1, *batches, seed)
    # The loop goes through the rows in the order given, and would shuffle them at the end of a pass only.
    run.stream.cursor[:] = 0
    if setting.as_coded and not setting.first_visit:
        # Rows that were written, before the first step, with g = 0; the table holds logarithms.
        run.table.u[:], run.table.written[:], run.clock[:] = -np.inf, 1, 1
    return run


def make_update(setting: MethodSettings, n_outer: int) -> TableUpdate:
    """Return the rule of the setting; MOAP scales by n_outer / B1, and as coded not at all."""
    return table_update(setting, setting.gamma, setting.batch if setting.as_coded else n_outer)


def descend(split: Split, setting: MethodSettings, batches: Batches, *, seed: int, every: int) -> Trace:
    """Train on all of ``batches`` with a constant step, and measure on the test part."""
    x, y = np.require(split.train.x, requirements=["C", "W"]), split.train.y
    # g_i = mean_j exp(h_i - h_j) and f = g^p, in log space.
    objective = Objective(SURROGATES["exp"], 0.0, -1.0, OUTERS["power"], P)
    update = make_update(setting, n_outer=int((y == 0).sum()))
    sampler = ClassSampler(PUSH, setting.batch, setting.batch, np.ones(len(y)), np.zeros(len(y)), np.ones(2))
    run = start(y, x.shape[1], setting, batches, seed)
    losses, seconds, done = [], 0.0, 0

    def advance(count: int) -> None:
        rates = np.full(count, setting.lr)
        train_linear(x, objective, update, sampler, run, rates, beta=setting.beta, alpha=setting.decay)

    advance(0)  # compiles, where that is still to be done
    for last in range(0, len(batches.outer) // setting.batch, every):
        begun = time.process_time()
        advance(last + 1 - done)
        seconds, done = seconds + time.process_time() - begun, last + 1
        losses.append(push_loss(split.test, run.w))
    return Trace(losses, push_loss(split.train, run.w), run.w, seconds)


def repeat(
    split: Split, setting: MethodSettings, *, decay: float, seeds: int, steps: int, every: int, first: int = 0
) -> dict[str, list]:
    """Runs of as many seeds, from ``first`` on: test losses [seeds, points], objectives and seconds, drawing included.

    ``decay`` is that of the objective, whatever that of the runs. None stands for a number that is not finite.
    """
    losses, objectives, seconds = [], [], []
    for seed in range(first, first + seeds):
        begun = time.process_time()
        batches = draw_batches(split.train.y, setting.batch, steps, seed)
        drawing = time.process_time() - begun
        trace = descend(split, setting, batches, seed=seed, every=every)
        losses.append([_finite_or_none(loss) for loss in trace.losses])
        objectives.append(_finite_or_none(trace.train_loss + penalty(trace.w, decay)))
        seconds.append(drawing + trace.seconds)
    return {"losses": losses, "objectives": objectives, "seconds": seconds}


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
