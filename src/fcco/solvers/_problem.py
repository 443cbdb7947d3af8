"""What a solver needs to know of a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco._outer import takes_index
from fcco.theory import Constants

Inner = Callable[[Tensor, Tensor, torch.Generator, int], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    r"""A finite-sum coupled compositional problem.

    .. math:: \min_w F(w) = \frac 1 n \sum_i f_i(g_i(w))

    Args:
        n: how many terms F has.
        inner: ``inner(w, rows, generator, inner_batch)`` draws ``inner_batch`` samples of the inner set of each of
            ``rows`` [B1] and returns the mean over them, an unbiased estimate of g, [B1] or [B1, dim], differentiable
            in w. (Where ``log``, it returns the log of that mean.)
        outer: f, as ``outer(u)`` or ``outer(u, index)``; see :class:`fcco.CoupledLoss`.
        start: where to begin, [d] or any other shape.
        dim: how many values g_i has.
        log: ``inner`` and the argument of ``outer`` are log g.
        exact_inner: ``exact_inner(w)``, all g_i without sampling, [n] or [n, dim] (log g where ``log``).
        objective: F(w), exact, without a regulariser; made of ``exact_inner`` and ``outer`` where it is not given.
        optimum: a minimiser of F, of the shape of ``start``.
        constants: those of the theorems; see :func:`fcco.theory.estimate_constants` to measure them.
        name: for tables and messages.

    Raises:
        TypeError, ValueError: a size that is not positive, a start that is not a finite floating tensor, an optimum
            of another shape, or a function or constants that are none.

    Least squares with noisy slopes, f_i(u) = (u - b_i)^2 / 2 and g_i(w) = E[a_i + noise] . w:

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
                raise TypeError(f"{name} must be callable, got {function!r}")
        if not isinstance(self.start, Tensor) or not self.start.is_floating_point():
            raise TypeError(f"start must be a floating tensor, got {self.start!r}")
        if not self.start.isfinite().all():
            raise ValueError("start must be finite")
        if self.optimum is not None and not isinstance(self.optimum, Tensor):
            raise TypeError(f"optimum must be a tensor, got {self.optimum!r}")
        if self.optimum is not None and self.optimum.shape != self.start.shape:
            raise ValueError(f"optimum {list(self.optimum.shape)} and start {list(self.start.shape)} differ in shape")
        if self.constants is not None and not isinstance(self.constants, Constants):
            raise TypeError(f"constants must be fcco.theory.Constants, got {self.constants!r}")

    @property
    def is_exact(self) -> bool:
        """Whether F can be computed, from ``objective`` or from ``exact_inner``."""
        return self.objective is not None or self.exact_inner is not None

    def value(self, w: Tensor) -> Tensor:
        """F(w), exact and differentiable.

        Raises:
            ValueError: the problem has neither ``objective`` nor ``exact_inner``.
        """
        if self.objective is not None:
            return self.objective(w)
        if self.exact_inner is None:
            raise ValueError(f"{self.name} has neither objective nor exact_inner, so F cannot be computed")
        inner = self.exact_inner(w)
        inner = inner.reshape(self.n) if self.dim == 1 else inner
        index = torch.arange(self.n, device=inner.device)
        return (self.outer(inner, index) if takes_index(self.outer) else self.outer(inner)).mean()
