"""Model-agnostic meta-learning (MAML): one gradient step on each task, followed by the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fcco._checks import shape_of
from fcco.functional._checks import check_number

TaskLoss = Callable[[Tensor, Tensor], Tensor]
Data = tuple[Tensor, Tensor]
"""Inputs and targets, each of shape (tasks, examples, ...)."""


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


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model by name."""
    return dict(model.named_parameters())


def _flatten(parameters: Mapping[str, Tensor]) -> Tensor:
    """Return all parameters as one vector."""
    return torch.cat([parameter.reshape(-1) for parameter in parameters.values()])


def _unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split a vector into parameters with the names, shapes and dtypes of ``like``."""
    parts = vector.split([parameter.numel() for parameter in like.values()])
    # The table may have a wider dtype than the model.
    return {name: part.view_as(like[name]).to(like[name].dtype) for name, part in zip(like, parts, strict=True)}


def adapt(model: nn.Module, support: Data, *, lr: float, loss: TaskLoss = F.mse_loss) -> Tensor:
    r"""The model's weights after one gradient step on each task's support set, of shape (tasks, parameters).

    .. math:: g_i(w) = w - \alpha \nabla L_i(w)
    """
    check_tasks(support, "support")
    weights = _parameters(model)

    def adapt_one(x: Tensor, y: Tensor) -> Tensor:
        slopes = grad(lambda weights: loss(functional_call(model, weights, (x,)), y))(weights)
        return _flatten({name: weights[name] - lr * slopes[name] for name in weights})

    return vmap(adapt_one)(*support)


def task_losses(model: nn.Module, weights: Tensor, query: Data, *, loss: TaskLoss = F.mse_loss) -> Tensor:
    """Return the loss of each task on its query set, of shape (tasks,), from weights of shape (tasks, parameters)."""
    like = _parameters(model)

    def loss_of_one(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, _unflatten(vector, like), (x,)), y)

    return vmap(loss_of_one)(weights, *query)


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
    >>> model = nn.Linear(1, 1)
    >>> x = torch.randn(3, 5, 1)
    >>> maml_loss(model, (x, 2 * x), (x, 2 * x), lr=0.1).backward()
    """
    check_number(lr, "lr", above=0)
    weights = adapt(model, support, lr=lr, loss=loss)
    check_tasks(query, "query", len(weights))
    return task_losses(model, weights, query, loss=loss).mean()
