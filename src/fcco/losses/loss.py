"""The shell of every loss: check, gather, step, commit; then value and gradient are attached to the outputs.

It is the only place that has state, and the only one that raises.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fcco._checks import NotFiniteError, as_index, as_rows, check_one_each, missing_index, reads_are_free
from fcco._table import InnerTable
from fcco.core.arrays import namespace
from fcco.core.objective import Objective
from fcco.core.rules import BSGD, Rule, is_per_row
from fcco.core.step import Batch, Step, as_batch, take_step
from fcco.losses.memory import OutputMemory
from fcco.losses.table import TableRows

_FLOATS = {torch.float32: np.float32, torch.float64: np.float64}


class ObjectiveLoss(nn.Module):
    """The loss of an objective.

    Parameters
    ----------
    objective : Objective
        The objective.
    n : int
        The number of rows of the table; most objectives have one for each training example.
    rule : Rule
        How rows are updated; see :class:`fcco.SOX`.
    memory : int, default 0
        How many recent outputs to remember of each stratum.
    """

    name = "scores"
    """The first column, in error messages."""

    def __init__(self, objective: Objective, n: int, *, rule: Rule, memory: int = 0) -> None:
        super().__init__()
        self.objective, self.rule, self.init, self.n_outer = objective, rule, rule.start, n
        self.table = InnerTable(n, objective.dim, objective.log, visits=is_per_row(rule.rate), decays=rule.decays)
        self.memory = OutputMemory(memory, objective) if memory else None
        self.is_frozen = False

    @property
    def n(self) -> int:
        """The number of rows of the table."""
        return self.table.n

    def forward(self, *columns: Tensor, index: Any = None) -> Tensor:
        """Return the loss of a batch, which in training is a step."""
        outputs = columns[: self.objective.outputs]
        takes_step = self.training and torch.is_grad_enabled()
        if takes_step and index is None and not isinstance(self.rule, BSGD):
            raise missing_index(f"{self.rule} keeps a row for every example")
        with torch.no_grad(), np.errstate(all="ignore"):
            step, batch = self.take(columns, index) if takes_step else self.exact(columns)
        return attach(step.value, outputs, step.gradients)

    def take(self, columns: Sequence[Tensor], index: Any) -> tuple[Step, Batch]:
        """Take a step."""
        objective, memory, table = self.objective, self.memory, self.table
        first = columns[0]
        if index is None:
            rows = torch.arange(len(first), device=first.device)
        else:
            rows = as_index(index, first.device)
            check_one_each(rows, first, self.name)
            as_rows(rows, self.n, first.device)
        numpy = self._uses_numpy(columns)
        dtype = torch.promote_types(first.dtype, table.u.dtype)
        arrays = [
            c.detach() if k >= objective.outputs or c.dtype == dtype else c.detach().to(dtype)
            for k, c in enumerate(columns)
        ]
        if numpy:
            arrays, rows = [a.numpy() for a in arrays], rows.numpy()
        batch = as_batch(objective, objective.Columns(*arrays), rows)
        view = TableRows(table, self.rule, self.init, self.n_outer, numpy=numpy)
        rings = recalled = None
        if memory is not None:
            memory.prepare(batch.x)
            rings = memory.as_arrays(objective, numpy=numpy)
            recalled = memory.recall(rings, objective, batch, knows_rows=index is not None, fixed=False)
        step = take_step(objective, self.rule, view, batch, recalled)
        self._check(step)
        if not self.is_frozen:
            if index is None:
                table.step.add_(1)
            else:
                view.write(step, fixed=False)
            if memory is not None:
                memory.remember(rings, objective, batch, step, recalled, knows_rows=index is not None)
        return step, batch

    def exact(self, columns: Sequence[Tensor]) -> tuple[Step, Batch]:
        """Return the objective of a batch by itself, as a step that is not written."""
        objective = self.objective.alone()
        arrays = [c.detach() for c in columns]
        rows = torch.arange(len(arrays[0]), device=arrays[0].device)
        batch = as_batch(objective, objective.Columns(*arrays), rows)
        return take_step(objective, BSGD(), FirstRows(), batch), batch

    def _uses_numpy(self, columns: Sequence[Tensor]) -> bool:
        """Return whether NumPy can take the step: values are free to read, and nothing is the caller's own."""
        objective = self.objective
        if not (objective.arrays and objective.outer.arrays and type(self.rule).__module__ == Rule.__module__):
            return False
        return (
            all(c.is_cpu and not c.is_neg() for c in columns)
            and columns[0].dtype in _FLOATS
            and reads_are_free(columns[0])
        )

    def _check(self, step: Step) -> None:
        """Raise if a value that is to be returned or kept is not finite."""
        for values in (step.value, *step.gradients):
            total = values.sum()
            if isinstance(total, Tensor) and not reads_are_free(total):
                torch._assert_async(total.isfinite(), f"{self.name} must give a finite loss and gradient")
            elif not math.isfinite(total):
                place = ()
                raise NotFiniteError(
                    f"{self.name} must give a finite loss and gradient; got {float(total)}",
                    self.name,
                    place,
                    float(total),
                )


class FirstRows:
    """The rows of a batch by itself."""

    def read(self, rows: Any, first: Any) -> Any:
        return first

    def rate(self, rows: Any) -> float:
        return 1.0

    def coverage(self, distinct: Any) -> float:
        return 1.0


def attach(value: Any, outputs: Sequence[Tensor], gradients: Sequence[Any]) -> Tensor:
    """Return a scalar with a value, and gradients in the outputs."""
    loss: Any = None
    for output, gradient in zip(outputs, gradients, strict=True):
        part = (gradient if isinstance(gradient, Tensor) else torch.from_numpy(gradient)).to(output.dtype).reshape(-1)
        term = torch.dot(output.reshape(-1) if output.dim() > 1 else output, part)
        loss = term if loss is None else loss + term
    loss.detach().copy_(value) if isinstance(value, Tensor) else loss.detach().fill_(float(value))
    if loss.requires_grad:
        loss.grad_fn.register_prehook(_refuse_second_derivatives)
    return loss


def _refuse_second_derivatives(grads: Sequence[Tensor]) -> None:
    if torch.is_grad_enabled():  # only in a backward pass with create_graph=True
        raise RuntimeError(
            "this loss has no second derivatives, since its gradient is worked out without a graph; use "
            "fcco.CoupledLoss with your own inner estimate"
        )
