"""Gradient accumulation: k micro-batches for one step of the optimizer, and what the table makes of them.

    python examples/accumulation.py [--steps 200]

Every call of a loss is a step of its table. With SOX, SOAP and BSGD rows are independent, so micro-batches of different
rows give the gradient and the table of one large batch with the same estimates; only the step count differs, which
schedules see. MOAP scales by n / B1 and lets all rows decay at every call: there they are not the same.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import fcco


def batch(x: Tensor, w: Tensor, rows: Tensor, draw: Tensor) -> Tensor:
    """Estimates of g_i(w) = mean over S_i of exp(x_ij w), of a few j each."""
    return torch.einsum("ijd,d->ij", x[rows[:, None], draw], w).exp().mean(1)


def gradients(rule: fcco.Rule, parts: int, steps: int = 3) -> tuple[Tensor, fcco.CoupledLoss]:
    """The last of some gradients, each accumulated over so many micro-batches."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 20, 3, generator=generator, dtype=torch.float64)
    w = torch.full((3,), 0.5, dtype=torch.float64, requires_grad=True)
    loss_fn = fcco.CoupledLoss(torch.log, n=40, rule=rule).double()
    for _ in range(steps):
        w.grad = None
        rows = torch.randperm(40, generator=generator)[:12]
        draw = torch.randint(20, (12, 2), generator=generator)
        for part, part_draw in zip(rows.chunk(parts), draw.chunk(parts), strict=True):
            # The share of the batch, which is 1 / parts where all are of a size.
            (loss_fn(batch(x, w, part, part_draw), part) * len(part) / len(rows)).backward()
    assert w.grad is not None
    return w.grad, loss_fn


def train(steps: int) -> None:
    """The same in a loop: 4 micro-batches of 4 rows a step of the optimizer."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 50, 3, generator=generator)
    w = torch.full((3,), 1.0, requires_grad=True)
    loss_fn = fcco.CoupledLoss(torch.log, n=200, rule=fcco.SOX(gamma=0.3))
    optimizer = fcco.optim.MovingAverageSGD([w], lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        for part in torch.randperm(200, generator=generator)[:16].chunk(4):
            (loss_fn(batch(x, w, part, torch.randint(50, (len(part), 2), generator=generator)), part) / 4).backward()
        optimizer.step()
        if (step + 1) % max(1, steps // 4) == 0:
            exact = torch.einsum("ijd,d->ij", x, w.detach()).exp().mean(1).log().mean()
            print(f"step {step + 1}: exact objective {exact:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Gradient accumulation with a table.")
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    for rule in (fcco.BSGD(), fcco.SOAP(0.3), fcco.SOX(0.3), fcco.MOAP(0.3)):
        (one, whole), (four, parts) = gradients(rule, 1), gradients(rule, 4)
        everyone = torch.arange(40)
        apart = (whole.table.read(everyone, cold=0.0) - parts.table.read(everyone, cold=0.0)).abs().max().item()
        print(
            f"{type(rule).__name__:<5} 1 x 12 against 4 x 3 rows: gradients differ by {(one - four).abs().max():.0e}, "
            f"tables by {apart:.0e}, steps of the table {whole.table.step} and {parts.table.step}"
        )
    train(steps)


if __name__ == "__main__":
    main()
