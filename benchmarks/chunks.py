"""Peak memory and time of a large batch in chunks, beside the plain batch and accumulation with micro-batches.

    python benchmarks/chunks.py [--rounds 5] [--quick]

The peak is that of the live tensors that a step makes (forward pass, loss, backward pass), gradients of weights
included. *Accumulation* has micro-batches as large as a chunk; its gradient is wrong for this loss. The *peak ratio* is
that of chunks to accumulation plus the outputs and their gradient, which the loss of the whole batch needs. Times are
CPU times, the least over rounds that alternate between the steps, as ratios to the plain batch.
"""

from __future__ import annotations

import argparse
import gc
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fcco import forward_in_chunks
from harness.timing import Step, timed


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors made inside, while they live, beside those that there are before."""

    def __init__(self, before: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, Tensor) and (key := leaf.untyped_storage()._cdata) not in self.known:
                self.known.add(key)
                self.now += leaf.untyped_storage().nbytes()
                weakref.finalize(leaf.untyped_storage(), self.forget, key, leaf.untyped_storage().nbytes())
        self.peak = max(self.peak, self.now)
        return out

    def forget(self, key: int, count: int) -> None:
        self.known.discard(key)
        self.now -= count


def peak_of(step: Step, before: Iterable[Tensor]) -> int:
    """Return the largest number of bytes that a step holds at once, beside the tensors that there are before."""
    gc.collect()
    with LiveBytes(before) as live:
        step()
    return live.peak


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
        self.branch = nn.Sequential(*layers, nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.branch(x))


def mlp() -> nn.Module:
    layers = [nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Linear(512, 16))


def deep() -> nn.Module:
    layers = (layer for _ in range(10) for layer in (nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256)))
    return nn.Sequential(nn.Linear(64, 256), *layers, nn.Linear(256, 16))


def convolutional() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1)]
    layers += [nn.GroupNorm(4, 32), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 16))


def residual() -> nn.Module:
    layers = [nn.Conv2d(3, 32, 3, padding=1), Residual(32), nn.Conv2d(32, 64, 3, 2, 1), Residual(64), Residual(64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 16))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (64,)),
    "deep": (deep, (64,)),
    "convolutional": (convolutional, (3, 16, 16)),
    "residual": (residual, (3, 16, 16)),
}
# Net, rows, rows of a chunk.
CASES = [("mlp", 4096, 16), ("mlp", 4096, 512), ("deep", 4096, 16), ("deep", 4096, 256)]
CASES += [("convolutional", 1024, 16), ("convolutional", 1024, 128), ("residual", 512, 16), ("residual", 512, 64)]


def loss_of(outputs: Tensor) -> Tensor:
    """Return a loss that compares all rows in little memory."""
    scores = outputs[:, 0]
    return (scores.logcumsumexp(0) - scores).mean() + outputs.square().mean()


def steps(net: nn.Module, x: Tensor, chunk_size: int) -> dict[str, Step]:
    """Return the steps to compare, and that of a single chunk."""

    def on_one_graph(forward: Callable[[], Tensor]) -> Step:
        def step() -> None:
            net.zero_grad()
            loss_of(forward()).backward()

        return step

    def accumulate() -> None:
        net.zero_grad()
        for part in x.split(chunk_size):
            (loss_of(net(part)) * (len(part) / len(x))).backward()

    return {
        "plain": on_one_graph(lambda: net(x)),
        "accumulation": accumulate,
        "chunks": on_one_graph(lambda: forward_in_chunks(net, x, chunk_size=chunk_size)),
        "one chunk": on_one_graph(lambda: net(x[:chunk_size])),
    }


def measure(name: str, rows: int, chunk_size: int, rounds: int) -> str:
    """Return a row of the table."""
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(rows, *shape)
    compared = steps(net, x, chunk_size)
    peaks, least = {}, dict.fromkeys(compared, float("inf"))
    for kind, step in compared.items():
        step()  # what is allocated once
        net.zero_grad()
        peaks[kind] = peak_of(step, [x, *net.parameters()]) / 1e6
    for _ in range(rounds):
        for kind, step in compared.items():
            least[kind] = min(least[kind], 1e3 * timed(step, time.process_time)[0])
    outputs = 2 * rows * 16 * 4 / 1e6
    ratio = peaks["chunks"] / (peaks["accumulation"] + outputs)
    return (
        f"| {name} | {rows:,} | {chunk_size:,} | {peaks['plain']:.1f} | {peaks['accumulation']:.1f} "
        f"| {peaks['chunks']:.1f} | {ratio:.2f} | {least['one chunk']:.1f} "
        f"| {least['accumulation'] / least['plain']:.2f} | {least['chunks'] / least['plain']:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory and time of a large batch in chunks.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    heads = ["net", "batch", "chunk", "plain, MB", "accumulation, MB", "chunks, MB", "peak ratio"]
    heads += ["one chunk, ms", "accumulation, time ratio", "chunks, time ratio"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name, rows, chunk_size in [("mlp", 64, 16), ("residual", 32, 8)] if given.quick else CASES:
        print(measure(name, rows, chunk_size, 1 if given.quick else given.rounds), flush=True)


if __name__ == "__main__":
    main()
