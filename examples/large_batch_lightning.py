"""Lightning: a batch of 512 images in the memory of 32. The checkpoint has the keys of the network itself.

python examples/large_batch_lightning.py [--epochs 10]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fcco import ChunkedModule
from fcco.functional import nca_loss


def network() -> nn.Module:
    """Return the network."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 16))


class Embedding(LightningModule):
    """Images of a digit close to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ChunkedModule(network(), chunk_size=32)  # the only line that changes

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        x, y = batch
        return nca_loss(self.model(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description="A large batch in chunks with Lightning.")
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    seed_everything(0, verbose=False)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target)
    train, test = torch.randperm(len(y)).tensor_split([1280])

    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=512, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Embedding(), loader)
        trainer.save_checkpoint(Path(folder, "last.ckpt"))
        state = torch.load(Path(folder, "last.ckpt"), weights_only=True)["state_dict"]

    model = network().eval()
    model.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
    with torch.no_grad():
        z = model(x).numpy()
    accuracy = KNeighborsClassifier(5).fit(z[train], y[train]).score(z[test], y[test])
    print(f"five nearest neighbours, accuracy on images left out: {accuracy:.3f}")


if __name__ == "__main__":
    main()
