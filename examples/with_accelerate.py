"""Hugging Face Accelerate: gradient accumulation, and a checkpoint that has the table in it.

python examples/with_accelerate.py [--epochs 5]
torchrun --nproc-per-node 2 examples/with_accelerate.py
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.data import Indexed, PositiveNegativeSampler


def main() -> None:
    parser = argparse.ArgumentParser(description="Average precision with Accelerate.")
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    bunch = load_breast_cancer()
    x = torch.tensor((bunch.data - bunch.data.mean(0)) / bunch.data.std(0), dtype=torch.float32)
    y = torch.tensor(bunch.target == 0).long()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(x.shape[1], 1), nn.Flatten(0))
    loader = DataLoader(Indexed(TensorDataset(x, y)), batch_sampler=PositiveNegativeSampler(y, batch=32))
    # The loss has nothing to train: it is moved by hand, and registered so that checkpoints have its table.
    loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(y).to(accelerator.device)
    accelerator.register_for_checkpointing(loss_fn)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=2e-3), loader)

    for epoch in range(epochs):
        loader.set_epoch(epoch)  # which passes it on to the sampler
        for features, labels, index in loader:
            with accelerator.accumulate(model):
                loss = loss_fn(model(features), labels, index)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            exact = fcco.functional.average_precision_loss(model(x.to(accelerator.device)), y.to(accelerator.device))
        accelerator.print(f"epoch {epoch}: surrogate of average precision on all data {-exact:.4f}")

    with tempfile.TemporaryDirectory() as scratch:
        (directory,) = broadcast_object_list([scratch])  # the same one for all ranks
        accelerator.save_state(directory)
        accelerator.wait_for_everyone()
        trained = loss_fn.table.u.clone()
        loss_fn.table.u.zero_()
        accelerator.load_state(directory)
        accelerator.wait_for_everyone()
    accelerator.print(f"rows after loading equal those before: {torch.equal(loss_fn.table.u, trained)}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
