"""Losses on several ranks of ``torch.distributed``.

Where a process group is initialised, a loss takes its step together with the other ranks, and k ranks with batches of B
come to the weights of one process with a batch of k·B: the table is one, rows sampled on two ranks are averaged, and
inner sets span the ranks. Nothing needs to be said for that; :func:`configure` says otherwise.

- Gradients are taken to be averaged over ranks, as ``DistributedDataParallel`` and ``fully_shard`` do. So is the value:
  the mean of ``loss.item()`` over ranks is the value of the step.
- Ranks may have batches of different sizes, also of size 0, as long as one has rows.
- In ``eval()`` mode and under ``torch.no_grad()`` a loss is that of the rank's own batch, and nothing is sent.
- All ranks need the same loss: where their rules, outer functions or options differ, all of them raise.
- A batch that one rank refuses, or whose f fails on one, raises on all of them, before any table has changed.
"""

from fcco.placement._configure import configure, full_state_dict, gather, snapshot
from fcco.placement._sharded_table import ShardedTable

__all__ = ["ShardedTable", "configure", "full_state_dict", "gather", "snapshot"]
