"""A batch of 512 images in the memory of 32: chunks give the weights of the plain batch, accumulation does not.

python examples/large_batch.py [--steps 30]

The loss compares all images of the batch with each other, so it is not a sum over micro-batches.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fcco import forward_in_chunks
from fcco.functional import nca_loss


def train(x: Tensor, y: Tensor, kind: str, steps: int) -> nn.Module:
    """Return a network trained from a fixed start, on fixed batches."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    for _ in range(steps):
        rows = torch.randperm(len(y), generator=generator)[:512]
        optimizer.zero_grad()
        if kind == "accumulation":  # each image is compared with 31 others
            for part in rows.split(32):
                (nca_loss(model(x[part]), y[part]) / 16).backward()
        elif kind == "chunks":
            nca_loss(forward_in_chunks(model, x[rows], chunk_size=32), y[rows]).backward()
        else:
            nca_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="A large batch in chunks, and by accumulation.")
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    bunch = load_digits()
    x, y = torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target)

    plain = train(x, y, "plain", steps)
    for kind in ("chunks", "accumulation"):
        model = train(x, y, kind, steps)
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        apart = max((first - second).abs().max().item() for first, second in pairs)
        with torch.no_grad():
            loss = nca_loss(model(x), y).item()
        print(f"{kind}: loss of all images {loss:.4f}, weights differ from the plain batch's by {apart:.1e}")


if __name__ == "__main__":
    main()
