"""Losses on embeddings: neighbourhood components analysis and contrastive learning."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from fcco._pool import Estimate, Pool
from fcco.core.rules import BSGD, Rule
from fcco.functional._checks import check_choice
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_similarity import contrastive_inner, directions
from fcco.functional._similarity import check_temperature_of_all
from fcco.losses._array_outer import MeanLogarithm
from fcco.losses._base import Default, Loss, choose
from fcco.losses._by_hand import can_work_by_hand, step_by_hand
from fcco.losses._hand_similarity import contrastive_by_hand
from fcco.losses.memory import Memory

# What measured best; see docs/defaults.md.
CONTRASTIVE = Default(BSGD(), Memory(256, "estimate"), remembers=False)


def _mean_of_both(log_u: Tensor) -> Tensor:
    """Return the mean over both anchors."""
    return log_u.mean(1)


class ContrastiveLoss(Loss):
    r"""Global contrastive loss: every example against all others of the training set, not only those of its batch.

    .. math:: F = \frac{1}{2n} \sum_i \sum_{a \in \{first, second\}}
        \log \operatorname{mean}_c\, e^{(s(a_i, c) - s(first_i, second_i)) / \tau}

    Parameters
    ----------
    n : int
        The number of training examples.
    temperature : float or Parameter, default 0.1
        The temperature τ, positive. A ``torch.nn.Parameter`` of one number is one of the loss's parameters, and is
        learnt if the optimizer has them. A tensor that is a function of other parameters goes into each call, as
        ``loss(first, second, index, temperature=...)``. Both have the gradient of the objective.
    mode : {"two_views", "cross_modal"}, default "two_views"
        With "two_views", the candidates c are both views of all other examples. With "cross_modal", for image and text
        for example, they are those of the other modality. Both directions weigh the same, and the table has a column
        for each.
    include_positive : bool, default False
        Whether the positive pair is also a candidate.
    rule : Rule or None, default None
        How rows are updated; see :class:`fcco.SOX`. The default is ``fcco.BSGD()``, which has no table, and no memory.
        ``fcco.SOAP(gamma=0.7)`` is worth a try with a linear model, or with many passes.
    own_term : {"exact", "sampled"}, default "exact"
        How to weigh the positive pair, if it is included. With "exact" it is one candidate next to all n - 1 others.
        With "sampled" it is one next to those of the batch.
    memory : Memory, int or None, default None
        How many pairs of recent batches to remember, with the strength "estimate", or a :class:`fcco.Memory`. With the
        strength "virtual" and no guard, a deep encoder collapses.

    Raises
    ------
    ValueError
        If ``temperature`` is not positive, or if ``mode`` or ``own_term`` is invalid.

    See Also
    --------
    fcco.functional.contrastive_loss : The exact objective.
    RobustContrastiveLoss : A temperature for every example.
    SupervisedContrastiveLoss : Several positives, by their labels.

    Notes
    -----
    **Call.** ``loss(first, second, index)`` takes two tensors of shape (B, d), which the loss normalises, and rows in
    [0, n) of shape (B,). It returns a scalar. The loss works in log space.

    ``ContrastiveLoss(n, include_positive=True, own_term="sampled", rule=fcco.BSGD())`` has the gradient of InfoNCE:
    with two views that of SimCLR's NT-Xent, and across modalities that of CLIP's cross entropy in both directions.

    A temperature that is learnt has no minimum above 0 if all candidates are less similar than the positive. With
    ``include_positive=True``, as in CLIP, F is bounded below; keep τ in an interval, for example as the exponential of
    a clamped parameter.

    The default rule, memory and own term were chosen by measurement; see docs/defaults.md and docs/memory.md.

    References
    ----------
    .. [1] Yuan et al., *Provable Stochastic Optimization for Global Contrastive Learning*, ICML 2022.

    Examples
    --------
    >>> import torch
    >>> loss_fn = ContrastiveLoss(n=5)
    >>> first, second = torch.eye(3).requires_grad_(), torch.eye(3)
    >>> loss_fn(first, second, index=torch.tensor([4, 0, 2])).backward()
    """

    estimated_from = "first"

    def __init__(
        self,
        n: int,
        temperature: float | nn.Parameter = 0.1,
        mode: Literal["two_views", "cross_modal"] = "two_views",
        include_positive: bool = False,
        rule: Rule | None = None,
        own_term: OwnTerm = "exact",
        memory: Memory | int | None = None,
    ) -> None:
        rule, memory = choose(rule, memory, CONTRASTIVE)
        super().__init__(_mean_of_both, n, dim=2, rule=rule, log=True, memory=memory)
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            raise TypeError("temperature must be a number or a torch.nn.Parameter; give other tensors with each call")
        check_temperature_of_all(temperature)
        check_choice(mode, "mode", ("two_views", "cross_modal"))
        check_own_term(own_term)
        self.temperature, self.mode, self.include_positive = temperature, mode, include_positive
        self.own_term: OwnTerm = own_term

    def forward(
        self, first: Tensor, second: Tensor, index: Tensor | None = None, *, temperature: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        first : Tensor of shape (B, d)
            The embeddings of the first view or modality, which the loss normalises.
        second : Tensor of shape (B, d)
            Those of the second one.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.
        temperature : Tensor of one number or None, default None
            The temperature τ of this call, instead of the loss's own.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        tau: Any = self.temperature if temperature is None else temperature
        check_temperature_of_all(tau)
        if self.memory is not None:
            # What is remembered are directions, so that the guard can compare them. The engine refuses what has none.
            with suppress(TypeError, ValueError):
                first, second = directions(first, second)
        tau = tau.reshape(()) if isinstance(tau, Tensor) else tau
        if self.memory is None and isinstance(tau, float) and can_work_by_hand(self.coupled, (first, second)):
            options: dict[str, Any] = {"mode": self.mode, "n": self.n, "exact": self.own_term == "exact"}
            options |= {"temperature": tau, "include_positive": self.include_positive}
            estimate = partial(contrastive_by_hand, **options)
            loss = step_by_hand(self.coupled, (first, second), index, MeanLogarithm(), estimate)
            if loss is not None:
                return loss
        return self._loss(lambda pool: self._estimate(pool, tau), first, second, index=index)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward

    def _estimate(self, pool: Pool, temperature: float | Tensor) -> Estimate:
        """Estimate the inner values of the own examples of a pool, with either view as the anchor."""
        return contrastive_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.rows,
            temperature=temperature,
            mode=self.mode,
            include_positive=self.include_positive,
            n=self._of_population(self.n),
            own_term=self.own_term,
            recall=pool.recall,
        )
