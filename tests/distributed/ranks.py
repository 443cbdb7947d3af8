"""Starting ranks for a test: processes on the loopback interface that are gone when the test is."""

import multiprocessing
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

# What takes a rank two seconds to import. Ranks are forks of one process, which has imported it and done no more.
IMPORTED = ["torch._dynamo", "torch.distributed.checkpoint", "torch.nn.parallel", "pytest", "fcco.losses"]


def preload():
    multiprocessing.set_forkserver_preload(IMPORTED)


def run_ranks(function, world, *arguments):
    """What ``function(rank, world, *arguments)`` returns on every rank of a gloo group."""
    preload()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _rank, (function, world, folder, arguments), nprocs=world, start_method="forkserver"
        )
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(world)]


def _rank(rank, function, world, folder, arguments):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        torch.save(function(rank, world, *arguments), Path(folder, f"{rank}.pt"))
        dist.barrier()
    finally:
        dist.destroy_process_group()
