"""The default losses against what users have today for small batches: other libraries' memories, and larger batches.

    pip install --no-deps --target build/rivals torchsurv==0.2.0 pytorch-metric-learning==2.9.0
    FCCO_DATA=... PYTHONPATH=build/rivals python benchmarks/memory_rivals.py [--objective cox] [--quick] [--workers 1]

torchsurv also needs pydantic. Methods of libraries that are not installed are named in the tables and left out.

Every method trains a linear model with ``MovingAverageSGD`` and a cosine (:mod:`harness.excess`), at the learning rate
that is best for it on one grid (:mod:`harness.search`). Its *excess* is the exact objective after training less the
lowest value that anybody reached, L-BFGS on all data included. The tables show it as a ratio to the first column.

cox
    "Momentum S, r" is torchsurv's ``Momentum`` with ``steps=S`` and ``rate=r``; 10 and .999 are its defaults. Of its
    two networks, the better one counts.
nca
    The objective is the mean of -log p, which is that of pytorch-metric-learning's ``NCALoss`` if embeddings are not
    normalised. "CrossBatchMemory" is used as documented. It puts the batch into its queue first, so that every example
    finds a copy of itself there, which ``NCALoss`` takes for a neighbour. "queue first" compares a batch with the queue
    of earlier batches and then adds it to the queue, by methods of the same classes.
average_precision
    A batch is a random one or has as many positives as negatives. All methods take the same number of steps.

"4 times the batch" takes a quarter of the steps, so that it sees as many examples as the others.

Results are kept in ``--cache`` as jobs end, so that an interrupted command continues where it was. The CSV file
``--results`` has all of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count, islice
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from torch import Tensor, nn

import fcco
import fcco.functional as exact
from fcco import losses
from fcco_reproduce import Job, run_jobs
from harness.exact import minimise
from harness.excess import BETA, Excess, Row, as_excess
from harness.search import Found, search_lr
from harness.tables import as_markdown, brief, read_csv, write_csv
from harness.tasks import shuffled
from remembering import _data as data

CENTRE, REACH, SEEDS = 0.25, 5, 3
PACKAGES = ("harness", "remembering")
EVERY = {"metabric": 2, "support": 4, "covtype": 7}  # of larger data, every so-manyth row is used
DIMENSIONS, QUEUE = 8, 1024  # of NCA
Tables = dict[Row, dict[str, Excess | None]]


@dataclass(frozen=True)
class Problem:
    """A linear model of ``x`` on one objective; ``targets`` are what a loss takes beside outputs and rows."""

    x: Tensor
    targets: tuple[Tensor, ...]
    start: Tensor
    exact: Callable[..., Tensor]  # of outputs in float64 and targets
    penalty: float

    def outputs(self, w: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of some rows, and their targets."""
        return self.x[rows] @ w, *(target[rows] for target in self.targets)

    def objective(self, w: Tensor) -> Tensor:
        """Return the exact objective of weights in float64."""
        return self.exact(self.x.double() @ w, *self.targets) + self.penalty / 2 * w.square().sum()


@lru_cache
def problem(objective: str, name: str) -> Problem:
    """Return the problem of an objective on a data set."""
    part = slice(None, None, EVERY.get(name, 1))
    if objective == "cox":
        x, time, event = (column[part] for column in data.survival(name))
        return Problem(x, (time, event.bool()), torch.zeros(x.shape[1]), exact.cox_loss, 0.0)
    if objective == "nca":
        x, label = (column[part] for column in data.classes(name))
        start = torch.randn(x.shape[1], DIMENSIONS, generator=torch.Generator().manual_seed(0)) / math.sqrt(x.shape[1])
        return Problem(x, (label,), start, partial(exact.nca_loss, log_likelihood=True), 1e-4)
    x, target = (column[part] for column in data.binary(name))
    return Problem(x, (target,), torch.zeros(x.shape[1]), exact.average_precision_loss, 1e-3)


@dataclass(frozen=True)
class Learner:
    """Weights, the loss of a batch's rows as a function of them, and further weights that may be used instead."""

    weights: nn.Parameter
    loss: Callable[[Tensor], Tensor]
    averages: tuple[Tensor, ...] = ()


