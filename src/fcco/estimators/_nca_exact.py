"""L-BFGS for neighbourhood components, on all pairs of rows, and how many of its iterations are affordable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike
from scipy.optimize import minimize

from fcco.estimators._nca_fit import Fit
from fcco.estimators._nca_start import Note, come_near
from fcco.estimators._progress import Stall
from fcco.estimators._validation import Array

if TYPE_CHECKING:
    from fcco.estimators._nca import NeighborhoodComponentsAnalysis

BUDGET = 8 * 10**8  # pairs that the iterations of L-BFGS compare in all, unless "exact" asks for more
PASSES = 3  # iterations of ``come_near`` at least, before those of L-BFGS
_MOST, _ALONE = 0.4, 0.6  # share of all iterations that are of ``come_near`` at most, before L-BFGS or without it
_WORTH = 4  # iterations of ``come_near`` that one of L-BFGS replaces, where there are few
FEW = 500  # rows of which a fit takes so little that several starts are tried
_SIZES = (1.0, 4.0)  # of a start by name, in units of those that ``come_near`` has


def minimise(
    fit: Fit, start: Array, max_iter: int, note: Note, reach: float = 1.0, kind: DTypeLike | None = None
) -> tuple[float, Array]:
    """Iterate L-BFGS until ``note``, told the objective and A after each iteration, says that it is settled.

    ``reach``: how far the first step is tried, relative to the start's norm in units of the features' deviations.
    ``kind``: the type of the sums over pairs; None: that of the rows.
    """
    alpha, deviation = float(fit.model.alpha), np.divide(1.0, fit.unit, out=np.zeros(len(fit.unit)), where=fit.unit > 0)
    norm = float(np.linalg.norm(start * deviation))
    # L-BFGS begins with a step of length 1, whatever the gradient.
    unit = fit.unit.astype(np.float64) * reach * (norm if norm > 0 else 1.0)

    begin = np.divide(start, unit, out=np.zeros(start.shape), where=unit > 0).ravel()

    def to_map(entries: Array) -> Array:
        # Counted from the start, so that a zero gradient leaves it as it is, to the last digit.
        return np.ascontiguousarray(start + (entries - begin).reshape(start.shape) * unit, fit.rows.x.dtype)

    def value_and_gradient(entries: Array) -> tuple[float, Array]:
        a = to_map(entries)
        share, gradient = fit.pairs.share_and_gradient(a, kind=kind)
        return fit.penalty(a) - share, ((gradient.astype(np.float64) + alpha * a) * unit).ravel()

    def after(intermediate_result: object) -> None:
        value, entries = float(intermediate_result.fun), intermediate_result.x  # type: ignore[attr-defined]
        if note(value, to_map(entries)):
            raise StopIteration

    options = {"maxiter": max_iter, "maxfun": 20 * max_iter, "ftol": 0.0, "gtol": 0.0}
    found = minimize(value_and_gradient, begin, jac=True, method="L-BFGS-B", callback=after, options=options)
    return float(found.fun), to_map(found.x)


def share_out(n: int, max_iter: int, *, exact: bool) -> tuple[int, int]:
    """Return how many iterations sample pairs of n rows, and how many of L-BFGS on all of them may follow."""
    least = min(PASSES, max_iter - 1)
    full = max_iter - least if exact else min(max_iter - least, BUDGET // n**2)
    most = max(round(_MOST * max_iter), round(_ALONE * max_iter) - _WORTH * full)
    return min(max_iter - full, max(least, most, 1)), full


def choose_start(fit: Fit, max_iter: int) -> Array:
    """The start of several that ends best."""
    warm = come_near(fit, PASSES, lambda *_: False)
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
    stall = Stall(model.n_iter_no_change)

    def settles(value: float) -> bool:
        if model.tol == 0:
            return False
        return stalls(stall, value, model.tol) or value <= model.tol - 1.0

    return settles


def stalls(stall: Stall, value: float, tol: float) -> bool:
    """Note the objective after an iteration, and return whether it has stalled; if so, the count starts anew."""
    if tol == 0 or not stall.add(value, tol * max(abs(value), 1e-12)):
        return False
    stall.restart()
    return True
