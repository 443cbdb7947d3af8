"""Metrics of rankings, for tensors on any device, in O(n log n). They have no gradient; the losses have one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco.functional._bipartite import as_weight
from fcco.functional._checks import as_groups, as_mask, check_floats, check_relevance, check_time
from fcco.functional._classes import has_classes, macro_mean, refuse_weight
from fcco.functional._listwise import gain_share
from fcco.functional._tensors import widen


@torch.no_grad()
def average_precision(scores: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
    r"""Average precision: the mean over the positives of the precision at their place.

    Parameters
    ----------
    scores : Tensor of shape (n,) or (n, C)
        The scores. With a column for each class, the result is the mean over the classes that have positives.
    target : Tensor of shape (n,) or (n, C)
        The labels: 0 and 1, -1 and 1, or bool. With a column for each class, -1 and NaN stand for missing labels, and
        classes of shape (n,) are accepted as well.
    weight : Tensor of shape (n,) or None, default None
        How often each example counts, at least 0; for a single class only.

    Returns
    -------
    Tensor
        A scalar in float64; NaN without positives.

    See Also
    --------
    fcco.functional.average_precision_loss : A smooth surrogate.

    Notes
    -----
    This is scikit-learn's ``average_precision_score``: examples of equal scores are taken together.

    Examples
    --------
    >>> import torch
    >>> average_precision(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 0, 1]))  # (1 + 2/3) / 2
    tensor(0.8333, dtype=torch.float64)
    """
    if has_classes(scores):
        return _macro(average_precision, scores, target, weight, both=False)
    above, total = _weight_from_the_top(scores, target, weight)
    ones, among_positives = total[1], above[1]
    precision = among_positives / (among_positives + above[0])
    share = ones / ones.sum()
    return torch.where(ones > 0, share * precision, 0.0).sum() if ones.sum() > 0 else _undefined(scores)


@torch.no_grad()
def roc_auc(scores: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
    r"""Area under the ROC curve: the share of pairs in which the positive is above the negative.

    A pair of equal scores counts half.

    Parameters
    ----------
    scores : Tensor of shape (n,) or (n, C)
        The scores. With a column for each class, the result is the mean over the classes that have both positives and
        negatives.
    target : Tensor of shape (n,) or (n, C)
        The labels: 0 and 1, -1 and 1, or bool. With a column for each class, -1 and NaN stand for missing labels, and
        classes of shape (n,) are accepted as well.
    weight : Tensor of shape (n,) or None, default None
        How often each example counts, at least 0; for a single class only.

    Returns
    -------
    Tensor
        A scalar in float64; NaN without positives or without negatives.

    See Also
    --------
    fcco.functional.auc_loss : A smooth surrogate of one minus this.

    Examples
    --------
    >>> import torch
    >>> roc_auc(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 0, 1]))
    tensor(0.5000, dtype=torch.float64)
    """
    if has_classes(scores):
        return _macro(roc_auc, scores, target, weight)
    above, level = _weight_from_the_top(scores, target, weight)
    negatives, positives = above[0, -1], above[1, -1]
    below = negatives - above[0] + level[0] / 2
    pairs = positives * negatives
    return (level[1] * below).sum() / pairs if pairs > 0 else _undefined(scores)


def _macro(
    metric: Callable[..., Tensor], scores: Tensor, target: Tensor, weight: Tensor | None, *, both: bool = True
) -> Tensor:
    """Return the mean of a metric over classes; NaN if no class has one."""
    refuse_weight(weight)
    values: list[Tensor] = []

    def measure(own: Tensor, labels: Tensor) -> Tensor:
        values.append(metric(own, labels))
        return values[-1]

    mean = macro_mean(measure, scores, target, both=both)
    return mean if values else _undefined(scores)


def _undefined(like: Tensor) -> Tensor:
    """Return NaN, in float64."""
    return widen(like.new_full((), math.nan))


def _weight_from_the_top(scores: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return, for each distinct score from the top, the weight down to it and at it.

    Both have the shape (2, distinct scores): negatives first, then positives.
    """
    check_floats(scores, "scores")
    positive = as_mask(target, "target", scores, "scores")
    weight = as_weight(weight, scores)
    distinct, place = torch.unique(-scores, return_inverse=True)  # ascending, so the highest score is first
    parts = torch.stack([weight * ~positive, weight * positive])
    at = parts.new_zeros(2, len(distinct)).index_add(1, place, parts)
    return at.cumsum(1), at


