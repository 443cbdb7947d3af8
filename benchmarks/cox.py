"""A Cox model on a million rows of 20 features: seconds, memory and objective, beside scikit-survival and lifelines.

    python benchmarks/cox.py [--rows 1000000] [--threads 1] [--only fcco lifelines] [--quick]

Each fit has a process of its own, with data from the same seed, times tied (some hundreds of them, Efron) or not.
"first" is a fit of 1,000 rows, which compiles what there is to compile, into an empty cache unless quick; "fit" is the
one measured. Memory is what the process held at most, on top of what it held before the fit, with the data in hand.
The objective is the exact partial likelihood per event, as an excess over the lowest. Competitors that are not
installed are named and left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import resource
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from harness.timing import timed

Array = NDArray[Any]
QUICK_ROWS = 10_000
Problem = tuple[Array, Array, Array]


class Result(NamedTuple):
    first: float
    fit: float
    memory: float
    coef: Array


def make_problem(rows: int, tied: bool, features: int = 20) -> Problem:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(rows, features)), rng.normal(size=features) * 0.3
    life, watched = rng.exponential(np.exp(-x @ w)), rng.exponential(2.0, size=rows)
    times = np.minimum(life, watched)
    return x, np.ceil(times * 100.0) if tied else times, life <= watched


def by_fcco(problem: Problem, tied: bool, method: Literal["exact", "soap"] = "exact") -> Callable[[], Array]:
    from fcco.estimators import CoxRegressor

    x, times, event = problem
    model = CoxRegressor(method=method, ties="efron" if tied else "breslow", random_state=0)
    y = np.column_stack([times, event])
    return lambda: model.fit(x, y).coef_


def by_soap(problem: Problem, tied: bool) -> Callable[[], Array]:
    return by_fcco(problem, tied, method="soap")


def by_sksurv(problem: Problem, tied: bool) -> Callable[[], Array]:
    from sksurv.linear_model import CoxPHSurvivalAnalysis
    from sksurv.util import Surv

    x, times, event = problem
    model, y = CoxPHSurvivalAnalysis(ties="efron" if tied else "breslow"), Surv.from_arrays(event, times)
    return lambda: model.fit(x, y).coef_


def by_lifelines(problem: Problem, tied: bool) -> Callable[[], Array]:
    import pandas as pd
    from lifelines import CoxPHFitter

    x, times, event = problem
    frame = pd.DataFrame(x, columns=[f"x{k}" for k in range(x.shape[1])]).assign(time=times, event=event)
    return lambda: np.asarray(CoxPHFitter().fit(frame, "time", "event").params_)


FITS = {
    "fcco": ("fcco", by_fcco),
    "fcco, method='soap'": ("fcco", by_soap),
    "scikit-survival": ("sksurv", by_sksurv),
    "lifelines": ("lifelines", by_lifelines),
}


def peak() -> float:
    """MB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def held() -> float:
    """MB that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def measure(name: str, path: str, tied: bool) -> Result:
    warnings.simplefilter("ignore")
    prepare = FITS[name][1]
    first, _ = timed(prepare(make_problem(1000, tied), tied))
    with np.load(path) as data:  # making it takes more memory than having it
        x, times, event = data["x"], data["times"], data["event"]
    fit = prepare((x, times, event), tied)
    before = held()
    seconds, coef = timed(fit)
    return Result(first, seconds, peak() - before, coef)


def objective(problem: Problem, coef: Array, tied: bool) -> float:
    import torch

    from fcco.functional import cox_loss

    x, times, event = (torch.from_numpy(part) for part in problem)
    return cox_loss(x @ torch.from_numpy(coef), times, event, ties="efron" if tied else "breslow").item()


def compare(rows: int, tied: bool, names: list[str], folder: str) -> None:
    results, problem, path = {}, make_problem(rows, tied), f"{folder}/problem.npz"
    np.savez(path, x=problem[0], times=problem[1], event=problem[2])
    for name in names:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results[name] = pool.apply(measure, (name, path, tied))
    reached = {name: objective(problem, result.coef, tied) for name, result in results.items()}
    print(f"\n{rows:,} rows, {'tied' if tied else 'untied'}, {len(np.unique(problem[1])):,} distinct times")
    print(f"{'':<22}{'first':>9}{'fit':>10}{'memory':>12}{'excess':>12}{'to fcco':>10}")
    for name, result in results.items():
        ratio = result.fit / results[names[0]].fit
        print(
            f"{name:<22}{result.first:>7.2f} s{result.fit:>8.2f} s{result.memory:>9.0f} MB"
            f"{reached[name] - min(reached.values()):>12.1e}{ratio:>9.1f}x",
            flush=True,
        )


def run(rows: int = 1_000_000, threads: int = 1, only: Sequence[str] = tuple(FITS), *, quick: bool = False) -> None:
    settings = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    names = [name for name in only if importlib.util.find_spec(FITS[name][0])]
    for name in only:
        if name not in names:
            print(f"{name} is not installed: left out")
    for tied in (False,) if quick else (True, False):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, settings):
            if not quick:
                os.environ["NUMBA_CACHE_DIR"] = folder  # read by the processes that are spawned
            # Mini-batches have no Efron's ties.
            able = [name for name in names if not (tied and FITS[name][1] is by_soap)]
            compare(QUICK_ROWS if quick else rows, tied, able, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cox models on a million rows.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1, help="of BLAS, for everybody")
    parser.add_argument("--only", nargs="*", choices=list(FITS), default=list(FITS))
    parser.add_argument("--quick", action="store_true", help="ten thousand rows, to see that it runs")
    options = parser.parse_args()
    run(options.rows, options.threads, options.only, quick=options.quick)


if __name__ == "__main__":
    main()
