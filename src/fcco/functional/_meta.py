"""Model-agnostic meta-learning: one gradient step on each task, then the loss."""

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
"""Inputs [tasks, examples, ...] and targets [tasks, examples, ...]."""


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def check_tasks(data: Data, name: str, tasks: int | None = None) -> None:
    """Inputs and targets of equally many tasks, as many as given."""
    if not isinstance(data, (tuple, list)) or len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
        raise TypeError(f"{name} must be a pair of tensors, inputs and targets, got {type(data).__name__}")
    lengths = [part.shape[0] if part.dim() else 0 for part in data]
    if lengths[0] != lengths[1] or lengths[0] == 0 or lengths[0] != (tasks or lengths[0]):
        wanted = "equally many tasks" if tasks is None else f"{tasks} tasks"
        raise ValueError(f"{name} must have {wanted}, got inputs {shape_of(data[0])} and targets {shape_of(data[1])}")


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def _flatten(parameters: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([parameter.reshape(-1) for parameter in parameters.values()])


def _unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = vector.split([parameter.numel() for parameter in like.values()])
    # A table may hold weights of more digits than the model's.
    return {name: part.view_as(like[name]).to(like[name].dtype) for name, part in zip(like, parts, strict=True)}


def adapt(model: nn.Module, support: Data, *, lr: float, loss: TaskLoss = F.mse_loss) -> Tensor:
    r"""[tasks, parameters]: the model's weights after a gradient step on each task's support set.

    .. math:: g_i(w) = w - \alpha \nabla L_i(w)
    """
    check_tasks(support, "support")
    weights = _parameters(model)

    def adapt_one(x: Tensor, y: Tensor) -> Tensor:
        slopes = grad(lambda weights: loss(functional_call(model, weights, (x,)), y))(weights)
        return _flatten({name: weights[name] - lr * slopes[name] for name in weights})

    return vmap(adapt_one)(*support)


def task_losses(model: nn.Module, weights: Tensor, query: Data, *, loss: TaskLoss = F.mse_loss) -> Tensor:
    """[tasks]: the loss of each task's weights [tasks, parameters] on its query set."""
    like = _parameters(model)

    def loss_of_one(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, _unflatten(vector, like), (x,)), y)

    return vmap(loss_of_one)(weights, *query)


def maml_loss(model: nn.Module, support: Data, query: Data, *, lr: float, loss: TaskLoss = F.mse_loss) -> Tensor:
    r"""Mean loss over tasks after one gradient step on each.

    .. math:: F(w) = \frac 1 n \sum_i L_i\bigl(w - \alpha \nabla L_i(w)\bigr)

    Args:
        model: w; differentiated through, second derivatives included.
        support: inputs and targets, [n, examples, ...] each, of the gradient step.
        query: those of the loss.
        lr: α.
        loss: from predictions and targets of one task to a scalar.

    >>> model = nn.Linear(1, 1)
    >>> x = torch.randn(3, 5, 1)
    >>> maml_loss(model, (x, 2 * x), (x, 2 * x), lr=0.1).backward()

    Reference: Finn, Abbeel and Levine, *Model-Agnostic Meta-Learning*, ICML 2017.
    """
    check_number(lr, "lr", above=0)
    weights = adapt(model, support, lr=lr, loss=loss)
    check_tasks(query, "query", len(weights))
    return task_losses(model, weights, query, loss=loss).mean()
