"""Linear classifiers that rank: p-norm push and average precision."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import average_precision_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from fcco.estimators._kernels import OUTERS, RULES, SURROGATES, Array, Form
from fcco.estimators._linear import LinearRanker, Task
from fcco.estimators._loop import PRECISION, PUSH, Draws
from fcco.functional import average_precision_loss, p_norm_push_loss
from fcco.functional._checks import check_choice, check_number

SORTABLE = ("squared_hinge", "hinge", "exp")
WATCHED = 2000  # rows of a class by which the objective is tracked, where it takes all pairs


def _log_push(scores: Tensor, positive: Tensor, p: float) -> Tensor:
    """The logarithm of the p-norm push with ℓ = exp, which is separable."""
    own, rivals = scores[~positive], scores[positive]
    height = (p * own).logsumexp(0) - math.log(len(own))
    return height + p * ((-rivals).logsumexp(0) - math.log(len(rivals)))


def _cut_between(scores: Array, count: int) -> float:
    """A threshold that the ``count`` highest of the scores are above, half-way to the next."""
    ordered = np.sort(scores.astype(np.float64))
    return float(ordered[-count - 1] + ordered[-count]) / 2


class _BipartiteRanker(ClassifierMixin, LinearRanker):
    """A linear ranker of two classes, the second of which is to stand above."""

    classes_: Array
    intercept_: Array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fit to features [n, d] and targets [n] of two classes, the greater of which is to stand above.

        Raises:
            ValueError: not two classes; a parameter outside its range; X or y that cannot be meant.
        """
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], order="C")  # noqa: N806
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) > 2:
            raise ValueError(f"Only binary classification is supported. The type of the target is {type_of_target(y)}.")
        if len(classes) < 2:
            raise ValueError(f"{type(self).__name__} ranks one class above another, and y has one class: {classes[0]}")
        positive = labels == 1
        self._fit_task(self._task(X, positive))
        cut = _cut_between(X @ self.coef_, int(positive.sum()))
        self.classes_, self.coef_ = classes, self.coef_[np.newaxis]
        self.intercept_ = np.array([-cut], self.coef_.dtype)
        return self

    @abstractmethod
    def _task(self, x: Array, positive: Array) -> Task: ...

    def _assemble(self, x: Array, first: Array, second: Array, form: Form, kind: int, **options: Any) -> Task:
        outer, inner = min(self.outer_batch, len(first)), min(self.inner_batch, len(second))
        share = np.array([len(first), len(second)]) / len(x)
        draws = Draws(kind, outer, inner, np.ones(len(x)), np.zeros(len(x)), share)
        steps = math.ceil(max(len(first) / outer, len(second) / inner))
        return Task(x, form=form, draws=draws, first=first, second=second, steps=steps, **options)

    def _form(self, sign: float, outer: str, n_outer: int, power: float = 1.0) -> Form:
        return Form(
            surrogate=SURROGATES[self.surrogate],
            margin=float(self.margin),
            sign=sign,
            outer=OUTERS[outer],
            power=float(power),
            log=self.surrogate == "exp",
            rule=RULES.get(self.method, 0),
            gamma=float(self.gamma),
            n_outer=float(n_outer),
            own_shift=0.0,
        )

    def _watch(self, first: Array, second: Array) -> Array | None:
        """Which rows the objective is tracked on: all, if that takes no pairs."""
        if self.method == "exact" or self.surrogate in SORTABLE:
            return None
        random = check_random_state(self.random_state)
        return np.concatenate([random.permutation(rows)[:WATCHED] for rows in (first, second)])

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """Scores [n]: X w + intercept."""
        check_is_fitted(self, "coef_")
        return self._scores(X) + self.intercept_[0]

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Classes [n]: the second where the score is above 0."""
        above = self.decision_function(X) > 0
        return self.classes_[above.astype(int)]

    def _ranked(self, X: Any, y: Any) -> tuple[Array, Array]:  # noqa: N803
        """Which rows are positive, and the scores."""
        scores = self.decision_function(X)
        y = column_or_1d(y)
        check_consistent_length(scores, y)
        unknown = y[~np.isin(y, self.classes_)]
        if len(unknown):
            raise ValueError(f"y has classes that were not in the fit: {unknown[0]!r}")
        return y == self.classes_[1], scores


class PNormPushClassifier(_BipartiteRanker):
    r"""Linear ranker that pushes the highest negatives down.

    .. math:: \min_w \frac{1}{n_-} \sum_{i \in S_-} \Bigl( \frac{1}{n_+} \sum_{j \in S_+} \ell(w^\top x_i - w^\top x_j)
        \Bigr)^p + \frac{\alpha}{2} |w|^2

    Scores have no natural zero: ``intercept_`` is set after training so that as many training rows are predicted
    positive as there are. There are no class weights, which would change nothing: each class is averaged by itself.

    With ℓ = exp the objective is separable and convex, and method="exact" (L-BFGS) costs O(n d) an iteration, with
    the hinges O(n log n + n d). It is the default because it is both faster and better: on covtype (20,035 rows) it
    ends at .2832 in .25 s, and passes SOAP's .2838, the best of the others, after .06 s of SOAP's .29 s (``python
    benchmarks/estimators.py --only p-norm-push``). With "logistic" and "sigmoid" it goes through all pairs, O(n₊ n₋).
    The others are stochastic, cost O(d) a step whatever n is, and halve their step after a pass over the data without a
    gain; a pass that makes the objective worse is taken back.

    There is no ``partial_fit``: the objective couples all rows, and the stochastic methods keep an estimate for each.
    ``warm_start`` begins at the coefficients of the fit before.

    Parameters:
        p: at least 1; the larger, the more the top of the list counts.
        surrogate: ℓ: "exp", "squared_hinge", "hinge", "logistic" or "sigmoid".
        margin: of the hinges.
        method: "exact", "bsgd", "soap", "moap" or "sox"; see :data:`fcco.METHODS`.
        alpha: weight of the penalty.
        learning_rate: of the stochastic methods, in units of each feature's deviation; "auto": that of the powers of 4
            from 16 down which comes furthest in a trial of 300 steps or a pass.
        gamma: rate of the table, in (0, 1].
        beta: rate of the gradient's moving average, in (0, 1].
        outer_batch: negatives a step.
        inner_batch: positives a step.
        max_iter: iterations, or passes over the data, at most.
        tol: smallest improvement of the objective that counts, relative; 0: never stop early.
        n_iter_no_change: iterations without one that end the fit.
        warm_start: begin at the coefficients of the fit before.
        random_state: of the batches.
        verbose: print the objective after each iteration.

    Attributes:
        coef_: w, [1, d].
        intercept_: [1].
        classes_: [2].
        loss_curve_: the objective, with its penalty, after each iteration (with "logistic" and "sigmoid" and a
            stochastic method, that of 2,000 rows of each class).
        n_iter_: how many there were.
        n_features_in_, feature_names_in_: as seen in the fit.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ranker = make_pipeline(StandardScaler(), PNormPushClassifier(p=4)).fit(X, y)
    >>> bool(ranker.score(X, y) > 0.95)
    True

    Reference: Rudin, *The P-Norm Push*, JMLR 2009; Wang and Yang, *Finite-Sum Coupled Compositional Stochastic
    Optimization*, ICML 2022.
    """

    def __init__(
        self,
        p: float = 4.0,
        *,
        surrogate: str = "exp",
        margin: float = 1.0,
        method: str = "exact",
        alpha: float = 1e-3,
        learning_rate: float | str = "auto",
        gamma: float = 0.5,
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
        self.p = p
        self.surrogate = surrogate
        self.margin = margin
        self.method = method
        self.alpha = alpha
        self.learning_rate = learning_rate
        self.gamma = gamma
        self.beta = beta
        self.outer_batch = outer_batch
        self.inner_batch = inner_batch
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(self.p, "p", at_least=1.0)
        check_number(self.margin, "margin", at_least=0.0)
        check_choice(self.surrogate, "surrogate", tuple(SURROGATES))

    def _task(self, x: Array, positive: Array) -> Task:
        first, second, log = np.flatnonzero(~positive), np.flatnonzero(positive), self.surrogate == "exp"
        watched = self._watch(first, second)
        target = torch.tensor(positive if watched is None else positive[watched])
        objective: Callable[[Tensor], Tensor]
        if log:
            objective = partial(_log_push, positive=target, p=float(self.p))
        else:
            objective = partial(
                p_norm_push_loss, target=target, p=float(self.p), surrogate=self.surrogate, margin=self.margin
            )
        form = self._form(-1.0, "power", len(first), power=self.p)
        return self._assemble(x, first, second, form, PUSH, objective=objective, watched=watched, log=log)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        r"""How well negatives are pushed below positives: the objective with ℓ the indicator, as a share of the worst.

        .. math:: 1 - \Bigl( \frac{1}{n_-} \sum_{i \in S_-} \bigl( \text{share of positives not above } i \bigr)^p
            \Bigr)^{1/p}

        Ties count half. It is 1 for a perfect ranking, and with p = 1 the area under the ROC curve. Scores with
        different p are of different things: to choose p, say by which metric (``scoring=`` of GridSearchCV).

        Raises:
            ValueError: y has one class only, or one that the fit had not.
        """
        positive, scores = self._ranked(X, y)
        own, rivals = scores[~positive], np.sort(scores[positive])
        if len(own) == 0 or len(rivals) == 0:
            raise ValueError("the score compares two classes, and y has one class only")
        below = np.searchsorted(rivals, own, "left") + np.searchsorted(rivals, own, "right")
        height = below / (2.0 * len(rivals))
        highest = height.max()
        if highest == 0.0:
            return 1.0
        # Powers of the heights themselves would underflow.
        return 1.0 - float(highest * np.mean((height / highest) ** self.p) ** (1.0 / self.p))


class AveragePrecisionClassifier(_BipartiteRanker):
    r"""Linear ranker that maximises a surrogate of average precision.

    .. math:: \min_w -\frac{1}{n_+} \sum_{i \in S_+} \frac{\sum_{j \in S_+} \ell(w^\top x_j - w^\top x_i)}
        {\sum_{j \in S} \ell(w^\top x_j - w^\top x_i)} + \frac{\alpha}{2} |w|^2

    Scores have no natural zero: ``intercept_`` is set after training so that as many training rows are predicted
    positive as there are. There are no class weights: the objective is of the ranking, whatever the balance.

    The objective is not convex. With the hinges method="exact" (L-BFGS) costs O(n log n + n d) an iteration, and is the
    default because it is both faster and better: on covtype (20,035 rows) it ends at -.341 in .53 s, and passes SOAP's
    -.332, the best of the others, after .11 s of SOAP's .44 s (``python benchmarks/estimators.py --only
    average-precision``). That is the surrogate: average precision itself, on the same data, is .241 and .236, and .248
    with SOX. With "logistic" and "sigmoid" it goes through pairs, O(n₊ n). The others are stochastic, cost O(d) a step
    whatever n is, and halve their step after a pass over the data without a gain; a pass that makes the objective worse
    is taken back.

    There is no ``partial_fit``: the objective couples all rows, and the stochastic methods keep an estimate for each.
    ``warm_start`` begins at the coefficients of the fit before.

    Parameters:
        surrogate: ℓ: "squared_hinge", "hinge", "logistic" or "sigmoid".
        margin: of the hinges, positive.
        method: "exact", "bsgd", "soap", "moap" or "sox"; see :data:`fcco.METHODS`.
        alpha: weight of the penalty.
        learning_rate: of the stochastic methods, in units of each feature's deviation; "auto": that of the powers of 4
            from 16 down which comes furthest in a trial of 300 steps or a pass.
        gamma: rate of the table, in (0, 1].
        beta: rate of the gradient's moving average, in (0, 1].
        outer_batch: positives a step.
        inner_batch: negatives a step.
        max_iter: iterations, or passes over the data, at most.
        tol: smallest improvement of the objective that counts, relative; 0: never stop early.
        n_iter_no_change: iterations without one that end the fit.
        warm_start: begin at the coefficients of the fit before.
        random_state: of the batches.
        verbose: print the objective after each iteration.

    Attributes:
        coef_: w, [1, d].
        intercept_: [1].
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
        self.surrogate = surrogate
        self.margin = margin
        self.method = method
        self.alpha = alpha
        self.learning_rate = learning_rate
        self.gamma = gamma
        self.beta = beta
        self.outer_batch = outer_batch
        self.inner_batch = inner_batch
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(self.margin, "margin", above=0.0)
        check_choice(self.surrogate, "surrogate", tuple(name for name in SURROGATES if name != "exp"))

    def _task(self, x: Array, positive: Array) -> Task:
        first, second = np.flatnonzero(positive), np.flatnonzero(~positive)
        watched = self._watch(first, second)
        target = torch.tensor(positive if watched is None else positive[watched])
        objective = partial(average_precision_loss, target=target, surrogate=self.surrogate, margin=self.margin)
        form = self._form(1.0, "share", len(first))
        return self._assemble(x, first, second, form, PRECISION, objective=objective, watched=watched, dim=2)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Average precision, as :func:`sklearn.metrics.average_precision_score` has it.

        Raises:
            ValueError: y has a class that the fit had not.
        """
        return float(average_precision_score(*self._ranked(X, y)))
