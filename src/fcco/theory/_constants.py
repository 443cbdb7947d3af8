"""What the theorems know of a problem, and what they prescribe."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from fcco.theory._checks import non_negative, positive, within_floats


@dataclass(frozen=True, kw_only=True)
class Constants:
    r"""The constants of the paper's Assumptions 1 and 2.

    Args:
        c_f: :math:`C_f`; every f_i is C_f-Lipschitz.
        l_f: :math:`L_f`; the gradient of f_i is L_f-Lipschitz.
        c_g: :math:`C_g`; every g_i is C_g-Lipschitz.
        l_g: :math:`L_g`; the gradient of g_i is L_g-Lipschitz.
        sigma2: :math:`\sigma^2`, the variance of the value of one inner sample.
        zeta2: :math:`\zeta^2`, the variance of the gradient of one inner sample.

    Raises:
        ValueError: c_f or c_g is not positive, another constant is negative, or l_f and l_g are both 0: F would be
            linear, and has no minimum.

    >>> Constants(c_f=1.0, l_f=0.25, c_g=2.0, l_g=3.0, sigma2=0.1, zeta2=0.0).smoothness
    4.0
    """

    c_f: float
    l_f: float
    c_g: float
    l_g: float
    sigma2: float
    zeta2: float

    def __post_init__(self) -> None:
        for field in fields(self):
            check = positive if field.name in ("c_f", "c_g") else non_negative
            object.__setattr__(self, field.name, check(field.name, getattr(self, field.name)))
        if self.smoothness == 0:
            raise ValueError("l_f and l_g must not both be 0: F would be linear, without a minimum")

    @property
    @within_floats
    def smoothness(self) -> float:
        r""":math:`L_F = C_f L_g + C_g^2 L_f`, the Lipschitz constant of the gradient of F."""
        return self.c_f * self.l_g + self.c_g**2 * self.l_f

    def inner_slope(self, inner_batch: int) -> float:
        r""":math:`C_1 = (C_g^2 + \zeta^2 / B_2)^{1/2}`, the root mean square of an estimated inner gradient."""
        return math.sqrt(self.c_g**2 + self.zeta2 / inner_batch)

    @property
    def gradient_noise(self) -> float:
        r""":math:`C_f^2 (\zeta^2 + C_g^2)`; over min(B1, B2), the variance of the gradient of a batch."""
        return self.c_f**2 * (self.zeta2 + self.c_g**2)


@dataclass(frozen=True)
class Parameters:
    """What SOX is run with.

    Args:
        beta: rate of the gradient's moving average, in (0, 1].
        gamma: rate of the inner moving averages, in (0, 1].
        lr: step size.
        steps: how many iterations.
    """

    beta: float
    gamma: float
    lr: float
    steps: int


def smallest(*bounds: tuple[float, float]) -> float:
    """The smallest of fractions, given as (numerator, denominator); one over 0 binds nothing."""
    return min(numerator / denominator if denominator > 0 else math.inf for numerator, denominator in bounds)


def whole_steps(numerator: float, denominator: float) -> int:
    """Their quotient, rounded up; refused where it is more than a float can say."""
    if denominator == 0 or numerator / denominator == math.inf:
        raise ValueError("the theorem asks for more steps than can be counted: epsilon is too small")
    return math.ceil(numerator / denominator)
