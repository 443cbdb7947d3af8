"""Losses of learning to rank: ListNet, ListMLE, NDCG."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco._checks import check_rows, shape_of
from fcco._outer import Outer
from fcco._pool import Estimate, Pool
from fcco._rules import BSGD, SOAP, Rule
from fcco.functional._checks import as_groups, check_choice, check_count, check_number, check_relevance
from fcco.functional._inner_listwise import (
    ListOwnTerm,
    Lists,
    check_list_own_term,
    list_mle_inner,
    list_net_inner,
    ndcg_inner,
)
from fcco.functional._listwise import gain_share, relevance_share
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.functional._tensors import widen
from fcco.losses._base import Loss, Scale, as_values
from fcco.losses._population import check_lists
from fcco.schedules import Power


def describe_lists(
    relevance: Any, query: Any, share: Callable[[Tensor, Tensor, int], Tensor], *, signed: bool = False
) -> Lists:
    """What the losses need to know of every item and its query, [n] each; ``share`` says how much items count."""
    relevance, query = as_values(relevance), as_values(query)
    if relevance.dim() != 1:
        raise ValueError(f"relevance must have the shape [n], got {shape_of(relevance)}")
    check_relevance(relevance, relevance, "relevance", signed=signed)
    lists, count = as_groups(query, "query", relevance, "relevance")
    size = lists.bincount()
    relevant = torch.zeros_like(size).index_add(0, lists, (relevance > 0).to(size.dtype))
    return Lists(size[lists], relevant[lists], share(relevance, lists, count), lists, relevance.clone())


def count_relevant(lists: Lists) -> int:
    """How many items are relevant: each item brings its share of its query's number."""
    return round(float((lists.relevant / lists.size).sum()))


class _ListwiseLoss(Loss):
    """A loss over the items of queries, of whose lists everything may be known beforehand, or nothing."""

    def __init__(
        self, outer: Outer, n: int, *, lists: Lists | None, own_term: ListOwnTerm, rule: Rule, log: bool = True
    ) -> None:
        super().__init__(outer, n, rule=rule, log=log)
        check_list_own_term(own_term)
        self.own_term: ListOwnTerm = own_term
        for name in Lists._fields:
            values = None if lists is None else getattr(lists, name)
            if values is not None and values.shape != (self.n,):
                raise ValueError(f"lists.{name} must have the shape [{self.n}], got {list(values.shape)}")
            self.register_buffer(f"list_{name}", values, persistent=False)
        if lists is not None:  # by what is counted, which is the same on every machine
            self._identify(lists=torch.stack([lists.size, lists.relevant]))
        self._digits = torch.float64 if lists is None else lists.relevance.dtype  # digits that a cast adds are none

    def _listwise_loss(
        self,
        inner: Callable[..., Estimate],
        scores: Tensor,
        relevance: Tensor,
        query: Tensor,
        index: Tensor,
        **options: Any,
    ) -> Tensor:
        """The loss of a batch, whose inner estimate is made by ``inner`` with these options."""

        def estimate(pool: Pool) -> Estimate:
            lists = self._lists_of(pool.rows)
            made = inner(*pool.own, rivals=pool.rivals, rows=pool.rows, lists=lists, own_term=self.own_term, **options)
            _, relevances, queries = pool.joined()
            check_lists(pool.rows, relevances, queries, lists, self._digits)
            return made

        return self._loss(estimate, scores, relevance, query, index=index)

    def _lists_of(self, rows: Tensor | None) -> Lists | None:
        """What is known of the lists of some items, if anything is."""
        lists = [getattr(self, f"list_{name}") for name in Lists._fields]
        if rows is None or lists[0] is None:
            return None
        check_rows(rows, self.n)
        # What does not raise at once must not be looked up either.
        return Lists(*lists).at(rows.clamp(0, self.n - 1))


