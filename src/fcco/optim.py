"""The optimizer of the paper. The losses of fcco also work with every optimizer of ``torch.optim``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

__all__ = ["MovingAverageSGD"]

Projection = Callable[[Tensor], Tensor]


def _projected(projection: Projection, parameter: Tensor) -> Tensor:
    nearest = projection(parameter)
    if not isinstance(nearest, Tensor) or nearest.shape != parameter.shape:
        got = list(nearest.shape) if isinstance(nearest, Tensor) else type(nearest).__name__
        raise ValueError(f"projection must map {list(parameter.shape)} to the same shape; got {got}")
    return nearest


class MovingAverageSGD(Optimizer):
    r"""Gradient descent along a moving average of the gradient.

    .. math:: v \leftarrow (1 - \beta) v + \beta (G + \lambda w), \qquad w \leftarrow \Pi(w - \mathrm{lr} \cdot v)

    v starts at 0. ``beta=1`` is plain (projected) gradient descent.

    Parameters
    ----------
    params : iterable of Tensor or of dict
        Parameters, or dicts of parameter groups with their own options.
    lr : float
        Step size.
    beta : float, default 0.1
        Rate of the moving average, in (0, 1].
    weight_decay : float, default 0.0
        Factor :math:`\lambda` of w, which is added to the gradient.
    projection : callable, optional
        :math:`\Pi`, which maps a parameter to the nearest point of a closed convex set after every step. It is applied
        to each parameter of the group separately. It is not part of ``state_dict``.

    Raises
    ------
    ValueError
        If an option is outside its range.

    Notes
    -----
    v is an average of gradients. The buffer of ``torch.optim.SGD(momentum=1 - beta)`` is a sum instead, whose weights
    add up to 1/beta. To convert from SGD, multiply its lr by 1/beta.

    v has the dtype of its parameter, as in ``torch.optim``. A small beta needs more than half precision.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, Algorithm 1.

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = MovingAverageSGD([w], lr=0.5, beta=0.1)
    >>> (2 * w).sum().backward()
    >>> optimizer.step()
    >>> w.data  # 1 - 0.5 * 0.1 * 2
    tensor([0.9000])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        beta: float = 0.1,
        weight_decay: float = 0.0,
        projection: Projection | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay, "projection": projection})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group.

        Parameters
        ----------
        param_group : dict
            The parameters, as ``"params"``, and options. Those that it does not name have the values given to the
            optimizer.

        Raises
        ------
        ValueError
            If an option is outside its range.
        """
        group = {**self.defaults, **param_group}
        if not group["lr"] >= 0:
            raise ValueError(f"lr must be >= 0; got {group['lr']!r}")
        if not 0 < group["beta"] <= 1:
            raise ValueError(f"beta must be in (0, 1]; got {group['beta']!r}")
        if not group["weight_decay"] >= 0:
            raise ValueError(f"weight_decay must be >= 0; got {group['weight_decay']!r}")
        if group["projection"] is not None and not callable(group["projection"]):
            raise ValueError(f"projection must be callable; got {group['projection']!r}")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the options, without the projections.

        Returns
        -------
        dict
            The state, as of any optimizer of ``torch.optim``.
        """
        # A checkpoint with a function in it could not be loaded with weights_only=True.
        state = super().state_dict()
        for group in state["param_groups"]:
            group.pop("projection", None)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, with the projections of this optimizer.

        Parameters
        ----------
        state_dict : dict
            What :meth:`state_dict` returned.
        """
        projections = [group["projection"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, projection in zip(self.param_groups, projections, strict=True):
            group["projection"] = projection

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Parameters
        ----------
        closure : callable, optional
            It takes no argument, computes the loss and its gradients, and returns the loss. It is called before the
            step.

        Returns
        -------
        object
            What ``closure`` has returned, or None if there is none.

        Raises
        ------
        RuntimeError
            If a gradient is sparse.
        ValueError
            If the projection changes the shape of a parameter.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return
        grads: Any = [p.grad for p in params]
        if any(grad.is_sparse for grad in grads):
            raise RuntimeError(
                "gradients must be dense, since MovingAverageSGD averages every entry; got a sparse gradient"
            )
        if group["weight_decay"] != 0:
            grads = torch._foreach_add(grads, params, alpha=group["weight_decay"])
        averages = [self._average(p) for p in params]
        torch._foreach_lerp_(averages, grads, group["beta"])
        torch._foreach_add_(params, averages, alpha=-group["lr"])
        if group["projection"] is not None:
            for p in params:
                p.copy_(_projected(group["projection"], p))

    def _average(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "average" not in state:
            state["average"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state["average"]
