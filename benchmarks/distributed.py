"""What several ranks cost: bytes and messages a step next to the formulas of docs/scale.md, and time.

    python benchmarks/distributed.py [--quick]

Ranks are processes of this machine, over gloo on the loopback interface, one thread each. Times are ratios within this
run, the median over rounds; with fewer free cores than ranks they say nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import fcco
from harness.timing import median_seconds

GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


@dataclass(frozen=True)
class Sizes:
    """What the traffic of a step depends on; the letters are those of docs/scale.md."""

    ranks: int  # k
    batch: int  # B, rows of every rank, all of them outer ones
    dim: int  # d, values a row of the table
    returned: int  # r, of what the rule makes: 1, or 2 where f is differentiated elsewhere (SOX)
    argument: int = 0  # a, bytes a row of the gathered arguments; 0: nothing is gathered
    gradient: int = 0  # b, those that are differentiable
    own_outer: bool = False  # whether f is the caller's, which ranks wait for before they write

    def messages(self, sharded: bool) -> int:
        """Collective operations a step, backward included."""
        return (3 if self.argument else 0) + (3 if sharded else 2) + self.own_outer

    def bytes(self, sharded: bool) -> float:
        """Bytes that a rank sends in a step, backward included; the mean, where it depends on who has which row."""
        k, rows = self.ranks, self.batch * (self.ranks - 1)
        pooled = 32 * (k - 1) + (self.argument + self.gradient) * rows if self.argument else 0
        waited = 32 * (k - 1) if self.own_outer else 0
        if sharded:
            return pooled + waited + 40 * (k - 1) + (8 + 4 * self.dim + 4 * self.dim * self.returned) * rows / k
        return pooled + waited + 32 * (k - 1) + (9 + 4 * self.dim) * rows


def table_bytes(n: int, ranks: int, dim: int, sharded: bool) -> float:
    """Bytes of the table that a rank has."""
    return (4 * dim + 1) * (n / ranks if sharded else n)


@contextmanager
def counting() -> Iterator[list[int]]:
    """Counts [messages, bytes sent to other ranks] of what goes through torch.distributed."""
    counts, gather, exchange = [0, 0], getattr(dist, GATHER), dist.all_to_all_single

    def counted_gather(every: Tensor, rows: Tensor, **options: Any) -> Any:
        counts[0] += 1
        counts[1] += rows.numel() * rows.element_size() * (dist.get_world_size() - 1)
        return gather(every, rows, **options)

    def counted_exchange(received: Tensor, rows: Tensor, of: list[int], to: list[int], **options: Any) -> Any:
        counts[0] += 1
        counts[1] += (sum(to) - to[dist.get_rank()]) * rows[:1].numel() * rows.element_size()
        return exchange(received, rows, of, to, **options)

    setattr(dist, GATHER, counted_gather)
    dist.all_to_all_single = counted_exchange  # type: ignore[assignment]
    try:
        yield counts
    finally:
        setattr(dist, GATHER, gather)
        dist.all_to_all_single = exchange


N, WIDTH = 10**5, 32
KINDS: dict[str, tuple[Callable[[], torch.nn.Module], Sizes]] = {
    "CoupledLoss, SOX": (lambda: fcco.CoupledLoss(torch.log1p, N), Sizes(0, 0, dim=1, returned=2, own_outer=True)),
    "ContrastiveLoss": (
        lambda: fcco.losses.ContrastiveLoss(N, rule=fcco.SOAP(gamma=0.7)),
        Sizes(0, 0, dim=2, returned=1, argument=2 * 4 * WIDTH + 8, gradient=2 * 4 * WIDTH),
    ),
    "SoftmaxLoss": (lambda: fcco.losses.SoftmaxLoss(N), Sizes(0, 0, dim=1, returned=1)),
}


def call(name: str, loss_fn: torch.nn.Module, batch: int, n: int = N) -> None:
    """One step on random rows."""
    rows = torch.randint(n, (batch,))
    if name == "ContrastiveLoss":
        arguments: tuple[Tensor, ...] = (
            torch.randn(batch, WIDTH, requires_grad=True),
            torch.randn(batch, WIDTH).requires_grad_(),
        )
    elif name == "SoftmaxLoss":
        arguments = (torch.randn(batch, requires_grad=True), torch.randn(batch, 8))
    else:
        arguments = (torch.rand(batch, requires_grad=True),)
    loss_fn(*arguments, rows).backward()


def count(rank: int, world: int, name: str, sharded: bool, batch: int, steps: int) -> tuple[float, float]:
    """Messages and bytes a step of this rank."""
    torch.manual_seed(rank)
    loss_fn = fcco.distributed.configure(KINDS[name][0](), sharded=sharded)
    with counting() as counts:
        for _ in range(steps):
            call(name, loss_fn, batch)
    return counts[0] / steps, counts[1] / steps


def step_time(rank: int, world: int, waits: bool, sharded: bool, n: int, batch: int, rounds: int) -> float:
    """Median seconds of a step of a loss whose rows have all been visited; whether ranks wait for f."""
    loss_fn = fcco.distributed.configure(fcco.CoupledLoss(torch.log1p, n), sharded=sharded)
    loss_fn.outer_may_fail = waits
    loss_fn.table.u.fill_(1.0)
    loss_fn.table.visits.fill_(True)
    return median_time(lambda: call("", loss_fn, batch, n), rounds)


def throughput(rank: int, world: int, batch: int, rounds: int) -> float:
    """Examples a second of all ranks, of a model that takes longer than its loss."""
    torch.manual_seed(rank)
    layers = [torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
    model: torch.nn.Module = torch.nn.Sequential(*layers, torch.nn.Linear(1024, WIDTH))
    model = DistributedDataParallel(model) if world > 1 else model
    loss_fn = fcco.distributed.configure(fcco.losses.ContrastiveLoss(N, rule=fcco.SOAP(gamma=0.7)), sharded=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(batch, 512)

    def step() -> None:
        optimizer.zero_grad()
        both = model(torch.cat([x, x + 0.1]))
        loss_fn(*both.chunk(2), torch.randint(N, (batch,))).backward()
        optimizer.step()

    return world * batch / median_time(step, rounds)


def median_time(step: Callable[[], None], rounds: int) -> float:
    """Return the median seconds of a step that all ranks begin together."""
    return median_seconds(step, rounds, before=dist.barrier if dist.is_initialized() else None)


def run_ranks(function: Callable[..., Any], world: int, jobs: list[tuple[Any, ...]]) -> list[list[Any]]:
    """For every job, what every rank makes of it."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (function, world, folder, jobs), nprocs=world)
        made = [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in range(world)]
    return [list(results) for results in zip(*made, strict=True)]


