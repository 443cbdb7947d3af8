"""A plain PyTorch loop: average precision from 16 + 16 examples a step, saved and resumed halfway.

python examples/plain_loop.py [--epochs 6]
"""

from __future__ import annotations

import argparse
import io
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.data import Indexed, PositiveNegativeSampler


def main() -> None:
    parser = argparse.ArgumentParser(description="Average precision in a plain PyTorch loop.")
    parser.add_argument("--epochs", type=int, default=6)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    bunch = load_breast_cancer()
    x = torch.tensor((bunch.data - bunch.data.mean(0)) / bunch.data.std(0), dtype=torch.float32)
    y = torch.tensor(bunch.target == 0).long()

    model = nn.Sequential(nn.Linear(x.shape[1], 1), nn.Flatten(0), nn.Sigmoid())
    loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(y)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sampler = PositiveNegativeSampler(y, batch=32)
    loader = DataLoader(Indexed(TensorDataset(x, y)), batch_sampler=sampler)  # batches are (x, y, index)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for features, labels, index in loader:
            optimizer.zero_grad()
            loss_fn(model(features), labels, index).backward()
            optimizer.step()
        with torch.no_grad():
            exact = fcco.functional.average_precision_loss(model(x), y)
        print(f"epoch {epoch}: surrogate of average precision on all data {-exact:.4f}")
        if epoch == epochs // 2:
            # The table is state, like the optimizer's: save it with the model, and training continues bit for bit.
            file = io.BytesIO()
            parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loss": loss_fn}
            torch.save({name: part.state_dict() for name, part in parts.items()}, file)
            file.seek(0)
            for name, saved in torch.load(file, weights_only=True).items():
                parts[name].load_state_dict(saved)


if __name__ == "__main__":
    main()
