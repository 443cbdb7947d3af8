"""Cox's partial likelihood as a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco.core.rules import SOAP, Rule
from fcco.functional._checks import as_mask, check_floats, check_integers, check_time
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.losses.loss import ObjectiveLoss
from fcco.losses.memory import Default, Memory
from fcco.losses.population import Kinds, Labels, Population, as_values, count_positives
from fcco.objectives.survival import Cox

# What measured best; see docs/defaults.md.
COX = Default(SOAP(gamma=0.7), Memory(256))


class CoxLoss(ObjectiveLoss):
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

    columns = ("risk", "time", "event")

    def __init__(
        self,
        n: int,
        n_events: int | None = None,
        rule: Rule | None = None,
        own_term: OwnTerm = "sampled",
        memory: Memory | int | None = None,
    ) -> None:
        check_own_term(own_term)
        n = whole_number("n", n)
        if n_events is not None and whole_number("n_events", n_events) > n:
            raise ValueError(f"n_events must be at most n = {n}; got {n_events}")
        sizes = [n] if n_events is None else [n - n_events, n_events]
        rule, memory = COX.choose(rule, memory)
        objective = Cox(torch.tensor(sizes, dtype=torch.float64), own_term)
        super().__init__(objective, n, rule=rule, memory=memory)
        self.n_events, self.own_term = n_events, own_term
        if n_events is not None:
            kinds = Kinds.of_two(n, n_events, "n_events", ("censored example", "event"))
            self.knows(Population(2, kinds), n_events, n_events=n_events)

    @classmethod
    def from_targets(cls, event: Any, *times: Any, **options: Any) -> CoxLoss:
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
        loss = cls(n, n_events, **options)
        return loss.knows(Population(2, labels=Labels.of(as_values(event) == 1, "event")))

    def forward(  # type: ignore[override]
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
        columns = (risk, time, event) if strata is None else (risk, time, event, strata)
        return super().forward(*columns, index=index)

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, and their rows; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B,) or None
            The rows.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        risk, time, event, *strata = columns
        check_floats(risk, "risk", "[B]")
        check_time(time, risk, "risk")
        event = as_mask(event, "event", risk, "risk", signs=False)
        for stratum in strata:
            check_integers(stratum, "strata", risk, "risk")
        return (risk, time, event, *strata), index
