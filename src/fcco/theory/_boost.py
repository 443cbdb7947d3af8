"""Theorem 2: SOX-boost, in stages that halve the objective gap under the Polyak-Lojasiewicz condition."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fcco._checks import whole_number
from fcco.theory._checks import batches, non_negative, positive, within_floats
from fcco.theory._constants import Constants, Parameters, smallest, whole_steps


@dataclass(frozen=True)
class BoostConstants:
    """What :func:`boost_constants` returns: C_1, the squares of C_2 and C_3, C_4 and C_5 of the paper's appendix."""

    c_1: float
    c_2_squared: float
    c_3_squared: float
    c_4: float
    c_5: float


@within_floats
def boost_constants(constants: Constants, *, inner_batch: int, weight_decay: float = 0.0) -> BoostConstants:
    r"""The constants of the appendix that :func:`sox_boost` is written in.

    .. math::
        C_1 = (C_g^2 + \tfrac{\zeta^2}{B_2})^{1/2} \quad C_2^2 = 2 C_f^2 (\zeta^2 + C_g^2) \quad
        C_3^2 = 40 L_f^2 C_1^2 \sigma^2 \quad C_4 = \min\{\tfrac{1}{4 L_F}, \tfrac{1}{18 L_f C_1 C_g}\} \quad
        C_5 = 24 L_f^2 C_1^2

    Args:
        constants: those of the problem.
        inner_batch: B2.
        weight_decay: as for :func:`sox_boost`; it adds to L_F.

    Raises:
        TypeError: the batch size is not an integer.
        ValueError: a value outside its range.

    >>> plain = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=1.0, sigma2=1.0, zeta2=0.0)
    >>> boost_constants(plain, inner_batch=1)
    BoostConstants(c_1=1.0, c_2_squared=2.0, c_3_squared=40.0, c_4=0.05555555555555555, c_5=24.0)

    Reference: the appendix of Wang and Yang, ICML 2022; C_4 and C_5 as :func:`sox_boost` explains.
    """
    c, slope = constants, constants.inner_slope(whole_number("inner_batch", inner_batch))
    smoothness = c.smoothness + non_negative("weight_decay", weight_decay)
    return BoostConstants(
        c_1=slope,
        c_2_squared=2 * c.gradient_noise,
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
    r"""Theorem 2: the stages of SOX-boost, after which :math:`E[F(w) - F^*] \le \epsilon`.

    Stage k halves :math:`\varepsilon_k`, a bound of the objective gap and of :math:`C_4` times the error of v and u:

    .. math::
        \eta_k = \min\{\tfrac{\mu C_4 B \varepsilon_k}{6 C_2^2}, \tfrac{B \varepsilon_k}{69 C_2^2},
        \tfrac{\mu C_4 B_1 B_2 \varepsilon_k}{10 n C_3^2}, \tfrac{B_1 B_2 \varepsilon_k}{163 n C_3^2},
        \tfrac{3 B_1 C_4}{25 n}\} \qquad
        \beta_k = \tfrac{\eta_k}{C_4} \quad \gamma_k = \tfrac{5 n}{3 B_1} \beta_k \quad
        T_k = \tfrac{\max\{12 / \mu, 109 C_4\}}{\eta_k}

    with :math:`B = \min(B_1, B_2)`, the :func:`boost_constants` and
    :math:`\varepsilon_1 = \max\{F(w_1) - F^*, C_4 (C_f^2 C_g^2 + C_5 \sigma^2 / B_2), \epsilon\}`.

    Some of these differ from the paper's, whose proof needs :math:`\gamma \le \frac{5 n}{3 B_1} \beta` (Theorem 1) and
    then takes twice that, loses a factor 4 when it telescopes the noise of u, and has a :math:`C_4` too many in the
    fourth term; the above is what its argument gives without the three. Its :math:`\beta \le \frac 2 7` follows from
    :math:`B_1 \le n`. The sum of the stages is what counts: the
    paper's total is a maximum of sums where a sum of maxima is needed. The condition is that of its proof,
    :math:`\|\nabla F\|^2 \ge 2 \mu (F - F^*)`, which mu-strong convexity implies; where only the
    :math:`\|\nabla F\|^2 \ge \mu (F - F^*)` of its text is known, give mu / 2.

    A stage returns (w, u, v) of one of its T_k iterations, drawn uniformly, and the next stage starts from all three.

    Args:
        constants: those of the problem.
        n: how many rows the problem has.
        outer_batch: B1.
        inner_batch: B2.
        epsilon: the objective gap aimed at.
        gap: F(w_1) - F*, or more.
        mu: as above, at most L_F.
        weight_decay: the factor of an additional :math:`\frac \lambda 2 \|w\|^2` in F (see :func:`convexifier`), which
            adds to L_F; in the place of :math:`C_f^2 C_g^2`, :math:`\|\nabla F(w_1)\|^2 \le 2 L_F (F(w_1) - F^*)` then.

    Returns:
        One :class:`Parameters` a stage, :math:`\lceil \log_2(\varepsilon_1 / \epsilon) \rceil` and at least one.

    Raises:
        TypeError: n or a batch size is not an integer.
        ValueError: a value outside its range, B1 > n, or mu > L_F.

    >>> constants = Constants(c_f=1.0, l_f=0.0, c_g=1.0, l_g=1.0, sigma2=0.0, zeta2=0.0)
    >>> stages = sox_boost(constants, n=6, outer_batch=6, inner_batch=8, epsilon=0.25, gap=1.0, mu=1.0)
    >>> len(stages), round(stages[0].gamma, 3)
    (2, 0.2)

    Reference: the theorem on SOX-boost of Wang and Yang, ICML 2022, in its detailed version in the appendix.
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    epsilon, gap, mu = positive("epsilon", epsilon), non_negative("gap", gap), positive("mu", mu)
    smoothness = constants.smoothness + non_negative("weight_decay", weight_decay)
    if mu > smoothness:
        raise ValueError(f"mu must not exceed the smoothness L_F = {smoothness:g}, got {mu!r}")
    c, of_proof = constants, boost_constants(constants, inner_batch=inner_batch, weight_decay=weight_decay)
    c4 = of_proof.c_4
    steepness = 2 * smoothness * gap if weight_decay else (c.c_f * c.c_g) ** 2
    first = max(gap, c4 * (steepness + of_proof.c_5 * c.sigma2 / inner_batch), epsilon)
    stages = max(1, math.ceil(math.log2(first) - math.log2(epsilon)))
    # The noise of v and of u, each over what its batches divide it by.
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
    r"""The corollary's :math:`\mu = 2 \epsilon / C_*^2`: how much of :math:`\frac \mu 2 \|w\|^2` a convex F is given.

    The sum is mu-strongly convex, as :func:`sox_boost` needs. Where it is minimised up to epsilon, F is up to
    2 epsilon, since its own minimiser pays no more than :math:`\frac \mu 2 C_*^2 = \epsilon`.

    Args:
        epsilon: the accuracy.
        radius: :math:`C_* \ge \|w^*\|`.

    Raises:
        ValueError: a value that is not positive, or a mu beyond floating point.

    >>> convexifier(0.125, 2.0)
    0.0625

    Reference: Corollary 1 of Wang and Yang, ICML 2022.
    """
    return positive("2 epsilon / radius^2", 2 * positive("epsilon", epsilon) / positive("radius", radius) ** 2)
