"""Seeing every step of a table, whichever way the loss takes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fcco._checks import as_index
from fcco._coupled import CoupledLoss
from fcco._table import InnerTable
from fcco.distributed import ShardedTable
from fcco.distributed._comm import is_nothing


class Visit(NamedTuple):
    """One step of the table, one entry a position of the batch."""

    rows: Tensor  # [B1]
    estimate: Tensor  # [B1] or [B1, dim], of g (or log g)
    before: Tensor  # what the rows held; anything where they were not visited
    seen: Tensor  # [B1] of bool: visited before
    where: Tensor  # [B1] of bool: not padding


def engine_of(loss: nn.Module) -> CoupledLoss:
    """The one engine in a loss.

    Raises:
        ValueError: there is none, or there are several.
    """
    engines = [module for module in loss.modules() if isinstance(module, CoupledLoss)]
    if len(engines) != 1:
        raise ValueError(f"{type(loss).__name__} holds {len(engines)} tables, not one: pass the loss that is meant")
    return engines[0]


def table_of(engine: CoupledLoss) -> InnerTable:
    """The table of an engine, which must be all here.

    Raises:
        ValueError: it is sharded over ranks.
    """
    if isinstance(engine.table, ShardedTable):
        raise ValueError("diagnostics need all rows of a table, and this one is sharded over ranks")
    return engine.table


class Watch:
    """Calls ``on_visit`` after every step of an engine, until it is closed."""

    def __init__(self, engine: CoupledLoss, on_visit: Callable[[Visit], None]) -> None:
        self._engine, self._table, self._on_visit = engine, table_of(engine), on_visit
        self._pending: tuple[Tensor, Tensor, Tensor] | None = None
        self._handles = [
            engine.register_forward_pre_hook(self._before, with_kwargs=True),
            engine.register_forward_hook(self._after, with_kwargs=True),
        ]
        # Losses that work by hand on the CPU go past forward, and so past its hooks.
        self._closed, self._previous = False, engine.__dict__.get("track_arrays")
        engine.__dict__["track_arrays"] = self._track_arrays

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._closed = True
        # Others may watch the same engine, and be closed in any order.
        attributes = self._engine.__dict__
        while (last := attributes.get("track_arrays")) is not None and last.__self__._closed:
            if last.__self__._previous is None:
                del attributes["track_arrays"]
            else:
                attributes["track_arrays"] = last.__self__._previous

    def _read(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        table = self._table
        inside = rows.clamp(0, table.n - 1)  # rows out of range are for the engine to refuse
        return rows, table.read(inside, cold=0.0), table.visited(inside).bool()

    def _before(self, engine: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._pending = None
        if not (engine.training and torch.is_grad_enabled()):
            return
        device = self._table.u.device
        try:
            rows = self._rows_of(args[1] if len(args) > 1 else kwargs["index"], device)
        except (ValueError, TypeError):  # for the engine to refuse, together with other ranks if there are any
            return
        with torch.no_grad():
            self._pending = self._read(rows)

    def _rows_of(self, index: Any, device: torch.device) -> Tensor:
        if self._engine.rule.all_rows:
            return torch.arange(self._engine.n, device=device)
        if is_nothing(index):  # which a rank's part of a batch may be
            return torch.zeros(0, dtype=torch.int64, device=device)
        return as_index(index, device)

    def _after(self, engine: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Tensor) -> None:
        if self._pending is None:
            return
        rows, before, seen = self._pending
        self._pending = None
        weight = None if self._engine.rule.all_rows else kwargs.get("weight")
        # Losses hand over weights as shares of a total.
        where = torch.ones_like(seen) if weight is None else getattr(weight, "share", weight).detach() > 0
        with torch.no_grad():
            estimate = (args[0] if args else kwargs["inner"]).detach().reshape(before.shape)
            self._on_visit(Visit(rows, estimate.to(before.dtype), before, seen, where))

    def _track_arrays(self, inner: Any, rows: Any) -> tuple[Any, Any]:
        take_step = self._previous or partial(CoupledLoss.track_arrays, self._engine)
        if self._closed:
            return take_step(inner, rows)
        tensor = torch.from_numpy(rows)
        _, before, seen = self._read(tensor)
        result = take_step(inner, rows)
        estimate = torch.from_numpy(inner).to(before.dtype)
        self._on_visit(Visit(tensor, estimate, before, seen, torch.ones_like(seen)))
        return result
