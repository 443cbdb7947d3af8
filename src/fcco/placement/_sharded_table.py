"""A table of which every rank keeps a block of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fcco._table import ANOTHER_RANKS_ROWS, EXTRA_STATE, LEAVE_OUT, ROW_BUFFERS, InnerTable, pack_identity
from fcco.placement._messages import Group, Layout, all_gather, current_group, device_of


class ShardedTable(nn.Module):
    """A table of n rows over k ranks, each of which keeps a block of ⌈n/k⌉ rows (the last ranks fewer, or none).

    It is no :class:`fcco.InnerTable`: a rank can neither read nor write the rows of another. What this rank keeps is
    :attr:`block`, and :meth:`full` collects the whole.

    The block is not a buffer of this module, so that wrappers which broadcast the buffers of rank 0 do not overwrite
    it. In ``state_dict`` the rows are ``DTensor`` s, sharded by row, which ``torch.distributed.checkpoint`` saves and
    loads under any number of ranks. ``load_state_dict`` takes these, or whole tensors of n rows.

    Parameters
    ----------
    table : InnerTable
        The whole table, of which this rank's block is copied.
    group : Group
        The ranks.
    """

    def __init__(self, table: InnerTable, group: Group) -> None:
        super().__init__()
        self.n, self.dim, self.log = table.n, table.dim, table.log
        self.identity = table.identity
        self.group = group
        self.rows_a_rank = -(-table.n // group.size)
        self.first = min(group.rank * self.rows_a_rank, table.n)
        # In a tuple, which is not looked into for modules.
        self._held = (table.part(self.first, self.lengths[group.rank]),)

    def extra_repr(self) -> str:
        """Return n, dim and log, and which rank this is.

        Returns
        -------
        str
            What ``repr`` shows between the brackets.
        """
        return f"n={self.n}, dim={self.dim}, log={self.log}, rank {self.group.rank} of {self.group.size}"

    @property
    def lengths(self) -> list[int]:
        """How many rows each rank has."""
        starts = (min(rank * self.rows_a_rank, self.n) for rank in range(self.group.size))
        return [min(self.rows_a_rank, self.n - start) for start in starts]

    @property
    def block(self) -> InnerTable:
        """The rows of this rank, from ``first`` on."""
        group = current_group(Layout(group=self.group.handle))
        if group is None or group.size != self.group.size:
            raise RuntimeError(
                f"the table is sharded over {self.group.size} ranks, and there "
                f"{'is 1' if group is None else f'are {group.size}'} now: load a checkpoint into a new loss"
            )
        return self._held[0]

    @property
    def u(self) -> Tensor:
        """The values of this rank's rows."""
        return self._held[0].u

    @property
    def visits(self) -> Tensor:
        """Which of this rank's rows have been visited."""
        return self._held[0].visits

    @property
    def step(self) -> Tensor:
        """How many steps there have been."""
        return self._held[0].step

    def full(self) -> InnerTable:
        """Return a copy of the whole table, on every rank; all ranks call it together.

        Returns
        -------
        InnerTable
            The table, on the device of this rank's block.
        """
        block = self.block
        names = [name for name in ROW_BUFFERS if name in block._buffers]
        # By way of the group's device, since the loss may not have moved yet.
        columns = [getattr(block, name).to(device_of(self.group)) for name in names]
        every = [rows.to(block.u.device) for rows in all_gather(self.group, columns, self.lengths)]
        return block.with_rows(self.n, dict(zip(names, every, strict=True)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ShardedTable:
        self._held[0]._apply(fn, recurse)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, buffer in self._held[0].named_buffers():
            destination[prefix + name] = self._distributed(buffer) if name in ROW_BUFFERS else buffer.detach()
        destination[prefix + EXTRA_STATE] = pack_identity(self)

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
                error_msgs.append(
                    f"{prefix}{name}: the saved table has n={rows.shape[0]}, this one has n={self.n}{LEAVE_OUT}"
                )
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
