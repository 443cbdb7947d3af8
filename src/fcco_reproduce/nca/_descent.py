"""Stochastic runs of NCA."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fcco.estimators._kernels import RULES, Table, _Rate
from fcco.estimators._nca_kernel import Rows, Run, mean_and_deviation
from fcco_reproduce._methods import Setting
from fcco_reproduce.datasets import Classification, Split
from fcco_reproduce.nca._data import Array, loss, start
from fcco_reproduce.nca._loop import How, train


class Trace(NamedTuple):
    """A run."""

    losses: list[float]  # on the test part, at the start and every so many steps; NaN from where it diverged
    a: Array  # in the end


def draw_batches(n: int, batch: int, steps: int, seed: int, *, replacement: bool) -> Array:
    """Rows of every step [steps, batch]: drawn one by one, or from shuffled passes, whose rests are left out.

    Raises:
        ValueError: there are fewer rows than a batch has.

    >>> draw_batches(640, 64, 10, seed=0, replacement=False).ravel().sum() == sum(range(640))
    np.True_
    """
    if n < batch:
        raise ValueError(f"a batch needs {batch} rows, there are {n}")
    generator = np.random.default_rng([seed, 1])
    if replacement:
        return generator.integers(n, size=(steps, batch))
    per_pass = n // batch
    passes = [generator.permutation(n)[: per_pass * batch] for _ in range(-(-steps // per_pass))]
    return np.concatenate(passes).reshape(-1, batch)[:steps]


def descend(split: Split, setting: Setting, *, width: int, seed: int, steps: int, every: int) -> Trace:
    """Minimise the loss of the training part, and follow that of the test part.

    The seed decides the start and the batches, which are the same for all settings that draw alike. With ``as_coded``,
    batches are drawn with replacement, copies of a row are neighbours, rows start at 0, and the gradient is that
    *through* the moving average, which has a factor gamma. Otherwise batches are of shuffled passes, rows start at
    their first estimate (MOAP's at 0), and the gradient has no such factor: the table of
    :class:`fcco.losses.NCALoss`. gamma is the rate at a row's visit; MOAP, which lets all rows decay at every step, of
    which B/n visit a row, then has the rate gamma B/n.
    """
    n, d = split.train.x.shape
    rows, run, how = _as_rows(split.train), _new_run(start(width, d, seed), n), _as_how(setting, n)
    batches = draw_batches(n, setting.batch, steps, seed, replacement=setting.as_coded)
    losses = [loss(split.test, run.a)]
    for first in range(0, steps, every):
        train(how, rows, run, batches[first : first + every], setting.lr, setting.beta, setting.decay)
        losses.append(loss(split.test, run.a))
    return Trace(losses, run.a)


def _as_rows(part: Classification) -> Rows:
    mean, _ = mean_and_deviation(part.x)
    sizes = np.bincount(part.y)
    return Rows(part.x, part.y.astype(np.int32), sizes, mean, np.ones_like(mean))


def _new_run(a: Array, n: int) -> Run:
    table = Table(np.full((n, 2), -np.inf), np.zeros(n, np.int64))
    return Run(a, np.zeros_like(a), np.zeros((0, 0), a.dtype), table, np.zeros(1, np.int64))


def _as_how(setting: Setting, n: int) -> How:
    # A gradient that goes through u has MOAP's n/B as often as u has: it cancels, and is left out of both.
    coverage = n / setting.batch if setting.rule == "moap" and not setting.as_coded else 1.0
    gamma = setting.gamma / coverage
    # The compiled code has no -inf to multiply with an age of 0.
    log_rest = math.log1p(-gamma) if gamma < 1 else -1e5
    rate = _Rate(gamma, math.log(gamma), log_rest, coverage, math.log(coverage))
    return How(RULES[setting.rule], rate, setting.as_coded, setting.gamma if setting.as_coded else 1.0)
