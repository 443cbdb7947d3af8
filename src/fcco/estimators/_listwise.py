"""A linear model of learning to rank: ListNet, ListMLE and NDCG."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
from torch import Tensor

from fcco._checks import whole_number
from fcco.compiled import OUTERS, SURROGATES, ListSampler, Objective
from fcco.estimators._descent import StepPlan
from fcco.estimators._linear import SORTABLE, LinearRanker, RankSurrogate, Task, share_docs, store_parameters
from fcco.estimators._progress import warn_user
from fcco.estimators._validation import (
    Array,
    Method,
    first_missing,
    refuse_mixed,
    refuse_weights,
    show_weights_where_taken,
)
from fcco.functional import list_mle_loss, list_net_loss, ndcg_loss
from fcco.functional._checks import check_choice, check_number
from fcco.functional._surrogates import resolve_surrogate

ListObjective = Literal["listnet", "listmle", "ndcg"]
OBJECTIVES = get_args(ListObjective)
_WATCHED = 4000  # rows by which the objective is tracked, at least
_SHARE_WATCHED = 20  # one row of so many, where there are more: with NDCG, all of them would take longer than a pass
_LARGEST_RELEVANCE = 1000.0  # 2 to it is finite, and so are sums of such gains
_HOW_TO_ROUTE = """
    sklearn.set_config(enable_metadata_routing=True)
    estimator.set_fit_request(qid=True).set_score_request(qid=True)"""


@share_docs
class ListwiseRanker(LinearRanker):
    r"""Linear ranker of the items of queries, by ListNet, ListMLE or a smooth NDCG.

    .. math::
        \text{listnet:}\quad & \frac{1}{Q} \sum_q \sum_{i \in q} \frac{y_i}{\sum_q y} \log \sum_{j \in q} e^{h_j - h_i}
        \\ \text{listmle:}\quad & \frac{1}{n} \sum_i \log \sum_{j \in q_i, y_j \le y_i} e^{h_j - h_i}
        \\ \text{ndcg:}\quad & -\frac{1}{Q} \sum_q \frac{1}{Z_q} \sum_{i \in q} \frac{2^{y_i} - 1}{\log_2(1 + r_i)},
        \quad r_i = 1 + \sum_{j \in q, j \ne i} \ell(h_j - h_i)

    with h = X w, plus α/2 |w|²; see :func:`fcco.functional.list_net_loss`, :func:`~fcco.functional.list_mle_loss` and
    :func:`~fcco.functional.ndcg_loss`. In the sums over queries those without a relevant item (y > 0) are left out. The
    first two are convex.

    ``fit(X, y, qid=...)`` takes the query of each row, as XGBoost's ranker does; rows of a query need not stand
    together. ``fit(X, y, group=...)`` takes the sizes of consecutive queries, as LightGBM's does. Without both all rows
    are of one query, and a warning says so. A model that was fitted with queries must be scored with queries too.
    GridSearchCV, cross_val_score and the like can split ``qid``, but not ``group``, and pass it on to :meth:`score`
    only if it is routed::

        sklearn.set_config(enable_metadata_routing=True)
        estimator.set_fit_request(qid=True).set_score_request(qid=True)

    {the methods}

    An iteration of method="exact" costs O(n log n + n d), except with "logistic" and "sigmoid", which compare all pairs
    of each query. A stochastic step takes ``outer_batch`` queries with at most ``inner_batch`` items of each.
    ``python benchmarks/estimators.py --only listwise`` compares the methods.

    Parameters
    ----------
    objective : {"listnet", "listmle", "ndcg"}, default="listnet"
        What is minimised. "listmle" takes negative relevances too, but :meth:`score`, which is NDCG, does not.
    surrogate : {"ramp", "sigmoid", "squared_hinge", "hinge", "logistic"}, default="ramp"
        The function ℓ of "ndcg". Only the bounded ones, "ramp" and "sigmoid", follow NDCG.
    margin : float, default=1.0
        Margin of the hinges.
    k : int or None, default=None
        Length of the top that :meth:`score` looks at. None stands for the whole list. The objective is always of the
        whole list.
    outer_batch : int, default=8
        Queries of a batch.
    inner_batch : int, default=32
        Largest number of items of a query in a batch, at least 2, as they are compared with each other. If no list is
        longer, inner values are exact, and "bsgd" is the stochastic method to choose.
    {shared parameters}

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        The coefficients w.
    loss_curve_ : list of float
        The objective, with its penalty, after each iteration. With a stochastic method and more than 4,000 rows, it is
        the objective of whole queries, drawn at random until they have 4,000 rows or a twentieth of all; with
        "logistic" or "sigmoid" 4,000, of a longer list too. If a list is longer than that, the other objectives are
        those of all rows.
    {shared attributes}

    References
    ----------
    Cao et al., *Learning to Rank: From Pairwise Approach to Listwise Approach*, ICML 2007. Xia et al., *Listwise
    Approach to Learning to Rank: Theory and Algorithm*, ICML 2008. Qiu et al., *Large-scale Stochastic Optimization of
    NDCG Surrogates for Deep Learning with Provable Convergence*, ICML 2022.

    Examples
    --------
    >>> X = [[0.1, 3.0], [0.9, 1.0], [0.5, 2.0], [0.2, 9.0], [0.8, 7.0]]
    >>> ranker = ListwiseRanker("ndcg").fit(X, y=[0, 2, 1, 0, 1], qid=[0, 0, 0, 1, 1])
    >>> ranker.score(X, [0, 2, 1, 0, 1], qid=[0, 0, 0, 1, 1])
    1.0
    """

    def __init__(
        self,
        objective: ListObjective = "listnet",
        *,
        surrogate: RankSurrogate = "ramp",
        margin: float = 1.0,
        k: int | None = None,
        method: Method = "exact",
        alpha: float = 1e-3,
        learning_rate: float | Literal["auto"] = "auto",
        gamma: float = 0.9,
        beta: float = 0.1,
        outer_batch: int = 8,
        inner_batch: int = 32,
        max_iter: int = 1000,
        tol: float = 1e-5,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        store_parameters(self, locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.positive_only = self.objective != "listmle"
        return tags

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice(self.objective, "objective", OBJECTIVES)
        check_choice(self.surrogate, "surrogate", get_args(RankSurrogate))
        check_number(self.margin, "margin", at_least=0.0)
        whole_number("inner_batch", self.inner_batch, 2)  # an item alone has nothing to be compared with
        if self.k is not None:
            whole_number("k", self.k)

    @show_weights_where_taken
    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        qid: Any = None,
        sample_weight: Any = None,
        group: Any = None,
    ) -> Self:
        """Fit the ranker.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features. Only method="exact" takes a sparse matrix.
        y : array-like of shape (n_samples,)
            Relevances, at least 0. With "listmle", where only the order matters, they may be negative. :meth:`score`
            then needs other values, because NDCG takes relevances of at least 0: subtract the minimum, for example.
        qid : array-like of shape (n_samples,), optional
            The query of each row. Without ``qid`` and ``group`` all rows are of one query, and a warning says so. Pass
            ``numpy.zeros(n_samples)`` if that is meant.
        sample_weight : None
            Not supported.
        group : array-like of shape (n_queries,), optional
            The sizes of the queries, whose rows stand together, instead of ``qid``: [10, 20] stands for a query of the
            first 10 rows and one of the next 20.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a relevance is negative or too large, or if a parameter, X, y, qid or group is invalid.
        TypeError
            If X is sparse and the method stochastic, or if ``sample_weight`` is given.
        """
        self._check_parameters()
        refuse_weights(self, sample_weight)
        X, y = self._validate(X, y, y_numeric=True)  # noqa: N806
        relevance = self._check_relevance(y)
        lists = _number_queries(qid, group, X.shape[0])
        if qid is None and group is None:
            warn_user(
                f"{type(self).__name__}.fit was given neither qid nor group, so that all {X.shape[0]} rows are ranked "
                "as one list; pass qid= or group=, or qid=numpy.zeros(n) if they are one list",
                UserWarning,
            )
        if X.shape[0] > 1 and len(np.unique(lists)) == X.shape[0]:
            raise ValueError(
                f"queries must have several rows each, which are ranked; got {X.shape[0]} queries of one row"
            )
        self._fit_task(self._task(X, relevance, lists))
        self._fitted_with_queries = qid is not None or group is not None
        return self

    def _check_relevance(self, y: Any) -> Array:
        relevance = np.asarray(y, np.float64)
        if self.objective != "listmle" and relevance.min() < 0:
            raise ValueError(f"objective={self.objective!r} needs relevances >= 0 in y; got {relevance.min()}")
        if self.objective != "listmle" and relevance.max() == 0:
            raise ValueError("y must have a relevance above 0; got none, so that there is nothing to rank by")
        if self.objective == "ndcg" and relevance.max() > _LARGEST_RELEVANCE:
            raise ValueError(
                f"objective='ndcg' needs relevances <= {_LARGEST_RELEVANCE:g} in y, because gains are 2 to that power; "
                f"got {relevance.max()}"
            )
        return relevance

    def _task(self, x: Array, relevance: Array, lists: Array) -> Task:
        watched = self._watch(relevance, lists)
        objective = self._exact(*(values if watched is None else values[watched] for values in (relevance, lists)))
        return Task(x, self._plan(relevance, lists), objective, watched=watched)

    def _plan(self, relevance: Array, lists: Array) -> StepPlan:
        sampler = self._sampler(relevance, lists)
        count = len(sampler.relevant_in)
        return StepPlan(
            objective=self._compiled_objective(),
            update=self._update(int((sampler.gain > 0).sum())),
            sampler=sampler,
            first=np.arange(count),
            second=np.zeros(0, np.int64),
            count=math.ceil(max(count / sampler.outer, len(lists) / (sampler.outer * sampler.inner))),
        )

    def _sampler(self, relevance: Array, lists: Array) -> ListSampler:
        mle, sizes, relevant = self.objective == "listmle", np.bincount(lists), relevance > 0
        return ListSampler(
            by_item=mle,
            outer=min(self.outer_batch, len(sizes)),
            inner=min(self.inner_batch, int(sizes.max())),
            gain=self._gains(relevance, lists),
            key=-relevance if mle else np.zeros(len(lists)),
            starts=np.append(0, sizes.cumsum()),
            members=lists.argsort(kind="stable"),
            relevant=relevant,
            relevant_in=np.bincount(lists, relevant).astype(np.int64),
        )

    def _compiled_objective(self) -> Objective:
        if self.objective != "ndcg":
            return Objective(SURROGATES["exp"], 0.0, 1.0, OUTERS["log"])
        surrogate = resolve_surrogate(self.surrogate, self.margin)
        own_shift = 1.0 - surrogate.at_zero(torch.zeros((), dtype=torch.float64))
        code = SURROGATES[surrogate.name]
        return Objective(code, float(self.margin), 1.0, OUTERS["discount"], own_shift=float(own_shift))

    def _gains(self, relevance: Array, lists: Array) -> Array:
        """[n]: how much f of each item counts within its query."""
        if self.objective == "listmle":
            return np.ones(len(relevance))
        if self.objective == "ndcg":
            gain = np.exp2(relevance) - 1.0
            total = _discounted(gain, gain, lists, None)
        else:
            peak = relevance.max()
            gain = relevance / (peak if peak > 0 else 1.0)
            total = np.bincount(lists, gain)
        return gain / np.where(total > 0, total, 1.0)[lists]

    def _watch(self, relevance: Array, lists: Array) -> Array | None:
        """Which rows the objective is tracked on: those of some queries, or all, if they are few."""
        all_pairs = self.objective == "ndcg" and self.surrogate not in SORTABLE
        limit = _WATCHED if all_pairs else max(_WATCHED, len(lists) // _SHARE_WATCHED)
        # Of a list that is cut, only all pairs are worth leaving out: its objective is another one.
        if self.method == "exact" or len(lists) <= limit or (not all_pairs and np.bincount(lists).max() > limit):
            return None
        counts = np.ones(len(lists)) if self.objective == "listmle" else relevance  # there every query counts
        return _sample_queries(counts, lists, limit, check_random_state(self.random_state))

    def _exact(self, relevance: Array, lists: Array) -> Callable[[Tensor], Tensor]:
        known: dict[str, Any] = {"relevance": torch.tensor(relevance), "query": torch.tensor(lists)}
        if self.objective == "ndcg":
            return partial(ndcg_loss, surrogate=self.surrogate, margin=self.margin, **known)
        return partial(list_mle_loss if self.objective == "listmle" else list_net_loss, **known)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the scores X w, which rank the items of each query.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features.

        Returns
        -------
        ndarray of shape (n_samples,)
            The scores.
        """
        return self._scores(X)

    def score(
        self,
        X: Any,  # noqa: N803
        y: Any,
        qid: Any = None,
        sample_weight: Any = None,
        group: Any = None,
    ) -> float:
        """Return NDCG@k with gains 2^y - 1, the mean over queries that have a relevant item.

        Items of equal score share the discounts of their places.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Relevances, at least 0.
        qid : array-like of shape (n_samples,), optional
            The query of each row. By default all rows are of one query.
        sample_weight : None
            Not supported. The parameter exists because scikit-learn's Pipeline names it.
        group : array-like of shape (n_queries,), optional
            The sizes of the queries, instead of ``qid``; see :meth:`fit`.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If the model was fitted with queries and none are given, if no query has a relevant item, or if a relevance,
            qid or group is invalid.
        TypeError
            If ``sample_weight`` is given.
        """
        check_is_fitted(self, "coef_")
        if sample_weight is not None:
            raise TypeError(f"{type(self).__name__}.score does not support sample_weight: all queries count alike")
        if qid is None and group is None and self._fitted_with_queries:
            raise ValueError(
                f"{type(self).__name__} was fitted with qid or group, and must be scored with one of them: without it, "
                "all rows would be ranked as one list. GridSearchCV, cross_val_score and the like pass qid on to score "
                f"if it is routed:{_HOW_TO_ROUTE}"
            )
        scores, relevance = self.predict(X), column_or_1d(y).astype(np.float64)
        check_consistent_length(scores, relevance)
        if not 0 <= relevance.min() <= relevance.max() <= _LARGEST_RELEVANCE:
            raise ValueError(
                f"NDCG takes relevances from 0 to {_LARGEST_RELEVANCE:g}; got {relevance.min()} to {relevance.max()}"
            )
        lists, gain = _number_queries(qid, group, len(scores)), np.exp2(relevance) - 1.0
        best = _discounted(gain, gain, lists, self.k)
        if not (best > 0).any():
            raise ValueError("NDCG needs a query with a relevant item (y > 0); got none")
        return float(np.mean(_discounted(gain, scores, lists, self.k)[best > 0] / best[best > 0]))


