"""Whether a memory is better without the net force of its gradient, and by which of two forms of it.

    FCCO_DATA=... python benchmarks/net_force.py [--loss nca] [--quick] [--csv docs/net_force.csv]

If F does not change when all outputs move together, the gradients of all outputs add up to 0. Those of a batch with a
memory do so only on average, and the rest is noise. "others" takes from each gradient the mean of the others', and
"strangers", for NCA, that of other classes. Linear maps and networks with a hidden layer of 64 are trained by Adam with
a cosine lr, on at most 1,200 random rows. The lr is the best on seed 0 of a grid with factors of 4, which grows where
the best is at its end; the figures are those of seeds 1 to 3. They are the exact objective on all rows, of average
precision minus the metric itself; lower is better.

An arm is better or worse than the memory as it is if the mean paired difference exceeds two of its standard errors. The
net force is left out by default if, on the first two data sets of a loss, the rows that gain exceed those that lose by
at least 4 of 16. The other two only report. It takes half an hour on one core,
and goes on where its file ends.
"""

from __future__ import annotations

import argparse
import copy
import math
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from sklearn.datasets import load_diabetes, load_wine
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

import fcco
from fcco.core.objective import Objective
from fcco.core.surrogates import as_surrogate
from fcco.losses.loss import ObjectiveLoss
from fcco.objectives.bipartite import AveragePrecision, PNormPush
from fcco.objectives.neighbours import NCA
from fcco.objectives.survival import Cox
from harness import data
from harness.tables import Row, as_markdown, read_csv, write_csv

SETS = {
    "nca": ("digits", "wine", "breast cancer", "usps"),
    "ap": ("breast cancer", "ijcnn1", "diabetes", "covtype"),
    "push": ("breast cancer", "ijcnn1", "diabetes", "covtype"),
    "cox": ("diabetes", "whas500", "veteran", "flchain"),
}
RULES = {"nca": fcco.BSGD(), "ap": fcco.SOAP(gamma=0.7), "push": fcco.BSGD(), "cox": fcco.BSGD()}
Cell = tuple[str, str, int, int]
CELL = ("loss", "data", "hidden", "batch")
ARMS = ("in-batch", "memory", "others", "strangers")
STEPS = {4: 300, 16: 200, 64: 100, 256: 40}
LRS, N = (0.004, 0.016, 0.064), 1200


@lru_cache
def columns(loss: str, name: str) -> tuple[Tensor, ...]:
    """Return features, and what a loss takes beside its outputs."""
    if loss == "cox":
        x, *others = data.survival(name)
    elif loss == "nca" and name in ("digits", "usps"):
        x, *others = data.classes(name)
    elif loss == "nca" and name == "wine":
        x, others = data.standardised(load_wine().data), [torch.tensor(load_wine().target)]
    elif name == "diabetes":
        target = torch.tensor(load_diabetes().target)
        x, others = data.standardised(load_diabetes().data), [(target >= target.quantile(0.9)).long()]
    else:
        x, *others = data.binary(name)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:N]
    return tuple(column[rows] for column in (x, *others))


class Loss(ObjectiveLoss):
    """The loss of an arm; ``tau`` is that of average precision, and follows the scores."""

    tau = 1.0

    def at_step(self, objective: Any, batch: Any, **_: Any) -> Any:
        """Return the objective with the temperature of the step."""
        objective = copy.copy(objective)
        objective.tau = self.tau
        return objective, None


def without_mean_of_others(gradient: Any, _: Any) -> Any:
    """Return gradients without the mean of those of all other examples."""
    return gradient - (gradient.sum(0) - gradient) / (len(gradient) - 1)


def made(loss: str, arm: str, others: tuple[Tensor, ...]) -> Loss:
    """Return the loss of an arm."""
    label = (others[-1] if loss != "cox" else others[1].long()).long()
    sizes = label.bincount(minlength=2).float()
    objective: Objective
    if loss == "nca":
        objective = NCA(sizes)
    elif loss == "cox":
        objective = Cox(sizes)
    elif loss == "ap":
        objective = AveragePrecision(as_surrogate("ramp"), 1.0, sizes)
    else:
        objective = PNormPush(as_surrogate("squared_hinge"))
    if arm == "memory":
        objective.without_net_force = lambda gradient, _: gradient  # type: ignore[method-assign]
    if arm == "others":
        objective.without_net_force = without_mean_of_others  # type: ignore[method-assign, assignment]
    memory = 0 if arm == "in-batch" else 1024 if loss == "nca" else 256
    return Loss(objective, len(label), rule=RULES[loss], memory=memory).train(arm != "in-batch")


