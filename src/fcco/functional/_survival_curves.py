"""From log-hazards to survival curves, and how good these are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fcco._checks import shape_of
from fcco.functional._checks import (
    as_groups,
    as_mask,
    check_entry,
    check_floats,
    check_integers,
    check_per_example,
    check_time,
    refuse_where,
)
from fcco.functional._survival import log_at_risk, one_list
from fcco.functional._tensors import widen


class BaselineHazard(NamedTuple):
    """A cumulative baseline hazard, a step function of time, or one for each stratum.

    Attributes
    ----------
    times : Tensor of shape (K,)
        The distinct times of events, rising within each stratum.
    hazard : Tensor of shape (K,)
        The cumulative hazard of h = 0 at each of them.
    strata : Tensor of shape (K,) or None
        The stratum of each of them, if there are strata.
    """

    times: Tensor
    """[K], the distinct times of events, rising within each stratum."""
    hazard: Tensor
    """[K], the cumulative hazard of h = 0 at each of them."""
    strata: Tensor | None
    """[K], the stratum of each, rising; None if there are no strata."""


@torch.no_grad()
def baseline_hazard(
    risk: Tensor, time: Tensor, event: Tensor, strata: Tensor | None = None, entry: Tensor | None = None
) -> BaselineHazard:
    r"""Breslow's estimate of the cumulative baseline hazard, from the log-hazards of the training data.

    .. math:: \Lambda(t) = \sum_{i : E_i = 1, T_i \le t} \Bigl( \sum_{j \in R_i} e^{h_j} \Bigr)^{-1}

    Parameters
    ----------
    risk : Tensor of shape (n,)
        The log-hazards h, for example the outputs of a network in ``eval()`` mode.
    time, event, strata, entry : Tensor of shape (n,)
        Times, events, strata and times of entry; see :func:`cox_loss`.

    Returns
    -------
    BaselineHazard
        The estimate, in float64.

    See Also
    --------
    survival_function : Survival curves from this estimate.
    fcco.losses.BaselineCoxLoss.cumulative_hazard : The same estimate while training.

    References
    ----------
    .. [1] Breslow, *Covariance Analysis of Censored Survival Data*, 1974.

    Examples
    --------
    >>> baseline_hazard(torch.zeros(3), torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 1, 0])).hazard  # 1/3, + 1/2
    tensor([0.3333, 0.8333], dtype=torch.float64)
    """
    check_floats(risk, "risk", room=4)
    check_time(time, risk, "risk")
    seen = as_mask(event, "event", risk, "risk", signs=False)
    if entry is not None:
        check_entry(entry, time)
    group = one_list(risk) if strata is None else as_groups(strata, "strata", risk, "risk")[0]
    if not bool(seen.any()):
        raise ValueError("event must have at least one event; got only censored examples")
    increase = (-log_at_risk(widen(risk), time, seen, group, entry)).exp()
    distinct, rank = time.unique(return_inverse=True)
    point, place = (group[seen] * len(distinct) + rank[seen]).unique(return_inverse=True)
    steps = increase.new_zeros(len(point)).index_add(0, place, increase)
    number = point // len(distinct)
    hazard = torch.cat([steps[number == k].cumsum(0) for k in number.unique()])
    names = None if strata is None else strata.unique()[number]
    return BaselineHazard(distinct[point % len(distinct)], hazard, names)


@torch.no_grad()
def survival_function(
    risk: Tensor, baseline: BaselineHazard, times: Tensor | None = None, strata: Tensor | None = None
) -> Tensor:
    r"""Probability to live beyond each of some times, :math:`S(t) = \exp(-\Lambda(t) e^h)`.

    Parameters
    ----------
    risk : Tensor of shape (n,)
        The log-hazards h.
    baseline : BaselineHazard
        The cumulative baseline hazard; see :func:`baseline_hazard`.
    times : Tensor of shape (m,) or None, default None
        Where to evaluate the curves. By default, at the distinct times of the baseline.
    strata : Tensor of shape (n,) or None, default None
        The stratum of each example, if the baseline has strata.

    Returns
    -------
    Tensor of shape (n, m)
        The probabilities, in float64. Before the first event they are 1, and after the last they stay.

    Raises
    ------
    ValueError
        If strata are not given though the baseline has them, or the other way round, or if one of them is unknown.

    Examples
    --------
    >>> baseline = baseline_hazard(torch.zeros(3), torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 1, 0]))
    >>> survival_function(torch.zeros(1), baseline, torch.tensor([0.5, 1.5]))
    tensor([[1.0000, 0.7165]], dtype=torch.float64)
    """
    check_floats(risk, "risk")
    if (strata is None) != (baseline.strata is None):
        has = "no strata" if baseline.strata is None else "strata"
        raise ValueError(f"strata must {'not ' * (baseline.strata is None)}be given: the baseline has {has}")
    times = baseline.times.unique() if times is None else times
    _check_times(times)
    if strata is None or baseline.strata is None:
        return _beyond(_steps_at(baseline.times, baseline.hazard, times), risk)
    check_integers(strata, "strata", risk, "risk")
    refuse_where("strata", strata, ~torch.isin(strata, baseline.strata), "one of those of the baseline")
    hazard = widen(risk).new_empty(len(risk), len(times))
    for k in strata.unique():
        own = baseline.strata == k
        hazard[strata == k] = _steps_at(baseline.times[own], baseline.hazard[own], times)
    return _beyond(hazard, risk)


@torch.no_grad()
def brier_score(
    survival: Tensor,
    time: Tensor,
    event: Tensor,
    times: Tensor,
    *,
    train_time: Tensor | None = None,
    train_event: Tensor | None = None,
) -> Tensor:
    r"""Brier score of survival curves at some times, with weights that make up for censoring.

    .. math:: B(t) = \frac 1 n \sum_i \Bigl( \frac{S_i(t)^2 [T_i \le t, E_i = 1]}{G(T_i)}
        + \frac{(1 - S_i(t))^2 [T_i > t]}{G(t)} \Bigr)

    Here G is the Kaplan-Meier estimate of the probability not to be censored yet. The score of S = 1/2 is about 1/4,
    and that of perfect predictions is 0.

    Parameters
    ----------
    survival : Tensor of shape (n, m)
        The probability of each example to live beyond each time.
    time, event : Tensor of shape (n,)
        The times and events of the same examples.
    times : Tensor of shape (m,)
        The times, each below the last of ``time`` and of ``train_time``: nobody is observed to live longer.
    train_time, train_event : Tensor of shape (N,) or None, default None
        The data that G is estimated from. By default, ``time`` and ``event``.

    Returns
    -------
    Tensor of shape (m,)
        The scores, in float64.

    Raises
    ------
    ValueError
        If one of the times is not below the last follow-up, or if another argument is invalid.

    References
    ----------
    .. [1] Graf et al., *Assessment and Comparison of Prognostic Classification Schemes for Survival Data*, 1999.

    Examples
    --------
    >>> time, event = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)
    >>> brier_score(torch.full((3, 2), 0.5), time, event, torch.tensor([1.5, 2.5]))
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    check_floats(survival, "survival", "[n, m]")
    refuse_where("survival", survival, (survival < 0) | (survival > 1), "in [0, 1]")
    check_time(time, survival, "survival")
    check_per_example(times, "times", survival.T, "a row of survival")
    _check_times(times)
    seen = as_mask(event, "event", time, "time", signs=False)
    if (train_time is None) != (train_event is None):
        raise ValueError("train_time and train_event must be given together")
    from_time, from_event = (time, seen) if train_time is None else (train_time, train_event)
    check_time(from_time, from_time, "train_time")
    censored = ~as_mask(from_event, "train_event", from_time, "train_time", signs=False)
    last = torch.minimum(time.max(), from_time.max())
    name = "time" if train_time is None else "time and of train_time"
    where = f"in [0, {last.item()}), below the last of {name}"
    refuse_where("times", times, (times < 0) | (times >= last), where)
    at_own, at_times = (_free_of_censoring(from_time, censored, where) for where in (time, times))
    dead = (time.unsqueeze(1) <= times) & seen.unsqueeze(1)
    alive, s = time.unsqueeze(1) > times, widen(survival)
    return (s.square() * dead * _inverse(at_own).unsqueeze(1) + (1 - s).square() * alive * _inverse(at_times)).mean(0)


