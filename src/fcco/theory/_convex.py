"""Theorems 5 and 7: SOX without momentum on convex problems."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fcco.theory._checks import batches, non_negative, positive, within_floats
from fcco.theory._constants import Constants, Parameters, whole_steps


@within_floats
def projected(
    constants: Constants, *, n: int, outer_batch: int, inner_batch: int, epsilon: float, diameter: float
) -> Parameters:
    r"""Return the parameters of Theorem 5: projected SOX with beta = 1.

    Every f_i must be convex and increasing, and every g_i convex with one value. After T steps, the averages over the
    steps have a weak primal-dual gap of at most epsilon,
    :math:`\max_{w, \pi} E[L(\bar w, \pi) - L(w, \bar \pi)] \le \epsilon`. With
    :math:`C = C_f^2 C_g (C_g^2 + \zeta^2 / B_2)^{1/2}` and the diameter D of the set,

    .. math::
        \eta &= \tfrac 8 \epsilon \max\{\tfrac{n C}{B_1}, C_f^2 C_g^2, \tfrac{C_f^2 (\zeta^2 + C_g^2)}{\min(B_1, B_2)}\}
        \qquad \tau = \tfrac 8 \epsilon \max\{\tfrac{L_f \sigma^2}{B_2}, \tfrac{B_1 L_f C_g^2 D^2}{n}\} \\
        T &= \tfrac 8 \epsilon \max\{\tfrac{n}{B_1} (C_f C_g D + \tfrac{L_f \sigma^2}{B_2}),
        \tfrac{\tau n L_f}{2 B_1} (C_g^2 D^2 + \tfrac{\sigma^2}{B_2}), \tfrac{\eta D^2}{2}\}

    and :math:`\mathrm{lr} = 1 / \eta`, :math:`\gamma = 1 / (1 + \tau)`. The proof's eta is thus an inverse step size.

    Parameters
    ----------
    constants : Constants
        The constants of the problem on the set. l_g does not matter.
    n : int
        Number of rows of the problem.
    outer_batch : int
        B1.
    inner_batch : int
        B2.
    epsilon : float
        The gap to reach.
    diameter : float
        D, the largest distance between two points of the set. For a ball it is twice the radius.

    Returns
    -------
    Parameters
        beta = 1, gamma, the step size and the number of steps.

    Raises
    ------
    TypeError
        If n or a batch size is not an integer, or if another value is not a number.
    ValueError
        If a value is outside its range, or if B1 > n.

    Notes
    -----
    The table starts with an estimate from B2 samples in every row. Each of the eight terms of the gap is at most
    epsilon / 8. The proof in the paper differs in three points:

    - It has a ninth term, which comes from a virtual batch whose sampling variance it leaves out. The term is not
      needed, because the :math:`\pi` of the gap is fixed, so that
      :math:`E \langle \hat g - g, \pi - \pi_t \rangle = 0`.
    - It needs a bound :math:`C_{f^*}` of the conjugates. The bound is not needed, because :math:`\pi` maximises
      :math:`\pi g - f^*(\pi)` up to :math:`L_f (u - g)^2 / 2`.
    - Its bound :math:`C_g C_\Omega` of g itself does not hold. The same bound of a difference of values does.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, extended version,
    Theorem 5 and its proof.

    Examples
    --------
    >>> constants = Constants(c_f=1.0, l_f=0.0, c_g=1.0, l_g=1.0, sigma2=0.0, zeta2=0.0)
    >>> projected(constants, n=4, outer_batch=2, inner_batch=1, epsilon=0.5, diameter=1.0)
    Parameters(beta=1.0, gamma=1.0, lr=0.03125, steps=256)
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    constants.check_exact_outer("Theorem 5")
    share, diameter = positive("epsilon", epsilon) / 8, positive("diameter", diameter)
    c, rounds = constants, n / outer_batch
    spread, variance = (c.c_g * diameter) ** 2, c.sigma2 / inner_batch
    moves = rounds * c.c_f**2 * c.c_g * c.inner_slope(inner_batch)
    eta = max(moves, (c.c_f * c.c_g) ** 2, c.gradient_variance(outer_batch, inner_batch)) / share
    tau = max(c.l_f * variance, c.l_f * spread / rounds) / share
    first = rounds * (c.c_f * c.c_g * diameter + c.l_f * variance)
    dual = tau * rounds * c.l_f * (spread + variance) / 2
    return Parameters(1.0, 1 / (1 + tau), 1 / eta, whole_steps(max(first, dual, eta * diameter**2 / 2), share))