def by_loss(place: Problem, loss_fn: Callable[..., Tensor], *, takes_rows: bool = True) -> Learner:
    """Return the learner of a loss of outputs, targets and perhaps rows."""
    w = nn.Parameter(place.start.clone())
    return Learner(w, lambda rows: loss_fn(*place.outputs(w, rows), *([rows] if takes_rows else [])))


def cox_in_batch(place: Problem, batch: int) -> Learner:
    return by_loss(place, losses.CoxLoss(len(place.x), rule=fcco.BSGD()))


def cox_baseline(place: Problem, batch: int) -> Learner:
    return by_loss(place, losses.BaselineCoxLoss.from_targets(*place.targets))  # type: ignore[arg-type]


def cox_ours(place: Problem, batch: int) -> Learner:
    return by_loss(place, losses.CoxLoss.from_targets(place.targets[1]))


def cox_momentum(place: Problem, batch: int, *, steps: int, rate: float) -> Learner:
    from torchsurv.loss.cox import neg_partial_log_likelihood
    from torchsurv.loss.momentum import Momentum

    backbone = nn.Linear(place.x.shape[1], 1, bias=False)
    nn.init.zeros_(backbone.weight)
    likelihood = partial(neg_partial_log_likelihood, ties_method="breslow")
    model = Momentum(backbone, likelihood, batchsize=batch, steps=steps, rate=rate)
    w = model.online.weight

    def loss(rows: Tensor) -> Tensor:
        time, event = (target[rows] for target in place.targets)
        return model(place.x[rows], event, time) + 0.0 * w.sum()  # no event, no gradient

    return Learner(w, loss, (model.target.weight,))


def nca_in_batch(place: Problem, batch: int) -> Learner:
    return by_loss(place, losses.NCALoss(len(place.x), log_likelihood=True, rule=fcco.BSGD()))


def nca_ours(place: Problem, batch: int) -> Learner:
    return by_loss(place, losses.NCALoss(len(place.x), log_likelihood=True))


def pml_loss() -> Any:
    """Return pytorch-metric-learning's NCA loss of embeddings that are not normalised."""
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import NCALoss

    return NCALoss(softmax_scale=1, distance=LpDistance(power=2, normalize_embeddings=False))


def pml_memory() -> Any:
    """Return pytorch-metric-learning's memory around its NCA loss."""
    from pytorch_metric_learning.losses import CrossBatchMemory

    return CrossBatchMemory(pml_loss(), DIMENSIONS, QUEUE)


def nca_pml(place: Problem, batch: int) -> Learner:
    return by_loss(place, pml_loss(), takes_rows=False)


def nca_pml_memory(place: Problem, batch: int) -> Learner:
    return by_loss(place, pml_memory(), takes_rows=False)


def nca_pml_queue_first(place: Problem, batch: int) -> Learner:
    memory = pml_memory()

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        held = QUEUE if memory.has_been_filled else memory.queue_idx
        known = memory.embedding_memory[:held].clone(), memory.label_memory[:held].clone()
        memory.add_to_memory(embeddings, labels, len(labels))
        return memory.loss(embeddings, labels, None, *known) if held else memory.loss(embeddings, labels)

    return by_loss(place, loss, takes_rows=False)


def ap_in_batch(place: Problem, batch: int) -> Learner:
    return by_loss(place, losses.AveragePrecisionLoss.from_targets(place.targets[0], rule=fcco.BSGD()))


def ap_ours(place: Problem, batch: int) -> Learner:
    return by_loss(place, losses.AveragePrecisionLoss.from_targets(place.targets[0]))


@dataclass(frozen=True)
class Method:
    """How a learner is made, and from which batches it learns."""

    make: Callable[[Problem, int], Learner]
    needs: str = "fcco"
    times: int = 1  # the size of its batches, in those of the others
    balanced: bool = False

    @property
    def is_installed(self) -> bool:
        return all(importlib.util.find_spec(name) for name in self.needs.split())


def momentum(steps: int, rate: float) -> Method:
    return Method(partial(cox_momentum, steps=steps, rate=rate), "torchsurv pydantic")


