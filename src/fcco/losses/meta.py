"""MAML as a loss, with a table of adapted weights that has one row per task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fcco.core.rules import SOAP, Rule
from fcco.functional._checks import check_number
from fcco.functional._meta import check_tasks, parameter_count
from fcco.losses.loss import ObjectiveLoss
from fcco.objectives.meta import MAML, Data, TaskLoss, adapt


class MAMLLoss(ObjectiveLoss):
    r"""Mean loss over tasks after one gradient step on each, from a few tasks and a few examples at a time.

    .. math:: F(w) = \frac 1 n \sum_i L_i\bigl(w - \alpha \nabla L_i(w)\bigr)

    The table holds the adapted weights of every task, averaged over the support sets of its visits. It has n rows, each
    with as many values as the model has parameters. f is stochastic: the query data are passed with each call.

    Parameters
    ----------
    n : int
        The number of tasks.
    n_parameters : int
        The number of parameters of the model; see also :meth:`for_model`.
    lr : float
        The step size α of the inner step, positive.
    loss : callable, default ``torch.nn.functional.mse_loss``
        Maps the predictions and targets of one task to a scalar.
    rule : Rule, default ``fcco.SOAP(gamma=0.7)``
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the usual MAML.

    Raises
    ------
    ValueError
        If ``lr`` is not positive.

    See Also
    --------
    fcco.functional.maml_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(model, support, query, index)`` returns a scalar.

    - ``model`` is an ``nn.Module`` with ``n_parameters`` parameters.
    - ``support`` and ``query`` are pairs of inputs and targets, each of shape (B1, examples, ...).
    - ``index`` has shape (B1,) and holds rows in [0, n).

    ``torch.compile`` makes a single graph of the loss with the current torch; with torch 2.4 there is a graph break.

    The default rule was chosen by measurement; see docs/defaults.md.

    References
    ----------
    .. [1] Finn, Abbeel and Levine, *Model-Agnostic Meta-Learning*, ICML 2017.

    Examples
    --------
    >>> import torch
    >>> model = nn.Linear(1, 1)
    >>> loss_fn = MAMLLoss.for_model(model, n=100, lr=0.1)
    >>> x = torch.randn(3, 5, 1)
    >>> loss_fn(model, (x, 2 * x), (x, 2 * x), index=torch.tensor([7, 0, 99])).backward()
    """

    columns = ("support",)

    def __init__(
        self,
        n: int,
        n_parameters: int,
        lr: float,
        loss: TaskLoss = F.mse_loss,
        rule: Rule = SOAP(gamma=0.7),  # noqa: B008 (frozen)
    ) -> None:
        check_number(lr, "lr", above=0)
        super().__init__(MAML(loss, n_parameters), n, rule=rule)
        self.lr, self.loss = lr, loss

    @classmethod
    def for_model(cls, model: nn.Module, n: int, lr: float, **options: Any) -> MAMLLoss:
        """Create the loss with rows as long as the model has parameters.

        Parameters
        ----------
        model : nn.Module
            The model to train.
        n : int
            The number of tasks.
        lr : float
            The step size α of the inner step, positive.
        **options
            Further arguments of the constructor.

        Returns
        -------
        MAMLLoss
            The loss.
        """
        return cls(n, parameter_count(model), lr, **options)

    def forward(  # type: ignore[override]
        self, model: nn.Module, support: Data, query: Data, index: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch of tasks, differentiable with respect to the model's parameters.

        Parameters
        ----------
        model : nn.Module
            The model, with as many parameters as a row of the table has values.
        support : tuple of two Tensors of shape (B1, examples, ...)
            The inputs and targets for the gradient step on each task.
        query : tuple of two Tensors of shape (B1, examples, ...)
            The inputs and targets for the loss of each task.
        index : Tensor of shape (B1,) or None, default None
            The rows of the tasks, in [0, n). They are needed in training, unless the rule is ``fcco.BSGD()``.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return super().forward(model, support, query, index=index, sample=(model, query))

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
        model, support, query = columns
        if parameter_count(model) != self.objective.dim:
            raise ValueError(
                f"model must have {self.objective.dim} parameters, like the table's rows; got {parameter_count(model)}"
            )
        check_tasks(support, "support")
        inner = adapt(model, support, lr=self.lr, loss=self.loss)
        check_tasks(query, "query", len(inner))
        return (inner.squeeze(1) if self.objective.dim == 1 else inner,), index
