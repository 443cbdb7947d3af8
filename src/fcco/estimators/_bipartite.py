"""The base of the rankers of two classes: fit, threshold and predictions."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from fcco.compiled import OUTERS, SURROGATES, ClassSampler, Objective
from fcco.estimators._descent import StepPlan
from fcco.estimators._linear import SORTABLE, LinearRanker, rows_to_watch
from fcco.estimators._progress import warn_user
from fcco.estimators._validation import Array, check_weights, refuse_first, refuse_weights, show_weights_where_taken
from fcco.functional._surrogates import resolve_surrogate


def cut_between(scores: Array, positive: Array, weight: Array) -> float:
    """A threshold that the highest scores are above, as many by weight as there are positives, half-way to the next."""
    order = np.argsort(-scores, kind="stable")
    above, wanted = np.cumsum(weight[order]), weight[positive].sum()
    rounding = len(scores) * np.finfo(np.float64).eps * above[-1]
    last = np.searchsorted(above, wanted - rounding, "left")
    following = min(np.searchsorted(above, wanted + rounding, "right"), len(scores) - 1)
    return float(scores[order[last]].astype(np.float64) + scores[order[following]]) / 2


def _refuse_groups(model: Any, *_: Any, **options: Any) -> None:
    """Explain what to do with groups."""
    if "groups" in options:
        advice = "; pass cv=list(GroupKFold().split(X, y, groups))" if hasattr(model, "cv") else ""
        raise TypeError(f"{type(model).__name__}.fit does not take groups{advice}")


class BipartiteRanker(ClassifierMixin, LinearRanker):
    """A linear ranker of two classes, the positive one of which is to stand above."""

    pos_label: Any
    classes_: Array
    pos_label_: Any
    intercept_: Array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    @show_weights_where_taken
    @refuse_first(_refuse_groups)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Fit the ranker.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features. Only method="exact" takes a sparse matrix.
        y : array-like of shape (n_samples,)
            Two classes. The rows of ``pos_label`` are to be ranked above the others.
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts; a row of weight 0 is left out. Only method="exact" supports weights.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If y does not have two classes, one of which is ``pos_label``, or if a parameter, X, y or a weight is
            invalid.
        TypeError
            If the method does not support sparse X, or ``sample_weight``.
        """
        self._check_parameters()
        refuse_weights(self, sample_weight)
        X, y = self._validate(X, y)  # noqa: N806
        check_classification_targets(y)
        weight = check_weights(sample_weight, X.shape[0])
        if not (kept := weight > 0.0).all():
            X, y, weight = X[kept], y[kept], weight[kept]  # noqa: N806
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {type_of_target(y)}. For several "
                "classes, use sklearn.multiclass.OneVsRestClassifier."
            )
        if len(classes) < 2:
            raise ValueError(f"{type(self).__name__} needs two classes to rank; y has one class: {classes[0]}")
        place = self._positive_place(classes.tolist(), np.average(labels, weights=weight))
        positive = labels == place
        # decision_function rises with classes_[1]: if the other class is positive, the scores are those of -X.
        sign = 1 if place == 1 else -1
        x = X if sign == 1 else -X
        self._learn(x, positive, None if sample_weight is None else weight)
        cut = cut_between(x @ self.coef_, positive, weight)
        self.classes_, self.pos_label_, self.coef_ = classes, classes[place], self.coef_[np.newaxis]
        self.intercept_ = np.array([-sign * cut], self.coef_.dtype)
        return self

    def _positive_place(self, classes: list[Any], share: float) -> int:
        """Which of the classes is positive; warn if that is the one with most rows, though nobody chose it."""
        if self.pos_label is not None:
            if self.pos_label not in classes:
                raise ValueError(f"pos_label must be one of the classes of y, {classes}; got {self.pos_label!r}")
            return classes.index(self.pos_label)
        if share > 0.5:
            warn_user(
                f"{type(self).__name__}: by default the positive class is {classes[1]!r}, the last in sorted order, "
                f"which has {share:.0%} of the rows. To rank {classes[0]!r} first, pass pos_label={classes[0]!r}; if "
                f"{classes[1]!r} is meant, pass pos_label={classes[1]!r}",
                UserWarning,
            )
        return 1

    @abstractmethod
    def _learn(self, x: Any, positive: Array, weight: Array | None) -> None:
        """Set ``coef_`` of shape (n_features,), ``loss_curve_`` and ``n_iter_``."""

    def _plan(
        self,
        kind: int,
        first: Array,
        second: Array,
        *,
        sign: float,
        outer: str,
        power: float = 1.0,
        dim: int = 1,
        counts_itself: bool = False,
    ) -> StepPlan:
        """Return steps whose outer rows are of the first class; with ``counts_itself``, a row is one of its rivals."""
        ell, zero = resolve_surrogate(self.surrogate, self.margin), torch.zeros((), dtype=torch.float64)
        own_shift = ell.own_value(zero).item() - ell.at_zero(zero) if counts_itself else 0.0
        n, sizes = len(first) + len(second), (len(first), len(second))
        batch = min(self.outer_batch, sizes[0]), min(self.inner_batch, sizes[1])
        return StepPlan(
            objective=Objective(SURROGATES[self.surrogate], float(self.margin), sign, OUTERS[outer], power, own_shift),
            update=self._update(sizes[0]),
            sampler=ClassSampler(kind, *batch, np.ones(1), np.zeros(1), np.array(sizes) / n),
            first=first,
            second=second,
            count=math.ceil(max(sizes[0] / batch[0], sizes[1] / batch[1])),
            dim=dim,
        )

    def _watch(self, plan: StepPlan) -> Array | None:
        """Which rows the objective is tracked on: all, if that takes no pairs."""
        if self.method == "exact" or self.surrogate in SORTABLE:
            return None
        random = check_random_state(self.random_state)
        count = rows_to_watch(plan)
        return np.concatenate([random.permutation(rows)[:count] for rows in (plan.first, plan.second)])

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """Return X w + intercept, which is above 0 where ``predict`` returns ``classes_[1]``.

        As in scikit-learn, it rises with ``classes_[1]``, even if ``pos_label`` is the other class. To rank rows, use
        :meth:`score_samples`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features.

        Returns
        -------
        ndarray of shape (n_samples,)
            The signed distances from the threshold.
        """
        check_is_fitted(self, "coef_")
        return self._scores(X) + self.intercept_[0]

    def score_samples(self, X: Any) -> Array:  # noqa: N803
        """Return the scores by which rows are ranked: the higher, the more likely to be of ``pos_label_``.

        They are ``decision_function(X)``, or minus that if ``pos_label_`` is ``classes_[0]``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features.

        Returns
        -------
        ndarray of shape (n_samples,)
            The scores.
        """
        scores = self.decision_function(X)
        return scores if self._last_is_positive else -scores

    @property
    def _last_is_positive(self) -> bool:
        return bool(self.pos_label_ == self.classes_[1])

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the class of each row: ``classes_[1]`` where :meth:`decision_function` is above 0.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features.

        Returns
        -------
        ndarray of shape (n_samples,)
            The classes.
        """
        above = self.decision_function(X) > 0
        return self.classes_[above.astype(int)]

    def _ranked(self, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array]:  # noqa: N803
        """Which rows are positive, the scores, and the weights."""
        scores = self.score_samples(X)
        y = column_or_1d(y)
        check_consistent_length(scores, y)
        unknown = y[~np.isin(y, self.classes_)].tolist()
        if unknown:
            raise ValueError(f"y must be made of the classes of the fit, {self.classes_.tolist()}; got {unknown[0]!r}")
        return y == self.pos_label_, scores, check_weights(sample_weight, len(scores))