@dataclass(frozen=True)
class DecreasingSteps:
    """The schedule that :func:`strongly_convex` returns.

    Attributes
    ----------
    rounds : float
        n / B1, the number of steps in a pass over the rows.
    mu : float
        Modulus of strong convexity of the regulariser.
    """

    rounds: float
    mu: float

    def lr(self, t: int) -> float:
        """Return the step size of step t = 0, 1, ...

        Parameters
        ----------
        t : int
            The step.

        Returns
        -------
        float
            The step size, 1 / (mu (t + 1)).
        """
        return 1 / (self.mu * (t + 1))

    def gamma(self, t: int) -> float:
        """Return the rate of the inner moving averages at step t = 0, 1, ...

        Parameters
        ----------
        t : int
            The step.

        Returns
        -------
        float
            The rate, rounds / (rounds + t + 1).
        """
        return self.rounds / (self.rounds + t + 1)


def strongly_convex(*, n: int, outer_batch: int, mu: float) -> DecreasingSteps:
    r"""Return the schedule of Theorem 7: SOX with beta = 1 and decreasing steps, for F + R with a strongly convex R.

    .. math::
        \mathrm{lr}_t = \frac{1}{\mu (t + 1)} \qquad \gamma_t = \frac{1}{1 + \tau_t} \qquad
        \tau_t = \frac{B_1}{n} (t + 1) \qquad
        w_{t+1} = \arg\min_{w \in \Omega} \langle G_t, w \rangle + R(w) + \tfrac{1}{2 \mathrm{lr}_t} \|w - w_t\|^2

    for t = 0, 1, ... The eta of the paper is 1 / lr. R enters by its proximal step, not by its gradient. After t steps
    :math:`E \|w_t - w^*\|^2 = \tilde O(n / (B_1 \mu^2 t))`.

    Parameters
    ----------
    n : int
        Number of rows of the problem.
    outer_batch : int
        B1.
    mu : float
        Modulus of strong convexity of R.

    Returns
    -------
    DecreasingSteps
        lr and gamma as functions of the step.

    Raises
    ------
    TypeError
        If n or a batch size is not an integer, or if another value is not a number.
    ValueError
        If a value is outside its range, or if B1 > n.

    Notes
    -----
    The proof in the paper asks for :math:`\eta_t \ge 4 L_R`, which its own choice violates at first, since
    :math:`\eta_0 = \mu \le L_R`. The condition is not needed, because :math:`\sum_t R(w_t) - R(w_{t+1})` telescopes.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, 2022, Theorem 7 (section "Improved
    Rate of Convergence for Strongly Convex Problems").

    Examples
    --------
    >>> schedule = strongly_convex(n=6, outer_batch=2, mu=0.5)
    >>> schedule.lr(0), schedule.lr(3), schedule.gamma(0), schedule.gamma(2)
    (2.0, 0.5, 0.75, 0.5)
    """
    n, outer_batch, _ = batches(n, outer_batch)
    return DecreasingSteps(n / outer_batch, positive("mu", mu))


