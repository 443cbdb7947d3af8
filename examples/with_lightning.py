"""Lightning: a loss as an attribute of the module, and a callback that logs its table.

python examples/with_lightning.py [--epochs 5]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.data import Indexed, PositiveNegativeSampler
from fcco.integrations.lightning import TableCallback


class Ranker(LightningModule):
    """Scores trained by average precision."""

    def __init__(self, y: Tensor, features: int) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(features, 1), nn.Flatten(0))
        # A submodule: saved and moved with the rest.
        self.loss = fcco.losses.AveragePrecisionLoss.from_targets(y, memory=0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        x, y, index = batch
        return self.loss(self.model(x), y, index)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Average precision with Lightning.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--log", type=Path, default=None, help="for TensorBoard; a temporary directory if not given")
    options = parser.parse_args()
    seed_everything(0, verbose=False)
    bunch = load_breast_cancer()
    x = torch.tensor((bunch.data - bunch.data.mean(0)) / bunch.data.std(0), dtype=torch.float32)
    y = torch.tensor(bunch.target == 0).long()
    sampler = PositiveNegativeSampler(y, batch=32)
    loader = DataLoader(Indexed(TensorDataset(x, y)), batch_sampler=sampler)

    with tempfile.TemporaryDirectory() as scratch:
        log = options.log or Path(scratch)
        module, tables = Ranker(y, x.shape[1]), TableCallback(every=10)
        trainer = Trainer(
            max_epochs=options.epochs,
            accelerator="cpu",
            logger=TensorBoardLogger(log, name=None),
            callbacks=[tables, ModelCheckpoint(log / "checkpoints")],
            log_every_n_steps=10,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,  # our samplers divide the rows over processes themselves
        )
        trainer.fit(module, loader)
        for report in tables.monitors["loss"].history:
            print(f"stale by {report['staleness_mean']:.1f} steps, never seen {report['never_seen']:.0%}")
        best = trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
        again = Ranker.load_from_checkpoint(best, y=y, features=x.shape[1], weights_only=True)
        print(f"rows in the checkpoint equal those in memory: {torch.equal(again.loss.table.u, module.loss.table.u)}")
    with torch.no_grad():
        exact = fcco.functional.average_precision_loss(module.model(x), y)
    print(f"epoch {sampler.epoch}: surrogate of average precision on all data {-exact:.4f}")


if __name__ == "__main__":
    main()
