"""Learning to rank: a smooth NDCG from parts of lists, against losses that take lists whole."""

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
    """LightGBM's own test set, and a fifth of its training queries to validate; or lists that are made."""
    if name.startswith(LIST):
        n = int(name.removeprefix(LIST).replace(",", ""))
        return scaled(*(make_lists(n, seed, count) for seed, count in ((0, 1), (1, 2), (2, 4))))
    data, test = (load_lightgbm_ranking(part) for part in ("train", "test"))
    held = data.query % 5 == 0
    parts = [(data.x[rows], (data.y[rows], data.query[rows])) for rows in (~held, held)]
    return scaled(*parts, (test.x, (test.y, test.query)))


def make_lists(n: int, seed: int, count: int, features: int = 20) -> tuple[Any, tuple[Any, ...]]:
    """Lists whose best 3% are relevant, by 1 to 4, in the order of a linear score with noise."""
    w = np.random.default_rng(0).normal(size=features)
    rng = np.random.default_rng(seed + 1)
    x = rng.normal(size=(count * n, features))
    score = (x @ w / np.linalg.norm(w) + 0.5 * rng.normal(size=count * n)).reshape(count, n)
    place = score.argsort(1)[:, ::-1].argsort(1) / n
    y = sum((place < share).astype(np.float32) for share in (0.03, 0.01, 0.004, 0.001))
    return x, (np.asarray(y).ravel(), np.repeat(np.arange(count), n))


def ndcg(scores: Tensor, part: Part, k: int = 10) -> float:
    """NDCG@10 with gains 2^y - 1, the mean over queries that have a relevant item."""
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
    """Batches until that many examples have been seen."""
    seen = 0
    for rows in batches:
        if seen >= examples:
            return
        seen += len(rows)
        yield torch.tensor(rows)


def batches(case: Case, method: str, part: Part, seed: int) -> list[Tensor]:
    """Half relevant items of a long list, 8 items of each short one, or lists whole: equally many examples in all."""
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
    """The loss of a method, as ``loss(scores, relevance, query, rows)``."""
    y, query = part.y
    if method == OURS:
        return fcco.losses.NDCGLoss.from_targets(y, query)
    if method == "in-batch NDCG":
        return fcco.losses.NDCGLoss(len(y), rule=fcco.BSGD())
    if method == LISTNET:
        return lambda scores, y, query, _: list_net_loss(scores, y, query)
    return lambda scores, y, query, _: approx_ndcg(scores, y, query)


def approx_ndcg(scores: Tensor, y: Tensor, query: Tensor) -> Tensor:
    """ApproxNDCG of Qin et al. as allRank has it: a matrix of all pairs of a list through a sigmoid."""
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
    """Train once, from 0."""
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
    """Trees, as many as the NDCG@10 of the validation queries asks for."""
    seconds, predict = timed(lambda: grow(_lists_together(parts.train), _lists_together(parts.valid), seed))
    valid, test = (ndcg(torch.as_tensor(predict(part.x.numpy())), part) for part in parts[1:])
    return Result(math.nan, valid, test, seconds)


def _lists_together(part: Part) -> Sorted:
    """The items of a query one after the other, as the tree libraries want them: features, relevances, queries."""
    order = part.y[1].argsort(stable=True)
    return part.x[order].numpy(), part.y[0][order].numpy(), part.y[1][order].numpy()


def by_lightgbm(train: Sorted, valid: Sorted, seed: int) -> Predict:
    """Lambdarank with the settings of LightGBM's own example."""
    lightgbm: Any = importlib.import_module("lightgbm")
    sets = [lightgbm.Dataset(x, y, group=np.unique(query, return_counts=True)[1]) for x, y, query in (train, valid)]
    settings = {"objective": "lambdarank", "metric": "ndcg", "eval_at": [10], "num_threads": 1, "verbosity": -1}
    settings |= {"learning_rate": 0.1, "num_leaves": 31, "min_data_in_leaf": 50, "min_sum_hessian_in_leaf": 5.0}
    settings |= {"bagging_freq": 1, "bagging_fraction": 0.9, "seed": seed}
    stop = lightgbm.early_stopping(STOP_AFTER, verbose=False)
    model = lightgbm.train(settings, sets[0], MOST_TREES, valid_sets=sets[1:], callbacks=[stop])
    return lambda x: model.predict(x, num_iteration=model.best_iteration)


def by_xgboost(train: Sorted, valid: Sorted, seed: int) -> Predict:
    """rank:ndcg, trees of depth 6."""
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
    """MiB that two steps add to a process of their own."""
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
    # Loading the data took more than a step may: the mark is set back to what is held now.
    Path("/proc/self/clear_refs").write_text("5")
    before = _high_water()
    for rows in (plan * 2)[:2]:
        loss_fn(x[rows] @ w, y[rows], query[rows], rows).backward()
        optimizer.step()
    return _high_water() - before


def _high_water() -> float:
    """MiB that this process has held at most since the mark was set back; of Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def methods(case: Case) -> tuple[Method, ...]:
    """All pairs of a long list are held only where they fit; trees cannot win where the order is made linear."""
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
    """What a step on a long list holds at most."""
    lines = []
    for case, entries in table.items():
        if case.data.startswith(LIST) and not math.isnan(entries[OURS].typical("memory")):
            held = [f"{name} {entry.typical('memory'):.0f}" for name, entry in entries.items() if name != "full batch"]
            lines.append(f"{case.data}, batch {case.batch}: " + ", ".join(held))
    if not lines:
        return ""
    return (
        "Sought: on a long list, NDCG@10 of the losses on whole lists in under 1 GiB. Training holds at most, in MiB "
        "on top of the data: " + "; ".join(lines) + f". ApproxNDCG, which grows with the square, is run up to "
        f"{IN_MEMORY:,} items."
    )


APPLICATION = Application(
    title="Learning to rank",
    text=(
        "LightGBM's lambdarank example (160 queries of about 15 documents to train on, 41 to validate, its own 50 to "
        "test), and made lists of 4,000 and 20,000 items of which 3% are relevant (validated on two others, tested on "
        "four). A linear ranker from 0, Adam, cosine lr. All methods see equally many documents, passes times those "
        "of the training set. *NDCGLoss* (`from_targets`) and *in-batch NDCG*, which takes the batch's part of a list "
        "for the list, have 8 documents a query, or half of the batch relevant on a long list. *ListNet* and "
        "*ApproxNDCG* take lists whole, as many as make up the batch. *full batch*: 100 steps on all lists. *lightgbm* "
        "(lambdarank, with the settings of its own example) and *xgboost* (rank:ndcg, depth 6, eta .1) grow up to 500 "
        "trees, and stop by the NDCG@10 of the validation queries; on real lists only, as the order of the "
        "made ones is linear, where trees cannot win. LightGBM takes no list of more than 10,000 items."
    ),
    objective="smooth NDCG, negative",
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