@within_floats
def strongly_convex_steps(
    constants: Constants,
    *,
    n: int,
    outer_batch: int,
    inner_batch: int,
    epsilon: float,
    mu: float,
    c_r: float,
    diameter: float,
) -> int:
    r"""Return a number of steps after which the schedule of :func:`strongly_convex` has reached epsilon.

    After T steps, both :math:`E[F(\bar w) + R(\bar w) - \min (F + R)]`, for the average of the iterates, and
    :math:`E \|w_T - w^*\|^2` are at most

    .. math::
        \max\{1 + \tfrac{L_f C_g^2}{\mu}, \tfrac 2 \mu\} \, \frac{A + B (1 + \log T)}{T}

    With the share :math:`p = B_1 / n` of the rows in a batch, :math:`v = \sigma^2 / B_2` and the diameter D of the set,

    .. math::
        A &= \tfrac{\mu D^2}{2} + (p C_f C_g + C_R) D + \tfrac{1}{2p} [(1 + p) L_f (v + C_g^2 D^2) + L_f v
        + \min\{L_f C_g^2 D^2, 2 C_f C_g D\}] \\
        B &= \tfrac 2 \mu [\tfrac{C_f^2 (\zeta^2 + C_g^2)}{\min(B_1, B_2)} + C_f^2 C_g^2]
        + \tfrac{1 - p}{p \mu} C_f C_g [C_f (C_g^2 + \tfrac{\zeta^2}{B_2})^{1/2} + C_R]
        + \tfrac{L_f C_g^2 D^2}{2} + \tfrac{L_f v}{p}

    Every f_i must be convex and increasing, and every g_i convex with one value.

    Parameters
    ----------
    constants : Constants
        The constants of the problem on the set. l_g does not matter.
    n : int
        Number of rows of the problem.
    outer_batch : int
        B1.
    inner_batch : int
        B2.
    epsilon : float
        The accuracy to reach.
    mu : float
        Modulus of strong convexity of R.
    c_r : float
        :math:`C_R`. R is C_R-Lipschitz on the set. For mu/2 |w|^2, it is mu times the largest norm in the set.
    diameter : float
        D, the largest distance between two points of the set.

    Returns
    -------
    int
        The smallest T at which the bound is at most epsilon.

    Raises
    ------
    TypeError
        If n or a batch size is not an integer, or if another value is not a number.
    ValueError
        If a value is outside its range, or if B1 > n.

    Notes
    -----
    The table starts with an estimate from B2 samples in every row. The paper states the order of T only. The bound
    follows its proof, with these changes:

    - Q(z_t, z*) is at least :math:`\frac \mu 2 \|w_t - w^*\|^2`. This bounds the distance of the average without the
      second logarithm of the paper.
    - The noise of u costs :math:`L_f v / (1 + \tau_t)`, and nothing of the distance between two tables.
    - The bound :math:`C_{f^*}` of the conjugates and :math:`L_R` are not needed.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, extended version, Theorem 7 and its
    proof.

    Examples
    --------
    >>> constants = Constants(c_f=1.0, l_f=0.0, c_g=1.0, l_g=1.0, sigma2=0.0, zeta2=0.0)
    >>> sizes = {"n": 4, "outer_batch": 4, "inner_batch": 1}
    >>> strongly_convex_steps(constants, epsilon=0.5, mu=1.0, c_r=1.0, diameter=1.0, **sizes)
    100
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    constants.check_exact_outer("Theorem 7")
    epsilon, mu, d = positive("epsilon", epsilon), positive("mu", mu), positive("diameter", diameter)
    c, c_r, share = constants, non_negative("c_r", c_r), outer_batch / n
    slope, spread, noise = c.c_f * c.c_g, c.l_f * (c.c_g * d) ** 2, c.l_f * c.sigma2 / inner_batch
    tables = (1 + share) * (noise + spread) + noise + min(spread, 2 * slope * d)
    start = mu * d**2 / 2 + (share * slope + c_r) * d + tables / (2 * share)
    moves = slope * (c.c_f * c.inner_slope(inner_batch) + c_r) * (1 - share) / share
    growth = (2 * (c.gradient_variance(outer_batch, inner_batch) + slope**2) + moves) / mu
    growth += spread / 2 + noise / share
    factor = max(1 + c.l_f * c.c_g**2 / mu, 2 / mu) / epsilon
    return _first_below(factor * (start + growth), factor * growth)


def _first_below(a: float, b: float) -> int:
    """Return the smallest whole T >= 1 beyond which a + b log T <= T, for a >= b >= 0."""
    steps, before = a + b, 0.0
    while abs(steps - before) > 1e-9 * steps:  # T -> a + b log T contracts near its larger fixed point
        before, steps = steps, a + b * math.log(max(steps, 1.0))
    return max(1, math.ceil(steps * (1 - 1e-9)))
