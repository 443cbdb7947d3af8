"""A linear classifier that ranks: average precision."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from fcco.compiled import PRECISION, SURROGATES
from fcco.estimators._bipartite import BipartiteRanker
from fcco.estimators._linear import Task, store_parameters
from fcco.estimators._validation import Array
from fcco.functional import average_precision_loss
from fcco.functional._checks import check_choice, check_number


class AveragePrecisionClassifier(BipartiteRanker):
    r"""Linear ranker that maximises a surrogate of average precision.

    .. math:: \min_w -\frac{1}{n_+} \sum_{i \in S_+} \frac{\sum_{j \in S_+} \ell(w^\top x_j - w^\top x_i)}
        {\sum_{j \in S} \ell(w^\top x_j - w^\top x_i)} + \frac{\alpha}{2} |w|^2

    Only the order of scores is learnt, and X w alone would rank as well. ``decision_function`` is X w + ``intercept_``,
    as in scikit-learn, where the intercept is but the threshold of ``predict``: it is set after training so that as
    many training rows are predicted positive as there are. There are no class weights: the objective is of the ranking,
    whatever the balance.

    The objective is not convex. With the hinges method="exact" (L-BFGS) costs O(n log n + n d) an iteration, and is the
    default because it is both faster and better: on covtype (20,035 rows) it ends at -.341 in .51 s, and passes SOAP's
    -.332, the best of the others, after .11 s of SOAP's .42 s (``python benchmarks/estimators.py --only
    average-precision``). That is the surrogate: average precision itself, on the same data, is .241 and .236, and .248
    with SOX. With "logistic" and "sigmoid" it goes through pairs, O(n₊ n). The others are stochastic, cost O(d) a step
    whatever n is, and halve their step after a pass over the data without a gain; a pass that makes the objective worse
    is taken back.

    The first fit with a stochastic method compiles its steps, once, for about 12 s (``verbose=1`` prints how long);
    later processes find them on disk. method="exact" compiles nothing. It also takes sparse X, which the others do not.

    There is no ``partial_fit``: the objective couples all rows, and the stochastic methods keep an estimate for each.
    ``warm_start`` begins at the coefficients of the fit before.

    Parameters:
        surrogate: ℓ: "squared_hinge", "hinge", "logistic" or "sigmoid".
        margin: of the hinges, positive.
        method: "exact", "bsgd", "soap", "moap" or "sox"; see :data:`fcco.METHODS`.
        alpha: weight of the penalty. Without one (0) there may be no finite optimum, of which the fit then warns.
        learning_rate: of the stochastic methods, in units of each feature's deviation; "auto": that of the powers of 4
            from 16 down which comes furthest in a trial of 300 steps. Before the fit ends, larger ones are tried again.
        gamma: rate of the table, in (0, 1].
        beta: rate of the gradient's moving average, in (0, 1].
        outer_batch: positives a step.
        inner_batch: negatives a step.
        max_iter: iterations, or passes over the data, at most.
        tol: smallest improvement of the objective that counts, relative; 0: never stop early.
        n_iter_no_change: iterations without one that end the fit.
        warm_start: begin at the coefficients of the fit before, if the objective is lower there than at 0.
        random_state: of the batches.
        verbose: print the objective after each iteration, and how long anything took to compile.

    Attributes:
        coef_: w, [1, d].
        intercept_: [1], minus the threshold of ``predict``.
        classes_: [2].
        loss_curve_: the objective, with its penalty, after each iteration (with "logistic" and "sigmoid" and a
            stochastic method, that of 2,000 rows of each class).
        n_iter_: how many there were.
        n_features_in_, feature_names_in_: as seen in the fit.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ranker = make_pipeline(StandardScaler(), AveragePrecisionClassifier()).fit(X, y)
    >>> bool(ranker.score(X, y) > 0.99)  # scikit-learn's average precision
    True

    Reference: Qi et al., *Stochastic Optimization of Areas Under Precision-Recall Curves with Provable Convergence*,
    NeurIPS 2021.
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
        """Average precision, as :func:`sklearn.metrics.average_precision_score` has it, weights [n] included.

        Raises:
            ValueError: y has a class that the fit had not; weights that cannot be meant.
        """
        positive, scores, weight = self._ranked(X, y, sample_weight)
        return float(average_precision_score(positive, scores, sample_weight=weight))
