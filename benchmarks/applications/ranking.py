"""Learning to rank: a smooth NDCG from parts of lists, compared with losses on whole lists."""

from __future__ import annotations

import importlib
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fcco
from applications import DIVERGED, Application, Case, Method, Result, Table
from fcco.functional import list_net_loss, ndcg_loss
from fcco_reproduce.datasets import load_lightgbm_ranking
from harness.splits import Part, Parts, scaled
from harness.timing import timed
from harness.training import DivergedError, train

OURS, LISTNET, APPROX = "NDCGLoss", "ListNet, whole lists", "ApproxNDCG, whole lists"
LIST = "one list of "
IN_MEMORY = 4_000  # items of a list, of which all pairs are held at once
MOST_TREES, STOP_AFTER = 500, 50

Sorted = tuple[Any, Any, Any]
Predict = Callable[[Any], Any]
Grow = Callable[[Sorted, Sorted, int], Predict]


@lru_cache
def load(name: str) -> Parts:
    """Load LightGBM's example, with a fifth of its training queries for validation, or simulate lists."""
    if name.startswith(LIST):
        n = int(name.removeprefix(LIST).replace(",", ""))
        return scaled(*(make_lists(n, seed, count) for seed, count in ((0, 1), (1, 2), (2, 4))))
    data, test = (load_lightgbm_ranking(part) for part in ("train", "test"))
    held = data.query % 5 == 0
    parts = [(data.x[rows], (data.y[rows], data.query[rows])) for rows in (~held, held)]
    return scaled(*parts, (test.x, (test.y, test.query)))


def make_lists(n: int, seed: int, count: int, features: int = 20) -> tuple[Any, tuple[Any, ...]]:
    """Simulate lists whose best 3% are relevant, by 1 to 4, in the order of a linear score with noise."""
    w = np.random.default_rng(0).normal(size=features)
    rng = np.random.default_rng(seed + 1)
    x = rng.normal(size=(count * n, features))
    score = (x @ w / np.linalg.norm(w) + 0.5 * rng.normal(size=count * n)).reshape(count, n)
    place = score.argsort(1)[:, ::-1].argsort(1) / n
    y = sum((place < share).astype(np.float32) for share in (0.03, 0.01, 0.004, 0.001))
    return x, (np.asarray(y).ravel(), np.repeat(np.arange(count), n))


def ndcg(scores: Tensor, part: Part, k: int = 10) -> float:
    """Return NDCG@10 with gains 2^y - 1, the mean over queries that have a relevant item."""
    y, query = part.y
    found = []
    for q in query.unique():
        gain = y[query == q].double().exp2() - 1
        discount = 1 / torch.arange(2, min(k, len(gain)) + 2).double().log2()
        ideal = gain.sort(descending=True).values[: len(discount)] @ discount
        if ideal > 0:
            order = scores[query == q].argsort(descending=True)[: len(discount)]
            found.append(float(gain[order] @ discount / ideal))
    return float(np.mean(found))


def limited(batches: Iterable[list[int]], examples: int) -> Iterator[Tensor]:
    """Yield batches until that many examples have been seen."""
    seen = 0
    for rows in batches:
        if seen >= examples:
            return
        seen += len(rows)
        yield torch.tensor(rows)


