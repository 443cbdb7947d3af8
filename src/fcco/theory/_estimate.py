"""Estimation of the constants of a problem by sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco.core.outers import takes_index
from fcco.theory._checks import positive
from fcco.theory._constants import Constants

if TYPE_CHECKING:
    from fcco.solvers import Problem

# C_f and C_g must be positive. A slope of exactly 0 means that the function was sampled where it is flat.
_TINY = 1e-12
# The largest number of directions of w along which the gradient of a sample is taken.
_PROBES = 64


def estimate_constants(
    problem: Problem,
    *,
    points: int = 16,
    rows: int = 8,
    samples: int = 1000,
    radius: float | None = None,
    inner_batch: int = 4096,
    random_state: int = 0,
) -> Constants:
    r"""Estimate C_f, L_f, C_g, L_g, sigma^2 and zeta^2 of a problem, as the largest values that are found.

    Half of the points w are drawn from the ball of ``radius`` around the start. The other half lie between the start
    and the optimum, if one is known. At each point, the following is computed for some rows:

    - the slope and the curvature of g_i, along a direction that is improved by power iteration;
    - the variances of single inner samples around g_i;
    - the slope and the curvature of f_i, at g_i and at single samples, because a row of the table may hold either.

    All derivatives, also the second ones, are computed by autograd.

    Parameters
    ----------
    problem : fcco.solvers.Problem
        The problem.
    points : int, default 16
        Number of points w.
    rows : int, default 8
        Number of rows at each point.
    samples : int, default 1000
        Number of inner samples from which a variance is computed.
    radius : float, optional
        Radius of the ball. By default it is the distance from the start to the optimum if that is known, else 1.
    inner_batch : int, default 4096
        Number of samples from which g_i is estimated if the problem has no ``exact_inner``.
    random_state : int, default 0
        Seed of all draws.

    Returns
    -------
    Constants
        The estimates.

    Raises
    ------
    TypeError
        If a count is not an integer.
    ValueError
        If a count or the radius is not positive, or if an estimate is not finite.

    Notes
    -----
    The constants of the theorems are suprema, so **the estimates are lower bounds** of them, up to the sampling error
    of the variances. More points and rows bring them closer. In log space, the constants are those of g = exp(inner),
    not those of its logarithm.

    Examples
    --------
    >>> from fcco.solvers.problems import invariant_logistic
    >>> measured = estimate_constants(invariant_logistic(n=50, d=2), points=4, rows=2, samples=50)
    >>> measured.l_f <= 0.25, measured.l_g < 1e-6
    (True, True)
    """
    for name, count in {"points": points, "rows": rows, "samples": samples, "inner_batch": inner_batch}.items():
        whole_number(name, count)
    seed = whole_number("random_state", random_state, least=0)
    generator = torch.Generator().manual_seed(seed)
    probe = _Probe(problem, inner_batch, seed)
    places = [
        (w, torch.randperm(problem.n, generator=generator)[:rows]) for w in _points(problem, points, radius, generator)
    ]
    slopes = [_slopes(probe, w, row.reshape(1), samples, generator) for w, drawn in places for row in drawn]
    variances = torch.stack([_variances(probe, w, drawn, samples, generator) for w, drawn in places])
    # The largest of many sample variances is biased upwards, so it is computed again there from new samples.
    again = []
    for moment in (0, 1):
        place, row = divmod(int(variances[..., moment].argmax()), variances.shape[1])
        w, drawn = places[place]
        again.append(_variances(probe, w, drawn[row : row + 1], samples, generator)[0, moment].item())
    sigma2, zeta2 = again
    # Unlike max(), amax keeps a NaN, which Constants then rejects.
    c_f, l_f, c_g, l_g = torch.tensor(slopes, dtype=torch.float64).amax(dim=0).tolist()
    return Constants(c_f=max(c_f, _TINY), l_f=l_f, c_g=max(c_g, _TINY), l_g=l_g, sigma2=sigma2, zeta2=zeta2)


def _points(problem: Problem, count: int, radius: float | None, generator: torch.Generator) -> list[Tensor]:
    start, optimum = problem.start.detach(), problem.optimum
    if radius is None:
        radius = 1.0 if optimum is None else (optimum - start).norm().item() or 1.0
    positive("radius", radius)
    d = start.numel()
    points = []
    for k in range(count):
        share = torch.rand((), generator=generator, dtype=start.dtype)
        if k % 2 == 0 and optimum is not None:
            points.append(start + share * (optimum - start))
        else:
            direction = torch.randn(start.shape, generator=generator, dtype=start.dtype)
            points.append(start + radius * share ** (1 / d) * direction / direction.norm())
    return points


@dataclass(frozen=True)
class _Probe:
    """The g and f of a problem, converted from log space if necessary."""

    problem: Problem
    inner_batch: int
    seed: int

    def _plain(self, inner: Tensor) -> Tensor:
        # The table also holds at least float32.
        inner = inner.to(torch.promote_types(inner.dtype, torch.float32))
        return (inner.exp() if self.problem.log else inner).reshape(len(inner), -1)

    def exact(self, w: Tensor, rows: Tensor) -> Tensor:
        """Return g of rows [B1], as [B1, dim]."""
        problem = self.problem
        if problem.exact_inner is not None:
            return self._plain(problem.exact_inner(w)[rows])
        # Every w gets the same samples, so that differences are those of one function.
        generator = torch.Generator().manual_seed(self.seed)
        return self._plain(problem.inner(w, rows, generator, self.inner_batch))

    def drawn(self, w: Tensor, rows: Tensor, samples: int, generator: torch.Generator) -> Tensor:
        """Return single inner samples of rows [B1], as [B1, samples, dim]."""
        inner = self.problem.inner(w, rows.repeat_interleave(samples), generator, 1)
        return self._plain(inner).reshape(len(rows), samples, -1)

    def outer(self, u: Tensor, row: Tensor) -> Tensor:
        """Return f of one row at u [samples, dim], as [samples, 1]."""
        u = u.log() if self.problem.log else u
        u = u[:, 0] if self.problem.dim == 1 else u
        outer = self.problem.outer
        return (outer(u, row.expand(len(u))) if takes_index(outer) else outer(u))[:, None]


def _slopes(probe: _Probe, w: Tensor, row: Tensor, samples: int, generator: torch.Generator) -> list[float]:
    """Return C_f, L_f, C_g and L_g at one point and row."""
    with torch.no_grad():
        u = torch.cat([probe.exact(w, row), probe.drawn(w, row, samples, generator)[0]])
    return [
        *_derivatives(lambda x: probe.outer(x, row), u, generator),
        *_derivatives(lambda x: probe.exact(x.reshape(w.shape), row), w.reshape(1, -1), generator),
    ]


def _variances(probe: _Probe, w: Tensor, rows: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Return sigma^2 and zeta^2 of rows [B1] at one point, as [B1, 2]. zeta^2 is a sum over directions of w."""
    directions = _directions(w.numel(), generator)
    state = generator.get_state()

    def deviations(at: Tensor) -> Tensor:
        return probe.drawn(at, rows, samples, generator.set_state(state)) - probe.exact(at, rows)[:, None]

    def mean_square(values: Tensor) -> Tensor:
        return values.detach().double().square().sum(dim=2).mean(dim=1)

    along = [
        mean_square(torch.autograd.functional.jvp(deviations, w, v.to(w.dtype).reshape(w.shape))[1]) for v in directions
    ]
    return torch.stack([mean_square(deviations(w)), torch.stack(along).sum(dim=0)], dim=1)


