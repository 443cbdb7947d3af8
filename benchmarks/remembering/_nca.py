"""Neighbourhood components analysis of a linear map, with a memory of recent embeddings, compiled.

The embeddings z = x w have k columns. With φ = e^(-|z_i - z_j|²),

    u_i1 = sum over mates j of W φ,    u_i2 = sum over all other j of W φ,    F = -mean_i u_i1 / u_i2

and values of u are logarithms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fcco.compiled import njit
from remembering._kernels import BATCH, LARGEST, VIRTUAL, Array, _mix


class Method(NamedTuple):
    """What a step does; see :mod:`remembering._settings`."""

    mode: int
    size: int
    rate: float
    blend: float
    recomputed: bool
    refresh: float
    pairs: bool


class Memory(NamedTuple):
    """Fresh embeddings, then remembered ones, oldest first; [B + capacity] each."""

    z: Array  # [:, k]
    label: Array
    row: Array
    u: Array  # [:, 2]


@njit(nogil=True)
def _distances(first: Array, second: Array) -> Array:
    """Return the squared distances of all pairs."""
    product = np.dot(first, second.T)
    here, there = np.empty(len(first)), np.empty(len(second))
    for i in range(len(first)):
        here[i] = np.sum(first[i] * first[i])
    for j in range(len(second)):
        there[j] = np.sum(second[j] * second[j])
    for i in range(len(first)):
        for j in range(len(second)):
            product[i, j] = max(here[i] + there[j] - 2.0 * product[i, j], 0.0)
    return product


@njit(nogil=True)
def _log_sums(distances: Array, label: int, labels: Array, own: int, log_weight: float) -> tuple[float, float]:
    """Return log u of one example, whose place among the others is ``own`` or -1."""
    nearest = math.inf
    for j in range(len(distances)):
        if j != own:
            nearest = min(nearest, distances[j])
    if nearest == math.inf:
        return -math.inf, -math.inf
    mates, total = 0.0, 0.0
    for j in range(len(distances)):
        if j != own:
            term = math.exp(nearest - distances[j])
            total += term
            if labels[j] == label:
                mates += term
    of_mates = math.log(mates) - nearest + log_weight if mates > 0.0 else -math.inf
    return of_mates, math.log(total) - nearest + log_weight


@njit(nogil=True)
def _to_coefficients(
    distances: Array, label: int, labels: Array, own: int, log_weight: float, first: float, second: float, share: float
) -> None:
    """Replace the distances of one example by 2 f'(u) W φ times ``share``."""
    precision = math.exp(first - second)
    for j in range(len(distances)):
        if j == own:
            distances[j] = 0.0
            continue
        size = 2.0 * share * math.exp(log_weight - distances[j] - second)
        distances[j] = -(1.0 - precision) * size if labels[j] == label else precision * size


@njit(nogil=True)
def _add_own(pairs: Array, first: Array, second: Array, gradient: Array) -> None:
    """Subtract the sums over j of A_ij (z_i - z_j) from the gradient with respect to z_i."""
    product = np.dot(pairs, second)
    for i in range(len(first)):
        gradient[i] += product[i] - np.sum(pairs[i]) * first[i]


@njit(nogil=True)
def _add_rivals(pairs: Array, first: Array, second: Array, gradient: Array) -> None:
    """Add the sums over i of A_ij (z_i - z_j) to the gradient with respect to z_j."""
    turned = np.ascontiguousarray(pairs.T)
    product = np.dot(turned, first)
    for j in range(len(second)):
        gradient[j] += product[j] - np.sum(turned[j]) * second[j]


@njit(nogil=True)
def _estimate(method: Method, memory: Memory, distances: Array, table: Array, log_weight: float) -> None:
    """Set u of the fresh examples, through the table if there is one."""
    for i in range(len(distances)):
        labels = memory.label[: distances.shape[1]]
        first, second = _log_sums(distances[i], labels[i], labels, i, log_weight)
        if method.rate < 1.0:
            row = memory.row[i]
            if table[row, 2] > 0.0:
                first = _mix(table[row, 0], first, method.rate)
                second = _mix(table[row, 1], second, method.rate)
            table[row, 0], table[row, 1], table[row, 2] = first, second, 1.0
        memory.u[i, 0], memory.u[i, 1] = first, second


@njit(nogil=True)
def _coefficients(memory: Memory, begin: int, end: int, last: int, own: bool, log_weight: float, share: float) -> Array:
    """Return A_ij of the examples from ``begin`` to ``end`` against the first ``last`` of the pool."""
    pairs = _distances(memory.z[begin:end], memory.z[:last])
    labels = memory.label[:last]
    for i in range(begin, end):
        place = i if own else -1
        first, second = memory.u[i]
        _to_coefficients(pairs[i - begin], memory.label[i], labels, place, log_weight, first, second, share)
    return pairs


