"""Test problems on data: logistic regression on perturbed observations, and p-norm push."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fcco._checks import whole_number
from fcco._extras import import_extra
from fcco.solvers._known import KnownProblem, minimiser
from fcco.theory import Constants
from fcco.theory._checks import non_negative, positive


def _with_penalty(inner: Tensor, w: Tensor, l2: float) -> Tensor:
    """Return ``inner`` [B1], or, with an L2 term, [B1, 2] with that term as a second inner value.

    The term is then exact, and F is still a sum of f_i(g_i).
    """
    if l2 == 0:
        return inner
    penalty = l2 / 2 * w.square().sum()
    return torch.stack([inner, penalty.expand(len(inner))], dim=1)


def invariant_logistic(
    *, n: int = 200, d: int = 5, noise: float = 0.5, l2: float = 0.0, seed: int = 0, dtype: torch.dtype = torch.float64
) -> KnownProblem:
    r"""Logistic regression on the expected score of perturbed observations.

    .. math::
        F(w) = \frac 1 n \sum_i \log(1 + e^{-b_i g_i(w)}) + \tfrac{\lambda}{2} \|w\|^2, \qquad
        g_i(w) = E \langle x_i + \mathrm{noise} \cdot \xi, w \rangle = \langle x_i, w \rangle, \quad \xi \sim N(0, I)

    x_i is standard normal, and b_i is drawn from the logistic model of a w of length 1. The L2 term, if any, is a
    second inner value, in which f is linear.

    Parameters
    ----------
    n : int, default 200
        Number of observations. It must be large enough compared with d that no plane separates their labels.
    d : int, default 5
        Dimension of w.
    noise : float, default 0.5
        Standard deviation of the perturbation in every coordinate.
    l2 : float, default 0.0
        :math:`\lambda`.
    seed : int, default 0
        Seed of the data.
    dtype : torch.dtype, default torch.float64
        Dtype of w.

    Returns
    -------
    KnownProblem
        The problem. The variance of a score grows with w, so its constants are valid in the ball whose ``radius`` is
        twice the length of the optimum.

    Raises
    ------
    ValueError
        If a value is outside its range.
    RuntimeError
        If the labels can be separated, so that F has no minimum.

    References
    ----------
    - Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, introduction.
    - Hu et al., *Biased Stochastic First-Order Methods for Conditional Stochastic Optimization*, NeurIPS 2020.

    Examples
    --------
    >>> problem = invariant_logistic(n=50, d=2)
    >>> problem.constants.c_f, problem.constants.l_f, problem.constants.zeta2
    (1.0, 0.25, 0.5)
    """
    n, d = whole_number("n", n), whole_number("d", d)
    noise, l2 = non_negative("noise", noise), non_negative("l2", l2)
    data = _logistic_data(n, d, noise, l2, torch.Generator().manual_seed(seed), dtype)
    optimum = minimiser(data.objective, torch.zeros(d, dtype=dtype))
    if l2 == 0 and (data.labels * (data.x @ optimum) > 0).all():
        raise RuntimeError(
            f"no minimum found: a plane separates the labels of the {n} points. Give a larger n, or l2 > 0"
        )
    radius = 2 * optimum.norm().item()
    constants = Constants(
        c_f=1.0 if l2 == 0 else math.sqrt(2),
        l_f=0.25,
        c_g=math.hypot(data.x.norm(dim=1).max().item(), l2 * radius),
        l_g=l2,
        sigma2=(noise * radius) ** 2,
        zeta2=noise**2 * d,
    )
    return KnownProblem(
        n=n,
        dim=1 if l2 == 0 else 2,
        inner=data.inner,
        outer=data.outer,
        start=torch.zeros(d, dtype=dtype),
        exact_inner=data.exact_inner,
        objective=data.objective,
        optimum=optimum,
        constants=constants,
        name="invariant_logistic",
        radius=radius,
        mu=l2 or None,
    )


@dataclass(frozen=True)
class _Logistic:
    """The functions of the problem on observations [n, d] with labels [n] of -1 and 1."""

    x: Tensor
    labels: Tensor
    noise: float
    l2: float

    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        score, penalty = (u, 0.0) if self.l2 == 0 else (u[:, 0], u[:, 1])
        return softplus(-self.labels[index] * score) + penalty

    def exact_inner(self, w: Tensor) -> Tensor:
        return _with_penalty(self.x @ w, w, self.l2)

    def inner(self, w: Tensor, rows: Tensor, generator: torch.Generator, inner_batch: int) -> Tensor:
        moves = torch.randn(len(rows), inner_batch, len(w), generator=generator, dtype=w.dtype).mean(dim=1)
        return _with_penalty((self.x[rows] + self.noise * moves) @ w, w, self.l2)

    def objective(self, w: Tensor) -> Tensor:
        return softplus(-self.labels * (self.x @ w)).mean() + self.l2 / 2 * w.square().sum()


def _logistic_data(
    n: int, d: int, noise: float, l2: float, generator: torch.Generator, dtype: torch.dtype
) -> _Logistic:
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    truth = torch.randn(d, generator=generator, dtype=torch.float64)
    chance = torch.sigmoid(x @ (truth / truth.norm()))
    labels = torch.where(torch.rand(n, generator=generator, dtype=torch.float64) < chance, 1.0, -1.0)
    return _Logistic(x.to(dtype), labels.to(dtype), noise, l2)


def p_norm_push(*, p: float = 4.0, l2: float = 0.01, dtype: torch.dtype = torch.float64) -> KnownProblem:
    r"""P-norm push with the exponential loss on scikit-learn's breast cancer data, with features scaled to [0, 1].

    .. math::
        F(w) = \frac{1}{n_-} \sum_{i \in S_-} g_i(w)^p + \tfrac \lambda 2 \|w\|^2, \qquad
        g_i(w) = \frac{1}{n_+} \sum_{j \in S_+} e^{\langle w, x_i - x_j \rangle}

    The start is 0. The L2 term is a second inner value, in which f is linear. It makes F l2-strongly convex.

    Parameters
    ----------
    p : float, default 4.0
        The power, at least 1.
    l2 : float, default 0.01
        :math:`\lambda`, positive. The data can be separated, so without it there is no optimum.
    dtype : torch.dtype, default torch.float64
        Dtype of w.

    Returns
    -------
    KnownProblem
        The problem. It has no constants, because f is not Lipschitz.

    Raises
    ------
    ImportError
        If scikit-learn is not installed.
    ValueError
        If a value is outside its range.

    Notes
    -----
    The loss factorises, :math:`g_i = e^{\langle w, x_i \rangle} \cdot \mathrm{mean}_j\, e^{-\langle w, x_j \rangle}`.
    The objective and the optimum are therefore cheap to compute.

    References
    ----------
    Rudin, *The P-Norm Push: A Simple Convex Ranking Algorithm that Concentrates at the Top of the List*, JMLR 2009.

    Examples
    --------
    >>> problem = p_norm_push()
    >>> problem.n, problem.objective(problem.start).item()  # malignant, and 1 at w = 0
    (212, 1.0)
    """
    data = import_extra("sklearn.datasets", "p_norm_push()", "sklearn")
    l2 = positive("l2", l2)
    if positive("p", p) < 1:
        raise ValueError(f"p must be at least 1; got {p!r}")
    features, target = data.load_breast_cancer(return_X_y=True)
    x, positives = torch.as_tensor(features, dtype=dtype), torch.as_tensor(target == 1)
    x = (x - x.min(dim=0).values) / (x.max(dim=0).values - x.min(dim=0).values)
    push = _Push(x[positives], x[~positives], p, l2)
    start = torch.zeros(x.shape[1], dtype=dtype)
    return KnownProblem(
        n=len(push.below),
        dim=2,
        inner=push.inner,
        outer=push.outer,
        start=start,
        exact_inner=push.exact_inner,
        objective=push.objective,
        optimum=minimiser(push.objective, start),
        name="p_norm_push",
        mu=l2,
    )


@dataclass(frozen=True)
class _Push:
    """The functions of the problem on the observations to rank above [n_+, d] and below [n_-, d]."""

    above: Tensor
    below: Tensor
    p: float
    l2: float

    def outer(self, u: Tensor) -> Tensor:
        return u[:, 0] ** self.p + u[:, 1]

    def exact_inner(self, w: Tensor) -> Tensor:
        return _with_penalty((self.below @ w).exp() * (-(self.above @ w)).exp().mean(), w, self.l2)

    def inner(self, w: Tensor, rows: Tensor, generator: torch.Generator, inner_batch: int) -> Tensor:
        drawn = torch.randint(len(self.above), (len(rows), inner_batch), generator=generator)
        differences = (self.below[rows] @ w)[:, None] - (self.above @ w)[drawn]
        return _with_penalty(differences.exp().mean(dim=1), w, self.l2)

    def objective(self, w: Tensor) -> Tensor:
        log_g = self.below @ w + (-(self.above @ w)).logsumexp(dim=0) - math.log(len(self.above))
        return (self.p * log_g).exp().mean() + self.l2 / 2 * w.square().sum()
