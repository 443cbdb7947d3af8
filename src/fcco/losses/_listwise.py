"""Losses of learning to rank: ListNet, ListMLE, NDCG."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco._checks import as_index, check_rows, shape_of
from fcco._memory import as_memory
from fcco._outer import Outer
from fcco._pool import Estimate, Pool
from fcco.core.rules import BSGD, SOAP, Rule
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
from fcco.losses._array_outer import ArrayOuter, Discount, Logarithm
from fcco.losses._base import Loss, Scale, as_values
from fcco.losses._by_hand import Array, ArrayEstimate, can_work_by_hand, step_by_hand
from fcco.losses._hand_listwise import list_mle_by_hand, list_net_by_hand, ndcg_by_hand
from fcco.losses._options import ListMLEOptions, ListNetOptions, NDCGOptions
from fcco.losses._population import check_lists
from fcco.losses._temperature import Temperature, TemperedLoss
from fcco.losses.memory import Memory
from fcco.losses.memory import as_memory as as_mode
from fcco.schedules import Power


def describe_lists(
    relevance: Any, query: Any, share: Callable[[Tensor, Tensor, int], Tensor], *, signed: bool = False
) -> Lists:
    """Describe every item and its query, with tensors of shape (n,).

    ``share`` computes how much each item counts in its query.
    """
    relevance, query = as_values(relevance), as_values(query)
    if relevance.dim() != 1:
        raise ValueError(f"relevance must have the shape [n]; got {shape_of(relevance)}")
    check_relevance(relevance, relevance, "relevance", signed=signed)
    lists, count = as_groups(query, "query", relevance, "relevance")
    size = lists.bincount()
    relevant = torch.zeros_like(size).index_add(0, lists, (relevance > 0).to(size.dtype))
    return Lists(size[lists], relevant[lists], share(relevance, lists, count), lists, relevance.clone())


def count_relevant(lists: Lists) -> int:
    """Return the number of relevant items; each item contributes its share of its query's number."""
    return round(float((lists.relevant / lists.size).sum()))


class _ListwiseLoss(Loss):
    """Base class of losses over the items of queries, whose lists are either described in advance or unknown."""

    def __init__(
        self,
        outer: Outer,
        n: int,
        *,
        lists: Lists | None,
        own_term: ListOwnTerm,
        rule: Rule,
        memory: Memory | int,
        log: bool = True,
    ) -> None:
        remembered = as_memory(as_mode(memory, Memory(mode="estimate")))
        if remembered is not None and remembered.strength != "estimate":
            raise ValueError(
                f"memory of a listwise loss must have the strength 'estimate'; got {remembered.strength!r}. What is "
                "remembered of a query is as old as its last visit"
            )
        if remembered is not None and lists is None:
            raise ValueError("memory needs lists, because it holds parts of them; use from_targets")
        super().__init__(outer, n, rule=rule, log=log, memory=remembered)
        check_list_own_term(own_term)
        self.own_term: ListOwnTerm = own_term
        for name in Lists._fields:
            values = None if lists is None else getattr(lists, name)
            if values is not None and values.shape != (self.n,):
                raise ValueError(f"lists.{name} must have the shape [{self.n}]; got {list(values.shape)}")
            self.register_buffer(f"list_{name}", values, persistent=False)
        if lists is not None:  # only counts identify the lists, because they are the same on every machine
            self._identify(lists=torch.stack([lists.size, lists.relevant]))
        # The dtype as given: a later cast to a wider one adds no information.
        self._digits = torch.float64 if lists is None else lists.relevance.dtype

    def _listwise_loss(
        self,
        inner: Callable[..., Estimate],
        scores: Tensor,
        relevance: Tensor,
        query: Tensor,
        index: Tensor,
        **options: Any,
    ) -> Tensor:
        """Return the loss of a batch, whose inner estimate ``inner`` makes with these options."""

        def estimate(pool: Pool) -> Estimate:
            lists, known = self._lists_of(pool), {"own_term": self.own_term, "recall": pool.recall}
            return inner(*pool.own, rivals=pool.rivals, rows=pool.rows, lists=lists, **known, **options)

        return self._loss(estimate, scores, relevance, query, index=index, check=self._check)

    def _by_hand(
        self,
        estimate: Callable[..., ArrayEstimate],
        f: ArrayOuter,
        scores: Tensor,
        relevance: Tensor,
        query: Tensor,
        index: Any,
        **options: Any,
    ) -> Tensor | None:
        """Return the loss of a batch, or None if the engine has to take the step."""
        known, own_term = self._buffers["list_size"], self.own_term
        if self.memory is not None or known is None or own_term == "exact" or index is None:
            return None
        if not (can_work_by_hand(self.coupled, (scores,), (relevance, query)) and known.is_cpu and scores.dim() == 1):
            return None
        if query.dtype not in (torch.int64, torch.int32):
            return None

        def with_lists(scores: Array, relevance: Array, query: Array) -> ArrayEstimate:
            # The rows are within [0, n), because the step has checked them by now.
            lists = [self._buffers[f"list_{name}"].numpy().take(rows) for name in Lists._fields]  # type: ignore[union-attr]
            return estimate(scores, relevance, query, known=lists, own_term=own_term, **options)

        rows = as_index(index, scores.device).numpy()
        return step_by_hand(self.coupled, (scores,), index, f, with_lists, relevance, query)

    def _check(self, pool: Pool) -> None:
        """Refuse a batch that contradicts the training data."""
        _, relevances, queries = pool.joined()
        check_lists(pool.rows, relevances, queries, self._lists_of(pool), self._digits)

    def _lists_of(self, pool: Pool) -> Lists | None:
        """Return the description of the lists of some items, or None if there is none."""
        rows, lists = pool.rows, [getattr(self, f"list_{name}") for name in Lists._fields]
        if rows is None or lists[0] is None:
            return None
        if pool.recall is None:  # otherwise, empty places of the memory have rows below 0
            check_rows(rows, self.n)
        # If the check is asynchronous, an invalid row must not be used as an index before it fails.
        return Lists(*lists).at(rows.clamp(0, self.n - 1))


