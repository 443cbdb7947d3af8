"""Model-agnostic meta-learning (MAML): one gradient step on each task, followed by the loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fcco._checks import shape_of
from fcco.functional._checks import check_number
from fcco.objectives.meta import Data, TaskLoss, adapt, task_losses


def parameter_count(model: nn.Module) -> int:
    """Return the number of scalar parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def check_tasks(data: Data, name: str, tasks: int | None = None) -> None:
    """Check that inputs and targets have the same number of tasks, and the given number if there is one."""
    if not isinstance(data, (tuple, list)) or len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
        raise TypeError(f"{name} must be a pair of tensors, inputs and targets; got {type(data).__name__}")
    lengths = [part.shape[0] if part.dim() else 0 for part in data]
    if lengths[0] != lengths[1] or lengths[0] == 0 or lengths[0] != (tasks or lengths[0]):
        wanted = "the same number of tasks" if tasks is None else f"{tasks} tasks"
        raise ValueError(
            f"{name} must have {wanted} in inputs and targets; got the shapes {shape_of(data[0])} and "
            f"{shape_of(data[1])}"
        )


def maml_loss(model: nn.Module, support: Data, query: Data, *, lr: float, loss: TaskLoss = F.mse_loss) -> Tensor:
    r"""Mean loss over tasks after one gradient step on each task.

    .. math:: F(w) = \frac 1 n \sum_i L_i\bigl(w - \alpha \nabla L_i(w)\bigr)

    Parameters
    ----------
    model : nn.Module
        The model with the weights w. The loss is differentiated through the gradient step, including second
        derivatives.
    support : tuple of two Tensors of shape (n, examples, ...)
        The inputs and targets for the gradient step.
    query : tuple of two Tensors of shape (n, examples, ...)
        The inputs and targets for the loss.
    lr : float
        The step size α, positive.
    loss : callable, default ``torch.nn.functional.mse_loss``
        Maps the predictions and targets of one task to a scalar.

    Returns
    -------
    Tensor
        The loss, a scalar.

    Raises
    ------
    ValueError
        If ``lr`` is not positive, or if inputs and targets differ in their number of tasks.
    TypeError
        If ``support`` or ``query`` is not a pair of tensors.

    See Also
    --------
    fcco.losses.MAMLLoss : The same objective, estimated from a few tasks at a time.

    References
    ----------
    .. [1] Finn, Abbeel and Levine, *Model-Agnostic Meta-Learning*, ICML 2017.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(1, 1)
    >>> x = torch.randn(3, 5, 1)
    >>> maml_loss(model, (x, 2 * x), (x, 2 * x), lr=0.1).backward()
    """
    check_number(lr, "lr", above=0)
    check_tasks(support, "support")
    weights = adapt(model, support, lr=lr, loss=loss)
    check_tasks(query, "query", len(weights))
    return task_losses(model, weights, query, loss=loss).mean()
