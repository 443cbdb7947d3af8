"""Stop in the middle of an epoch, with loader workers, and resume: the weights are those of a run that never stopped.

python examples/resume.py [--epochs 3] [--workers 2]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fcco
from fcco.data import Indexed, PositiveNegativeSampler, ResumableLoader


def make_parts(x: Tensor, y: Tensor, workers: int) -> dict[str, Any]:
    """All that a run is made of; what has a state is saved and loaded under these names."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 1), nn.Flatten(0))
    return {
        "model": model,
        "loss": fcco.losses.AveragePrecisionLoss.from_targets(y),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "loader": ResumableLoader(
            Indexed(TensorDataset(x, y)), PositiveNegativeSampler(y, batch=32), num_workers=workers
        ),
    }


def train(parts: dict[str, Any], epochs: int, path: Path, stop: int | None = None) -> bool:
    """Train up to ``epochs``, and continue from ``path`` if it is there; after ``stop`` steps, save it and return."""
    if path.exists():
        for name, saved in torch.load(path, weights_only=True).items():
            parts[name].load_state_dict(saved)
    model, loss_fn, optimizer, loader = parts.values()
    steps = 0
    for epoch in range(loader.batch_sampler.epoch, epochs):
        loader.batch_sampler.set_epoch(epoch)  # an epoch that was loaded keeps its place
        for features, labels, index in loader:
            optimizer.zero_grad()
            loss_fn(model(features), labels, index).backward()
            optimizer.step()
            steps += 1
            if steps == stop:
                torch.save({name: part.state_dict() for name, part in parts.items()}, path)
                print(f"stopped after batch {loader.state_dict()['drawn']} of epoch {epoch}")
                return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Resume a run in the middle of an epoch.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    bunch = load_breast_cancer()
    x = torch.tensor((bunch.data - bunch.data.mean(0)) / bunch.data.std(0), dtype=torch.float32)
    y = torch.tensor(bunch.target == 0).long()

    with tempfile.TemporaryDirectory() as folder:
        whole, path = make_parts(x, y, options.workers), Path(folder) / "run.pt"
        train(whole, options.epochs, path)
        finished, stop = False, 20
        while not finished:  # each time as a new process would: from nothing but the file
            resumed = make_parts(x, y, options.workers)
            finished = train(resumed, options.epochs, path, stop)
    same = all(
        torch.equal(a, b) for a, b in zip(whole["model"].parameters(), resumed["model"].parameters(), strict=True)
    )
    print(f"the weights of the whole run: {same}")


if __name__ == "__main__":
    main()