def _number_queries(qid: Any, group: Any, n: int) -> Array:
    """[n]: queries, numbered from 0."""
    if group is not None:
        if qid is not None:
            raise ValueError("qid and group must not both be given: they say the same in two ways")
        sizes = _check_sizes(group, n)
        return np.repeat(np.arange(len(sizes)), sizes)
    if qid is None:
        return np.zeros(n, np.int64)
    names = np.asarray(qid, object).ravel()
    if (place := first_missing(names)) is not None:
        raise ValueError(f"qid must name a query for each row; got {names[place]!r} at position {place}")
    refuse_mixed("qid", names)
    qid = column_or_1d(qid)
    if len(qid) != n:
        raise ValueError(f"qid must have one query for each of the {n} rows of X; got {len(qid)}")
    if qid.dtype.kind == "f" and not np.isfinite(qid).all():
        place = np.flatnonzero(~np.isfinite(qid))[0]
        raise ValueError(f"qid must be finite; got {qid[place]} at position {place}")
    return np.unique(qid, return_inverse=True)[1]


def _check_sizes(group: Any, n: int) -> Array:
    """[Q]: sizes of consecutive queries, which add up to n."""
    sizes = column_or_1d(group)
    if sizes.dtype.kind not in "iuf":
        raise TypeError(f"group must have sizes of queries, numbers; got {sizes.dtype}")
    bad = np.flatnonzero(~((sizes >= 1) & (sizes % 1 == 0)))
    if len(bad):
        got = sizes[bad].tolist()[0]
        raise ValueError(f"group must have sizes of queries, whole numbers >= 1; got {got} at position {bad[0]}")
    if (total := int(sizes.sum())) != n:
        raise ValueError(
            f"group must have sizes that add up to the {n} rows of X; got a sum of {total}. Cross-validation cannot "
            "split sizes: give it qid"
        )
    return sizes.astype(np.int64)


