"""What every loss is: an inner estimate from a batch, handed to the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from fcco._checks import NotFiniteError, shape_of
from fcco._coupled import CoupledLoss
from fcco._describe import fingerprint
from fcco._outer import Outer
from fcco._pool import EstimateFrom
from fcco._rules import Rule
from fcco._step import SharedEstimate
from fcco._table import InnerTable
from fcco.functional._checks import as_mask


@dataclass(frozen=True)
class Scale:
    """f(u) = factor * u; of log u, factor * log u."""

    factor: float = 1.0

    def __call__(self, u: Tensor) -> Tensor:
        return self.factor * u


def minus_share(log_u: Tensor) -> Tensor:
    """f = -u_1 / u_2, of log u."""
    return -(log_u[:, 0] - log_u[:, 1]).exp()


def as_values(values: Any) -> Tensor:
    """A list, an array or a tensor of numbers, as a tensor on the CPU."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"targets, labels, queries and relevances must be numbers, got {array.dtype}: number them first"
        )
    return torch.as_tensor(array if array.flags.writeable else array.copy())  # pandas lends its arrays read-only


def count_positives(target: Any, name: str = "target") -> tuple[int, int]:
    """How many examples there are, and how many of them are positive."""
    target = as_values(target)
    if target.dim() != 1:
        raise ValueError(f"{name} must have the shape [n], got {shape_of(target)}")
    mask = as_mask(target, name, target, name, signs=False)
    return len(mask), int(mask.sum())


def count_members(labels: Any, name: str) -> Tensor:
    """How many examples each class 0 ... C - 1 has."""
    labels = as_values(labels)
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.dim() != 1 or (labels < 0).any():
        raise ValueError(f"{name} must be [n] of integers from 0; number the classes first")
    return labels.bincount()


class Loss(nn.Module):
    """Base of the losses: ``forward`` makes an estimate, :attr:`coupled` turns it into a value with a gradient.

    In ``eval()`` mode a loss is the exact objective of the batch alone. What it knows of the training set, the table
    and the sizes of populations, is neither used nor changed, and ``index`` may be anything.
    """

    estimated_from: ClassVar[str] = "scores"
    """The argument that the inner estimates are made from, by which an overflow is named."""

    def __init__(self, outer: Outer, n: int, *, rule: Rule, dim: int = 1, log: bool = False) -> None:
        super().__init__()
        self.coupled = CoupledLoss(outer, n, dim, rule=rule, log=log)
        self.coupled.outer_may_fail = False
        self.table.identity = {"kind": type(self).__name__}
        if rule.all_rows:
            raise ValueError(
                f"{type(rule).__name__} asks for estimates of all n rows, and a loss makes those of its batch: "
                "use fcco.CoupledLoss"
            )
        if rule.needs_previous:
            raise ValueError(
                f"{type(rule).__name__} asks for estimates at two weights, and a loss makes one: use fcco.CoupledLoss"
            )

    @property
    def n(self) -> int:
        """Rows of the table: training examples."""
        return self.coupled.n

    @property
    def table(self) -> InnerTable:
        """The running estimates u."""
        return self.coupled.table

    def _identify(self, **known: Any) -> Self:
        """Say what the table's rows are of, as far as it is known: numbers, and tensors, which stand for their values.

        A saved state has it, and is loaded only where it is the same.
        """
        told = {name: fingerprint(value) if isinstance(value, Tensor) else value for name, value in known.items()}
        self.table.identity |= {name: value for name, value in told.items() if value is not None}
        return self

    def _with_outer(self, count: int) -> Self:
        """Say how many of the rows are ever outer ones; none counts as one, since a share of nothing is no number."""
        self.coupled.n_outer = max(count, 1)
        return self

    def _of_population(self, size: Any) -> Any:
        """What is known of the training set; None in ``eval()`` mode, where the batch is all there is."""
        return size if self.training else None

    def _loss(self, estimate: EstimateFrom, *columns: Any, index: Any, **options: Any) -> Tensor:
        """Return the loss of a batch, whose inner values ``estimate`` makes from a pool; options as ``pooled`` has."""
        call = partial(self.coupled.pooled, estimate, columns, index, name=self.estimated_from, options=vars(self))
        return self._naming_arguments(partial(call, **options))

    def _shared_loss(self, estimate: Callable[..., SharedEstimate], *columns: Any) -> Tensor:
        """Return the loss of a batch that says something of every row."""
        return self._naming_arguments(partial(self.coupled.shared, estimate, columns, options=vars(self)))

    def _naming_arguments(self, call: Callable[[], Tensor]) -> Tensor:
        """Call the engine; if the inner values overflow, name the argument that they were made from."""
        try:
            return call()
        except NotFiniteError as error:
            if error.name != "inner":
                raise
            name, place, value = self.estimated_from, error.place[:1], error.value
            message = f"{name}[{place[0]}] leads to an inner estimate of {value}, not a finite number"
            raise NotFiniteError(message, name, place, value) from None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Loss:
        # Sizes and totals of a population do not fit into half precision.
        def keep_precision(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            narrow = buffer.is_floating_point() and torch.finfo(moved.dtype).bits < 32
            return buffer.to(moved.device) if narrow else moved

        return super()._apply(keep_precision, recurse)
