"""A step's traffic on 8 to 1,024 ranks, next to the all-reduce of the gradient: a simulation of docs/scale.md.

    python benchmarks/scale_simulation.py [--batch 256] [--latency 1e-5] [--bandwidth 12.5e9] [--check 2 4]

The messages are those of `harness/traffic.py`, which the tests compare with a run, byte by byte. A gathering
takes k - 1 rounds of a ring, and a sum 2 (k - 1), such as that of the gradient of P weights in single precision. A
round takes latency + bytes / bandwidth. Nothing overlaps in this model.

`--check` fits latency and bandwidth to plain collectives of so many ranks on this machine, over gloo, and compares the
predicted time of a step's messages with the measured one. With fewer cores than ranks, the ranks wait for each other.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import fcco
from harness.ranks import SUBJECTS, dealt_rows, run_ranks, with_width
from harness.traffic import GATHER, Kind, Message, Sizes, recording

RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WEIGHTS = (10**6, 25 * 10**6, 10**9)  # P, of a small model, of a ResNet-50, of a language model
MOST_RANKS = 10**6
LOSSES = {
    "average precision": SUBJECTS["AveragePrecisionLoss"].sizes,
    "NCA, width 128": with_width(SUBJECTS["NCALoss"].sizes, 128),
    "contrastive, width 512": with_width(SUBJECTS["ContrastiveLoss"].sizes, 512),
}


@dataclass(frozen=True)
class Network:
    """How long a message takes."""

    latency: float
    """Seconds of a round without any bytes."""
    bandwidth: float
    """Bytes a second that a rank sends."""

    def seconds(self, messages: Iterable[Message], ranks: int) -> float:
        """Return the time of messages that follow each other."""
        return sum(
            self.rounds(message, ranks) * self.latency + message.sent(ranks) / self.bandwidth for message in messages
        )

    @staticmethod
    def rounds(message: Message, ranks: int) -> int:
        """Return how often the ranks send in turn."""
        return (2 if message.kind == "all_reduce" else 1) * (ranks - 1)


def gradient(weights: int) -> list[Message]:
    """Return the message in which DistributedDataParallel averages the gradient."""
    return [Message("all_reduce", 4.0 * weights)]


def sent(messages: Iterable[Message], ranks: int) -> float:
    """Return the bytes that a rank sends."""
    return sum(message.sent(ranks) for message in messages)


def crossing(sizes: Sizes, batch: int, sharded: bool, weights: int, *, gathering: bool) -> int | None:
    """Return the least number of ranks from which on a step sends more bytes than the gradient does.

    Parameters
    ----------
    sizes, batch, sharded
        The loss, the rows of a rank, and the kind of table.
    weights : int
        P, of the model.
    gathering : bool
        Whether the gathered batches count, or only the table.

    Returns
    -------
    int or None
        The number of ranks, or None if it is more than a million.
    """

    def exceeds(ranks: int) -> bool:
        own = sizes.step(ranks, batch, sharded) if gathering else sizes.table(ranks, batch, sharded)
        return sent(own, ranks) > sent(gradient(weights), ranks)

    # The ratio of the two only grows with the number of ranks.
    ranks = bisect_left(range(MOST_RANKS + 1), True, lo=2, key=exceeds)
    return ranks if ranks <= MOST_RANKS else None


def millions(weights: int) -> str:
    """Return a number of weights in words."""
    return f"{weights / 1e6:,.0f} million"


def print_bytes(batch: int) -> None:
    """Print the bytes that a rank sends in a step."""
    shown = [ranks for ranks in RANKS if ranks >= 8]
    print(f"bytes that a rank sends in a step, {batch} rows a rank, in kB")
    print(f"{'ranks':<34}" + "".join(f"{ranks:>9}" for ranks in shown))
    for weights in WEIGHTS:
        _print_row(f"gradient of {millions(weights)} weights", [sent(gradient(weights), ranks) for ranks in shown])
    for name, sizes in LOSSES.items():
        _print_row(f"{name}: gathering", [sent(sizes.gathering(ranks, batch), ranks) for ranks in shown])
        for label, sharded in (("replicated", False), ("sharded", True)):
            _print_row(f"  table, {label}", [sent(sizes.table(ranks, batch, sharded), ranks) for ranks in shown])


def _print_row(label: str, values: Sequence[float]) -> None:
    print(f"{label:<34}" + "".join(f"{value / 1e3:>9.0f}" for value in values))


def print_seconds(batch: int, network: Network) -> None:
    """Print the time of a step's messages."""
    shown = [ranks for ranks in RANKS if ranks >= 8]
    print(f"\nmilliseconds, latency {network.latency * 1e6:.0f} us, bandwidth {network.bandwidth / 1e9:g} GB/s")
    rows = {f"gradient of {millions(weights)} weights": [gradient(weights)] * len(shown) for weights in WEIGHTS}
    for name, sizes in LOSSES.items():
        rows[f"{name}, replicated"] = [sizes.step(ranks, batch, False) for ranks in shown]
        rows[f"{name}, sharded"] = [sizes.step(ranks, batch, True) for ranks in shown]
    for label, steps in rows.items():
        times = [network.seconds(step, ranks) for step, ranks in zip(steps, shown, strict=True)]
        print(f"{label:<34}" + "".join(f"{seconds * 1e3:>9.2f}" for seconds in times))


