"""A problem whose weights are the parameters of a module, so that every algorithm trains it whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fcco.solvers._problem import Problem

Call = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class _Bound:
    """A module as a function of a flat vector of parameters."""

    module: nn.Module

    def names_and_shapes(self) -> list[tuple[str, torch.Size]]:
        return [(name, parameter.shape) for name, parameter in self.module.named_parameters()]

    def at(self, w: Tensor) -> Call:
        """Return the module with the parameters w, to be called like the module."""
        named = self.names_and_shapes()
        parts = w.split([shape.numel() for _, shape in named])
        parameters = {name: part.view(shape) for (name, shape), part in zip(named, parts, strict=True)}
        return lambda *arguments, **options: functional_call(self.module, parameters, arguments, options)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleProblem(Problem):
    """A :class:`Problem` in the parameters of a module, made by :meth:`Problem.from_module`.

    Attributes
    ----------
    module : torch.nn.Module
        The module.
    n, inner, outer, start, dim, log, exact_inner, objective, optimum, constants, name
        As in :class:`Problem`.
    """

    module: nn.Module

    def assign(self, weights: Tensor) -> nn.Module:
        """Copy weights, such as ``solution.weights``, into the module, and return it.

        Parameters
        ----------
        weights : Tensor of shape (d,)
            The values of all parameters, in the order of ``module.parameters()``.

        Returns
        -------
        torch.nn.Module
            The module.

        Raises
        ------
        ValueError
            If they do not have the shape of ``start``.
        """
        if weights.shape != self.start.shape:
            raise ValueError(f"weights must have the shape {list(self.start.shape)}; got {list(weights.shape)}")
        nn.utils.vector_to_parameters(weights.detach().to(self.start), self.module.parameters())
        return self.module


def from_module(
    module: nn.Module,
    *,
    inner: Callable[[Call, Tensor, torch.Generator, int], Tensor],
    exact_inner: Callable[[Call], Tensor] | None = None,
    objective: Callable[[Call], Tensor] | None = None,
    **fields: Any,
) -> ModuleProblem:
    """See :meth:`Problem.from_module`."""
    _check(module)
    bound = _Bound(module)
    return ModuleProblem(
        module=module,
        inner=lambda w, rows, generator, inner_batch: inner(bound.at(w), rows, generator, inner_batch),
        exact_inner=None if exact_inner is None else lambda w: exact_inner(bound.at(w)),
        objective=None if objective is None else lambda w: objective(bound.at(w)),
        start=nn.utils.parameters_to_vector(module.parameters()).detach().clone(),
        **fields,
    )


def _check(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module; got {module!r}")
    kinds = {(parameter.dtype, parameter.device) for parameter in module.parameters()}
    if len(kinds) != 1:
        listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "no parameters"
        raise ValueError(f"all parameters of module must have one dtype and be on one device; got {listed}")
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise ValueError(
            f"all parameters of module are trained, but {frozen[0]} does not require a gradient: make it a buffer, or "
            "leave it out of the module"
        )
