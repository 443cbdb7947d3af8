"""The training of :mod:`harness.excess`, by the compiled loops of :mod:`fcco.compiled`.

Small models on small batches spend their time between the operations, not in them: thousands of runs take minutes
here, and hours there. ``tests/test_what_decides.py`` holds every objective and every rule against the
losses of the library.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch

import fcco
from fcco.compiled import (
    OUTERS,
    PRECISION,
    PUSH,
    RULES,
    SURROGATES,
    WHOLE,
    ClassSampler,
    Objective,
    TableUpdate,
    new_state,
    train_linear,
)
from fcco.compiled._nca import nca_rows, nca_state, train_nca
from fcco.compiled._rules import UNGUARDED_SOX, Array
from harness import data as real_data
from harness.excess import BETA, Row, batches, task
from what_decides._cells import Choice

POWER = 4.0  # of p-norm push


class Data(NamedTuple):
    """The training set: features [n, d], a time or a label [n], and who is an event, or positive [n]."""

    x: Array
    key: Array
    flag: Array


class Problem(NamedTuple):
    """A linear model's objective, and the rows [steps, B] of both classes that its batches are made of."""

    objective: Objective
    sampler: ClassSampler
    first: Array
    second: Array
    dim: int = 1


def own_shift(weight: float, own_exact: bool) -> float:
    """By how much the own term counts more, for it to count once where the others count ``weight`` times."""
    return 1.0 / weight - 1.0 if own_exact else 0.0


def cox(data: Data, order: Array, own_exact: bool) -> Problem:
    n, size = len(data.x), order.shape[1]
    objective = Objective(
        SURROGATES["exp"], 0.0, 1.0, OUTERS["log"], own_shift=own_shift((n - 1) / (size - 1), own_exact)
    )
    sampler = ClassSampler(WHOLE, size, 0, data.flag.astype(np.float64), data.key, np.ones(2))
    return Problem(objective, sampler, order, np.zeros((len(order), 0), np.int64))


def by_class(data: Data, order: Array) -> tuple[Array, Array]:
    """The positive rows of every batch, and the negative ones."""
    flag = data.flag[order]
    return order[flag].reshape(len(order), -1), order[~flag].reshape(len(order), -1)


def average_precision(data: Data, order: Array, own_exact: bool) -> Problem:
    (first, second), n, positives = by_class(data, order), len(data.x), int(data.flag.sum())
    here, apart = first.shape[1], int(own_exact)
    weight = (positives - apart) / (here - apart)
    own = own_shift(weight, own_exact) + 0.5  # the own term is 1, and the ramp is 1/2 at 0
    objective = Objective(SURROGATES["ramp"], 0.0, 1.0, OUTERS["share"], own_shift=own)
    share = np.array([weight * here, n - positives]) / n
    sampler = ClassSampler(PRECISION, here, second.shape[1], np.ones(n), np.zeros(n), share)
    return Problem(objective, sampler, first, second, dim=2)


def p_norm_push(data: Data, order: Array, own_exact: bool) -> Problem:
    (second, first), n = by_class(data, order), len(data.x)
    objective = Objective(SURROGATES["exp"], 0.0, -1.0, OUTERS["power"], POWER)
    return Problem(
        objective,
        ClassSampler(PUSH, first.shape[1], second.shape[1], np.ones(n), np.zeros(n), np.ones(2)),
        first,
        second,
    )


LINEAR = {"cox": cox, "average_precision": average_precision, "p_norm_push": p_norm_push}
OBJECTIVES = (*LINEAR, "nca")


def descend(objective: str, data: Data, choice: Choice, order: Array, lr: Array, penalty: float, w: Array) -> Array:
    """A step for every row of ``order`` [steps, batch]; the coefficients [d, k] in the end."""
    update, rates = compile_rule(choice, len(order), len(data.x)), cast(Any, {"beta": BETA, "alpha": penalty})
    if objective == "nca":
        rows = nca_rows(data.x, np.unique(data.key, return_inverse=True)[1], data.x.mean(0))
        embedding = nca_state(np.ascontiguousarray(w.T), len(data.x), normalise=False)
        bounds = order.shape[1] * np.arange(len(order) + 1)
        train_nca(rows, update, embedding, order.ravel(), bounds, lr, **rates, weighted=False)
        return embedding.a.T
    problem = LINEAR[objective](data, order, choice.own_term["own_term"] == "exact")
    first, second = problem.first.ravel(), problem.second.ravel()
    state = new_state(w[:, 0], len(data.x), problem.dim, first, second, seed=0)
    state.stream.cursor[:] = 0  # in the order given
    train_linear(data.x, problem.objective, update, problem.sampler, state, lr, **rates)
    return state.w[:, np.newaxis]


@lru_cache
def load(objective: str, name: str) -> Data:
    """Return the data of a task."""
    if objective == "cox":
        x, key, flag = real_data.survival(name)
    else:
        x, key = (real_data.classes if objective == "nca" else real_data.binary)(name)
        flag = key == 1
    return Data(x.double().numpy(), key.double().numpy(), flag.numpy().astype(np.bool_))


def compile_rule(choice: Choice, steps: int, n: int) -> TableUpdate:
    """Return a variant in the form that the compiled code takes."""
    rule: Any = choice.rule(steps)
    if isinstance(rule, fcco.BSGD):
        return TableUpdate(RULES["bsgd"], np.ones(1), float(n))
    code = RULES["soap"] if isinstance(rule, fcco.SOAP) else RULES["sox"] if rule.safeguard else UNGUARDED_SOX
    if isinstance(rule.gamma, fcco.schedules.RunningMean | fcco.schedules.Power):
        return TableUpdate(code, np.ones(1), float(n), getattr(rule.gamma, "exponent", 1.0), float(rule.gamma.floor))
    gamma = [rule.gamma(t) if callable(rule.gamma) else rule.gamma for t in range(steps)]
    return TableUpdate(code, np.array(gamma, dtype=np.float64), float(n))


@lru_cache(maxsize=64)
def order_of(row: Row, seed: int) -> Array:
    """Return the batches of a run, [steps, batch]: those of :mod:`harness.excess`."""
    return torch.stack(batches(row, seed)).numpy()


def train(row: Row, choice: Choice, lr: float, seed: int) -> float:
    """Return the exact objective after training; infinite where it diverged."""
    problem, order = task(row.objective, row.data), order_of(row, seed)
    w = problem.start.double().numpy().reshape(problem.start.shape[0], -1).copy()
    rates = lr * (1 + np.cos(np.pi * np.arange(len(order)) / len(order))) / 2
    w = descend(row.objective, load(row.objective, row.data), choice, order, rates, problem.penalty, w)
    if not np.abs(w).max() < 1e9:
        return math.inf
    value = problem.objective(torch.from_numpy(np.ascontiguousarray(w)).reshape(problem.start.shape)).item()
    return value if math.isfinite(value) else math.inf