METHODS: dict[str, dict[str, Method]] = {
    "cox": {
        "in-batch": Method(cox_in_batch),
        "4 times the batch": Method(cox_in_batch, times=4),
        "Momentum 10, .999": momentum(10, 0.999),
        "Momentum 10, .9": momentum(10, 0.9),
        "Momentum 16, 0": momentum(16, 0.0),
        "BaselineCoxLoss": Method(cox_baseline),
        "CoxLoss": Method(cox_ours),
    },
    "average_precision": {
        "in-batch, balanced": Method(ap_in_batch, balanced=True),
        "in-batch, random": Method(ap_in_batch),
        "AveragePrecisionLoss, balanced": Method(ap_ours, balanced=True),
        "AveragePrecisionLoss, random": Method(ap_ours),
    },
    "nca": {
        "in-batch": Method(nca_in_batch),
        "4 times the batch": Method(nca_in_batch, times=4),
        "PML in-batch": Method(nca_pml, "pytorch_metric_learning"),
        "PML CrossBatchMemory": Method(nca_pml_memory, "pytorch_metric_learning"),
        "PML queue first": Method(nca_pml_queue_first, "pytorch_metric_learning"),
        "NCALoss": Method(nca_ours),
    },
}
ROWS = [
    Row("cox", "whas500", 16, 20),
    Row("cox", "metabric", 8, 3),
    Row("cox", "support", 16, 2),
    Row("average_precision", "breast cancer", 32, 12),
    Row("average_precision", "covtype", 32, 2),
    Row("nca", "digits", 16, 2),
    Row("nca", "digits", 64, 4),
]
QUICK_ROWS = [  # these data ship with scikit-learn
    Row("cox", "diabetes", 32, 1),
    Row("average_precision", "breast cancer", 32, 1),
    Row("nca", "digits", 128, 1),
]


def rows_of(objective: str, *, quick: bool = False) -> list[Row]:
    return [row for row in (QUICK_ROWS if quick else ROWS) if row.objective == objective]


def batches(row: Row, method: Method, seed: int) -> Iterator[Tensor]:
    """Yield the batches of a run: as many balanced ones as there are random ones in the passes of the row."""
    place = problem(row.objective, row.data)
    if not method.balanced:
        return shuffled(len(place.x), row.batch * method.times, row.passes, seed)
    sampler = fcco.data.PositiveNegativeSampler(place.targets[0], batch=row.batch, drop_last=True, seed=seed)
    endless = (torch.tensor(rows) for _ in count() for rows in sampler)
    return islice(endless, len(place.x) // row.batch * row.passes)


def train(row: Row, method: Method, lr: float, seed: int) -> float:
    """Train once and return the exact objective, or ``inf`` if training diverged."""
    torch.manual_seed(seed)
    place, plan = problem(row.objective, row.data), list(batches(row, method, seed))
    learner = method.make(place, row.batch * method.times)
    w = learner.weights
    optimizer = fcco.optim.MovingAverageSGD([w], lr=lr, beta=BETA, weight_decay=place.penalty)
    for t, rows in enumerate(plan):
        optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * t / len(plan))) / 2
        optimizer.zero_grad()
        try:
            learner.loss(rows).backward()
        except ValueError:  # losses refuse outputs that are not finite
            if w.detach().abs().max() < 1e3:
                raise
            return math.inf
        optimizer.step()
        if not w.detach().abs().max() < 1e9:
            return math.inf
    reached = [value(place, weights) for weights in (w, *learner.averages)]
    return min(reached)


def value(place: Problem, weights: Tensor) -> float:
    """Return the exact objective of trained weights, infinite if it is not a number."""
    found = place.objective(weights.detach().double().reshape(place.start.shape)).item()
    return found if math.isfinite(found) else math.inf


def minimum(objective: str, name: str, iterations: int) -> float:
    """Return the minimum that L-BFGS finds on all data, from the same start as training."""
    place = problem(objective, name)
    w = nn.Parameter(place.start.double())
    minimise(lambda: place.objective(w), [w], iterations)
    return place.objective(w.detach()).item()


def tune(row: list[Any], method: str, grid: dict[str, Any]) -> dict[str, Any]:
    """Search the learning rate of a method in a row; ``grid`` holds the arguments of :func:`search_lr`."""
    place, lowest = Row(*row), math.inf
    chosen = METHODS[place.objective][method]

    def score(lr: float, seed: int) -> float:
        nonlocal lowest
        reached = train(place, chosen, lr, seed)
        lowest = min(lowest, reached)
        return reached

    return {**search_lr(score, **grid)._asdict(), "lowest": lowest}


