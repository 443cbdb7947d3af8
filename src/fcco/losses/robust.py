"""The loss of learning that is invariant to perturbations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fcco.core.rules import SOAP, Rule
from fcco.functional._checks import as_mask, check_floats
from fcco.losses.loss import ObjectiveLoss
from fcco.objectives.robust import InvariantLogistic
from fcco.schedules import RunningMean


class InvariantLogisticLoss(ObjectiveLoss):
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
    >>> import torch
    >>> loss_fn = InvariantLogisticLoss(n=5)
    >>> loss_fn(torch.tensor([[1.0, -1.0]]), torch.tensor([1]), torch.tensor([4]))  # log 2
    tensor(0.6931)
    """

    columns = ("scores", "target")

    def __init__(self, n: int, rule: Rule = SOAP(RunningMean(floor=0.03))) -> None:  # noqa: B008 (frozen)
        super().__init__(InvariantLogistic(), n, rule=rule)

    def forward(  # type: ignore[override]
        self, scores: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B1, B2)
            The scores of B2 observations of each example.
        target : Tensor of shape (B1,)
            The labels: 0 and 1, or bool.
        index : Tensor of shape (B1,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return super().forward(scores, target, index=index)

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, and their rows; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B1,) or None
            The rows.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        scores, target = columns
        check_floats(scores, "scores", "[B1, B2]")
        return (scores, as_mask(target, "target", scores, "scores", signs=False)), index
