"""A linear classifier that ranks: p-norm push."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fcco.compiled import PUSH
from fcco.estimators._bipartite import BipartiteRanker
from fcco.estimators._linear import PairSurrogate, Task, share_docs, store_parameters
from fcco.estimators._validation import Array, Method
from fcco.functional._checks import check_choice, check_number
from fcco.functional._pairs import surrogate_sums
from fcco.functional._surrogates import Surrogate, resolve_surrogate

_LOG_OF_LITTLE = math.log(1e-8)  # of ℓ(0): what heights have fallen to when pairs stand right, by a wide margin
_LARGEST_LOG = 600.0  # e to it, and to minus it, are numbers


def log_push(scores: Tensor, positive: Tensor, p: float, ell: Surrogate, weight: Tensor | None = None) -> Tensor:
    """The logarithm of the p-norm push; minus infinity, with a gradient of 0, where hinges leave nothing of it.

    ``weight`` [n] is of the rows, and positive; None: all weigh alike.
    """
    own, rivals = scores[~positive], scores[positive]
    weight = torch.ones_like(scores) if weight is None else weight
    share, rival_share = (part / part.sum() for part in (weight[~positive], weight[positive]))
    if ell.is_exp:
        return (p * own + share.log()).logsumexp(0) + p * (rival_share.log() - rivals).logsumexp(0)
    heights = surrogate_sums(-own, -rivals, ell, weights=rival_share).clamp(min=0.0)
    highest = heights.detach().max()
    if highest == 0.0:
        return 0.0 * scores.sum() - math.inf
    # Of the highest, as powers of the heights themselves underflow.
    return p * highest.log() + (share @ (heights / highest).pow(p)).log()


@share_docs
class PNormPushClassifier(BipartiteRanker):
    r"""Linear ranker that pushes the highest negatives down.

    .. math:: \min_w \frac{1}{n_-} \sum_{i \in S_-} \Bigl( \frac{1}{n_+} \sum_{j \in S_+} \ell(w^\top x_i - w^\top x_j)
        \Bigr)^p + \frac{\alpha}{2} |w|^2

    Only the order of scores is learnt. ``decision_function`` is X w + ``intercept_``, as in scikit-learn, where the
    intercept is the threshold of ``predict``. It is set after training, so that as many training rows are predicted
    positive as there are. There are no class weights: they would change nothing, because each class is averaged by
    itself. The weights of ``fit``, which only method="exact" supports, count a row as often as they say.

    {the methods}

    With ℓ = exp the objective is convex, and an iteration of method="exact" costs O(n d). With the hinges it costs
    O(n log n + n d), and with "logistic" and "sigmoid" O(n₊ n₋). ``python benchmarks/estimators.py --only p-norm-push``
    compares the methods.

    Parameters
    ----------
    p : float, default=4.0
        At least 1. The larger p is, the more the top of the list counts. At w = 0 the objective is ℓ(0)^p. With
        "sigmoid" and "logistic" this becomes small as p grows, and alpha then weighs more.
    surrogate : {"exp", "squared_hinge", "hinge", "logistic", "sigmoid", "ramp"}, default="exp"
        The function ℓ.
    margin : float, default=1.0
        Margin of the hinges.
    pos_label : object, default=None
        The class that is to be ranked first. By default it is the last in sorted order, ``classes_[1]``, as in
        scikit-learn, and the fit warns if that class has more than half of the rows. Pass it to be sure. Rank rows by
        ``score_samples``: ``decision_function`` rises with ``classes_[1]`` whatever ``pos_label`` is.
    outer_batch : int, default=32
        Negatives of a batch.
    inner_batch : int, default=32
        Positives of a batch.
    {shared parameters}

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features)
        The coefficients w of :meth:`decision_function`, which rises with ``classes_[1]``.
    intercept_ : ndarray of shape (1,)
        Set so that ``predict`` marks as many training rows as positive as there are.
    classes_ : ndarray of shape (2,)
    pos_label_ : object
        The positive class, one of ``classes_``.
    loss_curve_ : list of float
        The objective, with its penalty, after each iteration. With a stochastic method and "logistic" or "sigmoid", it
        is the objective of a sample of each class, the same rows throughout the fit: 500 rows, or more if a pass is
        long. With p = 4 and 500 rows the sample's value is off by about half of the objective, so the curve shows
        whether a fit still improves, not where it ends.
    {shared attributes}

    References
    ----------
    Rudin, *The P-Norm Push*, JMLR 2009. Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*,
    ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ranker = make_pipeline(StandardScaler(), PNormPushClassifier(p=4, pos_label=0)).fit(X, y)  # malignant first
    >>> bool(ranker.score(X, y) > 0.95)
    True
    """

    _weighted_methods = ("exact",)

    def __init__(
        self,
        p: float = 4.0,
        *,
        surrogate: PairSurrogate = "exp",
        margin: float = 1.0,
        pos_label: Any = None,
        method: Method = "exact",
        alpha: float = 1e-3,
        learning_rate: float | Literal["auto"] = "auto",
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
        store_parameters(self, locals())

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(self.p, "p", at_least=1.0)
        check_number(self.margin, "margin", at_least=0.0)
        check_choice(self.surrogate, "surrogate", get_args(PairSurrogate))

    def _learn(self, x: Any, positive: Array, weight: Array | None) -> None:
        self._fit_task(self._task(x, positive, weight))

    def _task(self, x: Any, positive: Array, weight: Array | None = None) -> Task:
        first, second = np.flatnonzero(~positive), np.flatnonzero(positive)
        plan = self._plan(PUSH, first, second, sign=-1.0, outer="power", power=float(self.p))
        watched = self._watch(plan)
        target = torch.tensor(positive if watched is None else positive[watched])
        known = None if weight is None else torch.tensor(weight)
        ell, p = resolve_surrogate(self.surrogate, self.margin), float(self.p)
        at_zero = ell.at_zero(torch.zeros((), dtype=torch.float64))
        log_size = p * math.log(at_zero) if at_zero > 0.0 else -math.inf
        if self.method != "exact" and _LARGEST_LOG < abs(log_size) < math.inf:
            raise ValueError(
                f"method={self.method!r} works with the objective itself, which at w = 0 is {at_zero:.3g}^{p:g}, out "
                'of range: take method="exact", which works with its logarithm, or a smaller p'
            )
        return Task(
            x,
            plan,
            objective=partial(log_push, positive=target, p=p, ell=ell, weight=known),
            watched=watched,
            log=True,
            floor=-math.inf if ell.hinge_power else log_size + p * _LOG_OF_LITTLE,
            size=math.exp(min(max(log_size, -_LARGEST_LOG), _LARGEST_LOG)),
            weight=weight,
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        r"""Return how well negatives are pushed below positives.

        This is the objective with the indicator function for ℓ, as a share of the worst value:

        .. math:: 1 - \Bigl( \frac{1}{n_-} \sum_{i \in S_-} \bigl( \text{share of positives not above } i \bigr)^p
            \Bigr)^{1/p}

        Ties count half. The score is 1 for a perfect ranking, and with p = 1 it is the area under the ROC curve. Scores
        with different p cannot be compared. To choose p, give GridSearchCV a metric (``scoring=``).

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
            If y has one class only, or a class that the fit did not have, or if a weight is invalid.
        """
        positive, scores, weight = self._ranked(X, y, sample_weight)
        own, rivals = (np.flatnonzero(side & (weight > 0.0)) for side in (~positive, positive))
        if len(own) == 0 or len(rivals) == 0:
            raise ValueError("the score needs rows of both classes; y has one class only, or one class all of weight 0")
        rivals = rivals[np.argsort(scores[rivals], kind="stable")]
        upto = np.append(0.0, np.cumsum(weight[rivals]))
        below, not_above = (np.searchsorted(scores[rivals], scores[own], side) for side in ("left", "right"))
        height = (upto[below] + upto[not_above]) / (2.0 * upto[-1])
        highest = height.max()
        if highest == 0.0:
            return 1.0
        # Powers of the heights themselves would underflow.
        mean = np.average((height / highest) ** self.p, weights=weight[own])
        return 1.0 - float(highest * mean ** (1.0 / self.p))