def integrated_brier_score(survival: Tensor, time: Tensor, event: Tensor, times: Tensor, **train: Tensor) -> Tensor:
    """Mean of the Brier score between the first and the last of some times, by the trapezoidal rule.

    Parameters
    ----------
    survival, time, event, times, **train
        As in :func:`brier_score`; at least two times, which increase.

    Returns
    -------
    Tensor
        The mean, a scalar.

    Examples
    --------
    >>> time, event = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)
    >>> integrated_brier_score(torch.full((3, 2), 0.5), time, event, torch.tensor([1.5, 2.5]))
    tensor(0.2500, dtype=torch.float64)
    """
    scores = brier_score(survival, time, event, times, **train)
    if len(times) < 2 or not bool((times[1:] > times[:-1]).all()):
        raise ValueError(f"times must be at least two, which increase; got {times.tolist()}")
    return torch.trapezoid(scores, widen(times)) / (times[-1] - times[0])


def _check_times(times: Tensor) -> None:
    if not isinstance(times, Tensor) or times.dim() != 1:
        got = shape_of(times) if isinstance(times, Tensor) else type(times).__name__
        raise ValueError(f"times must be a tensor of the shape [m]; got {got}")
    refuse_where("times", times, times.isnan(), "numbers")


def _beyond(hazard: Tensor, risk: Tensor) -> Tensor:
    """Return exp(-hazard e^risk), which is 1 where the hazard is 0, however large the risk is."""
    return (-(hazard.log() + widen(risk).unsqueeze(1)).exp()).exp()


def _steps_at(steps: Tensor, values: Tensor, times: Tensor) -> Tensor:
    """Return a step function, 0 before its first step, at some times."""
    dtype = torch.promote_types(steps.dtype, times.dtype)
    place = torch.searchsorted(steps.to(dtype), times.to(dtype), right=True)
    return torch.cat([values.new_zeros(1), values])[place]


def _free_of_censoring(time: Tensor, censored: Tensor, at: Tensor) -> Tensor:
    """Return the Kaplan-Meier estimate of the probability that censoring comes after each of some times.

    Events at a time come before censoring at it.
    """
    distinct, place, count = time.unique(return_inverse=True, return_counts=True)
    lost = widen(censored).new_zeros(len(distinct)).index_add(0, place, widen(censored))
    still_there = len(time) - count.cumsum(0) + lost
    log_free = torch.log1p(-lost / still_there.clamp(min=1)).cumsum(0)
    return _steps_at(distinct, log_free, at).exp()


def _inverse(probability: Tensor) -> Tensor:
    """Return 1 / p, and 0 where p is 0."""
    return torch.where(probability > 0, 1 / probability, 0.0)
