"""A table of which every rank has a block of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fcco._space import Rate
from fcco._table import ANOTHER_RANKS_ROWS, EXTRA_STATE, ROW_BUFFERS, InnerTable
from fcco.distributed._comm import Group, Layout, all_gather, current_group, device_of


class ShardedTable(InnerTable):
    """A table of n rows over k ranks, each of which has a block of ⌈n/k⌉ rows (the last ones fewer, or none).

    What every rank has is no buffer of this module, so that wrappers which broadcast the buffers of rank 0 do not
    overwrite it. In ``state_dict`` the rows are ``DTensor`` s, sharded by row, which ``torch.distributed.checkpoint``
    saves and loads under any number of ranks; ``load_state_dict`` takes these, or whole tensors of n rows.

    Args:
        table: the whole table, of which this rank's block is copied.
        group: the ranks.
    """

    def __init__(self, table: InnerTable, group: Group) -> None:
        nn.Module.__init__(self)
        self.n, self.dim, self.log = table.n, table.dim, table.log
        self.space, self.decays, self.identity = table.space, table.decays, table.identity
        self.group = group
        self.rows_a_rank = -(-table.n // group.size)
        self.first = min(group.rank * self.rows_a_rank, table.n)
        # In a tuple, which is not looked into for modules.
        self._held = (table.part(self.first, self.lengths[group.rank]),)

    def extra_repr(self) -> str:
        return f"n={self.n}, dim={self.dim}, log={self.log}, rank {self.group.rank} of {self.group.size}"

    @property
    def lengths(self) -> list[int]:
        """How many rows each rank has."""
        starts = (min(rank * self.rows_a_rank, self.n) for rank in range(self.group.size))
        return [min(self.rows_a_rank, self.n - start) for start in starts]

    @property
    def block(self) -> InnerTable:  # type: ignore[override]
        """The rows of this rank, from ``first`` on."""
        group = current_group(Layout(group=self.group.handle))
        if group is None or group.size != self.group.size:
            raise RuntimeError(
                f"the table is sharded over {self.group.size} ranks, and there "
                f"{'is 1' if group is None else f'are {group.size}'} now: load a checkpoint into a new loss"
            )
        return self._held[0]

    @property
    def u(self) -> Tensor:  # type: ignore[override]
        """The values of this rank's rows."""
        return self._held[0].u

    @property
    def visits(self) -> Tensor:  # type: ignore[override]
        """Which of this rank's rows have been visited."""
        return self._held[0].visits

    @property
    def step(self) -> Tensor:  # type: ignore[override]
        """How many steps there have been."""
        return self._held[0].step

    def read(self, rows: Tensor | None, cold: Tensor | float, dtype: torch.dtype | None = None) -> Tensor:
        """The values of some of this rank's rows, counted from ``first``."""
        return self.block.read(rows, cold, dtype)

    def visited(self, rows: Tensor | None) -> Tensor:
        """How often some of this rank's rows have been written, counted from ``first``."""
        return self.block.visited(rows)

    def write(self, rows: Tensor | None, values: Tensor, rate: Rate = 0.0, where: Tensor | None = None) -> None:
        """Set some of this rank's rows, counted from ``first``."""
        self.block.write(rows, values, rate, where)

    def promote(self, dtype: torch.dtype) -> None:
        """Hold the values in ``dtype`` if it is wider than the present one."""
        self._held[0].promote(dtype)

    def full(self) -> InnerTable:  # type: ignore[override]
        """A copy of the whole table, on every rank; all ranks call it together."""
        block = self.block
        names = [name for name in ROW_BUFFERS if name in block._buffers]
        # By way of the group's device, since the table may be offloaded to one that it has no messages from.
        columns = [getattr(block, name).to(device_of(self.group)) for name in names]
        every = [rows.to(block.u.device) for rows in all_gather(self.group, columns, self.lengths)]
        return block.with_rows(self.n, dict(zip(names, every, strict=True)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ShardedTable:
        self._held[0]._apply(fn, recurse)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, buffer in self._held[0].named_buffers():
            destination[prefix + name] = self._distributed(buffer) if name in ROW_BUFFERS else buffer.detach()
        destination[prefix + EXTRA_STATE] = self.get_extra_state()

    def _distributed(self, rows: Tensor) -> Tensor:
        from torch.distributed.device_mesh import DeviceMesh

        try:
            from torch.distributed.tensor import DTensor, Shard
        except ImportError:  # before torch 2.5
            from torch.distributed._tensor import DTensor, Shard  # type: ignore[attr-defined]
        group = torch.distributed.group.WORLD if self.group.handle is None else self.group.handle
        mesh = DeviceMesh.from_group(group, rows.device.type)  # type: ignore[arg-type]
        shape = torch.Size((self.n, *rows.shape[1:]))
        stride = (rows.shape[1], 1) if rows.dim() == 2 else (1,)
        return DTensor.from_local(rows.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        local = {key: value for key, value in state_dict.items() if key.startswith(prefix)}
        for name in ROW_BUFFERS:
            rows = local.get(prefix + name)
            if rows is None:
                continue
            if rows.shape[0] != self.n:
                error_msgs.append(f"{prefix}{name}: the saved table has n={rows.shape[0]}, this one has n={self.n}")
                return
            if not hasattr(rows, "to_local"):
                local[prefix + name] = rows[self.first :][: len(self.u)]
            elif self._is_from_here(rows.device_mesh):
                local[prefix + name] = rows.to_local()
            else:
                error_msgs.append(f"{prefix}{name}: {ANOTHER_RANKS_ROWS}")
                return
        self._held[0]._load_from_state_dict(
            local, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _is_from_here(self, mesh: Any) -> bool:
        """Whether a ``DTensor`` was made on this rank of as many: what is saved with one keeps its rank."""
        return mesh.size() == self.group.size and tuple(mesh.get_coordinate() or ()) == (self.group.rank,)
