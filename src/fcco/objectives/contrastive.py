"""Contrastive objectives, on cosine similarities over a temperature, which may be learnt."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fcco.core.arrays import Array, counted, slots_of
from fcco.core.kernels import logsumexp
from fcco.core.objective import Objective
from fcco.core.outers import Logarithm, Outer
from fcco.core.weights import TINY, Pool, SelfTerm, Weights


class Views(NamedTuple):
    first: Array
    second: Array


class Contrastive(Objective):
    """F = mean over both views a of log g_a, the mean over candidates c of e^((s(a, c) - s(a, a+)) / tau).

    The candidates are both views of all others, or across modalities only the other one, and with a self term also a+.
    """

    Columns: ClassVar[type[Any]] = Views
    outer: Outer = Logarithm()
    outputs, dim, log, is_mean, repels = 2, 2, True, False, True

    def __init__(
        self,
        sizes: Any = None,
        temperature: float | Tensor = 0.1,
        mode: Literal["two_views", "cross_modal"] = "two_views",
        term: SelfTerm = None,
    ) -> None:
        self.sizes = self.anchor_sizes = self.stratum_sizes = sizes
        self.total = None if sizes is None else float(sizes[0])
        self.temperature, self.views, self.self_term = temperature, 2 if mode == "two_views" else 1, term

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return learnt(self.temperature)

    def weigh(self, x: Any, candidates: Any, pool: Pool, copies: Array | float) -> Weights:
        """Return what each candidate of a pool stands for; there is no mean over nobody."""
        w = super().weigh(x, candidates, pool, copies)
        return w if self.self_term else w._replace(known=w.known & (w.each[0] > 0))

    def estimate(self, anchors: Any, candidates: Any, weights: Array, own: Array | None = None) -> Array:
        (a, b), (c, d) = (tuple(map(unit, x[:2])) for x in (anchors, candidates))
        positive, log_weights = (a * b).sum(1)[:, None], weights.log()
        if self.sizes is not None and (own is None or self.self_term == "exact"):
            size = self.views * (self.sizes - 1) + (self.self_term is not None)
        else:  # the mean over those that are there
            size = self.views * weights.sum(1) + (0 if own is None else own)
        columns = []
        for k, (anchor, others) in enumerate([(a, (d, c)), (b, (c, d))]):
            tau = self.of_anchors(anchors, k)
            terms = [(anchor @ z.T - positive) / tau + log_weights for z in others[: self.views]]
            terms += [] if own is None else [own.log()[:, None]]
            columns.append(logsumexp(torch.cat(terms, 1)))
        return torch.stack(columns, 1) - size.clamp(min=1).log()[:, None]

    def of_anchors(self, anchors: Any, k: int) -> Any:
        """Return the temperature of view k of the anchors."""
        return as_number(self.temperature, anchors[0])


class TemperedViews(NamedTuple):
    first: Array
    second: Array
    tau: Array
    """[m, 2], the temperature of each view as the anchor."""


class RobustContrastive(Contrastive):
    """F = mean over both views a of tau_a (log g_a + rho), given the temperatures of the anchors."""

    Columns, outputs = TemperedViews, 3

    def __init__(self, rho: float, sizes: Any = None, mode: Any = "two_views", term: SelfTerm = None) -> None:
        super().__init__(sizes, mode=mode, term=term)
        self.rho = rho

    def tempered(self, tau: Tensor) -> RobustContrastive:
        """Return this objective with the temperatures of all anchors, [m, 2]."""
        objective = copy.copy(self)
        objective.outer = Tempered(tau, self.rho)
        return objective

    def of_anchors(self, anchors: Any, k: int) -> Any:
        return anchors.tau[:, k, None]

    def slope_in_temperature(self, step: Any) -> Tensor:
        """Return the derivatives of tau (log u + rho) in tau, [m, 2], of which a row that repeats has the mean.

        The gradient of a step is that in log g alone, of the mean over both views and all anchors.
        """
        weight = (step.share / (step.share.sum() + TINY))[:, None]
        slope = step.at + self.rho + 2 * step.gradients[2] / torch.where(weight > 0, weight, 1.0)
        slot, known = slots_of(step.rows), (step.share > 0).to(slope.dtype)
        total, count = (counted(slot, len(slot), part) for part in (slope.T * known, known))
        return (total / count.clamp(min=1))[:, slot].T


@dataclass(frozen=True, eq=False)
class Tempered(Outer):
    """f = the mean over both views of tau (log u + rho)."""

    tau: Tensor
    rho: float

    def value(self, u: Tensor, rows: Array, sample: Any = None) -> Tensor:
        return (self.tau * (u + self.rho)).mean(1)

    def slope(self, u: Tensor, rows: Array, sample: Any = None) -> Tensor:
        return self.tau / 2 + 0 * u


def unit(z: Tensor) -> Tensor:
    """Return vectors scaled to unit length, first by their largest entry, whose square could overflow or vanish."""
    return torch.nn.functional.normalize(z / z.detach().abs().amax(1, keepdim=True), eps=0.0)


def learnt(tau: float | Tensor) -> tuple[Tensor, ...]:
    """Return a temperature if it has a gradient."""
    return (tau,) if isinstance(tau, Tensor) and tau.requires_grad else ()


def as_number(tau: float | Tensor, like: Tensor) -> Any:
    """Return a temperature in a dtype."""
    return tau.reshape(()).to(like.dtype) if isinstance(tau, Tensor) else tau
