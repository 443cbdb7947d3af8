"""What average precision adds to cross entropy on rare positives: networks at equal steps, by test AP.

    FCCO_DATA=... python benchmarks/after_cross_entropy.py [--csv docs/after_cross_entropy.csv] [--quick]

Networks with hidden layers of 128 and 64 units are trained by Adam with a cosine lr, for 2,000 steps of 64 rows. *then
AP* stands for cross entropy in the first half of the steps and ``AveragePrecisionLoss(temperature="auto")`` on the
logits in the second. Shuffled batches are random ones; of balanced ones, half is positive. Every method has the lr with
the best validation AP on the first split, and of ten looks along a run the weights with the best validation AP. A
verdict is on the paired difference to cross entropy, by two of its standard errors over five splits. A star marks a
best lr at the end of its grid. It takes ten minutes of one core; without FCCO_DATA it runs on what ships with
scikit-learn and Python.
"""

from __future__ import annotations

import argparse
import math
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import torch
from sklearn.metrics import average_precision_score

from harness.tables import Row, as_markdown, write_csv
from top_of_list._network import USUAL, LossFn, batches_of, scores, train
from top_of_list._network_ours import after_cross_entropy
from top_of_list._prepared import prepare, split
from top_of_list._tasks import Task, available

TASKS = ("text", "covtype 5", "covtype 6", "mnist 8 at 2%", "usps 3 at 2%", "digits 9 at 5%", "ijcnn1 later")
LRS, SEEDS, STEPS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1), range(5), 2000
PLAIN, FOCAL = "cross entropy", "focal loss"
METHODS: dict[str, tuple[str, bool]] = {  # by name: the loss, and whether batches are balanced
    PLAIN: ("BCE", False),
    FOCAL: ("focal loss", False),
    f"{PLAIN}, balanced": ("BCE", True),
    f"{PLAIN}, then AP": ("then AP", False),
    f"{PLAIN}, then AP, balanced": ("then AP", True),
}


def trained(path: str, method: str, lr: float, seed: int, steps: int) -> tuple[float, float]:
    """Return validation and test AP of a run."""
    parts, (loss, balanced) = split(path, seed), METHODS[method]
    y = torch.from_numpy(parts.train.y)
    loss_fn: LossFn = after_cross_entropy(y, steps // 2) if loss == "then AP" else USUAL[loss][0]
    found = train(parts, loss_fn, batches_of(parts.train.y, balanced, steps, seed), lr, seed)
    return found.valid, float(average_precision_score(parts.test.y, scores(found.net, parts.test)))


def measured(path: str, method: str, steps: int) -> tuple[list[float], bool]:
    """Return test AP on every split, at the lr of the first one, and whether that lr ends the grid."""
    torch.set_num_threads(1)
    first = {lr: trained(path, method, lr, SEEDS[0], steps) for lr in LRS}
    best = max(LRS, key=lambda lr: first[lr][0])
    others = [trained(path, method, best, seed, steps)[1] for seed in SEEDS[1:]]
    return [first[best][1], *others], best in (LRS[0], LRS[-1])


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return fmean(values), stdev(values) / math.sqrt(len(values))


def verdict(values: list[float], plain: list[float]) -> str:
    """Return whether a method is better or worse than cross entropy by two standard errors, or tied."""
    mean, error = mean_and_error([ours - theirs for ours, theirs in zip(values, plain, strict=True)])
    return "tied" if abs(mean) <= 2 * error else "better" if mean > 0 else "worse"


def row_of(task: Task, share: float, found: dict[str, tuple[list[float], bool]]) -> Row:
    """Return the line of a task."""
    row: Row = {"task": task.name, "positive": f"{share:.1%}"}
    for method, (values, at_end) in found.items():
        mean, error = mean_and_error(values)
        against = "" if method == PLAIN else f" {verdict(values, found[PLAIN][0])}"
        row[method] = f"{mean:.3f} ± {error:.3f}{against}{'*' if at_end else ''}"
    return row


def main() -> None:
    """Measure, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="where to write the table")
    parser.add_argument("--quick", action="store_true", help="20 steps on digits, to see that it works")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    tasks = [task for task in available() if task.name in (TASKS[-2:-1] if given.quick else TASKS)]
    steps = 20 if given.quick else STEPS
    at = [prepare(task, Path("build/top_of_list/tasks")) for task in tasks]
    cells = list(product((one.path for one in at), METHODS))
    with ProcessPoolExecutor(given.workers) as pool:
        done = list(pool.map(measured, *zip(*cells, strict=True), [steps] * len(cells)))
    found = dict(zip(cells, done, strict=True))
    rows = [
        row_of(t, one.share, {name: found[one.path, name] for name in METHODS})
        for t, one in zip(tasks, at, strict=True)
    ]
    print(as_markdown(rows))
    if given.csv:
        write_csv(rows, given.csv)


if __name__ == "__main__":
    main()