def measure(row: Row, cache: Path, *, quick: bool = False, workers: int = 1) -> dict[str, Excess | None]:
    """Return the excess of every method in a row, None for those that are not installed."""
    grid: dict[str, Any] = {"centre": CENTRE, "seeds": SEEDS, "reach": REACH}
    if quick:
        grid = {"centre": CENTRE, "seeds": 1, "reach": 0, "around": 1}
    names = [name for name, method in METHODS[row.objective].items() if method.is_installed]
    settings = {"objective": row.objective, "name": row.data, "iterations": 5 if quick else 150}
    jobs = [Job(minimum, settings, packages=PACKAGES)]
    jobs += [Job(tune, {"row": list(row), "method": name, "grid": grid}, packages=PACKAGES) for name in names]
    lowest, *results = run_jobs(jobs, workers=workers, cache=cache, progress=sys.stderr)
    lowest = min([lowest, *(result.pop("lowest") for result in results)])
    found = {name: as_excess(Found(**result), lowest) for name, result in zip(names, results, strict=True)}
    return {name: found.get(name) for name in METHODS[row.objective]}


def ratios(entries: dict[str, Excess | None]) -> dict[str, float]:
    """Return the excess of every installed method divided by that of the first method."""
    known = {name: entry.excess for name, entry in entries.items() if entry is not None}
    base = next(iter(known.values()))
    return {name: excess / base for name, excess in known.items()}


def as_table(objective: str, tables: Tables) -> str:
    """Return the table of an objective in Markdown: excesses of the first method, and ratios to it of all others."""
    rows = {row: entries for row, entries in tables.items() if row.objective == objective}
    first, *others = METHODS[objective]
    lines: list[dict[str, str]] = []
    for row, entries in rows.items():
        base, ratio = entries[first], ratios(entries)
        assert base is not None
        line = {"data, batch, passes": str(row), f"{first} (excess)": brief(base.excess)}
        lines.append(line | {name: brief(ratio[name]) if name in ratio else "not installed" for name in others})
    line = {"data, batch, passes": "geometric mean", f"{first} (excess)": ""}
    for name in others:
        known = [ratio[name] for ratio in map(ratios, rows.values()) if name in ratio]
        line[name] = brief(geometric_mean(known)) if known and min(known) > 0 and max(known) < math.inf else ""
    ends = [f"{name} ({row})" for row, entries in rows.items() for name, e in entries.items() if e and e.at_end]
    note = f"\n\nBest learning rate at the end of the grid: {'; '.join(ends)}." if ends else ""
    return f"{objective}: excess, as a ratio to the first column\n\n{as_markdown([*lines, line])}{note}\n"


def save(tables: Tables, path: Path) -> None:
    """Write all entries to a CSV file, in the place of earlier ones of the same rows."""
    lines: list[dict[str, Any]] = []
    for row, entries in tables.items():
        ratio = ratios(entries)
        for name, entry in entries.items():
            if entry is not None:
                found = {"excess": f"{entry.excess:.6g}", "standard_error": f"{entry.error:.3g}"}
                found |= {"ratio": f"{ratio[name]:.4g}", "lr": f"{entry.lr:.6g}"}
                lines.append({**row._asdict(), "method": name, **found, "lr_at_end_of_grid": int(entry.at_end)})
    new = {tuple(map(str, row)) for row in tables}
    old = read_csv(path) if path.exists() else []
    write_csv([*(line for line in old if tuple(line[key] for key in Row._fields) not in new), *lines], path)


def main() -> None:
    parser = argparse.ArgumentParser(description="The default losses against the memories of other libraries.")
    parser.add_argument("--objective", choices=METHODS, action="append", help="may be given more than once")
    parser.add_argument("--quick", action="store_true", help="few steps on small data, to see that it runs")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--cache", type=Path, default=Path("build/memory_rivals.jsonl"))
    parser.add_argument("--results", type=Path, default=Path("docs/memory_rivals.csv"))
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    for objective in given.objective or METHODS:
        tables: Tables = {}
        for row in rows_of(objective, quick=given.quick):
            tables[row] = measure(row, given.cache, quick=given.quick, workers=given.workers)
            if not given.quick:
                save(tables, given.results)
        print(as_table(objective, tables), flush=True)


if __name__ == "__main__":
    main()
