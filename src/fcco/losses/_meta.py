"""MAML as a loss: a table of adapted weights, one row a task."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fcco._pool import Pool
from fcco._rules import SOAP, Rule
from fcco.functional._checks import check_number
from fcco.functional._meta import Data, TaskLoss, adapt, check_tasks, parameter_count, task_losses
from fcco.losses._base import Loss


class _QueryLoss:
    """f_i(u; ι): the loss of weights u on the query data ι of the tasks."""

    def __init__(self, loss: TaskLoss) -> None:
        self.loss = loss

    def __call__(self, u: Tensor, index: Tensor, sample: tuple[nn.Module, Data]) -> Tensor:
        model, query = sample
        return task_losses(model, u.reshape(len(index), -1), query, loss=self.loss)


class MAMLLoss(Loss):
    r"""Mean loss over tasks after one gradient step on each, from a few tasks and a few examples at a time.

    .. math:: F(w) = \frac 1 n \sum_i L_i\bigl(w - \alpha \nabla L_i(w)\bigr)

    The table holds the adapted weights of every task, averaged over the support sets it has been seen with: n rows of
    as many values as the model has parameters. f is stochastic: the query data come with the call.

    Called as ``loss(model, support, query, index)``; support and query are inputs and targets, [B1, examples, ...].
    (``torch.compile`` makes one graph of it in the present torch, and breaks it in torch 2.4.)

    The default, SOAP with γ = 0.7, was chosen by measurement: see docs/defaults.md.

    Args:
        n: tasks; ``index`` lies in [0, n).
        n_parameters: of the model (or see :meth:`for_model`).
        lr: α, of the inner step.
        loss: from predictions and targets of one task to a scalar.
        rule: see :class:`fcco.SOX`; ``fcco.BSGD()`` is MAML as usual.

    >>> import torch
    >>> model = nn.Linear(1, 1)
    >>> loss_fn = MAMLLoss.for_model(model, n=100, lr=0.1)
    >>> x = torch.randn(3, 5, 1)
    >>> loss_fn(model, (x, 2 * x), (x, 2 * x), index=torch.tensor([7, 0, 99])).backward()

    Reference: Finn, Abbeel and Levine, *Model-Agnostic Meta-Learning*, ICML 2017.
    """

    estimated_from = "support"

    def __init__(
        self,
        n: int,
        n_parameters: int,
        lr: float,
        loss: TaskLoss = F.mse_loss,
        rule: Rule = SOAP(gamma=0.7),  # noqa: B008 (frozen)
    ) -> None:
        check_number(lr, "lr", above=0)
        super().__init__(_QueryLoss(loss), n, dim=n_parameters, rule=rule)
        self.coupled.outer_may_fail = True  # it calls the model
        self.lr, self.loss = lr, loss

    @classmethod
    def for_model(cls, model: nn.Module, n: int, lr: float, **options: object) -> MAMLLoss:
        """With rows as long as the model has parameters."""
        return cls(n, parameter_count(model), lr, **options)  # type: ignore[arg-type]

    def forward(self, model: nn.Module, support: Data, query: Data, index: Tensor) -> Tensor:
        """The loss of a batch of tasks, differentiable in the model's parameters."""
        if parameter_count(model) != self.table.dim:
            raise ValueError(f"the model has {parameter_count(model)} parameters, the table's rows {self.table.dim}")

        def estimate(pool: Pool) -> Tensor:
            inner = adapt(model, support, lr=self.lr, loss=self.loss)
            check_tasks(query, "query", len(inner))
            return inner

        return self._loss(estimate, index=index, gather=False, sample=(model, query))
