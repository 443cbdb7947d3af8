"""Theorems 3 and 4: SOX without momentum, on convex problems over a convex set."""

from __future__ import annotations

from dataclasses import dataclass

from fcco.theory._checks import batches, positive, within_floats
from fcco.theory._constants import Constants, Parameters, whole_steps


@within_floats
def projected(
    constants: Constants, *, n: int, outer_batch: int, inner_batch: int, epsilon: float, diameter: float
) -> Parameters:
    r"""Theorem 3: projected SOX with beta = 1, for f_i convex and increasing and g_i convex with one value each.

    After T steps the averages over them have a weak primal-dual gap of at most epsilon,
    :math:`\max_{w, \pi} E[L(\bar w, \pi) - L(w, \bar \pi)] \le \epsilon`. With
    :math:`C = C_f^2 C_g (C_g^2 + \zeta^2 / B_2)^{1/2}` and the diameter D of the set,

    .. math::
        \eta &= \tfrac 8 \epsilon \max\{\tfrac{n C}{B_1}, C_f^2 C_g^2, \tfrac{C_f^2 (\zeta^2 + C_g^2)}{\min(B_1, B_2)}\}
        \qquad \tau = \tfrac 8 \epsilon \max\{\tfrac{L_f \sigma^2}{B_2}, \tfrac{B_1 L_f C_g^2 D^2}{n}\} \\
        T &= \tfrac 8 \epsilon \max\{\tfrac{n}{B_1} (C_f C_g D + \tfrac{L_f \sigma^2}{B_2}),
        \tfrac{\tau n L_f}{2 B_1} (C_g^2 D^2 + \tfrac{\sigma^2}{B_2}), \tfrac{\eta D^2}{2}\}

    and :math:`\mathrm{lr} = 1 / \eta`, :math:`\gamma = 1 / (1 + \tau)`: the proof's eta is an inverse step. Each of the
    eight terms of the gap is at most epsilon / 8. The paper has nine: one more comes of a virtual batch whose sampling
    variance it leaves out, and which is not needed since the gap's :math:`\pi` is fixed, so that
    :math:`E \langle \hat g - g, \pi - \pi_t \rangle = 0`. Its :math:`C_{f^*}`, a bound of the conjugates, is not
    needed either: :math:`\pi` maximises :math:`\pi g - f^*(\pi)` up to :math:`L_f (u - g)^2 / 2`. Its bound
    :math:`C_g C_\Omega` of g itself does not hold, that of a difference of values does. The table starts with an
    estimate of B2 samples in every row.

    Args:
        constants: those of the problem on the set; l_g does not matter.
        n: how many rows the problem has.
        outer_batch: B1.
        inner_batch: B2.
        epsilon: the gap aimed at.
        diameter: D, the largest distance of two points of the set (twice the radius of a ball).

    Raises:
        TypeError: n or a batch size is not an integer.
        ValueError: a value outside its range, or B1 > n.

    >>> constants = Constants(c_f=1.0, l_f=0.0, c_g=1.0, l_g=1.0, sigma2=0.0, zeta2=0.0)
    >>> projected(constants, n=4, outer_batch=2, inner_batch=1, epsilon=0.5, diameter=1.0)
    Parameters(beta=1.0, gamma=1.0, lr=0.03125, steps=256)

    Reference: Theorem 3 of Wang and Yang, ICML 2022, and its proof.
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    share, diameter = positive("epsilon", epsilon) / 8, positive("diameter", diameter)
    c, rounds = constants, n / outer_batch
    spread, variance = (c.c_g * diameter) ** 2, c.sigma2 / inner_batch
    moves = rounds * c.c_f**2 * c.c_g * c.inner_slope(inner_batch)
    eta = max(moves, (c.c_f * c.c_g) ** 2, c.gradient_noise / min(outer_batch, inner_batch)) / share
    tau = max(c.l_f * variance, c.l_f * spread / rounds) / share
    first = rounds * (c.c_f * c.c_g * diameter + c.l_f * variance)
    dual = tau * rounds * c.l_f * (spread + variance) / 2
    return Parameters(1.0, 1 / (1 + tau), 1 / eta, whole_steps(max(first, dual, eta * diameter**2 / 2), share))


@dataclass(frozen=True)
class DecreasingSteps:
    """The schedule of :func:`strongly_convex`.

    Args:
        rounds: n / B1.
        mu: modulus of strong convexity of the regulariser.
    """

    rounds: float
    mu: float

    def lr(self, t: int) -> float:
        """The step size of step t = 0, 1, ..."""
        return 1 / (self.mu * (t + 1))

    def gamma(self, t: int) -> float:
        """The rate of the inner moving averages at step t = 0, 1, ..."""
        return self.rounds / (self.rounds + t + 1)


def strongly_convex(*, n: int, outer_batch: int, mu: float) -> DecreasingSteps:
    r"""Theorem 4: SOX with beta = 1 and decreasing steps, for F + R with a mu-strongly convex R.

    .. math::
        \mathrm{lr}_t = \frac{1}{\mu (t + 1)} \qquad \gamma_t = \frac{1}{1 + \tau_t} \qquad
        \tau_t = \frac{B_1}{n} (t + 1) \qquad
        w_{t+1} = \arg\min_{w \in \Omega} \langle G_t, w \rangle + R(w) + \tfrac{1}{2 \mathrm{lr}_t} \|w - w_t\|^2

    for t = 0, 1, ...; the eta of the paper is 1 / lr. R enters by its proximal step, not by its gradient. The proof
    asks for :math:`\eta_t \ge 4 L_R`, which its own choice breaks at first (:math:`\eta_0 = \mu \le L_R`); it is not
    needed, since :math:`\sum_t R(w_t) - R(w_{t+1})` telescopes. After t steps
    :math:`E \|w_t - w^*\|^2 = \tilde O(n / (B_1 \mu^2 t))`.

    Args:
        n: how many rows the problem has.
        outer_batch: B1.
        mu: modulus of strong convexity of R.

    Raises:
        TypeError: n or the batch size is not an integer.
        ValueError: mu <= 0, or B1 > n.

    >>> schedule = strongly_convex(n=6, outer_batch=2, mu=0.5)
    >>> schedule.lr(0), schedule.lr(3), schedule.gamma(0), schedule.gamma(2)
    (2.0, 0.5, 0.75, 0.5)

    Reference: Theorem 4 of Wang and Yang, 2022 (section "Improved Rate of Convergence for Strongly Convex Problems").
    """
    n, outer_batch, _ = batches(n, outer_batch)
    return DecreasingSteps(n / outer_batch, positive("mu", mu))
