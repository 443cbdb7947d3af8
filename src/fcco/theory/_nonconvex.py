"""Theorem 3: SOX finds a stationary point of a smooth function. The batch split follows from it."""

from __future__ import annotations

from typing import Any

from fcco._checks import whole_number
from fcco.theory._checks import batches, non_negative, positive, unit_rate, within_floats
from fcco.theory._constants import Constants, Parameters, smallest, whole_steps


@within_floats
def sox(
    constants: Constants,
    *,
    n: int,
    outer_batch: int,
    inner_batch: int,
    epsilon: float,
    gap: float,
    outer_samples: int = 1,
) -> Parameters:
    r"""Return the parameters of Theorem 3, with which :math:`\frac 1 T \sum_t E \|\nabla F(w_t)\|^2 \le \epsilon^2`.

    .. math::
        \beta = \min\{\tfrac{\min(B_1, B_2) \epsilon^2}{12 C_f^2 (\zeta^2 + C_g^2)}, \tfrac 2 7\} \quad
        \gamma = \min\{\tfrac{B_2 \epsilon^2}{240 L_f^2 C_1^2 \sigma^2}, \tfrac 1 5, \tfrac{5 n}{3 B_1} \beta\} \quad
        \eta = \min\{\tfrac{\beta}{4 L_F}, \tfrac{\gamma B_1}{30 L_f n C_1 C_g}\} \quad
        T = \tfrac{6 \Lambda}{\eta \epsilon^2}

    with :math:`\Lambda = F(w_1) - F^* + \frac{C_f^2 C_g^2}{4 L_F} + \frac{2 L_f C_1 \sigma^2}{3 C_g B_2}`.

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
        Norm of the gradient to reach.
    gap : float
        F(w_1) - F*, or an upper bound of it.
    outer_samples : int, default 1
        B3, the number of samples from which the gradient of a stochastic f_i is estimated. It matters only if
        ``constants.chi2`` is positive.

    Returns
    -------
    Parameters
        beta, gamma, the step size and the number of steps.

    Raises
    ------
    TypeError
        If n or a batch size is not an integer, or if another value is not a number.
    ValueError
        If a value is outside its range, or if B1 > n.

    Notes
    -----
    The theorem starts from v = 0 and a table in which **all** n rows are estimates from B2 samples each. The paper says
    so only of the rows of the first batch, but :math:`\Xi_1 \le \sigma^2 / B_2` needs all rows.

    The paper states T as a maximum of six terms, which is this T written out. The weight of :math:`\Xi_t` in its
    Lyapunov function lacks a factor n, which its :math:`\Lambda` has.

    If f_i is stochastic, L_f must be a Lipschitz constant of the gradient of its samples, and
    :math:`C_f^2 (\zeta^2 + C_g^2) / \min(B_1, B_2)` becomes :meth:`Constants.gradient_variance`. The paper's own
    expression for it (in the appendix "Extensions") lacks a bracket: as printed, its terms have different units.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, extended version,
    Theorem 3 and the end of its proof.

    Examples
    --------
    >>> constants = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=0.0, sigma2=0.0, zeta2=0.0)
    >>> sox(constants, n=10, outer_batch=10, inner_batch=10, epsilon=1.0, gap=0.75)
    Parameters(beta=0.2857142857142857, gamma=0.2, lr=0.006666666666666667, steps=900)
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    epsilon, gap = positive("epsilon", epsilon), non_negative("gap", gap)
    c, slope = constants, constants.inner_slope(inner_batch)
    variance = c.gradient_variance(outer_batch, inner_batch, whole_number("outer_samples", outer_samples))
    beta = smallest((epsilon**2, 12 * variance), (2, 7))
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
    r"""Return the bound of Lemma 2 on the expected error of the table after a step.

    .. math::
        (1 - \tfrac{\gamma B_1}{4 n}) \Xi_t + \tfrac{5 n \eta^2 C_g^2}{\gamma B_1} E \|v_t\|^2
        + \tfrac{2 \gamma^2 \sigma^2 B_1}{n B_2} - \tfrac{1}{4 n} E \sum_{i \in B_1} \|u_i^{t+1} - u_i^t\|^2

    where :math:`\Xi_t = \frac 1 n \sum_i \|u_i^t - g_i(w_t)\|^2`. The last sum is over the batch that changes u from t
    to t + 1.

    Parameters
    ----------
    constants : Constants
        The constants of the problem.
    error : float
        :math:`\Xi_t`.
    n : int
        Number of rows of the problem.
    outer_batch : int
        B1.
    inner_batch : int
        B2.
    gamma : float
        Rate of the moving average, in (0, 1].
    lr : float
        Step size :math:`\eta`.
    direction2 : float
        :math:`E \|v_t\|^2`.
    moved2 : float, default 0.0
        :math:`E \sum \|u_i^{t+1} - u_i^t\|^2`. With 0, the bound is that without the last term.

    Returns
    -------
    float
        The bound on :math:`E\,\Xi_{t+1}`.

    Raises
    ------
    TypeError
        If n or a batch size is not an integer, or if another value is not a number.
    ValueError
        If a value is outside its range, or if B1 > n.

    Notes
    -----
    The paper proves the lemma for gamma up to 1/5. It holds up to 1, because
    :math:`(1 - \gamma)^2 + \gamma^2 / 4 \le 1 - \gamma / 2`.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, extended version, Lemma 2.

    Examples
    --------
    >>> constants = Constants(c_f=1.0, l_f=1.0, c_g=1.0, l_g=0.0, sigma2=1.0, zeta2=0.0)
    >>> tracking_error(
    ...     constants, 8.0, n=4, outer_batch=4, inner_batch=2, gamma=0.5, lr=0.0, direction2=0.0
    ... )  # 8 (1 - 1/8) + 1/4
    7.25
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    visited = unit_rate("gamma", gamma) * outer_batch / n
    kept = (1 - visited / 4) * non_negative("error", error)
    drift = 5 * (non_negative("lr", lr) * constants.c_g) ** 2 * non_negative("direction2", direction2) / visited
    noise = 2 * gamma * visited * constants.sigma2 / inner_batch
    return kept + drift + noise - non_negative("moved2", moved2) / (4 * n)