def _rank(rank: int, function: Callable[..., Any], world: int, folder: str, jobs: list[tuple[Any, ...]]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save([function(rank, world, *job) for job in jobs], Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def report_traffic(steps: int, batch: int = 256, world: int = 4) -> None:
    print(f"a step of {world} ranks, {batch} rows each: counted, and as the formula says")
    print(f"{'':<34}{'messages':>12}{'formula':>9}{'bytes sent':>12}{'formula':>10}")
    jobs = [(name, sharded, batch, steps) for name in KINDS for sharded in (False, True)]
    for (name, sharded, *_), ranks in zip(jobs, run_ranks(count, world, jobs), strict=True):
        sizes = Sizes(**{**vars(KINDS[name][1]), "ranks": world, "batch": batch})
        messages, sent = (statistics.mean(counts) for counts in zip(*ranks, strict=True))
        label = f"{name}, {'sharded' if sharded else 'replicated'}"
        formula = f"{sizes.messages(sharded):>9}{sent:>12.0f}{sizes.bytes(sharded):>10.0f}"
        print(f"{label:<34}{messages:>12.0f}{formula}")


def report_prediction(n: int = 10**9, world: int = 64, batch: int = 256) -> None:
    print(f"\nas the formulas say, for n = {n:.0e} on {world} ranks of {batch} rows")
    print(f"{'':<34}{'table a rank':>14}{'bytes sent':>13}")
    for name, (_, kind) in KINDS.items():
        sizes = Sizes(**{**vars(kind), "ranks": world, "batch": batch})
        for sharded in (False, True):
            held = table_bytes(n, world, sizes.dim, sharded) / 1e6
            label = f"{name}, {'sharded' if sharded else 'replicated'}"
            print(f"{label:<34}{held:>11.0f} MB{sizes.bytes(sharded) / 1e3:>10.0f} kB")


def report_times(rounds: int, largest: int) -> None:
    sizes = [n for n in (10**4, 10**6, 10**8) if n <= largest]
    kinds = [(False, False, 10**6), (True, False, 10**6), *((False, True, n) for n in sizes)]
    replicated, waiting, *by_n = [max(r) for r in run_ranks(step_time, 2, [(*kind, 256, rounds) for kind in kinds])]
    print(f"\nCoupledLoss, 2 ranks of 256 rows: {replicated * 1e3:.2f} ms a step with a replicated table of 10^6 rows")
    print(f"with an f that may fail: {waiting * 1e3:.2f} ms, {waiting / replicated:.2f} times as long")
    for n, seconds in zip(sizes, by_n, strict=True):
        print(f"sharded, n = {n:.0e}: {seconds * 1e3:.2f} ms, {seconds / replicated:.2f} times as long")
    one, two = (run_ranks(throughput, world, [(256, rounds)])[0] for world in (1, 2))
    print(f"\nexamples a second, ContrastiveLoss on a model of 1.6 million weights: {one[0]:.0f} of 1 rank, ", end="")
    print(f"{min(two):.0f} of 2: {min(two) / one[0]:.2f} times as many")


def main() -> None:
    parser = argparse.ArgumentParser(description="What several ranks cost.")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it runs")
    quick = parser.parse_args().quick
    report_traffic(steps=3 if quick else 50)
    report_prediction()
    report_times(rounds=5 if quick else 200, largest=10**6 if quick else 10**8)


if __name__ == "__main__":
    main()
