"""Losses of robust learning: invariance to perturbations, and the worst of several groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco._rules import BSGD, SOAP, Rule
from fcco._step import SharedEstimate
from fcco._table import InnerTable
from fcco.functional._checks import as_mask, check_floats, check_integers, check_number, refuse_where
from fcco.functional._inner import masked_logsumexp
from fcco.functional._tensors import at_least_float32, widen
from fcco.losses._base import Loss, as_values, count_members
from fcco.schedules import RunningMean


def _softplus_of_minus(u: Tensor) -> Tensor:
    return F.softplus(-u)


def _signed_mean(scores: Tensor, target: Tensor) -> Tensor:
    """[B1]: the mean score of a positive, and minus that of a negative."""
    check_floats(scores, "scores", "[B1, B2]")
    positive = as_mask(target, "target", scores, "scores", signs=False)
    mean = at_least_float32(scores).mean(1)
    return torch.where(positive, mean, -mean)


class InvariantLogisticLoss(Loss):
    r"""Logistic loss of the mean score over perturbed observations, of which a few are drawn at a time.

    .. math:: F = \frac 1 n \sum_i \log\bigl(1 + e^{-b_i g_i}\bigr), \qquad g_i = \mathbb{E}\, h(x_i + noise)

    Called as ``loss(scores, target, index)`` with [B1, B2], [B1] and [B1], targets 0 and 1 (or bool).

    The default was chosen by measurement: see docs/defaults.md. A row is the mean of all its estimates, and after some
    33 visits a moving average with γ = 0.03: one draw says little of g, and g changes slowly beside that. Where the
    draws of a visit differ little, a larger γ such as ``fcco.SOAP(0.5)`` follows the model faster.

    Args:
        n: training examples; ``index`` lies in [0, n).
        rule: see :class:`fcco.SOX`; ``fcco.BSGD()`` is the in-batch loss.

    >>> loss_fn = InvariantLogisticLoss(n=5)
    >>> loss_fn(torch.tensor([[1.0, -1.0]]), torch.tensor([1]), torch.tensor([4]))  # log 2
    tensor(0.6931)

    Reference: Hu et al., *Biased Stochastic First-Order Methods for Conditional Stochastic Optimization*, NeurIPS 2020.
    """

    def __init__(self, n: int, rule: Rule = SOAP(RunningMean(floor=0.03))) -> None:  # noqa: B008 (frozen)
        super().__init__(_softplus_of_minus, n, rule=rule)

    def forward(self, scores: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: scores of observations [B1, B2], targets 0 and 1 (or bool) and rows [B1]."""
        return self._loss(lambda pool: _signed_mean(*pool.own), scores, target, index=index, gather=False)


@dataclass(frozen=True)
class _SoftMaximum:
    """F itself, once for every group: all groups are in one logarithm, so f of a row is a function of all rows."""

    temperature: float

    def __call__(self, u: Tensor, index: Tensor, known: Tensor) -> Tensor:
        peak = masked_logsumexp(u / self.temperature, known) - known.sum().to(u.dtype).log()
        return (self.temperature * peak).expand_as(u)


class GroupDROLoss(Loss):
    r"""Soft maximum of the groups' mean losses: distributionally robust over groups.

    .. math:: F = \tau \log \frac 1 K \sum_k e^{g_k / \tau}, \qquad g_k = \text{mean loss of group } k

    Called as ``loss(losses, group)`` with [B] each: losses of examples, and their groups in [0, K). The outer examples
    are the groups, so the table has K rows. Groups that the batch lacks keep their row, which still enters the soft
    maximum; in the gradient, the groups that it has stand for all.

    The default, SOAP with γ = 0.1, was chosen by measurement: see docs/defaults.md.

    Args:
        n_groups: K.
        temperature: τ; the smaller, the more the worst group counts.
        group_sizes: [K], training examples in each group (or see :meth:`from_targets`). If given, batches are taken as
            drawn at random from the training set, and the gradient of a group that comes with probability P is scaled
            by 1 / P: rare groups count for the batches that lack them. If None, all groups are taken to come equally
            often, as where every batch has them all.
        rule: SOX, SOAP or BSGD; see :class:`fcco.SOX`. ``fcco.BSGD()`` is the in-batch loss, of the groups at hand.

    >>> loss_fn = GroupDROLoss(n_groups=2, temperature=0.01)
    >>> loss_fn(torch.tensor([0.0, 2.0, 3.0]), torch.tensor([0, 0, 1]))  # nearly 3
    tensor(2.9931)

    Reference: Sagawa et al., *Distributionally Robust Neural Networks for Group Shifts*, ICLR 2020.
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
            raise ValueError(f"GroupDROLoss takes SOX, SOAP or BSGD, got {rule}")
        super().__init__(_SoftMaximum(temperature), n_groups, rule=rule)
        self.temperature = temperature
        if group_sizes is not None:
            group_sizes = as_values(group_sizes)
            counts = group_sizes.shape == (self.n,) and not group_sizes.is_floating_point()
            if not counts or (group_sizes < 1).any():
                raise ValueError(f"group_sizes must be {self.n} counts, none of them 0, got {group_sizes.tolist()}")
        self.register_buffer("group_sizes", group_sizes, persistent=False)
        self._identify(group_sizes=group_sizes)

    @classmethod
    def from_targets(cls, group: Any, **options: Any) -> GroupDROLoss:
        """With the sizes of the groups counted in the training data, whose groups are 0 ... K - 1."""
        group_sizes = count_members(group, "group")
        return cls(len(group_sizes), group_sizes=group_sizes, **options)

    def forward(self, losses: Tensor, group: Tensor) -> Tensor:
        """The loss of a batch: losses of examples and their groups, [B] each."""
        return self._shared_loss(self._estimate, losses, group)

    def _estimate(self, table: InnerTable | None, losses: Tensor, group: Tensor) -> SharedEstimate:
        check_floats(losses, "losses", "[B]", room=max(2.0, 2 / self.temperature))
        check_integers(group, "group", losses, "losses")
        refuse_where("group", group, (group < 0) | (group >= self.n), f"outside the groups 0 to {self.n - 1}")
        losses, rows = at_least_float32(losses), group.long()
        counts = losses.new_zeros(self.n).index_add(0, rows, torch.ones_like(losses))
        present = counts > 0
        inner = losses.new_zeros(self.n).index_add(0, rows, losses / counts[rows])
        known = present
        if table is not None and not isinstance(self.coupled.rule, BSGD):
            # The gradient of the groups at hand is scaled up to that of all groups; the value is not.
            inner = inner + (inner - inner.detach()) * (1 / self._presence(present, losses) - 1)
            known = present | table.visited(None).bool()
            inner = torch.where(present, inner, table.read(None, cold=0.0).to(losses.device))
        return SharedEstimate(inner, present, sample=known)

    def _presence(self, present: Tensor, losses: Tensor) -> Tensor:
        """How often each group comes in batches of this size: [K], or the same for all."""
        if self.group_sizes is None:
            return present.sum() / self.n
        # All of the batch among the others, one after the other without replacement.
        left = self.group_sizes.sum() - torch.arange(len(losses), device=losses.device)
        met = (widen(self.group_sizes).unsqueeze(1) / left.clamp(min=1)).clamp(max=1)
        return -torch.expm1(torch.log1p(-met).sum(1)).to(losses.dtype)
