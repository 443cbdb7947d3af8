"""Test problems on data: logistic regression that is invariant to perturbations, and p-norm push."""

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
    """``inner`` [B1], and the L2 term beside it [B1, 2] if there is one: exact, and F stays a sum of f_i(g_i)."""
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

    x_i is standard normal, and b_i drawn by the logistic model of a w of length 1. The variance of a score grows with
    w, so the constants are for the ball of ``radius`` twice the length of the optimum. The L2 term, if any, is a
    second inner value, on which f is linear.

    Args:
        n: how many observations; so many times d that no plane separates their labels.
        d: dimension of w.
        noise: standard deviation of the perturbation, in every coordinate.
        l2: :math:`\lambda`.
        seed: of the data.
        dtype: of w.

    Raises:
        ValueError: a value outside its range.
        RuntimeError: the labels can be separated, so that F has no minimum.

    >>> problem = invariant_logistic(n=50, d=2)
    >>> problem.constants.c_f, problem.constants.l_f, problem.constants.zeta2
    (1.0, 0.25, 0.5)

    Reference: the introduction of Wang and Yang, ICML 2022; Hu et al., Biased stochastic first-order methods for
    conditional stochastic optimization, NeurIPS 2020.
    """
    n, d = whole_number("n", n), whole_number("d", d)
    noise, l2 = non_negative("noise", noise), non_negative("l2", l2)
    data = _logistic_data(n, d, noise, l2, torch.Generator().manual_seed(seed), dtype)
    optimum = minimiser(data.objective, torch.zeros(d, dtype=dtype))
    if l2 == 0 and (data.labels * (data.x @ optimum) > 0).all():
        raise RuntimeError(f"no minimum found: a plane separates the labels of {n} points; give more points, or l2")
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
    """Observations [n, d], labels [n] of -1 and 1, and the functions of the problem on them."""

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
    r"""P-norm push with the exponential loss on scikit-learn's breast cancer data, features scaled to [0, 1].

    .. math::
        F(w) = \frac{1}{n_-} \sum_{i \in S_-} g_i(w)^p + \tfrac \lambda 2 \|w\|^2, \qquad
        g_i(w) = \frac{1}{n_+} \sum_{j \in S_+} e^{\langle w, x_i - x_j \rangle}

    The start is 0. The loss separates, :math:`g_i = e^{\langle w, x_i \rangle} \cdot \mathrm{mean}_j\,
    e^{-\langle w, x_j \rangle}`, which gives the objective and the optimum at once. The L2 term is a second inner
    value, on which f is linear; it makes F l2-strongly convex. f is not Lipschitz, and no constants are given.

    Args:
        p: the power, at least 1.
        l2: :math:`\lambda`, positive: the data can be separated, and there is no optimum without.
        dtype: of w.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: a value outside its range.

    >>> problem = p_norm_push()
    >>> problem.n, problem.objective(problem.start).item()  # malignant, and 1 at w = 0
    (212, 1.0)

    Reference: Rudin, The p-norm push, JMLR 2009.
    """
    data = import_extra("sklearn.datasets", "p_norm_push()", "sklearn")
    l2 = positive("l2", l2)
    if positive("p", p) < 1:
        raise ValueError(f"p must be at least 1, got {p!r}")
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
    """What is to be ranked above [n_+, d] and below [n_-, d], and the functions of the problem on them."""

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
