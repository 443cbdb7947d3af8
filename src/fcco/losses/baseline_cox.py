"""Cox's partial likelihood with rows that all events of a time share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco._checks import reads_are_free, shape_of, whole_number
from fcco._table import at_least_single
from fcco.core.arrays import counted, peaks
from fcco.core.rules import SOAP, Rule
from fcco.functional._checks import as_mask, check_floats, check_integers, check_time, refuse_where
from fcco.functional._tensors import narrower
from fcco.losses.all_rows import AllRowsLoss, Update
from fcco.losses.population import as_values, count_positives
from fcco.objectives.survival import Cox
from fcco.schedules import Power

TRUST = 8.0
"""A single example with a huge output must not undo what has been learned."""


class BaselineCoxLoss(AllRowsLoss):
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
        How rows are updated: SOX, SOAP or BSGD; see :class:`fcco.SOX`. The default has γ = 1 / sqrt(visits).
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
    places: Tensor
    """Where rows are in a matrix that has a row for each stratum."""
    columns = ("risk", "time", "event", "strata")
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
        super().__init__(Cox(), len(times), rule=rule)
        if rule.decays:
            raise ValueError(f"rule of BaselineCoxLoss must be SOX, SOAP or BSGD; got {rule}")
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
        sizes = F.pad(firsts, (0, 1), value=len(times)).diff()
        self._shape = len(sizes), int(sizes.max())
        ahead = torch.arange(len(sizes)) * self._shape[1] - firsts
        self.register_buffer("places", torch.arange(len(times)) + ahead.repeat_interleave(sizes), persistent=False)
        self.knows(None, n_examples=self.n_examples, times=times, events=events, strata=strata)
        self._digits = times.dtype  # the dtype as given: a cast adds no information

    @classmethod
    def from_targets(
        cls, time: Any, event: Any, max_times: int = 1024, *, strata: Any = None, **options: Any
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
        group = torch.zeros(n, dtype=torch.int64) if strata is None else as_values(strata)
        check_integers(group, "strata", event, "event")
        most, groups = whole_number("max_times", max_times), group[event == 1].unique()
        found = [time[(event == 1) & (group == k)].unique(return_counts=True) for k in groups]
        total = sum(len(times) for times, _ in found)
        rows = [_merge_times(k, d, max(1, most * len(k) // total)) for k, d in found]
        times, events = (torch.cat(column) for column in zip(*rows, strict=True))
        numbers = groups.repeat_interleave(torch.tensor([len(own) for own, _ in rows]))
        loss = cls(n, times, events, strata=None if strata is None else numbers, **options)
        loss._has_all_times = len(times) == total
        return loss

    def forward(  # type: ignore[override]
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
        columns = (risk, time, event) if strata is None else (risk, time, event, strata)
        return super().forward(*columns)

    def _checked(self, *columns: Any) -> Sequence[Tensor]:
        risk, time, event, *strata = columns
        if bool(strata) != (self.strata is not None):
            rows = f"rows of {self._shape[0]} strata" if self.strata is not None else "no strata"
            raise ValueError(f"strata must {'not ' * bool(strata)}be given, because the loss has {rows}")
        check_floats(risk, "risk", "[B]", room=4.0 * self.n_examples)
        check_time(time, risk, "risk")
        event = as_mask(event, "event", risk, "risk", signs=False)
        for stratum in strata:
            check_integers(stratum, "strata", risk, "risk")
        return risk, time, event, *strata

    def _rows(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Tensor, Any]:
        """Raise if a batch contradicts what is known about the training data, too."""
        columns, rows, _ = super()._rows(columns, None)
        if reads_are_free(rows):
            _, time, event, *strata = columns
            last = self._last(time, *strata)
            first = (
                "the first of the times of its stratum" if strata else f"{self.times[0].item()}, the first of times,"
            )
            refuse_where("time", time, event & (last < 0), f"at least {first} for an event")
            if self._has_all_times:
                times, own = self._in_common_digits(time)
                of_events = "one of the training events' times, to the last digit and in the unit of from_targets"
                refuse_where("time", time, event & (times[last] != own), f"{of_events}, for an event")
            if self.stratified and self.n_events == self.n_examples:
                of_all = f"1, since all n = {self.n_examples} training examples have events"
                refuse_where("event", event.long(), ~event, of_all)
        return columns, rows, None

    def _step(self, columns: Sequence[Tensor], view: Any) -> tuple[Tensor, Tensor, Update]:
        """Estimate log G at every event time; the gradient is made of martingale residuals."""
        risk, time, event, *strata = columns
        n, size, events = self.n_examples, len(risk), event.sum().to(risk.dtype)
        represents = torch.full_like(risk, n / size)
        if self.stratified:
            represents = torch.where(event, self.n_events / events, (n - self.n_events) / (size - events))
        terms, share = risk + represents.log(), torch.where(event, represents, 0.0) / self.n_events
        past = self._last(time, *strata) + 1
        peak = peaks(past, self.n + 1, terms).clip(torch.finfo(risk.dtype).min, None)
        sums = self._from_each(peak + counted(past, self.n + 1, (terms - peak[past]).exp()).log())
        log_members = self._from_each(counted(past, self.n + 1, torch.ones_like(risk)).log())
        update = self._update(view, sums)
        weight = torch.where(update.written, self.events.to(sums.dtype) / self.n_events, 0.0)
        # An estimate that is far above its row counts as if it was less far.
        excess = (sums - update.new - torch.log1p(TRUST * (-log_members / 2).exp())).clamp(min=0)
        hazards = self._in_strata(torch.where(update.written, weight.log() - excess - update.at, -math.inf))
        upto_each = F.pad(hazards.logcumsumexp(1).view(-1)[self.places], (1, 0), value=-math.inf)
        gradient = (terms + upto_each[past]).exp() - share
        if self.centred and size > 1:
            # Residuals sum to 0 over all examples, so their sum with a gradient is (n - 1) times a covariance. The
            # covariance of a random batch is an unbiased estimate of it.
            gradient = (gradient - gradient.mean()) * ((n - 1) * size / (n * (size - 1)))
        # The number of events in a batch is random. Subtracting the level of h keeps it from scaling this noise.
        level = self._in_strata(update.before)[:, 0].logsumexp(0) - math.log(n)
        seen = share @ risk - torch.where(level > -math.inf, level, 0.0) * (share.sum() - 1)
        return weight @ torch.where(update.written, update.new, 0.0) - seen, gradient, update

    def _in_strata(self, values: Tensor) -> Tensor:
        """Return the values of all rows as a matrix, in which each stratum has a row that ends with -inf."""
        filled = values.new_full((math.prod(self._shape),), -math.inf)
        return filled.index_copy(0, self.places, values).view(self._shape)

    def _from_each(self, logs: Tensor) -> Tensor:
        """Return the log-sums over a row of the table and the later ones of its stratum; the first place is no row."""
        return self._in_strata(logs[1:]).flip(1).logcumsumexp(1).flip(1).view(-1)[self.places]

    def _last(self, time: Tensor, *strata: Tensor) -> Tensor:
        """Return the last row of the table at which each example is at risk, -1 for none."""
        times, own = self._in_common_digits(time)
        if self.strata is None:
            return torch.searchsorted(times, own, right=True) - 1
        at_risk = (times[:, None] <= own) & (self.strata[:, None] == strata[0])
        return torch.where(at_risk, torch.arange(self.n, device=time.device)[:, None], -1).amax(0)

    def _in_common_digits(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the event times and those of a batch in the narrower dtype, whose digits are known on both sides."""
        dtype = narrower(time.dtype, self._digits)
        wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
        return self.times.to(dtype).to(wide), time.to(dtype).to(wide)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BaselineCoxLoss:
        return super()._apply(at_least_single(fn), recurse)

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
    starts = F.pad(torch.zeros_like(times[1:], dtype=torch.bool), (1, 0), value=True)
    if strata is not None:
        check_integers(strata, "strata", times, "times")
        refuse_where("strata", strata, strata < strata.cummax(0)[0], "in rising order")
        starts[1:] = strata[1:] != strata[:-1]
    falls = F.pad(times[1:] <= times[:-1], (1, 0)) & ~starts
    refuse_where("times", times, falls, "strictly increasing")
    if events.shape != times.shape or events.is_floating_point() or events.dtype == torch.bool:
        raise ValueError(f"events must be {len(times)} integers; got {shape_of(events)} of {events.dtype}")
    refuse_where("events", events, events < 1, "at least 1")
    return starts.nonzero().squeeze(1)


def _merge_times(times: Tensor, events: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Merge runs of neighbouring times, given with their numbers of events, so that there are at most ``most``.

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