class ListNetLoss(_ListwiseLoss):
    r"""Cross entropy between the relevances and the scores of each query, over lists of any length.

    .. math:: F = \frac{1}{Q} \sum_q \sum_{i \in q} P(y_i) \log \sum_{j \in q} e^{h_j - h_i}

    Called as ``loss(scores, relevance, query, index)`` with [B] each: some items of some queries; in log space.
    ``ListNetLoss(n, rule=fcco.BSGD())``, where nothing is known of the lists, is the usual loss of those in the batch:
    cross entropy with the relevances as soft labels.

    The default, no table and a sampled own term, was chosen by measurement, on short lists: see docs/defaults.md.

    How many queries a batch stands for is estimated from it too, and divided by: with parts of lists the value is off
    by 0 to 2% (LightGBM's lambdarank data, batches of 8 to 64 items, own term sampled).

    Args:
        n: training items; ``index`` lies in [0, n).
        target: "proportional", P(y) ∝ y, or "softmax", P(y) ∝ e^y.
        lists: sizes and totals of the queries, which :meth:`from_targets` takes from the training data. With them a
            batch may hold any part of a list, items with P(y) > 0 being visited equally often
            (``QuerySampler(query, relevance)``; with "softmax", ``QuerySampler(query)``). Without, the batch's items
            are taken for the whole.
        rule: see :class:`fcco.SOX`.
        own_term: "exact", unbiased; an item then has no term in a batch that lacks others to stand for the query's
            relevant or irrelevant ones. Or "sampled", as in-batch losses have it, or "bounded": see :class:`NDCGLoss`.

    >>> loss_fn = ListNetLoss.from_targets(relevance=[1.0, 0.0, 0.0, 2.0, 1.0], query=[0, 0, 0, 1, 1])
    >>> scores = torch.tensor([0.3, 0.1, 0.9], requires_grad=True)
    >>> relevance, query = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0, 0, 1])
    >>> loss_fn(scores, relevance, query, index=torch.tensor([0, 2, 3])).backward()

    Reference: Cao et al., *Learning to Rank: From Pairwise Approach to Listwise Approach*, ICML 2007.
    """

    def __init__(
        self,
        n: int,
        target: str = "proportional",
        lists: Lists | None = None,
        rule: Rule = BSGD(),  # noqa: B008 (frozen)
        own_term: ListOwnTerm = "sampled",
    ) -> None:
        check_choice(target, "target", ("proportional", "softmax"))
        super().__init__(Scale(), n, lists=lists, own_term=own_term, rule=rule)
        self.target = target

    @classmethod
    def from_targets(cls, relevance: Any, query: Any, *, target: str = "proportional", **options: Any) -> ListNetLoss:
        """With the lists described by the training data, [n] each."""
        check_choice(target, "target", ("proportional", "softmax"))
        share = partial(relevance_share, target=target)
        lists = describe_lists(relevance, query, share, signed=target == "softmax")
        loss = cls(len(lists.size), target, lists, **options)
        return loss if target == "softmax" else loss._with_outer(count_relevant(lists))

    def forward(self, scores: Tensor, relevance: Tensor, query: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch of items: scores, relevances, queries and rows, [B] each."""
        return self._listwise_loss(list_net_inner, scores, relevance, query, index, target=self.target)


class ListMLELoss(_ListwiseLoss):
    r"""Likelihood of drawing each query's items in the order of their relevance.

    .. math:: F = \frac{1}{n} \sum_i \log \sum_{j \in q_i, y_j \le y_i} e^{h_j - h_i}

    Called as ``loss(scores, relevance, query, index)`` with [B] each: some items of some queries; in log space.

    The default, no table and a sampled own term, was chosen by measurement, on short lists: see docs/defaults.md.

    How many items a batch stands for is estimated from it too, and divided by: with parts of lists the value is off by
    0 to 2% (LightGBM's lambdarank data, batches of 8 to 64 items, own term sampled), with one whole list a batch by
    -5%, as short lists then weigh like long ones.

    Args:
        n: training items; ``index`` lies in [0, n).
        lists: sizes of the queries, which :meth:`from_targets` takes from the training data. With them a batch may hold
            any part of a list, all items being visited equally often (``QuerySampler(query)``). Without, the batch's
            items are taken for the whole.
        rule: see :class:`fcco.SOX`; ``fcco.BSGD()`` is the in-batch loss.
        own_term: "exact", unbiased; an item then has no term in a batch that lacks others to stand for the query's
            relevant or irrelevant ones. Or "sampled", as in-batch losses have it, or "bounded": see :class:`NDCGLoss`.

    >>> loss_fn = ListMLELoss.from_targets(relevance=[1.0, 0.0, 0.0, 2.0, 1.0], query=[0, 0, 0, 1, 1])
    >>> scores = torch.tensor([0.3, 0.1, 0.9], requires_grad=True)
    >>> relevance, query = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0, 0, 1])
    >>> loss_fn(scores, relevance, query, index=torch.tensor([0, 2, 3])).backward()

    Reference: Xia et al., *Listwise Approach to Learning to Rank*, ICML 2008.
    """

    def __init__(
        self,
        n: int,
        lists: Lists | None = None,
        rule: Rule = BSGD(),  # noqa: B008 (frozen)
        own_term: ListOwnTerm = "sampled",
    ) -> None:
        super().__init__(Scale(), n, lists=lists, own_term=own_term, rule=rule)

    @classmethod
    def from_targets(cls, relevance: Any, query: Any, **options: Any) -> ListMLELoss:
        """With the lists described by the training data, [n] each."""
        lists = describe_lists(relevance, query, lambda y, *_: torch.ones_like(widen(y)), signed=True)
        return cls(len(lists.size), lists, **options)

    def forward(self, scores: Tensor, relevance: Tensor, query: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch of items: scores, relevances, queries and rows, [B] each."""
        return self._listwise_loss(list_mle_inner, scores, relevance, query, index)


