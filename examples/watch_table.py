"""Diagnostics while training, and advice: does a table help at this batch size, and which gamma suits?

python examples/watch_table.py [--epochs 4] [--batch 8] [--plot table.png] [--log runs]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import fcco
from fcco.data import PositiveNegativeSampler
from fcco.diagnostics import Monitor, advise, exact_inner, gradient_bias


def main() -> None:
    parser = argparse.ArgumentParser(description="Watch the table of a p-norm push.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--draws", type=int, default=400, help="batches that advice is taken from")
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--log", type=Path, default=None, help="for TensorBoard")
    options = parser.parse_args()
    bunch = load_breast_cancer()
    x = torch.tensor((bunch.data - bunch.data.mean(0)) / bunch.data.std(0), dtype=torch.float32)
    y = torch.tensor(bunch.target == 0).long()
    w = torch.zeros(x.shape[1], requires_grad=True)
    loss_fn = fcco.losses.PNormPushLoss.from_targets(y)
    optimizer = fcco.optim.MovingAverageSGD([w], lr=0.003)
    sampler = PositiveNegativeSampler(y, batch=options.batch, outer="negative")

    def evaluate(loss_fn: nn.Module, rows: Tensor) -> Tensor:
        value: Tensor = loss_fn(x[rows] @ w, y[rows], rows)
        return value

    with Monitor(loss_fn, exact=exact_inner(loss_fn, evaluate)) as monitor:
        for epoch in range(options.epochs):
            for rows in sampler:
                optimizer.zero_grad()
                evaluate(loss_fn, torch.as_tensor(rows)).backward()
                optimizer.step()
            if options.log is not None:
                from torch.utils.tensorboard import SummaryWriter

                with SummaryWriter(options.log) as writer:
                    report = monitor.to_tensorboard(writer)
            else:
                report = monitor.report()
            print(
                f"epoch {epoch}: u is off by {report['tracking_error']:.0%}, the batch's estimates by "
                f"{report['estimate_error']:.0%}; rows are stale by {report['staleness_mean']:.0f} steps"
            )
    if options.plot is not None:
        monitor.plot(options.plot)
    print(gradient_bias(loss_fn, evaluate, sampler, [w], draws=options.draws))
    print(advise(loss_fn, evaluate, sampler, [w], visits=20, monitor=monitor, draws=options.draws))


if __name__ == "__main__":
    main()
