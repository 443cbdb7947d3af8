"""Model-agnostic meta-learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fcco.core.outers import FromFunction
from fcco.objectives.given import GivenInner

TaskLoss = Callable[[Tensor, Tensor], Tensor]
Data = tuple[Tensor, Tensor]
"""Inputs and targets, each of shape (tasks, examples, ...)."""


class MAML(GivenInner):
    """F = mean of L_i(g_i), where g_i are the model's weights after a step of gradient descent on task i: ``adapt``.

    The sample is the model and the query data, on which f is L_i.
    """

    def __init__(self, loss: TaskLoss, n_parameters: int) -> None:
        super().__init__(FromFunction(QueryLoss(loss)), n_parameters)


class QueryLoss:
    """f_i(u; sample), the loss of the weights u on the query data of task i."""

    def __init__(self, loss: TaskLoss) -> None:
        self.loss = loss

    def __call__(self, u: Tensor, index: Tensor, sample: tuple[nn.Module, Data]) -> Tensor:
        model, query = sample
        return task_losses(model, u.reshape(len(index), -1), query, loss=self.loss)


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