def _sample_queries(relevance: Array, lists: Array, limit: int, random: np.random.RandomState) -> Array:
    """Rows of random queries that have a relevant item, ``limit`` or a little more; of a longer list only so many."""
    members = np.split(lists.argsort(kind="stable"), np.bincount(lists).cumsum()[:-1])
    relevant, rows, count = np.flatnonzero(np.bincount(lists, relevance > 0)), [], 0
    for query in random.permutation(relevant):
        items = members[query]
        if len(items) > limit:
            items = random.permutation(items)
            first = np.argmax(relevance[items] > 0)  # without a relevant item it would not count
            items = np.append(np.delete(items, first)[: limit - 1], items[first])
        rows.append(items)
        count += len(items)
        if count >= limit:
            break
    return np.concatenate(rows)


def _discounted(gain: Array, scores: Array, lists: Array, k: int | None) -> Array:
    """[Q]: discounted cumulative gain of the first k of each list, by score; the expectation over orders of ties."""
    order = np.lexsort((-scores, lists))
    counts = np.bincount(lists)
    place = np.arange(len(lists)) - np.repeat(counts.cumsum() - counts, counts)
    discount = 1.0 / np.log2(place + 2.0)
    if k is not None:
        discount[place >= k] = 0.0
    ordered, of = scores[order], lists[order]
    begins = np.append(True, (ordered[1:] != ordered[:-1]) | (of[1:] != of[:-1]))
    tie = begins.cumsum() - 1
    discount = (np.bincount(tie, discount) / np.bincount(tie))[tie]
    return np.bincount(of, gain[order] * discount, len(counts))
