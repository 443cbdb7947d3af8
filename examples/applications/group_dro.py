"""The worst group: which digits are odd, where a group is a digit, from batches of 16.

    python examples/applications/group_dro.py [--figure group_dro.png] [--quick]

Plain training cares for the mean; group DRO for the digit that fares worst. Within a batch of 16 a digit has one or two
images, so that the worst of them is mostly chance; ``GroupDROLoss`` keeps an estimate of every group's loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor

import fcco

BATCH, TEMPERATURE = 16, 0.1


def losses_at(w: Tensor, x: Tensor, odd: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x @ w, odd, reduction="none")


def train(data: tuple[Tensor, ...], loss_fn: Callable[[Tensor, Tensor], Tensor], lr: float, passes: int) -> Tensor:
    x, odd, digit = data
    w = torch.zeros(x.shape[1], requires_grad=True)
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(x) // BATCH * passes)
    generator = torch.Generator().manual_seed(0)
    for _ in range(passes):
        for rows in torch.randperm(len(x), generator=generator)[: len(x) // BATCH * BATCH].view(-1, BATCH):
            optimizer.zero_grad()
            loss_fn(losses_at(w, x[rows], odd[rows]), digit[rows]).backward()
            optimizer.step()
            schedule.step()
    return w.detach()


def of_groups(values: Tensor, digit: Tensor) -> list[float]:
    return [float(values[digit == k].mean()) for k in range(10)]


def main() -> None:
    parser = argparse.ArgumentParser(description="The soft maximum of groups' losses, from small batches.")
    parser.add_argument("--figure", type=Path, default=Path("group_dro.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    passes, rates = (2, (1.0,)) if given.quick else (20, (0.25, 1.0, 4.0))
    bunch = load_digits()
    x = torch.tensor(bunch.data / 16, dtype=torch.float32)
    x = torch.cat([x - x.mean(0), torch.ones(len(x), 1)], 1)
    digit = torch.tensor(bunch.target)
    data = (x, (digit % 2).float(), digit)
    print(f"{len(x)} images, batches of {BATCH}, {passes} passes")
    losses: dict[str, Callable[[], Callable[[Tensor, Tensor], Tensor]]] = {
        "mean loss": lambda: lambda losses, _: losses.mean(),
        "in-batch": lambda: fcco.losses.GroupDROLoss.from_targets(digit, temperature=TEMPERATURE, rule=fcco.BSGD()),
        "GroupDROLoss": lambda: fcco.losses.GroupDROLoss.from_targets(digit, temperature=TEMPERATURE),
    }
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    ax = figure.subplots()
    for shift, (name, make) in enumerate(losses.items()):
        reached = []
        for lr in rates:
            w = train(data, make(), lr, passes)
            each = losses_at(w, x, data[1])
            reached.append((float(fcco.functional.group_dro_loss(each, digit, temperature=TEMPERATURE)), w))
            print(f"{name:<12} lr {lr:<5} soft maximum {reached[-1][0]:.4f}, mean {each.mean():.4f}")
        w = min(reached, key=lambda pair: pair[0])[1]
        right = of_groups(((x @ w > 0) == (data[1] == 1)).float(), digit)
        print(f"{name:<12} accuracy of the worst digit {min(right):.3f}")
        ax.bar(
            [k + 0.27 * (shift - 1) for k in range(10)], of_groups(losses_at(w, x, data[1]), digit), 0.27, label=name
        )
    ax.set(xlabel="digit", ylabel="mean loss", xticks=range(10), title="odd or even, batches of 16")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
