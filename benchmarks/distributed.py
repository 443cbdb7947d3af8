"""What several ranks cost: bytes and messages a step next to the formulas of docs/scale.md, and time.

    python benchmarks/distributed.py [--quick]

Ranks are processes of this machine, over gloo on the loopback interface, one thread each. Times are ratios within this
run, the median over rounds; with fewer free cores than ranks they say nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import fcco
from harness.ranks import SUBJECTS, WIDTH, N, Subject, run_ranks
from harness.timing import median_seconds
from harness.traffic import recording


def table_bytes(n: int, ranks: int, dim: int, sharded: bool) -> float:
    """Bytes of the table that a rank has."""
    return (4 * dim + 1) * (n / ranks if sharded else n)


def count(rank: int, world: int, name: str, sharded: bool, batch: int, steps: int) -> tuple[float, float]:
    """Messages and bytes a step of this rank, on random rows."""
    torch.manual_seed(rank)
    subject = SUBJECTS[name]
    loss_fn = fcco.distributed.configure(subject.make(N), sharded=sharded)
    with recording() as sent:
        for _ in range(steps):
            subject.step(loss_fn, torch.randint(N, (batch,)))
    return len(sent) / steps, sum(message.sent(world) for message, _ in sent) / steps


def step_time(rank: int, world: int, sharded: bool, n: int, batch: int, rounds: int) -> float:
    """Median seconds of a step of a loss whose rows have all been visited."""
    loss_fn = fcco.distributed.configure(fcco.CoupledLoss(torch.log1p, n, rule=fcco.SOX(gamma=0.1)), sharded=sharded)
    loss_fn.table.u.fill_(1.0)
    loss_fn.table.visits.fill_(True)
    subject = SUBJECTS["CoupledLoss, SOX"]
    return median_time(lambda: subject.step(loss_fn, torch.randint(n, (batch,))), rounds)


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
        first, second = model(torch.cat([x, x + 0.1])).chunk(2)
        loss_fn(first, second, torch.randint(N, (batch,))).backward()
        optimizer.step()

    return world * batch / median_time(step, rounds)


def median_time(step: Callable[[], None], rounds: int) -> float:
    """Return the median seconds of a step that all ranks begin together."""
    return median_seconds(step, rounds, before=dist.barrier if dist.is_initialized() else None)


def labelled() -> list[tuple[str, Subject, bool, str]]:
    """Return every loss with either kind of table, and what to call it."""
    return [
        (name, subject, sharded, f"{name}, {'sharded' if sharded else 'replicated'}")
        for name, subject in SUBJECTS.items()
        for sharded in (False, True)
    ]


def report_traffic(steps: int, batch: int = 256, world: int = 4) -> None:
    print(f"a step of {world} ranks, {batch} rows each: counted, and as the formula says")
    print(f"{'':<34}{'messages':>12}{'formula':>9}{'bytes sent':>12}{'formula':>10}")
    jobs = [(name, sharded, batch, steps) for name, _, sharded, _ in labelled()]
    for (_, subject, sharded, label), ranks in zip(labelled(), run_ranks(count, world, jobs), strict=True):
        said = subject.sizes.step(world, batch, sharded)
        messages, sent = (statistics.mean(counts) for counts in zip(*ranks, strict=True))
        formula = f"{len(said):>9}{sent:>12.0f}{sum(message.sent(world) for message in said):>10.0f}"
        print(f"{label:<34}{messages:>12.0f}{formula}")


def report_prediction(n: int = 10**9, world: int = 64, batch: int = 256) -> None:
    print(f"\nas the formulas say, for n = {n:.0e} on {world} ranks of {batch} rows")
    print(f"{'':<34}{'table a rank':>14}{'bytes sent':>13}")
    for _, subject, sharded, label in labelled():
        held = table_bytes(n, world, subject.sizes.dim, sharded) / 1e6
        sent = sum(message.sent(world) for message in subject.sizes.step(world, batch, sharded))
        print(f"{label:<34}{held:>11.0f} MB{sent / 1e3:>10.0f} kB")


def report_times(rounds: int, largest: int) -> None:
    sizes = [n for n in (10**4, 10**6, 10**8) if n <= largest]
    kinds = [(False, 10**6), *((True, n) for n in sizes)]
    replicated, *by_n = [max(r) for r in run_ranks(step_time, 2, [(*kind, 256, rounds) for kind in kinds])]
    print(f"\nCoupledLoss, 2 ranks of 256 rows: {replicated * 1e3:.2f} ms a step with a replicated table of 10^6 rows")
    for n, seconds in zip(sizes, by_n, strict=True):
        print(f"sharded, n = {n:.0e}: {seconds * 1e3:.2f} ms, {seconds / replicated:.2f} times as long")
    one, two = (run_ranks(throughput, world, [(256, rounds)])[0] for world in (1, 2))
    print(f"\nexamples a second, ContrastiveLoss on a model of 1.6 million weights: {one[0]:.0f} of 1 rank, ", end="")
    print(f"{min(two):.0f} of 2: {min(two) / one[0]:.2f} times as many")


def main() -> None:
    parser = argparse.ArgumentParser(description="What several ranks cost.")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it runs")
    quick = parser.parse_args().quick
    report_traffic(steps=3 if quick else 20)
    report_prediction()
    report_times(rounds=5 if quick else 200, largest=10**6 if quick else 10**8)


if __name__ == "__main__":
    main()
