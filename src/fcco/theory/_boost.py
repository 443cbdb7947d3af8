"""Theorem 4: SOX-boost, whose stages halve the objective gap under the Polyak-Lojasiewicz condition."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fcco._checks import whole_number
from fcco.theory._checks import batches, non_negative, positive, within_floats
from fcco.theory._constants import Constants, Parameters, smallest, whole_steps


@dataclass(frozen=True)
class BoostConstants:
    """The constants C_1, C_2^2, C_3^2, C_4 and C_5 of the paper's appendix, as :func:`boost_constants` returns them.

    Attributes
    ----------
    c_1, c_2_squared, c_3_squared, c_4, c_5 : float
        The constants, in this order.
    """

    c_1: float
    c_2_squared: float
    c_3_squared: float
    c_4: float
    c_5: float


@within_floats
def boost_constants(constants: Constants, *, inner_batch: int, weight_decay: float = 0.0) -> BoostConstants:
    r"""Return the constants of the appendix in which :func:`sox_boost` is written.

    .. math::
        C_1 = (C_g^2 + \tfrac{\zeta^2}{B_2})^{1/2} \quad C_2^2 = 2 C_f^2 (\zeta^2 + C_g^2) \quad
        C_3^2 = 40 L_f^2 C_1^2 \sigma^2 \quad C_4 = \min\{\tfrac{1}{4 L_F}, \tfrac{1}{18 L_f C_1 C_g}\} \quad
        C_5 = 24 L_f^2 C_1^2

    Parameters
    ----------
    constants : Constants
        The constants of the problem.
    inner_batch : int
        B2.
    weight_decay : float, default 0.0
        See :func:`sox_boost`. It is added to L_F.

    Returns
    -------
    BoostConstants
        The five constants.

    Raises
    ------
    TypeError
        If the batch size is not an integer.
    ValueError
        If a value is outside its range.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, appendix. C_4 and C_5 are
    corrected as :func:`sox_boost` explains.

    Examples
    --------
    >>> plain = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=1.0, sigma2=1.0, zeta2=0.0)
    >>> boost_constants(plain, inner_batch=1)
    BoostConstants(c_1=1.0, c_2_squared=2.0, c_3_squared=40.0, c_4=0.05555555555555555, c_5=24.0)
    """
    constants.check_exact_outer("Theorem 4")
    c, slope = constants, constants.inner_slope(whole_number("inner_batch", inner_batch))
    smoothness = c.smoothness + non_negative("weight_decay", weight_decay)
    return BoostConstants(
        c_1=slope,
        c_2_squared=2 * c.gradient_variance(1, 1),
        c_3_squared=40 * (c.l_f * slope) ** 2 * c.sigma2,
        c_4=smallest((1, 4 * smoothness), (1, 18 * c.l_f * slope * c.c_g)),
        c_5=24 * (c.l_f * slope) ** 2,
    )


@within_floats
def sox_boost(
    constants: Constants,
    *,
    n: int,
    outer_batch: int,
    inner_batch: int,
    epsilon: float,
    gap: float,
    mu: float,
    weight_decay: float = 0.0,
) -> tuple[Parameters, ...]:
    r"""Return the stages of Theorem 4: SOX-boost, after which :math:`E[F(w) - F^*] \le \epsilon`.

    Stage k halves :math:`\varepsilon_k`, which bounds the objective gap and :math:`C_4` times the error of v and u:

    .. math::
        \eta_k = \min\{\tfrac{\mu C_4 B \varepsilon_k}{6 C_2^2}, \tfrac{B \varepsilon_k}{69 C_2^2},
        \tfrac{\mu C_4 B_1 B_2 \varepsilon_k}{10 n C_3^2}, \tfrac{B_1 B_2 \varepsilon_k}{163 n C_3^2},
        \tfrac{3 B_1 C_4}{25 n}\} \qquad
        \beta_k = \tfrac{\eta_k}{C_4} \quad \gamma_k = \tfrac{5 n}{3 B_1} \beta_k \quad
        T_k = \tfrac{\max\{12 / \mu, 109 C_4\}}{\eta_k}

    with :math:`B = \min(B_1, B_2)`, the :func:`boost_constants` and
    :math:`\varepsilon_1 = \max\{F(w_1) - F^*, C_4 (C_f^2 C_g^2 + C_5 \sigma^2 / B_2), \epsilon\}`.

    A stage returns (w, u, v) of one of its T_k iterations, drawn uniformly. The next stage starts from all three.

    Parameters
    ----------
    constants : Constants
        The constants of the problem.
    n : int
        Number of rows of the problem.
    outer_batch : int
        B1.
    inner_batch : int
        B2.
    epsilon : float
        The objective gap to reach.
    gap : float
        F(w_1) - F*, or an upper bound of it.
    mu : float
        A constant such that :math:`\|\nabla F\|^2 \ge 2 \mu (F - F^*)`, at most L_F. A mu-strongly convex F satisfies
        this.
    weight_decay : float, default 0.0
        Factor :math:`\lambda` of an additional :math:`\frac \lambda 2 \|w\|^2` in F (see :func:`convexifier`). It is
        added to L_F. In the place of :math:`C_f^2 C_g^2` then stands the bound
        :math:`\|\nabla F(w_1)\|^2 \le 2 L_F (F(w_1) - F^*)`.

    Returns
    -------
    tuple of Parameters
        One for each stage. There are :math:`\lceil \log_2(\varepsilon_1 / \epsilon) \rceil` stages, and at least one.

    Raises
    ------
    TypeError
        If n or a batch size is not an integer, or if another value is not a number.
    ValueError
        If a value is outside its range, if B1 > n, or if mu > L_F.

    Notes
    -----
    Some of the formulas differ from the paper's. Its proof has three errors, and the above is what its argument gives
    without them:

    - It needs :math:`\gamma \le \frac{5 n}{3 B_1} \beta` (Theorem 3), and then takes twice that.
    - It loses a factor 4 when it telescopes the noise of u.
    - It has one :math:`C_4` too many in the fourth term of :math:`\eta_k`.

    The paper's condition :math:`\beta \le \frac 2 7` follows from :math:`B_1 \le n`. The total number of steps is the
    sum over the stages. The paper's total is a maximum of sums where a sum of maxima is needed.

    The condition on mu is that of the proof. If only the :math:`\|\nabla F\|^2 \ge \mu (F - F^*)` of the paper's text
    is known, give mu / 2.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, the theorem on SOX-boost in
    its detailed version in the appendix.

    Examples
    --------
    >>> constants = Constants(c_f=1.0, l_f=0.0, c_g=1.0, l_g=1.0, sigma2=0.0, zeta2=0.0)
    >>> stages = sox_boost(constants, n=6, outer_batch=6, inner_batch=8, epsilon=0.25, gap=1.0, mu=1.0)
    >>> len(stages), round(stages[0].gamma, 3)
    (2, 0.2)
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    epsilon, gap, mu = positive("epsilon", epsilon), non_negative("gap", gap), positive("mu", mu)
    smoothness = constants.smoothness + non_negative("weight_decay", weight_decay)
    if mu > smoothness:
        raise ValueError(f"mu must not exceed the smoothness L_F = {smoothness:g}; got {mu!r}")
    c, of_proof = constants, boost_constants(constants, inner_batch=inner_batch, weight_decay=weight_decay)
    c4 = of_proof.c_4
    steepness = 2 * smoothness * gap if weight_decay else (c.c_f * c.c_g) ** 2
    first = max(gap, c4 * (steepness + of_proof.c_5 * c.sigma2 / inner_batch), epsilon)
    stages = max(1, math.ceil(math.log2(first) - math.log2(epsilon)))
    # The noise of v and of u, each divided by the batch sizes that reduce it.
    of_v = of_proof.c_2_squared / min(outer_batch, inner_batch)
    of_u = of_proof.c_3_squared * n / (outer_batch * inner_batch)

    def stage(k: int) -> Parameters:
        target = first / 2**k
        noise = smallest((mu * c4 * target, 6 * of_v), (target, 69 * of_v))
        noise = min(noise, smallest((mu * c4 * target, 10 * of_u), (target, 163 * of_u)))
        beta = min(noise / c4, 3 * outer_batch / (25 * n))
        steps = whole_steps(max(12 / mu, 109 * c4), c4 * beta)
        return Parameters(beta, 5 * n * beta / (3 * outer_batch), c4 * beta, steps)

    return tuple(stage(k) for k in range(stages))


@within_floats
def convexifier(epsilon: float, radius: float) -> float:
    r"""Return the corollary's :math:`\mu = 2 \epsilon / C_*^2`, for adding :math:`\frac \mu 2 \|w\|^2` to a convex F.

    The sum is mu-strongly convex, as :func:`sox_boost` needs. If the sum is minimised up to epsilon, then F is
    minimised up to 2 epsilon, since the term is at most :math:`\frac \mu 2 C_*^2 = \epsilon` at the minimiser of F.

    Parameters
    ----------
    epsilon : float
        The accuracy.
    radius : float
        :math:`C_* \ge \|w^*\|`.

    Returns
    -------
    float
        mu.

    Raises
    ------
    ValueError
        If a value is not positive, or if mu is beyond floating point.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, extended version, Corollary 1.

    Examples
    --------
    >>> convexifier(0.125, 2.0)
    0.0625
    """
    return positive("2 epsilon / radius^2", 2 * positive("epsilon", epsilon) / positive("radius", radius) ** 2)
