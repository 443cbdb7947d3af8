"""Theorem 1: SOX finds a stationary point of a smooth function."""

from __future__ import annotations

from fcco.theory._checks import batches, non_negative, positive, rate, within_floats
from fcco.theory._constants import Constants, Parameters, smallest, whole_steps


@within_floats
def sox(constants: Constants, *, n: int, outer_batch: int, inner_batch: int, epsilon: float, gap: float) -> Parameters:
    r"""Theorem 1: what SOX is run with so that :math:`\frac 1 T \sum_t E \|\nabla F(w_t)\|^2 \le \epsilon^2`.

    .. math::
        \beta = \min\{\tfrac{\min(B_1, B_2) \epsilon^2}{12 C_f^2 (\zeta^2 + C_g^2)}, \tfrac 2 7\} \quad
        \gamma = \min\{\tfrac{B_2 \epsilon^2}{240 L_f^2 C_1^2 \sigma^2}, \tfrac 1 5, \tfrac{5 n}{3 B_1} \beta\} \quad
        \eta = \min\{\tfrac{\beta}{4 L_F}, \tfrac{\gamma B_1}{30 L_f n C_1 C_g}\} \quad
        T = \tfrac{6 \Lambda}{\eta \epsilon^2}

    with :math:`\Lambda = F(w_1) - F^* + \frac{C_f^2 C_g^2}{4 L_F} + \frac{2 L_f C_1 \sigma^2}{3 C_g B_2}`. The paper's
    maximum of six terms is this T, written out. The weight of :math:`\Xi_t` in its Lyapunov function lacks a factor n,
    which its :math:`\Lambda` has. The theorem starts from v = 0 and a table in which **all** n rows are estimates of
    B2 samples each (the paper says so of the first batch only, but :math:`\Xi_1 \le \sigma^2 / B_2` needs all).

    Args:
        constants: those of the problem.
        n: how many rows the problem has.
        outer_batch: B1.
        inner_batch: B2.
        epsilon: the norm of the gradient aimed at.
        gap: F(w_1) - F*, or more.

    Raises:
        TypeError: n or a batch size is not an integer.
        ValueError: a value outside its range, or B1 > n.

    >>> constants = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=0.0, sigma2=0.0, zeta2=0.0)
    >>> sox(constants, n=10, outer_batch=10, inner_batch=10, epsilon=1.0, gap=0.75)
    Parameters(beta=0.2857142857142857, gamma=0.2, lr=0.006666666666666667, steps=900)

    Reference: Theorem 1 of Wang and Yang, ICML 2022, and the end of its proof.
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    epsilon, gap = positive("epsilon", epsilon), non_negative("gap", gap)
    c, slope = constants, constants.inner_slope(inner_batch)
    smaller = min(outer_batch, inner_batch)
    beta = smallest((smaller * epsilon**2, 12 * c.gradient_noise), (2, 7))
    tracking = (inner_batch * epsilon**2, 240 * (c.l_f * slope) ** 2 * c.sigma2)
    gamma = smallest(tracking, (1, 5), (5 * n * beta, 3 * outer_batch))
    lr = smallest((beta, 4 * c.smoothness), (gamma * outer_batch, 30 * c.l_f * n * slope * c.c_g))
    start = gap + (c.c_f * c.c_g) ** 2 / (4 * c.smoothness) + 2 * c.l_f * slope * c.sigma2 / (3 * c.c_g * inner_batch)
    return Parameters(beta, gamma, lr, whole_steps(6 * start, lr * epsilon**2))


@within_floats
def tracking_error(
    constants: Constants,
    error: float,
    *,
    n: int,
    outer_batch: int,
    inner_batch: int,
    gamma: float,
    lr: float,
    direction2: float,
    moved2: float = 0.0,
) -> float:
    r"""Lemma 1: the error of the table after a step, in expectation at most

    .. math::
        (1 - \tfrac{\gamma B_1}{4 n}) \Xi_t + \tfrac{5 n \eta^2 C_g^2}{\gamma B_1} E \|v_t\|^2
        + \tfrac{2 \gamma^2 \sigma^2 B_1}{n B_2} - \tfrac{1}{4 n} E \sum_{i \in B_1} \|u_i^{t+1} - u_i^t\|^2

    where :math:`\Xi_t = \frac 1 n \sum_i \|u_i^t - g_i(w_t)\|^2`. The paper proves it for gamma up to 1/5; since
    :math:`(1 - \gamma)^2 + \gamma^2 / 4 \le 1 - \gamma / 2` it holds up to 1. The batch meant is the one that changes
    u from t to t + 1.

    Args:
        constants: those of the problem.
        error: :math:`\Xi_t`.
        n: how many rows.
        outer_batch: B1.
        inner_batch: B2.
        gamma: rate of the moving average, in (0, 1].
        lr: step size :math:`\eta`.
        direction2: :math:`E \|v_t\|^2`.
        moved2: :math:`E \sum \|u_i^{t+1} - u_i^t\|^2`; 0 gives the bound without that term.

    Raises:
        ValueError: a value outside its range.

    >>> constants = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=0.0, sigma2=1.0, zeta2=0.0)
    >>> tracking_error(
    ...     constants, 8.0, n=4, outer_batch=4, inner_batch=2, gamma=0.5, lr=0.0, direction2=0.0
    ... )  # 8 (1 - 1/8) + 1/4
    7.25

    Reference: Lemma 1 of Wang and Yang, ICML 2022.
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    visited = rate("gamma", gamma) * outer_batch / n
    kept = (1 - visited / 4) * non_negative("error", error)
    drift = 5 * (non_negative("lr", lr) * constants.c_g) ** 2 * non_negative("direction2", direction2) / visited
    noise = 2 * gamma * visited * constants.sigma2 / inner_batch
    return kept + drift + noise - non_negative("moved2", moved2) / (4 * n)
