"""LibAUC's documented recipes, and the same loop rewritten for fcco line by line.

    pip install --no-deps --target build/rivals libauc==2.0.1
    PYTHONPATH=build/rivals python benchmarks/migration.py [--quick] [--results build/migration.csv]

Both sides train the same network from the same start on the same batches, half of each positive, for the same number of
steps. LibAUC has the settings of its documentation: a sigmoid, its own optimizer at its own step size. fcco has raw
scores, its defaults, and the optimizer of torch that LibAUC's is made of, with the same step size. The data are
scikit-learn's digits, in which one digit is rare: of its images, one in four is kept for training. A row is the mean
over seeds and rare digits, with the standard error of the paired difference. Digits 1, 5 and 8 are left out, because
the default rule of ``AUCLoss(form="min_max")`` was chosen on them.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn

from fcco import losses
from fcco.data import PositiveNegativeSampler
from harness.tables import Row, as_text, write_csv

BATCH = 64
DIGITS = (0, 2, 3, 4, 6, 7, 9)

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Side = Callable[[Tensor, nn.Module], tuple[Loss, torch.optim.Optimizer]]


class Recipe(NamedTuple):
    """A recipe of LibAUC's, ours in its place, and the metric that both are after."""

    theirs: Side
    ours: Side
    metric: Callable[[Any, Any], float]


