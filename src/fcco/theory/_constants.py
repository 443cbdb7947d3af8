"""The constants of a problem, and the parameters that the theorems prescribe."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from fcco.theory._checks import non_negative, positive, within_floats


@dataclass(frozen=True, kw_only=True)
class Constants:
    r"""The constants of the paper's Assumptions 1 and 2.

    Parameters
    ----------
    c_f : float
        :math:`C_f`. Every f_i is C_f-Lipschitz.
    l_f : float
        :math:`L_f`. The gradient of every f_i is L_f-Lipschitz.
    c_g : float
        :math:`C_g`. Every g_i is C_g-Lipschitz.
    l_g : float
        :math:`L_g`. The gradient of every g_i is L_g-Lipschitz.
    sigma2 : float
        :math:`\sigma^2`, the variance of the value of one inner sample.
    zeta2 : float
        :math:`\zeta^2`, the variance of the gradient of one inner sample.
    chi2 : float, default 0.0
        :math:`\chi^2`, the variance of the gradient of one sample of f_i, if f_i is itself an expectation.

    Raises
    ------
    TypeError
        If a constant is not a number.
    ValueError
        If c_f or c_g is not positive, if another constant is negative, or if l_f and l_g are both 0. F would then be
        linear, and have no minimum.

    Examples
    --------
    >>> Constants(c_f=1.0, l_f=0.25, c_g=2.0, l_g=3.0, sigma2=0.1, zeta2=0.0).smoothness
    4.0
    """

    c_f: float
    l_f: float
    c_g: float
    l_g: float
    sigma2: float
    zeta2: float
    chi2: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check = positive if field.name in ("c_f", "c_g") else non_negative
            object.__setattr__(self, field.name, check(field.name, getattr(self, field.name)))
        if self.smoothness == 0:
            raise ValueError("l_f and l_g must not both be 0: F would be linear, and have no minimum")

    @property
    @within_floats
    def smoothness(self) -> float:
        r""":math:`L_F = C_f L_g + C_g^2 L_f`, the Lipschitz constant of the gradient of F."""
        return self.c_f * self.l_g + self.c_g**2 * self.l_f

    def inner_slope(self, inner_batch: int) -> float:
        r"""Return :math:`C_1 = (C_g^2 + \zeta^2 / B_2)^{1/2}`, the root mean square of an estimated inner gradient.

        Parameters
        ----------
        inner_batch : int
            B2.

        Returns
        -------
        float
            :math:`C_1`.
        """
        return math.sqrt(self.c_g**2 + self.zeta2 / inner_batch)

    def gradient_variance(self, outer_batch: int, inner_batch: int, outer_samples: int = 1) -> float:
        r"""Return a bound on the variance of a batch's gradient.

        It is :math:`C_f^2 (\zeta^2 + C_g^2) / \min(B_1, B_2)`. If the gradient of f_i is the mean of B3 samples, it is
        :math:`[(C_f^2 + \chi^2 / B_3) (\zeta^2 + C_g^2) + \chi^2 C_g^2] / \min(B_1, B_2, B_3)`.

        Parameters
        ----------
        outer_batch : int
            B1.
        inner_batch : int
            B2.
        outer_samples : int, default 1
            B3, which matters only if f is stochastic.

        Returns
        -------
        float
            The bound.
        """
        inner = self.zeta2 + self.c_g**2
        if self.chi2 == 0:
            return self.c_f**2 * inner / min(outer_batch, inner_batch)
        outer = self.c_f**2 + self.chi2 / outer_samples
        return (outer * inner + self.chi2 * self.c_g**2) / min(outer_batch, inner_batch, outer_samples)

    def check_exact_outer(self, theorem: str) -> None:
        """Raise an error if f is stochastic, which only Theorem 3 covers.

        Parameters
        ----------
        theorem : str
            The theorem to name in the message.

        Raises
        ------
        ValueError
            If ``chi2`` is above 0.
        """
        if self.chi2 > 0:
            raise ValueError(f"{theorem} does not cover a stochastic f: chi2 must be 0; got {self.chi2!r}")


@dataclass(frozen=True)
class Parameters:
    """The parameters of SOX.

    Attributes
    ----------
    beta : float
        Rate of the gradient's moving average, in (0, 1].
    gamma : float
        Rate of the inner moving averages, in (0, 1].
    lr : float
        Step size.
    steps : int
        Number of iterations.
    """

    beta: float
    gamma: float
    lr: float
    steps: int

    def scaled(self, factor: float) -> Parameters:
        """Return parameters for practice: all rates times ``factor``, and the number of steps divided by it.

        beta and gamma are at most 1. The theorems bound the worst case, so on most problems their rates can be larger
        by orders of magnitude. What comes out is no longer covered by the theorem.

        Parameters
        ----------
        factor : float
            A positive number.

        Returns
        -------
        Parameters
            The scaled parameters.

        Raises
        ------
        TypeError, ValueError
            If the factor is not a positive number.

        Examples
        --------
        >>> Parameters(beta=0.02, gamma=0.1, lr=0.001, steps=9000).scaled(20)
        Parameters(beta=0.4, gamma=1.0, lr=0.02, steps=450)
        """
        factor = positive("factor", factor)
        beta, gamma = min(factor * self.beta, 1.0), min(factor * self.gamma, 1.0)
        return Parameters(beta, gamma, factor * self.lr, math.ceil(self.steps / factor))


def smallest(*bounds: tuple[float, float]) -> float:
    """Return the smallest of fractions (numerator, denominator). A fraction with denominator 0 counts as infinite."""
    return min(numerator / denominator if denominator > 0 else math.inf for numerator, denominator in bounds)


def whole_steps(numerator: float, denominator: float) -> int:
    """Return the quotient rounded up, or raise a ValueError if it is infinite."""
    if denominator == 0 or numerator / denominator == math.inf:
        raise ValueError("the theorem needs more steps than can be counted: epsilon is too small")
    return math.ceil(numerator / denominator)
