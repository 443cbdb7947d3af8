"""Ranks on this machine, and the losses whose messages are counted, timed and simulated."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

import fcco
from harness.traffic import Sizes

N, WIDTH = 10**5, 32
POSITIVE = 4  # every fourth row is positive


@dataclass(frozen=True)
class Subject:
    """A loss, what it is called with, and what its traffic depends on."""

    make: Callable[[int], torch.nn.Module]
    arguments: Callable[[Tensor], tuple[Tensor, ...]]  # of rows
    sizes: Sizes

    def step(self, loss_fn: torch.nn.Module, rows: Tensor) -> None:
        """Take one step."""
        loss_fn(*self.arguments(rows), rows).backward()


def scores(rows: Tensor) -> Tensor:
    """Return random positive scores that have a gradient."""
    return torch.rand(len(rows)).requires_grad_()


def embeddings(rows: Tensor) -> Tensor:
    """Return random embeddings that have a gradient."""
    return torch.randn(len(rows), WIDTH).requires_grad_()


SUBJECTS = {
    "CoupledLoss, SOX": Subject(
        lambda n: fcco.CoupledLoss(torch.log1p, n, rule=fcco.SOX(gamma=0.1)),
        lambda rows: (scores(rows),),
        Sizes(dim=1),
    ),
    "SoftmaxLoss": Subject(
        lambda n: fcco.losses.SoftmaxLoss(n),
        lambda rows: (scores(rows), torch.randn(len(rows), 8)),
        Sizes(dim=1),
    ),
    "AveragePrecisionLoss": Subject(
        lambda n: fcco.losses.AveragePrecisionLoss(n, n_pos=n // POSITIVE, rule=fcco.SOAP(gamma=0.5)),
        lambda rows: (scores(rows), rows % POSITIVE == 0),
        Sizes(dim=2, argument=4 + 1 + 8, gradients=(4,), outer=1 / POSITIVE),
    ),
    "NCALoss": Subject(
        lambda n: fcco.losses.NCALoss(n, rule=fcco.SOAP(gamma=0.5)),
        lambda rows: (embeddings(rows), rows % 2),
        Sizes(dim=2, argument=4 * WIDTH + 8 + 8, gradients=(4 * WIDTH,)),
    ),
    "ContrastiveLoss": Subject(
        lambda n: fcco.losses.ContrastiveLoss(n, rule=fcco.SOAP(gamma=0.7)),
        lambda rows: (embeddings(rows), embeddings(rows)),
        Sizes(dim=2, argument=2 * 4 * WIDTH + 8, gradients=(4 * WIDTH, 4 * WIDTH)),
    ),
}


def with_width(sizes: Sizes, width: int) -> Sizes:
    """Return the sizes of the same loss with embeddings of another width than WIDTH."""
    gradients = tuple(part // WIDTH * width for part in sizes.gradients)
    return replace(sizes, argument=sizes.argument - sum(sizes.gradients) + sum(gradients), gradients=gradients)


def dealt_rows(batch: int, ranks: int, n: int = N) -> Tensor:
    """Return random rows of which each rank has equally many positive ones."""
    owner, turn = torch.arange(batch) % ranks, torch.arange(batch) // ranks
    within = torch.randint(n // ranks // POSITIVE, (batch,)) * POSITIVE + turn % POSITIVE
    return owner * (n // ranks) + within


def run_ranks(function: Callable[..., Any], world: int, jobs: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Return, for every job, what every rank makes of it: ``function(rank, world, *job)``."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (function, world, folder, jobs), nprocs=world)
        made = [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(world)]
    return [list(results) for results in zip(*made, strict=True)]


def _rank(rank: int, function: Callable[..., Any], world: int, folder: str, jobs: list[tuple[Any, ...]]) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "index must be different for two views")  # random rows may repeat
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save([function(rank, world, *job) for job in jobs], Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
