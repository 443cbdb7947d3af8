"""How fast the estimators are, and how far they come: every figure beside a competitor's in the same run.

    FCCO_DATA=... python benchmarks/estimators.py [--quick] [--only p-norm-push nca cox ...]

On one thread. The sections of NCA and Cox are those of ``nca.py`` and ``cox.py``. Data come from the directory named by
FCCO_DATA, or are what ships with scikit-learn. A section is a function of ``quick``, named in SECTIONS.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cox
import nca
import numba
import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from fcco.compiled import RULES, new_state, train_linear
from fcco.estimators._linear import LinearRanker
from fcco.estimators._listwise import OBJECTIVES, ListwiseRanker
from fcco.estimators._precision import AveragePrecisionClassifier
from fcco.estimators._push import PNormPushClassifier
from fcco.estimators._sharpen import Ranking
from harness import data as real_data
from harness.timing import compare, seconds_of

P, GAMMA, BETA, LR, ALPHA, BATCH = 4, 0.1, 0.1, 0.01, 1e-3, 32


def imbalanced(n: int, d: int = 22, share: float = 0.1, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian features, and a tenth positive by one of them: of ijcnn1's shape with n = 28,000."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d)).astype(dtype)
    noisy = x[:, 0] + rng.normal(size=n)
    return x, (noisy > np.quantile(noisy, 1 - share)).astype(int)


def torch_loop(x: Tensor, negatives: Tensor, positives: Tensor, steps: int) -> Tensor:
    """SOX on p-norm push as one writes it in PyTorch."""
    w, v, u = torch.zeros(x.shape[1], requires_grad=True), torch.zeros(x.shape[1]), torch.zeros(len(x))
    seen = torch.zeros(len(x), dtype=torch.bool)
    batches = torch.randperm(len(negatives)).split(BATCH)[: len(negatives) // BATCH]
    for t in range(steps):
        rows = negatives[batches[t % len(batches)]]
        rivals = positives[torch.randint(len(positives), (BATCH,))]
        g = torch.exp((x[rows] @ w).unsqueeze(1) - x[rivals] @ w).mean(1)
        with torch.no_grad():
            old = torch.where(seen[rows], u[rows], g)
            u[rows], seen[rows] = torch.lerp(old, g, GAMMA), True
        loss = (P * old ** (P - 1) * g).mean() + ALPHA / 2 * w.square().sum()
        (gradient,) = torch.autograd.grad(loss, w)
        v.lerp_(gradient, BETA)
        with torch.no_grad():
            w -= LR * v
    return w.detach()


def compile_seconds(code: str) -> tuple[float, float]:
    """Return how long ``code`` takes in a new process, compiling, and in another that finds the compiled code."""
    with tempfile.TemporaryDirectory() as cache:
        seconds = []
        for _ in range(2):
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
            run = partial(subprocess.run, [sys.executable, "-c", code], check=True, env=environment)
            seconds.append(seconds_of(run))
    return seconds[0], seconds[1]


def push_speed(quick: bool) -> None:
    x, y = imbalanced(28_000)
    negatives, positives = (torch.from_numpy(np.flatnonzero(y == label)) for label in (0, 1))
    per_pass = -(-len(negatives) // BATCH)
    passes = 1 if quick else round(10_000 / per_pass)
    ranker = PNormPushClassifier(P, method="sox", gamma=GAMMA, beta=BETA, alpha=ALPHA, learning_rate=LR, tol=0)
    ranker.set_params(max_iter=passes, random_state=0)
    narrow, steps = torch.from_numpy(x).float(), passes * per_pass
    ours, theirs, ratio = compare(
        lambda: ranker.fit(x, y), lambda: torch_loop(narrow, negatives, positives, steps), 3 if quick else 5, 1
    )
    print(f"p-norm push, 28,000 x 22, SOX, 32 + 32, {steps:,} steps, the objective tracked after each pass")
    print(f"  fit {ours:.3f} s ({ours / steps * 1e6:.1f} µs a step), PyTorch {theirs:.3f} s, ratio {1 / ratio:.0f}")


@numba.njit
def gather(x: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    for t in range(len(rows)):
        for i in range(len(out)):
            for k in range(x.shape[1]):
                out[i, k] = x[rows[t, i], k]


def step_growth(quick: bool) -> None:
    """Time of a step while n grows, beside that of only copying as many random rows, which caches come to miss."""
    print("p-norm push, 22 features, SOX, 32 + 32: a step by n, and a copy of 64 random rows")
    sizes = (1000, 10_000) if quick else (1000, 10_000, 100_000, 1_000_000)
    steps, first = 1000 if quick else 5000, None
    for n in sizes:
        x, y = imbalanced(n, dtype=np.float32)
        plan = PNormPushClassifier(P, method="sox", gamma=GAMMA)._task(x, y == 1).plan
        state, rates = new_state(np.zeros(x.shape[1]), n, 1, plan.first, plan.second, 0), np.full(steps, LR)
        rows, out = np.random.default_rng(0).integers(n, size=(steps, 2 * BATCH)), np.empty((2 * BATCH, x.shape[1]))
        arguments = (x, plan.objective, plan.update, plan.sampler, state, rates)
        calls = partial(train_linear, *arguments, beta=BETA, alpha=ALPHA), partial(gather, x, rows, out)
        step, copy = (min([seconds_of(call) / steps * 1e6 for _ in range(8)][1:]) for call in calls)
        first = first or (step, copy)
        print(
            f"  n = {n:>9,}  step {step:5.1f} µs, {step / first[0]:.2f} times that of n = 1,000"
            f"   copy {copy:5.2f} µs, {copy / first[1]:.2f} times"
        )


def tracking(quick: bool) -> None:
    """What it costs to know the objective after a pass, shared among the steps of the pass, beside a step."""
    n = 5000 if quick else 100_000
    x, y = imbalanced(n)
    grades, lists = np.random.default_rng(0).integers(0, 4, n).astype(float), np.arange(n) // 50
    first = np.eye(x.shape[1])[0]  # the feature that decides
    tasks = {
        "p-norm push": PNormPushClassifier(P, method="sox")._task(x, y == 1),
        "average precision": AveragePrecisionClassifier(method="sox")._task(Ranking.of(x, y == 1), first),
        **{name: ListwiseRanker(name, method="sox")._task(x, grades, lists) for name in OBJECTIVES},
    }
    print(f"tracking the objective after each pass, {n:,} x 22, SOX, lists of 50: µs per step of the pass")
    for name, task in tasks.items():
        plan, scale = task.plan, np.ones(x.shape[1])
        w = np.full(x.shape[1], 0.1)
        state, rates = new_state(w, n, plan.dim, plan.first, plan.second, 0), np.full(plan.count, 0.0)
        arguments = (x, plan.objective, plan.update, plan.sampler, state, rates)
        steps = partial(train_linear, *arguments, beta=BETA, alpha=ALPHA, scale=scale)
        seconds = [min(seconds_of(work) for _ in range(4)) for work in (steps, partial(task.value, w, ALPHA))]
        step, value = (second / plan.count * 1e6 for second in seconds)
        print(f"  {name:<20} step {step:6.1f}, tracking {value:6.1f}, ratio {value / step:.2f}")


def compare_methods(ranker: LinearRanker, data: str, *arrays: np.ndarray, **options: Any) -> None:
    """The objective that each method reaches with its defaults, when, and when the exact one was there."""
    exact: list[float] = []
    for method in ("exact", *RULES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ranker.set_params(method=method, random_state=0).fit(*(a[:500] for a in arrays))  # compiles
            seconds = seconds_of(partial(ranker.fit, *arrays, **options))
        curve = ranker.loss_curve_
        exact = exact or [seconds, *curve]
        passed = [number for number, objective in enumerate(exact[1:], 1) if objective <= curve[-1]]
        there = f"{exact[0] * passed[0] / (len(exact) - 1):.2f} s" if passed else "never"
        score = ranker.score(*arrays, **options)
        line = f"  {data:<30}{method:<7}{curve[-1]:>10.6f}{seconds:>8.2f} s, {len(curve):4d} passes"
        print(f"{line}; exact there after {there:<7}  score {score:.4f}")


def binary_data(quick: bool) -> list[tuple[str, np.ndarray, np.ndarray]]:
    names = ["breast cancer"]
    if not quick:
        files = {"ijcnn1": "ijcnn1/ijcnn1.tr.bz2", "covtype": "covtype/covtype.data.gz"}
        names += [name for name, file in files.items() if real_data.has(file)]
    return [(name, x.numpy(), y.numpy()) for name, (x, y) in ((name, real_data.binary(name)) for name in names)]


def push_methods(quick: bool) -> None:
    print("p-norm push: objective with penalty, by method")
    for name, x, y in binary_data(quick):
        compare_methods(PNormPushClassifier(P, alpha=ALPHA), name, x.astype(np.float64), y)
    if not quick:
        compare_methods(PNormPushClassifier(P, alpha=ALPHA), "Gaussian, 300,000 x 22", *imbalanced(300_000))


def precision_methods(quick: bool) -> None:
    print("average precision: objective with penalty, by method")
    for name, x, y in binary_data(quick):
        compare_methods(AveragePrecisionClassifier(alpha=ALPHA, cv=None), name, x.astype(np.float64), y)


def listwise_methods(quick: bool) -> None:
    print("listwise: objective with penalty, by method; the score is NDCG@10")
    names = ["diabetes"]
    if not quick and real_data.has("ltr/lightgbm-lambdarank/rank.train.gz"):
        names.append("lightgbm-lambdarank")
    for name in names:
        x, y, query = (v.numpy() for v in real_data.ranking(name))
        for objective in OBJECTIVES:
            ranker = ListwiseRanker(objective, k=10, alpha=ALPHA)
            compare_methods(ranker, f"{name}, {objective}", x.astype(np.float64), y, qid=query)


def first_fits(quick: bool) -> None:
    """What compiling costs the first fit of a new process, and what it costs once compiled."""
    fits = {
        "PNormPushClassifier": "C(method='sox', max_iter=1, tol=0, learning_rate=.1).fit(np.eye(4), [0, 1, 0, 1])",
        "NeighborhoodComponentsAnalysis": "C(max_iter=1, tol=0).fit(np.eye(4), [0, 1, 0, 1])",
        "CoxRegressor": "C().fit(np.random.randn(40, 2), np.column_stack([np.random.rand(40), np.ones(40)]))",
    }
    print("first fit of a new process, imports included: compiling, and compiled before")
    for name, fit in list(fits.items())[: 1 if quick else None]:
        first, second = compile_seconds(f"import numpy as np; from fcco.estimators import {name} as C; {fit}")
        print(f"  {name:<32}{first:>7.1f} s{second:>7.1f} s")


def cox_section(quick: bool) -> None:
    cox.run(quick=quick)


Section = Callable[[bool], None]
SECTIONS: dict[str, tuple[Section, ...]] = {
    "tracking": (tracking,),
    "p-norm-push": (push_speed, step_growth, push_methods),
    "average-precision": (precision_methods,),
    "listwise": (listwise_methods,),
    "nca": (nca.run,),
    "cox": (cox_section,),
    "compiling": (first_fits,),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and objectives of the estimators, in one run.")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="which sections")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for name in options.only:
            for section in SECTIONS[name]:
                section(options.quick)


if __name__ == "__main__":
    main()
