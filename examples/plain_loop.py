"""A plain PyTorch loop for rare positives: cross entropy first, then average precision, saved and resumed halfway.

python examples/plain_loop.py [--epochs 6]

The lines that differ from a loop with cross entropy are marked. Whether average precision gains anything depends on the
data: keep the weights that are best on validation data.
"""

from __future__ import annotations

import argparse
import io
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import average_precision_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fcco.data import Indexed
from fcco.losses import AveragePrecisionLoss


def main() -> None:
    parser = argparse.ArgumentParser(description="Average precision in a plain PyTorch loop.")
    parser.add_argument("--epochs", type=int, default=6)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    bunch = load_breast_cancer()
    x = torch.tensor((bunch.data - bunch.data.mean(0)) / bunch.data.std(0), dtype=torch.float32)
    y = torch.tensor(bunch.target == 0).long()

    model = nn.Sequential(nn.Linear(x.shape[1], 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(Indexed(TensorDataset(x, y)), batch_size=32, shuffle=True)  # changed: batches have an index
    cross_entropy = nn.BCEWithLogitsLoss()
    loss_fn = AveragePrecisionLoss.from_targets(y, temperature="auto")  # changed

    for epoch in range(epochs):
        first_half = 2 * epoch < epochs
        for features, labels, index in loader:
            optimizer.zero_grad()
            logits = model(features)
            loss = cross_entropy(logits, labels.float()) if first_half else loss_fn(logits, labels, index)  # changed
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            scores = model(x)
        name = "cross entropy" if first_half else "average precision"
        print(f"epoch {epoch}, {name}: average precision of all data {average_precision_score(y, scores):.4f}")
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
