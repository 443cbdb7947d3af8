"""Cox's partial likelihood as a loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fcco._checks import reads_are_free, shape_of, whole_number
from fcco._memory import Memory
from fcco._pool import Estimate, Pool
from fcco._remember import TRUST
from fcco._rules import SOAP, Rule
from fcco._step import SharedEstimate
from fcco._table import InnerTable
from fcco.functional._checks import as_mask, check_floats, check_time, refuse_where
from fcco.functional._inner import OwnTerm, check_own_term, stratum_weight
from fcco.functional._inner_survival import cox_inner, risk_set_sums
from fcco.functional._tensors import at_least_float32, narrower
from fcco.losses._base import Default, Loss, Scale, as_values, choose, count_positives
from fcco.losses._fused import can_work_by_hand
from fcco.losses._fused_memory import remembering_cox
from fcco.losses._population import check_members, split
from fcco.schedules import Power

# What measured best; see docs/defaults.md.
COX = Default(SOAP(gamma=0.7), Memory(256))


class CoxLoss(Loss):
    r"""Negative partial log-likelihood of Cox's model, per event, with risk sets from all training data.

    .. math:: F = \frac{1}{n_E} \sum_{i : E_i = 1} \log \sum_{j : T_j \ge T_i} e^{h_j - h_i}

    Parameters
    ----------
    n : int
        The number of training examples.
    n_events : int or None, default None
        The number of events among them; see also :meth:`from_targets`. If given, the batch may hold any share of
        events. If None, the batch is taken as a random sample.
    rule : Rule or None, default None
        How rows are updated; see :class:`fcco.SOX`. A rule without ``memory`` has none. If neither is given, there is a
        memory of 256 outputs per stratum and no table. With ``memory=0``, the rule is ``fcco.SOAP(gamma=0.7)``.
    own_term : {"exact", "sampled"}, default "sampled"
        "sampled" weighs the own term like the other terms of the batch, as in-batch losses do. "exact" is unbiased, but
        an event has no term if the batch has no other example or, with ``n_events``, no other event or no censored
        example.
    memory : Memory, int or None, default None
        Which outputs of recent batches to compare with; a number is that of outputs and 0 stands for none. If
        ``n_events`` is known, this many are kept of the events and as many of the others. See :class:`fcco.Memory`.

    Raises
    ------
    ValueError
        If ``n_events`` exceeds ``n``, or if ``own_term`` is invalid.

    See Also
    --------
    BaselineCoxLoss : Mostly the better choice if the times of all training examples are known.
    fcco.functional.cox_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(risk, time, event, index)`` takes four tensors of shape (B,): log-hazards, times, events (0 and 1,
    or bool), and rows in [0, n). It returns a scalar. The loss works in log space. Ties are handled by Breslow's
    method.

    ``CoxLoss(n, rule=fcco.BSGD())`` has the gradient of the usual in-batch loss, whose risk sets are those of the
    batch.

    With a memory, batches of a single example are enough, and batches without events are as useful as others.

    The default rule, memory and own term were chosen by measurement; see docs/defaults.md and docs/memory.md.

    References
    ----------
    .. [1] Katzman et al., *DeepSurv*, 2018.

    Examples
    --------
    >>> import torch
    >>> loss_fn = CoxLoss.from_targets([1, 1, 0, 1])
    >>> risk = torch.tensor([0.5, -0.5, 0.0], requires_grad=True)
    >>> loss_fn(risk, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 1, 0]), index=torch.tensor([3, 0, 2])).backward()
    """

    estimated_from = "risk"

    def __init__(
        self,
        n: int,
        n_events: int | None = None,
        rule: Rule | None = None,
        own_term: OwnTerm = "sampled",
        memory: Memory | int | None = None,
    ) -> None:
        rule, memory = choose(rule, memory, COX, strata=1 if n_events is None else 2)
        super().__init__(Scale(), n, rule=rule, log=True, memory=memory)
        self.n_events = None if n_events is None else whole_number("n_events", n_events)
        if self.n_events is not None and self.n_events > self.n:
            raise ValueError(f"n_events must be at most n = {self.n}; got {n_events}")
        if self.n_events is not None:
            self._with_outer(self.n_events)._identify(n_events=self.n_events)
        check_own_term(own_term)
        self.own_term: OwnTerm = own_term

    @classmethod
    def from_targets(cls, event: Any, **options: Any) -> CoxLoss:
        """Create the loss with n and n_events counted in the training events.

        Parameters
        ----------
        event : array-like of shape (n,)
            1 or True if the event was observed, 0 or False if the example is censored.
        **options
            Further arguments of the constructor.

        Returns
        -------
        CoxLoss
            The loss.
        """
        n, n_events = count_positives(event, "event")
        return cls(n, n_events, **options)

    def forward(self, risk: Tensor, time: Tensor, event: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch from log-hazards, times, events and rows, each of shape (B,)."""
        stratum = None if self.n_events is None else event
        by_hand = self.memory is not None and self.own_term == "sampled"
        by_hand = by_hand and isinstance(risk, Tensor) and isinstance(time, Tensor)
        if by_hand and risk.shape == time.shape and time.is_cpu and can_work_by_hand(self.coupled, risk, event):
            loss = remembering_cox(self.coupled, risk, time, event, index, n_events=self.n_events)
            if loss is not None:
                return loss
        return self._loss(self._estimate, risk, time, event, index=index, stratum=stratum, check=self._check)

    def _estimate(self, pool: Pool) -> Estimate:
        """Estimate the inner values of the events in a pool."""
        return cox_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.rows,
            n=self._of_population(self.n),
            n_events=self._of_population(self.n_events),
            own_term=self.own_term,
            recall=pool.recall,
        )

    def _check(self, pool: Pool) -> None:
        """Refuse a batch that contradicts the training data."""
        if self.n_events is not None:
            check_members(pool, 1, split(self.n, self.n_events, "n_events", "event", "censored example"))


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
        The times at which events were observed, increasing; see also :meth:`from_targets`.
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

    Raises
    ------
    ValueError
        If times do not increase, if events are not positive counts, if the rule is not supported, or if the loss is
        both stratified and centred.

    See Also
    --------
    CoxLoss : The same objective if times are not known in advance.
    fcco.functional.cox_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(risk, time, event)`` takes three tensors of shape (B,) from any loader: log-hazards, times, and
    events (0 and 1, or bool). It returns a scalar. An ``index`` may follow but is not needed. Ties are handled by
    Breslow's method.

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
    estimated_from = "risk"

    def __init__(
        self,
        n: int,
        times: Any,
        events: Any,
        rule: Rule = SOAP(gamma=Power(0.5)),  # noqa: B008 (frozen)
        stratified: bool = False,
        centred: bool = False,
    ) -> None:
        times, events = as_values(times).clone(), as_values(events).clone()
        if times.dim() != 1 or len(times) == 0 or times.dtype == torch.bool:
            raise ValueError(
                f"times must be numbers with the shape [K], K >= 1; got {shape_of(times)} of {times.dtype}"
            )
        refuse_where("times", times, ~(times >= 0), "at least 0")
        falls = torch.zeros_like(times, dtype=torch.bool)
        falls[1:] = times[1:] <= times[:-1]
        refuse_where("times", times, falls, "strictly increasing")
        if events.shape != times.shape or events.is_floating_point() or events.dtype == torch.bool:
            raise ValueError(f"events must be {len(times)} integers; got {shape_of(events)} of {events.dtype}")
        refuse_where("events", events, events < 1, "at least 1")
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
        self._identify(n_examples=self.n_examples, times=times, events=events)
        self._digits = times.dtype  # the dtype as given: a cast adds no information

    @classmethod
    def from_targets(cls, time: Any, event: Any, max_times: int = 1024, **options: Any) -> BaselineCoxLoss:
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
            events.
        **options
            Further arguments of the constructor.

        Returns
        -------
        BaselineCoxLoss
            The loss.

        Raises
        ------
        ValueError
            If a time or an event is invalid, or if there are no events.
        """
        time, event = as_values(time), as_values(event)
        strange = (event != 0) & (event != 1)
        refuse_where("event", event, strange, "0 or 1 (from_targets takes the times first, then the events)")
        n, n_events = count_positives(event, "event")
        check_time(time, event, "event")
        if n_events == 0:
            raise ValueError("event must have at least one event; got only censored examples")
        times, events = time[event == 1].unique(return_counts=True)
        return cls(n, *_merge_times(times, events, whole_number("max_times", max_times)), **options)

    def forward(self, risk: Tensor, time: Tensor, event: Tensor, index: Any = None) -> Tensor:
        """Return the loss of a batch from log-hazards, times and events, each of shape (B,); ``index`` is ignored."""
        if not (self.training and torch.is_grad_enabled()):
            return self._loss(lambda pool: cox_inner(*pool.own), risk, time, event, index=range(len(risk)))
        return self._shared_loss(self._estimate, risk, time, event)

    def _estimate(self, table: InnerTable, risk: Tensor, time: Tensor, event: Tensor) -> SharedEstimate:
        """Estimate log G at every event time, with its weight, and subtract the mean of h over the events."""
        sums, members, seen, total = self._summarise(risk, time, event)
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
        level = torch.where(visited[0], held[0], sums.detach()[0]) - math.log(self.n_examples)
        seen = seen - torch.where(level > -math.inf, level, 0.0) * (total - 1)
        return SharedEstimate(sums, weight, extra=-seen)

    def _next_rows(self, table: InnerTable, held: Tensor, sums: Tensor) -> Tensor:
        """Return what the rows will be after this step, by a moving average, of shape (K,)."""
        rate = torch.as_tensor(self.coupled.rate(table, None)).to(sums).clamp(max=1.0)
        return torch.logaddexp(held + torch.log1p(-rate), sums + rate.log())

    def _summarise(self, risk: Tensor, time: Tensor, event: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Summarise a batch for the update.

        Returns the log-sums over risk sets and the number of members of each, both of shape (K,), and estimates of the
        mean of h over all events and of the mean of 1.
        """
        check_floats(risk, "risk", "[B]", room=4.0 * self.n_examples)
        check_time(time, risk, "risk")
        seen = as_mask(event, "event", risk, "risk", signs=False)
        risk = at_least_float32(risk)
        if self.centred and len(risk) > 1:
            risk = self._centre(risk)
        stands_for, sets = self._stands_for(seen, risk), self._sets(time)
        self._check_population(time, seen, sets)
        sums, members = risk_set_sums(risk, stands_for, sets, self.n)
        share = torch.where(seen, stands_for, 0.0) / self.n_events
        return sums, members, (share * risk).sum(), share.sum()

    def _check_population(self, time: Tensor, seen: Tensor, sets: Tensor) -> None:
        """Raise if a batch contradicts what is known about the training data, if reading values is free."""
        if not reads_are_free(time):
            return
        early = f"at least {self.times[0].item()}, the first of times, for an event"
        refuse_where("time", time, seen & (sets == 0), early)
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
        """Return how many of the event times each example was at risk for, of shape (B,).

        Times are compared in the narrower dtype, because only its digits are known on both sides.
        """
        dtype = narrower(time.dtype, self._digits)
        wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
        return torch.searchsorted(self.times.to(dtype).to(wide), time.to(dtype).to(wide), right=True)

    def cumulative_hazard(self) -> tuple[Tensor, Tensor]:
        """Return Breslow's estimate of the cumulative baseline hazard, from the current table.

        The survival function of an example is S(t) = exp(-hazard(t) * e^h). Times that no batch has reached yet add
        nothing. If the table is sharded over ranks, all ranks must call this method together.

        Returns
        -------
        times : Tensor of shape (K,)
            The event times.
        hazard : Tensor of shape (K,)
            The cumulative baseline hazard at each time.
        """
        at_risk = self.table.full().read(None, cold=math.inf).to(self.events.device)
        return self.times.clone(), (self.events * torch.exp(-at_risk)).cumsum(0)


def _limit_gradient(limit: Tensor, sums: Tensor, where: Tensor) -> Tensor:
    """Return the same values, with the gradient of e^sums scaled down to what it is at the limit."""
    apart = sums - sums.detach()
    scale = (limit - sums.detach()).clamp(max=0.0).exp()
    return torch.where(where, sums.detach() + apart * torch.where(where, scale, 1.0), sums)


def _merge_times(times: Tensor, events: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Merge runs of neighbouring times, so that there are at most ``most`` times.

    With m times still to come, a run holds a number of the order of sqrt(m): risk sets shrink, and so do the
    differences that can be neglected.
    """
    if len(times) <= most:
        return times, events
    left = (len(times) * (torch.arange(1, most + 1, dtype=torch.float64) / most).square()).ceil().long()
    first = (len(times) - left).unique()
    past = torch.cat([first[1:], first.new_tensor([len(times)])])
    totals = torch.cat([events.new_zeros(1), events.cumsum(0)])
    middle = (first + past - 1) // 2
    middle[0] = 0  # otherwise the first events would be in no risk set, and ever larger h would pay off
    return times[middle], totals[past] - totals[first]
