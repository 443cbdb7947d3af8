"""Cox's partial likelihood as a loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fcco._checks import reads_are_free, shape_of, whole_number
from fcco._pool import Estimate, Pool
from fcco._rules import SOAP, Rule
from fcco._step import SharedEstimate
from fcco._table import InnerTable
from fcco.functional._checks import as_mask, check_floats, check_time, refuse_where
from fcco.functional._inner import OwnTerm, check_own_term, stratum_weight
from fcco.functional._inner_survival import cox_inner, risk_set_sums
from fcco.functional._tensors import at_least_float32, narrower
from fcco.losses._base import Loss, Scale, as_values, count_positives
from fcco.losses._population import check_members, split
from fcco.schedules import Power


class CoxLoss(Loss):
    r"""Negative partial log-likelihood of Cox's proportional hazards, per event, over risk sets of all training data.

    .. math:: F = \frac{1}{n_E} \sum_{i : E_i = 1} \log \sum_{j : T_j \ge T_i} e^{h_j - h_i}

    Called as ``loss(risk, time, event, index)`` with [B] each, events 0 and 1 (or bool); in log space. Ties are
    Breslow's. ``CoxLoss(n, rule=fcco.BSGD())`` has the gradient of the usual in-batch loss, whose risk sets are those
    of the batch. Where the times of all training examples are known, :class:`BaselineCoxLoss` is mostly the better
    choice.

    The default, SOAP with γ = 0.7 and a sampled own term, was chosen by measurement: see docs/defaults.md.

    Args:
        n: training examples; ``index`` lies in [0, n).
        n_events: events among them (or see :meth:`from_targets`). If given, the batch may hold any share of events; if
            None it is taken as drawn at random.
        rule: see :class:`fcco.SOX`.
        own_term: "sampled", as in-batch losses have it, or "exact", unbiased; an event then has no term in a batch
            that lacks anybody else (with n_events: another event, or anybody censored).

    >>> import torch
    >>> loss_fn = CoxLoss.from_targets([1, 1, 0, 1])
    >>> risk = torch.tensor([0.5, -0.5, 0.0], requires_grad=True)
    >>> loss_fn(risk, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 1, 0]), index=torch.tensor([3, 0, 2])).backward()

    Reference: Katzman et al., *DeepSurv*, 2018.
    """

    estimated_from = "risk"

    def __init__(
        self,
        n: int,
        n_events: int | None = None,
        rule: Rule = SOAP(gamma=0.7),  # noqa: B008 (frozen)
        own_term: OwnTerm = "sampled",
    ) -> None:
        super().__init__(Scale(), n, rule=rule, log=True)
        self.n_events = None if n_events is None else whole_number("n_events", n_events)
        if self.n_events is not None and self.n_events > self.n:
            raise ValueError(f"n_events cannot exceed n = {self.n}, got {n_events}")
        if self.n_events is not None:
            self._with_outer(self.n_events)._identify(n_events=self.n_events)
        check_own_term(own_term)
        self.own_term: OwnTerm = own_term

    @classmethod
    def from_targets(cls, event: Any, **options: Any) -> CoxLoss:
        """With n and n_events counted in the training data."""
        n, n_events = count_positives(event, "event")
        return cls(n, n_events, **options)

    def forward(self, risk: Tensor, time: Tensor, event: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: log-hazards, times, events and rows, [B] each."""
        return self._loss(self._estimate, risk, time, event, index=index)

    def _estimate(self, pool: Pool) -> Estimate:
        estimate = cox_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.rows,
            n=self._of_population(self.n),
            n_events=self._of_population(self.n_events),
            own_term=self.own_term,
        )
        if self.n_events is not None:
            check_members(pool, 1, split(self.n, self.n_events, "n_events", "event", "censored example"))
        return estimate


# An estimate of a sum over m examples weighs in the gradient as if it were at most so many shares of 1 / sqrt(m) above
# the row: one example with a huge h must not throw off all that has been learned.
_TRUST = 8.0


