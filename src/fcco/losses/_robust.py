"""Losses of robust learning: invariance to perturbations, and the worst of several groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco._step import SharedEstimate
from fcco._table import InnerTable
from fcco.core.rules import BSGD, SOAP, Rule
from fcco.functional._checks import as_mask, check_floats, check_integers, check_number, refuse_where
from fcco.functional._inner import masked_logsumexp
from fcco.functional._tensors import at_least_float32, widen
from fcco.losses._base import Loss, as_values, count_members
from fcco.losses._options import GroupDROOptions
from fcco.schedules import RunningMean


def _softplus_of_minus(u: Tensor) -> Tensor:
    """Return f(u) = log(1 + e^-u)."""
    return F.softplus(-u)


def _signed_mean(scores: Tensor, target: Tensor) -> Tensor:
    """Return the mean score of each positive, and minus the mean score of each negative, of shape (B1,)."""
    check_floats(scores, "scores", "[B1, B2]")
    positive = as_mask(target, "target", scores, "scores", signs=False)
    mean = at_least_float32(scores).mean(1)
    return torch.where(positive, mean, -mean)


class InvariantLogisticLoss(Loss):
    r"""Logistic loss of the mean score over perturbed observations, a few of which are drawn at a time.

    .. math:: F = \frac 1 n \sum_i \log\bigl(1 + e^{-b_i g_i}\bigr), \qquad g_i = \mathbb{E}\, h(x_i + noise)

    Parameters
    ----------
    n : int
        The number of training examples.
    rule : Rule, default ``fcco.SOAP(fcco.schedules.RunningMean(floor=0.03))``
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss.

    See Also
    --------
    fcco.functional.invariant_logistic_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, target, index)`` takes the scores of B2 observations of each example, of shape (B1, B2),
    targets (0 and 1, or bool) of shape (B1,), and rows in [0, n) of shape (B1,). It returns a scalar.

    The default rule was chosen by measurement; see docs/defaults.md. With it, a row is the mean of all its estimates,
    and after about 33 visits a moving average with γ = 0.03. A single draw says little about g, and g changes slowly in
    comparison. If the draws of a visit differ little, a larger γ, such as ``fcco.SOAP(0.5)``, follows the model faster.

    References
    ----------
    .. [1] Hu et al., *Biased Stochastic First-Order Methods for Conditional Stochastic Optimization*, NeurIPS 2020.

    Examples
    --------
    >>> loss_fn = InvariantLogisticLoss(n=5)
    >>> loss_fn(torch.tensor([[1.0, -1.0]]), torch.tensor([1]), torch.tensor([4]))  # log 2
    tensor(0.6931)
    """

    def __init__(self, n: int, rule: Rule = SOAP(RunningMean(floor=0.03))) -> None:  # noqa: B008 (frozen)
        super().__init__(_softplus_of_minus, n, rule=rule)

    def forward(self, scores: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B1, B2)
            The scores of B2 observations of each example.
        target : Tensor of shape (B1,)
            The labels: 0 and 1, or bool.
        index : Tensor of shape (B1,)
            The rows of the batch in the training set, in [0, n).

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return self._loss(lambda pool: _signed_mean(*pool.own), scores, target, index=index, gather=False)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward


@dataclass(frozen=True)
class _SoftMaximum:
    """The objective F itself, repeated for every group.

    All groups are inside one logarithm, so f of a row is a function of all rows.
    """

    temperature: float

    def __call__(self, u: Tensor, index: Tensor, known: Tensor) -> Tensor:
        peak = masked_logsumexp(u / self.temperature, known) - known.sum().to(u.dtype).log()
        return (self.temperature * peak).expand_as(u)


class GroupDROLoss(Loss):
    r"""Soft maximum of the groups' mean losses: a distributionally robust objective over groups.

    .. math:: F = \tau \log \frac 1 K \sum_k e^{g_k / \tau}, \qquad g_k = \text{mean loss of group } k

    Parameters
    ----------
    n_groups : int
        The number of groups K, which is the number of rows of the table.
    temperature : float, default 1.0
        The temperature τ, positive. The smaller it is, the more the worst group counts.
    group_sizes : array-like of shape (K,) or None, default None
        The number of training examples in each group; see also :meth:`from_targets`. If given, batches are taken as
        random samples of the training set, and the gradient of a group that appears in a batch with probability P is
        scaled by 1 / P, so that rare groups make up for the batches that lack them. If None, all groups are assumed to
        appear equally often, for example if every batch has all of them.
    rule : Rule, default ``fcco.SOAP(gamma=0.1)``
        How rows are updated: SOX, SOAP or BSGD; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss, over
        the groups in the batch.

    Raises
    ------
    ValueError
        If ``temperature`` or ``group_sizes`` is invalid, or if the rule is not supported.

    See Also
    --------
    fcco.functional.group_dro_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(losses, group)`` takes two tensors of shape (B,): losses of examples, and their groups in [0, K).
    It returns a scalar. The outer examples are the groups, so there is no ``index``.

    Groups that are not in the batch keep their row, which still enters the soft maximum. In the gradient, the groups in
    the batch represent all groups.

    The default rule was chosen by measurement; see docs/defaults.md.

    References
    ----------
    .. [1] Sagawa et al., *Distributionally Robust Neural Networks for Group Shifts*, ICLR 2020.

    Examples
    --------
    >>> loss_fn = GroupDROLoss(n_groups=2, temperature=0.01)
    >>> loss_fn(torch.tensor([0.0, 2.0, 3.0]), torch.tensor([0, 0, 1]))  # nearly 3
    tensor(2.9931)
    """

    group_sizes: Tensor | None
    estimated_from = "losses"

    def __init__(
        self,
        n_groups: int,
        temperature: float = 1.0,
        group_sizes: Any = None,
        rule: Rule = SOAP(gamma=0.1),  # noqa: B008 (frozen)
    ) -> None:
        check_number(temperature, "temperature", above=0)
        if rule.decays or rule.all_rows or rule.needs_previous:
            raise ValueError(f"rule of GroupDROLoss must be SOX, SOAP or BSGD; got {rule}")
        super().__init__(_SoftMaximum(temperature), n_groups, rule=rule)
        self.temperature = temperature
        if group_sizes is not None:
            group_sizes = as_values(group_sizes)
            counts = group_sizes.shape == (self.n,) and not group_sizes.is_floating_point()
            if not counts or (group_sizes < 1).any():
                raise ValueError(f"group_sizes must be {self.n} positive integers; got {group_sizes.tolist()}")
        self.register_buffer("group_sizes", group_sizes, persistent=False)
        self._identify(group_sizes=group_sizes)

    @classmethod
    def from_targets(cls, group: Any, **options: Unpack[GroupDROOptions]) -> GroupDROLoss:
        """Create the loss with group sizes counted in the training data.

        Parameters
        ----------
        group : array-like of shape (n,)
            The group of each training example, an integer in 0 ... K - 1.
        **options
            Further arguments of the constructor.

        Returns
        -------
        GroupDROLoss
            The loss.
        """
        group_sizes = count_members(group, "group")
        return cls(len(group_sizes), group_sizes=group_sizes, **options)

    def forward(self, losses: Tensor, group: Tensor) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        losses : Tensor of shape (B,)
            The losses of the examples.
        group : Tensor of shape (B,)
            The group of each example, an integer in [0, K).

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return self._shared_loss(self._estimate, losses, group)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward

    def _estimate(self, table: InnerTable | None, losses: Tensor, group: Tensor) -> SharedEstimate:
        """Estimate the mean losses of all groups: from the batch if it has the group, otherwise from the table."""
        check_floats(losses, "losses", "[B]", room=max(2.0, 2 / self.temperature))
        check_integers(group, "group", losses, "losses")
        refuse_where("group", group, (group < 0) | (group >= self.n), f"in [0, {self.n})")
        losses, rows = at_least_float32(losses), group.long()
        counts = losses.new_zeros(self.n).index_add(0, rows, torch.ones_like(losses))
        present = counts > 0
        inner = losses.new_zeros(self.n).index_add(0, rows, losses / counts[rows])
        known = present
        if table is not None and not isinstance(self.coupled.rule, BSGD):
            # The gradient of the groups in the batch is scaled up to that of all groups. The value is not.
            inner = inner + (inner - inner.detach()) * (1 / self._presence(present, losses) - 1)
            known = present | table.visited(None).bool()
            inner = torch.where(present, inner, table.read(None, cold=0.0).to(losses.device))
        return SharedEstimate(inner, present, sample=known)

    def _presence(self, present: Tensor, losses: Tensor) -> Tensor:
        """Return how often each group appears in batches of this size, of shape (K,), or one number for all groups."""
        if self.group_sizes is None:
            return present.sum() / self.n
        # A group is absent if all examples, drawn without replacement, come from other groups.
        left = self.group_sizes.sum() - torch.arange(len(losses), device=losses.device)
        met = (widen(self.group_sizes).unsqueeze(1) / left.clamp(min=1)).clamp(max=1)
        return -torch.expm1(torch.log1p(-met).sum(1)).to(losses.dtype)
