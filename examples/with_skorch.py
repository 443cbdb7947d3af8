"""skorch: a net with a table inside a scikit-learn pipeline and a grid search.

python examples/with_skorch.py [--epochs 10]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import fcco
from fcco.data import PositiveNegativeSampler
from fcco.integrations.skorch import TableNet


def batches(y: torch.Tensor) -> PositiveNegativeSampler:
    return PositiveNegativeSampler(y, batch=32)


def average_precision(search: GridSearchCV, x: np.ndarray, y: np.ndarray) -> float:
    return float(average_precision_score(y, search.predict(x).ravel()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Average precision with skorch.")
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    bunch = load_breast_cancer()
    x, y = bunch.data.astype(np.float32), (bunch.target == 0).astype(np.int64)

    net = TableNet(
        nn.Sequential(nn.Linear(x.shape[1], 1)),
        fcco.losses.AveragePrecisionLoss,  # made anew for the targets of every fold
        sampler=batches,
        train_split=None,
        max_epochs=epochs,
        lr=1.0,
        verbose=0,
    )
    grid = {"tablenet__criterion__rule": [fcco.BSGD(), fcco.SOAP(0.7), fcco.SOX(0.1)]}
    search = GridSearchCV(make_pipeline(StandardScaler(), net), grid, scoring=average_precision, cv=3).fit(x, y)
    for rule, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        print(f"{rule['tablenet__criterion__rule']!s:<32} average precision on held-out folds {score:.4f}")
    best = search.best_estimator_["tablenet"]
    print(
        f"the best one's table has {best.criterion_.n} rows, {int(best.criterion_.table.visits.sum())} of them visited"
    )


if __name__ == "__main__":
    main()
