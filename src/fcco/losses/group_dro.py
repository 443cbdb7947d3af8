"""Soft maximum of the mean losses of groups, with rows that all members of a group share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco.core.arrays import Array, counted
from fcco.core.objective import Objective
from fcco.core.outers import Linear
from fcco.core.rules import BSGD, SOAP, Rule
from fcco.functional._checks import check_floats, check_integers, check_number, refuse_where
from fcco.functional._tensors import at_least_float32, widen
from fcco.losses.all_rows import AllRowsLoss, Update
from fcco.losses.loss import Made, _plain_torch
from fcco.losses.population import as_values, count_members
from fcco.losses.table import FirstRows, TableRows


class Grouped(NamedTuple):
    """The columns of a call."""

    losses: Array
    group: Array


class Groups(Objective):
    """A function of the mean losses of all groups."""

    Columns, outer = Grouped, Linear()


class GroupDROLoss(AllRowsLoss):
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

    def __init__(
        self,
        n_groups: int,
        temperature: float = 1.0,
        group_sizes: Any = None,
        rule: Rule = SOAP(gamma=0.1),  # noqa: B008 (frozen)
    ) -> None:
        check_number(temperature, "temperature", above=0)
        if rule.decays or rule.all_rows:
            raise ValueError(f"rule of GroupDROLoss must be SOX, SOAP or BSGD; got {rule}")
        super().__init__(Groups(), n_groups, rule=rule)
        self.temperature = temperature
        if group_sizes is not None:
            group_sizes = as_values(group_sizes)
            counts = group_sizes.shape == (self.n,) and not group_sizes.is_floating_point()
            if not counts or (group_sizes < 1).any():
                raise ValueError(f"group_sizes must be {self.n} positive integers; got {group_sizes.tolist()}")
        self.register_buffer("group_sizes", group_sizes, persistent=False)
        self.knows(None, group_sizes=group_sizes)

    @classmethod
    def from_targets(cls, group: Any, **options: Any) -> GroupDROLoss:
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

    def forward(self, losses: Tensor, group: Tensor) -> Tensor:  # type: ignore[override]
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
        return super().forward(losses, group)

    def _checked(self, *columns: Any) -> Sequence[Tensor]:
        losses, group = columns
        check_floats(losses, "losses", "[B]", room=max(2.0, 2 / self.temperature))
        check_integers(group, "group", losses, "losses")
        refuse_where("group", group, (group < 0) | (group >= self.n), f"in [0, {self.n})")
        return losses, group.long()

    def _of_batch(self, columns: Sequence[Tensor], weight: Any, sample: Any) -> Made:
        with _plain_torch(columns[0].device):
            value, gradient, _ = self._step([at_least_float32(columns[0].detach()), columns[1]], FirstRows())
        return Made([gradient], value, None)

    def _step(self, columns: Sequence[Tensor], view: Any) -> tuple[Tensor, Tensor, Update]:
        """Estimate the mean losses of all groups: from the batch if it has the group, otherwise from the table."""
        losses, group = columns
        counts = counted(group, self.n, torch.ones_like(losses))
        known = present = counts > 0
        update = self._update(view, counted(group, self.n, losses / counts[group]), present)
        if isinstance(view, TableRows) and not isinstance(self.rule, BSGD):
            # The gradient of the groups in the batch is scaled up to that of all groups.
            known, counts = present | (view.seen > 0), counts * self._presence(present, losses)
        new, at = (torch.where(known, u, -torch.inf) / self.temperature for u in (update.new, update.at))
        value = self.temperature * (new.logsumexp(0) - known.sum().to(new.dtype).log())
        return value, (at.softmax(0) / counts)[group], update

    def _presence(self, present: Tensor, losses: Tensor) -> Tensor:
        """Return how often each group appears in batches of this size, of shape (K,), or one number for all groups."""
        if self.group_sizes is None:
            return present.sum().to(losses.dtype) / self.n
        # A group is absent if all examples, drawn without replacement, come from other groups.
        left = self.group_sizes.sum() - torch.arange(len(losses), device=losses.device)
        met = (widen(self.group_sizes).unsqueeze(1) / left.clamp(min=1)).clamp(max=1)
        return -torch.expm1(torch.log1p(-met).sum(1)).to(losses.dtype)
