"""autocast to bfloat16: the model runs in half precision, the table stays float32.

    python examples/mixed_precision.py [--epochs 3]

Losses work in float32 at least, whatever the scores come in, so they may stand inside autocast or outside.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.data import Indexed, PositiveNegativeSampler


def main() -> None:
    parser = argparse.ArgumentParser(description="Average precision under autocast.")
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    x = torch.randn(1000, 10)
    y = (x[:, 0] + 0.5 * torch.randn(1000) > 1).long()
    loader = DataLoader(Indexed(TensorDataset(x, y)), batch_sampler=PositiveNegativeSampler(y, batch=32))
    finals = {}
    for enabled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
        loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(y, memory=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for epoch in range(epochs):
            loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
            for features, labels, index in loader:
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    scores = model(features)
                    loss = loss_fn(scores, labels, index)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            finals[enabled] = -fcco.functional.average_precision_loss(model(x), y).item()
        print(f"scores {scores.dtype}, loss {loss.dtype}, table {loss_fn.table.u.dtype}: AP {finals[enabled]:.4f}")
    print(f"bfloat16 and float32 end {abs(finals[True] - finals[False]):.4f} apart")


if __name__ == "__main__":
    main()
