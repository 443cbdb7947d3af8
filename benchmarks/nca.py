"""NeighborhoodComponentsAnalysis: its step against a loop of PyTorch, its fit against scikit-learn's, and MNIST.

    python benchmarks/nca.py [--quick] [--only step growth fit sets auto elsewhere wide threads mnist]

``benchmarks/estimators.py --only nca`` runs all of it. Every figure is beside a competitor's in the same run, on one
thread; the last two parts take more. MNIST needs FCCO_DATA, a directory with ``mnist/train-images-idx3-ubyte.gz``
and its siblings; scikit-learn's NCA would need 60,000² distances in double precision there, 29 GB.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import NeighborhoodComponentsAnalysis as Theirs
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

from fcco.compiled import new_update
from fcco.compiled._nca import nca_rows, nca_state, train_nca
from fcco.estimators._nca import NeighborhoodComponentsAnalysis
from fcco.estimators._nca_fit import ANCHORS, draw_batches
from fcco.estimators._nca_pairs import Pairs
from fcco.functional import nca_loss
from fcco_reproduce.datasets import load_mnist
from harness import data
from harness.timing import compare, seconds_of, timed

Array = NDArray[Any]
GAMMA, BETA, LR = 0.9, 0.1, 1e-3


def objective(x: Array, y: Array, components: Array) -> float:
    return -nca_loss(torch.as_tensor(x @ components.T), torch.as_tensor(y)).item()


def problem(n: int, d: int, k: int) -> tuple[Array, Array, Array]:
    random = np.random.RandomState(0)
    x = random.randn(n, d).astype(np.float32)
    return x, random.randint(0, 10, n), (random.randn(k, d) / d).astype(np.float32)


def compiled_steps(x: Array, y: Array, start: Array, batch: int) -> tuple[Callable[[], None], int]:
    """Return a pass over the rows, and how many steps it has."""
    n = len(x)
    rows, state = nca_rows(x, y, x.mean(0)), nca_state(start, n, normalise=True)
    batches = draw_batches(np.random.RandomState(0), y, -(-n // batch), 1)
    lr, update = np.full(len(batches.bounds) - 1, LR), new_update("sox", GAMMA, n)

    def take() -> None:
        train_nca(rows, update, state, *batches, lr, beta=BETA, alpha=0.0)

    return take, len(lr)


def plain_torch_steps(x: Array, y: Array, start: Array, batch: int) -> Callable[[], None]:
    """Return the same pass as one would write it: products, distances, the table's update, backward, SGD."""
    n, data, label = len(x), torch.tensor(x), torch.tensor(y)
    weights = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=LR * BETA, momentum=1 - BETA)
    table, own = torch.zeros(n, 2), torch.eye(batch, dtype=torch.bool)

    def step(index: torch.Tensor) -> None:
        optimizer.zero_grad()
        z = data[index] @ weights.T
        square = (z * z).sum(1)
        near = (-(square[:, None] + square - 2 * z @ z.T)).exp().masked_fill(own, 0.0)
        inner = torch.stack([(near * (label[index][:, None] == label[index])).sum(1), near.sum(1)], 1)
        with torch.no_grad():
            old = table[index]
            old = torch.where(old > 0, old, inner)
            table[index] = (1 - GAMMA) * old + GAMMA * inner
            slope = torch.stack([-1 / old[:, 1], old[:, 0] / old[:, 1] ** 2], 1) / batch
        (inner * slope).sum().backward()
        optimizer.step()

    def one_pass() -> None:
        for index in torch.randperm(n)[: n - n % batch].split(batch):
            step(index)

    return one_pass


def compare_steps(quick: bool) -> None:
    print(f"{'step':<16}{'PyTorch':>12}{'ours':>10}{'ratio':>8}{'2 threads / 1':>16}")
    for d, k in ((256, 10), (784, 32)):
        x, y, start = problem(64 * (20 if quick else 200), d, k)
        ours, steps = compiled_steps(x, y, start, 64)
        first = seconds_of(ours)
        with threadpool_limits(1):
            theirs, own, ratio = compare(plain_torch_steps(x, y, start, 64), ours, 3 if quick else 15, 1)
        _, _, threads = compare(fit_on(2, x, y, k), fit_on(1, x, y, k), 3 if quick else 7, 1)
        name = f"64 x {d} -> {k}"
        print(f"{name:<16}{theirs / steps * 1e6:>9.0f} µs{own / steps * 1e6:>7.0f} µs{ratio:>8.1f}{threads:>16.2f}")
        print(f"  first call, with compiling or loading what is cached: {first:.1f} s")


def fit_on(threads: int, x: Array, y: Array, k: int) -> Callable[[], None]:
    model = NeighborhoodComponentsAnalysis(k, init=np.eye(k, x.shape[1]) / 10, batch_size=64, max_iter=1, tol=0)

    def fit() -> None:
        with threadpool_limits(threads):
            model.fit(x[:4096], y[:4096])

    return fit