def split_batch(budget: int, *, n: int, constants: Constants | None = None, **target: Any) -> tuple[int, int]:
    r"""Return the B1 and B2 with B1 + B2 = ``budget`` and B1 <= n that need the fewest iterations.

    Without constants, the order of Theorem 3, :math:`\max\{\frac{n}{B_1 B_2}, \frac{1}{\min(B_1, B_2)}\}`, decides. It
    gives the paper's half and half wherever n allows it. With constants, the theorem's number of steps decides, in
    which terms of B1 or B2 alone can shift the balance. Among equally good splits, the most even one is returned.

    Parameters
    ----------
    budget : int
        B1 + B2, at least 2.
    n : int
        Number of rows of the problem.
    constants : Constants, optional
        The constants of the problem.
    **target
        ``epsilon`` and ``gap`` of :func:`sox`. They must be given together with ``constants``.

    Returns
    -------
    tuple of int
        B1 and B2.

    Raises
    ------
    TypeError
        If a size is not an integer, or if only some of ``constants``, ``epsilon`` and ``gap`` are given.
    ValueError
        If a value is outside its range.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, extended version,
    the remark to Theorem 3.

    Examples
    --------
    >>> split_batch(64, n=1000)
    (32, 32)
    >>> split_batch(64, n=20)
    (20, 44)
    """
    budget, n = whole_number("budget", budget), whole_number("n", n)
    if budget < 2:
        raise ValueError(f"budget must be at least 2, for one outer and one inner sample; got {budget}")
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