def print_crossings(batch: int) -> None:
    """Print from how many ranks on a step sends more bytes than the gradient."""
    print("\nranks from which on more bytes are sent than for the gradient; '-': more than a million")
    print(f"{'weights':<24}" + "".join(f"{millions(weights):>16}" for weights in WEIGHTS))
    for name, sizes in LOSSES.items():
        for label, sharded in (("replicated", False), ("sharded", True)):
            for what, gathering in (("table", False), ("table and gathering", True)):
                found = [crossing(sizes, batch, sharded, weights, gathering=gathering) for weights in WEIGHTS]
                text = "".join(f"{'-' if ranks is None else format(ranks, ','):>16}" for ranks in found)
                print(f"{name if not (sharded or gathering) else '':<24}{text}   {label}: {what}")


def draw(batch: int, path: Path) -> None:
    """Draw the bytes of a step against the number of ranks."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.5), layout="constrained")
    axes = figure.subplots()
    for weights, style in zip(WEIGHTS, (":", "--", "-"), strict=True):
        label = f"gradient, {millions(weights)} weights"
        axes.plot(RANKS, [sent(gradient(weights), ranks) for ranks in RANKS], style, color="0.5", label=label)
    for (name, sizes), colour in zip(LOSSES.items(), ("C0", "C1", "C2"), strict=True):
        steps = [sent(sizes.step(ranks, batch, True), ranks) for ranks in RANKS]
        axes.plot(RANKS, steps, "o-", color=colour, label=f"{name}: gathering and sharded table")
    sizes = LOSSES["contrastive, width 512"]
    for label, sharded, style in (("replicated", False, "s-"), ("sharded", True, "s--")):
        tables = [sent(sizes.table(ranks, batch, sharded), ranks) for ranks in RANKS]
        axes.plot(RANKS, tables, style, color="C3", markersize=4, label=f"contrastive: {label} table alone")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
    axes.set_xlabel(f"ranks, with {batch} rows each")
    axes.set_ylabel("bytes that a rank sends in a step")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fcco"}):
        figure.savefig(path, metadata={"Date": None})


def ping(rank: int, world: int, kind: Kind, part: int, rounds: int) -> list[float]:
    """Return the seconds of plain collectives with ``part`` bytes for each rank, and work in between as in a step."""
    rows, work = torch.zeros(world, part, dtype=torch.uint8), torch.ones(256, 256)
    with recording() as seen:
        for _ in range(rounds):
            dist.barrier()
            work @ work
            if kind == "all_gather":
                getattr(dist, GATHER)(torch.empty_like(rows.flatten()), rows[0])
            else:
                dist.all_reduce(rows)
    return [seconds for _, seconds in seen]


def step_seconds(rank: int, world: int, name: str, sharded: bool, batch: int, rounds: int) -> list[list[float]]:
    """Return the seconds of every message, for every step."""
    torch.manual_seed(rank)
    subject = SUBJECTS[name]
    loss_fn, steps = fcco.distributed.configure(subject.make(10**5), sharded=sharded), []
    for _ in range(rounds):
        rows = dealt_rows(batch, world)
        dist.barrier()
        with recording() as seen:
            subject.step(loss_fn, rows)
        steps.append([seconds for _, seconds in seen])
    return steps


def shortest(ranks: Sequence[Any]) -> np.ndarray:
    """Return the shortest time of each message over ranks and rounds.

    The rank that comes last does not wait for others, and whatever else the machine does only adds to a time.
    """
    return np.asarray(np.min([np.min(times, 0) for times in ranks], 0))


def fit(world: int, rounds: int) -> Network:
    """Return the network that explains plain collectives best, by least squares of relative errors."""
    kinds: tuple[Kind, ...] = ("all_gather", "all_reduce")
    jobs = [(kind, part, rounds) for kind in kinds for part in (32, 1024, 16384, 65536, 262144)]
    times = [float(shortest(ranks)) for ranks in run_ranks(ping, world, jobs)]
    messages = [Message(kind, part if kind == "all_gather" else part * world) for kind, part, _ in jobs]
    rounds_and_bytes = np.array([[Network.rounds(message, world), message.sent(world)] for message in messages])
    latency, per_byte = np.linalg.lstsq(rounds_and_bytes / np.array(times)[:, None], np.ones(len(jobs)))[0]
    return Network(float(latency), 1 / max(float(per_byte), 1e-15))


def check(world: int, batch: int, rounds: int) -> None:
    """Compare predicted and measured times of a step's messages on this machine."""
    network = fit(world, rounds)
    print(f"\n{world} ranks: latency {network.latency * 1e6:.0f} us, bandwidth {network.bandwidth / 1e6:.0f} MB/s")
    print(f"{'':<34}{'predicted ms':>14}{'measured ms':>13}{'ratio':>8}")
    jobs = [(name, sharded, batch, rounds) for name in SUBJECTS for sharded in (False, True)]
    for (name, sharded, *_), ranks in zip(jobs, run_ranks(step_seconds, world, jobs), strict=True):
        measured = float(shortest(ranks).sum())
        predicted = network.seconds(SUBJECTS[name].sizes.step(world, batch, sharded), world)
        label = f"{name}, {'sharded' if sharded else 'replicated'}"
        print(f"{label:<34}{predicted * 1e3:>14.2f}{measured * 1e3:>13.2f}{predicted / measured:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A step's traffic on many ranks.")
    parser.add_argument("--batch", type=int, default=256, help="rows of a rank (default: 256)")
    parser.add_argument("--latency", type=float, default=1e-5, help="seconds of a round (default: 1e-5)")
    parser.add_argument("--bandwidth", type=float, default=12.5e9, help="bytes a second of a rank (default: 12.5e9)")
    parser.add_argument("--picture", type=Path, help="draw the bytes into this file")
    parser.add_argument("--check", type=int, nargs="+", default=[], help="compare with so many ranks on this machine")
    parser.add_argument("--rounds", type=int, default=50, help="of --check (default: 50)")
    given = parser.parse_args()
    print_bytes(given.batch)
    print_seconds(given.batch, Network(given.latency, given.bandwidth))
    print_crossings(given.batch)
    if given.picture is not None:
        draw(given.batch, given.picture)
    for ranks in given.check:
        check(ranks, given.batch, given.rounds)


if __name__ == "__main__":
    main()
