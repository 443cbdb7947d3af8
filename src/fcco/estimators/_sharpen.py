"""Raising the average precision of a linear scorer: from a start, along a path of falling temperatures."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.linalg import LinAlgWarning
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from fcco.estimators._columns import column_moments, share_of_nonzeros
from fcco.estimators._exact import minimise_exact, value_and_slopes
from fcco.estimators._progress import Progress
from fcco.estimators._push import log_push
from fcco.estimators._validation import Array, refuse_huge
from fcco.functional import average_precision_loss
from fcco.functional._surrogates import resolve_surrogate

_BLUNTEST = 0.25  # the temperature at which a path begins, in units of the deviation of the start's scores
_PUSH_ALPHA = 1e-3  # penalty of the p-norm push as a start
_NEWTON_FEATURES = 150  # up to so many, Newton's method is faster than L-BFGS


class Standardised:
    """X with every column centred and in a unit of its own, as a linear map in float64; constant columns are 0.

    The unit of a column is its standard deviation. That of a column with more zeros than other values is the root mean
    square of the other values: the deviation of an indicator that is rarely 1 is so small that a penalty would hardly
    reach its coefficient. Coefficients in these units, z, do not depend on the scale of the features, and neither does
    a penalty on them.

    Parameters
    ----------
    x : array or CSR or CSC matrix of shape (n, d)
    weight : ndarray of shape (n,) or None, default None
        The weights of the rows; by default all weigh alike.

    Raises
    ------
    ValueError
        If a value is so large that variances may overflow.
    """

    def __init__(self, x: Any, weight: Array | None = None) -> None:
        self.shape = x.shape
        refuse_huge(x)
        mean, variance = column_moments(x, weight)
        filled = share_of_nonzeros(x, weight)
        rare = filled < 0.5 - 1e-9  # rounding must not decide where half of the values are 0
        square = np.where(rare, (mean**2 + variance) / np.maximum(filled, 1e-300), variance)
        self.unit = 1.0 / np.sqrt(np.where(variance > 0.0, square, np.inf))
        if sparse.issparse(x):
            # Centring would fill the zeros, so the means are subtracted from the scores instead.
            self.data, self._mean = x.astype(np.float64) @ sparse.diags_array(self.unit), mean * self.unit
        else:
            self.data, self._mean = (x - mean) * self.unit, np.zeros_like(mean)
        self._offset = mean * self.unit

    def scores(self, z: Array) -> Array:
        """Return the scores of all rows, of shape (n,)."""
        return self.data @ z - self._mean @ z

    def gradient(self, by_score: Array) -> Array:
        """Return the gradient in z, of shape (d,), from that in the scores."""
        return self.data.T @ by_score - self._mean * by_score.sum()

    def coefficients(self, z: Array) -> Array:
        """Return the coefficients of X itself, of shape (d,)."""
        return z * self.unit

    def offset(self, z: Array) -> float:
        """Return how far the scores of X itself are above those of the centred features."""
        return float(self._offset @ z)

    def standard(self, w: Array) -> Array:
        """Return z for coefficients of X; those of constant columns become 0."""
        return np.divide(w, self.unit, out=np.zeros(len(w)), where=self.unit > 0.0)


class _Change:
    """Standardised features, seen from a start: the scores of the start plus those of a change in z."""

    def __init__(self, x: Standardised, start: Array) -> None:
        self._x, self._base, self.gradient = x, x.scores(start), x.gradient

    def scores(self, change: Array) -> Array:
        return self._base + self._x.scores(change)


@dataclass(frozen=True)
class Ranking:
    """The training data of a scorer: standardised features, which rows are positive, and their weights."""

    x: Standardised
    positive: Array
    weight: Array

    @classmethod
    def of(cls, x: Any, positive: Array, weight: Array | None = None) -> Ranking:
        """Return the training data with standardised features; without weights, all rows weigh alike."""
        return cls(Standardised(x, weight), positive, np.ones(len(positive)) if weight is None else weight)

    def average_precision(self, z: Array) -> float:
        """Return scikit-learn's average precision of the scores."""
        return float(average_precision_score(self.positive, self.x.scores(z), sample_weight=self.weight))

    def deviation(self, z: Array) -> float:
        """Return the standard deviation of the scores."""
        scores = self.x.scores(z)
        centre = np.average(scores, weights=self.weight)
        return float(np.sqrt(np.average(np.square(scores - centre), weights=self.weight)))


class Stage(NamedTuple):
    """Coefficients on the way, and how well they rank the training data; the start has no temperature."""

    temperature: float | None
    z: Array
    average_precision: float


