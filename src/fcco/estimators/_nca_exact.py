"""Neighbourhood components from all pairs of rows: the exact gradient in little memory, and L-BFGS along it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize

from fcco.estimators._compile import njit
from fcco.estimators._kernels import Array
from fcco.estimators._nca_fit import Fit, Stall, one_thread
from fcco.estimators._nca_kernel import Rows, _embed, _spread, _to_distances_from, _to_slopes, _to_weights

if TYPE_CHECKING:
    from fcco.estimators._nca import NeighborhoodComponentsAnalysis

_PAIRS = 2**20  # compared at a time
PASSES = 3  # of mini-batches, before the first iteration
FEW = 500  # rows of which a fit takes so little that several starts are tried
_SIZES = (1.0, 4.0)  # of a start by name, in units of that of mini-batches

Note = Callable[[float, Array], bool]


@njit(cache=True, nogil=True, error_model="numpy")
def _add_block(z: Array, norm: Array, label: Array, begin: int, pairs: Array, ones: Array, slope: Array) -> float:
    """Add the terms of rows begin ... begin + len(pairs) to ``slope``, the derivative in z; the sum of their p_i."""
    b, n = pairs.shape
    kind, total = z.dtype.type, 0.0
    row_sum, column_sum = np.zeros(b, z.dtype), np.zeros(n, z.dtype)
    own = z[begin : begin + b]
    np.dot(own, z.T, pairs)
    for i in range(b):
        row = begin + i
        nearest = _to_distances_from(norm[row], pairs[i], norm, row)
        mates, everyone = _to_weights(pairs[i], nearest, label, label[row], kind(1.0), ones)
        share = mates / everyone
        total += share
        of_mates, of_others = kind((1.0 - share) / everyone), kind(-share / everyone)
        row_sum[i] = _to_slopes(pairs[i], label, label[row], of_mates, of_others, column_sum)
    by_row, by_column = np.dot(pairs, z), np.dot(pairs.T, own)
    nothing = np.zeros(z.shape[1], z.dtype)
    for j in range(n):
        inside = begin <= j < begin + b
        line = z[j].copy()
        weight = column_sum[j] + (row_sum[j - begin] if inside else kind(0.0))
        _spread(weight, line, by_row[j - begin] if inside else nothing, by_column[j])
        slope[j] += line
    return total


def share_and_gradient(rows: Rows, a: Array) -> tuple[float, Array]:
    """The mean of all p_i, exactly, and the gradient of its negative in A, from some rows against all at a time."""
    n, kind = len(rows.label), a.dtype
    z, norm = np.empty((n, len(a)), kind), np.empty(n, kind)
    x = np.empty((n, a.shape[1]), kind)
    _embed(rows, a, np.arange(n), x, z, norm)
    slope, ones, total = np.zeros_like(z), np.ones(n, kind), 0.0
    height = max(1, min(n, _PAIRS // n))
    room = np.empty((height, n), kind)
    for begin in range(0, n, height):
        total += _add_block(z, norm, rows.label, begin, room[: n - begin], ones, slope)
    return total / n, slope.T @ x / n


def minimise(fit: Fit, start: Array, max_iter: int, note: Note, reach: float = 1.0) -> tuple[float, Array]:
    """Iterate L-BFGS until ``note``, told the objective and A after each iteration, says that it is settled.

    ``reach``: how far the first step is tried, relative to the start's norm in units of the features' deviations.
    """
    alpha, deviation = float(fit.model.alpha), np.divide(1.0, fit.unit, out=np.zeros(len(fit.unit)), where=fit.unit > 0)
    norm = float(np.linalg.norm(start * deviation))
    # L-BFGS begins with a step of length 1, whatever the gradient.
    unit = fit.unit.astype(np.float64) * reach * (norm if norm > 0 else 1.0)

    def to_map(entries: Array) -> Array:
        return np.ascontiguousarray(np.where(unit > 0, entries.reshape(start.shape) * unit, start), fit.rows.x.dtype)

    def value_and_gradient(entries: Array) -> tuple[float, Array]:
        a = to_map(entries)
        with one_thread:
            share, gradient = share_and_gradient(fit.rows, a)
        return fit.penalty(a) - share, ((gradient.astype(np.float64) + alpha * a) * unit).ravel()

    def after(intermediate_result: object) -> None:
        value, entries = float(intermediate_result.fun), intermediate_result.x  # type: ignore[attr-defined]
        if note(value, to_map(entries)):
            raise StopIteration

    entries = np.divide(start, unit, out=np.zeros(start.shape), where=unit > 0).ravel()
    options = {"maxiter": max_iter, "maxfun": 20 * max_iter, "ftol": 0.0, "gtol": 0.0}
    found = minimize(value_and_gradient, entries, jac=True, method="L-BFGS-B", callback=after, options=options)
    return float(found.fun), to_map(found.x)


def come_near(fit: Fit, passes: int, note: Callable[[float, Array], object]) -> Array:
    """Where a few passes of mini-batches lead, if that is lower than the start; ``note`` is told of each."""
    value = fit.at_start
    for number in range(passes):
        value = fit.iterate(number, passes)
        note(value, fit.run.a)
    return fit.run.a.copy() if value <= fit.at_start else fit.start


def choose_start(fit: Fit, max_iter: int) -> Array:
    """The start of several that ends best."""
    warm = come_near(fit, PASSES, lambda value, _: None)
    sizes = _SIZES if isinstance(fit.model.init, str) else (1.0,)
    starts = [warm, *(size * fit.start for size in sizes)]
    ends = [_end(fit, start, max_iter) for start in starts]
    # A NaN is no end: what began there would not be finite either.
    return starts[int(np.argmin(np.nan_to_num(ends, nan=np.inf)))]


def _end(fit: Fit, start: Array, max_iter: int) -> float:
    """The objective that L-BFGS reaches from a start."""
    settles = settling(fit.model)
    return minimise(fit, start, max_iter, lambda value, _: settles(value))[0]


def settling(model: NeighborhoodComponentsAnalysis) -> Callable[[float], bool]:
    """Whether the objectives that it is told have settled, or no more than tol is left to gain: none is below -1."""
    stall = Stall(model.tol, model.n_iter_no_change)
    return lambda value: stall.add(value) or (model.tol > 0 and value <= model.tol - 1.0)