@njit(nogil=True)
def _add_batch_gradient(memory: Memory, size: int, n: int, share: float, gradient: Array) -> None:
    """Add ``share`` of the gradient of the batch, in both roles of its embeddings."""
    if size < 2:
        return
    z = memory.z[:size]
    pairs = _coefficients(memory, 0, size, size, True, math.log((n - 1.0) / (size - 1.0)), share / size)
    _add_own(pairs, z, z, gradient)
    _add_rivals(pairs, z, z, gradient)


@njit(nogil=True)
def _refresh(memory: Memory, size: int, end: int, log_weight: float, rate: float) -> None:
    """Move u of the remembered examples towards their estimates from the fresh ones."""
    distances, labels = _distances(memory.z[size:end], memory.z[:size]), memory.label[:size]
    for i in range(size, end):
        first, second = _log_sums(distances[i - size], memory.label[i], labels, -1, log_weight)
        memory.u[i, 0] = _mix(memory.u[i, 0], first, rate)
        memory.u[i, 1] = _mix(memory.u[i, 1], second, rate)


@njit(nogil=True)
def _differentiate(method: Method, memory: Memory, size: int, end: int, n: int, gradient: Array) -> None:
    """Set the gradient with respect to the fresh embeddings."""
    gradient[:] = 0.0
    if method.mode != VIRTUAL or end == size:
        _add_batch_gradient(memory, size, n, 1.0, gradient)
        return
    if method.blend < 1.0:
        _add_batch_gradient(memory, size, n, 1.0 - method.blend, gradient)
    z, held = memory.z[:size], memory.z[size:end]
    of_pool = math.log((n - 1.0) / (end - 1.0))
    _add_own(_coefficients(memory, 0, size, end, True, of_pool, method.blend / size), z, memory.z[:end], gradient)
    if method.recomputed:
        distances = _distances(held, memory.z[:end])
        for i in range(size, end):
            labels = memory.label[:end]
            memory.u[i, 0], memory.u[i, 1] = _log_sums(distances[i - size], labels[i], labels, i, of_pool)
    outers = end - size
    if method.pairs and size > 1:
        outers = end
        weight = math.log((n - 1.0) / (size - 1.0))
        _add_rivals(_coefficients(memory, 0, size, size, True, weight, method.blend / outers), z, z, gradient)
    weight = math.log((n - 1.0) / size)
    if method.refresh > 0.0:
        _refresh(memory, size, end, weight, min(method.refresh * size / end, 1.0))
    _add_rivals(_coefficients(memory, size, end, size, False, weight, method.blend / outers), held, z, gradient)


@njit(nogil=True)
def _forget(memory: Memory, size: int, end: int, limit: int, stamp: Array, clock: int) -> int:
    """Drop what exceeds the size of the memory, and the rows of this batch; returns where the pool ends now."""
    kept = size
    for j in range(max(size, end - limit), end):
        if stamp[memory.row[j]] == clock:
            continue
        if kept < j:
            memory.z[kept], memory.label[kept], memory.row[kept] = memory.z[j], memory.label[j], memory.row[j]
            memory.u[kept] = memory.u[j]
        kept += 1
    return kept


@njit(nogil=True)
def _remember(memory: Memory, size: int, end: int) -> int:
    """Append the fresh embeddings to the memory; returns where the pool ends now."""
    for i in range(size):
        j = end + i
        memory.z[j], memory.label[j], memory.row[j] = memory.z[i], memory.label[i], memory.row[i]
        memory.u[j] = memory.u[i]
    return end + size


@njit(nogil=True, cache=True)
def train(
    x: Array, label: Array, method: Method, order: Array, lr: Array, beta: float, penalty: float, w: Array
) -> tuple[Array, bool]:
    """Take a step for every row of ``order`` [steps, B]; returns the map [d, k] and whether it stayed finite."""
    steps, size = order.shape
    n, room = len(x), 2 * size + max(method.size, size)
    memory = Memory(
        np.zeros((room, w.shape[1])), np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros((room, 2))
    )
    table, stamp = np.zeros((n, 3)), np.full(n, -1)
    batch, gradient = np.zeros((size, x.shape[1])), np.zeros((size, w.shape[1]))
    w, v, end = w.copy(), np.zeros_like(w), size
    for step in range(steps):
        for i in range(size):
            row = order[step, i]
            batch[i], memory.label[i], memory.row[i], stamp[row] = x[row], label[row], row, step
        memory.z[:size] = np.dot(batch, w)
        end = _forget(memory, size, end, method.size, stamp, step)
        last = size if method.mode == BATCH else end
        distances = _distances(memory.z[:size], memory.z[:last])
        _estimate(method, memory, distances, table, math.log((n - 1.0) / max(last - 1.0, 1.0)))
        _differentiate(method, memory, size, end, n, gradient)
        if method.mode != BATCH:
            end = _remember(memory, size, end)
        slopes = np.dot(batch.T, gradient)
        v += beta * (slopes + penalty * w - v)
        w -= lr[step] * v
        if not np.max(np.abs(w)) < LARGEST:
            return w, False
    return w, True
