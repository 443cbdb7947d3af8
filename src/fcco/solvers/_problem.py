"""The problem that a solver solves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fcco._checks import shape_of, whole_number
from fcco.core.outers import takes_index
from fcco.theory import Constants

if TYPE_CHECKING:
    from fcco.solvers._module import ModuleProblem

Inner = Callable[[Tensor, Tensor, torch.Generator, int], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    r"""A finite-sum coupled compositional problem.

    .. math:: \min_w F(w) = \frac 1 n \sum_i f_i(g_i(w))

    Parameters
    ----------
    n : int
        Number of terms of F.
    inner : callable
        ``inner(w, rows, generator, inner_batch)`` draws ``inner_batch`` samples of the inner set of each of ``rows``
        [B1]. It returns the mean over them, which is an unbiased estimate of g, [B1] or [B1, dim], differentiable in w.
        If ``log``, it returns the logarithm of that mean.
    outer : callable
        f, as ``outer(u)`` or ``outer(u, index)``. See :class:`fcco.CoupledLoss`.
    start : Tensor
        The first w, [d] or of any other shape.
    dim : int, default 1
        Number of values of g_i.
    log : bool, default False
        Whether ``inner`` returns log g, and ``outer`` takes it.
    exact_inner : callable, optional
        ``exact_inner(w)`` returns all g_i without sampling, [n] or [n, dim]. If ``log``, it returns log g.
    objective : callable, optional
        The exact F(w), without a regulariser. By default it is computed from ``exact_inner`` and ``outer``.
    optimum : Tensor, optional
        A minimiser of F, of the shape of ``start``.
    constants : fcco.theory.Constants, optional
        The constants of the theorems. :func:`fcco.theory.estimate_constants` measures them.
    name : str, default "problem"
        A name for tables and messages.

    Raises
    ------
    TypeError
        If a size is not an integer, if a function is not callable, or if ``start``, ``optimum`` or ``constants`` has
        the wrong type.
    ValueError
        If a size is not positive, if ``start`` is not finite, or if ``optimum`` has another shape.

    Examples
    --------
    Least squares with noisy slopes has f_i(u) = (u - b_i)^2 / 2 and g_i(w) = E[a_i + noise] . w:

    >>> a, b = torch.eye(3), torch.tensor([1.0, 2.0, 3.0])
    >>> def inner(w, rows, generator, inner_batch):
    ...     noise = torch.randn(len(rows), inner_batch, 3, generator=generator).mean(1)
    ...     return (a[rows] + noise) @ w
    >>> problem = Problem(
    ...     n=3,
    ...     inner=inner,
    ...     outer=lambda u, index: (u - b[index]) ** 2 / 2,
    ...     start=torch.zeros(3),
    ...     exact_inner=lambda w: a @ w,
    ... )
    >>> problem.value(torch.zeros(3))  # (1 + 4 + 9) / 6
    tensor(2.3333)
    """

    n: int
    inner: Inner
    outer: Callable[..., Tensor]
    start: Tensor
    dim: int = 1
    log: bool = False
    exact_inner: Callable[[Tensor], Tensor] | None = None
    objective: Callable[[Tensor], Tensor] | None = None
    optimum: Tensor | None = None
    constants: Constants | None = None
    name: str = "problem"

    def __post_init__(self) -> None:
        for name in ("n", "dim"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("inner", "outer", "exact_inner", "objective"):
            function = getattr(self, name)
            if not callable(function) and (name in ("inner", "outer") or function is not None):
                raise TypeError(f"{name} must be callable; got {function!r}")
        if not isinstance(self.start, Tensor) or not self.start.is_floating_point():
            raise TypeError(f"start must be a floating tensor; got {self.start!r}")
        if not self.start.isfinite().all():
            raise ValueError(f"start must be finite; got {self.start!r}")
        if self.optimum is not None and not isinstance(self.optimum, Tensor):
            raise TypeError(f"optimum must be a tensor; got {self.optimum!r}")
        if self.optimum is not None and self.optimum.shape != self.start.shape:
            raise ValueError(
                f"optimum must have the shape {list(self.start.shape)} of start; got {list(self.optimum.shape)}"
            )
        if self.constants is not None and not isinstance(self.constants, Constants):
            raise TypeError(f"constants must be fcco.theory.Constants; got {self.constants!r}")

    @staticmethod
    def from_module(module: nn.Module, **fields: Any) -> ModuleProblem:
        """Return the problem of training a module. w is the vector of all its parameters.

        Parameters
        ----------
        module : torch.nn.Module
            The module. Its parameters at the time of the call are the start, and solving the problem does not change
            them. It is called in the mode that it is in. Layers that update buffers, such as batch normalisation in
            training mode, update those of the module.
        inner : callable
            ``inner(model, rows, generator, inner_batch)``, as for :class:`Problem`, where ``model`` is the module with
            the weights w, to be called like the module.
        exact_inner, objective : callable, optional
            As for :class:`Problem`, but called with ``model`` in the place of w.
        **fields
            ``n``, ``outer`` and the other fields of :class:`Problem`, except ``start``.

        Returns
        -------
        ModuleProblem
            The problem. Its method ``assign(weights)`` copies a solution into the module.

        Raises
        ------
        TypeError
            If ``module`` is not a module.
        ValueError
            If the parameters differ in dtype or device, or if one of them does not require a gradient.

        Examples
        --------
        >>> x, y = torch.randn(50, 3), torch.randn(50)
        >>> net = nn.Linear(3, 1)
        >>> def inner(model, rows, generator, inner_batch):
        ...     noise = torch.randn(len(rows), inner_batch, 3, generator=generator).mean(1)
        ...     return model(x[rows] + noise).squeeze(1)
        >>> problem = Problem.from_module(net, n=50, inner=inner, outer=lambda u, index: (u - y[index]) ** 2)
        >>> problem.start.shape  # three weights and an intercept
        torch.Size([4])
        """
        from fcco.solvers._module import from_module

        return from_module(module, **fields)

    @property
    def is_exact(self) -> bool:
        """Whether F can be computed exactly, from ``objective`` or from ``exact_inner``."""
        return self.objective is not None or self.exact_inner is not None

    def value(self, w: Tensor) -> Tensor:
        """Return the exact F(w), which is differentiable.

        Parameters
        ----------
        w : Tensor
            The weights, of the shape of ``start``.

        Returns
        -------
        Tensor
            The value, a scalar.

        Raises
        ------
        ValueError
            If the problem has neither ``objective`` nor ``exact_inner``, or if what they or ``outer`` return has the
            wrong shape.
        """
        if self.objective is not None:
            value = self.objective(w)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise ValueError(f"objective must return a scalar tensor; got {_shape(value)}")
            return value
        inner = self._exact_values(w)
        index = torch.arange(self.n, device=inner.device)
        values = self.outer(inner, index) if takes_index(self.outer) else self.outer(inner)
        if not isinstance(values, Tensor) or values.shape != index.shape:
            raise ValueError(f"outer must map {_shape(inner)} to {[self.n]}; got {_shape(values)}")
        return values.mean()

    def _exact_values(self, w: Tensor) -> Tensor:
        """Return what ``exact_inner`` does, [n], or [n, dim] if ``dim`` is not 1."""
        if self.exact_inner is None:
            raise ValueError(
                f"{self.name} has neither objective nor exact_inner: give one of them, so that F can be computed"
            )
        inner = self.exact_inner(w)
        wanted = [self.n] if self.dim == 1 else [self.n, self.dim]
        if not isinstance(inner, Tensor) or list(inner.shape) not in (wanted, [self.n, self.dim]):
            raise ValueError(f"exact_inner must return a tensor of shape {wanted}; got {_shape(inner)}")
        return inner.reshape(wanted)


def _shape(value: Any) -> str:
    return shape_of(value) if isinstance(value, Tensor) else type(value).__name__
