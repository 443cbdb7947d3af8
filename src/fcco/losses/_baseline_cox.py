"""Cox's partial likelihood with rows that all events of a time share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from fcco._checks import reads_are_free, shape_of, whole_number
from fcco._remember import TRUST
from fcco._step import SharedEstimate
from fcco._table import InnerTable
from fcco.core.rules import SOAP, Rule
from fcco.functional._checks import as_mask, check_floats, check_integers, check_time, refuse_where
from fcco.functional._inner import masked_logsumexp, stratum_weight
from fcco.functional._inner_survival import cox_inner, risk_set_sums
from fcco.functional._tensors import at_least_float32, narrower
from fcco.losses._base import Loss, Scale, as_values, count_positives
from fcco.losses._options import BaselineCoxOptions
from fcco.schedules import Power


class BaselineCoxLoss(Loss):
    r"""Negative partial log-likelihood of Cox's model for training data whose times are known in advance.

    .. math:: F = \frac{1}{n_E} \Bigl( \sum_k d_k \log G_k - \sum_{i : E_i = 1} h_i \Bigr), \qquad
        G_k = \sum_{j : T_j \ge t_k} e^{h_j}

    Here d_k is the number of events at the time t_k. The objective is that of :class:`CoxLoss`, but the table is
    different. The risk set of an event depends only on its time, and every batch contributes to the estimate at every
    time. The table therefore has a row for each event time, not for each example, and every step updates all rows.

    Parameters
    ----------
    n : int
        The number of training examples.
    times : array-like of shape (K,)
        The times at which events were observed, increasing (within each stratum); see also :meth:`from_targets`.
    events : array-like of shape (K,)
        The number of events at each time.
    rule : Rule, default ``fcco.SOAP(gamma=fcco.schedules.Power(0.5))``
        How rows are updated: SOX, SOAP, SCENT or BSGD; see :class:`fcco.SOX`. The default has γ = 1 / sqrt(visits).
    stratified : bool, default False
        Whether batches hold fixed numbers of events and of other examples, like those of
        :class:`fcco.data.PositiveNegativeSampler`. Otherwise batches are taken as random samples of all examples.
    centred : bool, default False
        Whether the gradient of a single random batch is free of a component that shifts all h. F does not change if all
        h shift by the same amount, and over a whole pass the gradients of the batches do not ask for a shift either.
        Set it to True for features that are far from 0 on average. For standardised features, which are recommended, it
        only adds noise.
    strata : array-like of shape (K,) or None, default None
        The stratum of each of these times, integers that do not fall. Risk sets are then those of a stratum.

    Raises
    ------
    ValueError
        If times do not increase, if strata fall, if events are not positive counts, if the rule is not supported, or if
        the loss is both stratified and centred.

    See Also
    --------
    CoxLoss : The same objective if times are not known in advance.
    fcco.functional.cox_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(risk, time, event)`` takes three tensors of shape (B,) from any loader: log-hazards, times, and
    events (0 and 1, or bool). It returns a scalar. An ``index`` may follow but is not needed. Ties are handled by
    Breslow's method. If the loss has strata, ``strata=``, integers of shape (B,), must be given with every call.

    All events enter the gradient, those of the batch and all others. The derivative with respect to the h of an example
    is proportional to its negative martingale residual,

    .. math:: e^{h_j} \Lambda(T_j) - E_j, \qquad \Lambda(t) = \sum_{k : t_k \le t} d_k / G_k.

    Batches without events are therefore as informative as others. If an estimate from m examples of a batch exceeds its
    row by more than a factor of 1 + 8 / sqrt(m), some h is huge. The gradient is then limited to that at this factor.

    The default rule was chosen by measurement; see docs/defaults.md.

    References
    ----------
    .. [1] Breslow, *Covariance Analysis of Censored Survival Data*, 1974.
    .. [2] Therneau, Grambsch and Fleming, *Martingale-Based Residuals for Survival Models*, 1990.

    Examples
    --------
    >>> import torch
    >>> loss_fn = BaselineCoxLoss.from_targets(time=[4.0, 1.0, 3.0, 2.0], event=[1, 1, 0, 1])
    >>> risk = torch.tensor([0.5, -0.5, 0.0], requires_grad=True)
    >>> loss_fn(risk, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 1, 0])).backward()
    """

    times: Tensor
    events: Tensor
    strata: Tensor | None
    estimated_from = "risk"
    _has_all_times = False
    """Whether every training event has a row of its own time."""

    def __init__(
        self,
        n: int,
        times: Any,
        events: Any,
        rule: Rule = SOAP(gamma=Power(0.5)),  # noqa: B008 (frozen)
        stratified: bool = False,
        centred: bool = False,
        strata: Any = None,
    ) -> None:
        times, events = as_values(times).clone(), as_values(events).clone()
        strata = None if strata is None else as_values(strata).clone()
        firsts = _check_rows(times, events, strata)
        super().__init__(Scale(), len(times), rule=rule, log=True)
        if rule.decays:
            raise ValueError(f"rule of BaselineCoxLoss must be SOX, SOAP, SCENT or BSGD; got {rule}")
        self.n_examples = whole_number("n", n)
        self.n_events = int(events.sum())
        if self.n_events > self.n_examples:
            raise ValueError(f"events must add up to at most n = {n}; got {self.n_events}")
        if stratified and centred:
            raise ValueError("centred=True needs random batches; got stratified=True. Set one of them to False")
        self.stratified, self.centred = stratified, centred
        self.register_buffer("times", times, persistent=False)
        self.register_buffer("events", events, persistent=False)
        self.register_buffer("strata", strata, persistent=False)
        self._identify(n_examples=self.n_examples, times=times, events=events, strata=strata)
        self._firsts = firsts  # the first row of each stratum
        self._digits = times.dtype  # the dtype as given: a cast adds no information

    @classmethod
    def from_targets(
        cls, time: Any, event: Any, max_times: int = 1024, *, strata: Any = None, **options: Unpack[BaselineCoxOptions]
    ) -> BaselineCoxLoss:
        """Create the loss with n, times and events of the training data.

        Parameters
        ----------
        time : array-like of shape (n,)
            The times of the event or of censoring.
        event : array-like of shape (n,)
            1 or True if the event was observed, 0 or False if the example is censored.
        max_times : int, default 1024
            The largest number of rows of the table. If there are more event times, neighbouring times share the risk
            set of the middle one; the first ones share that of the first. This approximation is finest for the last
            events. Strata have rows in proportion to their event times, but at least one each.
        strata : array-like of shape (n,) or None, default None
            The stratum of each example, an integer.
        **options
            Further arguments of the constructor.

        Returns
        -------
        BaselineCoxLoss
            The loss.

        Raises
        ------
        ValueError
            If a time, an event or a stratum is invalid, or if there are no events.
        """
        time, event = as_values(time), as_values(event)
        strange = (event != 0) & (event != 1)
        refuse_where("event", event, strange, "0 or 1 (from_targets takes the times first, then the events)")
        n, n_events = count_positives(event, "event")
        check_time(time, event, "event")
        if n_events == 0:
            raise ValueError("event must have at least one event; got only censored examples")
        most = whole_number("max_times", max_times)
        if strata is None:
            counted = time[event == 1].unique(return_counts=True)
            loss = cls(n, *_merge_times(counted, most), **options)
            loss._has_all_times = len(loss.times) == len(counted[0])
            return loss
        strata = as_values(strata)
        check_integers(strata, "strata", event, "event")
        found = {k: time[(event == 1) & (strata == k)].unique(return_counts=True) for k in strata.unique().tolist()}
        share = most / sum(len(times) for times, _ in found.values())
        rows = {k: _merge_times(own, max(1, int(len(own[0]) * share))) for k, own in found.items() if len(own[0])}
        times, events = (torch.cat(column) for column in zip(*rows.values(), strict=True))
        numbers = torch.tensor(list(rows)).repeat_interleave(torch.tensor([len(own) for own, _ in rows.values()]))
        loss = cls(n, times, events, strata=numbers, **options)
        loss._has_all_times = len(times) == sum(len(known) for known, _ in found.values())
        return loss

    def forward(
        self, risk: Tensor, time: Tensor, event: Tensor, index: Any = None, strata: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        risk : Tensor of shape (B,)
            The log-hazards h.
        time : Tensor of shape (B,)
            The times of the event or of censoring.
        event : Tensor of shape (B,)
            1 or True if the event was observed, 0 or False if the example is censored.
        index : object, default None
            It is ignored.
        strata : Tensor of shape (B,) or None, default None
            The stratum of each example, an integer. Strata must be given if, and only if, the loss has them.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        if self.coupled.placement() is None:  # in a step, an error must reach all ranks
            self._check_strata(strata, risk)
        columns = (risk, time, event) if strata is None else (risk, time, event, strata)
        if not (self.training and torch.is_grad_enabled()):
            return self._loss(lambda pool: cox_inner(*pool.own), *columns, index=range(len(risk)))
        return self._shared_loss(self._estimate, *columns)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward

    def _estimate(
        self, table: InnerTable, risk: Tensor, time: Tensor, event: Tensor, strata: Tensor | None = None
    ) -> SharedEstimate:
        """Estimate log G at every event time, with its weight, and subtract the mean of h over the events."""
        sums, members, seen, total = self._summarise(risk, time, event, strata)
        visited = table.visited(None).bool().to(sums.device)
        held = table.read(None, cold=-math.inf).to(sums.device)
        dtype = torch.promote_types(sums.dtype, held.dtype)
        sums, held = sums.to(dtype), held.to(dtype)
        rate = self.coupled.rule.rate
        known = sums > -math.inf
        if not (isinstance(rate, float) and rate == 1.0):
            next_rows = self._next_rows(table, held, sums.detach())
            sums = _limit_gradient(
                next_rows + torch.log1p(TRUST * members.to(sums.dtype).rsqrt()), sums, known & visited
            )
            known = known | visited
        weight = torch.where(known, self.events.to(sums.dtype) / self.n_events, 0.0)
        # The number of events in a batch is random. Subtracting the level of h keeps it from scaling this noise.
        first = self._firsts.to(sums.device)
        levels = torch.where(visited[first], held[first], sums.detach()[first])
        level = levels.logsumexp(0) - math.log(self.n_examples)
        seen = seen - torch.where(level > -math.inf, level, 0.0) * (total - 1)
        return SharedEstimate(sums, weight, extra=-seen)

    def _next_rows(self, table: InnerTable, held: Tensor, sums: Tensor) -> Tensor:
        """Return what the rows will be after this step, by a moving average, of shape (K,)."""
        rate = torch.as_tensor(self.coupled.rate(table, None)).to(sums).clamp(max=1.0)
        return torch.logaddexp(held + torch.log1p(-rate), sums + rate.log())

    def _summarise(
        self, risk: Tensor, time: Tensor, event: Tensor, strata: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Summarise a batch for the update.

        Returns the log-sums over risk sets and the number of members of each, both of shape (K,), and estimates of the
        mean of h over all events and of the mean of 1.
        """
        check_floats(risk, "risk", "[B]", room=4.0 * self.n_examples)
        check_time(time, risk, "risk")
        seen = as_mask(event, "event", risk, "risk", signs=False)
        self._check_strata(strata, risk)
        risk = at_least_float32(risk)
        if self.centred and len(risk) > 1:
            risk = self._centre(risk)
        stands_for = self._stands_for(seen, risk)
        if strata is None:
            sets = self._sets(time)
            self._check_population(time, seen, sets == 0, strata)
            sums, members = risk_set_sums(risk, stands_for, sets, self.n)
        else:
            at_risk = self._at_risk(time, strata)
            self._check_population(time, seen, ~at_risk.any(0), strata)
            log_terms = risk + stands_for.clamp(min=torch.finfo(risk.dtype).tiny).log()
            sums, members = masked_logsumexp(log_terms.expand_as(at_risk), at_risk), at_risk.sum(1)
        share = torch.where(seen, stands_for, 0.0) / self.n_events
        return sums, members, (share * risk).sum(), share.sum()

    def _check_strata(self, strata: Tensor | None, risk: Tensor) -> None:
        """Raise if the call has strata and the loss has none, or the other way round."""
        if (strata is None) != (self.strata is None):
            rows = "no strata" if self.strata is None else f"rows of {len(self._firsts)} strata"
            raise ValueError(f"strata must {'not ' * (self.strata is None)}be given, because the loss has {rows}")
        if strata is not None:
            check_integers(strata, "strata", risk, "risk")

    def _check_population(self, time: Tensor, seen: Tensor, is_early: Tensor, strata: Tensor | None) -> None:
        """Raise if a batch contradicts what is known about the training data, if reading values is free."""
        if not reads_are_free(time):
            return
        early = f"at least {self.times[0].item()}, the first of times, for an event"
        if self.strata is not None:
            early = "at least the first of the times of its stratum for an event"
        refuse_where("time", time, seen & is_early, early)
        if self._has_all_times:
            wanted = (
                "one of the training events' times, to the last digit and in the unit of from_targets, for an event"
            )
            refuse_where("time", time, seen & ~self._is_event_time(time, strata), wanted)
        if self.stratified and self.n_events == self.n_examples:
            all_events = f"1, since all n = {self.n_examples} training examples have events"
            refuse_where("event", seen.long(), ~seen, all_events)

    def _centre(self, risk: Tensor) -> Tensor:
        """Return the same values with a gradient that does not shift all h.

        Residuals sum to 0 over all examples, so their sum with a gradient is (n - 1) times a covariance. The covariance
        of a random batch is an unbiased estimate of it.
        """
        n, size = self.n_examples, len(risk)
        apart = (risk - risk.mean()) * ((n - 1) * size / (n * (size - 1)))
        return risk.detach() + (apart - apart.detach())

    def _stands_for(self, seen: Tensor, like: Tensor) -> Tensor:
        """Return how many training examples each example of the batch represents, of shape (B,)."""
        if not self.stratified:
            return torch.full_like(like, self.n_examples / len(like))
        others = stratum_weight(~seen, self.n_examples - self.n_events, like)
        return torch.where(seen, stratum_weight(seen, self.n_events, like), others)

    def _sets(self, time: Tensor) -> Tensor:
        """Return how many of the event times each example was at risk for, of shape (B,)."""
        return torch.searchsorted(*self._in_common_digits(time), right=True)

    def _at_risk(self, time: Tensor, strata: Tensor) -> Tensor:
        """Return who was at risk at which event time of which stratum, of shape (K, B)."""
        assert self.strata is not None
        times, time = self._in_common_digits(time)
        return (times.unsqueeze(1) <= time) & (self.strata.unsqueeze(1) == strata)

    def _is_event_time(self, time: Tensor, strata: Tensor | None) -> Tensor:
        """Return which times have a row, of their stratum if there are strata, of shape (B,)."""
        times, own = self._in_common_digits(time)
        if strata is None:
            return times[torch.searchsorted(times, own).clamp(max=len(times) - 1)] == own
        assert self.strata is not None
        return ((times.unsqueeze(1) == own) & (self.strata.unsqueeze(1) == strata)).any(0)

    def _in_common_digits(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the event times and those of a batch in the narrower dtype, whose digits are known on both sides."""
        dtype = narrower(time.dtype, self._digits)
        wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
        return self.times.to(dtype).to(wide), time.to(dtype).to(wide)

    def cumulative_hazard(self, stratum: int | None = None) -> tuple[Tensor, Tensor]:
        """Return Breslow's estimate of the cumulative baseline hazard, from the current table.

        The survival function of an example is S(t) = exp(-hazard(t) * e^h). Times that no batch has reached yet add
        nothing. If the table is sharded over ranks, all ranks must call this method together.

        Parameters
        ----------
        stratum : int or None, default None
            The stratum, if the loss has strata.

        Returns
        -------
        times : Tensor of shape (K,)
            The event times.
        hazard : Tensor of shape (K,)
            The cumulative baseline hazard at each time.
        """
        at_risk = self.table.full().read(None, cold=math.inf).to(self.events.device)
        steps = self.events * torch.exp(-at_risk)
        if self.strata is None:
            return self.times.clone(), steps.cumsum(0)
        known = self.strata.unique().tolist()
        if stratum is None or stratum not in known:
            raise ValueError(f"stratum must be one of {known}; got {stratum}")
        own = torch.isin(self.strata, stratum)
        return self.times[own], steps[own].cumsum(0)


def _check_rows(times: Tensor, events: Tensor, strata: Tensor | None) -> Tensor:
    """Check what the rows are; return the first row of each stratum."""
    if times.dim() != 1 or len(times) == 0 or times.dtype == torch.bool:
        raise ValueError(f"times must be numbers with the shape [K], K >= 1; got {shape_of(times)} of {times.dtype}")
    refuse_where("times", times, ~(times >= 0), "at least 0")
    starts = torch.zeros_like(times, dtype=torch.bool)
    starts[0] = True
    if strata is not None:
        check_integers(strata, "strata", times, "times")
        refuse_where("strata", strata, strata < strata.cummax(0)[0], "in rising order")
        starts[1:] = strata[1:] != strata[:-1]
    falls = torch.zeros_like(starts)
    falls[1:] = (times[1:] <= times[:-1]) & ~starts[1:]
    refuse_where("times", times, falls, "strictly increasing")
    if events.shape != times.shape or events.is_floating_point() or events.dtype == torch.bool:
        raise ValueError(f"events must be {len(times)} integers; got {shape_of(events)} of {events.dtype}")
    refuse_where("events", events, events < 1, "at least 1")
    return starts.nonzero().squeeze(1)


def _limit_gradient(limit: Tensor, sums: Tensor, where: Tensor) -> Tensor:
    """Return the same values, with the gradient of e^sums scaled down to what it is at the limit."""
    apart = sums - sums.detach()
    scale = (limit - sums.detach()).clamp(max=0.0).exp()
    return torch.where(where, sums.detach() + apart * torch.where(where, scale, 1.0), sums)


def _merge_times(counted: tuple[Tensor, Tensor], most: int) -> tuple[Tensor, Tensor]:
    """Merge runs of neighbouring times, given with their numbers of events, so that there are at most ``most``.

    With m times still to come, a run holds a number of the order of sqrt(m): risk sets shrink, and so do the
    differences that can be neglected.
    """
    times, events = counted
    if len(times) <= most:
        return counted
    left = (len(times) * (torch.arange(1, most + 1, dtype=torch.float64) / most).square()).ceil().long()
    first = (len(times) - left).unique()
    past = torch.cat([first[1:], first.new_tensor([len(times)])])
    totals = torch.cat([events.new_zeros(1), events.cumsum(0)])
    middle = (first + past - 1) // 2
    middle[0] = 0  # otherwise the first events would be in no risk set, and ever larger h would pay off
    return times[middle], totals[past] - totals[first]