def batches(case: Case, method: str, part: Part, seed: int) -> list[Tensor]:
    """Return the batches of a method, with the same number of examples in total for all methods.

    Half of a batch of a long list is relevant. Of short lists, a batch has 8 items each, or whole lists.
    """
    y, query = part.y
    sampler: Any
    if method in (LISTNET, APPROX):
        average = len(query) / len(query.unique())
        sampler = fcco.data.QuerySampler(query, queries=max(round(case.batch / average), 1), items=None, seed=seed)
    elif case.data.startswith(LIST):
        sampler = fcco.data.PositiveNegativeSampler(y > 0, batch=case.batch, seed=seed)
    else:
        sampler = fcco.data.QuerySampler(query, y, queries=max(case.batch // 8, 1), items=8, seed=seed)
    endless = chain.from_iterable(sampler for _ in range(case.passes * len(y)))
    return list(limited(endless, case.passes * len(y)))


def loss_of(method: str, part: Part) -> Any:
    """Return the loss of a method, as ``loss(scores, relevance, query, rows)``."""
    y, query = part.y
    if method == OURS:
        return fcco.losses.NDCGLoss.from_targets(y, query)
    if method == "in-batch NDCG":
        return fcco.losses.NDCGLoss(len(y), rule=fcco.BSGD())
    if method == LISTNET:
        return lambda scores, y, query, _: list_net_loss(scores, y, query)
    return lambda scores, y, query, _: approx_ndcg(scores, y, query)


def approx_ndcg(scores: Tensor, y: Tensor, query: Tensor) -> Tensor:
    """Return ApproxNDCG of Qin et al. as in allRank, from the sigmoids of all pairs of a list."""
    values = []
    for q in query.unique():
        h, gain = scores[query == q], y[query == q].exp2() - 1
        if gain.sum() > 0:
            rank = 0.5 + torch.sigmoid(h.unsqueeze(0) - h.unsqueeze(1)).sum(1)
            place = torch.arange(2, len(gain) + 2)
            ideal = (gain.sort(descending=True).values / place.log2()).sum()
            values.append(-(gain / (1 + rank).log2()).sum() / ideal)
    return torch.stack(values).mean() if values else 0 * scores.sum()


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once, starting at 0."""
    parts = load(case.data)
    if method in TREES:
        return boosted(parts, TREES[method], seed)
    x, (y, query) = parts.train
    w = nn.Parameter(torch.zeros(x.shape[1]))
    optimizer = torch.optim.Adam([w], lr=lr)
    if method == "full batch":
        step: Any = lambda _: ndcg_loss(x @ w, y, query)  # noqa: E731
        plan = [torch.empty(0)] * 100
    else:
        loss_fn = loss_of(method, parts.train)
        step = lambda rows: loss_fn(x[rows] @ w, y[rows], query[rows], rows)  # noqa: E731
        plan = batches(case, method, parts.train, seed)
    try:
        seconds = train(step, plan, [optimizer])
    except DivergedError:
        return DIVERGED
    found = w.detach()
    same = method in (OURS, "in-batch NDCG", "full batch")
    objective = ndcg_loss(x.double() @ found.double(), y, query).item() if same else math.nan
    measured = case.data.startswith(LIST) and len(x) >= IN_MEMORY and method != "full batch"
    memory = peak_of(case, method) if measured else math.nan
    valid, test = (ndcg(part.x @ found, part) for part in parts[1:])
    return Result(objective, valid, test, seconds, memory)


def boosted(parts: Parts, grow: Grow, seed: int) -> Result:
    """Grow trees until the NDCG@10 of the validation queries no longer improves."""
    seconds, predict = timed(lambda: grow(_lists_together(parts.train), _lists_together(parts.valid), seed))
    valid, test = (ndcg(torch.as_tensor(predict(part.x.numpy())), part) for part in parts[1:])
    return Result(math.nan, valid, test, seconds)


def _lists_together(part: Part) -> Sorted:
    """Return features, relevances and queries, sorted by query as the tree libraries need them."""
    order = part.y[1].argsort(stable=True)
    return part.x[order].numpy(), part.y[0][order].numpy(), part.y[1][order].numpy()


def by_lightgbm(train: Sorted, valid: Sorted, seed: int) -> Predict:
    """Train lambdarank with the settings of LightGBM's own example."""
    lightgbm: Any = importlib.import_module("lightgbm")
    sets = [lightgbm.Dataset(x, y, group=np.unique(query, return_counts=True)[1]) for x, y, query in (train, valid)]
    settings = {"objective": "lambdarank", "metric": "ndcg", "eval_at": [10], "num_threads": 1, "verbosity": -1}
    settings |= {"learning_rate": 0.1, "num_leaves": 31, "min_data_in_leaf": 50, "min_sum_hessian_in_leaf": 5.0}
    settings |= {"bagging_freq": 1, "bagging_fraction": 0.9, "seed": seed}
    stop = lightgbm.early_stopping(STOP_AFTER, verbose=False)
    model = lightgbm.train(settings, sets[0], MOST_TREES, valid_sets=sets[1:], callbacks=[stop])
    return lambda x: model.predict(x, num_iteration=model.best_iteration)


def by_xgboost(train: Sorted, valid: Sorted, seed: int) -> Predict:
    """Train rank:ndcg with trees of depth 6."""
    xgboost: Any = importlib.import_module("xgboost")
    sets = [xgboost.DMatrix(x, label=y, qid=query) for x, y, query in (train, valid)]
    settings = {"objective": "rank:ndcg", "eval_metric": "ndcg@10", "eta": 0.1, "max_depth": 6, "nthread": 1}
    settings |= {"subsample": 0.9, "seed": seed}
    model = xgboost.train(
        settings, sets[0], MOST_TREES, evals=[(sets[1], "valid")], early_stopping_rounds=STOP_AFTER, verbose_eval=0
    )
    trees = (0, model.best_iteration + 1)
    return lambda x: model.predict(xgboost.DMatrix(x), output_margin=True, iteration_range=trees)


TREES: dict[str, Grow] = {"lightgbm": by_lightgbm, "xgboost": by_xgboost}


@lru_cache
def peak_of(case: Case, method: str) -> float:
    """Return the MiB that two steps add to a process of their own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_two_steps, (case, method))


def _two_steps(case: Case, method: str) -> float:
    torch.set_num_threads(1)
    part = load(case.data).train
    x, (y, query) = part
    w = nn.Parameter(torch.zeros(x.shape[1]))
    optimizer, loss_fn = torch.optim.Adam([w]), loss_of(method, part)
    (torch.zeros(2, requires_grad=True).sum() * 1).backward()
    plan = batches(Case(case.data, case.batch, 1), method, part, 0)
    # Loading the data may have taken more than a step does, so the mark is reset to what is held now.
    Path("/proc/self/clear_refs").write_text("5")
    before = _high_water()
    for rows in (plan * 2)[:2]:
        loss_fn(x[rows] @ w, y[rows], query[rows], rows).backward()
        optimizer.step()
    return _high_water() - before


def _high_water() -> float:
    """Return the MiB that this process has held at most since the mark was reset; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def methods(case: Case) -> tuple[Method, ...]:
    """Return the methods: ApproxNDCG only where its pairs fit in memory, and trees only on the real lists."""
    long = case.data.startswith(LIST)
    pairs = not long or int(case.data.removeprefix(LIST).replace(",", "")) <= IN_MEMORY
    return (
        Method(OURS, "ours"),
        Method("in-batch NDCG", "in-batch"),
        Method(LISTNET, "field", batched=not long),
        *((Method(APPROX, "field", batched=not long),) if pairs else ()),
        *(Method(name, "field", tuned=False, batched=False, needs=name) for name in TREES if not long),
        Method("full batch", "full", batched=False),
    )


def goal(table: Table) -> str:
    """Return how much memory a step on a long list takes."""
    lines = []
    for case, entries in table.items():
        if case.data.startswith(LIST) and not math.isnan(entries[OURS].typical("memory")):
            held = [f"{name} {entry.typical('memory'):.0f}" for name, entry in entries.items() if name != "full batch"]
            lines.append(f"- {case.data}, batch {case.batch}: " + ", ".join(held))
    if not lines:
        return ""
    return (
        "Goal: on a long list, the NDCG@10 of the losses on whole lists, with less than 1 GiB of memory. The table of "
        "the metric has the NDCG@10. The peak memory of training, in MiB on top of the data, is:\n\n"
        + "\n".join(lines)
        + "\n\nThe memory of ApproxNDCG grows with the square of the number of items, so that it is only run up to "
        + f"{IN_MEMORY:,} items."
    )


APPLICATION = Application(
    title="Learning to rank",
    text=(
        "The data are LightGBM's lambdarank example (160 queries of about 15 documents for training, 41 for "
        "validation, and its own 50 for testing) and simulated lists of 4,000 and 20,000 items, of which 3% are "
        "relevant. A model of a simulated list is validated on two other lists and tested on four. The model is a "
        "linear ranker that starts at 0, trained by Adam. All mini-batch methods see the same number of documents: the "
        "number of passes times the size of the training set.\n\n"
        "- *NDCGLoss* is `NDCGLoss.from_targets(relevance, query)` with its defaults. A batch has 8 documents of each "
        "query. On a long list, half of the batch is relevant.\n"
        "- *in-batch NDCG* is trained on the same batches, and treats the part of a list that is in the batch as the "
        "whole list.\n"
        "- *ListNet, whole lists* and *ApproxNDCG, whole lists* take whole lists, as many as make up the batch, and at "
        "least one. Only their metric is compared.\n"
        "- *full batch* takes 100 steps on all lists.\n"
        "- *lightgbm* (lambdarank, with the settings of its own example) and *xgboost* (rank:ndcg, depth 6, eta 0.1) "
        "grow up to 500 trees and stop early by the NDCG@10 of the validation queries. They are only run on the real "
        "lists: the order of the simulated ones is linear, so that trees cannot win there. LightGBM also refuses lists "
        "of more than 10,000 items.\n\n"
        "LightGBM's example was also used to choose the defaults of *NDCGLoss*; see "
        "[docs/defaults.md](docs/defaults.md)."
    ),
    objective="negative smooth NDCG",
    metric="NDCG@10",
    cases=(
        *(Case("lambdarank", batch, 10) for batch in (16, 64, 256)),
        Case(f"{LIST}4,000", 64, 40),
        *(Case(f"{LIST}20,000", batch, 20) for batch in (64, 256)),
    ),
    methods=methods,
    run=run,
    lr=lambda case: 0.016,
    quick=Case(f"{LIST}400", 32, 2),
    goal=goal,
)
