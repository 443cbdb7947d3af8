"""Losses on several ranks of ``torch.distributed``.

If a process group is initialised, a loss takes its step together with the other ranks. k ranks with batches of B reach
the weights of one process with a batch of k·B: all ranks share one table, rows that two ranks sample are averaged, and
inner sets span the ranks. This needs no configuration; :func:`configure` changes it.

- Gradients must be averaged over ranks, as ``DistributedDataParallel`` and ``fully_shard`` do. The same holds for the
  value: the mean of ``loss.item()`` over ranks is the value of the step.
- Ranks may have batches of different sizes. A batch may be empty, as long as one rank has rows.
- In ``eval()`` mode and under ``torch.no_grad()`` the loss is that of the rank's own batch, and no message is sent.
- All ranks need the same loss: if their rules, outer functions or options differ, all of them raise an error.
- If one rank refuses its batch, or f fails on one rank, all ranks raise an error before any table changes.
"""

from fcco.placement._configure import configure, full_state_dict, gather, snapshot
from fcco.placement._sharded_table import ShardedTable

__all__ = ["ShardedTable", "configure", "full_state_dict", "gather", "snapshot"]
