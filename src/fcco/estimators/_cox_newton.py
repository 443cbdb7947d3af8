"""Newton's method on the partial likelihood, in the directions that the data can tell apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from fcco.estimators._columns import Array
from fcco.estimators._cox_objective import CoxObjective
from fcco.estimators._cox_truncated import TruncatedCoxObjective

Likelihood = CoxObjective | TruncatedCoxObjective

_NOISE = 1e-13  # of a Hessian of standardised features, as a difference of two sums of order 1
_COLLINEAR = 1e-13  # share of the largest eigenvalue below which a direction is one that no risk set varies in
_FLAT = 1e-10  # curvature, relative to that at w = 0, which only vanishes if the likelihood rises for ever
_FAR = 0.1  # a step without gain that still moves somebody's log risk this far has no end
_SAME = 1e-6  # share of the range of a direction within which two rows stand alike
_NO_GAIN = 3e-7  # of a likelihood that rises for ever: with less to gain, rounding decides where to go
_HALVINGS = 40


@dataclass(frozen=True)
class Fit:
    """Where Newton's method ended."""

    w: Array
    covariance: Array  # the inverse of the Hessian of the whole log-likelihood; NaN where it has none
    curve: list[float]  # the objective at each iterate, the start among them
    converged: bool
    endless: Array | None  # the direction in which the likelihood rises for ever
    at_zero: float  # the objective at w = 0
    rank: int  # of the information matrix: how many directions the data can tell apart


def newton(objective: Likelihood, start: Array, *, max_iter: int, tol: float, report: Callable[[float], None]) -> Fit:
    """Minimise the objective by Newton's method with step-halving.

    Directions in which no risk set varies (constant or collinear features) are left alone: of all minima it is the
    one nearest to 0, in features scaled to unit information. Which these are is seen at w = 0, as they do not depend
    on w.

    Args:
        objective: on standardised features.
        start: [d], the first iterate.
        max_iter: how many steps at most; with 0, only the Hessian at the start is worked out.
        tol: stop when the next step would raise the log-likelihood, of all events together, by less (if events weigh
            less than 1 on average, as if they weighed 1), or by little where it rises for ever.
        report: is told the objective of each iterate.
    """
    # Small weights make for a small likelihood, which is not to end any sooner.
    scale = max(objective.events, float(objective.event.sum()))
    at_zero = _Point(objective, np.zeros_like(start))
    basis = whiten(at_zero.hessian)
    point = at_zero
    if start.any():
        point = _Point(objective, basis @ np.linalg.lstsq(basis, start, rcond=None)[0])
    curve: list[float] = []
    while True:
        curve.append(point.value)
        report(point.value)
        step = basis @ _solve(basis.T @ point.hessian @ basis, -(basis.T @ point.gradient))
        rise = -0.5 * scale * float(point.gradient @ step)
        converged = rise <= tol or (rise <= _NO_GAIN and _rises_for_ever(objective, step))
        if converged or len(curve) > max_iter:
            break
        following = _search(objective, point, step)
        if following is None:
            converged = True  # nothing lower can be told apart from rounding
            objective.value(point.w)
            break
        point = following
    information = basis.T @ point.hessian @ basis
    endless = _endless(objective, information, basis, step, converged)
    covariance = _covariance(information, basis, objective.events)
    return Fit(point.w, covariance, curve, converged, endless, at_zero.value, basis.shape[1])


class _Point:
    """An iterate, with the objective and its derivatives there."""

    def __init__(self, objective: Likelihood, w: Array, value: float | None = None) -> None:
        self.w, self.value = w, objective.value(w) if value is None else value
        self.gradient, self.hessian = objective.derivatives()


def whiten(hessian: Array) -> Array:
    """A basis, [d, rank], of the directions with curvature, in which the Hessian is the identity."""
    curvature = np.diag(hessian)
    size = np.where(curvature > _NOISE, 1.0 / np.sqrt(np.maximum(curvature, _NOISE)), 0.0)
    values, vectors = linalg.eigh(size[:, None] * hessian * size)
    kept = values > _COLLINEAR * max(values.max(initial=0.0), _NOISE)
    return size[:, None] * vectors[:, kept] / np.sqrt(values[kept])


def _solve(matrix: Array, right: Array) -> Array:
    try:
        return linalg.cho_solve(linalg.cho_factor(matrix), right)
    except linalg.LinAlgError:
        values, vectors = _clipped(matrix)
        return vectors @ ((vectors.T @ right) / values)


def _clipped(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues, those lost in rounding raised to it, and eigenvectors."""
    values, vectors = linalg.eigh(matrix)
    return np.maximum(values, 1e-15), vectors


def _search(objective: Likelihood, point: _Point, step: Array) -> _Point | None:
    """The end of the step, halved until the objective does not rise."""
    limit = point.value + _NOISE * max(1.0, abs(point.value))
    for halvings in range(_HALVINGS):
        w = point.w + 0.5**halvings * step
        value = objective.value(w)
        if value <= limit:
            return _Point(objective, w, value)
    return None


def _endless(objective: Likelihood, information: Array, basis: Array, step: Array, converged: bool) -> Array | None:
    """A direction in which the likelihood has a supremum only, or None.

    There the curvature falls like e^-t and so does the gradient, hence Newton's steps keep their length while what
    they gain goes to zero. Where the minimum is finite, steps and gains vanish together. Before that can be seen, a
    step is proof in itself if along it every event stands highest in its risk set.
    """
    if not information.size or objective.penalty.any():
        return None
    values, vectors = linalg.eigh(information)
    if values[0] < _FLAT:
        return basis @ vectors[:, 0]
    if converged:
        return step if np.abs(objective.rows.linear(step)).max() > _FAR else None
    return step if _rises_for_ever(objective, step) else None


def _rises_for_ever(objective: Likelihood, step: Array) -> bool:
    """Whether every event stands highest in its risk set along the step, and there is no penalty."""
    if objective.penalty.any():
        return False
    along = objective.rows.linear(step)
    return bool((objective.highest_at_risk(along) - along[objective.event]).max() <= _SAME * np.ptp(along))


def _covariance(information: Array, basis: Array, events: float) -> Array:
    d = len(basis)
    if basis.shape[1]:
        values, vectors = _clipped(information)
        half = basis @ (vectors / np.sqrt(values))
        covariance = half @ half.T / events
    else:
        covariance = np.zeros((d, d))
    if basis.shape[1] < d:
        along = basis @ np.linalg.pinv(basis)
        unknown = 1.0 - np.diag(along) > 1e-6
        covariance[unknown] = covariance[:, unknown] = np.nan
    return covariance