class Data(NamedTuple):
    """Training and test data."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def digit(rare: int, seed: int) -> Data:
    """Return digits of which one is rare in the training half."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels == rare).long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, test = order[: len(y) // 2], order[len(y) // 2 :]
    positives = train[y[train] == 1]
    train = torch.cat([train[y[train] == 0], positives[: len(positives) // 4]])
    return Data(x[train], y[train], x[test], y[test])


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))


def train(data: Data, net: nn.Module, side: Side, steps: int, seed: int) -> Tensor:
    """Return the scores of the test data after training."""
    net = deepcopy(net)
    loss_fn, optimizer = side(data.y, net)
    for rows in map(torch.tensor, PositiveNegativeSampler(data.y, batch=BATCH, steps=steps, seed=seed)):
        optimizer.zero_grad()
        loss_fn(net(data.x[rows]), data.y[rows], rows).backward()
        optimizer.step()
    with torch.no_grad():
        scores: Tensor = net(data.test_x)
    return scores


def of_libauc(make: Callable[[Tensor], Any], optimizer: str, **options: Any) -> Side:
    """Return a loss of LibAUC's on sigmoids, and its optimizer."""

    def side(target: Tensor, net: nn.Module) -> tuple[Loss, torch.optim.Optimizer]:
        from libauc import optimizers

        loss_fn = make(target)
        with_loss = {"loss_fn": loss_fn} if optimizer == "PESG" else {}
        made = getattr(optimizers, optimizer)(net.parameters(), **with_loss, **options, verbose=False, device="cpu")
        takes_index = optimizer != "PESG"

        def loss(scores: Tensor, target: Tensor, rows: Tensor) -> Tensor:
            columns = torch.sigmoid(scores).unsqueeze(1), target.float().unsqueeze(1)
            value: Tensor = loss_fn(*columns, rows) if takes_index else loss_fn(*columns)
            return value

        return loss, made

    return side


def theirs(name: str, **options: Any) -> Callable[[Tensor], Any]:
    """Return a loss of LibAUC's, made from the training targets."""

    def make(target: Tensor) -> Any:
        from libauc import losses as libauc_losses

        sizes: dict[str, Any] = {} if name == "AUCMLoss" else {"data_len": len(target)}
        if name == "pAUC_CVaR_Loss":
            sizes["pos_len"] = int(target.sum())
        return getattr(libauc_losses, name)(**sizes, **options, device="cpu")

    return make


def ours(make: Callable[[Tensor], nn.Module], optimizer: Callable[..., torch.optim.Optimizer], **options: Any) -> Side:
    return lambda target, net: (make(target), optimizer(net.parameters(), **options))


def top(target: Any, scores: Any) -> float:
    """Return scikit-learn's partial AUC up to a false positive rate of .3."""
    return float(roc_auc_score(target, scores, max_fpr=0.3))


NAMES = {roc_auc_score: "AUC", average_precision_score: "AP", top: "partial AUC to .3"}
ADAM = {"lr": 1e-3, "weight_decay": 1e-5}
RECIPES = {
    "AUCMLoss + PESG": Recipe(
        of_libauc(theirs("AUCMLoss"), "PESG", lr=0.1),
        ours(
            lambda target: losses.AUCLoss.from_targets(target, form="min_max"),
            torch.optim.SGD,
            lr=0.1,
            momentum=0.9,
            weight_decay=1e-5,
        ),
        roc_auc_score,
    ),
    "APLoss + SOAP": Recipe(
        of_libauc(theirs("APLoss"), "SOAP", lr=1e-3, mode="adam"),
        ours(losses.AveragePrecisionLoss.from_targets, torch.optim.Adam, **ADAM),
        average_precision_score,
    ),
    "pAUC_DRO_Loss + SOPAs": Recipe(
        of_libauc(theirs("pAUC_DRO_Loss"), "SOPAs", lr=1e-3, mode="adam"),
        ours(lambda target: losses.PartialAUCLoss(len(target)), torch.optim.Adam, **ADAM),
        top,
    ),
    "pAUC_CVaR_Loss + SOPA": Recipe(
        of_libauc(theirs("pAUC_CVaR_Loss", beta=0.3), "SOPA", lr=1e-3, mode="adam"),
        ours(lambda target: losses.CVaRPartialAUCLoss.from_targets(target, max_fpr=0.3), torch.optim.Adam, lr=1e-3),
        top,
    ),
    "tpAUC_KL_Loss + SOTAs": Recipe(
        of_libauc(theirs("tpAUC_KL_Loss"), "SOTAs", lr=1e-3, mode="adam"),
        ours(lambda target: losses.TwoWayPartialAUCLoss(len(target)), torch.optim.Adam, lr=1e-3),
        top,
    ),
}


def measure(recipe: Recipe, digits: Iterable[int], seeds: Iterable[int], steps: int) -> Iterator[tuple[float, float]]:
    """Yield the metric of both sides in each trial; theirs is NaN without LibAUC."""
    installed = importlib.util.find_spec("libauc") is not None
    for rare in digits:
        for seed in seeds:
            data, net = digit(rare, seed), network(seed)
            sides = (recipe.theirs if installed else None, recipe.ours)
            scores = [None if side is None else train(data, net, side, steps, seed) for side in sides]
            yield tuple(math.nan if s is None else float(recipe.metric(data.test_y, s)) for s in scores)  # type: ignore[misc]


def as_row(name: str, recipe: Recipe, pairs: list[tuple[float, float]]) -> Row:
    gains = [mine - other for other, mine in pairs]
    error = float(np.std(gains, ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    return {
        "LibAUC 2.0.1": f"`{name.replace(' + ', '` + `')}`",
        "metric": NAMES[recipe.metric],
        "LibAUC": f"{fmean(other for other, _ in pairs):.4f}",
        "fcco": f"{fmean(mine for _, mine in pairs):.4f}",
        "difference": f"{fmean(gains):+.4f} ± {error:.4f}",
        "trials": len(pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="LibAUC's recipes, and the same in fcco.")
    parser.add_argument("--quick", action="store_true", help="one trial of few steps, to see that it runs")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--results", type=Path, help="a CSV file to write the table to")
    options = parser.parse_args()
    digits, seeds, steps = (DIGITS[:1], range(1), 20) if options.quick else (DIGITS, range(3), options.steps)
    torch.set_num_threads(1)
    rows = [as_row(name, recipe, list(measure(recipe, digits, seeds, steps))) for name, recipe in RECIPES.items()]
    print(as_text(rows))
    if options.results is not None:
        write_csv(rows, options.results)
    if importlib.util.find_spec("libauc") is None:
        print("LibAUC is not installed")


if __name__ == "__main__":
    main()