def _directions(d: int, generator: torch.Generator) -> Tensor:
    """Return directions v [d] whose v v' add up to the identity: unit vectors if d is small, else in expectation."""
    if d <= _PROBES:
        return torch.eye(d)
    return torch.randn(_PROBES, d, generator=generator, dtype=torch.float64) / _PROBES**0.5


def _derivatives(
    function: Callable[[Tensor], Tensor], points: Tensor, generator: torch.Generator
) -> tuple[float, float]:
    """Return the largest norms of the first and second derivatives of a row-wise function from [m, d] to [m, k]."""
    at = points.detach().requires_grad_()
    slope = torch.stack([_gradient(value.sum(), at) for value in function(at).unbind(dim=1)], dim=1)
    direction = torch.randn(at.shape, generator=generator, dtype=torch.float64)
    largest = []
    for _ in range(4):
        direction = torch.nn.functional.normalize(direction, dim=1)
        change = torch.stack([_gradient((part * direction).sum(), at) for part in slope.unbind(dim=1)], dim=1)
        change = change.detach().double()
        largest.append(_largest_norm(change))
        # The next direction is that of the value that changes most.
        direction = change[torch.arange(len(at)), change.norm(dim=2).argmax(dim=1)]
    return _largest_norm(slope.detach().double()), torch.tensor(largest, dtype=torch.float64).max().item()


def _largest_norm(matrices: Tensor) -> float:
    """Return the largest spectral norm of matrices [m, k, d], or NaN if an entry is not finite."""
    return torch.linalg.matrix_norm(matrices, 2).max().item() if matrices.isfinite().all() else math.nan


def _gradient(value: Tensor, at: Tensor) -> Tensor:
    """Return the gradient with respect to ``at``, which is differentiable, and 0 if the value does not depend on it."""
    if not value.requires_grad:
        return torch.zeros_like(at)
    return torch.autograd.grad(value, at, create_graph=True, materialize_grads=True)[0]
