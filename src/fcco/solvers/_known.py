"""What the test problems have in common: more knowledge than a solver may use, and how an optimum is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco.solvers._problem import Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownProblem(Problem):
    """A :class:`Problem` with a known optimum, and the ball its constants are for.

    Args:
        radius: the constants and ``mu`` hold where ``|w| <= radius``; None: everywhere.
        mu: modulus of strong convexity there; None where F is not known to be strongly convex.
    """

    radius: float | None = None
    mu: float | None = None


def minimiser(objective: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float | None = None) -> Tensor:
    """The minimiser of a smooth convex function, by Newton's method with halved steps.

    Args:
        objective: maps w [d] to a scalar.
        start: where to begin, [d].
        tolerance: the norm of the gradient to reach; 1e-11 for float64 and 1e-5 for float32 unless given.

    Raises:
        RuntimeError: the tolerance is not reached in 200 steps; there may be no minimum.

    >>> found = minimiser(lambda w: (w - 3).square().sum() + (w - 3).pow(4).sum(), torch.zeros(2, dtype=torch.float64))
    >>> found.round(decimals=9)
    tensor([3., 3.], dtype=torch.float64)
    """
    if tolerance is None:
        tolerance = torch.finfo(start.dtype).eps ** 0.7
    gradient = torch.func.grad(objective)
    hessian = torch.func.hessian(objective)
    w, slope = start.detach(), gradient(start.detach())
    for _ in range(200):
        if slope.norm() <= tolerance:
            return w
        # The pseudo-inverse leaves directions alone in which the function is constant.
        step = torch.linalg.pinv(hessian(w), rtol=1e-12, hermitian=True) @ slope
        for _ in range(60):
            trial = gradient(w - step)
            if trial.isfinite().all() and trial.norm() < slope.norm():
                break
            step = step / 2
        w, slope = w - step, gradient(w - step)
    raise RuntimeError(f"no minimum found: the gradient's norm is still {slope.norm().item():g}")
