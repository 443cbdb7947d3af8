"""Losses of learning to rank: ListNet, ListMLE, NDCG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco._checks import as_index, missing_index, reads_are_free, shape_of
from fcco._table import at_least_single
from fcco.core.rules import BSGD, SOAP, Rule
from fcco.core.surrogates import as_surrogate
from fcco.functional._checks import (
    as_groups,
    check_choice,
    check_count,
    check_floats,
    check_integers,
    check_number,
    check_relevance,
)
from fcco.functional._inner_listwise import ListOwnTerm, Lists, check_list_own_term
from fcco.functional._listwise import gain_share, relevance_share
from fcco.functional._surrogates import SurrogateLike
from fcco.functional._tensors import at_least_float32, narrower, widen
from fcco.losses.loss import ObjectiveLoss
from fcco.losses.memory import Memory, as_memory
from fcco.losses.population import as_values
from fcco.losses.temperature import Temperature, TemperedLoss
from fcco.objectives.lists import NDCG, ListMLE, ListNet, Listwise
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


class _ListwiseLoss(ObjectiveLoss):
    """Base class of losses over the items of queries, whose lists are either described in advance or unknown."""

    columns = ("scores", "relevance", "query")

    objective: Listwise
    list_size: Tensor | None

    def __init__(
        self, objective: Listwise, n: int, lists: Lists | None, rule: Rule, memory: Memory | int, **more: Any
    ) -> None:
        check_list_own_term(objective.self_term)  # type: ignore[arg-type]
        options = as_memory(memory, Memory(mode="estimate"))
        if options is not None and options.mode != "estimate":
            raise ValueError(
                f"memory of a listwise loss must have the mode 'estimate'; got {options.mode!r}. What is remembered of "
                "a query is as old as its last visit"
            )
        if options is not None and lists is None:
            raise ValueError("memory needs lists, because it holds parts of them; use from_targets")
        super().__init__(objective, n, rule=rule, memory=options, **more)
        self.own_term = objective.self_term
        for name in Lists._fields:
            values = None if lists is None else getattr(lists, name)
            if values is not None and values.shape != (self.n,):
                raise ValueError(f"lists.{name} must have the shape [{self.n}]; got {list(values.shape)}")
            self.register_buffer(f"list_{name}", values, persistent=False)
        # The dtype as given: a later cast to a wider one adds no information.
        self._digits = torch.float64 if lists is None else lists.relevance.dtype
        if lists is not None:  # only counts identify the lists, because they are the same on every machine
            relevant = round(float((lists.relevant / lists.size).sum()))  # each item has its share of its query's
            n_outer = None if objective.all_items else relevant
            self.knows(None, n_outer, lists=torch.stack([lists.size, lists.relevant]))

    def forward(  # type: ignore[override]
        self, scores: Tensor, relevance: Tensor, query: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,)
            The scores of some items of some queries.
        relevance : Tensor of shape (B,)
            The relevances of the items.
        query : Tensor of shape (B,)
            The query of each item, an integer.
        index : Tensor of shape (B,) or None, default None
            The rows of the items in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()`` and there is no memory. Without them, the items of the batch are taken as the whole lists.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return super().forward(scores, relevance, query, index=index)

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, with what is known of the lists; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B,) or None
            The rows.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        scores, relevance, query = columns
        check_floats(scores, "scores", "[B]", room=4)
        check_relevance(relevance, scores, "scores", signed=self.objective.all_items)
        check_integers(query, "query", scores, "scores")
        lists = self._lists_of(index)
        if lists is None:
            return (scores, at_least_float32(relevance), query), index
        known = (values.to(self._dtype(columns)) for values in lists[:3])
        return (scores, at_least_float32(lists.relevance), lists.number, *known), index

    def _rows(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Tensor, Any]:
        if index is None and self.memory is not None:
            raise missing_index("the memory holds parts of lists")
        checked = super()._rows(columns, index)
        if len(checked[0]) > len(columns):
            self._check_lists(checked[1], *columns[1:], *checked[0][1:3])
        return checked

    def _check_lists(self, rows: Tensor, relevance: Tensor, query: Tensor, known: Tensor, number: Tensor) -> None:
        """Raise if the relevance or the query of an item differs from the training data, if reading values is free."""
        if not reads_are_free(rows):
            return
        common = narrower(relevance.dtype, self._digits)
        differs = relevance.to(common) != known.to(common)
        if bool(differs.any()):
            place = int(differs.nonzero()[0])
            raise ValueError(
                f"relevance must be {known[place].item()} for row {int(rows[place])}, as in the training data; "
                f"got {relevance[place].item()} at position {place}"
            )
        given, wanted = (_first_alike(ids.numpy()) for ids in (query, number))
        differing = (given != wanted).nonzero()[0]
        if len(differing):
            second = int(differing[0])
            first = int(min(given[second], wanted[second]))
            one, other = int(query[first]), int(query[second])
            found = f"{one} at positions {first} and {second}"
            if one != other:
                found = f"{one} at position {first} and {other} at position {second}"
            raise ValueError(
                f"query must be {'different' if one == other else 'the same'} for rows {int(rows[first])} and "
                f"{int(rows[second])}, as in the training data; got {found}"
            )

    def _lists_of(self, index: Any) -> Lists | None:
        """Return the description of the lists of some items, or None if there is none."""
        if index is None or self.list_size is None:
            return None
        # An invalid row, which is refused later, must not be used before.
        rows = as_index(index, self.list_size.device).clamp(0, self.n - 1)
        return Lists(*(getattr(self, f"list_{name}") for name in Lists._fields)).at(rows)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _ListwiseLoss:
        return super()._apply(at_least_single(fn), recurse)


def _first_alike(ids: NDArray[Any]) -> NDArray[Any]:
    """Return for each of some numbers where it is first."""
    _, first, slot = np.unique(ids, return_index=True, return_inverse=True)
    return first[slot]


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
        How many outputs of recent batches to remember, or a :class:`fcco.Memory` with the mode "estimate". Items of
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
        super().__init__(ListNet(target, own_term), n, lists, rule, memory)
        self.target = target

    @classmethod
    def from_targets(
        cls,
        relevance: Any,
        query: Any,
        *,
        target: Literal["proportional", "softmax"] = "proportional",
        **options: Any,
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
        return cls(len(lists.size), target, lists, **options)


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
        How many outputs of recent batches to remember, or a :class:`fcco.Memory` with the mode "estimate". Items of
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
        super().__init__(ListMLE(own_term), n, lists, rule, memory)

    @classmethod
    def from_targets(cls, relevance: Any, query: Any, **options: Any) -> ListMLELoss:
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
        How many outputs of recent batches to remember, or a :class:`fcco.Memory` with the mode "estimate". Items of
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
        objective = NDCG(as_surrogate(surrogate, margin), 1.0, k, sharpness, own_term)
        super().__init__(objective, n, lists, rule, memory, temperature=temperature)
        self.surrogate, self.k, self.sharpness = objective.surrogate, k, sharpness

    @classmethod
    def from_targets(cls, relevance: Any, query: Any, *, k: int | None = None, **options: Any) -> NDCGLoss:
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
        return cls(len(lists.size), k=k, lists=lists, **options)

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, with what is known of the lists; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B,) or None
            The rows.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        made = super().given(columns, index)
        _, relevance, query = columns
        if reads_are_free(relevance) and relevance.max() > 1000:  # otherwise no sum of gains overflows
            gain_share(relevance, *as_groups(query, "query", relevance, "relevance"), self.k)
        return made
