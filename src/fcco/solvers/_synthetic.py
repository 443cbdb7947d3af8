"""A synthetic test problem whose constants are known exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fcco._checks import whole_number
from fcco.solvers._known import KnownProblem, minimiser
from fcco.theory import Constants
from fcco.theory._checks import non_negative, positive

Convexity = Literal["nonconvex", "convex", "strongly_convex"]


def _unit_rows(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1)


def pseudo_huber(
    kind: Convexity = "nonconvex",
    *,
    n: int = 64,
    d: int = 4,
    c_f: float = 1.0,
    l_f: float = 1.0,
    sigma: float = 0.1,
    zeta: float = 0.1,
    set_size: int = 8,
    spread: float = 0.5,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> KnownProblem:
    r"""Rounded cones around n centres, composed with a smooth Lipschitz function, with exact constants.

    .. math::
        g_i(w) = \sqrt{1 + \|w - c_i\|^2} - b_i, \qquad
        g(w; \xi_{ik}) = g_i(w) + \sqrt 2 \sigma \sin(\tfrac \zeta \sigma \langle r_i, w \rangle + \tfrac{2 \pi k}{m})

    for k = 1, ..., m = ``set_size`` and unit vectors r_i. The waves cancel in the mean over k. The variances of their
    values and of their gradients are exactly :math:`\sigma^2` and :math:`\zeta^2` at every w.

    Parameters
    ----------
    kind : {"nonconvex", "convex", "strongly_convex"}, default "nonconvex"
        The form of F.

        - ``"nonconvex"``: :math:`f(u) = \frac{C_f^2}{L_f} (\sqrt{1 + (L_f u / C_f)^2} - 1)` is not monotone. All g_i
          are 0 at the optimum, a vector of length 2, so that F* = 0. The start is twice as far out.
        - ``"strongly_convex"``: :math:`f(u) = \frac{C_f^2}{4 L_f} \log(1 + e^{4 L_f u / C_f})` is convex and
          increasing, and :math:`b_i = 1`. On the ball around 0 that contains the start, which has length 1, F is
          mu-strongly convex with :math:`\mu = \frac{C_f}{2} (1 + (1 + \|c_i\|)^2)^{-3/2}`.
        - ``"convex"``: as before, but F does not depend on the last coordinate, so the optimum is not unique.
    n : int, default 64
        Number of rows.
    d : int, default 4
        Dimension of w, at least 2.
    c_f : float, default 1.0
        :math:`C_f`.
    l_f : float, default 1.0
        :math:`L_f`.
    sigma : float, default 0.1
        Standard deviation of one inner value. It must be positive unless ``zeta`` is 0.
    zeta : float, default 0.1
        Standard deviation of one inner gradient.
    set_size : int, default 8
        Number of inner samples of a row, at least 3.
    spread : float, default 0.5
        Length of the centres c_i.
    seed : int, default 0
        Seed of the centres and the waves.
    dtype : torch.dtype, default torch.float64
        Dtype of w.

    Returns
    -------
    KnownProblem
        The problem.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Notes
    -----
    C_g = L_g = 1 everywhere. g_i is a quadratic near c_i and a cone further out, because a quadratic itself has no
    finite C_g, which Assumption 1 requires.

    With B1 = B2 = 16, the theorems prescribe:

    ======== =============================================================== ======= ===================== ======
    theorem  problem                                                         epsilon at the start          steps
    ======== =============================================================== ======= ===================== ======
    1        ``pseudo_huber(n=32)``                                          0.25    gradient of norm 0.85 35,877
    2        ``pseudo_huber("strongly_convex", n=32, l_f=0.1, spread=0.25)`` 0.1     gap of 0.22           35,529
    3        the same, projected onto the ball of radius 1                   0.1     gap of 0.22           25,608
    ======== =============================================================== ======= ===================== ======

    Examples
    --------
    >>> problem = pseudo_huber("strongly_convex", n=8)
    >>> problem.exact_inner(problem.start).shape, round(problem.mu, 3)
    (torch.Size([8]), 0.085)
    """
    n, d = whole_number("n", n), whole_number("d", d)
    _check(kind, d, whole_number("set_size", set_size), non_negative("sigma", sigma), non_negative("zeta", zeta))
    outer = _SmoothOuter(kind == "nonconvex", positive("c_f", c_f), positive("l_f", l_f))
    generator = torch.Generator().manual_seed(seed)
    centres = (positive("spread", spread) * _unit_rows(n, d, generator)).to(dtype)
    waves = _unit_rows(n, d, generator).to(dtype)
    target = 2 * _unit_rows(1, d, generator)[0].to(dtype)
    used = d - 1 if kind == "convex" else d
    offsets = _cone(target, centres, used) if kind == "nonconvex" else torch.ones(n, dtype=dtype)
    cones = _Cones(centres, offsets, waves, used, sigma, zeta, set_size)
    objective = _Objective(outer, cones)
    start = 2 * target if kind == "nonconvex" else target / 2
    return KnownProblem(
        n=n,
        inner=cones.inner,
        outer=outer,
        start=start,
        exact_inner=cones.exact_inner,
        objective=objective,
        optimum=target if kind == "nonconvex" else minimiser(objective, start),
        constants=Constants(c_f=c_f, l_f=l_f, c_g=1.0, l_g=1.0, sigma2=sigma**2, zeta2=zeta**2),
        name=f"pseudo_huber ({kind})",
        radius=None if kind == "nonconvex" else 1.0,
        mu=c_f / 2 * (1 + (1 + spread) ** 2) ** -1.5 if kind == "strongly_convex" else None,
    )


def _check(kind: str, d: int, set_size: int, sigma: float, zeta: float) -> None:
    if kind not in ("nonconvex", "convex", "strongly_convex"):
        raise ValueError(f"kind must be 'nonconvex', 'convex' or 'strongly_convex'; got {kind!r}")
    if d < 2:
        raise ValueError(f"d must be at least 2; got {d}")
    if set_size < 3:
        raise ValueError(f"set_size must be at least 3, so that the waves cancel; got {set_size}")
    if zeta > 0 and sigma == 0:
        raise ValueError(
            f"sigma must be positive if zeta is, since a constant has no noisy gradient; got 0 with zeta = {zeta}"
        )


def _cone(w: Tensor, centres: Tensor, used: int) -> Tensor:
    """Return the rounded distance of w to each centre, in the first ``used`` coordinates."""
    return (1 + (w - centres)[:, :used].square().sum(dim=1)).sqrt()


@dataclass(frozen=True)
class _Cones:
    """The inner functions, and the waves that are their noise."""

    centres: Tensor
    offsets: Tensor
    waves: Tensor
    used: int
    sigma: float
    zeta: float
    set_size: int

    def exact_inner(self, w: Tensor) -> Tensor:
        return _cone(w, self.centres, self.used) - self.offsets

    def inner(self, w: Tensor, rows: Tensor, generator: torch.Generator, inner_batch: int) -> Tensor:
        drawn = torch.randint(self.set_size, (len(rows), inner_batch), generator=generator)
        phase = drawn.to(w.dtype) * (2 * math.pi / self.set_size)
        travel = (self.waves[rows] @ w) * (self.zeta / self.sigma if self.zeta else 0.0)
        noise = math.sqrt(2) * self.sigma * torch.sin(travel[:, None] + phase).mean(dim=1)
        return _cone(w, self.centres[rows], self.used) - self.offsets[rows] + noise


@dataclass(frozen=True)
class _Objective:
    """The objective F, made of the outer and the inner functions."""

    outer: _SmoothOuter
    cones: _Cones

    def __call__(self, w: Tensor) -> Tensor:
        return self.outer(self.cones.exact_inner(w)).mean()


class _SmoothOuter:
    """The outer function, even or increasing, with slopes up to c_f and curvature up to l_f."""

    def __init__(self, even: bool, c_f: float, l_f: float) -> None:
        self.even = even
        self.c_f = c_f
        self.width = c_f / l_f if even else c_f / (4 * l_f)

    def __call__(self, u: Tensor) -> Tensor:
        x = u / self.width
        return self.c_f * self.width * ((1 + x.square()).sqrt() - 1 if self.even else softplus(x))
