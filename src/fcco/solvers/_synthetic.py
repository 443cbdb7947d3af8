"""Synthetic test problems whose constants are known."""

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

Kind = Literal["nonconvex", "convex", "strongly_convex"]


def _unit_rows(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1)


def pseudo_huber(
    kind: Kind = "nonconvex",
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
    r"""Rounded cones of the distance to n centres, seen through a smooth Lipschitz function; all constants are exact.

    .. math::
        g_i(w) = \sqrt{1 + \|w - c_i\|^2} - b_i, \qquad
        g(w; \xi_{ik}) = g_i(w) + \sqrt 2 \sigma \sin(\tfrac \zeta \sigma \langle r_i, w \rangle + \tfrac{2 \pi k}{m})

    for k = 1, ..., m = ``set_size`` and unit vectors r_i. Over k the waves cancel, and their values and gradients have
    the variances :math:`\sigma^2` and :math:`\zeta^2` at every w exactly. C_g = L_g = 1 everywhere: g_i is a quadratic
    near c_i and a cone further out, since a quadratic itself has no finite C_g, which Assumption 1 asks for.

    - ``"nonconvex"``: :math:`f(u) = \frac{C_f^2}{L_f} (\sqrt{1 + (L_f u / C_f)^2} - 1)` is not monotone. All g_i are 0
      at the optimum, a vector of length 2, so that F* = 0. The start is twice as far out.
    - ``"strongly_convex"``: :math:`f(u) = \frac{C_f^2}{4 L_f} \log(1 + e^{4 L_f u / C_f})` is convex and increasing,
      :math:`b_i = 1`. On the ball around 0 that holds the start, of length 1, F is mu-strongly convex with
      :math:`\mu = \frac{C_f}{2} (1 + (1 + \|c_i\|)^2)^{-3/2}`.
    - ``"convex"``: likewise, but of all coordinates except the last. Every optimum has others beside it.

    With B1 = B2 = 16, Theorem 1 asks for 35,877 steps on ``pseudo_huber(n=32)`` at epsilon = 0.25, where the gradient
    at the start is 0.85 long, and Theorem 2 for 35,529 in all on
    ``pseudo_huber("strongly_convex", n=32, l_f=0.1, spread=0.25)`` at epsilon = 0.1, where the gap at the start is
    0.22; Theorem 3 for 25,608 there, with the ball of radius 1.

    Args:
        kind: as above.
        n: how many rows.
        d: dimension of w, at least 2.
        c_f: :math:`C_f`.
        l_f: :math:`L_f`.
        sigma: standard deviation of one inner value; positive unless ``zeta`` is 0.
        zeta: standard deviation of one inner gradient.
        set_size: how many inner samples a row has, at least 3.
        spread: length of the centres c_i.
        seed: of the centres and the waves.
        dtype: of w.

    Raises:
        ValueError: a value outside its range.

    >>> problem = pseudo_huber("strongly_convex", n=8)
    >>> problem.exact_inner(problem.start).shape, round(problem.mu, 3)
    (torch.Size([8]), 0.085)
    """
    n, d = whole_number("n", n), whole_number("d", d)
    _check(kind, d, whole_number("set_size", set_size), non_negative("sigma", sigma), non_negative("zeta", zeta))
    outer = _Outer(kind == "nonconvex", positive("c_f", c_f), positive("l_f", l_f))
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
        raise ValueError(f"kind must be 'nonconvex', 'convex' or 'strongly_convex', got {kind!r}")
    if d < 2:
        raise ValueError(f"d must be at least 2, got {d}")
    if set_size < 3:
        raise ValueError(f"set_size must be at least 3, for the waves to cancel, got {set_size}")
    if zeta > 0 and sigma == 0:
        raise ValueError(f"sigma must be positive where zeta is: a noisy gradient of a constant, got zeta = {zeta}")


def _cone(w: Tensor, centres: Tensor, used: int) -> Tensor:
    """The rounded distance of w to each of the centres, in the first ``used`` coordinates."""
    return (1 + (w - centres)[:, :used].square().sum(dim=1)).sqrt()


@dataclass(frozen=True)
class _Cones:
    """The inner functions, and the waves that stand for their noise."""

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
    """F, of both."""

    outer: _Outer
    cones: _Cones

    def __call__(self, w: Tensor) -> Tensor:
        return self.outer(self.cones.exact_inner(w)).mean()


class _Outer:
    """f: with slopes up to c_f and curvature l_f, even or increasing."""

    def __init__(self, even: bool, c_f: float, l_f: float) -> None:
        self.even = even
        self.c_f = c_f
        self.width = c_f / l_f if even else c_f / (4 * l_f)

    def __call__(self, u: Tensor) -> Tensor:
        x = u / self.width
        return self.c_f * self.width * ((1 + x.square()).sqrt() - 1 if self.even else softplus(x))
