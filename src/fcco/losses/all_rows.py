"""Losses of which every batch estimates all rows of the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco.core.rules import Batch as Met
from fcco.core.rules import updated
from fcco.core.spaces import Rate, as_dtype
from fcco.core.step import ALONE, Batch, Step
from fcco.losses.loss import Call, Made, ObjectiveLoss, _plain_torch, _visit


class Update(NamedTuple):
    """What becomes of all rows, as in a step."""

    rows: Tensor
    before: Tensor
    new: Tensor
    at: Tensor
    rate: Rate
    written: Tensor
    inner: Tensor


class AllRowsLoss(ObjectiveLoss):
    """A loss whose rows are not those of examples: every batch updates all of them, and there is no index."""

    _has_index = False

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective; raise if a call is not what the loss takes.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : None
            There is none.

        Returns
        -------
        tuple
            The columns, and None.
        """
        return self._checked(*columns), None

    def _checked(self, *columns: Any) -> Sequence[Tensor]:
        """Return the columns of a call; raise if they are not legal."""
        raise NotImplementedError

    def _step(self, columns: Sequence[Tensor], view: Any) -> tuple[Tensor, Tensor, Update]:
        """Return the value and the gradient of a step, from the examples of all ranks with outputs in its dtype."""
        raise NotImplementedError

    def _update(self, view: Any, inner: Tensor, present: Tensor | None = None) -> Update:
        """Return what rows become; those that are not present are estimated by what they hold."""
        rows = torch.arange(self.n, device=inner.device)
        before, rate = view.read(rows, inner), view.rate(rows)
        if present is not None:
            inner = torch.where(present, inner, before)
        new, at = updated(self.rule, before, Met(inner, rate, lambda: 1.0, self.table.block.space))
        return Update(rows, before, new, at, rate, new > -math.inf if present is None else present, inner)

    def _take(self, call: Call) -> Made:
        columns, rows = call.columns, call.rows
        view = self._view(call.ranks or ALONE)
        x = self.objective.Columns(as_dtype(columns[0].detach(), self._dtype(columns)), *columns[1:])
        nothing: Any = None
        with _plain_torch(rows.device):
            value, gradient, update = self._step(x, view)
        step = Step(value, (gradient,), update.written, *update, None, None, None, self.objective.outer)
        self._check_finite(step, Batch(x, rows, nothing, nothing, None, None, slice(None), True), call.ranks)
        if not self.is_frozen:
            view.write(step)
        for observer in self.observers:
            observer(_visit(step, view, slice(None)))
        return Made.of(step, None)