class ListNetLoss(_ListwiseLoss):
    r"""Cross entropy between the relevances and the scores of each query, over lists of any length.

    .. math:: F = \frac{1}{Q} \sum_q \sum_{i \in q} P(y_i) \log \sum_{j \in q} e^{h_j - h_i}

    Parameters
    ----------
    n : int
        The number of training items.
    target : {"proportional", "softmax"}, default "proportional"
        How relevances become probabilities: P(y) ∝ y with "proportional", P(y) ∝ e^y with "softmax".
    lists : Lists or None, default None
        The sizes and totals of the queries, which :meth:`from_targets` computes from the training data. With them a
        batch may hold any part of a list, as long as all items with P(y) > 0 are visited equally often. Use
        ``QuerySampler(query, relevance)`` or, with "softmax", ``QuerySampler(query)``. Without them, the items of the
        batch are taken as the whole lists.
    rule : Rule, default ``fcco.BSGD()``
        How rows are updated; see :class:`fcco.SOX`. The default has no table.
    own_term : {"exact", "sampled", "bounded"}, default "sampled"
        "exact" is unbiased, but an item has no term if the batch lacks others to represent the query's relevant or
        irrelevant items. "sampled" weighs the own term like the other terms of the batch, as in-batch losses do. For
        "bounded" see :class:`NDCGLoss`.
    memory : Memory or int, default 0
        How many outputs of recent batches to remember, or a :class:`fcco.Memory` of the strength "estimate". Items of
        the same query are then compared with them. It needs ``lists``.

    Raises
    ------
    ValueError
        If an option is invalid, or if ``lists`` does not describe n items.

    See Also
    --------
    fcco.functional.list_net_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, relevance, query, index)`` takes four tensors of shape (B,) for some items of some queries:
    scores, relevances, queries (integers), and rows in [0, n). It returns a scalar. The loss works in log space.

    ``ListNetLoss(n, rule=fcco.BSGD())`` without ``lists`` is the usual loss of the lists in the batch: cross entropy
    with the relevances as soft labels.

    The number of queries that a batch represents is also estimated from the batch, and the loss is divided by it. If
    batches hold parts of lists, the value is therefore off by 0 to 2% (LightGBM's lambdarank data, batches of 8 to 64
    items, sampled own term).

    The default rule and own term were chosen by measurement, on short lists; see docs/defaults.md.

    References
    ----------
    .. [1] Cao et al., *Learning to Rank: From Pairwise Approach to Listwise Approach*, ICML 2007.

    Examples
    --------
    >>> loss_fn = ListNetLoss.from_targets(relevance=[1.0, 0.0, 0.0, 2.0, 1.0], query=[0, 0, 0, 1, 1])
    >>> scores = torch.tensor([0.3, 0.1, 0.9], requires_grad=True)
    >>> relevance, query = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0, 0, 1])
    >>> loss_fn(scores, relevance, query, index=torch.tensor([0, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        target: Literal["proportional", "softmax"] = "proportional",
        lists: Lists | None = None,
        rule: Rule = BSGD(),  # noqa: B008 (frozen)
        own_term: ListOwnTerm = "sampled",
        memory: Memory | int = 0,
    ) -> None:
        check_choice(target, "target", ("proportional", "softmax"))
        super().__init__(Scale(), n, lists=lists, own_term=own_term, rule=rule, memory=memory)
        self.target = target

    @classmethod
    def from_targets(
        cls,
        relevance: Any,
        query: Any,
        *,
        target: Literal["proportional", "softmax"] = "proportional",
        **options: Unpack[ListNetOptions],
    ) -> ListNetLoss:
        """Create the loss for the relevances and queries of the training data.

        Parameters
        ----------
        relevance : array-like of shape (n,)
            The relevances of the training items.
        query : array-like of shape (n,)
            The query of each training item, an integer.
        target : {"proportional", "softmax"}, default "proportional"
            How relevances become probabilities.
        **options
            Further arguments of the constructor.

        Returns
        -------
        ListNetLoss
            The loss.
        """
        check_choice(target, "target", ("proportional", "softmax"))
        share = partial(relevance_share, target=target)
        lists = describe_lists(relevance, query, share, signed=target == "softmax")
        loss = cls(len(lists.size), target, lists, **options)
        return loss if target == "softmax" else loss._with_outer(count_relevant(lists))

    def forward(self, scores: Tensor, relevance: Tensor, query: Tensor, index: Tensor) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,)
            The scores of some items of some queries.
        relevance : Tensor of shape (B,)
            The relevances of the items.
        query : Tensor of shape (B,)
            The query of each item, an integer.
        index : Tensor of shape (B,)
            The rows of the items in the training set, in [0, n).

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        loss = self._by_hand(list_net_by_hand, Logarithm(), scores, relevance, query, index, target=self.target)
        if loss is not None:
            return loss
        return self._listwise_loss(list_net_inner, scores, relevance, query, index, target=self.target)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward


class ListMLELoss(_ListwiseLoss):
    r"""Negative log-likelihood of drawing each query's items in the order of their relevance.

    .. math:: F = \frac{1}{n} \sum_i \log \sum_{j \in q_i, y_j \le y_i} e^{h_j - h_i}

    Parameters
    ----------
    n : int
        The number of training items.
    lists : Lists or None, default None
        The sizes of the queries, which :meth:`from_targets` computes from the training data. With them a batch may hold
        any part of a list, as long as all items are visited equally often; use ``QuerySampler(query)``. Without them,
        the items of the batch are taken as the whole lists.
    rule : Rule, default ``fcco.BSGD()``
        How rows are updated; see :class:`fcco.SOX`. The default is the in-batch loss, which has no table.
    own_term : {"exact", "sampled", "bounded"}, default "sampled"
        "exact" is unbiased, but an item has no term if the batch lacks others to represent the query's relevant or
        irrelevant items. "sampled" weighs the own term like the other terms of the batch, as in-batch losses do. For
        "bounded" see :class:`NDCGLoss`.
    memory : Memory or int, default 0
        How many outputs of recent batches to remember, or a :class:`fcco.Memory` of the strength "estimate". Items of
        the same query are then compared with them. It needs ``lists``.

    Raises
    ------
    ValueError
        If ``own_term`` is invalid, or if ``lists`` does not describe n items.

    See Also
    --------
    fcco.functional.list_mle_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, relevance, query, index)`` takes four tensors of shape (B,) for some items of some queries:
    scores, relevances, queries (integers), and rows in [0, n). It returns a scalar. The loss works in log space.

    The number of items that a batch represents is also estimated from the batch, and the loss is divided by it. On
    LightGBM's lambdarank data, with batches of 8 to 64 items and a sampled own term, the value is therefore off by:

    ========================= =======
    parts of lists            0 to 2%
    one whole list per batch  -5%
    ========================= =======

    The second error arises because short lists then weigh as much as long ones.

    The default rule and own term were chosen by measurement, on short lists; see docs/defaults.md.

    References
    ----------
    .. [1] Xia et al., *Listwise Approach to Learning to Rank*, ICML 2008.

    Examples
    --------
    >>> loss_fn = ListMLELoss.from_targets(relevance=[1.0, 0.0, 0.0, 2.0, 1.0], query=[0, 0, 0, 1, 1])
    >>> scores = torch.tensor([0.3, 0.1, 0.9], requires_grad=True)
    >>> relevance, query = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0, 0, 1])
    >>> loss_fn(scores, relevance, query, index=torch.tensor([0, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        lists: Lists | None = None,
        rule: Rule = BSGD(),  # noqa: B008 (frozen)
        own_term: ListOwnTerm = "sampled",
        memory: Memory | int = 0,
    ) -> None:
        super().__init__(Scale(), n, lists=lists, own_term=own_term, rule=rule, memory=memory)

    @classmethod
    def from_targets(cls, relevance: Any, query: Any, **options: Unpack[ListMLEOptions]) -> ListMLELoss:
        """Create the loss for the relevances and queries of the training data.

        Parameters
        ----------
        relevance : array-like of shape (n,)
            The relevances of the training items.
        query : array-like of shape (n,)
            The query of each training item, an integer.
        **options
            Further arguments of the constructor.

        Returns
        -------
        ListMLELoss
            The loss.
        """
        lists = describe_lists(relevance, query, lambda y, *_: torch.ones_like(widen(y)), signed=True)
        return cls(len(lists.size), lists, **options)

    def forward(self, scores: Tensor, relevance: Tensor, query: Tensor, index: Tensor) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,)
            The scores of some items of some queries.
        relevance : Tensor of shape (B,)
            The relevances of the items.
        query : Tensor of shape (B,)
            The query of each item, an integer.
        index : Tensor of shape (B,)
            The rows of the items in the training set, in [0, n).

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        loss = self._by_hand(list_mle_by_hand, Logarithm(), scores, relevance, query, index)
        if loss is not None:
            return loss
        return self._listwise_loss(list_mle_inner, scores, relevance, query, index)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward


@dataclass(frozen=True)
class _Discount:
    """The outer function f(r) = -1 / log2(1 + r), multiplied by a soft indicator of the top k."""

    log: bool
    k: int | None
    sharpness: float

    def __call__(self, rank: Tensor) -> Tensor:
        discount = math.log(2) / (F.softplus(rank) if self.log else torch.log1p(rank))
        if self.k is None:
            return -discount
        rank = rank.clamp(max=60.0).exp() if self.log else rank
        return -discount * torch.sigmoid(self.sharpness * (self.k + 0.5 - rank))


class NDCGLoss(_ListwiseLoss, TemperedLoss):
    r"""Negative of a smooth normalised discounted cumulative gain (NDCG), over lists of any length.

    .. math:: F = -\frac{1}{Q} \sum_q \frac{1}{Z_q} \sum_{i \in q} \frac{2^{y_i} - 1}{\log_2(1 + r_i)},
        \qquad r_i = 1 + \sum_{j \in q, j \ne i} \ell((h_j - h_i) / \tau)

    Parameters
    ----------
    n : int
        The number of training items.
    surrogate : str or callable, default "ramp"
        The surrogate ℓ: "ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp", or an elementwise function.
    margin : float, default 1.0
        The margin of the hinges.
    k : int or None, default None
        How many places at the top count, with a soft edge; all by default.
    sharpness : float, default 2.0
        How sharp the edge of the top k is, positive.
    lists : Lists or None, default None
        The sizes and ideal gains of the queries, which :meth:`from_targets` computes from the training data. With them
        a batch may hold any part of a list, as long as all relevant items are visited equally often; use
        ``QuerySampler(query, relevance)``. Without them, the items of the batch are taken as the whole lists.
    rule : Rule, default ``fcco.SOAP(gamma=fcco.schedules.Power(0.25))``
        How rows are updated; see :class:`fcco.SOX`. The default has γ = visits^(-1/4). ``fcco.BSGD()`` gives the
        in-batch loss.
    own_term : {"exact", "sampled", "bounded"}, default "bounded"
        How many relevant items of its query a relevant item represents.

        - "exact": only itself. This is unbiased, but an item has no term if the batch lacks others to represent the
          query's relevant or irrelevant items.
        - "sampled": as many as any other relevant item of the batch, as in in-batch losses. No rank is then below that
          number.
        - "bounded": 2 minus the share of the query's relevant items that is in the batch, or all of them if it is the
          only one.
    temperature : float or callable, default 1.0
        The temperature τ in units of the scores, or a function of the number of steps taken so far.
    memory : Memory or int, default 0
        How many outputs of recent batches to remember, or a :class:`fcco.Memory` of the strength "estimate". Items of
        the same query are then compared with them. It needs ``lists``.

    Raises
    ------
    ValueError
        If an option is invalid, or if ``lists`` does not describe n items.

    See Also
    --------
    fcco.functional.ndcg_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, relevance, query, index)`` takes four tensors of shape (B,) for some items of some queries:
    scores, relevances, queries (integers), and rows in [0, n). It returns a scalar.

    If batches hold whole lists, ranks are exact and a table only lags behind: use ``rule=fcco.BSGD()``.

    The number of queries that a batch represents is also estimated from the batch, and the loss is divided by it. If
    batches hold parts of lists, the value is therefore off by 0 to 2% (LightGBM's lambdarank data, batches of 8 to 64
    items, sampled own term).

    The default rule and own term were chosen by measurement; see docs/defaults.md.

    References
    ----------
    .. [1] Qiu et al., *Large-scale Stochastic Optimization of NDCG Surrogates*, ICML 2022.

    Examples
    --------
    >>> loss_fn = NDCGLoss.from_targets(relevance=[1.0, 0.0, 0.0, 2.0, 1.0], query=[0, 0, 0, 1, 1])
    >>> scores = torch.tensor([0.3, 0.1, 0.9], requires_grad=True)
    >>> relevance, query = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0, 0, 1])
    >>> loss_fn(scores, relevance, query, index=torch.tensor([0, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        surrogate: SurrogateLike = "ramp",
        margin: float = 1.0,
        k: int | None = None,
        sharpness: float = 2.0,
        lists: Lists | None = None,
        rule: Rule = SOAP(gamma=Power(0.25)),  # noqa: B008 (frozen)
        own_term: ListOwnTerm = "bounded",
        temperature: Temperature = 1.0,
        memory: Memory | int = 0,
    ) -> None:
        check_count(k, "k")
        check_number(sharpness, "sharpness", above=0)
        ell = resolve_surrogate(surrogate, margin)
        outer = _Discount(ell.is_exp, k, sharpness)
        super().__init__(outer, n, lists=lists, own_term=own_term, rule=rule, memory=memory, log=ell.is_exp)
        self.surrogate, self.k, self.sharpness = ell, k, sharpness
        self._set_temperature(temperature)

    @classmethod
    def from_targets(
        cls, relevance: Any, query: Any, *, k: int | None = None, **options: Unpack[NDCGOptions]
    ) -> NDCGLoss:
        """Create the loss for the relevances and queries of the training data.

        Parameters
        ----------
        relevance : array-like of shape (n,)
            The relevances of the training items.
        query : array-like of shape (n,)
            The query of each training item, an integer.
        k : int or None, default None
            How many places at the top count; all by default.
        **options
            Further arguments of the constructor.

        Returns
        -------
        NDCGLoss
            The loss.
        """
        lists = describe_lists(relevance, query, partial(gain_share, k=k))
        return cls(len(lists.size), k=k, lists=lists, **options)._with_outer(count_relevant(lists))

    def forward(self, scores: Tensor, relevance: Tensor, query: Tensor, index: Tensor) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,)
            The scores of some items of some queries.
        relevance : Tensor of shape (B,)
            The relevances of the items.
        query : Tensor of shape (B,)
            The query of each item, an integer.
        index : Tensor of shape (B,)
            The rows of the items in the training set, in [0, n).

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        options: dict[str, Any] = {"surrogate": self.surrogate, "temperature": self._temperature_now()}
        if self.surrogate.has_name and not self.coupled.log:
            f = Discount(self.k, self.sharpness)
            loss = self._by_hand(ndcg_by_hand, f, scores, relevance, query, index, **options)
            if loss is not None:
                return loss
        options["k"] = self.k
        return self._listwise_loss(ndcg_inner, scores, relevance, query, index, **options)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward
