"""What the engine costs: next to no table at all, as n grows, in memory, and in operations dispatched.

    python benchmarks/engine.py [--quick]

Every figure is a ratio within this run, on one thread: the median over rounds that alternate between the two sides.
"""

from __future__ import annotations

import argparse
import gc
import resource
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fcco
from harness.timing import Step, compare, timed


def log_outer(u: Tensor) -> Tensor:
    return u.log()


def ratio_outer(u: Tensor) -> Tensor:
    return -u[:, 0] / u[:, 1]


def batches(n: int, size: int, count: int = 64) -> list[Tensor]:
    """Distinct rows, spread over the whole table."""
    spread = max(n // 10**6, 1)
    return [torch.randperm(n // spread)[:size] * spread for _ in range(count)]


def make_step(loss: Callable[..., Tensor], inner: Tensor, indices: list[Tensor]) -> Step:
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        inner.grad = None
        loss(inner, indices[turn % len(indices)]).backward()

    return step


def against_no_table(size: int, dim: int, rule: fcco.Rule, compiled: bool, rounds: int, repeats: int) -> None:
    """CoupledLoss over outer(inner).mean(), forward and backward."""
    outer = log_outer if dim == 1 else ratio_outer
    n = 100_000
    inner = (torch.rand(size) if dim == 1 else torch.rand(size, dim)).add_(0.1).requires_grad_()
    loss_fn: Callable[..., Tensor] = fcco.CoupledLoss(outer, n, dim, rule=rule)
    plain: Callable[..., Tensor] = lambda inner, index: outer(inner).mean()  # noqa: E731
    if compiled:
        loss_fn, plain = torch.compile(loss_fn, fullgraph=True), torch.compile(plain, fullgraph=True)
    indices = batches(n, size)
    ours, theirs, ratio = compare(make_step(loss_fn, inner, indices), make_step(plain, inner, indices), rounds, repeats)
    name = f"{type(rule).__name__}, {size} x {dim}{', compiled' if compiled else ''}"
    print(f"{name:<28}{ours * 1e6:>9.0f} µs{theirs * 1e6:>9.0f} µs{ratio:>9.2f}")


def growth_with_n(size: int, rounds: int, repeats: int) -> None:
    """Step time at 10^8 rows over step time at 10^3 rows (of which every one is visited before)."""

    def step_at(n: int) -> Step:
        loss_fn = fcco.CoupledLoss(log_outer, n, rule=fcco.SOX(gamma=0.1))
        loss_fn.table.visits.fill_(True)
        loss_fn.table.u.fill_(1.0)
        return make_step(loss_fn, torch.rand(size).add_(0.1).requires_grad_(), batches(n, size))

    large, small, ratio = compare(step_at(10**8), step_at(10**3), rounds, repeats)
    print(f"{f'SOX, {size} x 1':<28}{large * 1e6:>9.0f} µs{small * 1e6:>9.0f} µs{ratio:>9.2f}")


def size_of_a_large_table() -> None:
    """Seconds and bytes of a table of 10^8 rows."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, table = timed(lambda: fcco.InnerTable(10**8))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e9
    held = sum(buffer.numel() * buffer.element_size() for buffer in table.buffers()) / 1e9
    print(f"made in {seconds:.2f} s, buffers of {held:.2f} GB; the process grew by {grown:.2f} GB")


class _Counter(TorchDispatchMode):
    """Counts the operations that torch dispatches, other than views, which launch nothing on a device."""

    VIEWS = frozenset(
        {"view", "expand", "unsqueeze", "squeeze", "t", "transpose", "slice", "select", "detach", "alias"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ not in self.VIEWS
        return func(*args, **(kwargs or {}))


def dispatched(step: Callable[[], Tensor]) -> int:
    """Return the number of operations of one step, forward and backward, after a first one."""
    step().backward()
    with _Counter() as counter:
        step().backward()
    return counter.count


def count_operations(size: int = 64) -> None:
    """Print the operations of a step; their number stands for its cost on an accelerator."""
    n, half = 10_000, size // 2
    scores, rows = torch.randn(size).requires_grad_(), torch.arange(size)
    target, time = (torch.arange(size) < half).long(), torch.rand(size)
    precision = fcco.losses.AveragePrecisionLoss(n, 1000, memory=0)
    push, cox = fcco.losses.PNormPushLoss(n, memory=0), fcco.losses.CoxLoss(n, 1000, memory=0)
    own = {str(rule): fcco.CoupledLoss(log_outer, n, rule=rule) for rule in (fcco.SOX(0.1), fcco.SOAP(0.1))}
    steps: dict[str, Callable[[], Tensor]] = {
        "no table": lambda: log_outer(scores.exp()).mean(),
        **{name: partial(lambda loss: loss(scores.exp(), rows), loss) for name, loss in own.items()},
        "cross entropy": lambda: F.binary_cross_entropy_with_logits(scores, target.float()),
        "average precision": lambda: precision(scores, target, rows),
        "p-norm push": lambda: push(scores, target, rows),
        "Cox": lambda: cox(scores, time, target, rows),
    }
    # What NumPy works out on the CPU is not dispatched, and is not what an accelerator would run.
    with patch.object(fcco.ObjectiveLoss, "_takes_arrays", lambda *_: False):
        for name, step in steps.items():
            print(f"{name:<40}{dispatched(step):>6}")
    for name, loss in own.items():
        # On the meta device nothing can be read, as on an accelerator: rows may repeat, and may be new.
        on_device, there, rows_there = loss.to("meta"), scores.detach().to("meta").requires_grad_(), rows.to("meta")
        step = partial(lambda loss, scores, rows: loss(scores.exp(), rows), on_device, there, rows_there)
        print(f"{name + ', accelerator':<40}{dispatched(step):>6}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What the engine costs, as ratios within one run.")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it runs")
    quick = parser.parse_args().quick
    rounds, repeats = (3, 20) if quick else (15, 1000)
    torch.set_num_threads(1)
    torch.manual_seed(0)

    print("table of 10^8 rows, dim 1")
    size_of_a_large_table()
    print(f"\n{'forward + backward':<28}{'fcco':>12}{'no table':>12}{'ratio':>9}")
    for compiled in (False, True):
        for size, dim in ((64, 1), (64, 2), (1024, 2)):
            for rule in (fcco.SOX(0.1), fcco.SOAP(0.1)):
                against_no_table(size, dim, rule, compiled, rounds, repeats)
    print(f"\n{'operations dispatched, batch of 64':<40}{'count':>6}")
    count_operations()
    print(f"\n{'forward + backward':<28}{'n = 10^8':>12}{'n = 10^3':>12}{'ratio':>9}")
    for size in (64, 512):
        growth_with_n(size, rounds, repeats)


if __name__ == "__main__":
    main()
