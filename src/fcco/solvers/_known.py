"""What the test problems share: facts that a solver does not use, and a way to find the optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco.solvers._problem import Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownProblem(Problem):
    """A :class:`Problem` whose optimum is known, together with the ball that its constants are valid in.

    Parameters
    ----------
    radius : float, optional
        The constants and ``mu`` are valid where ``|w| <= radius``. With None, they are valid everywhere.
    mu : float, optional
        Modulus of strong convexity in that ball, or None if F is not known to be strongly convex.
    n, inner, outer, start, dim, log, exact_inner, objective, optimum, constants, name
        As in :class:`Problem`.
    """

    radius: float | None = None
    mu: float | None = None


def minimiser(objective: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float | None = None) -> Tensor:
    """Minimise a smooth convex function by Newton's method with step halving.

    Parameters
    ----------
    objective : callable
        Maps w [d] to a scalar.
    start : Tensor, [d]
        Where to begin.
    tolerance : float, optional
        The norm of the gradient to reach. By default it is about 1e-11 for float64 and 1e-5 for float32.

    Returns
    -------
    Tensor, [d]
        The minimiser.

    Raises
    ------
    RuntimeError
        If the tolerance is not reached in 200 steps. There may be no minimum.

    Examples
    --------
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
        # The pseudo-inverse does not move along directions in which the function is constant.
        step = torch.linalg.pinv(hessian(w), rtol=1e-12, hermitian=True) @ slope
        for _ in range(60):
            trial = gradient(w - step)
            if trial.isfinite().all() and trial.norm() < slope.norm():
                break
            step = step / 2
        w, slope = w - step, gradient(w - step)
    raise RuntimeError(
        f"no minimum found in 200 steps: the norm of the gradient is {slope.norm().item():g}, above {tolerance:g}"
    )
