"""The training of :mod:`harness.excess`, compiled for the four objectives of the study.

Small models on small batches spend their time between the operations, not in them: thousands of runs take minutes
here, and hours there. ``tests/test_what_decides.py`` holds every objective and every rule against the
losses of the library.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

import fcco
from harness import data as real_data
from harness.excess import BETA, Row, batches, task
from what_decides._cells import Choice

Array = NDArray[Any]

OBJECTIVES = ("cox", "nca", "average_precision", "p_norm_push")
COX, NCA, PRECISION, PUSH = range(4)
BSGD, SOAP, SOX, LETTER = range(4)
LOWEST = math.log(float(torch.finfo(torch.float32).tiny))  # as in fcco.SOX
POWER = 4.0  # of p-norm push


class Data(NamedTuple):
    """The training set: features [n, d], a time or a label [n], and who is an event, or positive [n]."""

    kind: int
    x: Array
    key: Array
    flag: Array


class Rule(NamedTuple):
    """How the table is updated: ``gamma`` has a rate for every step, unless it is visits ** -exponent, or the floor."""

    code: int
    gamma: Array
    exponent: float
    floor: float
    own_exact: bool


class Table(NamedTuple):
    """Running estimates [n, 2] and visits [n]."""

    u: Array
    visits: Array


@njit(cache=True, error_model="numpy")
def _read_and_write(rule: Rule, log: bool, t: int, table: Table, row: int, estimate: Array, at: Array) -> None:
    """Update a row of the table; ``at`` gets the place where f is differentiated."""
    gamma = rule.gamma[t]
    if rule.exponent > 0:
        gamma = max((table.visits[row] + 1.0) ** -rule.exponent, rule.floor)
    for k in range(len(estimate)):
        new = estimate[k]
        old = new if table.visits[row] == 0 else table.u[row, k]
        mixed = new
        if rule.code != BSGD and gamma < 1.0:
            if log:
                first, second = old + math.log1p(-gamma), new + math.log(gamma)
                high = max(first, second)
                mixed = high if high == -math.inf else high + math.log1p(math.exp(min(first, second) - high))
            else:
                mixed = old + gamma * (new - old)
        at[k] = mixed
        if rule.code >= SOX:
            at[k] = max(old, new + (math.log(gamma) if rule.code == SOX else LOWEST)) if log else old
        table.u[row, k] = mixed
    table.visits[row] += 1


@njit(cache=True, error_model="numpy")
def _cox(rule: Rule, t: int, table: Table, rows: Array, data: Data, h: Array, slope: Array) -> None:
    size, events = len(rows), 0
    for row in rows:
        events += data.flag[row]
    shares, peak = np.empty(size), h.max()
    estimate, at = np.empty(1), np.empty(1)
    others = (len(data.x) - 1.0) / (size - 1.0) if rule.own_exact else 1.0
    for i in range(size):
        if not data.flag[rows[i]]:
            continue
        total = 0.0
        for j in range(size):
            at_risk = data.key[rows[j]] >= data.key[rows[i]]
            shares[j] = (1.0 if i == j else others) * math.exp(h[j] - peak) if at_risk else 0.0
            total += shares[j]
        estimate[0] = math.log(total) + peak - h[i]
        _read_and_write(rule, True, t, table, rows[i], estimate, at)
        pull = math.exp(estimate[0] - at[0]) / events
        for j in range(size):
            slope[j] += pull * shares[j] / total
        slope[i] -= pull


@njit(cache=True, error_model="numpy")
def _precision(rule: Rule, t: int, table: Table, rows: Array, data: Data, h: Array, slope: Array) -> None:
    size, n, positives, here = len(rows), len(data.x), data.flag.sum(), 0
    for row in rows:
        here += data.flag[row]
    apart = 1 if rule.own_exact else 0
    weight, weight_other = (positives - apart) / (here - apart), (n - positives) / (size - here)
    estimate, at = np.empty(2), np.empty(2)
    for i in range(size):
        if not data.flag[rows[i]]:
            continue
        same, other = apart * (1.0 - weight), 0.0
        for j in range(size):
            height = max(1.0 + h[j] - h[i], 0.0)
            if data.flag[rows[j]]:
                same += weight * height * height
            else:
                other += weight_other * height * height
        estimate[0], estimate[1] = same / n, (same + other) / n
        _read_and_write(rule, False, t, table, rows[i], estimate, at)
        in_all = at[0] / (at[1] * at[1]) / (here * n)
        in_same = in_all - 1.0 / at[1] / (here * n)
        for j in range(size):
            pull = weight * in_same if data.flag[rows[j]] else weight_other * in_all
            flow = pull * 2.0 * max(1.0 + h[j] - h[i], 0.0)
            slope[j] += flow
            slope[i] -= flow


@njit(cache=True, error_model="numpy")
def _push(rule: Rule, t: int, table: Table, rows: Array, data: Data, h: Array, slope: Array) -> None:
    size, peak, total, positives = len(rows), -h.min(), 0.0, 0
    for j in range(size):
        if data.flag[rows[j]]:
            positives += 1
            total += math.exp(-h[j] - peak)
    log_mean, pulled = math.log(total / positives) + peak, 0.0
    estimate, at = np.empty(1), np.empty(1)
    for i in range(size):
        if not data.flag[rows[i]]:
            estimate[0] = h[i] + log_mean
            _read_and_write(rule, True, t, table, rows[i], estimate, at)
            slope[i] = POWER * math.exp((POWER - 1.0) * at[0] + estimate[0]) / (size - positives)
            pulled += slope[i]
    for j in range(size):
        if data.flag[rows[j]]:
            slope[j] = -pulled * math.exp(-h[j] - peak) / total


@njit(cache=True, error_model="numpy")
def _nca(rule: Rule, t: int, table: Table, rows: Array, data: Data, z: Array, slope: Array) -> None:
    size, width = z.shape
    shares, estimate, at = np.empty(size), np.empty(2), np.empty(2)
    for i in range(size):
        nearest = math.inf
        for j in range(size):
            distance = 0.0
            for k in range(width):
                distance += (z[i, k] - z[j, k]) ** 2
            shares[j] = distance if j != i else math.inf
            nearest = min(nearest, shares[j])
        mates = everyone = 0.0
        for j in range(size):
            shares[j] = math.exp(nearest - shares[j])
            everyone += shares[j]
            mates += shares[j] if data.key[rows[j]] == data.key[rows[i]] else 0.0
        estimate[0] = math.log(mates) - nearest if mates > 0.0 else -math.inf
        estimate[1] = math.log(everyone) - nearest
        _read_and_write(rule, True, t, table, rows[i], estimate, at)
        of_mates = -math.exp(estimate[0] - at[1]) / max(mates, 1e-300) / size
        of_all = math.exp(at[0] - at[1] + estimate[1] - at[1]) / everyone / size
        for j in range(size):
            pull = of_all + (of_mates if data.key[rows[j]] == data.key[rows[i]] else 0.0)
            for k in range(width):
                flow = -2.0 * pull * shares[j] * (z[i, k] - z[j, k])
                slope[i, k] += flow
                slope[j, k] -= flow


@njit(cache=True, error_model="numpy")
def descend(data: Data, rule: Rule, order: Array, lr: Array, beta: float, penalty: float, w: Array) -> None:
    """A step for every row of ``order`` [steps, batch], along the moving average of the gradient; w [d, k] in place."""
    table = Table(np.zeros((len(data.x), 2)), np.zeros(len(data.x)))
    average = np.zeros_like(w)
    for t in range(len(order)):
        x = data.x[order[t]]
        z = x @ w
        slope = np.zeros_like(z)
        if data.kind == COX:
            _cox(rule, t, table, order[t], data, z[:, 0], slope[:, 0])
        elif data.kind == PRECISION:
            _precision(rule, t, table, order[t], data, z[:, 0], slope[:, 0])
        elif data.kind == PUSH:
            _push(rule, t, table, order[t], data, z[:, 0], slope[:, 0])
        else:
            _nca(rule, t, table, order[t], data, z, slope)
        average += beta * (np.ascontiguousarray(x.T) @ slope + penalty * w - average)
        w -= lr[t] * average
        if not np.abs(w).max() < 1e9:
            return


@lru_cache
def load(objective: str, name: str) -> Data:
    """The data of a task."""
    if objective == "cox":
        x, key, flag = real_data.survival(name)
    else:
        x, key = (real_data.classes if objective == "nca" else real_data.binary)(name)
        flag = key == 1
    kind = OBJECTIVES.index(objective)
    return Data(kind, x.double().numpy(), key.double().numpy(), flag.numpy().astype(np.bool_))


def compile_rule(choice: Choice, steps: int) -> Rule:
    """Return a variant in the form that the compiled code takes."""
    rule: Any = choice.rule(steps)
    own_exact = choice.own_term["own_term"] == "exact"
    if isinstance(rule, fcco.BSGD):
        return Rule(BSGD, np.ones(steps), 0.0, 0.0, own_exact)
    code = SOAP if isinstance(rule, fcco.SOAP) else SOX if rule.safeguard else LETTER
    if isinstance(rule.gamma, fcco.schedules.RunningMean | fcco.schedules.Power):
        return Rule(code, np.ones(steps), getattr(rule.gamma, "exponent", 1.0), rule.gamma.floor, own_exact)
    gamma = [rule.gamma(t) if callable(rule.gamma) else rule.gamma for t in range(steps)]
    return Rule(code, np.array(gamma, dtype=np.float64), 0.0, 0.0, own_exact)


@lru_cache(maxsize=64)
def order_of(row: Row, seed: int) -> Array:
    """The batches of a run, [steps, batch]: those of :mod:`harness.excess`."""
    return torch.stack(batches(row, seed)).numpy()


def train(row: Row, choice: Choice, lr: float, seed: int) -> float:
    """The exact objective after training; infinite where it diverged."""
    problem, order = task(row.objective, row.data), order_of(row, seed)
    w = problem.start.double().numpy().reshape(problem.start.shape[0], -1).copy()
    rates = lr * (1 + np.cos(np.pi * np.arange(len(order)) / len(order))) / 2
    rule = compile_rule(choice, len(order))
    descend(load(row.objective, row.data), rule, order, rates, BETA, problem.penalty, w)
    if not np.abs(w).max() < 1e9:
        return math.inf
    value = problem.objective(torch.from_numpy(w).reshape(problem.start.shape)).item()
    return value if math.isfinite(value) else math.inf
