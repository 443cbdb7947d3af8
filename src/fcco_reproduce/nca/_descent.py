"""Stochastic runs of NCA."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcco.compiled import TableUpdate
from fcco.compiled._nca import NCARows, NCAState, nca_rows, nca_state, train_nca
from fcco_reproduce._methods import MethodSettings
from fcco_reproduce._update import table_update
from fcco_reproduce.datasets import Classification, Split
from fcco_reproduce.nca._data import Array, loss, start


class Trace(NamedTuple):
    """A run."""

    losses: list[float]  # on the test part, at the start and every so many steps; NaN from where it diverged
    a: Array  # in the end


def draw_batches(n: int, batch: int, steps: int, seed: int, *, replacement: bool) -> Array:
    """Draw rows of every step [steps, batch]: drawn one by one, or from shuffled passes, whose rests are left out.

    Raises
    ------
    ValueError
        If there are fewer rows than a batch has.

    Examples
    --------
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


def descend(split: Split, setting: MethodSettings, *, width: int, seed: int, steps: int, every: int) -> Trace:
    """Minimise the loss of the training part, and follow that of the test part.

    The seed decides the start and the batches, which are the same for all settings that draw alike. With ``as_coded``,
    batches are drawn with replacement, copies of a row are neighbours, rows start at 0, and the gradient is that
    *through* the moving average, which has a factor gamma, except under the rule of Algorithm 1. Otherwise batches are
    of shuffled passes, rows start at their first estimate (MOAP's at 0), and the gradient has no such factor: the table
    of :class:`fcco.losses.NCALoss`. gamma is the rate at a row's visit; MOAP, which lets all rows decay at every step,
    of which B/n visit a row, then has the rate gamma B/n.
    """
    n, d = split.train.x.shape
    rows, state = _as_rows(split.train), _new_state(start(width, d, seed), n, setting)
    update, bounds = _as_update(setting, n), setting.batch * np.arange(every + 1)
    batches = draw_batches(n, setting.batch, steps, seed, replacement=setting.as_coded)
    losses = [loss(split.test, state.a)]
    for first in range(0, steps, every):
        part = batches[first : first + every]
        lr, rates = np.full(len(part), setting.lr), {"beta": setting.beta, "alpha": setting.decay}
        train_nca(rows, update, state, part.ravel(), bounds, lr, **rates, weighted=False)
        losses.append(loss(split.test, state.a))
    return Trace(losses, state.a)


def _as_rows(part: Classification) -> NCARows:
    return nca_rows(part.x, part.y, part.x.mean(0, dtype=np.float64))


def _new_state(a: Array, n: int, setting: MethodSettings) -> NCAState:
    state = nca_state(a, n, normalise=False)
    if setting.as_coded and not setting.first_visit:
        # Rows that were written, before the first step, with g = 0; the table holds logarithms.
        state.table.u[:], state.table.written[:], state.clock[:] = -np.inf, 1, 1
    return state


def _as_update(setting: MethodSettings, n: int) -> TableUpdate:
    if setting.as_coded and setting.rule != "sox":
        # A gradient that goes through u has MOAP's n/B as often as u has: it cancels, and is left out of both.
        return table_update(setting, setting.gamma, setting.batch, factor=setting.gamma)
    scale = setting.batch / n if setting.rule == "moap" else 1.0
    return table_update(setting, setting.gamma * scale, n)
