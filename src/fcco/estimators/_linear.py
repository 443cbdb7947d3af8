"""What the linear rankers share: their parameters, and fitting coefficients to a pairwise objective."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fcco.compiled import RULES, TableUpdate, compiling, new_update
from fcco.estimators._columns import Centred, column_moments
from fcco.estimators._descent import Descent, StepPlan, Steps
from fcco.estimators._exact import minimise_exact, value_and_slopes
from fcco.estimators._progress import LossCurveMixin, Progress, warn_user
from fcco.estimators._validation import (
    Array,
    Method,
    check_parameters,
    refuse_huge,
    refuse_other_features,
    refuse_sparse,
)

Ranker = TypeVar("Ranker")
PairSurrogate = Literal["squared_hinge", "hinge", "logistic", "sigmoid", "exp", "ramp"]
RankSurrogate = Literal["squared_hinge", "hinge", "logistic", "sigmoid", "ramp"]

_FAR = 100.0  # spreads from 0: columns there are centred before a descent, which costs a copy, as scores lose digits
SORTABLE = ("ramp", "squared_hinge", "hinge", "exp")
WATCHED = 500  # rows of a class, at least, by which the objective is tracked where it takes all pairs
_NO_EFFECT = 1e-8  # variance of features, relative to alpha, below which the penalty decides alone
_PAIRS_OF_STEP = 0.3  # pairs that may be looked at to track the objective, as a share of those of a pass


@dataclass(frozen=True)
class Task:
    """A pairwise objective of the scores of training rows.

    ``objective`` maps the scores of ``watched`` rows to the exact objective; where that is all rows, it is what
    method="exact" minimises. With ``log`` it gives the objective's logarithm.
    """

    x: Any  # [n, d], an array, or with method="exact" a CSR or CSC matrix
    plan: StepPlan
    objective: Callable[[Tensor], Tensor]
    watched: Array | None = None  # None: all rows
    log: bool = False
    floor: float = -math.inf  # where to end, if the objective or its logarithm may fall for ever
    size: float = 1.0  # of the objective at w = 0
    weight: Array | None = None  # [n], of the rows; None: all alike
    base: Array | None = None  # [n], scores that those of the coefficients are added to

    def value(self, w: Array, alpha: float) -> float:
        """The objective at w, with its penalty."""
        rows = slice(None) if self.watched is None else self.watched
        with np.errstate(all="ignore"):  # a step too large may lead anywhere
            scores, penalty = self.x[rows] @ w.astype(self.x.dtype), 0.5 * alpha * float(w @ w)
        if self.base is not None:
            scores = scores + self.base[rows]
        if not np.isfinite(scores).all():
            return math.inf
        value = float(self.objective(torch.from_numpy(scores).double()))
        return (_exp(value) if self.log else value) + penalty

    def slopes(self, scores: Array) -> tuple[float, Array]:
        """The objective (its logarithm) of all scores, and its gradient in them."""
        return value_and_slopes(self.objective, scores)


_SHARED = {
    "{the methods}": """\
    method="exact" minimises the objective by L-BFGS, and is the default because it is both faster and better than the
    others. It compiles nothing, and also takes sparse X. The other methods are stochastic. A step costs O(d), whatever
    n is. A pass over the data without a gain halves the step size, and a pass that makes the objective worse is taken
    back. The first fit with a stochastic method compiles its steps, once, for a few seconds; later processes find them
    on disk. There is no ``partial_fit``, because the stochastic methods keep an estimate for each training row.""",
    "{shared parameters}": """\
    method : {"exact", "bsgd", "soap", "moap", "sox"}, default="exact"
        L-BFGS on the exact objective, or the update rule of stochastic steps; see :data:`fcco.METHODS`.
    alpha : float, default=1e-3
        Weight of the penalty. Without one (0) there may be no finite optimum, and the fit then warns.
    learning_rate : float or "auto", default="auto"
        Step size of the stochastic methods, in units of each feature's deviation. "auto" takes the power of 4, from 16
        down, that comes furthest in a trial of 300 steps. Before the fit ends, it tries larger ones again.
    gamma : float
        Rate of the table's moving average, in (0, 1].
    beta : float, default=0.1
        Rate of the gradient's moving average, in (0, 1].
    max_iter : int, default=1000
        Largest number of iterations, or of passes over the data.
    tol : float, default=1e-5
        Smallest improvement of the objective that counts, relative to its size. With 0 the fit never stops early.
    n_iter_no_change : int, default=5
        Number of iterations without an improvement that end the fit.
    warm_start : bool, default=False
        Whether to begin at the coefficients of the last fit, if the objective is lower there than at 0.
    random_state : int, RandomState or None, default=None
        Seed of the batches.
    verbose : int or bool, default=0
        Whether to show a progress bar with the objective, as ``loss_curve_`` has it, and to print how long anything
        took to compile.""",
    "{shared attributes}": """\
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, if X has them.""",
}


def rows_to_watch(plan: StepPlan) -> int:
    """Return how many rows of a class to track an objective of all pairs by, at a small part of the cost of a pass."""
    pairs = plan.count * plan.sampler.outer * plan.sampler.inner
    return max(WATCHED, math.isqrt(int(_PAIRS_OF_STEP * pairs)))


def share_docs(ranker: type[Ranker]) -> type[Ranker]:
    """Fill in the parts of a docstring that all linear rankers share."""
    for marker, text in _SHARED.items():
        ranker.__doc__ = (ranker.__doc__ or "").replace(f"    {marker}", text)
    return ranker


def store_parameters(model: Any, values: dict[str, Any]) -> None:
    """Set the parameters of a constructor, given as its ``locals()``, as attributes, as scikit-learn expects them."""
    for name, value in values.items():
        if name != "self":
            setattr(model, name, value)


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf


class LinearRanker(LossCurveMixin, BaseEstimator):
    """Base of the linear rankers: scores are X w, and w minimises a pairwise objective plus alpha/2 |w|²."""

    surrogate: PairSurrogate
    margin: float
    method: Method
    alpha: float
    learning_rate: float | Literal["auto"]
    gamma: float
    beta: float
    outer_batch: int
    inner_batch: int
    max_iter: int
    tol: float
    n_iter_no_change: int
    warm_start: bool
    random_state: Any
    verbose: int | bool

    coef_: Array
    n_iter_: int
    _weighted_methods: tuple[str, ...] = ()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.method == "exact"
        return tags

    def _check_parameters(self) -> None:
        check_parameters(self, outer_batch=1, inner_batch=1)
        if not isinstance(self.tol, Real) or math.isnan(self.tol):
            raise ValueError(f"tol must be a number; got {self.tol!r}")

    def _validate(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:  # noqa: N803
        """X, dense or with method="exact" sparse, and y, as scikit-learn checks them."""
        exact = self.method == "exact"
        if not exact:
            refuse_sparse(X, self.method)
        if self.warm_start and hasattr(self, "coef_"):
            refuse_other_features(X, self.coef_.size)
        kinds = ("csr", "csc") if exact else False
        X, y = validate_data(self, X, y, accept_sparse=kinds, dtype=[np.float64, np.float32], order="C", **options)  # noqa: N806
        refuse_huge(X)
        return X, y

    def _fit_task(self, task: Task) -> None:
        """Set the coefficients, and what is told of the way there."""
        w = np.zeros(task.x.shape[1])
        if self.warm_start and hasattr(self, "coef_"):
            before = self.coef_.ravel().astype(np.float64)
            # Of features in other units, they may be far worse than nothing.
            w = before if task.value(before, self.alpha) <= task.value(w, self.alpha) else w
        self._warn_of_tiny_features(task)
        name = type(self).__name__
        progress = Progress.of(self, name, float(self.tol))
        with compiling(name, self.verbose), progress:
            w = self._minimise(task, w, progress)
        self.coef_ = w.astype(task.x.dtype)
        self.loss_curve_, self.n_iter_ = progress.curve, len(progress.curve)

    def _warn_of_tiny_features(self, task: Task) -> None:
        """Warn if features are so small that the penalty keeps the scores of all rows alike."""
        variance = float(column_moments(task.x, task.weight)[1].max(initial=0.0))
        if 0.0 < variance < _NO_EFFECT * self.alpha:
            warn_user(
                f"{type(self).__name__}: the features vary so little, by a standard deviation of {variance**0.5:.2g} "
                f"or less, that alpha={self.alpha:g} keeps all scores at 0; scale the features, as by StandardScaler",
                UserWarning,
            )

    def _minimise(self, task: Task, w: Array, progress: Progress) -> Array:
        alpha = float(self.alpha)
        mean, variance = column_moments(task.x, task.weight)
        # In these units every coefficient meets a curvature of about one, of the objective and the penalty together.
        scale = variance + alpha / task.size
        scale = 1.0 / np.where(scale > 0.0, scale, 1.0)
        if self.method == "exact":
            x = Centred(task.x, mean, variance)
            return minimise_exact(x, task.slopes, w, scale, alpha, progress, log=task.log, floor=task.floor)
        if (far := np.abs(mean) > _FAR * np.sqrt(variance)).any():
            task = replace(task, x=(task.x - np.where(far, mean, 0.0)).astype(task.x.dtype))
        count, features = len(w), task.x
        if task.base is not None:
            # The base is one more feature, whose coefficient stays 1, and which the penalty leaves out.
            features, w, scale = np.column_stack([features, task.base]), np.append(w, 1.0), np.append(scale, 0.0)

        def value(w: Array) -> float:
            return task.value(w[:count], alpha)

        steps = Steps(features, task.plan, scale, alpha, float(self.beta), value, task.size)
        rate = None if self.learning_rate == "auto" else float(self.learning_rate)
        descent = Descent(steps, w, rate, progress, check_random_state(self.random_state))
        w = descent.run()
        descent.warn()
        return w[:count]

    def _update(self, n_outer: int) -> TableUpdate:
        """Return how the table is updated, where ``n_outer`` rows have an inner value."""
        rule = self.method if self.method in RULES else "bsgd"  # the exact method has no use for it
        return new_update(rule, float(self.gamma), n_outer)

    def _scores(self, X: Any) -> Array:  # noqa: N803
        check_is_fitted(self, "coef_")
        x = validate_data(self, X, reset=False, accept_sparse=("csr", "csc"), dtype=[np.float64, np.float32])
        return x @ self.coef_.ravel().astype(x.dtype)
