"""What a loss costs next to binary cross entropy, forward and backward: on scores alone, and with a small model.

    python benchmarks/losses.py [--quick]

Every figure is a ratio within this run, on one thread: the median over rounds that alternate between the two sides.
LibAUC's average precision loss runs beside ours where it is installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fcco
from harness.timing import Step, compare

N = 100_000
LossStep = Callable[[Tensor, Tensor, Tensor], Tensor]


def cross_entropy(scores: Tensor, target: Tensor, index: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, target)


def libauc_average_precision() -> LossStep | None:
    if find_spec("libauc") is None:
        return None
    from libauc.losses import APLoss

    loss = APLoss(data_len=N)
    return lambda scores, target, index: loss(scores.unsqueeze(1), target.unsqueeze(1), index)


def candidates() -> dict[str, LossStep | None]:
    return {
        "average precision": fcco.losses.AveragePrecisionLoss(N, N // 10, memory=0),
        "p-norm push": fcco.losses.PNormPushLoss(N, memory=0),
        "LibAUC's average precision": libauc_average_precision(),
    }


def make_step(loss: LossStep, size: int, model: nn.Module | None) -> Step:
    """Return a step on a batch that is half positive; ``model`` None: on scores alone."""
    generator = torch.Generator().manual_seed(0)
    target = (torch.arange(size) % 2).float()
    index = torch.randperm(N, generator=generator)[:size]
    x = torch.randn(size, 32, generator=generator)
    scores = (0.1 * torch.randn(size, generator=generator)).requires_grad_()

    def step() -> None:
        if model is None:
            scores.grad = None
            loss(scores, target, index).backward()
        else:
            model.zero_grad()
            loss(model(x).squeeze(1), target, index).backward()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the losses over binary cross entropy, in one run.")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'forward + backward':<30}{'batch':>6}{'loss':>12}{'BCE':>10}{'ratio':>8}{'with MLP 32-64-1':>20}")
    for name, loss in candidates().items():
        if loss is None:
            print(f"{name:<30}{'not installed':>20}")
            continue
        for size in (64, 256, 1024):
            rounds, repeats = (3, 5) if quick else (15, 200 if size < 1024 else 50)
            ours, bce, ratio = compare(
                make_step(loss, size, None), make_step(cross_entropy, size, None), rounds, repeats
            )
            model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
            _, _, with_model = compare(
                make_step(loss, size, model), make_step(cross_entropy, size, model), rounds, repeats
            )
            print(f"{name:<30}{size:>6}{ours * 1e6:>9.0f} µs{bce * 1e6:>7.0f} µs{ratio:>8.1f}{with_model:>20.1f}")


if __name__ == "__main__":
    main()