class BaselineCoxLoss(Loss):
    r"""Negative partial log-likelihood of Cox's proportional hazards, for training data whose times are known.

    .. math:: F = \frac{1}{n_E} \Bigl( \sum_k d_k \log G_k - \sum_{i : E_i = 1} h_i \Bigr), \qquad
        G_k = \sum_{j : T_j \ge t_k} e^{h_j}

    with d_k events at the time t_k. It is the objective of :class:`CoxLoss`. But whom an event is compared with is a
    matter of its time alone, and every batch has something to say on every time: the table has a row for each time of
    an event, not for each example, and all of them move at every step. All events enter the gradient, those of the
    batch and the others: the derivative by the h of an example is in proportion to

    .. math:: e^{h_j} \Lambda(T_j) - E_j, \qquad \Lambda(t) = \sum_{k : t_k \le t} d_k / G_k

    its martingale residual, negative. Batches without events teach as much as others. (A sum over m examples of a
    batch that exceeds its row by a factor of 1 + 8 / sqrt(m) has the gradient it would have there: some h is huge.)

    Called as ``loss(risk, time, event)`` with [B] each, events 0 and 1 (or bool), from any loader; an ``index`` may
    follow, and is not needed. Batches are taken as drawn at random from all examples. Ties are Breslow's.

    The default, SOAP with γ = 1 / sqrt(visits), was chosen by measurement: see docs/defaults.md.

    Args:
        n: training examples.
        times: [K], increasing, at which events were seen. See :meth:`from_targets`.
        events: [K], how many at each.
        rule: SOX, SOAP, SCENT or BSGD; see :class:`fcco.SOX`.
        stratified: batches hold fixed numbers of events and of others, as those that
            :class:`fcco.data.PositiveNegativeSampler` draws.
        centred: F does not change if all h rise alike, and over a pass the gradient of the batches does not ask for it;
            with True, that of a single random batch does not either. It is for features that are far from 0 on average;
            where they are standardised, as they should be, it only adds noise.

    Raises:
        ValueError: times that do not increase, counts that are none, or a rule that does not suit.

    >>> import torch
    >>> loss_fn = BaselineCoxLoss.from_targets(time=[4.0, 1.0, 3.0, 2.0], event=[1, 1, 0, 1])
    >>> risk = torch.tensor([0.5, -0.5, 0.0], requires_grad=True)
    >>> loss_fn(risk, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 1, 0])).backward()

    References: Breslow, *Covariance Analysis of Censored Survival Data*, 1974. Therneau, Grambsch and Fleming,
    *Martingale-Based Residuals for Survival Models*, 1990.
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
            raise ValueError(f"times must be [K], one at least, got {shape_of(times)} of {times.dtype}")
        refuse_where("times", times, ~(times >= 0), "not a time")
        falls = torch.zeros_like(times, dtype=torch.bool)
        falls[1:] = times[1:] <= times[:-1]
        refuse_where("times", times, falls, "not above the one before it")
        if events.shape != times.shape or events.is_floating_point() or events.dtype == torch.bool:
            raise ValueError(f"events must be {len(times)} counts, got {shape_of(events)} of {events.dtype}")
        refuse_where("events", events, events < 1, "no count of events")
        super().__init__(Scale(), len(times), rule=rule, log=True)
        if rule.decays:
            raise ValueError(f"BaselineCoxLoss takes SOX, SOAP, SCENT or BSGD, got {rule}")
        self.n_examples = whole_number("n", n)
        self.n_events = int(events.sum())
        if self.n_events > self.n_examples:
            raise ValueError(f"events cannot exceed n = {n}, got {self.n_events}")
        if stratified and centred:
            raise ValueError("centred is for batches at random, which stratified ones are not")
        self.stratified, self.centred = stratified, centred
        self.register_buffer("times", times, persistent=False)
        self.register_buffer("events", events, persistent=False)
        self._identify(n_examples=self.n_examples, times=times, events=events)
        self._digits = times.dtype  # as given: digits that a cast adds are none

    @classmethod
    def from_targets(cls, time: Any, event: Any, max_times: int = 1024, **options: Any) -> BaselineCoxLoss:
        """With n, times and events of the training data.

        Args:
            time: [n], of the event or of censoring.
            event: [n], 1 or True where the event was seen.
            max_times: rows of the table at most. Where there are more times of events, neighbours share the risk set of
                the middle one (the first ones, of the first), an approximation that is finest for the last events.
            options: of the constructor.
        """
        time, event = as_values(time), as_values(event)
        strange = (event != 0) & (event != 1)
        refuse_where("event", event, strange, "neither 0 nor 1; from_targets takes the times first, then the events")
        n, n_events = count_positives(event, "event")
        check_time(time, event, "event")
        if n_events == 0:
            raise ValueError("event has no event: there is nothing to learn from")
        times, events = time[event == 1].unique(return_counts=True)
        return cls(n, *_thin(times, events, whole_number("max_times", max_times)), **options)

    def forward(self, risk: Tensor, time: Tensor, event: Tensor, index: Any = None) -> Tensor:
        """The loss of a batch: log-hazards, times and events, [B] each."""
        if not (self.training and torch.is_grad_enabled()):
            return self._loss(lambda pool: cox_inner(*pool.own), risk, time, event, index=range(len(risk)))
        return self._shared_loss(self._estimate, risk, time, event)

    def _estimate(self, table: InnerTable, risk: Tensor, time: Tensor, event: Tensor) -> SharedEstimate:
        sums, members, seen, total = self._look(risk, time, event)
        visited = table.visited(None).bool().to(sums.device)
        held = table.read(None, cold=-math.inf).to(sums.device)
        dtype = torch.promote_types(sums.dtype, held.dtype)
        sums, held = sums.to(dtype), held.to(dtype)
        rate = self.coupled.rule.rate
        known = sums > -math.inf
        if not (isinstance(rate, float) and rate == 1.0):
            soon = self._soon(table, held, sums.detach())
            sums = _at_most(soon + torch.log1p(_TRUST * members.to(sums.dtype).rsqrt()), sums, known & visited)
            known = known | visited
        weight = torch.where(known, self.events.to(sums.dtype) / self.n_events, 0.0)
        # The number of events in a batch is chance, and not to be multiplied by how large h is altogether.
        level = torch.where(visited[0], held[0], sums.detach()[0]) - math.log(self.n_examples)
        seen = seen - torch.where(level > -math.inf, level, 0.0) * (total - 1)
        return SharedEstimate(sums, weight, extra=-seen)

    def _soon(self, table: InnerTable, held: Tensor, sums: Tensor) -> Tensor:
        """[K]: what the rows will be after this step, by a moving average."""
        rate = torch.as_tensor(self.coupled.rate(table, None)).to(sums).clamp(max=1.0)
        return torch.logaddexp(held + torch.log1p(-rate), sums + rate.log())

    def _look(self, risk: Tensor, time: Tensor, event: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log of the sums over risk sets [K], of how many each is, the mean of h over events, and that of 1."""
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
        """Refuse a batch that contradicts what is known of the training data, where looking is free."""
        if not reads_are_free(time):
            return
        early = f"of an event before the first of times, {self.times[0].item()}"
        refuse_where("time", time, seen & (sets == 0), early)
        if self.stratified and self.n_events == self.n_examples:
            all_events = f"and all n = {self.n_examples} training examples have events"
            refuse_where("event", seen.long(), ~seen, all_events)

    def _centre(self, risk: Tensor) -> Tensor:
        """The same values, with a gradient that no common part of theirs enters.

        Residuals sum to 0 over all examples, so their sum with a gradient is (n - 1) times a covariance, of which that
        of a random batch is an unbiased estimate.
        """
        n, size = self.n_examples, len(risk)
        apart = (risk - risk.mean()) * ((n - 1) * size / (n * (size - 1)))
        return risk.detach() + (apart - apart.detach())

    def _stands_for(self, seen: Tensor, like: Tensor) -> Tensor:
        """[B]: how many of the training examples each of the batch stands for."""
        if not self.stratified:
            return torch.full_like(like, self.n_examples / len(like))
        others = stratum_weight(~seen, self.n_examples - self.n_events, like)
        return torch.where(seen, stratum_weight(seen, self.n_events, like), others)

    def _sets(self, time: Tensor) -> Tensor:
        """[B]: how many of the times each has lived to see; in the type of fewer digits, since the other has more."""
        dtype = narrower(time.dtype, self._digits)
        wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
        return torch.searchsorted(self.times.to(dtype).to(wide), time.to(dtype).to(wide), right=True)

    def cumulative_hazard(self) -> tuple[Tensor, Tensor]:
        """Times [K], and Breslow's estimate of the cumulative baseline hazard at each, from the table as it is.

        The survival function of an example is S(t) = exp(-hazard(t) * e^h). Times that no batch has reached yet add
        nothing. Of a table that is sharded over ranks, all ranks ask together.
        """
        at_risk = self.table.full().read(None, cold=math.inf).to(self.events.device)
        return self.times.clone(), (self.events * torch.exp(-at_risk)).cumsum(0)


def _at_most(limit: Tensor, sums: Tensor, where: Tensor) -> Tensor:
    """The same values, with the gradient of e^sums scaled down to what it is at the limit."""
    apart = sums - sums.detach()
    scale = (limit - sums.detach()).clamp(max=0.0).exp()
    return torch.where(where, sums.detach() + apart * torch.where(where, scale, 1.0), sums)


def _thin(times: Tensor, events: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Times and their events, at most so many, each for a run of neighbours.

    Of the m times that are left, a run holds in the order of sqrt(m): risk sets shrink, and so do the differences that
    may be neglected.
    """
    if len(times) <= most:
        return times, events
    left = (len(times) * (torch.arange(1, most + 1, dtype=torch.float64) / most).square()).ceil().long()
    first = (len(times) - left).unique()
    past = torch.cat([first[1:], first.new_tensor([len(times)])])
    totals = torch.cat([events.new_zeros(1), events.cumsum(0)])
    middle = (first + past - 1) // 2
    middle[0] = 0  # or the first events would be in no risk set, and gain by ever larger h
    return times[middle], totals[past] - totals[first]
