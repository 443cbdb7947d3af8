"""Cox's partial likelihood as a loss."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco._memory import Memory
from fcco._pool import Estimate, Pool
from fcco.core.rules import SOAP, Rule
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_survival import cox_inner
from fcco.losses._array_memory import can_remember
from fcco.losses._array_outer import Logarithm
from fcco.losses._base import Default, Loss, Scale, as_values, choose, count_positives
from fcco.losses._by_hand import can_work_by_hand, step_by_hand
from fcco.losses._hand_cox import cox_by_hand
from fcco.losses._hand_memory import remembering_cox
from fcco.losses._options import CoxOptions
from fcco.losses._population import check_members, split

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

    With ``strata=``, integers of shape (B,), the risk set of an event has the examples of the same stratum only, so
    that every stratum has a baseline hazard of its own. Nothing else changes: ``n`` and ``n_events`` are those of all
    strata, and batches are drawn from all of them.

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
    def from_targets(cls, event: Any, *times: Any, **options: Unpack[CoxOptions]) -> CoxLoss:
        """Create the loss with n and n_events counted in the training events.

        Parameters
        ----------
        event : array-like of shape (n,)
            1 or True if the event was observed, 0 or False if the example is censored.
        *times
            Must not be given, since the loss gets the times of each batch. :class:`BaselineCoxLoss` takes them.
        **options
            Further arguments of the constructor.

        Returns
        -------
        CoxLoss
            The loss.
        """
        if times:
            raise TypeError(
                f"from_targets takes one argument; got {1 + len(times)}. CoxLoss needs only event; "
                "BaselineCoxLoss.from_targets(time, event) takes times too"
            )
        n, n_events = count_positives(event, "event")
        return cls(n, n_events, **options)._know_labels((as_values(event) == 1).to(torch.uint8), "event")

    def forward(
        self, risk: Tensor, time: Tensor, event: Tensor, index: Tensor | None = None, strata: Tensor | None = None
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
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.
        strata : Tensor of shape (B,) or None, default None
            The stratum of each example, an integer. A risk set then has the examples of one stratum.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        stratum = None if self.n_events is None else event
        by_hand = self.own_term == "sampled" and strata is None
        by_hand = by_hand and can_work_by_hand(self.coupled, (risk,), (time, event)) and risk.dim() == 1
        if by_hand and self._agrees(event, index):
            loss = self._by_hand(risk, time, event, index)
            if loss is not None:
                return loss
        columns = (risk, time, event) if strata is None else (risk, time, event, strata)
        return self._loss(self._estimate, *columns, index=index, stratum=stratum, check=self._check)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward

    def _by_hand(self, risk: Tensor, time: Tensor, event: Tensor, index: Any) -> Tensor | None:
        """Return the loss of a batch, or None if the engine has to take the step."""
        estimate = partial(cox_by_hand, n=self.n, n_events=self.n_events)
        by_itself = partial(step_by_hand, self.coupled, (risk,), index, Logarithm(), estimate, time, event)
        if self.memory is None:
            return by_itself()
        if not can_remember(self.memory, risk):
            return None
        return remembering_cox(self.coupled, risk, time, event, index, n_events=self.n_events, by_itself=by_itself)

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
            pool = pool._replace(own=pool.own[:3], rivals=None if pool.rivals is None else pool.rivals[:3])
            check_members(pool, 1, split(self.n, self.n_events, "n_events", "event", "censored example"))
            self._check_labels(pool)