@dataclass(frozen=True)
class _Discount:
    """f(r) = -1 / log2(1 + r), within a soft top k."""

    log: bool
    k: int | None
    sharpness: float

    def __call__(self, rank: Tensor) -> Tensor:
        discount = math.log(2) / (F.softplus(rank) if self.log else torch.log1p(rank))
        if self.k is None:
            return -discount
        rank = rank.clamp(max=60.0).exp() if self.log else rank
        return -discount * torch.sigmoid(self.sharpness * (self.k + 0.5 - rank))


class NDCGLoss(_ListwiseLoss):
    r"""Negative of a smooth normalised discounted cumulative gain, over lists of any length.

    .. math:: F = -\frac{1}{Q} \sum_q \frac{1}{Z_q} \sum_{i \in q} \frac{2^{y_i} - 1}{\log_2(1 + r_i)},
        \qquad r_i = 1 + \sum_{j \in q, j \ne i} \ell(h_j - h_i)

    Called as ``loss(scores, relevance, query, index)`` with [B] each: some items of some queries.

    The default, SOAP with γ = visits^(-1/4) and a bounded own term, was chosen by measurement: see docs/defaults.md.
    Where batches have lists whole, ranks are exact and a table only lags behind: use ``rule=fcco.BSGD()``.

    How many queries a batch stands for is estimated from it too, and divided by: with parts of lists the value is off
    by 0 to 2% (LightGBM's lambdarank data, batches of 8 to 64 items, own term sampled).

    Args:
        n: training items; ``index`` lies in [0, n).
        surrogate: ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", or an elementwise function of t.
        margin: of the hinges.
        k: length of the top that counts, softly; None: all.
        sharpness: of the top's edge.
        lists: sizes and ideal gains of the queries, which :meth:`from_targets` takes from the training data. With them
            a batch may hold any part of a list, relevant items being visited equally often
            (``QuerySampler(query, relevance)``). Without, the batch's items are taken for the whole.
        rule: see :class:`fcco.SOX`; ``fcco.BSGD()`` is the in-batch loss.
        own_term: "exact", unbiased; an item then has no term in a batch that lacks others to stand for the query's
            relevant or irrelevant ones. "sampled": an item stands for as many relevant ones as any other relevant item
            of the batch, as in-batch losses have it, so that no rank is below that number. "bounded": it stands for 2
            less the share of the query's relevant items that the batch has, or for all of them if it is alone.

    >>> loss_fn = NDCGLoss.from_targets(relevance=[1.0, 0.0, 0.0, 2.0, 1.0], query=[0, 0, 0, 1, 1])
    >>> scores = torch.tensor([0.3, 0.1, 0.9], requires_grad=True)
    >>> relevance, query = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0, 0, 1])
    >>> loss_fn(scores, relevance, query, index=torch.tensor([0, 2, 3])).backward()

    Reference: Qiu et al., *Large-scale Stochastic Optimization of NDCG Surrogates*, ICML 2022.
    """

    def __init__(
        self,
        n: int,
        surrogate: SurrogateLike = "squared_hinge",
        margin: float = 1.0,
        k: int | None = None,
        sharpness: float = 2.0,
        lists: Lists | None = None,
        rule: Rule = SOAP(gamma=Power(0.25)),  # noqa: B008 (frozen)
        own_term: ListOwnTerm = "bounded",
    ) -> None:
        check_count(k, "k")
        check_number(sharpness, "sharpness", above=0)
        ell = resolve_surrogate(surrogate, margin)
        outer = _Discount(ell.is_exp, k, sharpness)
        super().__init__(outer, n, lists=lists, own_term=own_term, rule=rule, log=ell.is_exp)
        self.surrogate, self.k = ell, k

    @classmethod
    def from_targets(cls, relevance: Any, query: Any, *, k: int | None = None, **options: Any) -> NDCGLoss:
        """With the lists described by the training data, [n] each."""
        lists = describe_lists(relevance, query, partial(gain_share, k=k))
        return cls(len(lists.size), k=k, lists=lists, **options)._with_outer(count_relevant(lists))

    def forward(self, scores: Tensor, relevance: Tensor, query: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch of items: scores, relevances, queries and rows, [B] each."""
        return self._listwise_loss(ndcg_inner, scores, relevance, query, index, surrogate=self.surrogate, k=self.k)
