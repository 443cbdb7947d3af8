"""Contrastive objectives, on cosine similarities over a temperature, which may be learnt."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fcco.core.arrays import Array
from fcco.core.kernels import log_totals
from fcco.core.objective import FromEstimate
from fcco.core.outers import FromFunction, Logarithm, Outer
from fcco.core.weights import Pool, SelfTerm, Weights


class Views(NamedTuple):
    first: Array
    second: Array


class Contrastive(FromEstimate):
    """F = mean over both views a of log g_a, the mean over candidates c of e^((s(a, c) - s(a, a+)) / tau).

    The candidates are both views of all others, or across modalities only the other one, and with a self term also a+.
    """

    Columns: ClassVar[type[Any]] = Views
    outer: Outer = Logarithm()
    outputs, dim, log, self_relation, repels = 2, 2, True, 0, True

    def __init__(
        self,
        sizes: Any = None,
        tau: float | Tensor = 0.1,
        mode: Literal["two_views", "cross_modal"] = "two_views",
        term: SelfTerm = None,
    ) -> None:
        self.sizes = self.anchor_sizes = self.stratum_sizes = sizes
        self.total = None if sizes is None else float(sizes[0])
        self.tau, self.views, self.self_term = tau, 2 if mode == "two_views" else 1, term

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return learnt(self.tau)

    def weigh(self, x: Any, candidates: Any, pool: Pool, copies: Array | float) -> Weights:
        """Return what each candidate of a pool stands for; there is no mean over nobody."""
        w = super().weigh(x, candidates, pool, copies)
        return w if self.self_term else w._replace(known=w.known & (w.each[0] > 0))

    def estimate(self, anchors: Any, candidates: Any, weights: Array, own: Array | None) -> Array:
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
            columns.append(log_totals(torch.cat(terms, 1)))
        return torch.stack(columns, 1) - size.clamp(min=1).log()[:, None]

    def of_anchors(self, anchors: Any, k: int) -> Any:
        """Return the temperature of view k of the anchors."""
        return as_number(self.tau, anchors[0])


class TemperedViews(NamedTuple):
    first: Array
    second: Array
    tau: Array
    """[m, 2], the temperature of each view as the anchor."""


class RobustContrastive(Contrastive):
    """F = mean over both views a of tau_a (log g_a + rho), where the temperatures of the anchors are the sample too."""

    Columns, outputs = TemperedViews, 3

    def __init__(self, rho: float, sizes: Any = None, mode: Any = "two_views", term: SelfTerm = None) -> None:
        super().__init__(sizes, mode=mode, term=term)
        self.outer = FromFunction(Tempered(rho))

    def of_anchors(self, anchors: Any, k: int) -> Any:
        return anchors.tau[:, k, None]


class Tempered:
    """f = the mean over both views of tau (log u + rho)."""

    def __init__(self, rho: float) -> None:
        self.rho = rho

    def __call__(self, log_u: Tensor, rows: Tensor, tau: Tensor) -> Tensor:
        return (tau * (log_u + self.rho)).mean(1)


def unit(z: Tensor) -> Tensor:
    """Return vectors scaled to unit length, first by their largest entry, whose square could overflow or vanish."""
    return torch.nn.functional.normalize(z / z.detach().abs().amax(1, keepdim=True), eps=0.0)


def learnt(tau: float | Tensor) -> tuple[Tensor, ...]:
    """Return a temperature if it has a gradient."""
    return (tau,) if isinstance(tau, Tensor) and tau.requires_grad else ()


def as_number(tau: float | Tensor, like: Tensor) -> Any:
    """Return a temperature in a dtype."""
    return tau.reshape(()).to(like.dtype) if isinstance(tau, Tensor) else tau
