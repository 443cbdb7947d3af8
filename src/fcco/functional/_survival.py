"""The exact partial likelihood of Cox's proportional hazards model."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco.functional._checks import (
    as_groups,
    as_mask,
    as_value,
    check_choice,
    check_entry,
    check_floats,
    check_time,
)
from fcco.functional._intervals import covering_logsumexp
from fcco.functional._lists import cumulative_logsumexp
from fcco.functional._tensors import graph_zero, mean, segment_logsumexp, widen


def cox_loss(
    risk: Tensor,
    time: Tensor,
    event: Tensor,
    strata: Tensor | None = None,
    entry: Tensor | None = None,
    *,
    ties: str = "breslow",
) -> Tensor:
    r"""Negative partial log-likelihood of Cox's proportional hazards model, per event.

    .. math:: F = \frac{1}{n_E} \sum_{i : E_i = 1} \log \sum_{j \in R_i} e^{h_j - h_i}

    The risk set R_i of an event has the examples j with T_j >= T_i. With ``strata``, it only has those of the same
    stratum. With ``entry``, it only has those that have entered before, entry_j < T_i.

    Parameters
    ----------
    risk : Tensor of shape (n,)
        The log-hazards h.
    time : Tensor of shape (n,)
        The times T of the event or of censoring, at least 0.
    event : Tensor of shape (n,)
        The indicators E: 1 or True if the event was observed, 0 or False if the example is censored. Without events the
        loss is 0.
    strata : Tensor of shape (n,) or None, default None
        The stratum of each example, an integer. Every stratum has a baseline hazard of its own.
    entry : Tensor of shape (n,) or None, default None
        The times at which the examples enter (left truncation), each before the example's own time. An example is at
        risk in (entry, time], as in R's survival and lifelines: not yet in an event at the time of its entry.
    ties : {"breslow", "efron"}, default "breslow"
        How to treat tied events. With d events at one time, Breslow's sum is the same for all of them. Efron's sum for
        the l-th of them (l = 0 ... d - 1) leaves out the fraction l/d of those d events, as if they had occurred one
        after the other.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``risk``.

    Raises
    ------
    ValueError
        If a time is negative or NaN, if an event is neither 0 nor 1, if an example enters after its time or at it, or
        if a shape or a risk is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.CoxLoss : The same objective, estimated from mini-batches.
    fcco.losses.BaselineCoxLoss : The same objective for training data whose times are known in advance.

    Notes
    -----
    The cost is O(n log n). The result is accurate for risks of any size. DeepSurv divides by n instead of the number of
    events, which has the same minimum.

    References
    ----------
    .. [1] Cox, *Regression Models and Life-Tables*, 1972.
    .. [2] Breslow, *Covariance Analysis of Censored Survival Data*, 1974.
    .. [3] Efron, *The Efficiency of Cox's Likelihood Function for Censored Data*, 1977.

    Examples
    --------
    >>> risk, time = torch.zeros(3), torch.tensor([2.0, 1.0, 3.0])
    >>> cox_loss(risk, time, torch.tensor([1, 1, 0]))  # (log 2 + log 3) / 2
    tensor(0.8959)
    """
    check_floats(risk, "risk", room=4)
    check_choice(ties, "ties", ("breslow", "efron"))
    check_time(time, risk, "risk")
    seen = as_mask(event, "event", risk, "risk", signs=False)
    if entry is not None:
        check_entry(entry, time)
    group = one_list(risk) if strata is None else as_groups(strata, "strata", risk, "risk")[0]
    if not bool(seen.any()):
        return graph_zero(risk)
    h = widen(risk)
    at_risk = log_at_risk(h, time, seen, group, entry, efron=ties == "efron")
    return as_value(mean(at_risk - h[seen]), risk, "risk")


def log_at_risk(
    h: Tensor, time: Tensor, seen: Tensor, group: Tensor, entry: Tensor | None, *, efron: bool = False
) -> Tensor:
    """Return the log-sum-exp of h over the risk set of each event; ``group`` numbers the strata without gaps."""
    if entry is not None:
        return _truncated(h, time, seen, group, entry, efron=efron)
    later_first = -torch.unique(time, return_inverse=True)[1]
    later_first = later_first - later_first.min()
    return _efron(h, later_first, seen, group) if efron else _breslow(h, later_first, group)[seen]


def one_list(like: Tensor) -> Tensor:
    """Assign all examples to a single list."""
    return torch.zeros_like(like, dtype=torch.int64)


def _breslow(h: Tensor, rank: Tensor, group: Tensor) -> Tensor:
    """Return the log-sum-exp of h over the risk set of each example, of shape (n,)."""
    totals, run = cumulative_logsumexp(h, group, rank)
    return totals[run]


def _efron(h: Tensor, rank: Tensor, seen: Tensor, group: Tensor) -> Tensor:
    """Return the log-sum-exp of h over the risk set of each event, which tied events leave one after the other.

    Events are sorted last among the examples of the same time. The run before them then holds the rest of the risk set,
    unless it belongs to another stratum.
    """
    totals, run = cumulative_logsumexp(h, group, 2 * rank + seen)
    before = run[seen] - 1
    list_of_run = torch.zeros_like(totals, dtype=torch.int64).index_copy(0, run, group)
    is_first = (before < 0) | (list_of_run[before] != group[seen])
    rest = totals[before].masked_fill(is_first, -math.inf)
    return _leave_in_turn(h[seen], rest, torch.unique(run[seen], return_inverse=True)[1])


def _leave_in_turn(h: Tensor, rest: Tensor, tied: Tensor) -> Tensor:
    """Return the log-sum-exp over Efron's risk set of each event.

    ``rest`` is the log-sum-exp over the risk set without the tied events, and ``tied`` numbers the groups of these. The
    remaining fraction of the tied events is added, whereas the usual formula subtracts.
    """
    size = tied.bincount()
    order = tied.argsort(stable=True)
    earlier = torch.empty_like(order)
    earlier[order] = torch.arange(len(order), device=order.device) - (size.cumsum(0) - size)[tied[order]]
    left = segment_logsumexp(h, tied, len(size))[tied] + torch.log1p(-widen(earlier) / size[tied])
    alone = rest == -math.inf  # where logaddexp has no second derivative
    return torch.where(alone, left, torch.logaddexp(rest.masked_fill(alone, 0.0), left))


def _truncated(h: Tensor, time: Tensor, seen: Tensor, group: Tensor, entry: Tensor, *, efron: bool) -> Tensor:
    """Return the log-sum-exp of h over the risk set of each event, if examples enter late.

    The points are the distinct event times of all strata, stratum after stratum, and an example covers those at which
    it is at risk.
    """
    both = (time, entry) if time.dtype == entry.dtype else (widen(time), widen(entry))
    rank = torch.cat(both).unique(return_inverse=True)[1]
    rank = (rank + (rank.max() + 1) * group.repeat(2)).view(2, -1)
    points, tied = rank[0, seen].unique(return_inverse=True)
    first = torch.searchsorted(points, rank[1], right=True)
    past = torch.searchsorted(points, rank[0], right=True)
    if efron:
        past = past - seen.long()
        return _leave_in_turn(h[seen], covering_logsumexp(h, first, past, len(points))[tied], tied)
    return covering_logsumexp(h, first, past, len(points))[tied]