def show_growth(quick: bool) -> None:
    """Time of a step, and of tracking the objective once a pass, shared among the pass's steps."""
    print(f"64 x 64 -> 10{'rows':>12}{'a step':>11}{'to 1,000':>10}{'tracking, per step':>21}")
    first = 0.0
    for n in (1000, 10_000) if quick else (1000, 10_000, 100_000, 1_000_000):
        x, y, start = problem(n, 64, 10)
        ours, steps = compiled_steps(x, y, start, 64)
        anchors = np.sort(np.random.RandomState(0).permutation(n)[:ANCHORS])
        track = partial(Pairs(x, y, x.mean(0)).share, start, anchors)
        with threadpool_limits(1):
            ours()
            track()
            step = min(seconds_of(ours, max(1, 2000 // steps)) / steps for _ in range(3))
            tracking = min(seconds_of(track, 1) / steps for _ in range(3))
        first = first or step
        print(f"{n:>25,}{step * 1e6:>8.0f} µs{step / first:>10.2f}{tracking * 1e6:>18.0f} µs")


def timed_fit(model: Any, x: Array, y: Array) -> float:
    return seconds_of(lambda: model.fit(x, y))


class Solutions:
    """A callback that keeps every iterate, with the time."""

    def __init__(self) -> None:
        self.points: list[tuple[float, Array]] = []

    def __call__(self, components: Array, n_iter: int) -> None:
        self.points.append((time.perf_counter(), components))


def hard_problems(n: int) -> list[tuple[str, Array, Array]]:
    digits, digit = load_digits(return_X_y=True)
    random = np.random.RandomState(0)
    rows = random.randint(0, len(digits), n)
    hard = make_classification(n, 64, n_informative=20, n_classes=5, random_state=0)
    return [("digits with noise", digits[rows] + random.randn(n, 64), digit[rows]), ("make_classification", *hard)]


def compare_fits(quick: bool) -> None:
    """How long ours takes to come within 1% of what scikit-learn reaches in the end."""
    n = 300 if quick else 4000
    print(f"{'fit, ' + str(n) + ' x 64':<28}{'theirs':>9}{'reached':>9}{'ours':>8}{'within 1% after':>18}{'ratio':>8}")
    for name, x, y in hard_problems(n):
        theirs, goal = Theirs(random_state=0), 0.0
        with threadpool_limits(1):
            seconds = timed_fit(theirs, x, y)
            goal = objective(x, y, theirs.components_)
            for method in ("exact", "sox"):
                path = Solutions()
                ours = NeighborhoodComponentsAnalysis(method=method, random_state=0, callback=path)
                clone(ours).fit(x[:300], y[:300])  # compiles
                path.points.clear()
                began = time.perf_counter()
                ours.fit(x, y)
                reached = objective(x, y, ours.components_)
                after = [t - began for t, a in path.points if objective(x, y, a.reshape(-1, 64)) >= 0.99 * goal]
                took = f"{after[0]:>16.2f} s{after[0] / seconds:>8.3f}" if after else f"{'never':>18}"
                print(f"{name + ', ' + method:<28}{seconds:>7.1f} s{goal:>9.4f}{reached:>8.4f}{took}", flush=True)


def reduced_mnist(n: int, begin: int = 0) -> tuple[Array, Array, Array, Array]:
    """Return n rows of MNIST in 16 principal components, in double precision, and all test rows."""
    (x, y), (test_x, test_y) = read_mnist("train"), read_mnist("test")
    axes, rows = PCA(16, random_state=0).fit(x), slice(begin, begin + n)
    return axes.transform(x[rows]).astype(float), y[rows], axes.transform(test_x).astype(float), test_y


def covtype(n: int) -> tuple[Array, Array, Array, Array]:
    """Return n rows of covtype, the ten features that are not indicators, and the rest of every 29th row."""
    values = np.random.RandomState(0).permutation(data.covtype_rows(29))
    x, y = scale(values[:, :10].astype(float)), values[:, -1].astype(int)
    return x[:n], y[:n], x[n:], y[n:]


def print_methods(
    name: str,
    methods: Sequence[Literal["exact", "auto", "sox"]],
    k: int,
    parts: tuple[Array, Array, Array, Array],
    seed: int = 0,
) -> None:
    """Processor time, which others on the machine matter less to, its ratio to the first, mean p, and 3-NN."""
    x, y, test_x, test_y = parts
    pairs, first = Pairs(x, np.unique(y, return_inverse=True)[1], x.mean(0)), 0.0
    for method in methods:
        model = NeighborhoodComponentsAnalysis(k, method=method, random_state=seed)
        clone(model).set_params(max_iter=1).fit(x[:600], y[:600])  # compiles
        seconds, _ = timed(partial(model.fit, x, y), time.process_time)
        first = first or seconds
        score = KNeighborsClassifier(3).fit(model.transform(x), y).score(model.transform(test_x), test_y)
        line = f"{name:<26}{method:<8}{seconds:>8.1f} s{seconds / first:>8.2f}"
        print(f"{line}{pairs.share(model.components_):>10.4f}{score:>9.4f}", flush=True)


def compare_methods(quick: bool) -> None:
    """What "auto" does as rows become more, beside the methods that it stands between."""
    print(f"{'':<26}{'method':<8}{'CPU':>10}{'ratio':>8}{'mean p':>10}{'3-NN':>9}")
    if quick or not data.has("mnist"):
        x, y = make_classification(800, 16, n_informative=8, n_classes=5, random_state=0)
        print_methods("600 x 16 -> 8", ("exact", "auto", "sox"), 8, (x[:600], y[:600], x[600:], y[600:]))
        return
    for n in (5_000, 9_999, 10_001, 15_000):
        print_methods(f"MNIST, {n:,} x 16 -> 8", ("exact", "auto", "sox"), 8, reduced_mnist(n))


def compare_elsewhere(quick: bool) -> None:
    """The same on other rows, with another seed, and on other data: no setting was chosen there."""
    if quick or not data.has("mnist"):
        return
    print_methods("MNIST, other 10,001 rows", ("exact", "auto"), 8, reduced_mnist(10_001, 20_000), seed=3)
    if data.has("covtype"):
        print_methods("covtype, 10,001 x 10 -> 8", ("exact", "auto"), 8, covtype(10_001))


def compare_wide(quick: bool) -> None:
    if not quick and data.has("mnist"):
        print_methods("MNIST, 9,000 x 16 -> 16", ("exact", "auto"), 16, reduced_mnist(9_000))


def compare_threads(quick: bool) -> None:
    """The exact gradient on one thread and on two, by the clock."""
    x, y, start = problem(600 if quick else 10_000, 16, 8)
    pairs, before = Pairs(x.astype(float), y, x.mean(0)), torch.get_num_threads()

    def look(threads: int) -> None:
        torch.set_num_threads(threads)
        pairs.share_and_gradient(8 * start.astype(float))

    one, two, ratio = compare(partial(look, 1), partial(look, 2), 3 if quick else 9, 1)
    torch.set_num_threads(before)
    print(f"exact gradient, {len(x):,} x 16 -> 8: {one:.3f} s on one thread, {two:.3f} s on two, ratio {ratio:.2f}")


def compare_sets(quick: bool) -> None:
    print(f"{'objective reached':<28}{'theirs':>9}{'ours':>9}{'time, theirs':>14}{'ours':>9}")
    for load in (load_iris,) if quick else (load_iris, load_wine, load_breast_cancer, load_digits):
        raw, y = load(return_X_y=True)
        for kind, x in (("raw", raw), ("standardised", scale(raw))):
            for k in (None, 2):
                models = Theirs(k, random_state=0), NeighborhoodComponentsAnalysis(k, random_state=0)
                times = [timed_fit(model, x, y) for model in models]
                values = [objective(x, y, model.components_) for model in models]
                name = f"{load.__name__[5:]}, {kind}, {k or 'all'}"
                print(f"{name:<28}{values[0]:>9.4f}{values[1]:>9.4f}{times[0]:>12.2f} s{times[1]:>7.2f} s")


def read_mnist(part: str) -> tuple[Array, Array]:
    digits = load_mnist(part)
    return digits.x.reshape(-1, 784).astype(np.float32) / 255, digits.y


def show_mnist(quick: bool) -> None:
    if quick:
        return
    if not data.has("mnist"):
        print("MNIST: left out, FCCO_DATA does not name a directory that has it")
        return
    (x, y), (test_x, test_y) = read_mnist("train"), read_mnist("test")
    model = NeighborhoodComponentsAnalysis(32, random_state=0)
    torch.set_num_threads(os.cpu_count() or 1)
    busy, seconds = timed(lambda: timed_fit(model, x, y), time.process_time)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    times = f"{seconds:.0f} s, {busy:.0f} CPU-s, {busy / seconds:.2f} cores busy, {model.n_iter_} iterations"
    print(f"MNIST, 60,000 x 784 -> 32: {times}, peak of the process {peak:.2f} GB")
    for name, map_ in (("PCA", PCA(32, random_state=0).fit(x)), ("NCA", model)):
        neighbours = KNeighborsClassifier(3).fit(map_.transform(x), y)
        print(f"  3 nearest neighbours after {name}: {neighbours.score(map_.transform(test_x), test_y):.4f}")


PARTS = {
    "step": compare_steps,
    "growth": show_growth,
    "fit": compare_fits,
    "sets": compare_sets,
    "auto": compare_methods,
    "elsewhere": compare_elsewhere,
    "wide": compare_wide,
    "threads": compare_threads,
    "mnist": show_mnist,
}


def run(quick: bool, parts: Sequence[str] = tuple(PARTS)) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for part in parts:
            PARTS[part](quick)


def main() -> None:
    parser = argparse.ArgumentParser(description="NCA against PyTorch and scikit-learn, in one run.")
    parser.add_argument("--quick", action="store_true", help="few repeats and rows, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run(arguments.quick, arguments.only)


if __name__ == "__main__":
    main()
