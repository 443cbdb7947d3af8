"""A linear classifier that ranks: average precision."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from fcco.compiled import PRECISION, SURROGATES
from fcco.estimators._bipartite import BipartiteRanker
from fcco.estimators._linear import Task, share_docs, store_parameters
from fcco.estimators._validation import Array
from fcco.functional import average_precision_loss
from fcco.functional._checks import check_choice, check_number


@share_docs
class AveragePrecisionClassifier(BipartiteRanker):
    r"""Linear ranker that maximises a surrogate of average precision.

    .. math:: \min_w -\frac{1}{n_+} \sum_{i \in S_+} \frac{\sum_{j \in S_+} \ell(w^\top x_j - w^\top x_i)}
        {\sum_{j \in S} \ell(w^\top x_j - w^\top x_i)} + \frac{\alpha}{2} |w|^2

    Only the order of scores is learnt. ``decision_function`` is X w + ``intercept_``, as in scikit-learn, where the
    intercept is the threshold of ``predict``. It is set after training, so that as many training rows are predicted
    positive as there are. There are no class weights: the objective is of the ranking, whatever the balance.

    {the methods}

    The objective is not convex. An iteration of method="exact" costs O(n log n + n d) with the hinges, and O(n₊ n) with
    "logistic" and "sigmoid". ``python benchmarks/estimators.py --only average-precision`` compares the methods.

    Parameters
    ----------
    surrogate : {"squared_hinge", "hinge", "logistic", "sigmoid"}, default="squared_hinge"
        The function ℓ.
    margin : float, default=1.0
        Margin of the hinges.
    outer_batch : int, default=32
        Positives of a batch.
    inner_batch : int, default=32
        Negatives of a batch.
    {shared parameters}

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features)
        The coefficients w.
    intercept_ : ndarray of shape (1,)
        Minus the threshold of ``predict``.
    classes_ : ndarray of shape (2,)
    loss_curve_ : list of float
        The objective, with its penalty, after each iteration. With a stochastic method and "logistic" or "sigmoid", it
        is the objective of 2,000 rows of each class.
    {shared attributes}

    References
    ----------
    Qi et al., *Stochastic Optimization of Areas Under Precision-Recall Curves with Provable Convergence*, NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ranker = make_pipeline(StandardScaler(), AveragePrecisionClassifier()).fit(X, y)
    >>> bool(ranker.score(X, y) > 0.99)  # scikit-learn's average precision
    True
    """

    def __init__(
        self,
        surrogate: str = "squared_hinge",
        margin: float = 1.0,
        *,
        method: str = "exact",
        alpha: float = 1e-3,
        learning_rate: float | str = "auto",
        gamma: float = 0.7,
        beta: float = 0.1,
        outer_batch: int = 32,
        inner_batch: int = 32,
        max_iter: int = 1000,
        tol: float = 1e-5,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        store_parameters(self, locals())

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(self.margin, "margin", above=0.0)
        check_choice(self.surrogate, "surrogate", tuple(name for name in SURROGATES if name != "exp"))

    def _task(self, x: Array, positive: Array, weight: Array | None = None) -> Task:
        first, second = np.flatnonzero(positive), np.flatnonzero(~positive)
        watched = self._watch(first, second)
        target = torch.tensor(positive if watched is None else positive[watched])
        objective = partial(average_precision_loss, target=target, surrogate=self.surrogate, margin=self.margin)
        plan = self._plan(PRECISION, first, second, sign=1.0, outer="share", dim=2)
        return Task(x, plan, objective, watched=watched)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return :func:`sklearn.metrics.average_precision_score` of the scores.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If y has a class that the fit did not have, or if a weight is invalid.
        """
        positive, scores, weight = self._ranked(X, y, sample_weight)
        return float(average_precision_score(positive, scores, sample_weight=weight))
