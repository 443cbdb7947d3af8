"""The exact minimum of an objective, by L-BFGS on all data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def minimise(objective: Callable[[], Tensor], weights: list[Tensor], iterations: int = 500) -> None:
    """Minimise an objective over all data by L-BFGS with a strong Wolfe line search, in place.

    Parameters
    ----------
    objective : callable
        Returns the value at the current weights, as a differentiable scalar.
    weights : list of Tensor
        The leaf tensors to optimise. Use float64: the tolerances are far below what float32 resolves.
    iterations : int
        The number of iterations at most.

    Examples
    --------
    >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    >>> minimise(lambda: (w - torch.tensor([1.0, 2.0])).square().sum(), [w])
    >>> w.detach().round(decimals=6).tolist()
    [1.0, 2.0]
    """
    optimizer = torch.optim.LBFGS(
        weights,
        max_iter=iterations,
        tolerance_grad=1e-9,
        tolerance_change=1e-13,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective()
        value.backward()
        return value

    optimizer.step(closure)
