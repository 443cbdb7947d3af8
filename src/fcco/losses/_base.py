"""What every loss is: an inner estimate from a batch, handed to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fcco._coupled import CoupledLoss, Outer
from fcco._rules import Rule
from fcco._table import InnerTable
from fcco.functional._inner import Estimate


@dataclass(frozen=True)
class Scale:
    """f(u) = factor * u; of log u, factor * log u."""

    factor: float = 1.0

    def __call__(self, u: Tensor) -> Tensor:
        return self.factor * u


class Loss(nn.Module):
    """Base of the losses: ``forward`` makes an estimate, :attr:`coupled` turns it into a value with a gradient."""

    def __init__(self, outer: Outer, n: int, *, rule: Rule, dim: int = 1, log: bool = False) -> None:
        super().__init__()
        self.coupled = CoupledLoss(outer, n, dim, rule=rule, log=log)

    @property
    def n(self) -> int:
        """Rows of the table: training examples."""
        return self.coupled.n

    @property
    def table(self) -> InnerTable:
        """The running estimates u."""
        return self.coupled.table

    def _finish(self, estimate: Estimate, index: Any) -> Tensor:
        return self.coupled(estimate.inner, index, weight=estimate.weight)