def trained(loss: str, name: str, hidden: int, batch: int, arm: str, lr: float, seed: int) -> float:
    """Return the objective of all rows after training; infinity if it diverged."""
    torch.manual_seed(seed)
    x, *others = columns(loss, name)
    loss_fn, out = made(loss, arm, tuple(others)), 8 if loss == "nca" else 1
    layers = [nn.Linear(x.shape[1], hidden), nn.ReLU()] if hidden else []
    model = nn.Sequential(*layers, nn.Linear(hidden or x.shape[1], out), *([] if out > 1 else [nn.Flatten(0)]))
    optimizer = torch.optim.Adam(model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS[batch])
    size = min(batch, len(x) // 2)
    rows: list[Tensor] = []
    try:
        for _ in range(STEPS[batch]):
            rows = rows or list(torch.randperm(len(x))[: len(x) // size * size].split(size))
            part = rows.pop()
            if loss == "ap":
                with torch.no_grad():
                    loss_fn.tau = 0.0625 * max(model(x).std().item(), 1e-6)
            optimizer.zero_grad()
            loss_fn(model(x[part]), *(column[part] for column in others), index=part).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            outputs = model(x)
            if loss == "ap":
                return -float(average_precision_score(others[0], outputs))
            return loss_fn.eval()(outputs, *others).item()
    except (ValueError, fcco.NotFiniteError):
        return math.inf


def measured(cell: Cell, arm: str) -> tuple[float, list[float]]:
    """Return the best learning rate and the objectives of the other seeds."""
    found = {lr: trained(*cell, arm, lr, 0) for lr in LRS}
    while (best := min(found, key=lambda lr: found[lr])) in (min(found), max(found)) and 1e-5 < best < 4:
        lr = best / 4 if best == min(found) else best * 4
        found[lr] = trained(*cell, arm, lr, 0)
    return best, [trained(*cell, arm, best, seed) for seed in (1, 2, 3)]


def verdict(values: list[float], base: list[float]) -> str:
    """Return what the paired differences say, beyond two standard errors."""
    gains = [b - v for v, b in zip(values, base, strict=True)]
    if not all(map(math.isfinite, gains)):
        return "even" if values == base else "worse" if math.isinf(sum(values)) else "better"
    far = abs(fmean(gains)) > 2 * stdev(gains) / math.sqrt(len(gains))
    return ("better" if fmean(gains) > 0 else "worse") if far else "even"


def main() -> None:
    """Measure, print the verdicts and write all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loss", choices=SETS, action="append", help="may be given more than once")
    parser.add_argument("--quick", action="store_true", help="one cell of each loss, to see that it runs")
    parser.add_argument("--csv", type=Path, help="where to write the figures")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = list(read_csv(given.csv)) if given.csv and given.csv.exists() else []
    done = {tuple(str(row[key]) for key in CELL) for row in rows}
    widths, sizes = ((0,), (64,)) if given.quick else ((64, 0), (4, 64, 16, 256))
    losses = given.loss or list(SETS)
    sets = [(loss, SETS[loss][k]) for k in range(1 if given.quick else 4) for loss in losses]
    for cell in ((*one, hidden, batch) for one in sets for batch in sizes for hidden in widths):
        if tuple(map(str, cell)) in done:
            continue
        found = {arm: measured(cell, arm) for arm in (ARMS if cell[0] == "nca" else ARMS[:3])}
        for arm, (lr, values) in found.items():
            row: Row = {**dict(zip(CELL, cell, strict=True)), "arm": arm}
            row["half"] = "choosing" if cell[1] in SETS[cell[0]][:2] else "reporting"
            row |= {"lr": lr, "objective": fmean(values), "deviation": stdev(values)}
            for base in ("memory", "in-batch"):
                row[f"against {base}"] = "" if arm == base else verdict(values, found[base][1])
            rows.append(row)
        print(*cell, {arm: round(fmean(values), 4) for arm, (_, values) in found.items()}, flush=True)
        if given.csv:
            write_csv(rows, given.csv)
    print(as_markdown(totals(rows)))


def totals(rows: list[Row]) -> list[Row]:
    """Return how many rows of each half are better, even and worse."""
    found: list[Row] = []
    for loss, half, arm in dict.fromkeys((r["loss"], r["half"], r["arm"]) for r in rows):
        some = [row for row in rows if (row["loss"], row["half"], row["arm"]) == (loss, half, arm)]
        line: Row = {"loss": loss, "half": half, "arm": arm}
        for base in ("memory", "in-batch"):
            counts = [sum(row[f"against {base}"] == word for row in some) for word in ("better", "even", "worse")]
            line[f"against {base}"] = ", ".join(map(str, counts)) if arm != base else ""
        found.append(line)
    return found


if __name__ == "__main__":
    main()
