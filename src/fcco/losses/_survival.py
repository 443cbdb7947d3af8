"""Cox's partial likelihood as a loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fcco._checks import whole_number
from fcco._rules import SOAP, Rule
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_survival import cox_inner
from fcco.losses._base import Loss, Scale, count_positives


class CoxLoss(Loss):
    r"""Negative partial log-likelihood of Cox's proportional hazards, per event, over risk sets of all training data.

    .. math:: F = \frac{1}{n_E} \sum_{i : E_i = 1} \log \sum_{j : T_j \ge T_i} e^{h_j - h_i}

    Called as ``loss(risk, time, event, index)`` with [B] each, events 0 and 1 (or bool); in log space. Ties are
    Breslow's. ``CoxLoss(n, rule=fcco.BSGD())`` has the gradient of the usual in-batch loss, whose risk sets are those
    of the batch.

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
            self._with_outer(self.n_events)
        check_own_term(own_term)
        self.own_term: OwnTerm = own_term

    @classmethod
    def from_targets(cls, event: Any, **options: Any) -> CoxLoss:
        """With n and n_events counted in the training data."""
        n, n_events = count_positives(event, "event")
        return cls(n, n_events, **options)

    def forward(self, risk: Tensor, time: Tensor, event: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: log-hazards, times, events and rows, [B] each."""
        (risk, time, event, index), outer = self._pool(risk, time, event, index)
        estimate = self._make(
            cox_inner,
            risk,
            time,
            event,
            n=self._of_population(self.n),
            n_events=self._of_population(self.n_events),
            own_term=self.own_term,
            rows=self._rows(index, risk, "risk"),
            outer=outer,
        )
        return self._finish(estimate, index, outer)