@dataclass(frozen=True)
class Sharpening:
    """How a path goes on from its start.

    Parameters
    ----------
    temperatures : sequence of float
        The temperatures, in units of the deviation of the start's scores, in the order in which they are taken.
    alpha : float
        The weight of the penalty α/2 |z - z₀|², where the scores of the start z₀ have deviation 1.
    max_iter : int, default 25
        The largest number of iterations of L-BFGS at each temperature.
    surrogate : str, default "ramp"
    margin : float, default 1.0
    tol : float, default 1e-5
        The smallest improvement of the objective that counts, relative to its size.
    n_iter_no_change : int, default 5
        The number of iterations without an improvement that end a temperature.
    verbose : int or bool, default 0
    name : str, default "AveragePrecisionClassifier"
        What progress is shown for.

    Attributes
    ----------
    curve : list of float
        The objective, with its penalty, after each iteration of the paths.
    """

    temperatures: Sequence[float]
    alpha: float
    max_iter: int = 25
    surrogate: str = "ramp"
    margin: float = 1.0
    tol: float = 1e-5
    n_iter_no_change: int = 5
    verbose: int | bool = 0
    name: str = "AveragePrecisionClassifier"
    curve: list[float] = field(default_factory=list)

    def path(self, ranking: Ranking, start: Array) -> Iterator[Stage]:
        """Yield the start, and the coefficients after each temperature."""
        yield Stage(None, start, ranking.average_precision(start))
        deviation = ranking.deviation(start)
        if not (math.isfinite(deviation) and deviation > 0.0):
            return  # all scores are equal, so there is neither a scale nor a feature to rank by
        x, change = _Change(ranking.x, start / deviation), np.zeros(len(start))
        for temperature in self.temperatures:
            change = self._minimise(ranking, x, change, temperature)
            z = start + deviation * change
            yield Stage(temperature, z, ranking.average_precision(z))

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _minimise(self, ranking: Ranking, x: _Change, change: Array, temperature: float) -> Array:
        progress = Progress(
            max_iter=self.max_iter,
            tol=self.tol,
            n_iter_no_change=self.n_iter_no_change,
            verbose=self.verbose,
            name=f"{self.name} at temperature {temperature:g}",
            warns=False,
        )
        objective = partial(
            average_precision_loss,
            target=torch.from_numpy(ranking.positive),
            weight=torch.from_numpy(ranking.weight),
            surrogate=self.surrogate,
            margin=self.margin,
            temperature=temperature,
        )
        slopes = partial(value_and_slopes, objective)
        with progress:
            change = minimise_exact(x, slopes, change, np.ones(len(change)), self.alpha, progress)
        self.curve.extend(progress.curve)
        return change


def falling_temperatures(last: float) -> list[float]:
    """Return temperatures that fall by factors of 4, from 1/4 or a little more to ``last``.

    Examples
    --------
    >>> falling_temperatures(0.0625)
    [0.25, 0.0625]
    """
    factors = max(0, math.ceil(math.log(_BLUNTEST / last, 4) - 1e-9))
    return [last * 4.0**k for k in range(factors, -1, -1)]


def as_grid(name: str, values: Any) -> list[float]:
    """Return the numbers to choose from as a list.

    Raises
    ------
    ValueError
        If ``values`` is not a sequence, or is empty.
    """
    if np.ndim(values) != 1 or len(values) == 0:
        raise ValueError(f"{name} must be a sequence of at least one number; got {values!r}")
    return list(values)


def best_stage(stages: Sequence[Stage]) -> Stage:
    """Return the stage that ranks the training data best; among equals, the first."""
    return max(stages, key=lambda stage: stage.average_precision)


def logistic_start(ranking: Ranking, C: float) -> Array:  # noqa: N803
    """Return the coefficients of scikit-learn's logistic regression on the standardised features."""
    return logistic_starts(ranking, [C])[C]


def logistic_starts(ranking: Ranking, grid: Sequence[float]) -> dict[float, Array]:
    """Return the coefficients of logistic regression for each C; each fit begins where the one before ended."""
    newton = ranking.x.shape[1] <= _NEWTON_FEATURES
    solver, tol = ("newton-cholesky", 1e-8) if newton else ("lbfgs", 1e-4)
    model = LogisticRegression(solver=solver, tol=tol, max_iter=1000, warm_start=True)
    found = {}
    with warnings.catch_warnings():
        for kind in (ConvergenceWarning, LinAlgWarning):
            warnings.simplefilter("ignore", kind)  # a start need not be a minimum
        for C in sorted(grid):  # noqa: N806
            model.set_params(C=C).fit(ranking.x.data, ranking.positive, sample_weight=ranking.weight)
            found[C] = model.coef_[0].astype(np.float64)
    return found


@torch.inference_mode(False)
@torch.enable_grad()
def push_start(ranking: Ranking, p: float = 4.0) -> Array:
    """Return the coefficients of the p-norm push with ℓ = exp on the standardised features."""
    target, weight = torch.from_numpy(ranking.positive), torch.from_numpy(ranking.weight)
    objective = partial(log_push, positive=target, p=p, ell=resolve_surrogate("exp"), weight=weight)
    progress = Progress(max_iter=200, tol=1e-5, n_iter_no_change=5, verbose=False, name="push", warns=False)
    zero, ones = np.zeros(ranking.x.shape[1]), np.ones(ranking.x.shape[1])
    slopes = partial(value_and_slopes, objective)
    return minimise_exact(ranking.x, slopes, zero, ones, _PUSH_ALPHA, progress, log=True)
