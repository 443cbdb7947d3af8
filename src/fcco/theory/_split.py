"""How to divide a batch between the outer and the inner level."""

from __future__ import annotations

from typing import Any

from fcco._checks import whole_number
from fcco.theory._constants import Constants
from fcco.theory._nonconvex import sox


def split_batch(budget: int, *, n: int, constants: Constants | None = None, **target: Any) -> tuple[int, int]:
    r"""B1 and B2 with B1 + B2 = ``budget`` and B1 <= n that need the fewest iterations.

    Without constants, by the order of Theorem 1, :math:`\max\{\frac{n}{B_1 B_2}, \frac{1}{\min(B_1, B_2)}\}`, which
    gives the paper's half and half wherever n allows it. With them, by the theorem's number of steps, where terms of
    B1 or B2 alone can shift the balance. Among equals, the most even split.

    Args:
        budget: B1 + B2, at least 2.
        n: how many rows.
        constants: those of the problem.
        target: ``epsilon`` and ``gap`` of :func:`sox`; given with the constants only.

    Raises:
        TypeError: an integer is missing, or ``target`` does not go with ``constants``.
        ValueError: a value outside its range.

    >>> split_batch(64, n=1000)
    (32, 32)
    >>> split_batch(64, n=20)
    (20, 44)

    Reference: the remark to Theorem 1 of Wang and Yang, ICML 2022.
    """
    budget, n = whole_number("budget", budget), whole_number("n", n)
    if budget < 2:
        raise ValueError(f"budget must be at least 2, one sample of each level, got {budget}")
    if (constants is None) != (not target):
        raise TypeError("constants, epsilon and gap must be given together or not at all")

    def cost(outer: int) -> tuple[float, int]:
        inner = budget - outer
        if constants is None:
            order = max(n / (outer * inner), 1 / min(outer, inner))
        else:
            order = sox(constants, n=n, outer_batch=outer, inner_batch=inner, **target).steps
        return order, abs(outer - inner)

    outer = min(range(1, min(n, budget - 1) + 1), key=cost)
    return outer, budget - outer