@torch.no_grad()
def precision_at_k(scores: Tensor, target: Tensor, k: int, *, query: Tensor | None = None) -> Tensor:
    """Share of positives among the k highest scores, in the mean over queries.

    Parameters
    ----------
    scores : Tensor of shape (n,)
        The scores.
    target : Tensor of shape (n,)
        The labels: 0 and 1, -1 and 1, or bool.
    k : int
        How many places at the top count. Places that a shorter list lacks count as negatives.
    query : Tensor of shape (n,) or None, default None
        The query of each item, an integer. By default, there is one.

    Returns
    -------
    Tensor
        A scalar in float64.

    Notes
    -----
    Items of equal scores share their places, which gives the mean over all orders of them.

    Examples
    --------
    >>> import torch
    >>> precision_at_k(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 0, 1]), k=2)
    tensor(0.5000, dtype=torch.float64)
    """
    found, _ = _found_at_k(scores, target, k, query)
    return (found / k).mean()


@torch.no_grad()
def recall_at_k(scores: Tensor, target: Tensor, k: int, *, query: Tensor | None = None) -> Tensor:
    """Share of the positives that are among the k highest scores, in the mean over queries.

    Parameters
    ----------
    scores : Tensor of shape (n,)
        The scores.
    target : Tensor of shape (n,)
        The labels: 0 and 1, -1 and 1, or bool.
    k : int
        How many places at the top count.
    query : Tensor of shape (n,) or None, default None
        The query of each item, an integer. By default, there is one. Queries without positives are not counted.

    Returns
    -------
    Tensor
        A scalar in float64; NaN without positives.

    Notes
    -----
    Items of equal scores share their places, which gives the mean over all orders of them.

    Examples
    --------
    >>> import torch
    >>> recall_at_k(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 0, 1]), k=1)
    tensor(0.5000, dtype=torch.float64)
    """
    found, positives = _found_at_k(scores, target, k, query)
    return (found / positives)[positives > 0].mean()


def _found_at_k(scores: Tensor, target: Tensor, k: int, query: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return, for each query, the number of positives among the k highest scores, and the number of all positives."""
    whole_number("k", k)
    check_floats(scores, "scores")
    positive = widen(as_mask(target, "target", scores, "scores"))
    lists, count = _lists(scores, query)
    inside = _shared_places(scores, lists, lambda place: widen(place <= k))
    totals = positive.new_zeros(2, count).index_add(1, lists, torch.stack([positive * inside, positive]))
    return totals[0], totals[1]


@torch.no_grad()
def ndcg(scores: Tensor, relevance: Tensor, *, query: Tensor | None = None, k: int | None = None) -> Tensor:
    r"""Normalised discounted cumulative gain, in the mean over queries.

    .. math:: \frac{1}{Q} \sum_q \frac{1}{Z_q} \sum_{i \in q} \frac{2^{y_i} - 1}{\log_2(1 + rank_i)}

    Parameters
    ----------
    scores : Tensor of shape (n,)
        The scores.
    relevance : Tensor of shape (n,)
        The relevances y, at least 0.
    query : Tensor of shape (n,) or None, default None
        The query of each item, an integer. By default, there is one. Queries without relevant items are not counted.
    k : int or None, default None
        How many places at the top count; all by default.

    Returns
    -------
    Tensor
        A scalar in float64; NaN without relevant items.

    See Also
    --------
    fcco.functional.ndcg_loss : A smooth surrogate of minus this.

    Notes
    -----
    Items of equal scores share their places, as in scikit-learn's ``ndcg_score``. That function has the gain y instead
    of 2^y - 1; pass ``log2(1 + y)`` as the relevance to have the same gain here.

    Examples
    --------
    >>> import torch
    >>> ndcg(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0, 1, 0]))  # 1 / log2(3)
    tensor(0.6309, dtype=torch.float64)
    """
    if k is not None:
        whole_number("k", k)
    check_floats(scores, "scores")
    check_relevance(relevance, scores, "scores", signed=False)
    lists, count = _lists(scores, query)
    share = gain_share(relevance, lists, count, k)

    def discount(place: Tensor) -> Tensor:
        inside = 1.0 if k is None else widen(place <= k)
        return inside / widen(place + 1).log2()

    totals = share.new_zeros(count).index_add(0, lists, share * _shared_places(scores, lists, discount))
    relevant = share.new_zeros(count).index_add(0, lists, share) > 0
    return totals[relevant].mean()


def _lists(scores: Tensor, query: Tensor | None) -> tuple[Tensor, int]:
    """Return the list of each item, and the number of lists."""
    if query is None:
        return torch.zeros_like(scores, dtype=torch.long), 1
    return as_groups(query, "query", scores, "scores")


def _shared_places(scores: Tensor, lists: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the value of each item's place in its list, of shape (n,); items of equal scores have the same mean."""
    order = scores.argsort(descending=True, stable=True)
    order = order[lists[order].argsort(stable=True)]
    in_order, level = lists[order], scores[order]
    sizes = lists.bincount()
    place = torch.arange(1, len(order) + 1, device=order.device) - (sizes.cumsum(0) - sizes)[in_order]
    begins = torch.ones_like(place, dtype=torch.bool)
    begins[1:] = (in_order[1:] != in_order[:-1]) | (level[1:] != level[:-1])
    run = begins.cumsum(0) - 1
    values = value(place)
    means = torch.zeros_like(values).index_add(0, run, values) / run.bincount(minlength=len(run)).clamp(min=1)
    return torch.empty_like(values).index_copy(0, order, means[run])


