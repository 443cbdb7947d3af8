"""The first example of the documentation, measured: an embedding of digits by the loss of the batch and by NCALoss.

    python benchmarks/start.py [--csv docs/start.csv]

A linear map of scikit-learn's digits into 4 dimensions is trained by Adam for four epochs of batches of 8. Both losses
have the lr with the best validation accuracy over three splits. Shown is the accuracy of the 3 nearest neighbours on
the test part, over ten splits into 60, 20 and 20 percent. It takes a minute.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import fmean, stdev

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

import fcco
from harness.tables import Row, as_markdown, write_csv

LRS, TUNING, SPLITS, EPOCHS, BATCH = (0.003, 0.01, 0.03, 0.1), 3, 10, 4, 8
METHODS = ("fcco.functional.nca_loss", "fcco.losses.NCALoss")


def accuracies(method: str, lr: float, split: int) -> tuple[float, float]:
    """Return validation and test accuracy of a run."""
    data, label = load_digits(return_X_y=True)
    torch.manual_seed(split)
    order = torch.randperm(len(label))
    x, y = torch.tensor(data / 16, dtype=torch.float32)[order], torch.tensor(label)[order]
    (train, valid, test), (y_train, y_valid, y_test) = x.split([1077, 360, 360]), y.split([1077, 360, 360])
    model = nn.Linear(64, 4, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    remembering = fcco.losses.NCALoss.from_targets(y_train) if method == METHODS[1] else None
    whole = len(train) // BATCH * BATCH
    for rows in torch.cat([torch.randperm(len(train))[:whole] for _ in range(EPOCHS)]).split(BATCH):
        z, labels = model(train[rows]), y_train[rows]
        loss: Tensor = remembering(z, labels, rows) if remembering else fcco.functional.nca_loss(z, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        neighbours = KNeighborsClassifier(3).fit(model(train), y_train)
        return neighbours.score(model(valid), y_valid), neighbours.score(model(test), y_test)


def main() -> None:
    """Measure, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="where to write the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    found = {}
    for method in METHODS:
        tried = {lr: fmean(accuracies(method, lr, split)[0] for split in range(TUNING)) for lr in LRS}
        lr = max(tried, key=lambda lr: tried[lr])
        found[method] = [accuracies(method, lr, split)[1] for split in range(SPLITS)]
        error = stdev(found[method]) / math.sqrt(SPLITS)
        rows.append({"loss": f"`{method}`", "lr": lr, "test accuracy": f"{fmean(found[method]):.3f} ± {error:.3f}"})
    gains = [ours - theirs for theirs, ours in zip(*found.values(), strict=True)]
    print(as_markdown(rows))
    print(f"difference {fmean(gains):+.3f} ± {stdev(gains) / math.sqrt(SPLITS):.3f}")
    if given.csv:
        write_csv(rows, given.csv)


if __name__ == "__main__":
    main()
