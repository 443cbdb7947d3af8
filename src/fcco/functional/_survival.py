"""Cox's partial likelihood."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco.functional._checks import as_mask, as_value, check_choice, check_floats, check_time
from fcco.functional._lists import cumulative_logsumexp
from fcco.functional._tensors import graph_zero, mean, segment_logsumexp, widen


def cox_loss(risk: Tensor, time: Tensor, event: Tensor, *, ties: str = "breslow") -> Tensor:
    r"""Negative partial log-likelihood of Cox's proportional hazards, per event.

    .. math:: F = \frac{1}{n_E} \sum_{i : E_i = 1} \log \sum_{j : T_j \ge T_i} e^{h_j - h_i}

    With d events at one time, Breslow's sum is the same for all of them; Efron's takes l/d of those d off the l-th
    (l = 0 ... d - 1), as if they had come one after the other. O(n log n), exact for risks of any size. (Divided by n
    instead of the number of events it is the objective of DeepSurv, and has the same minimum.)

    Args:
        risk: h, [n], the log-hazards.
        time: T, [n], of the event or of censoring, not negative.
        event: E, [n], 1 or True where the event was seen, 0 or False where censored. Without events the loss is 0.
        ties: "breslow" or "efron".

    Raises:
        ValueError: a time that is negative or NaN, an event that is neither 0 nor 1; shapes or risks that cannot be
            meant.
        TypeError: an argument of the wrong type or dtype.

    >>> risk, time = torch.zeros(3), torch.tensor([2.0, 1.0, 3.0])
    >>> cox_loss(risk, time, torch.tensor([1, 1, 0]))  # (log 2 + log 3) / 2
    tensor(0.8959)

    References: Cox, *Regression Models and Life-Tables*, 1972. Breslow, *Covariance Analysis of Censored Survival
    Data*, 1974. Efron, *The Efficiency of Cox's Likelihood Function for Censored Data*, 1977.
    """
    check_floats(risk, "risk", room=4)
    check_choice(ties, "ties", ("breslow", "efron"))
    check_time(time, risk, "risk")
    seen = as_mask(event, "event", risk, "risk", signs=False)
    if not bool(seen.any()):
        return graph_zero(risk)
    h = widen(risk)
    later_first = -torch.unique(time, return_inverse=True)[1]
    later_first = later_first - later_first.min()
    at_risk = _efron(h, later_first, seen) if ties == "efron" else _breslow(h, later_first)[seen]
    return as_value(mean(at_risk - h[seen]), risk, "risk")


def _one_list(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.int64)


def _breslow(h: Tensor, rank: Tensor) -> Tensor:
    """[n]: log of the sum of e^h over the risk set of each example."""
    totals, run = cumulative_logsumexp(h, _one_list(h), rank)
    return totals[run]


def _efron(h: Tensor, rank: Tensor, seen: Tensor) -> Tensor:
    """[number of events]: log of the sum of e^h over the risk set, where tied events leave it one after the other.

    Within a time events are put last. The run before theirs then holds the rest of the risk set, and the share of the
    tied ones is added to it, where the usual formula subtracts it.
    """
    totals, run = cumulative_logsumexp(h, _one_list(h), 2 * rank + seen)
    _, tied, size = torch.unique(run[seen], return_inverse=True, return_counts=True)
    order = tied.argsort(stable=True)
    earlier = torch.empty_like(order)
    earlier[order] = torch.arange(len(order), device=order.device) - (size.cumsum(0) - size)[tied[order]]
    rest = torch.cat([totals.new_full((1,), -math.inf), totals])[run[seen]]
    together = segment_logsumexp(h[seen], tied, len(size))[tied]
    return torch.logaddexp(rest, together + torch.log1p(-widen(earlier) / size[tied]))