@torch.no_grad()
def concordance_index(risk: Tensor, time: Tensor, event: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Harrell's concordance index: the share of comparable pairs in which who has the event first has the higher risk.

    A pair is comparable if one has an event and the other is still at risk after it: its time is later, or the same and
    censored. A pair of equal risks counts half.

    Parameters
    ----------
    risk : Tensor of shape (n,)
        The risks, such as log-hazards. Pass minus the predicted times if those are what you have.
    time : Tensor of shape (n,)
        The times of the event or of censoring, at least 0.
    event : Tensor of shape (n,)
        1 or True if the event was observed, 0 or False if the example is censored.
    weight : Tensor of shape (n,) or None, default None
        How often each example counts, at least 0. A pair then counts as often as the product says.

    Returns
    -------
    Tensor
        A scalar in float64; NaN if no pair is comparable.

    See Also
    --------
    fcco.functional.cox_loss : The partial likelihood.

    Notes
    -----
    The pairs are those of scikit-survival's ``concordance_index_censored``, which also takes risks that differ by less
    than 1e-8 as equal. Only equal risks are equal here.

    References
    ----------
    .. [1] Harrell et al., *Evaluating the Yield of Medical Tests*, JAMA 1982.

    Examples
    --------
    >>> import torch
    >>> time, event = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 0, 1])
    >>> concordance_index(torch.tensor([3.0, 1.0, 3.0]), time, event)  # (1 + 1/2) / 2
    tensor(0.7500, dtype=torch.float64)
    """
    check_floats(risk, "risk")
    check_time(time, risk, "risk")
    seen = as_mask(event, "event", risk, "risk", signs=False)
    weight = as_weight(weight, risk)
    moment = torch.unique(time, return_inverse=True)[1] * 2 + ~seen  # at the same time, events come first
    moment, order = moment.sort()
    first = torch.searchsorted(moment, moment, right=True)  # the pairs of an event are all who come after its ties
    rank, weight, seen = torch.unique(risk, return_inverse=True)[1][order], weight[order], seen[order]
    below, level = _weight_among_later(rank, weight, first[seen], rank[seen])
    after = torch.cat([weight.flip(0).cumsum(0).flip(0), weight.new_zeros(1)])[first[seen]]
    pairs = (weight[seen] * after).sum()
    return (weight[seen] * (below + level / 2)).sum() / pairs if pairs > 0 else _undefined(risk)


def _weight_among_later(values: Tensor, weight: Tensor, first: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """For each query, the weight of the values from ``first`` on that are below the one asked for, and equal to it.

    Values are sorted by one bit after another, the highest first, as in a wavelet matrix. In each pass, a query keeps
    the range of values that agree with it so far, and adds up those that fall below. This takes O(n log n) for all.
    """
    first, last = first.clone(), torch.full_like(first, len(values))
    below = weight.new_zeros(len(first))
    for bit in reversed(range(int(values.max()).bit_length())):
        low = (values >> bit & 1) == 0
        lows = _before(low.long())
        mass, is_high = _before(weight * low), (asked >> bit & 1) == 1
        below += torch.where(is_high, mass[last] - mass[first], 0.0)
        first, last = (torch.where(is_high, lows[-1] + edge - lows[edge], lows[edge]) for edge in (first, last))
        order = torch.cat([low.nonzero(), (~low).nonzero()]).squeeze(1)
        values, weight = values[order], weight[order]
    mass = _before(weight)
    return below, mass[last] - mass[first]


def _before(values: Tensor) -> Tensor:
    """Return the sum of all values before each place, of shape (n + 1,)."""
    return torch.cat([values.new_zeros(1), values.cumsum(0)])
